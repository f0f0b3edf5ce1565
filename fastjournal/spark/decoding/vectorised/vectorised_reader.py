"""Vectorised reader of one segment: runs of valid records in chunks, each an Arrow batch.

Damage, and records of rare forms, go through the decoder of single records
(``fastjournal.spark.decoding.rows``).

The reader looks at no more of a record than the asked-for columns need. So a record whose checksum
is right but whose contents cannot be understood, which no known program writes, is found only where
a column of its contents, or ``_corrupt``, is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa

from fastjournal.cmdlog.recovery.scan import CorruptRegion, scan_segment
from fastjournal.spark.decoding.byte_arrays import Offsets, SegmentBytes
from fastjournal.spark.decoding.rows import RecordRow, damaged_row, read_bytes, row_of
from fastjournal.spark.decoding.vectorised.chunk import Chunk, parts_of
from fastjournal.spark.decoding.vectorised.columns import VECTOR_COLUMNS
from fastjournal.spark.decoding.vectorised.decode import ENVELOPE_FIELDS, RecordArrays
from fastjournal.spark.decoding.vectorised.frames import (
    Frames,
    GroupSpan,
    RecordBounds,
    SegmentSlice,
    find_frames,
    frames_of,
    right_checksums,
    slice_bounds,
)
from fastjournal.spark.decoding.vectorised.groups import TokenAssignment, whole_groups
from fastjournal.spark.decoding.view_columns import READABLE, to_batch
from fastjournal.spark.storage.files import SegmentFile


def read_batches(
    files: Any,
    segment: SegmentFile,
    names: Sequence[str],
    *,
    permissive: bool,
    span: GroupSpan | None = None,
    part: SegmentSlice | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one segment, in order.

    Args:
        files: The pyarrow file system that it is on.
        segment: Which one.
        names: Columns to build, of ``fastjournal.spark.decoding.view_columns.READABLE``.
        permissive: Damage becomes a row with ``_corrupt``; otherwise it ends the reading.
        span: Only these whole groups of the segment; None: all of it.
        part: Only this slice of it; None: all of it.

    Raises:
        LogCorruptError: Damage, with path and offset, where not ``permissive``.
        LogFailedError: The file cannot be read.
    """
    data = read_bytes(files, segment)
    if span is not None:
        span.check(data, segment.path)
        data = data[: span.stop]
        segment = msgspec.structs.replace(segment, open=False, last=False)
    bounds = RecordBounds() if span is None else RecordBounds(span.first)
    reader = _VectorisedReader(data, segment, names, bounds, part, permissive=permissive)
    for batch in reader.batches():
        if len(batch):
            yield batch


class _VectorisedReader:
    """Reader of a segment's bytes; see ``read_batches``."""

    def __init__(
        self,
        data: bytes,
        segment: SegmentFile,
        names: Sequence[str],
        bounds: RecordBounds,
        part: SegmentSlice | None,
        *,
        permissive: bool,
    ) -> None:
        self._bounds = bounds
        """Where the records are that are asked for."""
        self._part = part
        self._data = data
        self._segment = segment
        self._permissive = permissive
        self._names = names
        wanted = [VECTOR_COLUMNS[name] for name in names if name in VECTOR_COLUMNS]
        everything = "_corrupt" in names
        self._last_field = max((column.last_field for column in wanted), default=-1)
        if everything:
            self._last_field = len(ENVELOPE_FIELDS)
        self._contents = everything or any(column.contents for column in wanted)
        self._operations = everything or any(column.operations for column in wanted)
        self._tokens = TokenAssignment()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the columns that were asked for."""
        data, segment = self._data, self._segment
        arrays = SegmentBytes(data)
        frames = find_frames(arrays)
        is_right = segment.crc32c is not None and segment.crc32c == google_crc32c.value(data)
        if frames is not None and (
            is_right or right_checksums(data, arrays, frames.start, frames.end).all()
        ):
            self._take_part(arrays, [frames])
            yield from self._read_run(arrays, frames, last=segment.last)
            return
        scan = scan_segment(data)
        runs = [frames_of(run) for run in scan.runs]
        self._take_part(arrays, runs)
        damage = [] if segment.open and scan.torn else scan.damage[::-1]
        damage = [region for region in damage if self._bounds.holds(region.offset)]
        for index, frames in enumerate(runs, 1):
            while damage and damage[-1].offset < frames.start[0]:
                yield self._damaged(damage.pop())
            last = segment.last and index == len(runs)
            yield from self._read_run(arrays, frames, last=last)
        while damage:
            yield self._damaged(damage.pop())

    def _take_part(self, arrays: SegmentBytes, runs: Sequence[Frames]) -> None:
        if self._part is not None:
            self._bounds = slice_bounds(self._part, self._segment.bytes, arrays, runs)

    def _damaged(self, damage: CorruptRegion) -> pa.RecordBatch:
        row = damaged_row(self._segment, damage, self._permissive)
        return to_batch([row], [READABLE[name] for name in self._names])

    def _read_run(
        self, data: SegmentBytes, frames: Frames, *, last: bool
    ) -> Iterator[pa.RecordBatch]:
        self._tokens.begin_run()
        count = len(frames.start)
        if last:
            count = whole_groups(self._data, self._segment, data, frames)
        chosen = self._bounds.within(frames.start[:count])
        start, body, end = (column[chosen] for column in frames)
        for part in parts_of(start):
            yield self._read_chunk(data, start[part], body[part], end[part])

    def _read_chunk(
        self, data: SegmentBytes, start: Offsets, body: Offsets, end: Offsets
    ) -> pa.RecordBatch:
        arrays = RecordArrays(data, start, body, end, self._last_field)
        arrays.decode(contents=self._contents, operations=self._operations)
        rows = {int(row): self._row(arrays, int(row)) for row in np.flatnonzero(arrays.irregular)}
        chunk = Chunk(arrays, self._segment.number)
        if self._operations:
            self._tokens.assign(chunk, rows)
        columns = [self._column(name, chunk, rows) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, self._names)

    def _row(self, arrays: RecordArrays, index: int) -> RecordRow:
        """Return one record, decoded alone."""
        places = (int(column[index]) for column in (arrays.start, arrays.body, arrays.behind))
        return row_of(self._data, self._segment, *places, permissive=self._permissive)

    def _column(self, name: str, chunk: Chunk, rows: dict[int, RecordRow]) -> pa.Array:
        count = len(chunk.arrays)
        kind = READABLE[name].arrow
        column = VECTOR_COLUMNS.get(name)
        array = pa.nulls(count, kind) if column is None else column.array(chunk)
        replaced = rows
        if column is not None and not column.patched:
            replaced = {index: row for index, row in rows.items() if row.record is None}
        if not replaced:
            return array
        value = READABLE[name].value
        values = pa.array([value(row) for row in replaced.values()], kind)
        places = np.arange(count)
        places[list(replaced)] = count + np.arange(len(replaced))
        return pa.concat_arrays([array, values]).take(pa.array(places))
