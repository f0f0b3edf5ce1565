"""A spool that users share: producers of three users, and a forwarder that is a fourth."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shlex import quote

import pytest

from fastjournal.client import SyncClient
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import OsDisk
from fastjournal.spool import DeadDirectory, Spool, list_slots, read_forwarder_status
from fastjournal.spool.drop_in import write_drop_in
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.logs import START_US, SegmentBuilder
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from fj_forwarder.main import command
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed, run_program
from tests.users import as_user, changes_users, shared_spool

PRODUCER = Path(__file__).resolve().parents[2] / "examples/producers/producer.sh"
GROUP, OTHER_GROUP = 54_321, 54_322
FIRST, SECOND, THIRD, FORWARDER = 54_001, 54_002, 54_003, 54_004
TOO_LARGE = 1000
"""Bytes of a value that the daemon refuses."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can enter, with a shared spool in it."""
    with shared_spool(GROUP) as spool:
        yield spool.parent


def append(spool: Path, id: str, value: bytes = b"") -> None:
    with Spool(spool, durable=True) as writer:
        writer.append(domain="d", id=id, value=value)


def forward(spool: Path, address: str, status: int) -> None:
    line = ["--spool", str(spool), "--server", address, "--once"]
    assert command.main(line, standalone_mode=False) == status


@changes_users
def test_spool_of_three_users_is_forwarded_by_a_fourth(place: Path) -> None:
    spool = place / "spool"
    for uid in (FIRST, SECOND):
        assert as_user(uid, GROUP, partial(append, spool, str(uid))) == 0
    producer = Path(shutil.copy(PRODUCER, place))
    producer.chmod(0o644)
    subprocess.run(
        ["sh", str(producer), str(spool), "http://third.example/"],
        input=b"by a shell\n",
        check=True,
        user=THIRD,
        group=THIRD,
        extra_groups=[GROUP],
        umask=0o077,
    )
    assert as_user(FIRST, GROUP, lambda: append(spool, "large", bytes(TOO_LARGE))) == 0
    modes = {
        (stat.S_IMODE(Path(slot.path).stat().st_mode), Path(slot.path).stat().st_gid)
        for slot in list_slots(spool)
    }
    assert modes == {(0o660, GROUP)}
    with DaemonProcess(place, "--max-value", str(TOO_LARGE - 1)) as daemon:
        assert as_user(FORWARDER, GROUP, lambda: forward(spool, daemon.address, 0)) == 0
        with SyncClient(daemon.address) as client:
            ids = {job.key.rpartition(b":")[2] for job in client.next("d", count=9)}
            (third,) = client.next("third.example", count=9)
    assert ids == {b"54001", b"54002"}
    assert third.value == b"by a shell"
    # the forwarder's files are of the group too: any member can look after its dead letters
    made = [path for path in spool.rglob("*") if path.is_file()]
    assert {path.stat().st_gid for path in made} == {GROUP}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o660}
    assert as_user(THIRD, GROUP, lambda: check_dead(spool)) == 0
    status = read_forwarder_status(spool)
    assert status is not None
    assert (status.done, status.buried, status.left_out) == (3, 1, 0)


def check_dead(spool: Path) -> None:
    (piece,) = DeadDirectory(spool).list()
    assert piece.reason is not None
    assert piece.reason.code == "too-large"
    DeadDirectory(spool).remove(piece.name)


@changes_users
def test_spool_file_of_a_wrong_owner_or_mode_is_named_and_holds_up_nothing(place: Path) -> None:
    spool = place / "spool"
    append(spool, "good")
    wrong = {"mode": 0o600, "owner": 0o640, "group": 0o660}
    for name, mode in wrong.items():
        (slot,) = [slot for slot in list_slots(spool) if "-" not in slot.name]
        path = spool / f"20261120T080000Z-{name}.fjs"
        shutil.copy(slot.path, path)
        os.chown(path, 0, OTHER_GROUP if name == "group" else GROUP)
        path.chmod(mode)
    ledger = Ledger()
    with ScriptedDaemon(ledger.answer, unix_path=str(place / "socket")) as daemon:
        (place / "socket").chmod(0o777)
        assert as_user(FORWARDER, GROUP, lambda: forward(spool, daemon.address, 74)) == 0
    assert len(ledger.applied) == 1
    status = read_forwarder_status(spool)
    assert status is not None
    assert status.left_out_names == sorted(f"20261120T080000Z-{name}.fjs" for name in wrong)
    assert (status.done, status.dead) == (1, 0)
    for name in wrong:
        assert (spool / f"20261120T080000Z-{name}.fjs").exists()


@changes_users
def test_spool_file_that_root_creates_belongs_to_the_owner_of_the_spool(place: Path) -> None:
    """A command of an operator locks out neither the writers of the slot nor the forwarder."""
    spool = place / "private"
    spool.mkdir(0o750)
    os.chown(spool, FIRST, FIRST)
    append(spool, "of root")
    write_drop_in(spool, "retry", [])
    assert as_user(FIRST, GROUP, partial(append, spool, "of the owner")) == 0
    slots = [Path(slot.path).stat() for slot in list_slots(spool)]
    assert {(slot.st_uid, stat.S_IMODE(slot.st_mode)) for slot in slots} == {(FIRST, 0o640)}
    assert len(slots) == 2


OTHER = 65534
"""A user and group that is not this one."""
NOW = START_US + 1_000_000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def damaged_log(directory: Path, mode: int, owner: int | None) -> Path:
    """Two segments: one with damage, and one with a torn end and a leftover."""
    log = directory / "log"
    log.mkdir(mode=0o750)
    for number in (1, 2):
        segment = SegmentBuilder(number - 1, ids_from=100 * number)
        for entry in range(4):
            segment.entry(b"key %d %d" % (number, entry))
        data = bytearray(bytes(segment))
        if number == 1:
            data[segment.offsets[2] + 40] ^= 1
        else:
            data += b"torn"
        (log / f"{number:09d}.log").write_bytes(data)
    (log / "000000001.log.rw").write_bytes(b"left over")
    for path in (*log.iterdir(), log):
        if path != log:
            path.chmod(mode)
        if owner is not None:
            os.chown(path, owner, owner)
    return log


def owners(log: Path) -> set[tuple[int, int]]:
    return {(path.stat().st_uid, path.stat().st_gid) for path in log.rglob("*")}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660])
def test_repair_keeps_the_mode_of_its_files(tmp_path: Path, mode: int) -> None:
    log = damaged_log(tmp_path, mode, None)
    recover(OsDisk(), str(log), now_us=NOW, repair=True)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in log.glob("0*")}
    assert len(modes) == 4, "two segments, and what was taken out of each"
    assert set(modes.values()) == {mode}


@as_root
@pytest.mark.parametrize("way", ["fj-cli log repair", "fastjournald --repair"])
def test_log_files_that_root_writes_belong_to_the_owner_of_the_log(
    tmp_path: Path, way: str
) -> None:
    log = damaged_log(tmp_path, 0o640, OTHER)
    if way == "fj-cli log repair":
        done = run_program(
            [installed("fj-cli"), "log", "repair", str(log)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "so do the files that were written" in done.stderr
    else:
        ready = tmp_path / "ready"
        daemon, cli = quote(installed("fastjournald")), quote(installed("fj-cli"))
        command = (
            f"{daemon} --cmdlog-path {log} --repair --ready-file {ready}"
            f" --listen unix:{tmp_path}/socket & while ! test -e {ready}; do kill -0 $! || exit 1;"
            f" sleep 0.05; done; {cli} --server unix:{tmp_path}/socket set k v &&"
            f" {cli} --server unix:{tmp_path}/socket snapshot; kill $!; wait $!"
        )
        subprocess.run(["sh", "-c", command], check=True, timeout=120, capture_output=True)
        assert list(log.glob("snapshots/*/MANIFEST.json"))
    assert list(log.glob("*.damaged-*"))
    assert list(log.glob("*.lock"))
    assert owners(log) == {(OTHER, OTHER)}


def test_snapshots_are_no_wider_than_the_log(tmp_path: Path) -> None:
    log = damaged_log(tmp_path, 0o600, None)
    log.chmod(0o700)
    disk = OsDisk()
    found = recover(disk, str(log), now_us=NOW, repair=True)
    segments = [*found.sealed, *([found.active] if found.active else [])]
    path = Path(take_snapshot(disk, str(log), f"{log}/snapshots", segments, NOW))
    for directory in (path, path.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}
