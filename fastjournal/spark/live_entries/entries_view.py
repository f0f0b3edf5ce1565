"""View ``entries``: what was live at the end of a log, computed by Spark from its records.

1. Executors read the facts of all records, a segment a partition (``facts``): no values. Spark
   shuffles these slim rows once, by job.
2. Steps on shards find the records that make the live entries (``sharded_plan``). Between two
   steps Spark moves parcels of rows (``execution.shard_rows``). Nothing comes to the driver.
3. Executors fetch the chosen records from their segments. Entries that other records changed, or
   that share keys with other live ones, are replayed by the daemon's own rules
   (``label_replay``), those of one component in one place (``replay_parcels``).

All of this is one plan without an action: Spark computes it when rows are asked for. Parts that it
needs several times it computes once, because it reuses equal shuffles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel

from fastjournal.spark.decoding.byte_arrays import Numbers
from fastjournal.spark.decoding.view_columns import sql_schema
from fastjournal.spark.execution.shard import Shard, ShardStep
from fastjournal.spark.execution.shard_rows import (
    PARCEL_COLUMNS,
    PARCEL_SCHEMA,
    Relations,
    numbers_of,
    pack_parcels,
    unpack_parcels,
)
from fastjournal.spark.live_entries.facts import PLACE_BITS, offset_of
from fastjournal.spark.live_entries.fetch import (
    Base,
    read_entries,
    read_replayed,
)
from fastjournal.spark.live_entries.partition_replay import ENTRY_COLUMNS
from fastjournal.spark.live_entries.replay_parcels import by_label, replay_parcels
from fastjournal.spark.live_entries.sharded_plan import find_records, send_facts
from fastjournal.spark.storage.files import LogDirectory, SegmentFile, resolve

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

PARTITION_BYTES = 48 * 1024 * 1024
"""Bytes of the log for each shard."""
_DAMAGE_COLUMNS = "segment INT, offset BIGINT, _corrupt STRING"
_NAMES = tuple(column.name for column in ENTRY_COLUMNS)


class _SparkShards:
    """Relations in parcels, divided into shards; each step has a new one."""

    def __init__(self, frame: DataFrame, number: int) -> None:
        self.frame = frame.repartitionById(number, "shard")
        self._number = number

    def then(self, step: ShardStep) -> _SparkShards:
        """Run a step on each shard."""
        run = partial(run_step, step=step, shards=self._number)
        return _SparkShards(self.frame.mapInArrow(run, PARCEL_COLUMNS), self._number)

    def with_others(
        self, other: _SparkShards, step: ShardStep, *, into: int | None = None
    ) -> _SparkShards:
        """Run a step on each shard of two; send to as many shards, or to another number."""
        number = self._number

        def run(_: Any, one: pa.Table, two: pa.Table) -> pa.Table:
            batches = [*one.to_batches(), *two.to_batches()]
            found = list(run_step(batches, step=step, shards=number))
            return pa.Table.from_batches(found, PARCEL_SCHEMA)

        sides = self.frame.groupBy("shard").cogroup(other.frame.groupBy("shard"))
        frame = sides.applyInArrow(run, PARCEL_COLUMNS)
        return _SparkShards(frame, number if into is None else into)


def entries(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    *,
    mode: str = "failfast",
    names: Sequence[str] = _NAMES,
) -> DataFrame:
    """Return what was live at the end of a log or snapshot, one row an entry.

    Reads the log when rows are asked for: once without values, then the chosen records.

    Args:
        spark: Any session.
        directory: Path or URI.
        mode: ``failfast`` or ``permissive``; the latter has a column ``_corrupt``, and a row for
            every stretch of damage.
        names: Columns to read, in the order of the view; one at least.

    Raises:
        LogCorruptError: A snapshot's files are not those that its manifest lists. Other damage ends
            the query, in mode ``failfast``.
    """
    permissive = mode.lower() == "permissive"
    schema = sql_schema([column for column in ENTRY_COLUMNS if column.name in names])
    source = LogDirectory(directory)
    log = LogFiles(str(directory), {segment.number: segment for segment in source.segments})
    parts = max(-(-sum(one.bytes for one in source.segments) // PARTITION_BYTES), 1)
    chosen = _choose(spark, log, source, parts, permissive=permissive)
    plain = chosen.mapInArrow(partial(fetch_entries, log=log, names=names), schema)
    records = chosen.mapInArrow(
        partial(send_records, log=log, shards=parts, permissive=permissive), PARCEL_COLUMNS
    )
    replay = partial(replay_parcels, names=names)
    replayed = _SparkShards(records, parts).frame.mapInArrow(replay, schema)
    found = plain.unionByName(replayed)
    if permissive:
        damage = chosen.mapInArrow(_tell_damage, _DAMAGE_COLUMNS)
        found = found.unionByName(damage, allowMissingColumns=True)
    return found


class LogFiles(NamedTuple):
    """A log, as the tasks know it."""

    uri: str
    segments: dict[int, SegmentFile]


def _choose(
    spark: SparkSession, log: LogFiles, source: LogDirectory, parts: int, *, permissive: bool
) -> DataFrame:
    """Return the parcels of places of records that make entries, by segment."""
    count = len(log.segments)
    read = spark.range(0, count, 1, max(count, 1)).mapInArrow(
        partial(send_segments, log=log, shards=parts, permissive=permissive), PARCEL_COLUMNS
    )
    facts = _SparkShards(read, parts)
    fetches = max(min(count, parts), 1)
    chosen = find_records(facts, source, shards=parts, fetches=fetches, permissive=permissive).frame
    with _settings(spark, {"spark.sql.adaptive.enabled": "false"}):
        return chosen.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)


@contextmanager
def _settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """Set the session's settings for the block."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


# --- in Spark's workers ---------------------------------------------------------------------------


def run_step(
    batches: Iterable[pa.RecordBatch], *, step: ShardStep, shards: int
) -> Iterator[pa.RecordBatch]:
    """Run a step on what came to a shard."""
    for number, given in unpack_parcels(batches).items():
        with Shard(number, shards, given) as shard:
            yield from pack_parcels(step(shard))


def send_segments(
    batches: Iterable[pa.RecordBatch], *, log: LogFiles, shards: int, permissive: bool
) -> Iterator[pa.RecordBatch]:
    """Send the facts of segments, given by their index."""
    files, _ = resolve(log.uri)
    segments = list(log.segments.values())
    for batch in batches:
        for index in batch.column(0).to_pylist():
            sent = send_facts(files, segments[index], shards, permissive=permissive)
            yield from pack_parcels(sent)


def _places(given: Relations, name: str) -> Iterator[tuple[int, pa.Table]]:
    """Yield each segment with its rows of a relation, in the order of places."""
    if name not in given:
        return
    table = given[name].sort_by("place")
    numbers = table.column("place").to_numpy() >> PLACE_BITS
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for first, stop in pairwise(cuts):
        yield int(numbers[first]), table.slice(first, stop - first)


def _offsets(table: pa.Table) -> Numbers:
    return offset_of(numbers_of(table, "place"))


def fetch_entries(
    batches: Iterable[pa.RecordBatch], *, log: LogFiles, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read the entries at places."""
    files, _ = resolve(log.uri)
    for given in unpack_parcels(batches).values():
        for number, table in _places(given, "plain"):
            yield from read_entries(files, log.segments[number], _offsets(table), names)


def send_records(
    batches: Iterable[pa.RecordBatch], *, log: LogFiles, shards: int, permissive: bool
) -> Iterator[pa.RecordBatch]:
    """Read the records at places, and send them to where they are replayed."""
    files, _ = resolve(log.uri)
    for given in unpack_parcels(batches).values():
        bases = {
            row["segment"] >> PLACE_BITS: Base(row["earlier"], row["ahead"])
            for row in given["bases"].to_pylist()
        }
        for number, table in _places(given, "replayed"):
            records = read_replayed(
                files,
                log.segments[number],
                _offsets(table),
                numbers_of(table, "label"),
                bases[number],
                permissive=permissive,
            )
            yield from pack_parcels(by_label(records, shards))


def _tell_damage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell where damage is, and which segment is missing."""
    schema = pa.schema([("segment", pa.int32()), ("offset", pa.int64()), ("_corrupt", pa.string())])
    for given in unpack_parcels(batches).values():
        for name in ("damage", "missing"):
            for row in given[name].to_pylist() if name in given else ():
                place, note = row["place"], row["note"]
                at = (None, None) if place is None else (place >> PLACE_BITS, offset_of(place))
                text = note if isinstance(note, str) else note.decode()
                columns = [[value] for value in (*at, text)]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)],
                    schema=schema,
                )
