"""The view ``entries``: what was live at the end of a log, computed by Spark from its records.

1. The records that make entries, or give them another key (LINK, RENAME), are grouped by job id,
   key, URI and links. Records whose entry has a URI get the URI's hash as their label, others that
   of their key. Where an id, a key or a link
   stands under two labels, these are one group; the smallest label is its name. Usually there is
   no such case, or few.
2. All other records get the label of their job.
3. Spark moves the records of a group to one place, in the order of the log, and each partition is
   replayed by the daemon's own rules (``spark.partition_replay``). No process sees the whole log.

The serial number ``arrival`` of workq's own jobs counts through the whole log: it is made of sums
by segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, get_args

from pyspark.sql import functions as f

from fastjournal.cmdlog.format.operation_records import Change, tag_of, unpack_operation
from fastjournal.cmdlog.recovery.segment_chain import TOLD, Chain, Seal
from fastjournal.errors import LogCorruptError
from fastjournal.spark.files import LogDirectory, check_chain
from fastjournal.spark.partition_replay import ENTRY_SCHEMA, PartReplay, chunked, to_batch

if TYPE_CHECKING:
    import os

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 8192
BATCH_BYTES = 8 * 1024 * 1024


class Roots:
    """Union-find over labels; a label that was joined with no other is its own root."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def find(self, label: int) -> int:
        """Return the root of a label's group."""
        parents = self._parents
        root = label
        while (parent := parents.get(root, root)) != root:
            root = parent
        while label != root:
            label, parents[label] = parents[label], root
        return root

    def join(self, one: int, other: int) -> None:
        """Make the groups of two labels one."""
        one, other = self.find(one), self.find(other)
        if one != other:
            self._parents[max(one, other)] = min(one, other)


_KEYS_SCHEMA = (
    "segment INT, offset BIGINT, command STRING, operation STRING, key BINARY, uri BINARY, "
    "links ARRAY<BINARY>, arrival BIGINT, _target BINARY, foreign BOOLEAN, "
    "_chain BINARY, _bytes BIGINT, _crc32c BIGINT"
)
_RAW_SCHEMA = (
    "segment INT, offset BIGINT, command STRING, operation STRING, key BINARY, uri BINARY, "
    "_target BINARY, _token BINARY, _raw BINARY, _ours BOOLEAN, _doubt INT"
)
_FED = ("segment", "offset", "_raw", "_token", "_ours", "_doubt")
"""Columns of what is replayed."""
_IS_ENTRY = "command IN ('add', 'schedule') AND operation IS NULL"
_IS_CHAIN = "_chain IS NOT NULL OR _bytes IS NOT NULL"
_CHANGE_TAGS = ", ".join(f"'{tag_of(change)}'" for change in get_args(Change))
_CHANGES_ENTRY = f"operation IS NULL OR operation IN ({_CHANGE_TAGS})"
_HAS_KEY = f"({_IS_ENTRY}) OR operation IN ('link', 'rename')"
_LABEL = "xxhash64(coalesce(uri, key)) AS label"
_TERM = (
    "explode(concat(array(xxhash64(key), xxhash64(_target), xxhash64(coalesce(uri, key))), "
    "coalesce(transform(links, link -> xxhash64(link)), array()))) AS term"
)


def entries(
    spark: SparkSession, directory: str | os.PathLike[str], *, mode: str = "failfast"
) -> DataFrame:
    """Return what was live at the end of a log or snapshot, one row an entry.

    Reads the log once at this call, for its keys, and once when the rows are asked for.

    Args:
        spark: A session with the data source registered.
        directory: Path or URI.
        mode: ``failfast`` or ``permissive``; the latter has a column ``_corrupt``, and a row for
            every stretch of damage.

    Raises:
        LogCorruptError: A segment is missing, was cut or replaced, in mode ``failfast``. Damage
            inside segments shows when Spark reads them.
    """
    permissive = mode.lower() == "permissive"

    def read(schema: str) -> DataFrame:
        reader = spark.read.format("fastjournal").option("view", "records").option("mode", mode)
        return reader.schema(schema).load(str(directory))

    needed = read(_KEYS_SCHEMA).where(f"{_HAS_KEY} OR {_IS_CHAIN}").persist()
    missing, foreign = _look_at_segments(needed, directory)
    if missing is not None and not permissive:
        raise missing
    keys = needed.where(_IS_ENTRY)
    groups = _groups(needed.where(_HAS_KEY).selectExpr(_LABEL, _TERM))
    before = _before_segments(keys) if foreign else None
    needed.unpersist()

    own_label = f.expr(f"CASE WHEN {_HAS_KEY} THEN xxhash64(coalesce(uri, key)) END")
    raw = read(_RAW_SCHEMA).where(f"command IS NOT NULL AND ({_CHANGES_ENTRY})")
    labelled = raw.select(*_FED, "_target", own_label.alias("own")).selectExpr(
        "*", "min(own) OVER (PARTITION BY _target) AS label"
    )
    labelled = labelled.where("label IS NOT NULL")
    if groups is not None:
        labelled = labelled.join(groups, "label", "left")
        labelled = labelled.withColumn("label", f.expr("coalesce(root, label)"))
    found = (
        labelled.select("label", *_FED)
        .repartition("label")
        .sortWithinPartitions("segment", "offset")
        .mapInArrow(_fold, ENTRY_SCHEMA)
    )
    if before is not None:
        found = _with_arrivals(found, read(_KEYS_SCHEMA).where(_IS_ENTRY), before)
    if permissive:
        corrupt = read("segment INT, offset BIGINT, _corrupt STRING").where("_corrupt IS NOT NULL")
        found = found.unionByName(corrupt, allowMissingColumns=True)
        if missing is not None:
            told = spark.createDataFrame([(str(missing),)], "_corrupt STRING")
            found = found.unionByName(told, allowMissingColumns=True)
    return found


def _look_at_segments(
    records: DataFrame, directory: str | os.PathLike[str]
) -> tuple[LogCorruptError | None, bool]:
    """Return what is wrong with the chain of segments, and whether there are foreign jobs."""
    columns = ("segment", "offset", "_chain", "_bytes", "_crc32c")
    rows = records.where(_IS_CHAIN).select(*columns).orderBy("segment", "offset").collect()
    chain = Chain()
    files: dict[int, Seal] = {}
    for number, _, told, size, crc32c in rows:
        if size is not None:
            files[number] = Seal(size, crc32c)
        if told is not None:
            operation = unpack_operation(bytes(told))
            assert isinstance(operation, TOLD)
            chain.take(number, operation)
    foreign = bool(records.where("foreign").limit(1).count())
    try:
        check_chain(LogDirectory(directory), chain, files)
    except LogCorruptError as error:
        return error, foreign
    return None, foreign


def _fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replay one partition, in Spark's worker."""
    part = PartReplay()
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in _FED)
        for segment, offset, raw, token, ours, doubt in zip(*columns, strict=True):
            lease = None if token is None else int.from_bytes(token, "big")
            part.feed(segment, offset, raw, token=lease, ours=ours, doubt=doubt)
    for chunk in chunked(part.finish(), rows=BATCH_ROWS, size=BATCH_BYTES):
        yield to_batch(chunk)


def _groups(terms: DataFrame) -> DataFrame | None:
    """Return label and root of all labels that are in one group with another; None: there are none.

    Only keys, ids and links that stood under several labels come to the driver.
    """
    shared = terms.groupBy("term").agg(f.collect_set("label").alias("labels"))
    roots = Roots()
    joined: set[int] = set()
    for (labels,) in shared.where("size(labels) > 1").select("labels").collect():
        joined.update(labels)
        for label in labels[1:]:
            roots.join(labels[0], label)
    if not joined:
        return None
    pairs = [(label, roots.find(label)) for label in sorted(joined)]
    return terms.sparkSession.createDataFrame(pairs, "label BIGINT, root BIGINT")


def _counted(keys: DataFrame) -> DataFrame:
    """Number the foreign jobs of each segment, and say how far our serial numbers lead."""
    so_far = "OVER (PARTITION BY segment ORDER BY offset ROWS UNBOUNDED PRECEDING)"
    numbered = keys.selectExpr(
        "segment", "offset", "foreign", "arrival", f"sum(int(foreign)) {so_far} AS number"
    )
    lead = "max(CASE WHEN NOT foreign THEN arrival - number END)"
    return numbered.selectExpr("segment", "offset", "foreign", "number", f"{lead} {so_far} AS lead")


def _before_segments(keys: DataFrame) -> list[tuple[int, int, int]]:
    """Return (segment, foreign jobs before it, lead of our serial numbers before it)."""
    totals = _counted(keys).groupBy("segment").agg({"number": "max", "lead": "max"})
    before: list[tuple[int, int, int]] = []
    foreign = lead = 0
    for row in totals.orderBy("segment").collect():
        before.append((row["segment"], foreign, lead))
        if row["max(lead)"] is not None:
            lead = max(lead, row["max(lead)"] - foreign)
        foreign += row["max(number)"]
    return before


def _with_arrivals(
    found: DataFrame, keys: DataFrame, before: list[tuple[int, int, int]]
) -> DataFrame:
    """Give foreign jobs their serial numbers: the highest so far in the log, and one more."""
    sums = found.sparkSession.createDataFrame(before, "segment INT, earlier BIGINT, ahead BIGINT")
    numbers = (
        _counted(keys)
        .where("foreign")
        .join(sums, "segment")
        .selectExpr(
            "segment",
            "offset",
            "earlier + number + greatest(0, ahead, lead - earlier) AS serial",
        )
    )
    joined = found.join(numbers, ["segment", "offset"], "left")
    return joined.selectExpr(
        *(f"coalesce(serial, {c}) AS {c}" if c == "arrival" else c for c in found.columns)
    )
