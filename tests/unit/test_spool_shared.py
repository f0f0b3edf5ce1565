"""Spools that several users share, and what else lies in a spool's directory."""

from __future__ import annotations

import grp
import logging
import os
import shutil
import socket
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from fastjournal.errors import BadRequestError, SpoolFailedError
from fastjournal.limits import RESCAN_US
from fastjournal.spool import DeadDirectory, Reason, Spool, spool_status
from fastjournal.testing.clock import ManualClock
from fj_cli.cli import cli
from fj_forwarder.storage.slot_store import SlotStore
from tests.unit.spool_files import EIGHT
from tests.users import as_user, changes_users, shared_spool

NAME = "20261120T080000Z.fjs"
GROUP = 54_321


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_modes_are_set_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        with Spool(tmp_path / "own") as own:
            own.append(domain="d")
        with Spool(tmp_path / "shared", group=os.getgid()) as shared:
            shared.append(domain="d")
        reason = Reason("s.fjs", 0, 1, "frame", "bad-key", "why", 0)
        DeadDirectory(tmp_path / "shared").put(b"x", reason)
    finally:
        os.umask(old)
    assert mode_of(tmp_path / "own") == 0o750
    assert [mode_of(path) for path in (tmp_path / "own").iterdir()] == [0o640]
    assert mode_of(tmp_path / "shared") == 0o2770
    assert mode_of(tmp_path / "shared/dead") == 0o2770
    files = [path for path in (tmp_path / "shared").rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {mode_of(path) for path in files} == {0o660}


def test_setgid_directory_is_shared_without_being_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    with Spool(tmp_path) as spool:
        spool.append(domain="d")
    assert [mode_of(path) for path in tmp_path.glob("*.fjs")] == [0o660]


def test_group_that_there_is_not_is_named(tmp_path: Path) -> None:
    names = {group.gr_name for group in grp.getgrall()}
    assert "no-such-group" not in names
    with pytest.raises(BadRequestError, match="no-such-group"):
        Spool(tmp_path, group="no-such-group")


@changes_users
def test_spool_is_shared_by_three_users_of_a_group() -> None:
    with shared_spool(GROUP) as directory:
        check_three_users(directory)


def check_three_users(directory: Path) -> None:
    def append() -> None:
        with Spool(directory, durable=True) as spool:
            spool.append(domain="d", value=os.getuid())

    def forward() -> None:
        store = SlotStore(str(directory), slot_seconds=1, put_aside=lambda *_: True)
        store.refresh(0)
        taken = store.take(10, 1000, 0)
        assert len(taken) == 3, taken
        for record in taken:
            record.slot.erase(record.offset)
        DeadDirectory(directory).put(b"x", Reason("s.fjs", 0, 1, "frame", "bad-key", "", 0))
        assert store.finish_old(10**17, 10, 1000) == []
        assert list(directory.glob("*.fjs")) == []

    assert [as_user(uid, GROUP, append) for uid in (54_001, 54_002, 54_003)] == [0, 0, 0]
    (slot,) = directory.glob("*.fjs")
    assert (mode_of(slot), slot.stat().st_gid) == (0o660, GROUP)
    assert as_user(54_004, GROUP, forward) == 0
    assert as_user(54_005, GROUP, forward) == 1, "of no use to whom the spool is empty"
    shutil.rmtree(directory)


# --- what is nothing of a spool -----------------------------------------------------------------


def litter(directory: Path, victim: Path) -> set[str]:
    """Put down what may not be touched; return the names."""
    (directory / NAME).symlink_to(victim)
    os.mkfifo(directory / "20261120T090000Z.fjs")
    (directory / "20261120T100000Z.fjs").mkdir()
    (directory / "notes.txt").write_text("mine")
    (directory / "20261120T110000Z.fjs.bak").write_bytes(victim.read_bytes())
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(directory / "other"))
    return {path.name for path in directory.iterdir()}


def test_links_and_other_files_are_left_alone_named_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, elsewhere = tmp_path / "spool", tmp_path / "elsewhere"
    with Spool(elsewhere) as spool:
        spool.append(domain="d")
    (victim,) = elsewhere.glob("*.fjs")
    before = victim.read_bytes()
    with Spool(directory) as spool:
        for path in directory.iterdir():
            path.unlink()
        names = litter(directory, victim)
        spool.append(domain="d", value=b"good")
    store = SlotStore(str(directory), slot_seconds=60, put_aside=lambda *_: True)
    for look in range(3):
        store.refresh(look * RESCAN_US)
        for record in store.take(10, 1000, 0):
            assert record.slot.name not in names
            record.slot.erase(record.offset)
        store.finish_old(2 * 10**15, 10, 1000)
    store.close()
    assert store.listing.ignored == len(names)
    told = [record.getMessage() for record in caplog.records]
    assert [sum(f"/{name}:" in line for line in told) for name in sorted(names)] == [1] * len(names)
    assert {path.name for path in directory.iterdir()} == names
    assert victim.read_bytes() == before
    status = spool_status(directory)
    assert (status.ignored, status.slots) == (sorted(names), [])
    shown = CliRunner().invoke(cli, ["spool", "status", str(directory), "--json"])
    assert f'"ignored":{len(names)}' in shown.output.replace(" ", "")
    shown = CliRunner().invoke(cli, ["spool", "status", str(directory), "--table"])
    assert f"nothing of a spool: {len(names)} (20261120T080000Z.fjs, " in shown.output
    assert shown.output.count("...)") == 1


REASON = Reason("20261120T080000Z.fjs", 8, 1, "frame", "bad-key", "no such", 0)
DEAD_PIECE = "20261120T080000Z-000000000008-3c8d26c4"


@pytest.mark.parametrize("suffix", [".bin", ".json"])
def test_links_and_fifos_planted_in_dead_are_neither_followed_nor_waited_for(
    tmp_path: Path, suffix: str
) -> None:
    dead, victim = DeadDirectory(tmp_path), tmp_path / "victim"
    victim.write_bytes(b"precious")
    os.mkdir(dead.path)
    planted = Path(dead.path, DEAD_PIECE + suffix + ".tmp")
    for plant in (os.mkfifo, lambda path: path.symlink_to(victim)):
        plant(planted)
        assert dead.put(b"?", REASON) == DEAD_PIECE
        assert not os.path.lexists(planted)
    assert [piece.reason for piece in dead.list()] == [REASON]
    assert victim.read_bytes() == b"precious"
    Path(dead.path, DEAD_PIECE + ".json").unlink()
    os.mkfifo(Path(dead.path, DEAD_PIECE + ".json"))
    assert [piece.reason for piece in dead.list()] == [None]


def test_dead_directory_that_is_a_link_takes_nothing(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    dead = DeadDirectory(tmp_path)
    os.symlink(elsewhere, dead.path)
    with pytest.raises(SpoolFailedError, match="cannot write a dead letter"):
        dead.put(b"?", REASON)
    assert list(elsewhere.iterdir()) == []


def test_lock_that_is_a_fifo_or_a_link_is_not_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "forwarder.lock"
    os.mkfifo(lock)
    assert not spool_status(tmp_path).forwarder_running
    lock.unlink()
    lock.symlink_to("elsewhere")
    with pytest.raises(SpoolFailedError, match=r"forwarder\.lock"):
        spool_status(tmp_path)


def test_writer_follows_no_link_that_has_the_name_of_its_slot(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / NAME).symlink_to(victim)
    with (
        Spool(tmp_path / "spool", clock=ManualClock(EIGHT)) as spool,
        pytest.raises(SpoolFailedError, match="link"),
    ):
        spool.append(domain="d")
    assert victim.read_bytes() == b"precious"


# --- what is deleted under a writer --------------------------------------------------------------


@pytest.mark.parametrize("what", ["slot", "directory"])
def test_append_after_a_deletion_makes_the_slot_anew_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """The very next one, however lately its path was looked at: the clock does not advance."""
    directory = tmp_path / "spool"
    with Spool(directory, clock=ManualClock(EIGHT)) as spool:
        for number in range(2):
            spool.append(domain="d", id=f"gone-{number}", timestamp_us=number)
        if what == "slot":
            for path in directory.glob("*.fjs"):
                path.unlink()
        else:
            shutil.rmtree(directory)
        with caplog.at_level(logging.WARNING, "fastjournal.spool"):
            for number in range(3):
                spool.append(domain="d", id=f"kept-{number}", timestamp_us=number)
    assert sum(slot.pending for slot in spool_status(directory).slots) == 3
    assert mode_of(directory) == 0o750
    (told,) = caplog.records
    assert "deleted" in told.getMessage()
    assert ".fjs" in told.getMessage()
