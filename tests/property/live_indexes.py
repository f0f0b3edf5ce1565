"""Live indexes that are taken while an engine goes on, and the replay of the same segments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastjournal.cmdlog.format.envelope import is_ours, unpack_envelope
from fastjournal.cmdlog.format.layout import SegmentInfo, pack_position, segment_name
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.live_index import LIVE_NAME, LiveChanges, LiveIndex, LiveIndexWriter
from fastjournal.cmdlog.recovery import workq_jobs
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry, replayed_entry
from fastjournal.cmdlog.snapshot import read_manifest
from fastjournal.disk import Disk
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.engine.store import Store

Rows = dict[int, dict[str, Any]]
"""Position of the record of each live entry, to what the entry is."""

LOG = "/log"
CHANGED = LiveChanges.__struct_fields__[:-1]


class TakenIndex:
    """A live index that is being taken, of segments that were sealed just now.

    Args:
        store: Entries, as the segments leave them.
        sealed: All segments.
        files: Their bytes.
        next_segment: Number of the segment that the log goes on with.
    """

    def __init__(
        self, store: Store, sealed: list[SegmentInfo], files: list[bytes], next_segment: int
    ) -> None:
        self.files = {info.number: data for info, data in zip(sealed, files, strict=True)}
        self._store = store
        self._written: list[bytes] = []
        self._writer = LiveIndexWriter(self._written.append, 1, sealed)
        self.capture = store.begin_capture(next_segment)

    def step(self, number: int) -> bool:
        """Walk over so many entries; return whether the index is whole."""
        capture = self.capture
        if not capture.walked:
            capture.step(number)
        for run in capture.take_runs():
            self._writer.add_run(*run)
        return capture.walked

    def finish(self) -> bytes:
        """Return the file."""
        while not self.step(1000):
            pass
        self._store.end_capture()
        assert self._writer.finish().entries == self.capture.entries
        return b"".join(self._written)

    def check(self) -> Rows:
        """Finish it, and assert that it says what the replay of the segments says; return that."""
        found, expected = indexed(self.finish(), self.files), replayed(self.files)
        assert found == expected, differences(found, expected)
        return found


def indexed(data: bytes, files: dict[int, bytes]) -> Rows:
    """Return the rows of a live index, and of the records that it names in these segments."""

    def read(place: int, size: int) -> bytes:
        return data[place : place + size]

    index = LiveIndex.open(read, len(data), "LIVE")
    rows: Rows = {}
    serials = set[int]()
    for segment in index.segments:
        records = index.read_records(read, segment.number)
        for offset in records.offsets:
            position = pack_position(segment.number, offset)
            entry = entry_of(files[segment.number], offset, position)
            row = fields_of(entry)
            changes = records.changes.get(offset)
            if changes is not None:
                row |= {name: getattr(changes, name) for name in CHANGED}
                if isinstance(changes.value, tuple):
                    kept, size = changes.value
                    row["value"] = entry.value[:kept].ljust(size, b"\0")
                elif changes.value is not None:
                    row["value"] = changes.value
            serials.add(row["arrival"])
            if entry.more.foreign:
                row["arrival"] = 0
            rows[position] = row
    assert len(rows) == len(serials) == index.entries
    return rows


def entry_of(data: bytes, offset: int, position: int) -> ReplayedEntry:
    """Return the entry that a record carries, as that alone tells it."""
    record, end = decode_record(data[offset:])
    if not is_ours(record.payload):
        return workq_jobs.replayed_job(record, position, end)
    return replayed_entry(unpack_envelope(record.payload), record.job_id, position, end)


def replayed(files: dict[int, bytes]) -> Rows:
    """Return the rows of the replay of these segments."""
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    for number, data in files.items():
        disk.create(f"{LOG}/{segment_name(number)}").write(data)
    found = recover(disk, LOG, now_us=1)
    assert not found.diagnostics
    return {job.position: fields_of(job) for job in found.state.jobs.values()}


def fields_of(job: ReplayedEntry) -> dict[str, Any]:
    """Return what an entry is, without the serial number of a job of workq: a start gives it."""
    row = {name: getattr(job, name) for name in (*CHANGED, "value", "value_type", "job_id")}
    return row | {"arrival": 0} if job.more.foreign else row


def assert_live_index(disk: Disk, path: str) -> int:
    """Assert that the live index of a snapshot says what replay of it gives; return its entries."""
    segments = read_manifest(disk, path).segments
    files = {one.number: disk.read(f"{path}/{one.name}") for one in segments}
    found = indexed(disk.read(f"{path}/{LIVE_NAME}"), files)
    expected = replayed(files)
    assert found == expected, differences(found, expected)
    return len(found)


def differences(found: Rows, expected: Rows) -> str:
    """Tell in what two results differ."""

    def lines() -> Iterator[str]:
        for position in sorted(found.keys() | expected.keys()):
            was, is_ = expected.get(position), found.get(position)
            if was is None or is_ is None:
                yield f"{position:x} only {'found' if was is None else 'replayed'}: {was or is_}"
            else:
                yield from (
                    f"{position:x} {was['key']!r} {name}: found {is_[name]!r}, not {was[name]!r}"
                    for name in was
                    if was[name] != is_[name]
                )

    return "\n".join(lines())
