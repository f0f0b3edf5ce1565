"""The view ``entries``: what was live at the end of a log, computed by Spark from its records.

1. Executors read the facts of all records, a segment a partition (``spark.entry_facts``): no
   values. Spark shuffles these slim rows once, by job.
2. ``spark.entry_plan`` says in SQL which records make the live entries. Its rounds end by counts:
   nothing else comes to the driver, but one row a segment.
3. When rows are asked for, executors fetch the chosen records from their segments. Entries that
   other records changed, or that share keys with other live ones, are replayed by the daemon's own
   rules (``spark.partition_replay``), those of one component in one place.

The relations that the plan reads several times are on the executors' disks until the frame is
garbage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel

from fastjournal.errors import LogCorruptError
from fastjournal.spark.entry_facts import (
    CHAIN_FACTS,
    FACTS_COLUMNS,
    PLACE_BITS,
    check_facts,
    offset_of,
    read_facts,
)
from fastjournal.spark.entry_fetch import (
    REPLAYED_COLUMNS,
    Base,
    read_entries,
    read_replayed,
    replay_labels,
)
from fastjournal.spark.entry_plan import find_wanted
from fastjournal.spark.files import LogDirectory, SegmentFile, resolve
from fastjournal.spark.partition_replay import ENTRY_ARROW_SCHEMA, ENTRY_SCHEMA
from fastjournal.spark.record_kinds import Kind
from fastjournal.spark.session import translating
from fastjournal.spark.vectorised.byte_arrays import Numbers, Offsets

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

PARTITION_BYTES = 48 * 1024 * 1024
"""Bytes of the log for each partition of a shuffle."""
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_NO_BROADCASTS = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
}
"""A checkpoint keeps the estimated size of its origin: of facts, that of a list of segments."""
_SEGMENT = f"int(shiftright(place, {PLACE_BITS})) AS segment"
_NAMES = tuple(ENTRY_ARROW_SCHEMA.names)


class _Spark:
    """Engine of the plan: Spark, with relations on the disks of the executors."""

    array = "array"
    unnest = "explode"
    hops_max = 8
    rounds_max = 16

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def store(self, name: str, sql: str, **relations: Any) -> DataFrame:
        """Compute a relation, and keep it; see ``entry_plan.Engine``."""
        return self.query(sql, **relations).localCheckpoint(
            eager=True, storageLevel=StorageLevel.DISK_ONLY
        )

    def query(self, sql: str, **relations: Any) -> DataFrame:
        """Return a frame that is not computed; see ``entry_plan.Engine``."""
        return self._spark.sql(sql, **relations)

    def is_empty(self, relation: DataFrame) -> bool:
        """Return whether a relation has no rows."""
        return relation.isEmpty()


def entries(
    spark: SparkSession, directory: str | os.PathLike[str], *, mode: str = "failfast"
) -> DataFrame:
    """Return what was live at the end of a log or snapshot, one row an entry.

    Reads the log once at this call, without values, and the chosen records when rows are asked for.

    Args:
        spark: Any session.
        directory: Path or URI.
        mode: ``failfast`` or ``permissive``; the latter has a column ``_corrupt``, and a row for
            every stretch of damage.

    Raises:
        LogCorruptError: It is damaged, or a segment is missing, was cut or replaced, in mode
            ``failfast``.
    """
    permissive = mode.lower() == "permissive"
    source = LogDirectory(directory)
    segments = {segment.number: segment for segment in source.segments}
    parts = max(-(-sum(one.bytes for one in source.segments) // PARTITION_BYTES), 1)
    uri = str(directory)
    with translating(), _settings(spark, {_SHUFFLE_PARTITIONS: str(parts), **_NO_BROADCASTS}):
        facts = _read_facts(spark, uri, list(segments.values()), parts, permissive=permissive)
        missing = _check_segments(facts, source)
        if missing is not None and not permissive:
            raise missing
        engine = _Spark(spark)
        wanted = find_wanted(engine, facts, permissive=permissive)
        # planned here: the settings are others when rows are asked for
        chosen = engine.store("plain", "SELECT place FROM {plain}", plain=wanted.plain)
        touched = engine.store("replayed", "SELECT * FROM {rows}", rows=wanted.replayed)
        bases = {row[0] >> PLACE_BITS: Base(row[1], row[2]) for row in wanted.bases.collect()}
    fetches = max(min(len(segments), parts), 1)
    placed = chosen.selectExpr("place", _SEGMENT).repartition(fetches, "segment")
    plain = placed.sortWithinPartitions("place").mapInArrow(
        partial(_fetch_entries, uri=uri, segments=segments), ENTRY_SCHEMA
    )
    placed = touched.selectExpr("place", "label", _SEGMENT).repartition(fetches, "segment")
    records = placed.sortWithinPartitions("place").mapInArrow(
        partial(_fetch_records, uri=uri, segments=segments, bases=bases, permissive=permissive),
        REPLAYED_COLUMNS,
    )
    replayed = (
        records.repartition(parts, "label")
        .sortWithinPartitions("label", "segment", "offset")
        .mapInArrow(partial(replay_labels, names=_NAMES), ENTRY_SCHEMA)
    )
    found = plain.unionByName(replayed)
    return _with_damage(found, facts, missing) if permissive else found


def _with_damage(found: DataFrame, facts: DataFrame, missing: LogCorruptError | None) -> DataFrame:
    damage = facts.where(f"kind = {Kind.DAMAGE:d}").selectExpr(
        _SEGMENT,
        f"place & {(1 << PLACE_BITS) - 1}L AS offset",
        "CAST(note AS STRING) AS _corrupt",
    )
    found = found.unionByName(damage, allowMissingColumns=True)
    if missing is None:
        return found
    spark = found.sparkSession
    return found.unionByName(
        spark.createDataFrame([(str(missing),)], "_corrupt STRING"), allowMissingColumns=True
    )


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


def _read_facts(
    spark: SparkSession, uri: str, segments: list[SegmentFile], parts: int, *, permissive: bool
) -> DataFrame:
    count = len(segments)
    facts = spark.range(0, count, 1, max(count, 1)).mapInArrow(
        partial(_facts_of, uri=uri, segments=segments, permissive=permissive), FACTS_COLUMNS
    )
    by_job = facts.repartition(parts, "high", "low")
    return by_job.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)


def _check_segments(facts: DataFrame, source: LogDirectory) -> LogCorruptError | None:
    """Return what is wrong with the chain of segments."""
    try:
        check_facts(source, facts.sparkSession.sql(CHAIN_FACTS, facts=facts).collect())
    except LogCorruptError as error:
        return error
    return None


# --- in Spark's workers ---------------------------------------------------------------------------


def _facts_of(
    batches: Iterable[pa.RecordBatch], *, uri: str, segments: list[SegmentFile], permissive: bool
) -> Iterator[pa.RecordBatch]:
    """Read the facts of segments, given by their index."""
    files, _ = resolve(uri)
    for batch in batches:
        for index in batch.column(0).to_pylist():
            yield from read_facts(files, segments[index], permissive=permissive)


def _by_segment(
    batches: Iterable[pa.RecordBatch], columns: tuple[str, ...]
) -> Iterator[tuple[int, list[Numbers]]]:
    """Yield each segment with its columns; rows are in the order of places."""
    number, gathered = -1, [[np.zeros(0, np.int64)] for _ in columns]
    for batch in batches:
        segments = batch.column("segment").to_numpy()
        values = [batch.column(name).to_numpy() for name in columns]
        cuts = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(segments)]
        for first, stop in pairwise(cuts):
            if first == stop:
                continue
            if segments[first] != number:
                if number >= 0:
                    yield number, [np.concatenate(parts) for parts in gathered]
                number, gathered = int(segments[first]), [[] for _ in columns]
            for parts, column in zip(gathered, values, strict=True):
                parts.append(column[first:stop])
    if number >= 0:
        yield number, [np.concatenate(parts) for parts in gathered]


def _fetch_entries(
    batches: Iterable[pa.RecordBatch], *, uri: str, segments: dict[int, SegmentFile]
) -> Iterator[pa.RecordBatch]:
    """Read the entries at places."""
    files, _ = resolve(uri)
    for number, (places,) in _by_segment(batches, ("place",)):
        offsets: Offsets = offset_of(places)
        yield from read_entries(files, segments[number], offsets, _NAMES)


def _fetch_records(
    batches: Iterable[pa.RecordBatch],
    *,
    uri: str,
    segments: dict[int, SegmentFile],
    bases: dict[int, Any],
    permissive: bool,
) -> Iterator[pa.RecordBatch]:
    """Read the records at places, to be replayed."""
    files, _ = resolve(uri)
    for number, (places, labels) in _by_segment(batches, ("place", "label")):
        yield from read_replayed(
            files,
            segments[number],
            offset_of(places),
            labels,
            bases[number],
            permissive=permissive,
        )
