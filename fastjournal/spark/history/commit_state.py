"""State of the table of events: live jobs at the end of a commit, in a file for each shard.

    EVENTS/_state/000000003-<run>/part-00000.parquet     jobs of shard 0 that are at home there
    EVENTS/_state/000000003-<run>/moved-00000.parquet    jobs of shard 0 that are at home elsewhere

The next commit may have another number of shards: each task reads the files of which its jobs may
be in, batch by batch, and takes its own. The state of an earlier release is one file.

The commit has the CRC-32C of each file. A file that is missing or damaged ends the next run with
its path. Where the operator has no copy of it, a file ``<state>.lost`` beside the state says that
the history goes on without: no job is known then, as behind a gap, which the next commit names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from fastjournal.errors import LogCorruptError
from fastjournal.spark.history.event_rows import JOB_SCHEMA, LiveJob, job_table, table_jobs
from fastjournal.spark.history.job_shards import Moves, homes_of
from fastjournal.spark.storage.table_files import TableFiles

LOST = ".lost"
"""Ending of the file that says that a state is lost."""
_BATCH_JOBS = 65_536


_PART, _MOVED = "part", "moved"


class StoredState(NamedTuple):
    """Files of a state."""

    path: str
    """Directory, or the one file."""
    shards: int
    """Number of shards; 0: it is one file."""
    moved: tuple[int, ...]
    """Shards with a file of jobs that are at home elsewhere."""
    checksums: Mapping[str, str]
    """CRC-32C of each file by its name; empty: an earlier release has written it."""


def write_jobs(
    files: TableFiles, path: str, jobs: Mapping[bytes, LiveJob], shard: int, shards: int
) -> dict[str, str]:
    """Write the live jobs of a shard; return the checksums of the files by their names.

    There is one of jobs that are at home in the shard, and one of others, if there are such jobs.
    """
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
    found = {}
    for sink, kind in zip(sinks, (_PART, _MOVED) if count else (_PART,), strict=False):
        name, data = _name(kind, shard), sink.getvalue().to_pybytes()
        files.put(f"{path}/{name}", data)
        found[name] = f"{google_crc32c.value(data):08x}"
    return found


def moved_shards(checksums: Mapping[str, str], shards: int) -> list[int]:
    """Return the shards with a file of jobs that are at home elsewhere."""
    return [shard for shard in range(shards) if _name(_MOVED, shard) in checksums]


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
        LogCorruptError: A file is missing or damaged.
        LogFailedError: A file cannot be read.
    """
    found = dict[bytes, LiveJob]()
    for path in _paths(state, shard, shards, moves):
        for batch in _batches(files, path, state):
            ids = batch.column("job_id")
            chosen = moves.shards_of(ids, homes_of(ids, shards)) == shard
            if chosen.any():
                found |= table_jobs(pa.Table.from_batches([batch.filter(pa.array(chosen))]))
    return found


def _batches(files: TableFiles, path: str, state: StoredState) -> Iterator[pa.RecordBatch]:
    """Yield the jobs of a file."""
    parent, _, name = path.rpartition("/")
    if name not in files.names(parent):
        raise _damaged("the state of the table of events lacks a file", path, state)
    data = files.read(path)
    if state.checksums and state.checksums.get(name) != f"{google_crc32c.value(data):08x}":
        raise _damaged("the state of the table of events has another checksum", path, state)
    with _translating(path, state):
        found = pa.parquet.ParquetFile(pa.BufferReader(data))
        # a state of an earlier release, without checksums, may be damaged anywhere
        if not found.schema_arrow.equals(JOB_SCHEMA):
            raise _damaged("the state of the table of events has other columns", path, state)
        batches = list(found.iter_batches(_BATCH_JOBS, use_threads=False))
    yield from batches


@contextmanager
def _translating(path: str, state: StoredState) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        text = f"the state of the table of events cannot be understood: {error}"
        raise _damaged(text, path, state) from error


def _damaged(text: str, path: str, state: StoredState) -> LogCorruptError:
    return LogCorruptError(
        text,
        path=path,
        hint="copy it from a backup of the output; without one create the empty file "
        f"{state.path}{LOST} and run fj-nightly again: it goes on, and names a gap",
    )


def _name(kind: str, shard: int) -> str:
    return f"{kind}-{shard:05d}.parquet"


def _paths(state: StoredState, shard: int, shards: int, moves: Moves) -> Iterator[str]:
    if not state.shards:
        yield state.path
        return
    common = min(state.shards, shards)
    parts = set(range(shard % common, state.shards, common))
    coming = moves.ids.filter(pa.array(moves.stands & (moves.shards == shard)))
    parts.update(np.unique(homes_of(coming, state.shards)).tolist())
    for part in sorted(parts):
        yield f"{state.path}/{_name(_PART, part)}"
    for part in state.moved:
        yield f"{state.path}/{_name(_MOVED, part)}"
