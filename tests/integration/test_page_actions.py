"""Actions of the page on a real daemon: log-in, rights, forms of other sites, and effects."""

from __future__ import annotations

import html
import http.client
import re
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from http.cookiejar import CookieJar
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

import pytest

from fastjournal.client import SyncClient
from fastjournal.client.core.client_credentials import make_context
from tests.certificates import Authority, Files
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.page_contents import PageReader, http_address
from tests.integration.test_daemon_access import authority, files, hang_up, tls_options

__all__ = ["authority", "files"]

OPTIONS = ("--http", "127.0.0.1:0")
TOKENS = {
    "operator": (["read", "write", "next", "admin"], [""]),
    "reader": (["read"], [""]),
    "mailer": (["read", "write", "next"], ["mails:"]),
}


def secret(name: str) -> str:
    return f"{name:-<20}"


def write_tokens(directory: Path, names: list[str]) -> Path:
    file = directory / "tokens.toml"
    file.touch(0o600)
    file.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\ntoken = "{secret(name)}"\n'
            f"rights = {TOKENS[name][0]}\nprefixes = {TOKENS[name][1]}\n".replace("'", '"')
            for name in names
        )
    )
    return file


class Answer(NamedTuple):
    status: int
    text: str
    fields: dict[str, str]

    @property
    def form(self) -> str:
        """Token of the form on the page."""
        found = re.findall(r'name="form" value="([0-9a-f]{64})"', self.text)
        assert found, self.text
        return str(found[-1])


class Visitor:
    """A browser without a screen: it keeps its cookie and says where its forms come from."""

    def __init__(self, daemon: DaemonProcess, basic: str = "reader") -> None:
        self.address = http_address(daemon)
        self.cookie = ""
        self.basic = basic

    def ask(
        self, method: str, path: str, fields: dict[str, str] | None = None, **headers: str
    ) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items() if value}
        if self.cookie:
            sent["Cookie"] = self.cookie
        if self.basic:
            coded = b64encode(f"any:{secret(self.basic)}".encode()).decode()
            sent["Authorization"] = f"Basic {coded}"
        body = None if fields is None else urlencode(fields)
        with closing(http.client.HTTPConnection(*self.address, timeout=START_S)) as connection:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, response.read().decode(), found)
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        return answer

    def get(self, path: str) -> PageReader:
        answer = self.ask("GET", path)
        assert answer.status == 200, (path, answer.status)
        return PageReader(answer.text)

    def post(self, path: str, site: str = "same-origin", **fields: str) -> Answer:
        return self.ask("POST", path, fields, Sec_Fetch_Site=site)

    def log_in(self, name: str, following: str = "") -> Answer:
        page = self.ask("GET", f"/login?next={quote(following, safe='')}")
        return self.post(
            "/login", form=page.form, token=secret(name) if name else "", next=following
        )

    def act(self, path: str, **fields: str) -> str:
        """Confirm an action, and return what the next page says of it."""
        page = self.ask("GET", path)
        assert page.status == 200
        [action] = re.findall(r'<form action="(/act[^"]*)"', page.text)
        answer = self.post(html.unescape(action), form=page.form, **fields)
        assert (answer.status, answer.text) == (303, "")
        following = PageReader(self.ask("GET", answer.fields["location"]).text)
        assert "notice" not in PageReader(self.ask("GET", answer.fields["location"]).text).text_of
        return following.text_of["notice"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    tokens = write_tokens(tmp_path, list(TOKENS))
    with DaemonProcess(tmp_path, *OPTIONS, "--auth-tokens", str(tokens)) as process:
        yield process
        assert "Traceback" not in process.said()
        assert "http-page-failed" not in process.said()
        assert not [name for name in TOKENS if secret(name) in process.said()]


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[SyncClient]:
    with closing(SyncClient(daemon.address, auth=secret("operator"))) as connected:
        yield connected


@pytest.fixture
def visitor(daemon: DaemonProcess) -> Visitor:
    visitor = Visitor(daemon)
    answer = visitor.log_in("operator")
    assert (answer.status, answer.fields["location"]) == (303, "/")
    return visitor


def bury(client: SyncClient, domain: str, number: int, reason: str) -> None:
    for at in range(number):
        key = f"{domain}:128:0:{reason}-{at}"
        client.set(key, b"v" * 2000)
        client.bury(key, reason=reason)


def states(client: SyncClient, domain: str) -> dict[str, object]:
    facts = client.stats(domain)
    return {name: facts[name] for name in ("due", "delayed", "buried") if facts[name]}


def test_actions_on_one_entry_do_what_they_say(
    daemon: DaemonProcess, client: SyncClient, visitor: Visitor
) -> None:
    bury(client, "mails", 2, "SMTP 550")
    key = "mails:128:0:SMTP 550-0"
    link = f"/act?do=retry&key={quote(key, safe='')}"
    assert link in visitor.get(f"/entry?key={quote(key)}").links
    assert visitor.act(link) == f"1 entry retried: the entry {key}."
    assert states(client, "mails") == {"due": 1, "buried": 1}
    assert visitor.act(link) == f"0 entries retried: the entry {key}."
    visitor.act(link.replace("retry", "bury"), reason="again <b>")
    assert client.stats(key, data=True)["buried_reason"] == "again <b>"
    visitor.act(link.replace("retry", "drop"))
    assert states(client, "mails") == {"buried": 1}
    said = re.findall(r"event=page-action token=(\S+) peer=127\S+ action=(\S+) (.*)", daemon.said())
    assert [(token, action) for token, action, _ in said] == [
        ("operator", action) for action in ("log-in", "retry", "retry", "bury", "drop")
    ]
    assert said[1][2] == f"what='the entry {key}' done=1 refused=0 error=''"


def test_actions_on_a_group_leave_other_errors_domains_and_ages_alone(
    client: SyncClient, visitor: Visitor
) -> None:
    for domain in ("mails", "bills"):
        bury(client, domain, 3, "SMTP 550")
        bury(client, domain, 2, "SMTP 451")
    group = "state=buried&domain=mails&error=SMTP+550"
    page = visitor.get(f"/act?do=retry&{group}&older=1d")
    assert page.figure("number") == 0
    assert "confirm" not in page.text_of
    page = visitor.get(f"/act?do=retry&{group}")
    assert page.figure("number") == 3
    assert (
        page.text_of["what"]
        == "Retry dead letters of the domain mails, which failed with: SMTP 550"
    )
    assert "3 entries retried: dead letters" in visitor.act(f"/act?do=retry&{group}")
    assert states(client, "mails") == {"due": 3, "buried": 2}
    assert states(client, "bills") == {"buried": 5}
    said = visitor.act("/act?do=retry&state=buried&part=P+451")
    assert said.startswith("4 entries retried: dead letters of all domains, with this in the error")
    for domain in ("mails", "bills"):
        for at in range(2):
            client.bury(f"{domain}:128:0:SMTP 451-{at}", reason="SMTP 451")
    assert "4 entries dropped" in visitor.act("/act?do=drop&state=buried&error=SMTP+451")
    assert states(client, "mails") == {"due": 3}
    assert states(client, "bills") == {"buried": 3}
    assert "3 entries buried" in visitor.act(
        "/act?do=bury&state=waiting&domain=mails", reason="stop"
    )
    assert states(client, "mails") == {"buried": 3}
    assert "6 entries retried: dead letters of all domains" in visitor.act(
        "/act?do=retry&state=buried"
    )
    assert states(client, "mails") == {"due": 3}


def fail(client: SyncClient, key: str, error: str) -> None:
    jobs = client.get(key, lease=60)
    assert jobs.token is not None
    client.release(key, jobs.token, error=error, delay=3600)


def test_what_waits_for_its_next_attempt_is_retried_now(
    daemon: DaemonProcess, client: SyncClient, visitor: Visitor
) -> None:
    keys = [f"mails:128:0:{at}" for at in range(4)]
    for at, key in enumerate(keys):
        client.set(key, "x")
        if at < 3:
            fail(client, key, f"SMTP 451 try user{at}@example.org later")
    client.set("mails:128:4102444800000000:later", "x")
    assert states(client, "mails") == {"due": 1, "delayed": 4}
    link = f"/act?do=retry&key={quote(keys[0], safe='')}"
    assert link in visitor.get(f"/entry?key={keys[0]}").links
    assert "not at the end of its back-off" in visitor.ask("GET", link).text
    assert visitor.act(link) == f"1 entry retried: the entry {keys[0]}."
    facts = client.stats(keys[0], data=True)
    assert (facts["state"], facts["attempts"]) == ("ready", 1)
    group = "error=SMTP+451+try+%23+later&domain=mails"
    [retry] = [link for link in visitor.get(f"/failing?{group}").links if "do=retry" in link]
    assert "state=back-off" in retry
    assert visitor.get(retry).figure("number") == 2
    assert visitor.act(retry).startswith("2 entries retried: entries that failed and wait for")
    # what has not failed waits on
    assert states(client, "mails") == {"due": 4, "delayed": 1}
    late = visitor.get("/entry?key=mails:128:4102444800000000:later")
    assert not [link for link in late.links if "do=retry" in link]
    daemon.kill()
    daemon.start()
    with closing(SyncClient(daemon.address, auth=secret("operator"))) as again:
        assert states(again, "mails") == {"due": 4, "delayed": 1}


def test_page_shows_only_what_the_token_may_do(
    daemon: DaemonProcess, client: SyncClient, visitor: Visitor
) -> None:
    for domain in ("mails", "bills"):
        bury(client, domain, 1, "x")
        client.set(f"{domain}:128:0:due", "x")
    mailer = Visitor(daemon)

    def actions(who: Visitor, path: str) -> list[str]:
        return re.findall(r"/act\?do=(\w+)", who.ask("GET", path).text)

    for domain in ("mails", "bills"):
        pages = (f"/domain?name={domain}", f"/entry?key={domain}:128:0:x-0")
        everything = [actions(visitor, page) for page in pages]
        assert everything == [["pause", "bury", "retry", "drop", "purge"], ["retry", "drop"]]
        # before the log-in all lead to it
        assert [actions(mailer, page) for page in pages] == everything
    assert actions(visitor, "/") == ["pause"]
    mailer.log_in("mailer")
    assert actions(mailer, "/") == actions(mailer, "/domain?name=bills") == []
    assert actions(mailer, "/entry?key=bills:128:0:x-0") == []
    assert actions(mailer, "/entry?key=mails:128:0:x-0") == ["retry", "drop"]
    assert actions(mailer, "/failing?error=x&domain=mails") == ["retry", "drop"]
    assert actions(mailer, "/failing?error=x&domain=bills") == []


def test_log_in_leads_back_to_the_page_where_it_was_clicked(daemon: DaemonProcess) -> None:
    for path in ("/", "/workers", "/failing?older=1d", "/domain?name=a%26b%3Ac&sort=age"):
        visitor = Visitor(daemon)
        [link] = [link for link in visitor.get(path).links if link.startswith("/login")]
        page = visitor.ask("GET", link)
        [following] = re.findall(r'name="next" value="([^"]*)"', page.text)
        answer = visitor.post(
            "/login", form=page.form, token=secret("operator"), next=html.unescape(following)
        )
        assert answer.fields["location"] == path


def test_actions_on_a_domain_pause_resume_and_purge_it(
    client: SyncClient, visitor: Visitor
) -> None:
    bury(client, "mails", 2, "x")
    client.set("mails:128:0:due", "x")
    assert visitor.act("/act?do=pause&domain=mails", **{"for": "always"}) == (
        "Paused the domain mails."
    )
    assert client.next("mails").pairs == []
    assert "/act?do=resume&domain=mails" in visitor.get("/domain?name=mails").links
    assert visitor.act("/act?do=resume&domain=mails") == "Resumed the domain mails."
    [job] = client.next("mails", lease=3600)
    assert (
        "loses its lease" in visitor.get(f"/act?do=bury&key={job.key.decode()}").text_of["leased"]
    )
    assert "2 entries purged" in visitor.act("/act?do=purge&domain=mails")
    assert client.stats("mails")["entries"] == 1
    assert client.stats(job.key, data=True)["state"] == "worked on"


def test_actions_on_everything_need_admin(
    daemon: DaemonProcess, client: SyncClient, visitor: Visitor
) -> None:
    client.set("mails:128:0:a", "x")
    mailer = Visitor(daemon)
    mailer.log_in("mailer")
    assert "forbidden" in mailer.act("/act?do=pause")
    assert "paused-all" not in visitor.get("/").text_of
    assert visitor.act("/act?do=pause", **{"for": "1h"}) == "Paused everything."
    assert visitor.get("/workers").text_of["paused-all"].startswith("Everything is paused")
    client.set("later:128:0:a", "x")
    assert client.next().pairs == client.next("later").pairs == []
    assert visitor.act("/act?do=resume") == "Resumed everything."
    assert "paused-all" not in visitor.get("/").text_of
    assert len(client.next("later").pairs) == 1


def test_action_reads_values_that_are_on_disk_only_and_survives_a_kill(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path, list(TOKENS))
    options = (*OPTIONS, "--auth-tokens", str(tokens), "--memory-limit", "1")
    with DaemonProcess(tmp_path, *options) as daemon:
        with closing(SyncClient(daemon.address, auth=secret("operator"))) as client:
            bury(client, "mails", 5, "x")
        visitor = Visitor(daemon)
        visitor.log_in("operator")
        assert "5 entries retried" in visitor.act("/act?do=retry&state=buried&domain=mails")
        daemon.kill()
        daemon.start()
        with closing(SyncClient(daemon.address, auth=secret("operator"))) as client:
            assert states(client, "mails") == {"due": 5}
            assert len(client.next("mails", count=5)[4].value) == 2000


def test_log_in_without_a_right_says_what_to_do(daemon: DaemonProcess) -> None:
    visitor = Visitor(daemon)
    answer = visitor.log_in("reader")
    assert answer.status == 403
    sentence = PageReader(answer.text).text_of["trouble"]
    assert sentence.startswith("The token reader can only read. Log in with a token that has")
    assert "SIGHUP" in sentence
    for wrong in ("nobody", "x" * 2000):
        answer = visitor.log_in(wrong)
        assert (answer.status, answer.fields["connection"]) == (403, "close")
        assert "knows no such token" in PageReader(answer.text).text_of["trouble"]
    assert daemon.said().count("event=auth-failed peer=127.0.0.1:") == 3
    # the token that the browser has sent for the pages is enough where it may act
    visitor = Visitor(daemon, basic="operator")
    assert visitor.log_in("", following="/act?do=pause").fields["location"] == "/act?do=pause"
    assert visitor.get("/").text_of  # logged in
    for evil in (
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "/act?\r\nx: y",
        "/entry//x",
        "/x",
    ):
        assert Visitor(daemon).log_in("operator", evil).fields["location"] == "/"


def test_rights_are_those_of_the_token(
    daemon: DaemonProcess, client: SyncClient, tmp_path: Path
) -> None:
    for domain in ("mails", "bills"):
        bury(client, domain, 2, "x")
    visitor = Visitor(daemon)
    visitor.log_in("mailer")
    said = visitor.act("/act?do=retry&state=buried&domain=bills")
    assert said.startswith(
        "0 entries retried: dead letters of the domain bills. 2 refused: forbidden: the token"
    )
    assert "for other prefixes, not for the key 'bills:128:0:x-0'" in said
    assert "Log in with a token that has this right for it" in said
    assert states(client, "bills") == {"buried": 2}
    said = visitor.act("/act?do=retry&state=buried")
    assert said.startswith("2 entries retried: dead letters of all domains. 2 refused: forbidden")
    assert "forbidden" in visitor.act("/act?do=purge&domain=bills")
    assert "forbidden" in visitor.act("/act?do=pause&domain=bills")
    assert "forbidden" in visitor.act("/act?do=drop&key=bills:128:0:x-0")
    assert states(client, "bills") == {"buried": 2}
    assert client.stats("bills")["paused_until"] == 0
    # with another file of tokens the session is over
    write_tokens(tmp_path, ["operator", "reader"])
    hang_up(daemon)
    page = visitor.get("/act?do=retry&state=buried")
    assert "log in" in page.text_of["needs-login"]
    other = visitor.post("/act?do=drop&state=buried", form="0" * 64)
    assert (other.status, other.fields["location"][:12]) == (303, "/login?next=")
    assert states(client, "bills") == {"buried": 2}


def test_forms_of_other_sites_and_sessions_change_nothing(
    daemon: DaemonProcess, client: SyncClient, visitor: Visitor
) -> None:
    bury(client, "mails", 2, "x")
    path = "/act?do=drop&state=buried&domain=mails"
    form = visitor.ask("GET", path).form
    host = "{}:{}".format(*visitor.address)
    for fields, headers in (
        ({}, {"Sec_Fetch_Site": "same-origin"}),
        ({"form": "0" * 64}, {"Sec_Fetch_Site": "same-origin"}),
        ({"form": Visitor(daemon).ask("GET", "/login").form}, {"Sec_Fetch_Site": "same-origin"}),
        ({"form": form}, {}),
        ({"form": form}, {"Sec_Fetch_Site": "cross-site"}),
        ({"form": form}, {"Sec_Fetch_Site": "same-site", "Origin": f"http://{host}"}),
        ({"form": form}, {"Origin": "null"}),
        ({"form": form}, {"Origin": "http://evil.example"}),
        ({"form": form}, {"Origin": f"https://{host}"}),
    ):
        answer = visitor.ask("POST", path, fields, **headers)
        assert answer.status == 403, (fields, headers)
        assert PageReader(answer.text).text_of["trouble"]
    assert visitor.ask("GET", f"{path}&form={form}").status == 200
    assert visitor.ask("HEAD", path).status == 200
    assert states(client, "mails") == {"buried": 2}
    # an old browser names the origin only
    assert visitor.ask("POST", path, {"form": form}, Origin=f"http://{host}").status == 303
    assert states(client, "mails") == {}
    # the log-in is a form, too
    stranger = Visitor(daemon)
    form = stranger.ask("GET", "/login").form
    fields = {"token": secret("operator"), "form": form}
    assert stranger.ask("POST", "/login", fields, Sec_Fetch_Site="cross-site").status == 403
    stranger.cookie = ""
    assert stranger.ask("POST", "/login", fields, Sec_Fetch_Site="same-origin").status == 403
    assert stranger.get("/act?do=pause").text_of["needs-login"]


def test_cookie_is_out_of_reach_and_new_at_the_log_in(daemon: DaemonProcess) -> None:
    visitor = Visitor(daemon)
    before = visitor.ask("GET", "/login").fields["set-cookie"].split("; ")
    answer = visitor.log_in("operator").fields["set-cookie"].split("; ")
    assert answer[1:] == ["Path=/", "HttpOnly", "SameSite=Strict"] == before[1:]
    assert answer[0] != before[0]
    name, _, value = answer[0].partition("=")
    assert name == f"fastjournald_{visitor.address[1]}"
    assert len(value) == 43
    page = visitor.ask("GET", "/")
    assert "Log out operator" in page.text
    assert "Log out" not in Visitor(daemon).ask("GET", "/").text
    stolen = visitor.cookie
    answer2 = visitor.post("/logout", form=page.form)
    assert (answer2.status, "Max-Age=0" in answer2.fields["set-cookie"]) == (303, True)
    visitor.cookie = stolen
    assert "Log out" not in visitor.ask("GET", "/").text


def test_log_in_by_tls_gives_a_secure_cookie_and_takes_forms_of_its_origin(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    tokens = write_tokens(tmp_path, list(TOKENS))
    options = ("--http", "0.0.0.0:0", "--auth-tokens", str(tokens), *tls_options(files))
    with DaemonProcess(tmp_path, *options) as daemon:
        url = f"https://127.0.0.1:{http_address(daemon)[1]}/login"
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=make_context(authority.path)),
            urllib.request.HTTPCookieProcessor(jar := CookieJar()),
        )
        opener.addheaders = [("Authorization", f"Bearer {secret('operator')}")]
        with opener.open(url, timeout=START_S) as answer:
            [cookie] = jar
            assert cookie.secure
            [form] = re.findall(r'name="form" value="([0-9a-f]{64})"', answer.read().decode())
        body = f"form={form}".encode()
        plain = urllib.request.Request(url, body, {"Origin": url.replace("https", "http")[:-6]})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            opener.open(plain, timeout=START_S)
        own = urllib.request.Request(url, body, {"Origin": url[:-6]})
        with opener.open(own, timeout=START_S) as answer:
            assert "Log out operator" in answer.read().decode()


def test_actions_that_there_are_not_are_refused(client: SyncClient, visitor: Visitor) -> None:
    bury(client, "mails", 1, "x")
    for query in (
        "",
        "do=explode&key=a",
        "do=purge",
        "do=retry",
        "do=retry&state=worked",
        "do=retry&state=waiting&domain=mails",
        "do=bury&state=buried&domain=mails",
        "do=drop&state=buried&older=2d",
        f"do=drop&key={'x' * 5000}",
    ):
        page = visitor.ask("GET", f"/act?{query}")
        assert "There is no such action" in PageReader(page.text).text_of["trouble"]
        form = visitor.ask("GET", "/").form
        assert visitor.post(f"/act?{query}", form=form).status == 403
    assert states(client, "mails") == {"buried": 1}
    page = visitor.ask("GET", "/act?do=drop&key=nothing-here")
    assert "confirm" not in PageReader(page.text).text_of
    assert visitor.ask("PUT", "/act", {}).status == 405
    assert visitor.ask("POST", "/", {}).status == 405
    assert visitor.post("/login", token="x" * 17_000).status == 413


def test_keys_of_any_bytes_are_acted_on(client: SyncClient, visitor: Visitor) -> None:
    for key in (b"\xff\xfe:128:0:\x80\0 ", b"a:128:0:<&'\"%2B+>", b"plain\n"):
        client.set(key, "x")
        visitor.act(f"/act?do=bury&key={quote(key, safe='')}")
        assert client.stats(key, data=True)["state"] == "buried"
    visitor.act(f"/act?do=pause&domain={quote(bytes((255, 254)), safe='')}")
    assert client.stats(b"\xff\xfe")["paused_until"] > 0
    assert client.stats("a")["paused_until"] == 0


def test_page_without_tokens_reads_only_and_shows_how_to_make_one(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, *OPTIONS) as daemon:
        with closing(SyncClient(daemon.address)) as client:
            bury(client, "mails", 1, "x")
            visitor = Visitor(daemon, basic="")
            page = visitor.ask("GET", "/login")
            assert "fj-cli token new" in page.text
            assert "--auth-tokens" in PageReader(page.text).text_of["no-tokens"] + page.text
            assert "<form" not in page.text
            answer = visitor.post("/login", token=secret("operator"))
            assert (answer.status, "Log out" in answer.text) == (200, False)
            visitor.cookie = "fastjournald=x"
            answer = visitor.post("/act?do=drop&state=buried", form="")
            assert answer.fields["location"].startswith("/login")
            assert states(client, "mails") == {"buried": 1}
        assert "page-action" not in daemon.said()


def test_stop_of_the_daemon_ends_with_browsers_logged_in(
    daemon: DaemonProcess, visitor: Visitor
) -> None:
    assert visitor.get("/")
    assert daemon.stop() == 0
