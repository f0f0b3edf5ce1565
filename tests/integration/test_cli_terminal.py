"""Output of fj-cli: hostile text on a terminal, and an output that takes nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.keys import build_journal_key
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess, lasting_daemon
from tests.integration.programs import installed, run_program
from tests.integration.terminal import on_terminal as run_on_terminal

IO_FAILED = 74

HOSTILE = "x\x1b[2J\x1b]0;t\x07\r\n\x7f\x85\x9b31m\u202e\u2066\u2028"
KEY = build_journal_key("d\x1b[2J\x9b", HOSTILE)
URI = "http://u/" + HOSTILE
PLAIN = "plain" + HOSTILE

STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""Colours and weights, by rich itself."""

SHOWING = {
    "get": ("get", KEY),
    "get a float": ("get", b"nan"),
    "list": ("list",),
    "peek": ("peek", "due"),
    "explain": ("explain", KEY, "--log", b"LOG"),
    "stats of an entry": ("stats", KEY),
    "stats of a domain": ("stats", b"d\x1b[2J\x9b"),
    "refused": ("get", b"nothing" + HOSTILE.encode()),
    "no such option": ("get", b"--\x1b[2Jx\x9b"),
    "no such command": (b"\x1b[2Jx\x9b",),
    "no such server": ("get", "--server", b"unix:/\x1b[2J\x9b\n", "k"),
    "no such file": ("get", "--tls-ca", b"/\x1b[2J\x9b\n", "k"),
    "bad expression": ("list", "--regex", b"(\x1b[2J\x9b"),
    "set": ("set", b"new" + HOSTILE.encode(), "v"),
    "next": ("next",),
    "log dump": ("log", "dump", "LOG"),
    "spool status": ("spool", "status", b"/\x1b[2J\x9b\n"),
}


daemon = lasting_daemon()


@pytest.fixture(scope="module")
def cli(daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("home"), daemon.address)


@pytest.fixture(autouse=True)
def entries(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as client:
        client.set(KEY, HOSTILE, uri=URI, overwrite=True)
        client.set(PLAIN, HOSTILE, overwrite=True)
        client.set("nan", float("nan"), overwrite=True)
        client.set(build_journal_key("due", HOSTILE), HOSTILE, overwrite=True)
        client.bury(KEY, reason=HOSTILE)


def arguments_of(daemon: DaemonProcess, case: str) -> list[bytes]:
    given = [part if isinstance(part, bytes) else os.fsencode(part) for part in SHOWING[case]]
    return [os.fsencode(daemon.log_path) if part == b"LOG" else part for part in given]


def on_terminal(cli: Cli, *arguments: bytes, encoding: str = "utf-8") -> str:
    """Return all that a command writes on a terminal."""
    return run_on_terminal(
        [installed("fj-cli"), *arguments],
        cli.environment | {"PYTHONIOENCODING": encoding},
        (200, 50),
        encoding=encoding,
    )


@pytest.mark.parametrize("case", SHOWING)
def test_terminal_gets_no_control_characters(cli: Cli, daemon: DaemonProcess, case: str) -> None:
    text = on_terminal(cli, *arguments_of(daemon, case))
    assert "Traceback" not in text
    lines = STYLE.sub("", text).split("\r\n")
    assert len(lines) > 1
    for line in lines:
        assert line.isprintable(), line


@pytest.mark.parametrize("case", ["get a float", "list", "stats of an entry"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_output_in_json_is_strict_and_printable_in_every_encoding(
    cli: Cli, daemon: DaemonProcess, case: str, encoding: str
) -> None:
    text = on_terminal(cli, *arguments_of(daemon, case), b"--json", encoding=encoding)
    lines = text.splitlines()
    assert lines
    for line in lines:
        assert line.isprintable()
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_output_escapes_characters_that_its_encoding_cannot_hold(
    cli: Cli, daemon: DaemonProcess, encoding: str
) -> None:
    with SyncClient(daemon.address) as client:
        client.set("größe 漢字", "€", overwrite=True)
    for arguments in ((b"list",), (b"get", "größe 漢字".encode()), (b"peek", b"due")):
        text = on_terminal(cli, *arguments, encoding=encoding)
        assert "Traceback" not in text
    done = subprocess.run(
        [installed("fj-cli"), "get", "größe 漢字", "--table"],
        capture_output=True,
        env=cli.environment | {"PYTHONIOENCODING": encoding},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\u6f22\\u5b57" in done.stdout
    assert b"\\u20ac" in done.stdout


WRITING = ["get", "log dump"]


@pytest.mark.parametrize("style", ["--json", "--table"])
@pytest.mark.parametrize("case", WRITING)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "full"])
def test_output_that_takes_nothing_is_one_sentence_and_exit_74(
    cli: Cli, daemon: DaemonProcess, case: str, style: str, closed: bool
) -> None:
    # only a shell starts a program without a standard output
    shell = ["sh", "-c", 'exec "$@" >&-', "sh"] if closed else []
    with open("/dev/full", "wb") as full:
        done = run_program(
            [*shell, installed("fj-cli"), *arguments_of(daemon, case), style],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            env=cli.environment,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == IO_FAILED
    if style == "--json":
        assert json.loads(done.stderr)["exit_code"] == IO_FAILED
    else:
        assert done.stderr.startswith(b"fj-cli: ")
    assert done.stderr.count(b"\n") == 1, done.stderr


def test_reader_of_notes_that_is_gone_ends_no_command(
    cli: Cli, daemon: DaemonProcess, tmp_path: Path
) -> None:
    """``next`` on an empty queue says so on standard error: its exit code counts."""
    reading, writing = os.pipe()
    os.close(reading)
    for stderr in (writing, os.open("/dev/full", os.O_WRONLY)):
        done = run_program(
            [installed("fj-cli"), "next", "no-such-domain"],
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            env=cli.environment,
            timeout=TIMEOUT_S,
        )
        os.close(stderr)
        assert done.returncode == 75


def test_connection_never_gets_the_number_of_a_closed_standard_error(cli: Cli) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&- <&-', "sh", installed("fj-cli"), "next", "no-such-domain"],
        env=cli.environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 75
