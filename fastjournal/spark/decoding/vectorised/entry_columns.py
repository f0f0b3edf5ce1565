"""Vectorised columns of entries: from envelopes, and from completions and failures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.format.layout import Command
from fastjournal.spark.decoding.byte_arrays import (
    ByteStrings,
    Integers,
    Mask,
    Offsets,
    as_text,
)
from fastjournal.spark.decoding.record_kinds import REMOVALS, RecordKind
from fastjournal.spark.decoding.vectorised.chunk import Chunk
from fastjournal.spark.decoding.vectorised.envelopes import ENVELOPE_FIELDS
from fastjournal.spark.decoding.vectorised.fields import Links
from fastjournal.spark.decoding.vectorised.vector_column import VectorColumn
from fastjournal.spark.decoding.view_columns import ARROW_TYPES

_KINDS = np.full(256, RecordKind.CHANGE, np.int64)
_KINDS[list(REMOVALS)] = RecordKind.REMOVAL


def _kind(chunk: Chunk) -> pa.Array:
    arrays = chunk.arrays
    kind = _KINDS[arrays.command]
    kind[arrays.entries.rows] = RecordKind.ENTRY
    kind[arrays.entries.rows[arrays.entries.links.of]] = RecordKind.LINKED
    kind[arrays.link_operations.rows] = RecordKind.LINK
    valid = np.ones(len(arrays), np.bool_)
    valid[arrays.heads.rows] = False
    return chunk.numbers(np.arange(len(arrays)), kind, valid, "int")


def _hash_of_entry(name: str) -> Callable[[Chunk], pa.Array]:
    def column(chunk: Chunk) -> pa.Array:
        arrays = chunk.arrays
        field = arrays.entries.fields[name]
        assert isinstance(field, ByteStrings)
        valid = arrays.entries.valid if field.none is None else arrays.entries.valid & ~field.none
        end = np.where(valid, field.end, field.start)
        hashes = arrays.segment.hashes(field.start, end)
        return chunk.numbers(arrays.entries.rows, hashes, valid, "long")

    return column


_hash_of_key = _hash_of_entry("key")


def _key_hash(chunk: Chunk) -> pa.Array:
    results = chunk.arrays.results
    end = np.where(results.tombstone, results.content.end, results.content.start)
    hashes = chunk.arrays.segment.hashes(results.content.start, end)
    completed = chunk.numbers(results.rows, hashes, results.tombstone, "long")
    links = chunk.arrays.link_operations
    hashes = chunk.arrays.segment.hashes(links.key.start, links.key.end)
    linked = chunk.numbers(links.rows, hashes, links.key.valid, "long")
    return pc.coalesce(_hash_of_key(chunk), completed, linked)


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


def _value_bytes(chunk: Chunk) -> pa.Array:
    entries = chunk.arrays.entries
    field = entries.fields["value"]
    assert isinstance(field, ByteStrings)
    there = entries.valid & ~field.nils
    return chunk.numbers(entries.rows, field.end - field.start, there, "long")


def _mask_of_entries(chunk: Chunk) -> Mask:
    found = np.zeros(len(chunk.arrays), np.bool_)
    found[chunk.arrays.entries.rows] = chunk.arrays.entries.valid
    return found


def _foreign(chunk: Chunk) -> pa.Array:
    return pa.array(np.zeros(len(chunk.arrays), np.bool_), mask=~_mask_of_entries(chunk))


def _valid_links(chunk: Chunk) -> Links:
    """Return the further keys in envelopes that are valid."""
    entries = chunk.arrays.entries
    valid = entries.valid[entries.links.of]
    return Links(*(column[valid] for column in entries.links))


def _listed(chunk: Chunk, of: Offsets, there: Mask, values: pa.Array, kind: str) -> pa.Array:
    """Return lists of values as an Arrow array.

    Args:
        chunk: The records.
        of: Number of the item, among the entries, that each value belongs to.
        there: Which records have a list; it is null for all others.
        values: The values, in order.
        kind: Kind of the column.
    """
    counts = np.zeros(len(chunk.arrays) + 1, np.int64)
    np.add.at(counts, chunk.arrays.entries.rows[of] + 1, 1)
    ends = np.cumsum(counts).astype(np.int32)
    offsets = pa.array(ends, mask=np.append(~there, False))
    return pa.ListArray.from_arrays(offsets, values).cast(ARROW_TYPES[kind])


def _links(chunk: Chunk) -> pa.Array:
    links = _valid_links(chunk)
    values = chunk.arrays.segment.binary(links.start, links.end)
    return _listed(chunk, links.of, _mask_of_entries(chunk), values, "list")


def _link_hashes(chunk: Chunk) -> pa.Array:
    links = _valid_links(chunk)
    values = pa.array(chunk.arrays.segment.hashes(links.start, links.end), pa.int64())
    has_links = np.zeros(len(chunk.arrays), np.bool_)
    has_links[chunk.arrays.entries.rows[links.of]] = True
    return _listed(chunk, links.of, has_links, values, "numbers")


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


VECTORS_OF_ENTRIES: dict[str, VectorColumn] = {
    "_kind": _entry(_kind, "taken"),
    "_key": _entry(_key_hash, "key"),
    "_uri": _entry(_hash_of_entry("uri"), "uri"),
    "_links": _entry(_link_hashes, "taken"),
    "key": _entry(_key, "key"),
    "domain": _entry(_domain, "key"),
    "priority": _entry(_journal_priority, "key"),
    "id": _entry(_id, "key"),
    "foreign": _entry(_foreign, "key"),
    "uri": _entry(_bytes_of_entry("uri"), "uri"),
    "links": _entry(_links, "links"),
    "value_type": _entry(_number_of_entry("value_type", "int"), "value_type"),
    "value": _entry(_bytes_of_entry("value"), "value"),
    "_value_bytes": _entry(_value_bytes, "value"),
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
"""Columns of entries, by name."""
