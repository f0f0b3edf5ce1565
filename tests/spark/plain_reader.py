"""Reader of segments record by record: the oracle of the vectorised reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import Batch, End, Lease
from fastjournal.cmdlog.recovery.scan import RecordRun, scan_segment
from fastjournal.spark.decoding.rows import RecordRow, damaged_row, read_bytes, row_of
from fastjournal.spark.decoding.vectorised import vectorised_reader
from fastjournal.spark.storage.files import SegmentFile


def read_segment(files: Any, segment: SegmentFile, *, permissive: bool) -> Iterator[RecordRow]:
    """Yield the rows of one segment, in order.

    A torn tail of a segment that is still written to is no damage: its rows are left out.

    Args:
        files: The pyarrow file system that it is on.
        segment: Which one.
        permissive: Damage becomes a row with ``corrupt``; otherwise it ends the reading.

    Raises:
        LogCorruptError: Damage, with path and offset, where not ``permissive``.
        LogFailedError: The file cannot be read.
    """
    yield from segment_rows(read_bytes(files, segment), segment, permissive)


def read_data(
    data: bytes, segment: SegmentFile, names: Sequence[str], *, permissive: bool
) -> Iterator[pa.RecordBatch]:
    """Yield what the vectorised reader makes of a segment that is on no disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectorised_reader, "read_bytes", lambda *_: data)
        yield from vectorised_reader.read_batches(None, segment, names, permissive=permissive)


def segment_rows(data: bytes, segment: SegmentFile, permissive: bool) -> Iterator[RecordRow]:
    """Yield the rows of a segment that has been read; see ``read_segment``."""
    scan = scan_segment(data)
    damage = [] if segment.open and scan.torn else scan.damage[::-1]
    for run in scan.runs:
        while damage and damage[-1].offset < run.start:
            yield damaged_row(segment, damage.pop(), permissive)
        yield from _read_run(data, segment, run, permissive, last=run is scan.runs[-1])
    while damage:
        yield damaged_row(segment, damage.pop(), permissive)


def _read_run(
    data: bytes, segment: SegmentFile, run: RecordRun, permissive: bool, *, last: bool
) -> Iterator[RecordRow]:
    """Yield the rows of a run; an unfinished group at the end of the log is left out.

    The records of a lease follow their operation directly, a batch may hold such a lease.
    """
    group: list[tuple[RecordRow, int, int, int]] = []

    def rows_of_group() -> Iterator[RecordRow]:
        for row, *place in group:
            if row.corrupt is not None and not permissive:
                # raises the error, which is none in a group that is left out
                row_of(data, segment, *place, permissive=False)
            yield row

    token: int | None = None
    leased = awaited = ended = 0
    for index, (body, end) in enumerate(zip(run.bodies, run.ends, strict=True)):
        offset = run.offset(index)
        row = row_of(data, segment, offset, body, end, permissive=True)
        awaited, ended = max(awaited - 1, 0), max(ended - 1, 0)
        if leased and row.record is not None and row.record.command == Command.START_ATTEMPT:
            leased -= 1
            row.token = token
        elif isinstance(row.operation, Lease):
            leased, token = row.operation.following, row.operation.token
        else:
            # In the place of a start-attempt: damage took the rest of the group.
            leased = 0
            if isinstance(row.operation, Batch):
                awaited = row.operation.following
            elif isinstance(row.operation, End):
                ended = max(ended, row.operation.following)
        group.append((row, offset, body, end))
        if not leased and not awaited and not ended:
            yield from rows_of_group()
            group.clear()
    if not (last and segment.last):
        yield from rows_of_group()
