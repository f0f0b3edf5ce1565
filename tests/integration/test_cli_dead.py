"""``fj-cli dead``: the installed program on the dead letters of a real daemon."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient, calls
from fastjournal.limits import REASON_BYTES_MAX
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.terminal import Terminal
from tests.integration.test_daemon_access import ALL, CRAWL, write_tokens


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, "--cmdlog-sync", "os") as process:
        yield process


def bury(client: SyncClient, queue: str, *errors: str) -> None:
    """Bury one job of a queue for each error; their ids are the places of the errors."""
    client.call_many([calls.set_(f"{queue}:128:0:{at}", "x") for at in range(len(errors))])
    client.call_many(
        [calls.bury(f"{queue}:128:0:{at}", reason=error) for at, error in enumerate(errors)]
    )


@pytest.fixture
def filled(client: SyncClient) -> SyncClient:
    bury(client, "mails", *("SMTP 421 try again after 20 s", "SMTP 421 try again after 7 s"))
    bury(client, "search", "index is gone", "SMTP 421 try again after 3 s", "index is gone")
    client.set("mails:128:0:waits", "x")
    client.set("plain", "x")
    client.bury("plain", reason="no job")
    return client


def test_dead_list_counts_by_queue_and_error(cli: Cli, filled: SyncClient) -> None:
    found = cli.json("dead", "list")
    assert [(group["queue"], group["error"], group["count"], group["key"]) for group in found] == [
        ("mails", "SMTP 421 try again after # s", 2, "mails:128:0:0"),
        ("search", "index is gone", 2, "search:128:0:0"),
        ("search", "SMTP 421 try again after # s", 1, "search:128:0:1"),
    ]
    assert all(0 < group["oldest_us"] <= group["newest_us"] for group in found)
    table = cli("dead", "list", "--table").stdout.decode()
    assert "SMTP 421 try again after # s" in table
    assert [group["queue"] for group in cli.json("dead", "list", "--queue", "mails")] == ["mails"]
    # a retry and a failure more, and the error of the attempt is the group
    client = filled
    client.kick("search:128:0:0")
    jobs = client.next("search")
    client.release(jobs[0].key, jobs.token or 0, error="connection refused", delay=0)
    jobs = client.next("search")
    client.bury(jobs[0].key, jobs.token, reason="")
    [group] = cli.json("dead", "list", "--error", "REFUSED")
    assert (group["error"], group["count"]) == ("connection refused", 1)


def test_dead_list_shows_each_and_filters(cli: Cli, filled: SyncClient) -> None:
    each = cli.json("dead", "list", "--each")
    assert [letter["key"] for letter in each] == [
        *("mails:128:0:0", "mails:128:0:1"),
        *("search:128:0:0", "search:128:0:1", "search:128:0:2"),
    ]
    assert each[0]["error"] == "SMTP 421 try again after 20 s"
    # a part of the error, or of its group as the list shows it; cases are alike
    for words, keys in (
        (("--error", "smtp 421"), {"mails:128:0:0", "mails:128:0:1", "search:128:0:1"}),
        (("--error", "after # s", "--queue", "search"), {"search:128:0:1"}),
        (("--error", "after 7 s"), {"mails:128:0:1"}),
        (("--queue", "search", "--queue", "none", "--count", "1"), {"search:128:0:0"}),
        (("--older", "0s", "--queue", "mails"), {"mails:128:0:0", "mails:128:0:1"}),
    ):
        assert {letter["key"] for letter in cli.json("dead", "list", "--each", *words)} == keys
    for words in (("--older", "1h"), ("--error", "no such"), ("--queue", "none")):
        done = cli("dead", "list", *words)
        assert (done.returncode, done.stdout) == (75, b""), words
    filled.enqueue("bills", "x", unique="order 7")
    filled.bury(filled.next("bills")[0].key, reason="no")
    assert cli.json("dead", "list", "--each", "--queue", "bills")[0]["unique"] == "order 7"
    table = cli("dead", "list", "--each", "--table", "--queue", "mails").stdout.decode()
    assert "SMTP 421 try again after 7 s" in table
    # a long one with its advice, and without the traceback behind it
    reason = f"unknown-task: there is no task 'a' (it has {'b' * 200}: kick 7)"
    filled.enqueue("tasks", "x")
    filled.bury(filled.next("tasks")[0].key, reason=f"{reason}\n  File nowhere")
    table = cli("dead", "list", "--each", "--table", "--queue", "tasks").stdout.decode()
    assert f"{reason}\n" in table
    assert "File nowhere" not in table


def test_dead_retry_kicks_what_its_filters_choose(cli: Cli, filled: SyncClient) -> None:
    shown = cli("dead", "retry", "--error", "SMTP 421", "--dry-run", "--json")
    assert [json.loads(line)["count"] for line in shown.stdout.splitlines()] == [2, 1]
    assert b"would retry 3 dead letters" in shown.stderr
    assert filled.daemon_stats().buried == 6
    refused = cli("dead", "retry", "--error", "SMTP 421")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"it would retry 3 dead letters; give --yes" in refused.stderr
    assert cli.json("dead", "retry", "--error", "SMTP 421", "--yes") == [
        {"retried": 3, "stayed": 0}
    ]
    assert (filled.domain_stats("mails").due, filled.domain_stats("search").due) == (3, 1)
    assert cli.json("dead", "retry", "--all", "--count", "1", "--yes") == [
        {"retried": 1, "stayed": 0}
    ]
    assert filled.domain_stats("search").buried == 1
    assert cli("dead", "retry", "--error", "SMTP 421", "--yes").returncode == 75
    # an entry that is no job has no queue
    assert filled.entry_stats("plain").state == "buried"


def test_dead_drop_deletes_what_its_filters_choose(cli: Cli, filled: SyncClient) -> None:
    assert cli.json("dead", "drop", "--queue", "search", "--error", "index", "--yes") == [
        {"dropped": 2, "stayed": 0}
    ]
    assert cli.json("dead", "drop", "--all", "--yes") == [{"dropped": 3, "stayed": 0}]
    assert (filled.domain_stats("mails").entries, filled.domain_stats("search").entries) == (1, 0)
    assert cli("dead", "drop", "--all", "--yes").returncode == 75
    assert cli("dead", "drop", "--all").returncode == 75


def test_dead_changes_need_a_filter_or_all(cli: Cli) -> None:
    for command in ("retry", "drop"):
        for words in ((), ("--yes",), ("--count", "3"), ("--all", "--queue", "a")):
            done = cli("dead", command, *words)
            assert done.returncode == 2
            assert b"--all" in done.stderr


def test_dead_drop_leaves_what_others_hold_or_have_set_anew(cli: Cli, client: SyncClient) -> None:
    bury(client, "mails", "a", "b", "c")
    client.lock("mails:128:0:1", timeout=60)
    done = cli("dead", "drop", "--all", "--yes", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"dropped": 2, "stayed": 1}
    assert b"1 stay" in done.stderr
    # the DELETE has the timestamp of the entry that was read
    client.unlock("mails:128:0:1")
    [letter] = client.dead_letters("mails")
    client.set(letter.key, "anew", overwrite=True)
    [outcome] = client.call_many([calls.delete(letter.key, timestamp_us=letter.timestamp_us)])
    assert getattr(outcome, "code", None) == "stale"


def test_dead_drop_asks_on_a_terminal(cli: Cli, filled: SyncClient) -> None:
    command = [installed("fj-cli"), "dead", "drop", "--queue", "mails"]
    for answer, left in (("n\n", 2), ("y\n", 0)):
        with Terminal(command, cli.environment) as terminal:
            terminal.until(r"Drop 2 dead letters\? \[y/N\]: $")
            terminal.press(answer)
            assert terminal.end() == (130 if left else 0)
        assert filled.domain_stats("mails").buried == left


def test_dead_needs_the_right_to_read_its_queue_and_to_write(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--auth-tokens", str(write_tokens(tmp_path))) as daemon:
        with SyncClient(daemon.address, auth=ALL) as client:
            bury(client, "mails", "x")
        cli = Cli(tmp_path, daemon.address)
        for name, token in (("all", ALL), ("crawl", CRAWL)):
            file = tmp_path / name
            file.touch(0o600)
            file.write_text(token)
        done = cli("dead", "list", "--queue", "mails", "--auth-file", str(tmp_path / "crawl"))
        assert done.returncode == 1
        assert b"forbidden" in done.stderr or b"lacks the right" in done.stderr
        assert cli.json("dead", "drop", "--all", "--yes", "--auth-file", str(tmp_path / "all")) == [
            {"dropped": 1, "stayed": 0}
        ]


LETTERS = 6000
"""With reasons of 4 KiB they take 24 MB, if all of them are in memory."""


def test_dead_keeps_one_page_in_memory(cli: Cli, client: SyncClient) -> None:
    long = "SMTP 550 ".ljust(REASON_BYTES_MAX, "x")
    for first in range(0, LETTERS, 500):
        keys = [f"mails:128:0:{at}" for at in range(first, first + 500)]
        client.call_many([calls.set_(key, "x") for key in keys])
        client.call_many([calls.bury(key, reason=long) for key in keys])
    assert [group["count"] for group in cli.json("dead", "list")] == [LETTERS]
    few = peak_kib(cli, "dead", "retry", "--queue", "mails", "--count", "500", "--yes")
    all_ = peak_kib(cli, "dead", "drop", "--queue", "mails", "--yes")
    assert client.domain_stats("mails").buried == 0
    assert client.domain_stats("mails").due == 500
    assert all_ - few < 8 * 1024


def peak_kib(cli: Cli, *words: str) -> int:
    """Run the program in a process of its own; return the KiB that it had at most."""
    process = subprocess.Popen([installed("fj-cli"), *words], env=cli.environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss
