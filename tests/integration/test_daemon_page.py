"""The page of a real daemon: its figures are those of STATS, and strangers' names do no harm."""

from __future__ import annotations

import os
import re
import shlex
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest

from fastjournal.client import SyncClient
from fastjournal.limits import PAGE_DOMAINS_MAX, PAGE_ENTRIES_MAX
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.page_contents import (
    HOSTILE,
    SECRET,
    PageReader,
    fill_domains,
    fill_hostile,
    get_page,
)
from tests.integration.worker_process import wait_until

OPTIONS = ("--http", "127.0.0.1:0", "--cmdlog-sync", "os")
LONG = 300 * 86_400
"""An instant or a duration that no test sees the end of, whatever the unit."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, *OPTIONS) as process:
        yield process
        assert "Traceback" not in process.said()
        assert "http-page-failed" not in process.said()


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[SyncClient]:
    with closing(SyncClient(daemon.address)) as connected:
        yield connected


def read(daemon: DaemonProcess, path: str, status: int = 200) -> PageReader:
    """Return a page, which has to be clean."""
    found, text, fields = get_page(daemon, path)
    assert found == status, text[:200]
    assert fields["content-type"] == "text/html; charset=utf-8"
    assert fields["content-security-policy"].startswith("default-src 'none'; ")
    assert "script" not in fields["content-security-policy"]
    assert SECRET not in text
    assert "url(" not in text
    assert "@import" not in text
    # what could turn text around, end a line, or steer a terminal, is escaped
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    return PageReader(text)


def test_page_figures_equal_stats(daemon: DaemonProcess, client: SyncClient) -> None:
    for domain, number in (("many", 12), ("few", 3), ("later", 0)):
        for at in range(number):
            client.set(f"{domain}:128:0:{at}", "x", uri=f"http://{domain}/{at}")
    client.set("later:128:4102444800000000:x", "x")
    client.set("plain", "x")
    jobs = client.next("many", count=4)
    assert jobs.token is not None
    failed, buried, *_ = jobs
    client.release(failed.key, jobs.token, error="connection reset")
    client.bury(buried.key, reason="never again")
    client.pause("few", LONG)
    client.limit("many", jobs=2)
    page, stats = read(daemon, "/"), client.stats()
    shown = ("entries", "due", "delayed", "worked_on", "buried", "domains", "connections")
    assert {name: page.figure(name) for name in shown} == {name: stats[name] for name in shown}
    assert (page.figure("paused"), page.figure("limited")) == (1, 1)
    rows = {row[0]: row[1:5] for row in page.tables["waiting-table"] if row}
    for domain in ("many", "few", "later"):
        facts = client.stats(domain)
        columns = ("due", "delayed", "worked_on", "buried")
        assert rows[domain] == [str(facts[name]) for name in columns]
        about = read(daemon, f"/domain?name={domain}")
        assert {name: about.figure(name) for name in columns} == {
            name: facts[name] for name in columns
        }
    assert [row[0] for row in page.tables["held-table"][1:]] == ["many", "few"]
    assert {row[0] for row in page.tables["oldest-table"][1:]} == {"many", "few"}
    assert [row[2] for row in page.tables["buried-table"][1:]] == ["never again"]
    assert len(page.tables["leased-table"][1:]) == stats["worked_on"] == 2


def test_entry_is_found_by_key_and_by_uri(daemon: DaemonProcess, client: SyncClient) -> None:
    client.set("a:128:0:x", "x", uri="http://a/?b=c&d")
    client.set("a:128:0:y", "x", uri="http://a/y")
    assert read(daemon, "/entry?key=a:128:0:y").text_of["ready_before"] == "1 entries of its domain"
    jobs = client.next("a")
    [job] = jobs
    for key in ("a:128:0:x", "http://a/?b=c&d"):
        page = read(daemon, f"/entry?key={quote(key, safe='')}")
        assert page.text_of["state"] == client.stats("a:128:0:x", data=True)["state"]
    assert jobs.token is not None
    [row] = read(daemon, "/").tables["leased-table"][1:]
    page = read(daemon, f"/entry?key={job.key.decode()}")
    facts = client.explain(job.key)
    for name, instant in (("since", facts.worked_on_since_us), ("until", jobs.token)):
        moment = datetime.fromtimestamp(instant // 1_000_000, UTC)
        assert page.text_of[name] == f"{moment:%Y-%m-%dT%H:%M:%S}Z"
    assert re.fullmatch(r"\d+m?s ago", row[2])
    assert row[3] == page.text_of["worker"] == facts.worked_on_by
    assert re.fullmatch(r"127\.0\.0\.1:\d+|pid=\d+ uid=\d+ gid=\d+", row[3])
    # the token of a lease, which is its end to the microsecond, stands on no page
    for path in ("/", "/domain?name=a", "/entry?key=a:128:0:x"):
        assert str(jobs.token) not in get_page(daemon, path)[1]
    client.release(job.key, jobs.token, error="timed out")
    client.bury(job.key, reason="gone for good")
    page = read(daemon, "/entry?key=a:128:0:x")
    assert page.text_of["state"] == "buried"
    assert (page.text_of["error"], page.text_of["reason"]) == ("timed out", "gone for good")
    assert "none" in read(daemon, "/entry?key=a:128:0:z", 404).text_of
    assert "none" not in read(daemon, "/entry").text_of


def test_page_tells_that_a_worker_has_gone_and_nothing_of_one_before_the_start(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    client.set("a:128:0:x", "x")
    with closing(SyncClient(daemon.address)) as worker:
        worker.next("a", lease=3600)
    wait_until(lambda: "disconnected" in read(daemon, "/").tables["leased-table"][1][3])
    assert "disconnected" in get_page(daemon, "/entry?key=a:128:0:x")[1]
    daemon.stop()
    daemon.start()
    [row] = read(daemon, "/").tables["leased-table"][1:]
    assert row[2:4] == ["before the start", "not known"]


def test_entry_page_shows_a_command_that_explains_exactly_that_entry(
    daemon: DaemonProcess, client: SyncClient, tmp_path: Path
) -> None:
    cli = Cli(tmp_path, daemon.address)
    keys = [b"a:1:0:" + name[:2000] for name in HOSTILE] + [b"-x", b"a:1:0:it's $(touch x) `y`"]
    for key in keys:
        client.set(key, "x")
        page = read(daemon, "/entry?key=" + quote(key, safe=""))
        words = shlex.split(page.text_of["explain"])
        assert words[:2] == ["fj-cli", "explain"]
        given = b64decode(words[3]) if words[2] == "--b64" else os.fsencode(words[-1])
        assert given == key
    explained = cli.json(*words[1:])
    assert explained[0]["keys"] == [keys[-1].decode()]


def test_page_escapes_hostile_names(daemon: DaemonProcess, client: SyncClient) -> None:
    fill_hostile(client)
    seen, waiting = set(), ["/", "/domains"]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        page = read(daemon, path)
        assert page.links
        waiting += {link for link in page.links if link not in seen and link not in waiting}
    # every domain and every entry that the pages link to is there
    assert sum(path.startswith("/domain?") for path in seen) == len(HOSTILE)
    assert sum(path.startswith("/entry?") for path in seen) >= 3 * len(HOSTILE)
    page = read(daemon, "/")
    assert [len(row[0]) <= 160 for row in page.tables["buried-table"][1:]] == [True] * len(HOSTILE)
    shown = {row[2] for row in page.tables["buried-table"][1:]}
    assert "<script>alert(1)</script>" in shown
    assert "a\\nb\\r\\t\\x1b[31m\\x00" in shown


def test_page_lists_ten_thousand_domains(daemon: DaemonProcess, client: SyncClient) -> None:
    fill_domains(client, 10_000)
    page = read(daemon, "/")
    assert page.figure("domains") == 10_000
    assert len(page.tables["waiting-table"]) == PAGE_DOMAINS_MAX + 1
    names: list[str] = []
    page = read(daemon, "/domains")
    while True:
        found = [link for link in page.links if link.startswith("/domain?")]
        assert len(found) <= PAGE_ENTRIES_MAX
        names += found
        following = [link for link in page.links if "from=" in link]
        if not following:
            break
        page = read(daemon, following[0])
    assert names == [f"/domain?name=host{at:05}.example" for at in range(10_000)]
    # a search is one page
    page = read(daemon, "/domains?q=host0042")
    assert len([link for link in page.links if link.startswith("/domain?")]) == 10
    assert not [link for link in page.links if link.startswith("/domain?name=host1")]


def test_page_answers_to_local_names_only(daemon: DaemonProcess) -> None:
    for host in (
        "localhost",
        "localhost:1",
        "127.0.0.1:9924",
        "[::1]:80",
        "127.3.2.1",
        "LOCALHOST",
    ):
        assert get_page(daemon, "/", host=host)[0] == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "10.0.0.1"):
        status, text, _ = get_page(daemon, "/entry?key=a", host=host)
        assert (status, text.startswith("this page is for local names")) == (421, True), host
        # it names domains
        assert get_page(daemon, "/metrics", host=host)[0] == 421
        # a health check names the host as it likes: it learns a word
        assert get_page(daemon, "/healthz", host=host)[0] == 200
        assert get_page(daemon, "/readyz", host=host)[0] == 200


def test_page_needs_a_token_where_clients_need_one(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.touch(0o600)
    file.write_text(
        "\n".join(
            f'[[token]]\nname = "{name}"\ntoken = "{name:-<20}"\nrights = ["{right}"]\n'
            f'prefixes = ["{prefix}"]\n'
            for name, right, prefix in (
                ("reader", "read", ""),
                ("writer", "write", ""),
                ("other", "read", "crawl:"),
            )
        )
    )
    with DaemonProcess(tmp_path, *OPTIONS, "--auth-tokens", str(file)) as daemon:
        for path in ("/", "/domains", "/domain?name=a", "/entry"):
            status, _, fields = get_page(daemon, path)
            assert (status, fields["www-authenticate"][:5]) == (401, "Basic"), path
            assert get_page(daemon, path, token=f"{'reader':-<20}")[0] == 200
        for wrong in ("writer", "other", "nobody"):
            status, _, fields = get_page(daemon, "/", token=f"{wrong:-<20}")
            assert (status, fields.get("connection")) == (401, "close")
        assert get_page(daemon, "/metrics")[0] == 200
        said = daemon.said()
        assert len(re.findall(r"event=auth-failed peer=127\.0\.0\.1:\d+ http=", said)) == 3
        assert "reader-" not in daemon.said()


def test_page_refreshes_itself_until_it_is_told_not_to(daemon: DaemonProcess) -> None:
    assert '<meta http-equiv="refresh" content="10">' in get_page(daemon, "/")[1]
    for path in ("/?refresh=0", "/domains", "/entry", "/domain?name=a"):
        assert "http-equiv" not in get_page(daemon, path)[1], path
