"""Parcels: rows on their way between shards, Arrow tables that Spark moves as bytes, a table a row.

Spark shuffles rows of its own one by one, and each one costs several times of what its part of a
table costs. No pyspark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from fastjournal.spark.decoding.byte_arrays import Numbers

PARCEL_COLUMNS = "shard INT, name STRING, rows BINARY"
PARCEL_SCHEMA = pa.schema([("shard", pa.int32()), ("name", pa.string()), ("rows", pa.binary())])
"""A parcel: rows of the relation ``name`` for one shard, as an Arrow stream."""
_BATCH_BYTES = 8 * 1024 * 1024
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Relations: TypeAlias = dict[str, pa.Table]
"""Relations that came to a shard, by name; those without rows are missing."""


class Sent(NamedTuple):
    """Rows of a relation, each with the shard that it goes to."""

    name: str
    table: pa.Table
    shards: Numbers


def shard_of(numbers: Numbers, shards: int) -> Numbers:
    """Return the shard of each hash, place or other number."""
    mixed = (numbers.view(np.uint64) * _MULTIPLIER) >> np.uint64(33)
    found: Numbers = (mixed % np.uint64(shards)).astype(np.int64)
    return found


def numbers_of(table: pa.Table, name: str) -> Numbers:
    """Return a column without nulls."""
    return np.ascontiguousarray(table.column(name).to_numpy(), np.int64)


def by_column(name: str, table: pa.Table, column: str, shards: int) -> Sent:
    """Send each row to the shard of a number in it."""
    return Sent(name, table, shard_of(numbers_of(table, column), shards))


def to_one(name: str, table: pa.Table, shard: int) -> Sent:
    """Send all rows to one shard."""
    return Sent(name, table, np.full(len(table), shard, np.int64))


def pack_parcels(sent: Iterable[Sent]) -> Iterator[pa.RecordBatch]:
    """Yield the parcels that rows make, one for each relation and shard."""
    gathered: list[tuple[int, str, bytes]] = []
    size = 0
    for name, table, shards in sent:
        for shard, rows in cut_rows(table, shards):
            data = _encode(rows)
            if gathered and size + len(data) > _BATCH_BYTES:
                yield _batch(gathered)
                gathered, size = [], 0
            gathered.append((shard, name, data))
            size += len(data)
    if gathered:
        yield _batch(gathered)


def unpack_parcels(batches: Iterable[pa.RecordBatch]) -> dict[int, Relations]:
    """Return the relations in parcels, by shard."""
    found: dict[int, dict[str, list[pa.Table]]] = {}
    for shard, name, table in open_parcels(batches):
        found.setdefault(shard, {}).setdefault(name, []).append(table)
    return {
        shard: {name: pa.concat_tables(tables) for name, tables in named.items()}
        for shard, named in found.items()
    }


def open_parcels(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, str, pa.Table]]:
    """Yield the shard, the name and the rows of each parcel."""
    for batch in batches:
        shards, names = batch.column("shard").to_pylist(), batch.column("name").to_pylist()
        for shard, name, rows in zip(shards, names, batch.column("rows"), strict=True):
            yield shard, name, pa.ipc.open_stream(rows.as_buffer()).read_all()


def cut_rows(table: pa.Table, shards: Numbers) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each shard, in their order; no rows: nothing."""
    if not len(table):
        return
    if (shards == shards[0]).all():
        yield int(shards[0]), table
        return
    order = np.argsort(shards, kind="stable")
    ordered = shards[order]
    table = table.take(pa.array(order))
    cuts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    for first, stop in pairwise(cuts):
        yield int(ordered[first]), table.slice(first, stop - first)


def _encode(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _batch(parcels: list[tuple[int, str, bytes]]) -> pa.RecordBatch:
    columns = zip(*parcels, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, PARCEL_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PARCEL_SCHEMA)
