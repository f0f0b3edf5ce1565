"""fj-cli explain: ten reasons for which an entry is not delivered, as text and as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess

SECOND = 1_000_000
HOUR = 3600 * SECOND
URI = "https://example.org/page"
DONE, REFUSED = 0, 1


class Case(NamedTuple):
    """A situation: what to ask about, and what has to be said."""

    asked: str
    code: str
    since: tuple[int, int] | None
    """Bounds of the instant since when; None: it is not known."""
    until: tuple[int, int] | None
    advice: str


def now() -> int:
    return time.time_ns() // 1000


def around(before: int, distance: int = 0) -> tuple[int, int]:
    """Bounds of an instant between ``before`` and now, moved by a distance; lease ends round up."""
    return before + distance, now() + distance + 2_000


def add(cli: Cli, *options: str) -> str:
    (added,) = cli.json("set", "--domain", "pages", *options, "v")
    return str(added["key"])


def delayed(cli: Cli, _client: SyncClient) -> Case:
    start = now()
    instant = start // SECOND * SECOND + HOUR
    key = add(cli, "--not-before", f"@{instant // SECOND}")
    return Case(key, "delayed", around(start), (instant, instant), "set it anew")


def limited(cli: Cli, _client: SyncClient) -> Case:
    add(cli, "--priority", "1")
    key = add(cli)
    cli("limit", "pages", "--jobs", "1")
    start = now()
    (job,) = cli.json("next", "pages", "--lease", "10m")
    until = (job["token"], job["token"])
    return Case(key, "limited", around(start), until, "fj-cli limit pages --jobs")


def buried(cli: Cli, _client: SyncClient) -> Case:
    key = add(cli)
    start = now()
    cli("bury", key, "--reason", "no such page")
    return Case(key, "buried", around(start), None, f"fj-cli kick {key}")


def tombstone(cli: Cli, _client: SyncClient) -> Case:
    key = add(cli)
    start = now()
    cli("delete", key)
    return Case(key, "tombstone", around(start), around(start, HOUR), "wins over the tombstone")


def leased(cli: Cli, _client: SyncClient) -> Case:
    key = add(cli)
    start = now()
    (job,) = cli.json("next", "pages", "--lease", "10m")
    until = (job["token"], job["token"])
    return Case(key, "leased", around(start), until, f"fj-cli release {key} {job['token']}")


def replaced(cli: Cli, _client: SyncClient) -> Case:
    key = add(cli, "--uri", "order:7")
    start = now()
    taking = cli("set", "--queue", "search", "--uri", "order:7", "--json", "v")
    assert b"of a URI one job waits, over all queues" in taking.stderr
    return Case(key, "replaced", around(start), None, "with unique=... in place")


CASES: list[Callable[[Cli, SyncClient], Case]] = [
    *(delayed, limited, buried, tombstone, leased, replaced)
]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_explain_says_why_since_when_until_when_and_what_to_do(
    make: Callable[[Cli, SyncClient], Case], cli: Cli, client: SyncClient, daemon: DaemonProcess
) -> None:
    case = make(cli, client)
    log = ("--log", str(daemon.log_path))
    explained = cli("explain", case.asked, *log, "--json")
    assert explained.returncode == DONE, explained.stderr.decode()
    (fields,) = cli.json("explain", case.asked, *log)
    reason = fields["reasons"][0]
    assert reason["code"] == case.code, fields
    for bounds, instant in ((case.since, reason["since_us"]), (case.until, reason["until_us"])):
        assert (instant is None) == (bounds is None), fields
        if bounds is not None:
            assert bounds[0] <= instant <= bounds[1], fields
    assert case.advice in "\n".join(reason["advice"])
    assert fields["history"], "the log has the SET at least"
    text = cli("explain", case.asked, *log, "--table").stdout.decode()
    assert reason["text"] in text
    assert all(f"> {advice}" in text for advice in reason["advice"])
    assert ("until" in text) or case.until is None


def test_explain_of_a_due_entry_counts_those_before_it(cli: Cli) -> None:
    first, second = add(cli, "--priority", "1"), add(cli, "--priority", "2")
    (fields,) = cli.json("explain", second)
    assert (fields["state"], fields["due_now"], fields["ready_before"]) == ("due", True, 1)
    (reason,) = fields["reasons"]
    queue = second.partition(":")[0]
    text = cli("explain", second, "--table").stdout.decode()
    assert f"due now, 1 entry before it in its domain, but no worker waits for work of {queue}" in (
        text
    )
    assert reason["advice"] == [
        f"start one: fj-worker ... --queues {queue}",
        f"see them: fj-cli workers --queue {queue}",
    ]
    assert "the first of its domain" in cli("explain", first, "--table").stdout.decode()


def test_explain_says_that_the_workers_of_a_queue_are_busy_with_others(
    cli: Cli, client: SyncClient
) -> None:
    client.enqueue("mails", "x")
    key = client.enqueue("reports", "x").key.decode()
    assert client.next(["reports", "mails"], ordered=True)
    waiting = client.enqueue("reports", "x").key.decode()
    (fields,) = cli.json("explain", waiting)
    assert (fields["due_now"], fields["reasons"][0]["code"]) == (True, "workers-busy")
    assert "1 worker takes work of reports, and all are busy" in fields["reasons"][0]["text"]
    listed = cli("workers", "--queue", "mails", "--table")
    assert listed.returncode == 0
    assert b"1 worker takes work of mails, all busy" in listed.stderr
    assert key


def test_explain_of_an_unknown_key_reads_no_other_entry(cli: Cli, client: SyncClient) -> None:
    key = add(cli, "--id", "report-2026", "--ttl", "1h")
    before = client.explain(key)
    unknown = cli("explain", key[:-1] + "7", "--json")
    assert unknown.returncode == REFUSED
    text = cli("explain", key[:-1] + "7", "--table").stdout.decode()
    assert "neither an entry nor a tombstone" in text
    after = client.explain(key)
    assert (after.expires_us, after.accessed_us) == (before.expires_us, before.accessed_us)
    assert "fj-cli stats pages" in cli("explain", "pages", "--table").stdout.decode()


def test_explain_of_a_uri_names_completion_and_the_log(
    cli: Cli, client: SyncClient, daemon: DaemonProcess
) -> None:
    key = add(cli, "--uri", URI)
    jobs = client.next("pages")
    client.delete(key, token=jobs.token)
    text = cli("explain", URI, "--table").stdout.decode()
    assert "its job was completed or deleted" in text
    assert "look into the log: --log DIR" in text
    assert "explain the journal key" in text
    assert "its job was completed" not in cli("explain", f"{key}x", "--table").stdout.decode()
    assert "look into the log" not in cli("explain", key, "--table").stdout.decode()
    (fields,) = cli.json("explain", URI, "--log", str(daemon.log_path))
    assert fields["history"][-1]["event"] == "completed"


def events(fields: dict[str, Any]) -> list[str]:
    return [event["event"] for event in fields["history"]]


def test_history_has_what_happened_to_an_entry_in_order(
    cli: Cli, client: SyncClient, daemon: DaemonProcess
) -> None:
    key = add(cli, "--uri", URI)
    leased = client.next("pages").token
    assert leased is not None
    token = client.touch(key, token=leased, ttl=3600)
    assert token is not None
    client.release(key, token, error="no route", delay=1e-6)
    jobs = client.next("pages", wait=10)
    assert jobs.token is not None
    client.bury(key, jobs.token, reason="hopeless")
    client.kick(key)
    client.set("pages:1:1:unrelated", "v")
    client.delete(key)
    log = ("--log", str(daemon.log_path))
    (fields,) = cli.json("explain", key, *log)
    expected = ["set", "leased", "lease renewed", "failed", "delayed"]
    expected += ["leased", "buried", "kicked", "deleted"]
    assert events(fields) == expected
    failed = next(event for event in fields["history"] if event["event"] == "failed")
    assert failed["text"] == "attempt 1: no route"
    (by_uri,) = cli.json("explain", URI, *log)
    assert events(by_uri) == events(fields)


def test_explain_says_what_is_wrong_with_a_directory_without_a_log(
    cli: Cli, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    failed = cli("explain", add(cli), "--log", str(empty))
    assert failed.returncode == 2
    assert b"holds no segment" in failed.stderr


def test_explain_says_which_job_of_another_queue_lost_its_uri(
    cli: Cli, client: SyncClient, daemon: DaemonProcess
) -> None:
    log = ("--log", str(daemon.log_path), "--table")
    keys = [client.enqueue(queue, uri="order:7").key for queue in ("mails", "invoices", "search")]
    mail, invoice, search = (key.decode() for key in keys)
    again = client.enqueue("search", uri="order:7")
    assert (again.outcome, again.took_uri_from) == ("replaced", b"")
    for asked in ("order:7", again.key.decode()):
        text = cli("explain", asked, *log).stdout.decode()
        assert f"it took its URI from {invoice}, a job of the queue invoices" in text
    text = cli("explain", mail, *log).stdout.decode()
    assert f"replaced by {invoice}, a job of the queue invoices, which has the same URI" in text
    assert f"  replaced: {invoice} took its URI" in text
    text = cli("explain", search, *log).stdout.decode()
    assert "completed, deleted or replaced" in text, "by one of its own queue"
    assert f"; took its URI from {invoice}" in text
    (fields,) = cli.json("explain", "order:7")
    assert (fields["took_uri_from"], fields["due_now"]) == (invoice, True)

    client.delete("order:7")
    later = client.enqueue("search", uri="order:7")
    assert later.outcome == "new"
    assert cli.json("explain", later.key.decode())[0]["took_uri_from"] is None

    daemon.kill()
    daemon.start()
    text = cli("explain", mail, *log).stdout.decode()
    assert f"  replaced: {invoice} took its URI" in text
