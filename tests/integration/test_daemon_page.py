"""The page of a real daemon: its figures are those of STATS, and strangers' names do no harm."""

from __future__ import annotations

import os
import re
import shlex
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
    client.release(failed.key, jobs.token, error="connection reset", delay=LONG)
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


def test_page_shows_a_unique_value_as_such_and_the_queue_that_lost_a_uri(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    own = client.enqueue("mails", unique="order 7")
    page = read(daemon, f"/entry?key={own.key.decode()}")
    assert page.text_of["unique"] == "order 7"
    [row] = read(daemon, "/domain?name=mails").tables["ready-table"][1:]
    assert row[1] == "unique order 7"
    lost = client.enqueue("mails", uri="order:7")
    taken = client.enqueue("search", uri="order:7")
    assert (taken.outcome, taken.took_uri_from) == ("replaced", lost.key)
    page = read(daemon, f"/entry?key={taken.key.decode()}")
    assert page.text_of["replaced"].startswith(f"it took its URI from {lost.key.decode()}, a job")
    assert "unique" not in page.text_of
    metrics = get_page(daemon, "/metrics")[1]
    assert 'fastjournal_replaced_total{from="mails",to="search"} 1.0' in metrics


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


def fail(client: SyncClient, domain: str, error: str, *, buries: bool) -> None:
    """Let the next entry of a domain fail, and bury it at its last attempt or try it again."""
    jobs = client.next(domain, attempts_max=1 if buries else 9)
    assert jobs.token is not None
    client.release(jobs[0].key, jobs.token, error=error)


def test_workers_page_tells_who_works_on_what_who_waits_and_what_nobody_serves(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    due = 1_000_000  # long ago
    for domain in ("served", "left", "gone", "waited"):
        client.set(f"{domain}:128:{due}:{domain}", "x")
    client.next("served", lease=3600)
    with closing(SyncClient(daemon.address)) as worker:
        worker.next("gone", lease=3600)
        client.set(f"gone:128:{due}:second", "x")
        client.set(f"polled:128:{due}:first", "x")
        client.set(f"polled:128:{due}:second", "x")
        # a worker that comes from time to time
        [job] = (jobs := client.next("polled"))
        client.delete(job.key, token=jobs.token)
        client.set(f"served:128:{due}:second", "x")
        assert {row[0] for row in read(daemon, "/workers").tables["unserved-table"][1:]} == {
            "left",
            "waited",
        }
    gone = "/domain?name=gone"
    wait_until(lambda: "1 disconnected" in read(daemon, gone).text_of["service"])
    client.delete(f"waited:128:{due}:waited")
    with (
        closing(SyncClient(daemon.address)) as idle,
        closing(SyncClient(daemon.address)) as idler,
        ThreadPoolExecutor(2) as pool,
    ):
        waits = pool.submit(idle.next, ["waited", "other"], wait=60)
        also = pool.submit(idler.next, prefix="pre", wait=60)
        wait_until(lambda: str(read(daemon, "/workers").tables["workers-table"]).count("idle") == 2)
        page = read(daemon, "/workers")
        assert {row[0] for row in page.tables["unserved-table"][1:]} == {"left"}
        states = {row[3] or row[5]: (row[1], row[2]) for row in page.tables["workers-table"][1:]}
        assert states == {
            "served": ("works", "1"),
            "gone": ("disconnected", "1"),
            "other, waited": ("idle", "0"),
            "those that begin with pre": ("idle", "0"),
        }
        assert {row[0] for row in page.tables["leased-table"][1:]} == {
            f"served:128:{due}:served",
            f"gone:128:{due}:gone",
        }
        for domain, sentence in (
            ("left", "Nobody works on it; nobody waits"),
            ("waited", "Nobody works on it; 1 waits for work"),
            ("pre-fixed", "Nobody works on it; 1 waits for work"),
            ("pr", "Nobody works on it; nobody waits"),
            ("served", "1 connected worker works on it; nobody waits"),
            ("gone", "0 connected workers work on it, 1 disconnected; nobody waits"),
        ):
            assert read(daemon, f"/domain?name={domain}").text_of["service"].startswith(sentence)
        client.set("other:128:0:end", "x")
        client.set("prefix:128:0:end", "x")
        for worker, jobs in ((idle, waits.result()), (idler, also.result())):
            [job] = jobs
            worker.delete(job.key, token=jobs.token)
    # its worker may have come too long ago by now
    client.delete(f"polled:128:{due}:second")
    # pausing is a reason of its own: a paused domain does not need a worker
    client.pause("left", LONG)
    assert read(daemon, "/").figure("unserved") == 0


def test_errors_of_many_lines_are_a_line_in_tables_and_whole_on_the_entry_page(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    trace = "Traceback (most recent call last):\n" + '  File "x.py", line 3\n    f()\n' * 30
    client.set("a:128:0:x", "x")
    assert read(daemon, "/entry?key=a:128:0:x").text_of["accessed"] == "not since it was set"
    client.bury("a:128:0:x", reason=f"{trace}KeyError: 'a\\b'")
    for path in ("/", "/domain?name=a", "/failing?error=KeyError%3A+%23&domain=a"):
        [row] = read(daemon, path).tables["buried-table"][1:]
        assert row[2] == "KeyError: 'a\\b'"
        assert "line 3" not in get_page(daemon, path)[1]
    text = get_page(daemon, "/entry?key=a:128:0:x")[1]
    assert "last):\n  File &#34;x.py&#34;, line 3\n    f()\n  File" in text
    assert "buried: KeyError: &#39;a\\b&#39;" in text
    assert "x20" not in text


def test_domain_whose_workers_are_busy_with_others_is_not_one_that_nobody_serves(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    for domain in ("first", "second", "nobody"):
        client.set(f"{domain}:128:1000000:x", "x")
    assert client.next(["first", "second"], lease=3600, ordered=True)
    page = read(daemon, "/workers")
    assert [row[0] for row in page.tables["unserved-table"][1:]] == ["nobody"]
    assert read(daemon, "/domain?name=second").text_of["service"] == (
        "Nobody works on it; 1 worker takes it, all busy."
    )
    entry = get_page(daemon, "/entry?key=second:128:1000000:x")[1]
    assert "1 worker takes work of second, and all are busy" in entry
    entry = get_page(daemon, "/entry?key=nobody:128:1000000:x")[1]
    assert "no worker waits for work of nobody" in entry
    assert "fj-worker ... --queues nobody" in entry
    # no worker could take it now
    client.pause_all(LONG)
    wait_until(lambda: read(daemon, "/").figure("unserved") == 0)


def test_failing_page_groups_by_error_and_domain_and_filters_by_age(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    number = 0
    for domain, error, buries, times in (
        ("mails", "SMTP 550 no such user {}", True, 5),
        ("mails", "SMTP 550 no such user {}", False, 2),
        ("mails", "SMTP 451 try later", False, 1),
        ("bills", "SMTP 550 no such user {}", True, 1),
        ("bills", "Traceback (most recent call last):\n  File a\nKeyError: {}", True, 1),
    ):
        for _ in range(times):
            number += 1
            client.set(f"{domain}:128:0:{number}", "x", uri=f"http://{domain}/{number}")
            fail(client, domain, error.format(1000 + number), buries=buries)
    client.set("bills:128:0:set-aside", "x")
    client.bury("bills:128:0:set-aside", reason="no customer 12345")
    page = read(daemon, "/failing")
    rows = [row[:4] for row in page.tables["failing-table"][1:]]
    assert rows[0] == ["SMTP 550 no such user #", "mails", "5", "2"]
    assert sorted(rows[1:]) == [
        ["KeyError: #", "bills", "1", "0"],
        ["SMTP 451 try later", "mails", "0", "1"],
        ["SMTP 550 no such user #", "bills", "1", "0"],
        ["no customer #", "bills", "1", "0"],
    ]
    assert len(read(daemon, "/failing?domain=mails").tables["failing-table"]) == 3
    assert "none" in read(daemon, "/failing?older=1h").text_of
    read(daemon, "/failing?part=%E2%80%AEx%0A%09&error=%E2%80%AE&older=1d")
    # a part of the whole error, also where it is a # of the group
    for part, number in (("USER+1001", 1), ("smtp", 3), ("File+a", 1), ("451", 1), ("zz", 0)):
        found = read(daemon, f"/failing?part={part}").tables.get("failing-table", [[]])
        assert len(found) - 1 == number, part
    [link] = [
        link
        for link in page.links
        if "550" in link and "mails" in link and link.startswith("/failing?")
    ]
    group = read(daemon, link)
    assert (group.figure("buried"), group.figure("retrying")) == (5, 2)
    assert len(group.tables["buried-table"]) == 6
    assert group.tables["buried-table"][1][0] == "mails:128:0:1"
    assert "none" in read(daemon, f"{link}&older=1d").text_of
    # the overview begins with what fails most
    assert read(daemon, "/").tables["failing-table"][1][0] == "SMTP 550 no such user #"


def test_domain_page_lists_entries_in_the_order_of_due_time_and_of_age(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    second = 1_000_000
    for name, priority, due in (("a", 9, 3), ("b", 5, 1), ("c", 7, 2)):
        client.set(f"d:{priority}:{due * second}:{name}", "x")
    orders = {
        sort: [
            row[0][-1]
            for row in read(daemon, f"/domain?name=d&sort={sort}").tables["ready-table"][1:]
        ]
        for sort in ("", "due", "age")
    }
    assert orders == {"": ["b", "c", "a"], "due": ["b", "c", "a"], "age": ["a", "b", "c"]}


def test_page_shows_the_rates_of_this_minute(daemon: DaemonProcess, client: SyncClient) -> None:
    for at in range(5):
        client.set(f"a:128:0:{at}", "x")
    fail(client, "a", "x", buries=False)
    jobs = client.next("a", count=2)
    for job in jobs:
        client.delete(job.key, token=jobs.token)
    for path in ("/", "/domain?name=a"):
        page = read(daemon, path)
        kinds = {kind: page.figure(f"hour_{kind}") for kind in ("delivered", "completed", "failed")}
        assert kinds == {"delivered": 3, "completed": 2, "failed": 1}
    assert read(daemon, "/").figure("hour_set") == 5
    assert "hour_set" not in read(daemon, "/domain?name=a").text_of
    assert "hour_failed" not in read(daemon, "/domain?name=b").text_of


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
    whole = {path.partition("&")[0] for path in seen}
    assert sum(path.startswith("/domain?name=") for path in whole) == len(HOSTILE)
    assert sum(path.startswith("/entry?") for path in whole) >= 3 * len(HOSTILE)
    assert sum(path.startswith("/failing?error=") for path in whole) >= len(HOSTILE) - 1
    page = read(daemon, "/")
    assert [len(row[0]) <= 160 for row in page.tables["buried-table"][1:]] == [True] * len(HOSTILE)
    shown = {row[2] for row in page.tables["buried-table"][1:]}
    assert "<script>alert(1)</script>" in shown
    # a line in a table, all of them on the page of the entry
    assert "a" in shown
    entries = [path for path in seen if path.startswith("/entry?")]
    assert any("a\nb\\r    \\x1b[31m\\x00" in get_page(daemon, path)[1] for path in entries)


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


def test_page_shows_the_domain_of_a_host_with_a_port_as_people_write_it(
    daemon: DaemonProcess,
) -> None:
    with SyncClient(daemon.address) as client:
        client.enqueue("host.example%3A8080", "x")
    for path in ("/domains?q=host.example:8080", "/domain?name=host.example%253A8080"):
        status, text, _ = get_page(daemon, path)
        assert status == 200
        assert ">host.example:8080</" in text
    assert "/domain?name=host.example%253A8080" in get_page(daemon, "/domains")[1]
