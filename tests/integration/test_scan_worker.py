"""Scan worker: its process, how it ends, and what the daemon logs of it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fastjournal import _native
from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.cmdlog.recovery.recover import Recovered, recover
from fastjournal.cmdlog.recovery.segment_reader import StartPacker
from fastjournal.disk import OsDisk
from fastjournal.testing.logs import START_US, SegmentBuilder
from fastjournald.recovery.scan_worker import ScanWorker, start_scan_worker

SEGMENTS = 5
SLOT_BYTES = 1 << 20
LARGE = [64 << 20] * 3


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for number in range(1, SEGMENTS + 1):
        segment = SegmentBuilder(number - 1, ids_from=number << 64)
        for serial in range(200):
            segment.entry(b"a:128:%d:%d" % (serial, number), uri=b"u%d/%d" % (number, serial))
        (tmp_path / segment_name(number)).write_bytes(bytes(segment))
    return tmp_path


def recovered(log: Path, start_packer: StartPacker | None = None) -> Recovered:
    return recover(OsDisk(), str(log), now_us=START_US, start_packer=start_packer)


def contents(found: Recovered) -> object:
    state = found.state
    keys = {key: job.job_id for key, job in state.keys.items()}
    return found.sealed, found.active, list(state.jobs.values()), keys, state.begins, state.records


class Started:
    """Starts workers, and keeps them."""

    def __init__(self, log: Path, signal_number: int = 0, **options: object) -> None:
        self.log = log
        self.signal_number = signal_number
        self.options = options
        self.workers: list[ScanWorker] = []

    def __call__(self, sizes: Sequence[int]) -> ScanWorker:
        assert len(sizes) == SEGMENTS
        worker = ScanWorker(str(self.log), SLOT_BYTES, **self.options)  # type: ignore[arg-type] # any of them
        self.workers.append(worker)
        if self.signal_number:
            os.kill(worker.pid, self.signal_number)
        return worker

    def ended(self) -> bool:
        return not any(Path(f"/proc/{worker.pid}").exists() for worker in self.workers)


def test_worker_process_leaves_what_the_daemon_alone_does(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = Started(log)
    assert contents(recovered(log, started)) == contents(recovered(log))
    assert started.ended()
    assert not caplog.records


def test_worker_answers_with_packed_segments_and_leaves_damaged_ones(log: Path) -> None:
    (log / segment_name(2)).write_bytes(b"no segment")
    worker = ScanWorker(str(log), SLOT_BYTES)
    try:
        asked = [number for number in (1, 2, 9, 3) if worker.ask(number)]
        assert asked == [1, 2, 9]
        for number in asked:
            while worker.is_packing(number):
                worker.wait()
        assert worker.take(2) is None
        assert worker.take(9) is None
        answer = worker.take(1)
        assert answer is not None
        assert answer[0].records == 201
        assert worker.take(1) is None
        # room for those that were not packed, and for one more after a release
        assert [worker.ask(number) for number in (3, 4, 5)] == [True, True, False]
        worker.release(1)
        assert worker.ask(5)
    finally:
        worker.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_worker_that_is_killed_is_done_without_and_logged(
    log: Path, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    started = Started(log, number)
    assert contents(recovered(log, started)) == contents(recovered(log))
    (record,) = caplog.records
    assert record.getMessage() == (
        f"event=scan-worker-failed status={-number} reason='killed' hint='the daemon goes on alone'"
    )
    assert started.ended()


def test_worker_that_does_not_answer_is_ended(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    started = Started(log, signal.SIGSTOP, answer_seconds_max=0.05)
    assert contents(recovered(log, started)) == contents(recovered(log))
    (record,) = caplog.records
    assert "event=scan-worker-failed status=-9 reason='no answer in 0.05 s" in record.getMessage()
    assert started.ended()


def test_worker_ends_with_the_daemon_that_started_it(log: Path) -> None:
    program = (
        "import os, sys; from fastjournald.recovery.scan_worker import ScanWorker;"
        f"worker = ScanWorker(sys.argv[1], {SLOT_BYTES}); worker.ask(1); worker.ask(2);"
        "print(worker.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    command = (sys.executable, "-c", program, str(log))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        # the worker has standard output of its own, and standard input is a pipe of the daemon
        worker = int(daemon.stdout.readline())
    descriptor = os.pidfd_open(worker) if Path(f"/proc/{worker}").exists() else None
    if descriptor is not None:
        import select

        assert select.select((descriptor,), (), (), 60)[0]
        os.close(descriptor)


def test_worker_is_the_first_that_the_system_kills_without_memory(log: Path) -> None:
    worker = ScanWorker(str(log), SLOT_BYTES)
    try:
        worker.ask(1)
        while worker.is_packing(1):
            worker.wait()
        assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text() == "900\n"
    finally:
        worker.close()


def test_worker_is_not_started_where_it_saves_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if _native.leaves is not None:
        assert start_scan_worker(str(log), LARGE) is None
    monkeypatch.setattr(_native, "leaves", None)
    assert start_scan_worker(str(log), [100 << 20]) is None
    assert start_scan_worker(str(log), [1 << 20] * 10) is None
    assert start_scan_worker(str(log), [1 << 30] * 10) is None
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert start_scan_worker(str(log), LARGE) is None


@pytest.mark.parametrize("call", ["fork_exec", "memfd_create"])
def test_worker_that_cannot_be_started_is_logged(
    log: Path, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(_native, "leaves", None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    if call == "fork_exec":
        monkeypatch.setattr(subprocess, "Popen", refused)
    else:
        monkeypatch.setattr(os, call, refused)
    with caplog.at_level(logging.INFO):
        assert start_scan_worker(str(log), LARGE) is None
    (record,) = caplog.records
    assert record.getMessage() == (
        "event=scan-worker-not-started reason='[Errno 11] Resource temporarily unavailable'"
    )
