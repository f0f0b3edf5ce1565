"""Shards of jobs: which task folds the records of a job, by its id. Pure.

The home of a job is a hash of its id, so records of one job meet without any exchange. An entry
that compaction, a KICK or a lease writes again goes on under a new id, whose records need the state
of the old one. So ids that are linked in this way form a component, and all of it goes where the
one of its ids is at home that was there before: the others *move*. Links are few: one for each
entry that was written again.

The number of shards is a power of two, so that the jobs of a shard of another number are in one
shard, or in some whole ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.format.layout import JOB_ID_BYTES
from fastjournal.spark.decoding.byte_arrays import Mask, Numbers

SHARD_JOBS = 250_000
"""Live jobs of a shard, about: a fold has so many in memory."""
SHARD_BYTES = 128 * 1024 * 1024
"""Bytes of segments that a fold takes a part of a shard of, about."""
SHARDS_MAX = 1024
LINKS_SCHEMA = pa.schema([("old", pa.binary(JOB_ID_BYTES)), ("new", pa.binary(JOB_ID_BYTES))])
"""An old id, and one that may go on for it."""
_ODD, _HALF = np.uint64(0x2545F4914F6CDD1D), np.uint64(32)


def shards_for(jobs: int, size: int, parallel: int) -> int:
    """Return the number of shards.

    Args:
        jobs: Live jobs before the segments.
        size: Bytes of the segments.
        parallel: Tasks that may run at once.
    """
    wanted = max(-(-jobs // SHARD_JOBS), -(-size // SHARD_BYTES), parallel, 1)
    return min(1 << (wanted - 1).bit_length(), SHARDS_MAX)


def homes_of(ids: pa.Array, shards: int) -> Numbers:
    """Return the shard that each job is at home in; the files of a state go by it.

    Args:
        ids: Ids of jobs, of ``JOB_ID_BYTES``, none of them null.
        shards: Number of shards.
    """
    if shards == 1 or not len(ids):
        return np.zeros(len(ids), np.int64)
    words = np.frombuffer(ids.buffers()[1], "<u8")
    words = words[2 * ids.offset : 2 * (ids.offset + len(ids))].reshape(-1, 2)
    mixed = words[:, 0] * _ODD ^ words[:, 1]
    for _ in range(2):
        # ids need not be random: each of their bits changes the low ones
        mixed = (mixed ^ mixed >> _HALF) * _ODD
    found: Numbers = (mixed >> _HALF).astype(np.int64) % shards
    return found


class Moves(msgspec.Struct):
    """Jobs that are folded in another shard than that of their home."""

    ids: pa.Array
    shards: Numbers
    stands: Mask
    """Whether the job may be alive before the segments; otherwise they create it."""

    def __len__(self) -> int:
        return len(self.ids)

    def shards_of(self, ids: pa.Array, homes: Numbers) -> Numbers:
        """Return the shard of each job, given its home."""
        places = pc.index_in(ids, self.ids)
        found = places.fill_null(-1).to_numpy()
        return np.where(found >= 0, self.shards[found], homes) if len(self) else homes

    @property
    def table(self) -> pa.Table:
        """These as an Arrow table."""
        columns = [self.ids, pa.array(self.shards), pa.array(self.stands)]
        return pa.table(columns, ["id", "shard", "stands"])

    @classmethod
    def of_table(cls, table: pa.Table) -> Moves:
        """Return those of such a table."""
        id_, shard, stands = (column.combine_chunks() for column in table.columns)
        return cls(id_, shard.to_numpy(), stands.to_numpy(zero_copy_only=False))


def no_moves() -> Moves:
    """Return none."""
    return find_moves([], 1)


def find_moves(links: Sequence[pa.Table], shards: int) -> Moves:
    """Return the jobs that move.

    Args:
        links: Tables of ``LINKS_SCHEMA``, of all segments.
        shards: Number of shards.
    """
    found = pa.concat_tables([LINKS_SCHEMA.empty_table(), *links]).combine_chunks()
    old, new = (column.combine_chunks() for column in found.columns)
    ids = pa.concat_arrays([old, new]).unique()
    ends = [pc.index_in(side, ids).to_numpy().astype(np.int64) for side in (old, new)]
    roots = _roots(len(ids), *ends)
    stands = np.ones(len(ids), np.bool_)
    stands[ends[1]] = False
    # where none was there before, as behind a gap, any will do
    leads = roots.copy()
    members = np.flatnonzero(stands)
    leads[roots[members]] = members
    homes = homes_of(ids, shards)
    goal = homes[leads[roots]]
    chosen = np.flatnonzero(goal != homes)
    return Moves(ids.take(pa.array(chosen)), goal[chosen], stands[chosen])


def _roots(count: int, ones: Numbers, others: Numbers) -> Numbers:
    """Return the smallest member of each node's component, for edges between two arrays of nodes.

    Each round at least halves a chain: its ends hook on to smaller ones, then all go to the root.
    """
    roots = np.arange(count)
    while True:
        first, second = roots[ones], roots[others]
        if np.array_equal(first, second):
            return roots
        np.minimum.at(roots, np.maximum(first, second), np.minimum(first, second))
        while not np.array_equal(roots, above := roots[roots]):
            roots = above
