"""Commands of fj-cli for a spool in a pseudo-terminal: what a user sees, Ctrl-C, and pipes."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastjournal.protocol import Flag, Function, Request, encode_request
from fastjournal.spool import DeadDirectory, Reason, Spool, spool_status
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.programs import Program, installed
from tests.integration.terminal import Terminal

SIZES = [(80, 24), (120, 40)]
SLOT = "20261120T080000Z.fjs"
INSTANT_US = 1_795_161_600_000_000
URI = b"https://example.org/" + b"a" * 36
KEY = b"example.org:128:%d:a1" % INSTANT_US
REASON = "over max-value 1,000,000"
HOSTILE = b"\x1b[2J\x9b31m\x07"

REDRAW = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
"""Back to the first line of the last drawing, which is cleared."""


class Drawn(Terminal):
    """A terminal with a program that draws its lines anew, in place."""

    def drawings(self) -> list[list[str]]:
        """Return the lines of each drawing that is complete; see that it replaced the one before.

        The last one may be incomplete, so it is left out.
        """
        *texts, _ = REDRAW.split(self.written)
        found = [text.replace("\r\n", "\n").split("\n") for text in texts]
        for lines, back in zip(found, REDRAW.findall(self.written), strict=True):
            assert back.count("\x1b[1A") == len(lines) - 1, (lines, back)
        return [[line.replace("\x1b[?25l", "") for line in lines] for lines in found]

    def screen(self) -> list[str]:
        return (self.drawings() or [[]])[-1]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path, None)


@pytest.fixture
def dead(tmp_path: Path) -> DeadDirectory:
    """Dead letters: a refused request, and damage that would disturb a terminal."""
    spool = tmp_path / "s"
    spool.mkdir(exist_ok=True)
    pieces = DeadDirectory(spool)
    frame = encode_request(Request(Function.SET, 0, Flag.PERSIST, INSTANT_US, KEY, URI, 1, b"v"))
    pieces.put(frame, Reason(SLOT, 8, len(frame), "frame", "too-large", REASON, INSTANT_US))
    pieces.put(HOSTILE, Reason(SLOT, 500, 8, "damage", "torn", HOSTILE.decode("latin-1"), 0))
    return pieces


def command(*arguments: object) -> list[str]:
    return [installed("fj-cli"), "spool", *map(str, arguments)]


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_spool_dead_asks_on_a_terminal_and_ctrl_c_changes_nothing(
    cli: Cli, tmp_path: Path, dead: DeadDirectory, action: str
) -> None:
    line = command("dead", action, tmp_path / "s", "--all")
    question = rf"{action.capitalize()} [12] pieces? of dead/\? \[y/N\]: $"
    with Terminal(line, cli.environment) as terminal:
        terminal.until(question)
        assert terminal.interrupt() == 130
        assert terminal.is_sane
        assert terminal.text.endswith("^C\n"), "the shell goes on in a line of its own"
    assert dead.count() == 2
    assert spool_status(tmp_path / "s").pending == 0
    with Terminal(line, cli.environment) as terminal:
        terminal.until(question)
        terminal.press("y\n")
        code = terminal.end()
        assert terminal.is_sane
    if action == "drop":
        assert (code, dead.count()) == (0, 0)
        assert terminal.text.endswith("2 dropped\n")
    else:
        assert (code, dead.count(), spool_status(tmp_path / "s").pending) == (1, 1, 1)
        assert re.search(r"it stays in dead/\n1 put back into the spool\n$", terminal.text)


@pytest.fixture
def forwarded(tmp_path: Path) -> Iterator[Path]:
    """A spool with a forwarder whose daemon is not there."""
    spool = tmp_path / "s"
    spool.mkdir(exist_ok=True)
    with ScriptedDaemon(lambda _: []) as daemon:
        address = daemon.address
    line = [installed("fj-forwarder"), "--spool", str(spool), "--server", address]
    forwarder = Program(line, stderr=subprocess.DEVNULL)
    try:
        yield spool
    finally:
        forwarder.kill()
        forwarder.wait()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_spool_status_on_a_terminal_is_drawn_in_place_until_ctrl_c(
    cli: Cli, forwarded: Path, size: tuple[int, int]
) -> None:
    line = command("status", forwarded, "--watch", "--interval", "100ms")
    with Drawn(line, cli.environment, size) as terminal:
        terminal.until(r"daemon +not connected(.|\n)*pending +0\b")
        with Spool(forwarded) as spool:
            spool.append(domain="d", value=b"x")
        terminal.until(r"pending +1\b(.|\n)*oldest +\d")
        assert terminal.interrupt() == 0
        assert terminal.is_sane
        assert terminal.written.endswith("\r\n\x1b[?25h"), "the last figures stay"
    for drawing in terminal.drawings():
        lines = [text.removesuffix("^C") for text in drawing]
        assert len(lines) <= size[1]
        assert max(map(len, lines)) <= size[0]
        assert all(map(str.isprintable, lines))


def test_spool_put_on_a_terminal_counts_in_place_and_ctrl_c_says_how_many_are_there(
    cli: Cli, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    line = command("put", tmp_path / "s", "--progress")
    with Drawn(line, cli.environment, stdin=reading) as terminal:
        feed(
            writing, lambda: re.search(r"spooling [\d,]+ ", "\n".join(terminal.screen())), terminal
        )
        code = terminal.interrupt()
        assert terminal.is_sane
    os.close(reading)
    os.close(writing)
    there = spool_status(tmp_path / "s").pending
    assert code == 130
    assert terminal.text.rstrip("\n").endswith(f"\n{there:,} spooled")
    assert terminal.text.count("spooled") == 1, "the bar stands for the lines of --progress"


def feed(writing: int, condition: Callable[[], object], terminal: Terminal) -> None:
    """Write lines until a condition is met, with a moment between them."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, terminal.text
        os.write(writing, b'{"domain":"d"}\n' * 10)
        terminal.read()


def test_spool_commands_write_no_control_character_into_a_pipe(
    cli: Cli, tmp_path: Path, dead: DeadDirectory, forwarded: Path
) -> None:
    (name, _) = [piece.name for piece in dead.list()]
    for arguments in (
        ("dead", "list", forwarded, "--table"),
        ("dead", "show", forwarded, name, "--table"),
        ("dead", "drop", forwarded, "--all"),
        ("status", forwarded, "--watch", "--table", "--count", "2", "--interval", "10ms"),
        ("put", tmp_path / "p", "--progress"),
    ):
        done = cli("spool", *map(str, arguments), stdin=b'{"domain":"d"}\n')
        assert done.returncode in (0, 2), done.stderr
        text = (done.stdout + done.stderr).decode()
        assert all(line.isprintable() for line in text.split("\n")), text
        if "--watch" in arguments:
            assert text.count("daemon ") + text.count("no status.json") == 2, "each look is written"
