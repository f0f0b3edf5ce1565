"""Log lines of daemon and forwarder: hostile names, and a standard error that is not there."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest

from fastjournal.client import SyncClient
from fastjournal.keys import build_journal_key
from fastjournal.loglines import JournalHandler, JsonFormatter, LineFormatter, LogEvent, Sentence
from fastjournal.spool import Spool
from fastjournal.spool.slots import SLOT_SUFFIX
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed, run_program

HOSTILE = "x\n2026-01-01 00:00:00,000 INFO event=stopped\x1b[2J\x9b\u202e"
LINE_HEAD = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
"""Begin of a log line of every program: its time."""
LINE = re.compile(rf"{LINE_HEAD} [A-Z]+ event=[a-z-]+( .*)?")


def test_log_lines_of_the_daemon_cannot_be_feigned(tmp_path: Path) -> None:
    directory = tmp_path / HOSTILE
    directory.mkdir()
    with DaemonProcess(directory, "--listen", f"unix:{tmp_path}/socket") as daemon:
        with SyncClient(daemon.address) as client:
            client.set("k", b"v")
            client.snapshot()
        assert daemon.stop() == 0
    lines = daemon.said().rstrip("\n").split("\n")
    assert sum("event=snapshot path=" in line for line in lines) == 1
    for line in lines:
        assert LINE.fullmatch(line), line
        assert line.isprintable()


def test_log_lines_of_the_forwarder_cannot_be_feigned(tmp_path: Path) -> None:
    directory = tmp_path / HOSTILE
    with Spool(directory) as spool:
        spool.append(domain="d")
    (slot,) = [path for path in directory.iterdir() if path.name.endswith(SLOT_SUFFIX)]
    with slot.open("ab") as damaged:
        damaged.write(b"no record at all")
    slot.rename(directory / f"20200101T000000Z{SLOT_SUFFIX}")  # nobody writes to it any more
    with DaemonProcess(tmp_path) as daemon:
        done = run_program(
            [
                *(installed("fj-forwarder"), "--spool", str(directory), "--once"),
                *("--server", daemon.address, "--log-level", "debug"),
            ],
            capture_output=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.decode().rstrip("\n").split("\n")
    assert any("bytes at offset" in line for line in lines)
    for line in lines:
        assert re.match(rf"{LINE_HEAD} (DEBUG|INFO|WARNING|ERROR) ", line), line
        assert line.isprintable()


def test_metrics_page_harms_no_terminal(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--http", "127.0.0.1:0") as daemon:
        names = [HOSTILE.replace(":", "").encode(), b"\x9b", b"\xc2\x9b", b"\\u009b"]
        with SyncClient(daemon.address) as client:
            for name in names:
                client.set(build_journal_key(name, "x"), b"")
        (address,) = re.findall(r"http=(\S+)", daemon.said())
        with urllib.request.urlopen(f"http://{address}/metrics") as page:
            text = page.read().decode()
    waiting = re.findall(r"^fastjournal_domain_waiting_entries\{(.*)\} 1.0$", text, re.MULTILINE)
    assert len(set(waiting)) == len(names)
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_daemon_without_a_standard_error_serves(tmp_path: Path, redirection: str) -> None:
    """A socket must not get the number of standard error: log lines would go to a client."""
    socket = tmp_path / "socket"
    daemon = subprocess.Popen(
        [
            *("sh", "-c", f'exec "$@" {redirection}', "sh", installed("fastjournald")),
            *("--cmdlog-path", str(tmp_path / "log"), "--listen", f"unix:{socket}"),
            *("--ready-file", str(tmp_path / "ready"), "--log-level", "debug"),
        ],
    )
    _wait_for(tmp_path / "ready", daemon)
    for _ in range(5):
        with SyncClient(f"unix:{socket}") as client:
            client.set("k", b"v", overwrite=True)
            assert client.get("k").value == b"v"
    daemon.terminate()
    assert daemon.wait(60) == 0


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)


def test_log_keeps_the_lines_of_a_traceback() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 1, "event=%s", ("a\nb",), sys.exc_info())
    lines = LineFormatter("%(levelname)s %(message)s").format(record).splitlines()
    assert lines[0] == "ERROR event=a\\nb"
    assert lines[-1] == "ValueError: why"
    assert len(lines) > 2


def test_log_in_json_has_the_fields_of_each_event(tmp_path: Path) -> None:
    directory = tmp_path / HOSTILE
    directory.mkdir()
    options = ("--listen", f"unix:{tmp_path}/socket", "--log-format", "json")
    with DaemonProcess(directory, *options) as daemon:
        with SyncClient(daemon.address) as client:
            client.set("k", b"v")
            client.snapshot()
        assert daemon.stop() == 0
    lines = daemon.said().rstrip("\n").split("\n")
    events = [json.loads(line) for line in lines]
    assert all(line.isascii() and line.isprintable() for line in lines)
    names = [event["event"] for event in events]
    assert names.count("snapshot") == 1
    # a name in a path feigns no event of its own
    assert names.count("stopped") == 1
    [snapshot] = [event for event in events if event["event"] == "snapshot"]
    assert Path(snapshot["path"]).is_relative_to(directory)
    assert {event["level"] for event in events} <= {"info", "warning"}
    for event in events:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"])
        assert event["message"].startswith(f"event={event['event']}")


def test_log_in_json_has_whole_paths_with_spaces_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    """Strict parsers refuse half of a surrogate pair, as which Python reads such a byte."""
    directory = tmp_path / os.fsdecode(b"two words \x80 kept=no")
    directory.mkdir()
    address = f"unix:{tmp_path}/a b"
    options = ("--listen", address, "--log-format", "json")
    for torn in (True, False):
        with DaemonProcess(directory, *options) as daemon:
            with SyncClient(address) as client:
                client.set(f"k{torn}", b"v")
            assert daemon.stop() == 0
            said = daemon.said()
        if torn:
            segment = max(directory.rglob("*.log"))
            with segment.open("ab") as file:
                file.write(b"no record")
    events = [msgspec.json.decode(line, type=dict[str, str]) for line in said.splitlines()]
    ready = [event for event in events if event["event"] == "ready"]
    assert [event["listen"] for event in ready] == [address] * 2
    [found] = [event for event in events if event["event"] == "found"]
    path = str(segment).encode("utf-8", "backslashreplace").decode()
    assert "\\udc80" in path
    assert found["path"] == path
    assert found["kept"].startswith(f"{path}.torn-")
    assert path in found["message"]


def test_log_lines_of_the_journal_have_priorities(tmp_path: Path) -> None:
    """The journal is told by its device and number: a file takes its place here."""
    with open(tmp_path / "journal", "wb") as journal:
        status = os.fstat(journal.fileno())
        for stream, prefix in ((f"{status.st_dev}:{status.st_ino}", True), ("1:2", False)):
            (tmp_path / "ready").unlink(missing_ok=True)
            before = (tmp_path / "journal").stat().st_size
            daemon = subprocess.Popen(
                [
                    *(installed("fastjournald"), "--cmdlog-path", str(tmp_path / "log")),
                    *("--listen", "127.0.0.1:0", "--ready-file", str(tmp_path / "ready")),
                    *("--max-value", "20000000"),
                ],
                stderr=journal,
                env={**os.environ, "JOURNAL_STREAM": stream},
            )
            _wait_for(tmp_path / "ready", daemon)
            daemon.terminate()
            assert daemon.wait(60) == 0
            lines = (tmp_path / "journal").read_text()[before:].splitlines()
            warnings = [line for line in lines if "event=not-for-workq" in line]
            assert [line.startswith("<4>") for line in warnings] == [prefix]
            assert all(line.startswith("<") == prefix for line in lines)
            assert any(line.startswith("<6>") for line in lines) == prefix


def test_log_of_the_journal_marks_each_line_of_a_traceback() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 1, "event=x", (), sys.exc_info())
    lines = JournalHandler().format(record).splitlines()
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)


@pytest.mark.parametrize(
    ("event", "line", "texts"),
    [
        (
            LogEvent("a", b=1, c="x y", d="it's", e="", f="word", g=Sentence("word")),
            "event=a b=1 c='x y' d=\"it's\" e='' f=word g='word'",
            {"event": "a", "b": "1", "c": "x y", "d": "it's", "e": "", "f": "word", "g": "word"},
        ),
        # a text feigns no field
        (
            LogEvent("a", path="/x event=b level=z", why=Sentence(OSError("no"))),
            "event=a path='/x event=b level=z' why='no'",
            {"event": "a", "path": "/x event=b level=z", "why": "no"},
        ),
        (
            LogEvent("a", e="\0\n", seconds=f"{2.5:+.1f}", none=None),
            r"event=a e='\x00\n' seconds=+2.5 none=None",
            {"event": "a", "e": "\0\n", "seconds": "+2.5", "none": "None"},
        ),
        (
            LogEvent("a", http=("b:1", "c:2"), more=()),
            "event=a http=b:1 http=c:2",
            {"event": "a", "http": "b:1"},
        ),
        ("b=1 is what people say", "b=1 is what people say", {}),
    ],
)
def test_log_event_has_its_fields_in_the_line_and_in_json(
    event: object, line: str, texts: dict[str, str]
) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 1, event, (), None)
    assert LineFormatter("%(message)s").format(record) == line
    found = json.loads(JsonFormatter().format(record))
    assert found.pop("message") == line
    assert {name: found[name] for name in found if name not in {"time", "level"}} == texts
