"""State of the table of events: live jobs at the end of a commit, in a file for each shard.

    EVENTS/_state/000000003-<run>/part-00000.parquet     jobs of shard 0 that are at home there
    EVENTS/_state/000000003-<run>/moved-00000.parquet    jobs of shard 0 that are at home elsewhere

The next commit may have another number of shards: each task reads the files of which its jobs may
be in, batch by batch, and takes its own. The state of an earlier release is one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from fastjournal.spark.history.event_rows import JOB_SCHEMA, LiveJob, job_table, table_jobs
from fastjournal.spark.history.job_shards import Moves, homes_of
from fastjournal.spark.storage.table_files import TableFiles

_BATCH_JOBS = 65_536


class StoredState(NamedTuple):
    """Files of a state."""

    path: str
    """Directory, or the one file."""
    shards: int
    """Number of shards; 0: it is one file."""
    moved: tuple[int, ...]
    """Shards with a file of jobs that are at home elsewhere."""


def write_jobs(
    files: TableFiles, path: str, jobs: Mapping[bytes, LiveJob], shard: int, shards: int
) -> bool:
    """Write the live jobs of a shard; return whether some are at home elsewhere."""
    sinks = [pa.BufferOutputStream() for _ in range(2)]
    count = 0
    with (
        pa.parquet.ParquetWriter(sinks[0], JOB_SCHEMA, compression="zstd") as own,
        pa.parquet.ParquetWriter(sinks[1], JOB_SCHEMA, compression="zstd") as moved,
    ):
        items = iter(jobs.items())
        while part := dict(islice(items, _BATCH_JOBS)):
            table = job_table(part)
            at_home = homes_of(table.column("job_id").combine_chunks(), shards) == shard
            own.write_table(table.filter(pa.array(at_home)))
            moved.write_table(table.filter(pa.array(~at_home)))
            count += int((~at_home).sum())
    files.put(f"{path}/part-{shard:05d}.parquet", sinks[0].getvalue().to_pybytes())
    if count:
        files.put(f"{path}/moved-{shard:05d}.parquet", sinks[1].getvalue().to_pybytes())
    return count > 0


def read_jobs(
    files: TableFiles, state: StoredState, shard: int, shards: int, moves: Moves
) -> dict[bytes, LiveJob]:
    """Return the live jobs of a shard by identifier.

    Args:
        files: Where the state is.
        state: State before the segments.
        shard: The shard.
        shards: Number of shards now.
        moves: Jobs that are folded elsewhere than at home.

    Raises:
        LogFailedError: A file cannot be read.
    """
    found = dict[bytes, LiveJob]()
    for path in _paths(state, shard, shards, moves):
        data = pa.BufferReader(files.read(path))
        for batch in pa.parquet.ParquetFile(data).iter_batches(_BATCH_JOBS):
            ids = batch.column("job_id")
            chosen = moves.shards_of(ids, homes_of(ids, shards)) == shard
            if chosen.any():
                found |= table_jobs(pa.Table.from_batches([batch.filter(pa.array(chosen))]))
    return found


def _paths(state: StoredState, shard: int, shards: int, moves: Moves) -> Iterator[str]:
    if not state.shards:
        yield state.path
        return
    common = min(state.shards, shards)
    parts = set(range(shard % common, state.shards, common))
    coming = moves.ids.filter(pa.array(moves.stands & (moves.shards == shard)))
    parts.update(np.unique(homes_of(coming, state.shards)).tolist())
    for part in sorted(parts):
        yield f"{state.path}/part-{part:05d}.parquet"
    for part in state.moved:
        yield f"{state.path}/moved-{part:05d}.parquet"
