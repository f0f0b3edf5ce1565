"""Bad records before good ones: the real fj-forwarder, and daemons that refuse or end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastjournal import SyncClient
from fastjournal.protocol import Reply, Request
from fastjournal.spool import DeadDirectory, Spool, spool_status
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import Program, installed, run_program
from tests.integration.worker_process import wait_until

INSTALLED = (installed("fj-forwarder"),)
IMPATIENT = (
    sys.executable,
    "-c",
    "from fj_forwarder import dead_letters, delivery;"
    "delivery.RESCAN_US = dead_letters.RESCAN_US = 500_000;"
    "from fj_forwarder.main import main; main()",
)
"""The forwarder but for the pause of 5 s before a record is read again."""


def start(spool: Path, server: str, program: tuple[str, ...] = INSTALLED) -> Program:
    line = [*program, "--spool", str(spool), "--log-level", "error"]
    return Program([*line, "--server", server])


@contextmanager
def forwarder(spool: Path, server: str, program: tuple[str, ...] = INSTALLED) -> Iterator[None]:
    """A forwarder that has to be there still at the end."""
    process = start(spool, server, program)
    try:
        yield
        assert process.poll() is None, "it ended by itself"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_poison_of_ten_thousand_locked_records_holds_up_no_good_one(tmp_path: Path) -> None:
    is_locked = True

    def refuse(request: Request) -> str | None:
        return "locked" if is_locked and request.value == b"locked" else None

    ledger = Ledger(refuse=refuse)
    with Spool(tmp_path) as spool:
        locked = [spool.append(domain="d", value=b"locked") for _ in range(10_000)]
        good = [spool.append(domain="d", value=b"good") for _ in range(100)]
    with ScriptedDaemon(ledger.answer) as daemon, forwarder(tmp_path, daemon.address):
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
            forwarder(tmp_path, daemon.address, IMPATIENT if poisons < 300 else INSTALLED),
        ):
            ledger.wait_applied(first + good)
            more = [spool.append(domain="d", value=b"good") for _ in range(1000)]
            ledger.wait_applied(more)
            assert not ledger.applied.keys() & set(poison)
            is_cured = True
            ledger.wait_applied(poison, timeout_s=120)
    assert set(ledger.times_applied.values()) == {1}


def test_kill_of_the_forwarder_that_waits_for_poison_loses_nothing_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    is_cured = False
    ledger = Ledger()

    def answer(request: Request) -> Answer:
        if request.value == b"poison" and not is_cured:
            return [Do.CLOSE]
        return ledger.answer(request)

    with Spool(tmp_path) as spool, ScriptedDaemon(answer) as daemon:
        keys = []
        for _ in range(5):
            poison = spool.append(domain="d", value=b"poison")
            good = [spool.append(domain="d", value=b"good") for _ in range(30)]
            keys += [poison, *good]
            process = start(tmp_path, daemon.address)
            ledger.wait_applied(good)
            process.kill()
            process.wait()
        is_cured = True
        with forwarder(tmp_path, daemon.address):
            ledger.wait_applied(keys)
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


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_damage_of_a_slot_on_a_full_disk_ends_nothing_and_is_put_aside_when_there_is_room(
    tmp_path: Path,
) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        _fill_and_drain(mount)
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(descriptor, bytes(4096)):
            pass
    os.close(descriptor)
    assert os.statvfs(path).f_bavail == 0


def _fill_and_drain(mount: Path) -> None:
    def answer(request: Request) -> Answer:
        if request.value == b"bad":
            return [Reply(request.identifier, error="bad-value")]
        return ledger.answer(request)

    ledger = Ledger()
    spool_directory = mount / "spool"
    with Spool(spool_directory) as spool:
        good = [spool.append(domain="d", value=b"good") for _ in range(20)]
        spool.append(domain="d", value=b"bad")
        (path,) = spool_directory.glob("*.fjs")
        with path.open("r+b") as file:
            file.seek(300)
            file.write(b"\xff" * 40)
        good += [spool.append(domain="d", value=b"good") for _ in range(20)]
        (spool_directory / "forwarder.lock").touch()
        fill(mount / "ballast")
        with (
            ScriptedDaemon(answer) as daemon,
            forwarder(spool_directory, daemon.address, IMPATIENT),
        ):
            ledger.wait_applied(good[10:])
            assert not list((spool_directory / "dead").glob("*.bin"))
            (mount / "ballast").unlink()
            wait_until(lambda: len(list((spool_directory / "dead").glob("*.json"))) >= 2)
    codes = {piece.reason.code for piece in DeadDirectory(spool_directory).list() if piece.reason}
    assert codes == {"damaged", "bad-value"}
    assert spool_status(spool_directory).pending == 0
