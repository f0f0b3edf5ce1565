"""Files of ``dead/`` that could not be written: they keep no space."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.spool import DeadDirectory, Reason
from fastjournal.spool.forwarder_status import write_forwarder_status
from fj_forwarder.delivery import Delivery
from fj_forwarder.reporting import Connection, Reporter
from fj_forwarder.sending.delivery_engine import DeliveryEngine

REASON = Reason("20261120T080000Z.fjs", 8, 3, "damage", "torn", "a torn write", 5)
START_US = 1_795_161_600_000_000


def engine() -> DeliveryEngine:
    return DeliveryEngine(in_flight_max=10, random=Random(1))


def delivery(directory: Path) -> Delivery:
    return Delivery(str(directory), slot_seconds=3600, engine=engine(), now_us=START_US)


@pytest.mark.parametrize("call", ["fsync", "rename", "fchmod"])
@pytest.mark.parametrize("calls_before", [0, 1])
def test_dead_letter_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, calls_before: int
) -> None:
    """Its first file, or its second one."""
    left, real = calls_before, getattr(os, call)

    def full(*args: object, **options: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **options)

    dead = DeadDirectory(tmp_path)
    (tmp_path / "dead").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(SpoolFailedError, match="ENOSPC"):
            dead.put(b"raw", REASON)
    assert [path.name for path in (tmp_path / "dead").glob("*.tmp")] == []
    name = dead.put(b"raw", REASON)
    assert sorted(os.listdir(tmp_path / "dead")) == [f"{name}.bin", f"{name}.json"]


def test_start_of_the_forwarder_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    delivery(tmp_path).close()
    assert os.listdir(tmp_path) == [], "no dead/ is made for that"
    dead = tmp_path / "dead"
    dead.mkdir()
    names = ["a.bin", "a.json", "notes.tmp", "b.bin.tmp.gz"]
    for name in [*names, "b.bin.tmp", "b.json.tmp"]:
        (dead / name).write_bytes(b"x")
    (dead / "c.bin.tmp").mkdir()
    (dead / "d.json.tmp").symlink_to(dead / "a.json")
    delivery(tmp_path).close()
    assert sorted(os.listdir(dead)) == sorted([*names, "c.bin.tmp", "d.json.tmp"])


def test_status_file_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = delivery(tmp_path)
    reporter = Reporter(str(tmp_path), run, engine(), Connection([]))
    reporter.write()
    assert reporter.latest is not None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(SpoolFailedError, match="ENOSPC"):
        write_forwarder_status(str(tmp_path), reporter.latest)
    assert os.listdir(tmp_path) == ["status.json"]
    run.close()
