"""Vectorised columns of the view ``records``: a function for each, from record arrays to Arrow.

Names and types are those of ``decoding.view_columns``. The place of an irregular record is
null; the reader fills it from the record by record reader.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from fastjournal.cmdlog.format.layout import JOB_ID_BYTES, Command
from fastjournal.spark.decoding.byte_arrays import OFFSET_MAX, as_latin1
from fastjournal.spark.decoding.vectorised.chunk import Chunk
from fastjournal.spark.decoding.vectorised.entry_columns import VECTORS_OF_ENTRIES
from fastjournal.spark.decoding.vectorised.vector_column import VectorColumn, nothing
from fastjournal.spark.decoding.view_columns import (
    ARROW_TYPES,
    COMMAND_NAMES,
    MICROSECONDS_MAX,
    TIMESTAMPS,
)

_NAMES = {command.value: name for command, name in COMMAND_NAMES.items()}
_COMMANDS = pa.array([_NAMES.get(number) for number in range(256)], pa.string())


# --- columns of the record ------------------------------------------------------------------------


def _segment(chunk: Chunk) -> pa.Array:
    return pa.array(np.full(len(chunk.arrays), chunk.segment, np.int32))


def _offset(chunk: Chunk) -> pa.Array:
    return pa.array(chunk.arrays.start)


def _size(chunk: Chunk) -> pa.Array:
    size = chunk.arrays.behind - chunk.arrays.start
    return pa.array(np.minimum(size, OFFSET_MAX).astype(np.int32))


def _time(chunk: Chunk) -> pa.Array:
    instants, there, _ = chunk.arrays.times
    there = there & (instants >= TIMESTAMPS.start) & (instants < TIMESTAMPS.stop)
    return pa.array(instants, pa.int64(), mask=~there).cast(ARROW_TYPES["time"])


def _time_us(chunk: Chunk) -> pa.Array:
    instants, there, _ = chunk.arrays.times
    return pa.array(instants, pa.int64(), mask=~there)


def _command(chunk: Chunk) -> pa.Array:
    return _COMMANDS.take(pa.array(chunk.arrays.command))


def _job_id(chunk: Chunk) -> pa.Array:
    return chunk.job_id


def _target(chunk: Chunk) -> pa.Array:
    return chunk.target


def _raw(chunk: Chunk) -> pa.Array:
    return chunk.arrays.segment.binary(chunk.arrays.start, chunk.arrays.behind)


def _raw_target(chunk: Chunk) -> pa.Array:
    at = chunk.arrays.target
    return chunk.arrays.segment.binary(at, at + JOB_ID_BYTES)


def _half(first: int) -> Callable[[Chunk], pa.Array]:
    def column(chunk: Chunk) -> pa.Array:
        at = chunk.arrays.target + first
        return pa.array(chunk.arrays.segment.unsigned64(at).view(np.int64))

    return column


# --- columns of jobs and results ------------------------------------------------------------------


def _of_job(name: str, kind: str) -> Callable[[Chunk], pa.Array]:
    def column(chunk: Chunk) -> pa.Array:
        jobs = chunk.arrays.jobs
        return chunk.numbers(jobs.rows, getattr(jobs, name).numbers, jobs.valid, kind)

    return column


def _priority(chunk: Chunk) -> pa.Array:
    jobs = chunk.arrays.jobs
    zigzag = jobs.priority.numbers.astype(np.int64)
    return chunk.numbers(jobs.rows, zigzag >> 1 ^ -(zigzag & 1), jobs.valid, "long")


def _name(chunk: Chunk) -> pa.Array:
    jobs = chunk.arrays.jobs
    return as_latin1(chunk.slices(jobs.rows, jobs.name._replace(valid=jobs.valid)))


def _payload(chunk: Chunk) -> pa.Array:
    jobs = chunk.arrays.jobs
    return chunk.slices(jobs.rows, jobs.payload._replace(valid=jobs.valid))


def _time_of_job(name: str) -> Callable[[Chunk], pa.Array]:
    def column(chunk: Chunk) -> pa.Array:
        jobs = chunk.arrays.jobs
        instants, there, _ = getattr(jobs, name)
        return chunk.numbers(jobs.rows, instants, jobs.valid & there, "long")

    return column


def _result(chunk: Chunk) -> pa.Array:
    results = chunk.arrays.results
    return chunk.slices(results.rows, results.result._replace(valid=results.valid))


# --- columns of operations ------------------------------------------------------------------------


def _operation(chunk: Chunk) -> pa.Array:
    heads = chunk.arrays.heads
    indices = np.zeros(len(chunk.arrays), np.int32)
    indices[heads.rows] = np.where(heads.lease, 1, 2)
    indices[chunk.arrays.link_operations.rows] = 3
    return pa.array([None, "lease", "batch", "link"], pa.string()).take(pa.array(indices))


def _following(chunk: Chunk) -> pa.Array:
    heads = chunk.arrays.heads
    return chunk.numbers(heads.rows, heads.following, np.ones(len(heads.rows), np.bool_), "int")


def _token(chunk: Chunk) -> pa.Array:
    numbers = np.minimum(chunk.token, np.uint64(MICROSECONDS_MAX)).astype(np.int64)
    return pa.array(numbers, mask=~chunk.is_leased)


def _lease_token(chunk: Chunk) -> pa.Array:
    count = len(chunk.arrays)
    offsets = np.arange(0, 8 * (count + 1), 8, dtype=np.int32)
    data = chunk.token.astype(">u8")
    found = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    missing = ~chunk.is_leased | (chunk.arrays.command != Command.START_ATTEMPT)
    return found.take(pa.array(np.arange(count, dtype=np.int32), mask=missing))


VECTOR_COLUMNS: dict[str, VectorColumn] = {
    "segment": VectorColumn(_segment, contents=False, patched=False),
    "offset": VectorColumn(_offset, contents=False, patched=False),
    "size": VectorColumn(_size, contents=False, patched=False),
    "time": VectorColumn(_time, contents=False),
    "time_us": VectorColumn(_time_us, contents=False),
    "command": VectorColumn(_command, contents=False, patched=False),
    "job_id": VectorColumn(_job_id, contents=False, patched=False),
    "_raw": VectorColumn(_raw, contents=False, patched=False),
    "name": VectorColumn(_name),
    "job_priority": VectorColumn(_priority),
    "ttr_ms": VectorColumn(_of_job("ttr_ms", "long")),
    "ttl_ms": VectorColumn(_of_job("ttl_ms", "long")),
    "max_attempts": VectorColumn(_of_job("max_attempts", "int")),
    "max_fails": VectorColumn(_of_job("max_fails", "int")),
    "payload": VectorColumn(_payload),
    "scheduled_us": VectorColumn(_time_of_job("not_before")),
    "job_created_us": VectorColumn(_time_of_job("created")),
    "result": VectorColumn(_result),
    "target": VectorColumn(_target, operations=True),
    "_target": VectorColumn(_raw_target, operations=True),
    "_high": VectorColumn(_half(0), operations=True),
    "_low": VectorColumn(_half(8), operations=True),
    "operation": VectorColumn(_operation, operations=True),
    "following": VectorColumn(_following, operations=True),
    "token": VectorColumn(_token, operations=True),
    "_token": VectorColumn(_lease_token, operations=True),
    "number": VectorColumn(nothing("long"), operations=True),
    "_chain": VectorColumn(nothing("bytes"), operations=True),
    **VECTORS_OF_ENTRIES,
}
"""Columns but those of the whole segment: ``_corrupt``, ``_ours``, ``_bytes``, ``_crc32c``,
``_doubt``."""
