"""Vectorised reader of one segment: runs of valid records in chunks, each an Arrow batch.

Damage, and records of rare forms, go through the record by record reader
(``fastjournal.spark.rows``).

The reader looks at no more of a record than the asked-for columns need. So a record whose checksum
is right but whose contents cannot be understood, which no known program writes, is found only where
a column of its contents, or ``_corrupt``, is asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.format.layout import CRC_BYTES
from fastjournal.cmdlog.format.operation_records import Batch, Lease, SegmentStart
from fastjournal.cmdlog.recovery.removals import doubtful_removals
from fastjournal.cmdlog.recovery.scan import CorruptRegion, Run, scan_segment
from fastjournal.errors import LogCorruptError
from fastjournal.spark.columns import READABLE, to_batch
from fastjournal.spark.files import SegmentFile
from fastjournal.spark.rows import Row, damaged_row, decode_row, read_bytes
from fastjournal.spark.vectorised.byte_arrays import Mask, Numbers, Offsets, SegmentBytes
from fastjournal.spark.vectorised.chunk import Chunk
from fastjournal.spark.vectorised.columns import VECTOR_COLUMNS
from fastjournal.spark.vectorised.decode import ENVELOPE_FIELDS, RecordArrays
from fastjournal.spark.vectorised.frames import Frames, checksums_are_right, find_frames
from fastjournal.spark.vectorised.lease_tokens import LeaseTokens

_Head: TypeAlias = tuple[int, int]
"""An operation that leads a group: its place, and the number of records that follow."""
CHUNK_RECORDS = 32_768
CHUNK_BYTES = 8 * 1024 * 1024
"""A chunk ends at either: memory stays small, whatever the values' size."""


class Span(NamedTuple):
    """Whole groups of a segment's records, and checksums of the segment up to their ends."""

    first: int
    """Offset of the first record; 0: of the segment."""
    stop: int
    """Offset behind the last one."""
    first_crc32c: int | None = None
    stop_crc32c: int | None = None

    def check(self, data: bytes, path: str) -> None:
        """Check that the segment is the one that the span was found in.

        Raises:
            LogCorruptError: It is not.
        """
        for offset, crc32c in ((self.first, self.first_crc32c), (self.stop, self.stop_crc32c)):
            if offset and crc32c is not None and google_crc32c.value(data[:offset]) != crc32c:
                raise LogCorruptError(
                    "the segment was rewritten since a part of it was read",
                    path=path,
                    offset=offset,
                    hint="read an archive or a snapshot, whose segments never change",
                )


def read_batches(
    files: Any,
    segment: SegmentFile,
    names: Sequence[str],
    *,
    permissive: bool,
    commands: frozenset[str | None] | None = None,
    span: Span | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one segment, in order.

    Args:
        files: The pyarrow file system that it is on.
        segment: Which one.
        names: Columns to build, of ``fastjournal.spark.columns.READABLE``.
        permissive: Damage becomes a row with ``_corrupt``; otherwise it ends the reading.
        commands: Only records of these commands; None among them: damage. None: all.
        span: Only a part of the segment; None: all of it.

    Raises:
        LogCorruptError: Damage, with path and offset, where not ``permissive``.
        LogFailedError: The file cannot be read.
    """
    data = read_bytes(files, segment)
    if span is not None:
        span.check(data, segment.path)
        data = data[: span.stop]
        segment = msgspec.structs.replace(segment, open=False, last=False)
    first = 0 if span is None else span.first
    reader = _SegmentReader(data, segment, names, permissive=permissive, first=first)
    for batch in reader.batches():
        if commands is not None:
            chosen = pa.array(list(commands), pa.string())
            batch = batch.filter(pc.is_in(batch.column("command"), chosen))
        if len(batch):
            yield batch.select(names)


def read_data(
    data: bytes, segment: SegmentFile, names: Sequence[str], *, permissive: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment that has been read; see ``read_batches``.

    There may be a column ``command`` besides those that are asked for.
    """
    yield from _SegmentReader(data, segment, names, permissive=permissive).batches()


def find_group_end(
    data: bytes, segment: SegmentFile, first: int, limit: int, *, forced: bool
) -> int:
    """Return the offset behind the last whole group that ends at or before a limit.

    Args:
        data: The segment as far as it goes.
        segment: Which one.
        first: Offset where groups begin that count; it is returned where there is none.
        limit: Offset.
        forced: Where none ends at or before the limit, take the next one.
    """
    reader = _SegmentReader(data, segment, (), permissive=True)
    arrays = SegmentBytes(data)
    frames = find_frames(arrays)
    if frames is None:
        runs = [frames_of(run) for run in scan_segment(data).runs]
        if not runs:
            return first
        frames = Frames(*(np.concatenate(parts) for parts in zip(*runs, strict=True)))
    behind = frames.end + CRC_BYTES

    def end_within(count: int) -> int:
        """Return the end of the last whole group of the first records."""
        part = (column[:count] for column in frames)
        whole = reader._whole_groups(arrays, *part) if count else 0
        return max(int(behind[whole - 1]), first) if whole else first

    found = end_within(int(np.searchsorted(behind, limit, "right")))
    if found > first or not forced:
        return found
    counts = range(int(np.searchsorted(behind, first, "right")) + 1, len(behind) + 1)
    index = bisect_left(counts, True, key=lambda count: end_within(count) > first)
    return end_within(counts[index]) if index < len(counts) else first


class _SegmentReader:
    """Reader of a segment's bytes; see ``read_batches``."""

    def __init__(
        self,
        data: bytes,
        segment: SegmentFile,
        names: Sequence[str],
        *,
        permissive: bool,
        first: int = 0,
    ) -> None:
        self._data = data
        self._start = first
        self._segment = segment
        self._permissive = permissive
        self._names = list(dict.fromkeys((*names, "command")))
        self._crc32c = google_crc32c.value(data)
        wanted = [VECTOR_COLUMNS[name] for name in names if name in VECTOR_COLUMNS]
        everything = "_corrupt" in names
        self._last_field = max((column.last_field for column in wanted), default=-1)
        if everything:
            self._last_field = len(ENVELOPE_FIELDS)
        self._contents = everything or any(column.contents for column in wanted)
        self._operations = (
            everything or "_ours" in names or any(column.operations for column in wanted)
        )
        self._tokens = LeaseTokens()
        self._is_ours = False
        self._is_first = True
        self._doubtful: dict[int, int] = {}
        self._rows: dict[int, Row] = {}
        """Records decoded to find the last group, by their offset, until their chunk comes."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all columns that were asked for, and ``command``."""
        data, segment = self._data, self._segment
        arrays = SegmentBytes(data)
        frames = find_frames(arrays)
        if frames is not None and (
            segment.crc32c == self._crc32c or checksums_are_right(data, arrays, frames)
        ):
            yield from self._read_run(arrays, frames, last=segment.last)
            return
        scan = scan_segment(data)
        damage = [] if segment.open and scan.torn else scan.damage[::-1]
        damage = [region for region in damage if region.offset >= self._start]
        self._doubtful = doubtful_removals(data, scan)
        for run in scan.runs:
            while damage and damage[-1].offset < run.start:
                yield self._damaged(damage.pop())
            frames = frames_of(run)
            yield from self._read_run(arrays, frames, last=segment.last and run is scan.runs[-1])
        while damage:
            yield self._damaged(damage.pop())

    def _damaged(self, damage: CorruptRegion) -> pa.RecordBatch:
        row = damaged_row(self._segment, damage, self._permissive)
        batch = to_batch([row], [READABLE[name] for name in self._names])
        return self._with_file(batch)

    def _read_run(
        self, data: SegmentBytes, frames: Frames, *, last: bool
    ) -> Iterator[pa.RecordBatch]:
        start, body, end = frames
        self._tokens.begin_run()
        count = len(start)
        if last:
            count = self._whole_groups(data, start, body, end)
        first = int(np.searchsorted(start, self._start))
        start, body, end = start[first:count], body[first:count], end[first:count]
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
        ours = self._find_ours(len(arrays), rows)
        columns = [self._column(name, chunk, rows, ours) for name in self._names]
        return self._with_file(pa.RecordBatch.from_arrays(columns, self._names))

    def _row(self, arrays: RecordArrays, index: int) -> Row:
        """Return one record, decoded by itself."""
        start = int(arrays.start[index])
        row = self._rows.pop(start, None)
        if row is None:
            body, behind = int(arrays.body[index]), int(arrays.behind[index])
            try:
                row = decode_row(self._data, self._segment, start, body, behind)
            except LogCorruptError as error:
                region = CorruptRegion(start, behind, error.message)
                row = damaged_row(self._segment, region, self._permissive)
        return row

    def _column(self, name: str, chunk: Chunk, rows: dict[int, Row], ours: Mask) -> pa.Array:
        count = len(chunk.arrays)
        kind = READABLE[name].arrow
        if name == "_ours":
            return pa.array(ours)
        if name == "_doubt":
            found = np.zeros(count, np.int32)
            for offset, doubt in self._doubtful.items():
                found[chunk.arrays.start == offset] = doubt
            return pa.array(found)
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

    def _with_file(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Put size and checksum of the file into the first row of all."""
        if self._is_first and len(batch):
            self._is_first = False
            for name, number in (("_bytes", len(self._data)), ("_crc32c", self._crc32c)):
                if name in self._names:
                    column = pa.array([number] + [None] * (len(batch) - 1), READABLE[name].arrow)
                    batch = batch.set_column(self._names.index(name), name, column)
        return batch

    def _find_ours(self, count: int, rows: dict[int, Row]) -> Mask:
        """Return for each record whether fastjournald wrote the segment so far."""
        ours = np.full(count, self._is_ours)
        for index, row in rows.items():
            if not self._is_ours and isinstance(row.operation, SegmentStart):
                self._is_ours = True
                ours[index:] = True
        return ours

    def _whole_groups(self, data: SegmentBytes, start: Offsets, body: Offsets, end: Offsets) -> int:
        """Return the number of records before an unfinished group at the end of the log."""
        arrays = RecordArrays(data, start, body, end)
        leases, batches = self._group_heads(arrays)
        others = np.append(np.flatnonzero(~arrays.is_start), len(start))
        is_open = np.zeros(len(start) + 1, np.int64)
        for index, following in leases:
            stop = int(others[np.searchsorted(others, index, "right")])
            _mark(is_open, index, min(index + following, stop))
        stops = [index for index, _ in batches[1:]] + [len(start)]
        for (index, following), stop in zip(batches, stops, strict=False):
            _mark(is_open, index, min(index + following, stop))
        closed = np.flatnonzero(np.cumsum(is_open)[:-1] == 0)
        return int(closed[-1]) + 1 if len(closed) else 0

    def _group_heads(self, arrays: RecordArrays) -> tuple[list[_Head], list[_Head]]:
        """Return the leases and the batches among records, in order."""
        heads = arrays.heads
        leases = list(zip(heads.rows[heads.lease], heads.following[heads.lease], strict=True))
        batches = list(zip(heads.rows[~heads.lease], heads.following[~heads.lease], strict=True))
        for index in np.flatnonzero(arrays.irregular):
            row = self._rows[int(arrays.start[index])] = self._row(arrays, int(index))
            operation = row.operation
            if isinstance(operation, Lease):
                leases.append((index, operation.following))
            elif isinstance(operation, Batch):
                batches.append((index, operation.following))
        return sorted(leases), sorted(batches)


def parts_of(start: Offsets) -> Iterator[slice]:
    """Yield the slices of records, which start at these offsets, that make a chunk each."""
    first, count = 0, len(start)
    while first < count:
        stop = int(np.searchsorted(start, start[first] + CHUNK_BYTES, "left"))
        stop = min(max(stop, first + 1), first + CHUNK_RECORDS, count)
        yield slice(first, stop)
        first = stop


def frames_of(run: Run) -> Frames:
    """Return the frames of a run of records that the scan found."""
    behind = np.array(run.ends, np.int64)
    start = np.concatenate((np.array([run.start]), behind[:-1]))
    return Frames(start, np.array(run.bodies, np.int64), behind - CRC_BYTES)


def _mark(is_open: Numbers, first: int, stop: int) -> None:
    """Count a group behind whose records from ``first`` to before ``stop`` more of it follows."""
    if stop > first:
        is_open[first] += 1
        is_open[stop] -= 1
