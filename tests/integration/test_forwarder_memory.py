"""Resident memory of a real fj-forwarder beside a backlog that is far larger."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from pathlib import Path

import pytest

from fastjournal.limits import OPEN_SLOTS_MAX
from fastjournal.protocol import Flag, Function, Reply, Request, encode_request
from fastjournal.spool import Spool, spool_status
from fastjournal.spool.format import FILE_HEADER, encode_record
from fastjournal.spool.slots import slot_name
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.integration.programs import Program, installed, run_program
from tests.unit.spool_files import EIGHT

START_S = 1_795_161_600
MIB = 1024 * 1024
PRODUCERS = 1000
BACKLOG_BYTES = 250 * MIB
PEAK_BYTES_MAX = 125 * MIB
"""Bound on the program, frames of 16 MiB, their bytes as they are sent, and the part of a slot that
is being read; without a bound it is the backlog, or a part of each slot that is open."""


def backlog(spool: Path) -> None:
    """Make slots that are over, of one large record each."""
    spool.mkdir()
    value = bytes(BACKLOG_BYTES // PRODUCERS)
    for number in range(PRODUCERS):
        start_s = START_S + 10 * number
        key = b"d:128:0:%d" % number
        stamp = start_s * 1_000_000
        request = Request(Function.SET, 0, Flag.PERSIST, stamp, key, None, 1, value)
        record = encode_record(encode_request(request))
        (spool / slot_name(start_s)).write_bytes(FILE_HEADER + record)


def memory(process: Program, field: str) -> int:
    """Return a field of the memory of a process, in bytes."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def test_memory_of_the_forwarder_is_bounded_beside_slots_of_a_thousand_producers(
    tmp_path: Path,
) -> None:
    """Some are held by their writers, so that the forwarder keeps as many open as it may."""
    seen: set[bytes] = set()
    all_seen = threading.Event()

    def answer(request: Request) -> Answer:
        seen.add(request.key)
        if len(seen) == PRODUCERS:
            all_seen.set()
        return [Reply(request.identifier)]

    spool = tmp_path / "spool"
    backlog(spool)
    held = sorted(spool.iterdir())[-OPEN_SLOTS_MAX:]
    with ScriptedDaemon(answer) as daemon, contextlib.ExitStack() as writers:
        for path in held:
            fcntl.flock(writers.enter_context(path.open("rb")), fcntl.LOCK_SH)
        line = [installed("fj-forwarder"), "--spool", str(spool), "--server", daemon.address]
        process = Program([*line, "--log-level", "error"], own_interpreter=True)
        try:
            assert all_seen.wait(120), len(seen)
            peak = memory(process, "VmHWM")
        finally:
            process.terminate()
            assert process.wait(60) == 0
    assert sorted(spool.glob("*.fjs")) == held
    assert peak < PEAK_BYTES_MAX


SLOTS = 200
"""More than files may be open, but for the last case, where all slots may be."""


@pytest.mark.parametrize("open_files_max", [40, 64, 1024])
def test_forwarder_sends_many_slots_where_few_files_may_be_open(
    tmp_path: Path, open_files_max: int
) -> None:
    clock, ledger = ManualClock(EIGHT), Ledger()
    keys = set()
    with Spool(tmp_path, clock=clock) as spool:
        for _ in range(SLOTS):
            keys.add(spool.append(domain="d"))
            clock.instant_us += 3_600_000_000
    with ScriptedDaemon(ledger.answer) as daemon:
        done = run_program(
            [
                *("sh", "-c", 'ulimit -n "$0" && exec "$@"', str(open_files_max)),
                *(installed("fj-forwarder"), "--spool", str(tmp_path), "--once"),
                *("--server", daemon.address, "--http", "127.0.0.1:0"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == os.EX_OK, done.stderr
    assert set(ledger.applied) == keys
    assert set(ledger.times_applied.values()) == {1}
    assert spool_status(tmp_path).pending == 0
