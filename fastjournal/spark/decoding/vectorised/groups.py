"""Atomic record groups in a segment: where whole groups end, and the tokens of start-attempts.

A lease leads its start-attempts, an end its bare record, and a batch the other records of its
append. A group that is cut by the end of the log does not count. Only the operations are looked at,
for no other record leads a group.

A start-attempt has the token of the lease before it, also of an earlier chunk. A lease says how
many start-attempts follow. Those belong to it that come before any other record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from fastjournal.cmdlog.format.envelope import MAGIC_BYTES
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    FIELDS_AT,
    SHORT_MAX,
    SIMPLE_BODY_BYTES,
    Command,
)
from fastjournal.cmdlog.format.operation_records import Batch, End, Lease
from fastjournal.spark.decoding.byte_arrays import (
    END_BYTES,
    Mask,
    Numbers,
    Offsets,
    SegmentBytes,
    Unsigned,
)
from fastjournal.spark.decoding.rows import RecordRow, row_of
from fastjournal.spark.decoding.vectorised.chunk import Chunk
from fastjournal.spark.decoding.vectorised.decode import BATCH, END, LEASE, RecordArrays, tags_at
from fastjournal.spark.decoding.vectorised.frames import Frames, valid_frames
from fastjournal.spark.storage.files import SegmentFile

_HeadPlace: TypeAlias = tuple[int, int]
"""An operation that leads a group: its place, and the number of records that follow."""
_TEXT, _TEXT_BITS = 0xA0, 0xE0
"""msgpack: first byte of a text of up to 31 bytes, and the bits that identify it."""


def find_group_end(
    data: bytes, segment: SegmentFile, first: int, limit: int, *, forced: bool
) -> int:
    """Return the offset after the last whole group that ends at or before a limit.

    Args:
        data: The segment as far as it goes.
        segment: Which one.
        first: Offset where groups begin that count; it is returned if there is none.
        limit: Offset.
        forced: If none ends at or before the limit, take the next one.
    """
    arrays = SegmentBytes(data)
    frames = valid_frames(data, arrays)
    behind = frames.end + CRC_BYTES

    def end_within(count: int) -> int:
        """Return the end of the last whole group of the first records."""
        part = Frames(*(column[:count] for column in frames))
        whole = whole_groups(data, segment, arrays, part) if count else 0
        return max(int(behind[whole - 1]), first) if whole else first

    found = end_within(int(np.searchsorted(behind, limit, "right")))
    if found > first or not forced:
        return found
    counts = range(int(np.searchsorted(behind, first, "right")) + 1, len(behind) + 1)
    index = bisect_left(counts, True, key=lambda count: end_within(count) > first)
    return end_within(counts[index]) if index < len(counts) else first


def whole_groups(data: bytes, segment: SegmentFile, arrays: SegmentBytes, frames: Frames) -> int:
    """Return the number of records before an unfinished group at the end of some records.

    Args:
        data: The segment.
        segment: Which one.
        arrays: The same bytes.
        frames: Adjacent records.
    """
    count = len(frames.start)
    leases, batches, ends = _group_heads(data, segment, arrays, frames)
    is_start = arrays.byte(frames.body) == Command.START_ATTEMPT
    is_start &= frames.end - frames.body == SIMPLE_BODY_BYTES
    others = np.append(np.flatnonzero(~is_start), count)
    is_open = np.zeros(count + 1, np.int64)
    for index, following in leases:
        stop = int(others[np.searchsorted(others, index, "right")])
        _mark(is_open, index, min(index + following, stop))
    stops = [index for index, _ in batches[1:]] + [count]
    for (index, following), stop in zip(batches, stops, strict=False):
        _mark(is_open, index, min(index + following, stop))
    for index, following in ends:
        _mark(is_open, index, min(index + following, count))
    closed = np.flatnonzero(np.cumsum(is_open)[:-1] == 0)
    return int(closed[-1]) + 1 if len(closed) else 0


def _group_heads(
    data: bytes, segment: SegmentFile, arrays: SegmentBytes, frames: Frames
) -> tuple[list[_HeadPlace], list[_HeadPlace], list[_HeadPlace]]:
    """Return the leases, the batches and the ends among records, in order."""
    places = np.flatnonzero(_may_be_operations(arrays, frames))
    start, body, end = (column[places] for column in frames)
    records = RecordArrays(arrays, start, body, end)
    heads = records.heads
    rows, following = places[heads.rows], heads.following
    leases = list(zip(rows[heads.lease], following[heads.lease], strict=True))
    batches = list(zip(rows[~heads.lease], following[~heads.lease], strict=True))
    ends: list[_HeadPlace] = []
    for index in np.flatnonzero(records.irregular & ~_lead_nothing(records)):
        at = (int(column[index]) for column in (start, body, records.behind))
        operation = row_of(data, segment, *at, permissive=True).operation
        if isinstance(operation, Lease):
            leases.append((places[index], operation.following))
        elif isinstance(operation, Batch):
            batches.append((places[index], operation.following))
        elif isinstance(operation, End):
            ends.append((places[index], operation.following))
    return sorted(leases), sorted(batches), ends


def _may_be_operations(arrays: SegmentBytes, frames: Frames) -> Mask:
    """Return which records may be operations: jobs with their name, or with a name of rare form."""
    command = arrays.byte(frames.body)
    is_job = (command == Command.ADD) | (command == Command.SCHEDULE)
    at = frames.body + FIELDS_AT
    found: Mask = arrays.are_operations(at) | (arrays.byte(at) > SHORT_MAX)
    found |= frames.end + CRC_BYTES > arrays.size - END_BYTES
    found &= is_job
    return found


def _lead_nothing(records: RecordArrays) -> Mask:
    """Return which records of rare form are other operations, by their tags."""
    jobs = records.jobs
    found = np.zeros(len(records), np.bool_)
    at = jobs.payload.start + MAGIC_BYTES + 1
    tags = tags_at(records.segment, at)
    is_text = (records.segment.byte(at) & _TEXT_BITS) == _TEXT
    is_other: Mask = jobs.valid & is_text & (tags != LEASE) & (tags != BATCH)
    is_other &= records.segment.unsigned32(at) != END
    found[jobs.rows] = is_other
    found &= records.behind <= records.segment.size - END_BYTES
    return found


def _mark(is_open: Numbers, first: int, stop: int) -> None:
    """Count a group that continues after the records from ``first`` to before ``stop``."""
    if stop > first:
        is_open[first] += 1
        is_open[stop] -= 1


class _ChunkLeases(NamedTuple):
    """Leases in the order of their places; the first is the last one of the chunk before."""

    place: Offsets
    """Number of the record in the chunk; -1 for the first."""
    awaited: Numbers
    """Start-attempts that follow, as the lease says."""
    token: Unsigned


class TokenAssignment:
    """Tokens of the start-attempts of a segment, chunk by chunk."""

    def __init__(self) -> None:
        self._token = 0
        """Token of the last lease."""
        self._awaited = 0
        """Start-attempts that may still follow it."""

    def begin_run(self) -> None:
        """Begin records after damage, or the first ones: no start-attempt belongs to a lease."""
        self._awaited = 0

    def assign(self, chunk: Chunk, rows: Mapping[int, RecordRow]) -> None:
        """Assign their tokens to the leases and start-attempts of a chunk.

        Args:
            chunk: Gets the tokens.
            rows: Its records that were decoded one by one; their start-attempts get them too.
        """
        is_start = chunk.arrays.is_start
        leases = self._leases(chunk, rows)
        # the first record after each lease that is no start-attempt
        others = np.append(np.flatnonzero(~is_start), len(is_start))
        stop = others[np.searchsorted(others, leases.place, "right")]
        followed = np.minimum(leases.awaited, stop - leases.place - 1)
        starts = _places_behind(leases.place, followed)
        chunk.token[starts] = np.repeat(leases.token, followed)
        chunk.is_leased[starts] = True
        chunk.token[leases.place[1:]] = leases.token[1:]
        chunk.is_leased[leases.place[1:]] = True
        for index, row in rows.items():
            if is_start[index] and chunk.is_leased[index]:
                row.token = int(chunk.token[index])
        self._token = int(leases.token[-1])
        is_open = int(stop[-1]) == len(is_start)
        self._awaited = int(leases.awaited[-1] - followed[-1]) if is_open else 0

    def _leases(self, chunk: Chunk, rows: Mapping[int, RecordRow]) -> _ChunkLeases:
        """Return the leases of a chunk, those that were decoded one by one among them."""
        heads = chunk.arrays.heads
        found = [(-1, self._awaited, self._token)]
        found += zip(
            heads.rows[heads.lease].tolist(),
            heads.following[heads.lease].tolist(),
            heads.token[heads.lease].tolist(),
            strict=True,
        )
        for index, row in rows.items():
            if isinstance(row.operation, Lease):
                found.append((index, row.operation.following, row.operation.token))
        place, awaited, token = zip(*sorted(found), strict=True)
        return _ChunkLeases(
            np.array(place, np.int64), np.array(awaited, np.int64), np.array(token, np.uint64)
        )


def _places_behind(place: Offsets, count: Numbers) -> Offsets:
    """Return so many positions after each of some, one after the other: 5 and 2 are 6, 7."""
    total = np.cumsum(count)
    steps = np.arange(int(total[-1])) - np.repeat(total - count, count)
    return np.repeat(place + 1, count) + steps
