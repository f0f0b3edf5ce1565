"""``fj-cli workers``: who works on what, since when, who is idle, and whether a queue is served."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.test_daemon_access import ALL, CRAWL, write_tokens
from tests.integration.worker_process import wait_until


def rows(cli: Cli, *words: str) -> list[dict[str, Any]]:
    done = cli.json("workers", *words)
    return [{name: row[name] for name in ("worked_on", "domain", "waits_for")} for row in done]


def test_workers_are_listed_with_their_queues_and_idle_ones(
    cli: Cli, daemon: DaemonProcess
) -> None:
    done = cli("workers")
    assert (done.returncode, done.stdout) == (75, b"")
    with SyncClient(daemon.address) as client:
        client.enqueue("mails", "x", uri="u:1")
        client.enqueue("mails", "x", uri="u:2")
        assert cli("workers", "--queue", "mails").returncode == 75
        assert (
            b"mails: 0 jobs leased, 2 jobs due, 0 requests"
            in cli("workers", "--queue", "mails").stderr
        )
        client.next("mails")
        idle = [("search",), ("search", "images"), ("--prefix", "crawl/")]
        processes = [
            cli.start("next", *words, "--wait", "forever", "--exec", "cat") for words in idle
        ]
        with ExitStack() as stack:
            for process in processes:
                stack.callback(process.communicate)
                stack.callback(process.terminate)
            wait_until(lambda: client.domain_stats("search").next_waiting == 2)
            wait_until(lambda: client.domain_stats("crawl/1").next_waiting == 1)
            found = rows(cli)
            assert found[0] == {"worked_on": 1, "domain": "mails", "waits_for": []}
            assert sorted(row["waits_for"] for row in found[1:]) == [
                ["crawl/:"],
                ["images", "search"],
                ["search"],
            ]
            assert len(rows(cli, "--queue", "search")) == 2
            assert rows(cli, "--queue", "crawl/7") == [found[1:][0] | {"waits_for": ["crawl/:"]}]
            served = cli("workers", "--queue", "mails", "--table")
            assert served.returncode == 0
            assert b"mails: 1 job leased, 1 job due, 0 requests for work waiting" in served.stderr
            table = cli("workers", "--table").stdout.decode()
            assert "crawl/..." in table
            assert "idle" in table
            assert "working" in table
            nobody = cli("workers", "--queue", "nobody")
            assert (nobody.returncode, nobody.stdout) == (75, b"")
    assert "gone" in cli("workers", "--table").stdout.decode()


def test_workers_need_a_token_for_everything(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--auth-tokens", str(write_tokens(tmp_path))) as daemon:
        cli = Cli(tmp_path, daemon.address)
        codes = {}
        for name, token in (("all", ALL), ("crawl", CRAWL)):
            file = tmp_path / name
            file.touch(0o600)
            file.write_text(token)
            codes[name] = cli("workers", "--auth-file", str(file)).returncode
        assert codes == {"all": 75, "crawl": 1}


def test_workers_have_the_names_that_their_clients_give_them(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path)
    with DaemonProcess(tmp_path, "--auth-tokens", str(tokens)) as daemon:
        with SyncClient(daemon.address, auth=ALL) as client:
            client.enqueue("mails", "x")
            client.enqueue("mails", "y")
        with (
            SyncClient(daemon.address, auth=ALL, name="mailer on web1") as named,
            SyncClient(daemon.address, auth=ALL, name="\u202e" + "n" * 200) as hostile,
        ):
            named.next("mails")
            hostile.next("mails")
            rows = named.daemon_stats(workers=True).workers or []
            first, second = sorted((row.name for row in rows), reverse=False)
            assert first.startswith("mailer on web1, 127.0.0.1:")
            assert first.endswith(")")  # the name of the token
            assert second.startswith("\u202e" + "n" * 97 + ", 127.0.0.1:")


def test_workers_of_a_command_are_named_without_a_token(cli: Cli, daemon: DaemonProcess) -> None:
    process = cli.start("next", "search", "--wait", "forever", "--exec", "cat")
    try:
        with SyncClient(daemon.address) as client:
            wait_until(lambda: client.domain_stats("search").next_waiting == 1)
        assert any("fj-cli next on " in row["name"] for row in cli.json("workers"))
        assert "fj-cli next on " in cli("workers", "--table").stdout.decode()
    finally:
        process.terminate()
        process.communicate()
