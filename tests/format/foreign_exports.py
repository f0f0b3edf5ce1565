"""Exports of snapshots as journals of other queues, read back by the readers."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from fastjournal.cmdlog.recovery.inspect_log import inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import Disk
from fastjournal.foreign import Item, open_beanstalkd, open_kestrel, open_workq
from fastjournal.foreign.beanstalkd import VERSION, VERSION_OLD, BinlogVersion
from fastjournal.foreign.formats import Format
from fastjournal.foreign.journal_export import JournalExport, export_journal
from fastjournal.keys import parse_journal_key
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import START_US, SegmentBuilder

NOW = START_US + 3_600_000_000
READERS: dict[Format, Any] = {
    Format.BEANSTALKD: open_beanstalkd,
    Format.KESTREL: open_kestrel,
    Format.WORKQ: open_workq,
}


class Target(NamedTuple):
    """Format of an export, and the version of its binlogs."""

    format: Format
    binlog_version: BinlogVersion = VERSION


TARGETS = {
    "beanstalkd": Target(Format.BEANSTALKD),
    "beanstalkd-5": Target(Format.BEANSTALKD, VERSION_OLD),
    "kestrel": Target(Format.KESTREL),
    "workq": Target(Format.WORKQ),
}
each_target = pytest.mark.parametrize("to", TARGETS.values(), ids=TARGETS)


class Work(NamedTuple):
    """Entry that waits or is buried, as far as a journal of another queue can hold it."""

    domain: bytes
    priority: int
    instant: int
    value: bytes
    expires: int
    buried: bool


def snapshot_of(disk: Disk, *segments: SegmentBuilder, directory: str = "") -> str:
    """Write a log of these segments, and return a snapshot of it."""
    log = f"{directory}/log"
    disk.mkdir(log)
    for number, segment in enumerate(segments, 1):
        file = disk.create(f"{log}/{number:09d}.log")
        file.write(bytes(segment))
        file.close()
    found = inspect_log(disk, log, ReplayState())
    assert found.diagnostics == []
    return take_snapshot(disk, log, f"{directory}/snapshots", found.segments, NOW)


def export(disk: Disk, snapshot: str, to: Target, destination: str = "/out") -> JournalExport:
    """Export a snapshot."""
    return export_journal(
        disk, snapshot, destination, to.format, now_us=NOW, binlog_version=to.binlog_version
    )


def read_items(disk: Disk, to: Target) -> list[Item]:
    """Return the items of what was exported, which has no faults.

    A Kestrel without items has no file, and its directory is not taken for a journal.
    """
    if to.format is Format.KESTREL and not disk.listdir("/out"):
        return []
    with READERS[to.format](disk, "/out") as journal:
        assert journal.faults == []
        return list(journal.items())


def exported(
    to: Target, *segments: SegmentBuilder
) -> tuple[JournalExport, list[Work], SimulatedDisk]:
    """Export a log of these segments, and read the journal back."""
    disk = SimulatedDisk()
    done = export(disk, snapshot_of(disk, *segments), to)
    return done, [work_of(item) for item in read_items(disk, to)], disk


def work_of(item: Item) -> Work:
    """Return what an item holds."""
    parts = parse_journal_key(item.key)
    assert parts is not None
    return Work(*parts[:3], item.value, item.expires, item.reason is not None)
