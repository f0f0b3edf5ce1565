"""Appends inside signal handlers and in many threads: none waits for itself, none is lost."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.spool import Spool, spool_status
from fastjournal.spool.appending import appendfile, spool_writer
from fastjournal.testing.clock import ManualClock
from tests.unit.spool_files import EIGHT

SCRIPT = """
import itertools, os, signal, sys
from fastjournal.spool import Spool

class JumpingClock:
    "Another slot after each few looks."
    looks = itertools.count()
    def now_us(self):
        return 1_795_161_600_000_000 + next(self.looks) * 10_000_000

directory, durable, jumps = sys.argv[1], sys.argv[2] == "durable", sys.argv[3] == "jumps"
clock = JumpingClock() if jumps else None
spool = Spool(directory, slot_seconds=60, durable=durable, clock=clock, spool_bytes_max=10**9)
told = []

interrupted = 0

def handler(number, frame):
    global interrupted
    interrupted += 1
    told.append(spool.append(domain="d", value=b"from the handler"))

signal.signal(signal.SIGALRM, handler)
count = 0
while interrupted < 200:
    # one signal somewhere in this append, be it fast or slow; the next one sets the timer anew
    signal.setitimer(signal.ITIMER_REAL, (1 + count % (20 if count % 2 else 300)) / 1e6)
    told.append(spool.append(domain="d", value=b"x"))
    count += 1
signal.setitimer(signal.ITIMER_REAL, 0)
spool.close()
assert len(told) == count + interrupted
assert len(set(told)) == len(told), "the same timestamp was given twice"
print(len(told), len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.parametrize("jumps", ["jumps", "stays"])
@pytest.mark.parametrize("durable", ["durable", "fast"])
def test_signal_handler_appends_in_the_middle_of_an_append(
    tmp_path: Path, durable: str, jumps: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), durable, jumps],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told, descriptors = map(int, done.stdout.split())
    assert spool_status(tmp_path).pending == told
    assert descriptors < 10, "files of old slots stay open"


@pytest.mark.parametrize("step", ["write", "fstat", "lseek", "open", "link", "fdatasync"])
def test_append_comes_in_between_at_each_call_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As by a handler, at every place where one can run, also while the slot changes."""

    clock = ManualClock(EIGHT)
    inside = False
    keys: list[bytes] = []
    call = getattr(os, step)

    def calling(*arguments: Any, **named: Any) -> Any:
        nonlocal inside
        for moment in ("before", "after"):
            if not inside:
                inside = True
                clock.instant_us += 3_600_000_000 if moment == "before" else 0
                keys.append(spool.append(domain="d"))
                inside = False
            if moment == "before":
                result = call(*arguments, **named)
        return result

    with Spool(tmp_path, clock=clock, durable=True) as spool:
        keys.append(spool.append(domain="d"))
        monkeypatch.setattr(os, step, calling)
        for _ in range(5):
            clock.instant_us += 3_600_000_000
            keys.append(spool.append(domain="d"))
        monkeypatch.undo()
        keys.append(spool.append(domain="d"))
        assert spool._files.retired == []
    assert len(set(keys)) == len(keys) > 6
    assert spool_status(tmp_path).pending == len(keys)


FORKS = """
import os, sys, traceback
from fastjournal.spool import Spool, spool_status
from fastjournal.testing.clock import ManualClock

durable = sys.argv[2] == "durable"

def append_and_fork(directory, moment):
    "Fork at one line of an append, as a signal handler there may do."
    clock = ManualClock(1_795_161_600_000_000)
    spool = Spool(directory, slot_seconds=60, durable=durable, clock=clock)
    lines, child, wanted = 0, None, 0

    def trace(frame, event, argument):
        nonlocal lines, child, wanted
        if "/fastjournal/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == moment:
                sys.settrace(None)
                wanted = 7 - (spool_status(directory).pending - 1)  # written before the fork
                child = os.fork()
                if not child:
                    spool.append(domain="d", id="handler")
        return trace

    spool.append(domain="d", id="before")
    clock.instant_us += 60_000_000  # the slot is changed in the append that is interrupted
    sys.settrace(trace)
    spool.append(domain="d", id="interrupted", not_before_us=0)
    sys.settrace(None)
    if child == 0:
        for number in range(3):
            clock.instant_us += 60_000_000
            spool.append(domain="d", id=str(number))
        assert (spool._files.depth, spool._files.retired) == (0, [])
    spool.close()
    folder = "/proc/self/fd"
    open_files = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)
                  if os.path.lexists(f"{folder}/{fd}")]
    assert not [path for path in open_files if path.endswith(".fjs")], open_files
    return lines, child, wanted

moment = lines = 0
while moment <= lines:
    parent, directory = os.getpid(), f"{sys.argv[1]}/{moment}"
    try:
        seen, child, wanted = append_and_fork(directory, moment)
        lines = lines or seen
        if child is not None and child:
            assert os.waitpid(child, 0)[1] == 0
            # of the parent: two; of the child: the interrupted one again, the handler's, three
            assert spool_status(directory).pending == wanted
    except BaseException:  # the process ends here: its parent reads the reason
        print(f"at line {moment} of {lines}")
        traceback.print_exc()
        os._exit(1)
    if os.getpid() != parent:
        os._exit(0)
    moment += 1
print(lines)
"""


@pytest.mark.parametrize("durable", ["durable", "fast"])
def test_fork_at_each_line_of_an_append_leaves_both_processes_able_to_append(
    tmp_path: Path, durable: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path), durable],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 50


def test_threads_share_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first sync goes on all others write: the second one is for all."""
    count = 8
    written = threading.Semaphore(0)
    first = threading.Event()
    syncs = 0
    append = appendfile.AppendFile.append

    def counting(file: appendfile.AppendFile, record: bytes) -> int:
        number = append(file, record)
        written.release()
        return number

    def slow_sync(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == 1:
            first.set()
            for _ in range(count):
                assert written.acquire(timeout=60)

    monkeypatch.setattr(appendfile.AppendFile, "append", counting)
    monkeypatch.setattr(os, "fdatasync", slow_sync)
    with Spool(tmp_path, durable=True) as spool:
        threads = [threading.Thread(target=lambda: spool.append(domain="d")) for _ in range(count)]
        threads[0].start()
        assert first.wait(60)
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert syncs == 2
    assert spool_status(tmp_path).pending == count


def test_file_is_not_closed_while_a_thread_syncs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(EIGHT)
    syncing, changed = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def slow_sync(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            syncing.set()
            assert changed.wait(60)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    errors: list[BaseException] = []

    def append() -> None:
        try:
            spool.append(domain="d")
        except SpoolFailedError as error:
            errors.append(error)

    with Spool(tmp_path, durable=True, clock=clock) as spool:
        thread = threading.Thread(target=append)
        thread.start()
        assert syncing.wait(60)
        clock.instant_us += 3_600_000_000
        spool.append(domain="d")
        changed.set()
        thread.join(60)
        spool.append(domain="d")
        assert spool._files.retired == []
    assert errors == []


def test_closing_during_a_sync_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open file is a lock: the forwarder would never delete the slot."""
    syncs, closed = threading.Event(), threading.Event()
    sync = os.fdatasync

    def wait_for_close(descriptor: int) -> None:
        syncs.set()
        assert closed.wait(60)
        sync(descriptor)

    spool = Spool(tmp_path, durable=True)
    monkeypatch.setattr(appendfile.os, "fdatasync", wait_for_close)
    thread = threading.Thread(target=spool.append, kwargs={"domain": "d"})
    thread.start()
    assert syncs.wait(60)
    spool.close()
    closed.set()
    thread.join()
    (slot,) = tmp_path.glob("*.fjs")
    with slot.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 1.5}, {"priority": True}, {"priority": "1"}, {"not_before": "1.5"},
        {"timestamp_us": 1.5}, {"timestamp_us": True}, {"expires": "2"}, {"ttl": [2]}, {"ttl": "1"},
        {"overwrite": 1}, {"overwrite": None}, {"domain": 5}, {"uri": 5}, {"id": 5},
    ],
    ids=repr,
)  # fmt: skip
def test_argument_of_another_type_is_named_and_nothing_is_written(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    (name,) = wrong
    with Spool(tmp_path) as spool, pytest.raises(TypeError, match=f"(?i){name[-6:]}"):
        spool.append(**({"domain": "d"} | wrong))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [{"slot_seconds": 1.5}, {"durable": 1}, {"spool_bytes_max": 2.5}, {"slot_seconds": True}],
    ids=repr,
)
def test_option_of_another_type_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(TypeError, match=name):
        Spool(tmp_path, **wrong)


def test_append_of_what_is_no_request_is_refused(tmp_path: Path) -> None:
    no_request: Any = b"FJ"
    with Spool(tmp_path) as spool, pytest.raises(TypeError, match="Request"):
        spool.append_request(no_request)


def test_bound_of_deletions_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_writer, "_DELETIONS_MAX", 3)
    monkeypatch.setattr(appendfile.AppendFile, "append", lambda *_: 0)
    with Spool(tmp_path) as spool, pytest.raises(SpoolFailedError, match="deleted as soon"):
        spool.append(domain="d")


def test_shared_sync_does_not_wait_for_ever_for_one_that_was_not_told_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that raises may end a thread's sync before it wakes the others."""
    monkeypatch.setattr(appendfile, "PATIENCE_S", 0.01)
    syncs: list[int] = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    sync = appendfile.SharedSync(str(tmp_path))
    sync.appends = 1
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with sync._lock:
            held.set()
            assert done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    sync.sync(1, 5)
    done.set()
    holder.join()
    assert syncs == [5]


def test_shared_sync_that_fails_beside_another_one_is_told_to_those_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One took too long, so there are two; the system tells the failure to the first one only."""
    monkeypatch.setattr(appendfile, "PATIENCE_S", 0.01)
    sync = appendfile.SharedSync(str(tmp_path))
    sync.appends = 2
    begun, second, failed = threading.Event(), threading.Event(), threading.Event()

    def fdatasync(_: int) -> None:
        if threading.current_thread() is slow:
            begun.set()
            assert second.wait(60)
            raise OSError(5, "I/O error")
        second.set()
        assert failed.wait(60)

    def fail() -> None:
        with pytest.raises(SpoolFailedError):
            sync.sync(1, 5)
        failed.set()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    slow = threading.Thread(target=fail)
    slow.start()
    assert begun.wait(60)
    with pytest.raises(SpoolFailedError):
        sync.sync(2, 5)
    slow.join()
