"""fj-cli top in a pseudo-terminal: what it shows, its keys, a daemon that goes away."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.terminal import CONTROL, Terminal

HOME = "\x1b[H"


class Top(Terminal):
    """A pseudo-terminal with fj-cli top on it."""

    def __init__(self, cli: Cli, size: tuple[int, int], *arguments: str) -> None:
        command = [installed("fj-cli"), "top", *arguments]
        super().__init__(command, cli.environment, size, stderr=subprocess.PIPE)

    def screen(self) -> list[str]:
        """Return the lines of the last drawing that is complete."""
        drawings = self.written.split(HOME)
        text = drawings[-2] if len(drawings) > 2 else drawings[-1]
        return [line.rstrip() for line in CONTROL.sub("", text).replace("\r", "").split("\n")]


@pytest.fixture
def terminal(cli: Cli, client: SyncClient) -> Iterator[Top]:
    for number in range(60):
        client.set(f"site{number:02}.example.org:1:0:x", "v")
    for number in range(5):
        client.set(f"pages:1:{number}:x", "v")
    client.next("mails")
    client.set("mails:1:0:x", "v")
    client.next("mails", lease=60)
    client.pause("pages", 2 * 86400)
    with Top(cli, (80, 24), "--interval", "300ms") as terminal:
        yield terminal


def rows(lines: list[str]) -> list[str]:
    """Return the names of the domains on the screen, in order."""
    start = next(number for number, line in enumerate(lines) if "───" in line) + 1
    found = [line.split() for line in lines[start:]]
    return [words[0] for words in found[: found.index([])]]


def test_top_fits_the_terminal_and_shows_domains_and_figures(terminal: Top) -> None:
    lines = terminal.until(r"pages +5 .*paused 2d")
    assert len(lines) <= terminal.lines
    assert max(map(len, lines)) <= terminal.columns
    text = "\n".join(lines)
    assert "66 entries: 65 due, 0 delayed, 1 leased, 0 buried" in text
    assert re.search(r"a second: [\d,]+ requests, .* sync ", text)
    assert rows(lines)[0] == "pages", "the most due first"
    assert "of 62 domains" in text
    # a worker, with the head of its table
    assert len(rows(lines)) == terminal.lines - 6 - 4
    held = re.compile(r"pid=\d+ uid=\d+ gid=\d+ +1 .* mails$")
    assert sum(held.match(line) is not None for line in lines) == 1
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.mode == terminal.mode_before


def test_top_sorts_reverses_and_filters_by_keys(terminal: Top) -> None:
    terminal.until(r"due\*")
    terminal.press("s")
    lines = terminal.until(r"leased\*")
    assert rows(lines)[0] == "mails"
    terminal.press("r")
    assert rows(terminal.until(r"(?m)^ *site59"))[0] != "mails"
    terminal.press("/")
    terminal.until("begin with: _")
    terminal.press("sitx\x7fe0")
    terminal.until("begin with: site0_")
    terminal.press("\r")
    lines = terminal.until(r"10 of 10 domains site0\*", absent="pages")
    assert sorted(rows(lines)) == [f"site{number:02}.example.org" for number in range(10)]
    terminal.press("/x\x1b")
    terminal.until(r"10 of 10 domains site0\*", absent="begin with")
    terminal.press("q")
    assert terminal.end() == 0


def test_top_says_that_all_domains_are_paused(terminal: Top, client: SyncClient) -> None:
    client.pause_all(7200)
    terminal.until(r"all domains are paused, until .*\(in 2h\): fj-cli resume --all")
    client.resume_all()
    terminal.until(r"a second: ")
    terminal.press("q")
    assert terminal.end() == 0


def test_top_that_is_paused_keeps_its_figures(terminal: Top, client: SyncClient) -> None:
    terminal.until("66 entries")
    terminal.press("p")
    terminal.until("PAUSED")
    client.set("new:1:0:x", "v")
    terminal.press("s")
    terminal.until(r"66 entries(.|\n)*leased\*(.|\n)*PAUSED")
    terminal.press("p")
    terminal.until("67 entries", absent="PAUSED")


def test_top_waits_for_a_daemon_that_goes_away(cli: Cli, daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as client:
        client.set("pages:1:0:x", "v")
    with Top(cli, (80, 24), "--interval", "200ms") as terminal:
        terminal.until("1 entries")
        daemon.stop()
        terminal.until("trying again")
        daemon.start()
        terminal.until("a second", absent="trying again")


def test_top_that_is_terminated_restores_the_terminal(terminal: Top) -> None:
    terminal.until("66 entries")
    assert terminal.mode != terminal.mode_before
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 128 + signal.SIGTERM
    assert terminal.mode == terminal.mode_before
    assert "\x1b[?1049l" in terminal.written, "the screen of before is back"


def test_top_without_a_terminal_writes_samples_as_json(cli: Cli, client: SyncClient) -> None:
    client.set("pages:1:0:x", "v")
    first, second = cli.json("top", "--count", "2", "--interval", "100ms")
    assert [domain["domain"] for domain in first["domain_list"]] == ["pages"]
    assert first["workers"] == []
    client.next("pages")
    [worker] = cli.json("top")[0]["workers"]
    assert (worker["worked_on"], worker["connected"], worker["domain"]) == (1, 1, "pages")
    assert worker["name"].startswith("pid=")
    assert 0 < worker["since_us"] <= first["time_us"] + 60_000_000
    assert second["requests"] > first["requests"]
    assert second["requests_per_second"] > 0
    assert second["syncs"] >= 1
    assert second["sync_us"] > 0
    assert cli("top", "--interval", "1ms").returncode == 2
