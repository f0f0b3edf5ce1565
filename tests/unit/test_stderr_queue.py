"""Queue of standard error: its bounds by level, order, and what is said of dropped lines."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.limits import STDERR_LEVEL_BYTES_MAX
from fastjournal.loglines import JsonFormatter, LineFormatter, StderrHandler
from fastjournal.stderr_queue import QueuedStderr

PATIENCE_S = 60.0
LINE = "x" * 1_000


class Reader:
    """Reader of a pipe or a terminal, which reads when the test says so.

    Args:
        reading: Its descriptor.
    """

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self._read = b""

    def until(self, end: bytes) -> list[str]:
        """Read until this comes; return all lines so far."""
        while end not in self._read:
            self._read += os.read(self._reading, 65536)
        return self._read.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[tuple[QueuedStderr, Reader]]:
    """Give a queue, and the reader of its pipe."""
    reading, writing = os.pipe()
    yield QueuedStderr(writing, "utf-8"), Reader(reading)
    os.close(reading)
    os.close(writing)


def fill(stderr: QueuedStderr) -> None:
    """Fill the pipe, so that the next line waits in the queue."""
    while not stderr.bytes_waiting:
        stderr.put(f"before {LINE}", logging.DEBUG)


def test_dropped_lines_are_logged_by_level_in_the_form_of_the_log(
    pipe: tuple[QueuedStderr, Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr, reader = pipe
    monkeypatch.setattr(sys, "stderr", stderr)
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter())
    stderr.describe = handler.describe
    fill(stderr)

    def log(level: int, message: str) -> None:
        handler.handle(logging.LogRecord("x", level, "", 0, message, None, None))

    for _ in range(STDERR_LEVEL_BYTES_MAX // 1_000):
        log(logging.INFO, f"event=x text={LINE}")
    log(logging.WARNING, "event=last")
    lines = reader.until(b'"event=last"}\n')
    [said] = [line for line in lines if "log-lines-dropped" in line]
    event = json.loads(said)
    assert event["level"] == "warning"
    assert event["lines"] == event["info"] == str(stderr.dropped)
    assert event["event"] == "log-lines-dropped"


def test_bad_message_of_a_log_is_shown_and_ends_nothing(
    pipe: tuple[QueuedStderr, Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr, reader = pipe
    monkeypatch.setattr(sys, "stderr", stderr)
    handler = StderrHandler()
    handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "%d", ("no number",), None))
    assert "--- Logging error ---" in reader.until(b"Arguments: ('no number',)\n")


def test_traceback_of_a_log_line_harms_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    handler = StderrHandler()
    handler.setFormatter(LineFormatter("%(message)s"))
    try:
        raise ValueError("\x1b[31m\r<2>all is well\u202e\udc80")
    except ValueError:
        record = logging.LogRecord("", logging.ERROR, "", 0, "failed", None, sys.exc_info())
    handler.handle(record)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "ValueError: \\x1b[31m\\r<2>all is well\\u202e\\udc80"
    assert all(line.isprintable() for line in lines)


def test_text_of_a_stream_is_written_by_lines_and_at_a_flush(
    pipe: tuple[QueuedStderr, Reader],
) -> None:
    stderr, reader = pipe
    print("one", "two", file=stderr)
    stderr.write("thr")
    stderr.put("between", logging.INFO)
    stderr.write("ee\nfo")
    stderr.flush()
    print("ur\udc80ü", file=stderr)
    with pytest.raises(TypeError):
        stderr.write(b"no text")  # type: ignore[arg-type] # click tries so
    assert reader.until(b"\\udc80\xc3\xbc\n") == ["one two", "between", "three", "four\\udc80ü"]
    assert (stderr.encoding, stderr.isatty(), stderr.writable()) == ("utf-8", False, True)


def test_reader_that_has_gone_costs_its_lines_and_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stderr = QueuedStderr(writing, "utf-8")
    for _ in range(5):
        stderr.put("line", logging.INFO)
        stderr.drain(PATIENCE_S)
    assert stderr.dropped == 5
    assert stderr.bytes_waiting == 0
    os.close(writing)


def test_file_on_a_full_disk_has_a_line_end_behind_a_torn_line_once_there_is_room(
    tmp_path: Path,
) -> None:
    """A limit of the size of files stands for the disk: the system takes a part of a line."""
    script = """
import resource, sys
from fastjournal.stderr_queue import queue_stderr
queue_stderr()
stderr = sys.stderr
resource.setrlimit(resource.RLIMIT_FSIZE, (25, resource.RLIM_INFINITY))
for number in range(4):
    print("line number", number, file=stderr)
    stderr.drain(60)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
print("line behind", file=stderr)
"""
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", script], stderr=log, check=True)
    assert (tmp_path / "log").read_text().splitlines() == [
        "line number 0",
        "line number",
        "3 lines could not be written",
        "line behind",
    ]


def test_descriptor_that_others_share_stays_blocking(pipe: tuple[QueuedStderr, Reader]) -> None:
    stderr, reader = pipe
    fill(stderr)
    assert os.get_blocking(stderr.fileno())
    stderr.put("last", logging.INFO)
    reader.until(b"last\n")


def test_descriptor_that_another_made_non_blocking_loses_no_line(
    pipe: tuple[QueuedStderr, Reader],
) -> None:
    stderr, reader = pipe
    os.set_blocking(stderr.fileno(), False)
    fill(stderr)
    for number in range(100):
        stderr.put(f"line {number}", logging.INFO)
    lines = [line for line in reader.until(b"line 99\n") if not line.startswith("before")]
    assert lines == [f"line {number}" for number in range(100)]
    assert stderr.dropped == 0


def test_queue_without_a_thread_to_spare_keeps_its_lines_until_there_is_one(
    pipe: tuple[QueuedStderr, Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr, reader = pipe

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        fill(stderr)
        stderr.put("kept", logging.INFO)
        stderr.drain(PATIENCE_S)
    stderr.put("behind", logging.INFO)
    assert reader.until(b"behind\n")[-2:] == ["kept", "behind"]


@pytest.mark.parametrize("last", ["sys.exit(64)", "1 / 0", "raise SystemExit(74)"])
@pytest.mark.parametrize("blocked", [False, True])
def test_exit_waits_for_the_last_lines_only_so_long(last: str, blocked: bool) -> None:
    """The exit code is that of the program, whether anybody reads or not."""
    script = f"""
import os, sys
from fastjournal.stderr_queue import queue_stderr
queue_stderr()
stderr = sys.stderr
if {blocked}:
    while not stderr.bytes_waiting:
        print("x" * 1000, file=sys.stderr)
print("last words", file=sys.stderr)
{last}
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    assert process.stderr is not None
    code = {"sys.exit(64)": 64, "raise SystemExit(74)": 74, "1 / 0": 1}[last]
    if blocked:
        assert process.wait(PATIENCE_S) == code
    said = process.stderr.read()
    assert process.wait(PATIENCE_S) == code
    assert (b"last words\n" in said) == (not blocked)
    assert (b"ZeroDivisionError" in said) == (last == "1 / 0" and not blocked)
    process.stderr.close()


@pytest.mark.parametrize("number", [1, 300_000])
def test_children_write_to_a_pipe_that_is_always_read(number: int) -> None:
    script = f"""
import os, subprocess
from fastjournal.stderr_queue import queue_stderr
queue_stderr(with_children=True)
subprocess.run(["sh", "-c", "yes 'of a child' | head -n {number} >&2"], check=True)
os.write(2, b"no end of a line")
print("done", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    if number == 1:
        assert said == b"of a child\nno end of a line"
    else:
        assert said.startswith(b"of a child\n" * 1_000)
        assert b"\nof a child\n" in said.partition(b" lines could not be written\n")[0]
        assert b" lines could not be written\n" in said
