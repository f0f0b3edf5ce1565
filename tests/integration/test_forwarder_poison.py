"""Bad records before good ones: the real fj-forwarder, and daemons that refuse or end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal import SyncClient
from fastjournal.protocol import Request
from fastjournal.spool import DeadDirectory, Spool, spool_status
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import command_with, forwarding, installed, run_program

# but for the pause of 5 s before a record is read again
IMPATIENT = command_with("fj-forwarder", RESCAN_US=500_000)


def test_poison_of_ten_thousand_locked_records_holds_up_no_good_one(tmp_path: Path) -> None:
    is_locked = True

    def refuse(request: Request) -> str | None:
        return "locked" if is_locked and request.value == b"locked" else None

    ledger = Ledger(refuse=refuse)
    with Spool(tmp_path) as spool:
        locked = [spool.append(domain="d", value=b"locked") for _ in range(10_000)]
        good = [spool.append(domain="d", value=b"good") for _ in range(100)]
    with (
        ScriptedDaemon(ledger.answer) as daemon,
        forwarding(tmp_path, daemon.address, "--log-level", "error"),
    ):
        ledger.wait_applied(good, timeout_s=120)
        assert not ledger.applied.keys() & set(locked)
        is_locked = False
        ledger.wait_applied(locked, timeout_s=240)
    assert set(ledger.times_applied.values()) == {1}


@pytest.mark.parametrize("poisons", [5, 300])
def test_poison_holds_up_no_other_and_goes_when_the_daemon_takes_it(
    tmp_path: Path, poisons: int
) -> None:
    is_cured = False
    ledger = Ledger()

    def answer(request: Request) -> Answer:
        if request.value == b"poison" and not is_cured:
            return [Do.CLOSE]
        return ledger.answer(request)

    with Spool(tmp_path) as spool:
        first = [spool.append(domain="d", value=b"good") for _ in range(20)]
        poison = [spool.append(domain="d", value=b"poison") for _ in range(poisons)]
        good = [spool.append(domain="d", value=b"good") for _ in range(49)]
        with (
            ScriptedDaemon(answer) as daemon,
            forwarding(tmp_path, daemon.address, command=IMPATIENT if poisons < 300 else ()),
        ):
            ledger.wait_applied(first + good)
            more = [spool.append(domain="d", value=b"good") for _ in range(1000)]
            ledger.wait_applied(more)
            assert not ledger.applied.keys() & set(poison)
            is_cured = True
            ledger.wait_applied(poison, timeout_s=120)
    assert set(ledger.times_applied.values()) == {1}


def test_records_that_the_daemon_cannot_frame_cost_no_connection_and_go_to_dead(
    tmp_path: Path,
) -> None:
    """A real daemon with small values: it would answer ``too-large`` to each one, and close."""
    count = 200
    with Spool(tmp_path / "spool") as spool:
        for number in range(count):
            spool.append(domain="d", id=f"large-{number}", value=bytes(5000))
            spool.append(domain="d", id=f"good-{number}", value=b"good")
    with DaemonProcess(tmp_path, "--max-value", "1000", "--log-level", "debug") as daemon:
        line = [installed("fj-forwarder"), "--spool", str(tmp_path / "spool"), "--once"]
        done = run_program(
            [*line, "--server", daemon.address],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert daemon.said().count("event=connected") == 1
        with SyncClient(daemon.address) as client:
            assert client.domain_stats("d").entries == count
    assert spool_status(tmp_path / "spool").pending == 0
    dead = DeadDirectory(tmp_path / "spool").list()
    assert {piece.reason.code for piece in dead if piece.reason} == {"too-large"}
    assert len(dead) == count
    reasons = {piece.reason.reason for piece in dead if piece.reason}
    assert reasons == {"value has 5000 bytes, over 1000"}
    assert "connection lost" not in done.stderr, "no pause: the daemon was well"
