"""A slot, or the whole spool, deleted or moved away while the real fj-forwarder sends from it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fastjournal.protocol import Request
from fastjournal.spool import Spool
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.programs import Program, installed


@pytest.mark.parametrize("keeps_a_locked_record", [False, True])
@pytest.mark.parametrize("slot_seconds", [1, 3600])
@pytest.mark.parametrize("what", ["slots", "directory"])
def test_slot_deleted_under_the_forwarder_is_not_taken_for_the_one_made_anew(
    tmp_path: Path, what: str, slot_seconds: int, keeps_a_locked_record: bool
) -> None:
    def refuse(request: Request) -> str | None:
        return "locked" if request.value == b"locked" else None

    ledger = Ledger(refuse=refuse)
    directory = tmp_path / "spool"
    with ScriptedDaemon(ledger.answer) as daemon, Spool(directory, slot_seconds) as spool:
        line = [installed("fj-forwarder"), "--spool", str(directory)]
        line += ["--server", daemon.address, "--slot-seconds", str(slot_seconds)]
        process = Program([*line, "--log-level", "error"])
        try:
            if keeps_a_locked_record:
                spool.append(domain="d", value=b"locked")
            ledger.wait_applied([spool.append(domain="d") for _ in range(10)])
            for _ in range(3):
                if what == "slots":
                    for path in directory.glob("*.fjs"):
                        path.unlink(missing_ok=True)
                else:
                    shutil.rmtree(directory, ignore_errors=True)
                spool.append(domain="d")  # may go to the deleted slot, where nobody has noticed
                ledger.wait_applied([spool.append(domain="d") for _ in range(10)])
            assert process.poll() is None, "it ended by itself"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    assert set(ledger.times_applied.values()) == {1}


def test_spool_moved_away_under_the_forwarder_is_locked_and_watched_anew(tmp_path: Path) -> None:
    ledger = Ledger()
    directory = tmp_path / "spool"
    with ScriptedDaemon(ledger.answer) as daemon:
        line = [installed("fj-forwarder"), "--spool", str(directory), "--server", daemon.address]
        process = Program(line, stderr=subprocess.PIPE)
        try:
            for aside in ("first", "second"):
                with Spool(directory) as spool:  # one that has a slot open may go on there
                    ledger.wait_applied([spool.append(domain="d")])
                directory.rename(tmp_path / aside)
                directory.mkdir()
                end_s = time.monotonic() + 60
                while not all((directory / name).exists() for name in ("forwarder.lock", "wake")):
                    assert time.monotonic() < end_s
                    time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
            assert process.returncode == 0
            assert told.count(b"it was deleted or moved away; it is made anew") == 2
        finally:
            process.kill()
            process.wait()
