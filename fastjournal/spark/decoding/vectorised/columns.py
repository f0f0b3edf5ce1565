"""Vectorised columns of the view ``records``: a function for each, from record arrays to Arrow.

Names and types are those of ``decoding.view_columns``. The place of an irregular record is null;
the reader fills it from the decoder of single records.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.format.layout import Command
from fastjournal.spark.decoding.byte_arrays import (
    OFFSET_MAX,
    ByteStrings,
    Integers,
    Mask,
    as_latin1,
    as_text,
)
from fastjournal.spark.decoding.vectorised.chunk import Chunk
from fastjournal.spark.decoding.vectorised.decode import ENVELOPE_FIELDS
from fastjournal.spark.decoding.view_columns import (
    ARROW_TYPES,
    COMMAND_NAMES,
    MICROSECONDS_MAX,
    TIMESTAMPS,
)


class VectorColumn(NamedTuple):
    """A column: its function, and how much of each record it needs."""

    array: Callable[[Chunk], pa.Array]
    last_field: int = -1
    """Number of the last field of envelopes that it needs; -1: none."""
    operations: bool = False
    """Whether it needs operations and the tokens of leases."""
    contents: bool = True
    """Whether it needs more of a record than its frame, command and job id."""
    patched: bool = True
    """Whether it is null for a record that is decoded one by one."""


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


def _number(chunk: Chunk) -> pa.Array:
    # all operations that have one are irregular
    return pa.nulls(len(chunk.arrays), pa.int64())


def _number_of_entry(name: str, kind: str = "long") -> Callable[[Chunk], pa.Array]:
    def column(chunk: Chunk) -> pa.Array:
        arrays = chunk.arrays
        field = arrays.entries.fields.get(name)
        if field is None:
            zeros = np.zeros(len(arrays.entries.rows), np.int64)
            return chunk.numbers(arrays.entries.rows, zeros, arrays.entries.valid, kind)
        assert isinstance(field, Integers)
        return chunk.numbers(arrays.entries.rows, field.numbers, arrays.entries.valid, kind)

    return column


def _bytes_of_entry(name: str) -> Callable[[Chunk], pa.Array]:
    def column(chunk: Chunk) -> pa.Array:
        arrays = chunk.arrays
        field = arrays.entries.fields[name]
        assert isinstance(field, ByteStrings)
        return chunk.slices(arrays.entries.rows, field._replace(valid=arrays.entries.valid))

    return column


def _mask_of_entries(chunk: Chunk) -> Mask:
    found = np.zeros(len(chunk.arrays), np.bool_)
    found[chunk.arrays.entries.rows] = chunk.arrays.entries.valid
    return found


def _foreign(chunk: Chunk) -> pa.Array:
    return pa.array(np.zeros(len(chunk.arrays), np.bool_), mask=~_mask_of_entries(chunk))


def _links(chunk: Chunk) -> pa.Array:
    entries = chunk.arrays.entries
    valid = entries.valid[entries.links.of]
    of, start, end = (column[valid] for column in entries.links)
    counts = np.zeros(len(chunk.arrays) + 1, np.int64)
    np.add.at(counts, entries.rows[of] + 1, 1)
    ends = np.cumsum(counts).astype(np.int32)
    offsets = pa.array(ends, mask=np.append(~_mask_of_entries(chunk), False))
    values = chunk.arrays.segment.binary(start, end)
    return pa.ListArray.from_arrays(offsets, values).cast(ARROW_TYPES["list"])


def _timestamp(chunk: Chunk) -> pa.Array:
    arrays = chunk.arrays
    field = arrays.entries.fields["timestamp"]
    assert isinstance(field, Integers)
    results = arrays.results
    rows = np.concatenate((arrays.entries.rows, results.rows))
    numbers = np.concatenate((field.numbers, results.timestamp))
    return chunk.numbers(
        rows, numbers, np.concatenate((arrays.entries.valid, results.tombstone)), "long"
    )


def _key(chunk: Chunk) -> pa.Array:
    return chunk.arrays.segment.binary(*chunk.keys)


def _domain(chunk: Chunk) -> pa.Array:
    keys, parts = chunk.keys, chunk.key_parts
    results, chosen = chunk.arrays.results, chunk.domains
    start, missing = keys.start.copy(), ~parts.is_journal
    end = np.where(parts.is_journal, parts.colons[0], keys.start)
    rows = results.rows[chosen]
    start[rows], end[rows] = results.content.start[chosen], results.content.end[chosen]
    missing[rows] = False
    return as_text(chunk.arrays.segment.binary(start, end, missing))


def _id(chunk: Chunk) -> pa.Array:
    keys, parts = chunk.keys, chunk.key_parts
    start = np.where(parts.is_journal, parts.colons[2] + 1, keys.start)
    end = np.where(parts.is_journal, keys.end, keys.start)
    return as_text(chunk.arrays.segment.binary(start, end, ~parts.is_journal))


def _journal_priority(chunk: Chunk) -> pa.Array:
    parts, results, chosen = chunk.key_parts, chunk.arrays.results, chunk.domains
    priority, missing = parts.priority.astype(np.int32), ~parts.is_journal
    priority[results.rows[chosen]] = results.priority[chosen].astype(np.int32)
    missing[results.rows[chosen]] = False
    return pa.array(priority, mask=missing)


def _reason(chunk: Chunk) -> pa.Array:
    arrays = chunk.arrays
    results = arrays.results
    is_failure = results.valid & (arrays.command[results.rows] == Command.FAIL)
    start = np.where(results.ours, results.content.start, results.result.start)
    end = np.where(results.ours, results.content.end, results.result.end)
    failures = chunk.slices(results.rows, ByteStrings(start, end, is_failure))
    field = arrays.entries.fields.get("reason")
    if field is None:
        return as_text(failures)
    assert isinstance(field, ByteStrings)
    buried = chunk.slices(arrays.entries.rows, field._replace(valid=arrays.entries.valid))
    return as_text(pc.coalesce(buried, failures))


def _entry(array: Callable[[Chunk], pa.Array], field: str) -> VectorColumn:
    return VectorColumn(array, ENVELOPE_FIELDS.index(field), operations=True)


VECTOR_COLUMNS: dict[str, VectorColumn] = {
    "segment": VectorColumn(_segment, contents=False, patched=False),
    "offset": VectorColumn(_offset, contents=False, patched=False),
    "size": VectorColumn(_size, contents=False, patched=False),
    "time": VectorColumn(_time, contents=False),
    "time_us": VectorColumn(_time_us, contents=False),
    "command": VectorColumn(_command, contents=False, patched=False),
    "job_id": VectorColumn(attrgetter("job_id"), contents=False, patched=False),
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
    "target": VectorColumn(attrgetter("target"), operations=True),
    "operation": VectorColumn(_operation, operations=True),
    "following": VectorColumn(_following, operations=True),
    "token": VectorColumn(_token, operations=True),
    "number": VectorColumn(_number, operations=True),
    "key": _entry(_key, "key"),
    "domain": _entry(_domain, "key"),
    "priority": _entry(_journal_priority, "key"),
    "id": _entry(_id, "key"),
    "foreign": _entry(_foreign, "key"),
    "uri": _entry(_bytes_of_entry("uri"), "uri"),
    "links": _entry(_links, "links"),
    "value_type": _entry(_number_of_entry("value_type", "int"), "value_type"),
    "value": _entry(_bytes_of_entry("value"), "value"),
    "timestamp": _entry(_timestamp, "timestamp"),
    "created": _entry(_number_of_entry("created"), "created"),
    "modified": _entry(_number_of_entry("modified"), "modified"),
    "arrival": _entry(_number_of_entry("arrival"), "arrival"),
    "not_before": _entry(_number_of_entry("not_before"), "not_before"),
    "expires": _entry(_number_of_entry("expires"), "expires"),
    "ttl": _entry(_number_of_entry("ttl"), "ttl"),
    "attempts": _entry(_number_of_entry("attempts", "int"), "attempts"),
    "worked_on_until": _entry(_number_of_entry("token"), "token"),
    "superseded": _entry(_number_of_entry("superseded"), "superseded"),
    "reason": _entry(_reason, "reason"),
}
"""Columns but ``_corrupt``, which no valid record has."""
