"""Few files may be open (``ulimit -n``): the forwarder has fewer slots open, and sends all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastjournal.spool import Spool, spool_status
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.programs import installed, run_program
from tests.unit.spool_files import EIGHT

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
