"""Lease tokens of start-attempts: each belongs to the lease before it, also of an earlier chunk.

A lease says how many start-attempts follow. Those belong to it that come before any other record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fastjournal.cmdlog.format.operation_records import Lease
from fastjournal.spark.decoding.byte_arrays import Numbers, Offsets, Unsigned
from fastjournal.spark.decoding.rows import RecordRow
from fastjournal.spark.decoding.vectorised.chunk import Chunk


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
        """Begin records behind damage, or the first ones: no start-attempt belongs to a lease."""
        self._awaited = 0

    def assign(self, chunk: Chunk, rows: Mapping[int, RecordRow]) -> None:
        """Assign their tokens to the leases and start-attempts of a chunk.

        Args:
            chunk: Gets the tokens.
            rows: Its records that were decoded one by one; their start-attempts get them too.
        """
        is_start = chunk.arrays.is_start
        leases = self._leases(chunk, rows)
        # the first record behind each lease that is no start-attempt
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
    """Return so many places behind each of some, one after the other: 5 and 2 are 6, 7."""
    total = np.cumsum(count)
    steps = np.arange(int(total[-1])) - np.repeat(total - count, count)
    return np.repeat(place + 1, count) + steps
