"""The data source for real: both views, damage, and what is chosen while reading."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import fastjournal.spark
from fastjournal.cmdlog.format.endings import REPLACED
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, Command, SegmentInfo, segment_name
from fastjournal.cmdlog.format.operation_records import Extend
from fastjournal.cmdlog.locks import APPEND_LOCK
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.cluster.java_errors import translating_workers
from fastjournal.spark.live_entries import entry_parts
from fastjournal.spark.live_entries.fetch import ENTRY_COLUMNS
from fastjournal.spark.query.requested_schema import INSTANTS
from fastjournal.spool import Spool
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.spark.java_machine import CODEGEN_MODE
from tests.spark.live_snapshots import take_live_snapshot
from tests.spark.random_logs import by_position, replayed, write_random_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

HOUR_US = 3_600_000_000
CORPUS = Path(__file__).parents[1] / "format" / "data" / "workq"


def read(spark: SparkSession, directory: Path, view: str, **options: str) -> DataFrame:
    reader = spark.read.format("fastjournal").option("view", view).options(**options)
    return reader.load(str(directory))


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return by_position([tuple(plain(value) for value in row) for row in frame.collect()])


def as_told(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows of a replay as the view entries tells them with instants=us: none is NULL."""
    names = [column.name for column in ENTRY_COLUMNS]
    return by_position(
        [
            tuple(
                None if name in INSTANTS and value == 0 else value
                for name, value in zip(names, row, strict=True)
            )
            for row in rows
        ]
    )


def plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_entries_equal_the_replay_of_colliding_records(spark: SparkSession, tmp_path: Path) -> None:
    write_random_log(tmp_path, 3, segments=5, records=240)
    expected = replayed(tmp_path)
    assert len(expected) > 10
    interpreted = spark.conf.get(CODEGEN_MODE)
    # compiled, as for users
    spark.conf.set(CODEGEN_MODE, "FALLBACK")
    try:
        assert rows_of(read(spark, tmp_path, "entries", instants="us")) == as_told(expected)
    finally:
        spark.conf.set(CODEGEN_MODE, interpreted)


def test_entries_equal_the_replay_of_what_workq_wrote(spark: SparkSession, tmp_path: Path) -> None:
    # Jobs of different recordings have different ids, so they are one log: eight of them a segment.
    recordings = [path.read_bytes() for path in sorted(CORPUS.glob("*/*.log"))]
    for number, first in enumerate(range(0, len(recordings), 8), 1):
        records = [recording[len(SEGMENT_HEADER) :] for recording in recordings[first : first + 8]]
        (tmp_path / segment_name(number)).write_bytes(SEGMENT_HEADER + b"".join(records))
    expected = replayed(tmp_path)
    assert len(expected) > 100
    assert {row[7] for row in expected} == {"waiting", "worked_on", "buried"}
    assert rows_of(read(spark, tmp_path, "entries", instants="us")) == as_told(expected)


def jobs_of(spark: SparkSession, group: str) -> int:
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_entries_view_loads_without_a_job_and_reads_places_of_a_live_index(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    write_random_log(log, 3, segments=3, records=80)
    expected = as_told(replayed(log))
    snapshot = take_live_snapshot(log, tmp_path / "snapshots", run_entries=7)
    for directory in (log, snapshot):
        spark.sparkContext.setJobGroup(str(directory), "")
        try:
            frame = read(spark, directory, "entries", instants="us")
            assert jobs_of(spark, str(directory)) == 0
            assert rows_of(frame) == expected
            assert jobs_of(spark, str(directory)) == 1
        finally:
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
        assert frame.count() == len(expected)
        assert "Exchange" not in frame._jdf.queryExecution().executedPlan().toString()


def test_entries_view_has_a_partition_for_some_bytes_of_a_snapshot(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_random_log(log, 3, segments=6, records=80)
    snapshot = str(take_live_snapshot(log, tmp_path / "snapshots"))
    assert len(entry_parts.find_parts(snapshot)) == 1
    size = (log / segment_name(2)).stat().st_size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_parts, "PART_BYTES", size // 2)
        pieces = [part.pieces for part in entry_parts.find_parts(snapshot)]
    assert len(pieces) > 9
    assert len(entry_parts.find_parts(str(log))) == 1


def test_entries_view_reads_the_columns_of_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    segment = SegmentBuilder()
    for number in range(5):
        segment.entry(b"web:001:5:%d" % number, value=bytes(1000))
    (tmp_path / segment_name(1)).write_bytes(bytes(segment))
    reader = spark.read.format("fastjournal").option("view", "entries").schema("id STRING")
    frame = reader.load(str(tmp_path))
    assert sorted(row.id for row in frame.collect()) == list("01234")
    assert frame.columns == ["id"]


def test_entries_view_is_a_view_and_a_table_of_sql(spark: SparkSession, tmp_path: Path) -> None:
    write_random_log(tmp_path, 4, segments=2, records=40)
    options = f"OPTIONS (path '{tmp_path}', VIEW 'entries', instants 'us')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW live USING fastjournal {options}")
    try:
        assert rows_of(spark.table("live")) == as_told(replayed(tmp_path))
        spark.sql(f"CREATE OR REPLACE TEMP VIEW live (ID STRING) USING fastjournal {options}")
        assert spark.sql("SELECT * FROM live").columns == ["ID"]
        with pytest.raises(Exception, match="already exists"):
            spark.sql(f"CREATE TEMPORARY VIEW live USING fastjournal {options}")
    finally:
        spark.catalog.dropTempView("live")
    for columns in ("", "(id STRING)"):
        spark.sql(f"CREATE TABLE live {columns} USING fastjournal {options}")
        try:
            found = spark.sql("SELECT id FROM live").collect()
        finally:
            spark.sql("DROP TABLE live")
        expected = [row[6] for row in replayed(tmp_path)]
        assert sorted(map(str, (row.id for row in found))) == sorted(map(str, expected))


def test_table_of_sql_has_the_views_events_and_spool(spark: SparkSession, tmp_path: Path) -> None:
    log, spool = tmp_path / "log", tmp_path / "spool"
    log.mkdir()
    write_random_log(log, 4, segments=2, records=40)
    with Spool(spool) as writer:
        writer.append(domain="web", id="x")
    for view, directory in (("events", log), ("spool", spool)):
        expected = by_text(read(spark, directory, view, mode="permissive").collect())
        assert expected
        options = f"OPTIONS (path '{directory}', view '{view}', mode 'permissive')"
        spark.sql(f"CREATE TABLE whole USING fastjournal {options}")
        try:
            spark.sql(f"CREATE TABLE narrow (key STRING) USING fastjournal {options}")
            assert by_text(spark.table("whole").collect()) == expected
            keys = sorted(str(row.key) for row in spark.table("narrow").collect())
            reader = spark.read.format("fastjournal").schema("key STRING")
            texts = reader.options(view=view, mode="permissive").load(str(directory)).collect()
            assert keys == sorted(str(row.key) for row in texts)
            assert len(keys) == len(expected)
        finally:
            spark.sql("DROP TABLE whole")
            spark.sql("DROP TABLE IF EXISTS narrow")


def by_text(rows: list[Any]) -> list[str]:
    return sorted(str(row) for row in rows)


def test_records_say_what_was_written(spark: SparkSession, tmp_path: Path) -> None:
    segment = SegmentBuilder()
    one = segment.entry(b"web:001:5:x", uri=b"http://x", value=b"v", not_before=5)
    two = segment.entry(b"plain")
    segment.lease([one], START_US + 60)
    segment.operation(Extend(one, START_US + 90, 0, b"", 0, b""))
    segment.complete(one, b"web:001:5:x", 77)
    segment.fail(two, b"\xff no")
    (tmp_path / segment_name(1)).write_bytes(bytes(segment))
    frame = read(spark, tmp_path, "records")
    rows = frame.orderBy("segment", "offset").collect()
    assert [row["command"] for row in rows] == (
        ["add", "schedule", "add", "add", "start-attempt", "add", "complete", "fail"]
    )
    operations = [row["operation"] for row in rows]
    assert operations == ["segment", None, None, "lease", None, "extend", None, None]
    assert [row["offset"] for row in rows] == segment.offsets
    assert sum(row["size"] for row in rows) + 8 == len(segment.data)
    assert {row["time_us"] for row in rows} == {START_US}
    assert rows[0]["time"].timestamp() == START_US / 1_000_000
    entry = rows[1].asDict()
    assert plain(entry["key"]) == b"web:001:5:x"
    assert plain(entry["uri"]) == b"http://x"
    assert plain(entry["value"]) == b"v"
    told = ("domain", "priority", "id", "name", "job_priority", "foreign", "expires")
    assert [entry[name] for name in told] == ["web", 1, "x", "web", 127, False, None]
    assert entry["not_before"].timestamp() == 5 / 1_000_000
    assert rows[2]["domain"] is None
    tokens = [row["token"] for row in rows]
    assert tokens == [None, None, None, START_US + 60, START_US + 60, START_US + 90, None, None]
    assert rows[5]["target"] == one.hex() != rows[5]["job_id"]
    assert plain(rows[6]["key"]) == b"web:001:5:x"
    assert rows[6]["timestamp"].timestamp() == 77 / 1_000_000
    assert rows[7]["reason"] == "\\xff no"


def test_view_reads_the_range_of_records_that_options_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_random_log(tmp_path, 5, segments=4, records=30)
    schema = "command STRING, segment INT, domain STRING"
    reader = spark.read.format("fastjournal").schema(schema)
    everything = [tuple(row) for row in reader.load(str(tmp_path)).collect()]
    expected = sorted(row for row in everything if row[1] > 2 and row[2] == "a")
    assert 0 < len(expected) < len(everything)
    # a column that the schema leaves out is a condition all the same
    narrow = spark.read.format("fastjournal").schema("command STRING")
    for one in (reader, narrow):
        one.options(segments="3-9", domain="a")
    frame, commands = reader.load(str(tmp_path)), narrow.load(str(tmp_path))
    assert sorted(tuple(row) for row in frame.collect()) == expected
    assert sorted(row.command for row in commands.collect()) == [row[0] for row in expected]
    # Segments that no asked-for row can be in are not even opened.
    (tmp_path / segment_name(1)).write_bytes(b"damage")
    assert frame.count() == len(expected)


def test_view_gives_each_query_its_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark keeps one reader for a relation, and with it what a reader took from a query."""
    segment = SegmentBuilder()
    for domain in [b"near"] * 6 + [b"far"]:
        segment.entry(domain + b":1:0:x")
    (tmp_path / segment_name(1)).write_bytes(bytes(segment))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, tmp_path, "records").where("domain IS NOT NULL")
        far, near = frame.where("domain = 'far'"), frame.where("domain = 'near'")
        far.explain()
        assert [one.count() for one in (far, frame, near, frame, far)] == [1, 7, 6, 7, 1]
        assert far.union(near).count() == 7
        assert frame.join(far, "offset", "left_anti").count() == 6
        read(spark, tmp_path, "records").createOrReplaceTempView("one_view")
        spark.sql(f"CREATE TABLE one_table USING fastjournal OPTIONS (path '{tmp_path}')")
        for name in ("one_view", "one_table"):
            counts = [
                spark.sql(f"SELECT * FROM {name} WHERE domain = '{domain}'").count()
                for domain in ("far", "near", "far")
            ]
            assert counts == [1, 6, 1]
            both = f"SELECT * FROM {name} WHERE domain = 'far' UNION ALL TABLE {name}"
            assert spark.sql(both).where("domain IS NOT NULL").count() == 8
    finally:
        spark.sql("DROP TABLE IF EXISTS one_table")
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_view_prunes_segments_by_the_times_of_the_manifest(
    spark: SparkSession, tmp_path: Path
) -> None:
    infos = []
    for number in range(1, 6):
        now = START_US + number * HOUR_US
        segment = SegmentBuilder(number - 1, now_us=now, ids_from=number * 1000)
        segment.entry(b"web:001:5:%d" % number)
        (tmp_path / segment_name(number)).write_bytes(bytes(segment))
        crc32c = google_crc32c.value(bytes(segment))
        infos.append(SegmentInfo(number, len(segment.data), crc32c, now, now, 2, now, now))
    snapshot = take_snapshot(
        OsDisk(), str(tmp_path), str(tmp_path / "snapshots"), infos, START_US + 9 * HOUR_US
    )
    since = datetime.fromtimestamp((START_US + 4 * HOUR_US) / 1_000_000, UTC)
    frame = read(spark, Path(snapshot), "records", since=since.isoformat())
    assert sorted(row.id for row in frame.where("id IS NOT NULL").collect()) == ["4", "5"]
    assert frame.rdd.getNumPartitions() == 2
    assert read(spark, Path(snapshot), "records").rdd.getNumPartitions() == 5


def test_table_of_sql_that_names_its_columns_keeps_its_options(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "a log {x}"
    log.mkdir()
    segment = SegmentBuilder()
    segment.entry(b"web:001:5:y", created=START_US)
    (log / segment_name(1)).write_bytes(bytes(segment))
    columns = "(CREATED BIGINT COMMENT 'when', id STRING)"
    options = f"OPTIONS (path '{tmp_path}/a log*', mode 'permissive')"
    expected = [(None, None), (START_US, "y")]
    spark.sql("CREATE DATABASE narrow")
    try:
        spark.sql(f"CREATE TABLE narrow.One {columns} USING fastjournal {options}")
        # the table that is there keeps its options
        spark.sql(f"CREATE TABLE IF NOT EXISTS narrow.one {columns} USING fastjournal")
        spark.sql(
            f"CREATE TABLE narrow.two {columns} USING FastJournal LOCATION '{tmp_path}/a log*'"
        )
        for name in ("one", "two"):
            rows = spark.sql(f"SELECT * FROM narrow.{name} ORDER BY id").collect()
            assert [tuple(row) for row in rows] == expected
        assert spark.table("narrow.one").schema["CREATED"].metadata["comment"] == "when"
        spark.sql("CREATE TABLE narrow.other (id INT) USING parquet")
        assert spark.table("narrow.other").schema["id"].metadata == {}
        bad = f"OPTIONS (path '{log}', mode 'permisive')"
        spark.sql(f"CREATE TABLE narrow.bad {columns} USING fastjournal {bad}")
        with pytest.raises(Exception, match=r"option mode=permisive is not one of .*permissive\?"):
            spark.sql("SELECT * FROM narrow.bad").collect()
        schema = StructType([StructField("id", StringType())])
        spark.catalog.createTable("narrow.bare", str(log), "fastjournal", schema)
        with pytest.raises(Exception, match=r"no directory .* keeps its options if spark.sql of "):
            spark.table("narrow.bare").collect()
        with pytest.raises(Exception, match="the format fastjournal is read only"):
            spark.sql("INSERT INTO narrow.one VALUES (1, 'x')")
    finally:
        spark.sql("DROP DATABASE narrow CASCADE")


def test_session_has_one_sentence_for_a_wrong_option_where_it_is_given(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, archive = tmp_path / "log", tmp_path / "archive"
    segment = SegmentBuilder()
    segment.entry(b"web:001:5:x")
    for path in (
        log / segment_name(1),
        archive / f"000000001-{google_crc32c.value(bytes(segment)):08x}.log",
    ):
        path.parent.mkdir()
        path.write_bytes(bytes(segment))

    def sentence(load: Callable[[], Any]) -> str:
        with pytest.raises(BadRequestError) as caught:
            load()
        assert "Traceback" not in str(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def given(reader: Any, directory: Path, **options: str) -> Callable[[], Any]:
        return lambda: reader.format("fastjournal").options(**options).load(str(directory))

    size = "=64x is not a number of bytes, as 67108864, or with a unit, as 64m"
    for reader in ("read", "readStream"):
        for name in ("maxPartitionBytes", "maxBytesPerTrigger"):
            load = given(getattr(spark, reader), log, **{name: "64x"})
            assert sentence(load).startswith(f"option {name}{size}")
        assert "did you mean view" in sentence(given(getattr(spark, reader), log, veiw="events"))
    streams = {"view": "events"}
    assert "is no archive" in sentence(given(spark.readStream, log, **streams))
    assert "is no archive" in sentence(given(spark.readStream, log, cleanSource="delete"))
    assert "the view records or events" in sentence(given(spark.readStream, log, view="entries"))
    for start in ("TABLE", "TEMPORARY VIEW"):
        statement = f"CREATE {start} bad USING fastjournal OPTIONS (path '{log}', %s)"
        for option, said in (("maxPartitionBytes '64x'", size), ("veiw 'x'", "did you mean view")):
            assert said in sentence(partial(spark.sql, statement % option))
    # and a stream that is right runs, with a unit
    good = spark.readStream.format("fastjournal").options(**streams, maxBytesPerTrigger="64m")
    query = (
        good.load(str(archive))
        .writeStream.trigger(availableNow=True)
        .start(
            str(tmp_path / "out"), format="parquet", checkpointLocation=str(tmp_path / "checkpoint")
        )
    )
    assert query.awaitTermination(300)
    assert [row.event for row in spark.read.parquet(str(tmp_path / "out")).collect()] == ["set"]


def test_table_of_sql_and_a_schema_of_the_user_read_as_load_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment = SegmentBuilder()
    segment.entry(b"\xff:001:5:x", expires=2**64 - 1)
    segment.entry(b"web:001:5:y", created=START_US, not_before=0)
    data = bytearray(segment.data)
    (tmp_path / segment_name(1)).write_bytes(data)
    options = f"OPTIONS (path '{tmp_path}', mode 'permissive', columnNameOfCorruptRecord 'bad')"
    spark.sql(f"CREATE TABLE told USING fastjournal {options}")
    try:
        spark.sql(f"CREATE TEMPORARY VIEW seen USING fastjournal {options}")
        frame = read(spark, tmp_path, "records", mode="permissive", columnNameOfCorruptRecord="bad")
        assert frame.columns[-1] == "bad"
        for name in ("told", "seen"):
            rows = spark.sql(f"SELECT * FROM {name} ORDER BY offset").collect()
            assert rows == frame.orderBy("offset").collect()
            assert len(rows) == 3
        data[segment.offsets[1] + 40] ^= 1
        (tmp_path / segment_name(1)).write_bytes(data)
        assert spark.sql("SELECT bad FROM told WHERE bad IS NOT NULL").count() == 1
        for view in ("records", "entries"):
            named = {"mode": "permissive", "columnNameOfCorruptRecord": "b`d"}
            frame = read(spark, tmp_path, view, **named)
            assert frame.where("`b``d` IS NOT NULL").count() == 1
    finally:
        spark.sql("DROP TABLE told")
        spark.catalog.dropTempView("seen")
    (tmp_path / segment_name(1)).write_bytes(bytes(segment))
    schema = "id STRING, KEY STRING, created BIGINT, expires TIMESTAMP"
    for view in ("records", "entries"):
        reader = spark.read.format("fastjournal").option("view", view).schema(schema)
        rows = reader.load(str(tmp_path)).where("id IS NOT NULL").orderBy("id").collect()
        assert [tuple(row) for row in rows] == [
            ("x", "\\xff:001:5:x", START_US, None),
            ("y", "web:001:5:y", START_US, None),
        ]
        for wrong, sentence in (
            ("key INT", "the column key of the view .* cannot be INT; it can be BINARY or STRING"),
            ("id STRING, ID STRING", "the schema names the column ID of the view .* twice"),
            ("domian STRING", "has no column domian; .*did you mean domain"),
        ):
            with pytest.raises(BadRequestError, match=sentence):
                spark.read.format("fastjournal").schema(wrong).load(str(tmp_path), view=view)


def test_stream_has_the_rows_of_the_batch_once_over_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_random_log(tmp_path / "whole", 7, segments=3, records=30)
    log, checkpoint, output = (tmp_path / name for name in ("log", "checkpoint", "output"))
    log.mkdir()
    segments = [path.read_bytes() for path in sorted((tmp_path / "whole").iterdir())]
    schema = "segment INT, offset BIGINT, command STRING, key STRING, time TIMESTAMP"

    def run() -> int:
        """Run a query until it has read what is there; return the number of its batches."""
        reader = spark.readStream.format("fastjournal").schema(schema)
        frame = reader.option("maxBytesPerTrigger", len(segments[0])).load(str(log))
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start(str(output), format="parquet")
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
        return len(list((checkpoint / "commits").glob("[0-9]*")))

    (log / segment_name(1)).write_bytes(segments[0])
    (log / segment_name(2)).write_bytes(segments[1][: len(segments[1]) // 2])
    assert run() == 2
    # Spark was killed in the last batch, before it had told what it wrote
    for directory in (checkpoint / "commits", output / "_spark_metadata"):
        for path in (directory / "1", directory / ".1.crc"):
            path.unlink()
    (log / segment_name(2)).write_bytes(segments[1])
    (log / segment_name(3)).write_bytes(segments[2])
    assert run() > 2
    found = spark.read.parquet(str(output)).orderBy("segment", "offset").collect()
    batch = spark.read.format("fastjournal").schema(schema).load(str(log))
    assert found == batch.orderBy("segment", "offset").collect()
    assert len(found) > 100


def test_damage_stops_the_reading_or_becomes_a_row(spark: SparkSession, tmp_path: Path) -> None:
    segment = SegmentBuilder()
    for index in range(3):
        segment.entry(b"web:001:5:%d" % index)
    data = bytearray(segment.data)
    at = segment.offsets[2]
    data[at + 40] ^= 1
    path = tmp_path / segment_name(1)
    path.write_bytes(data)
    where = f"{path} at offset {at}"
    for view in ("records", "entries"):
        with pytest.raises(LogCorruptError, match=where), translating_workers():
            read(spark, tmp_path, view).collect()
    rows = read(spark, tmp_path, "records", mode="permissive").orderBy("offset").collect()
    assert [row["offset"] for row in rows] == segment.offsets
    assert [row["_corrupt"] is None for row in rows] == [True, True, False, True]
    assert where in rows[2]["_corrupt"]
    entries = read(spark, tmp_path, "entries", mode="permissive").orderBy("offset").collect()
    assert [row["id"] for row in entries] == ["0", None, "2"]
    assert where in entries[1]["_corrupt"]


def test_view_entries_in_permissive_mode_keeps_what_a_repair_keeps(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment = SegmentBuilder()
    one = segment.entry(b"k", value=b"one")
    segment.entry(b"k", value=b"two")
    segment.remove(one, REPLACED + 1)
    segment.entry(b"other")
    data = bytearray(bytes(segment))
    data[segment.offsets[2] : segment.offsets[3]] = bytes(segment.offsets[3] - segment.offsets[2])
    (tmp_path / segment_name(1)).write_bytes(data)
    rows = read(spark, tmp_path, "entries", mode="permissive").where("_corrupt IS NULL").collect()
    assert {bytes(row["key"]): bytes(row["value"]) for row in rows} == {
        b"k": b"one",
        b"other": b"value",
    }


def test_reader_takes_paths_and_names_unknown_options(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a 1", "a 2", "b"):
        segment = SegmentBuilder()
        segment.entry(b"web:001:5:%b" % name.encode())
        (tmp_path / name).mkdir()
        (tmp_path / name / segment_name(1)).write_bytes(bytes(segment))
    reader = spark.read.format("fastjournal").schema("id STRING")

    def ids(*paths: str) -> list[str]:
        frame = reader.load(*paths) if len(paths) == 1 else reader.load(list(paths))
        return sorted(row.id for row in frame.where("id IS NOT NULL").collect())

    assert ids(f"{tmp_path}/a*") == ["a 1", "a 2"]
    assert ids((tmp_path / "b").as_uri(), f"{tmp_path}/{{a 2,none}}") == ["a 2", "b"]
    both = spark.read.format("fastjournal").load(
        [f"{tmp_path}/b", f"{tmp_path}/a 1"], View="entries"
    )
    assert sorted(row.id for row in both.collect()) == ["a 1", "b"]
    with Spool(tmp_path / "spool") as spool:
        spool.append(domain="web", id="waits")
    found = spark.read.format("fastjournal").load(f"{tmp_path}/sp*", view="spool").collect()
    assert [(row.state, row.domain, row.id) for row in found] == [("pending", "web", "waits")]
    for path, options, told in (
        (tmp_path / "b", {"veiw": "entries"}, "no option veiw; .* mean view"),
        (tmp_path / "b", {"view": "nothing"}, "view=nothing is not one of records, entries"),
        (tmp_path / "c", {}, "c does not exist .* has a 1, a 2, b and 1 more"),
        (CORPUS.parent / "beanstalkd" / "killed", {}, r"add option\('journal', 'beanstalkd'\)"),
    ):
        with pytest.raises(BadRequestError, match=told):
            spark.read.format("fastjournal").options(**options).load(str(path))


def test_session_alone_is_changed_by_register(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.classic.dataframe import DataFrame

    segment = SegmentBuilder()
    segment.entry(b"plain")
    (tmp_path / segment_name(1)).write_bytes(bytes(segment))
    assert read(spark, tmp_path, "entries").count() == 1
    fastjournal.spark.register(spark)
    assert read(spark, tmp_path, "entries").count() == 1
    assert isinstance(spark, SparkSession)
    assert isinstance(read(spark, tmp_path, "entries"), DataFrame)
    assert DataFrameReader.load.__module__.startswith("pyspark.")
    assert SparkSession.read.fget.__module__.startswith("pyspark.")
    # another session knows neither the data source nor the view
    other = SparkSession(spark.sparkContext, spark._jsparkSession.newSession())
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        read(other, tmp_path, "records")


def test_session_knows_both_views_after_register(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    segment = SegmentBuilder()
    segment.entry(b"plain")
    (tmp_path / segment_name(1)).write_bytes(bytes(segment))
    other = SparkSession(spark.sparkContext, spark._jsparkSession.newSession())
    fastjournal.spark.register(other)
    assert read(other, tmp_path, "entries").count() == 1
    assert read(other, tmp_path, "records").count() == 2
    assert fastjournal.spark.entries(other, tmp_path).count() == 1


def test_view_entries_of_beanstalkd_is_read_and_a_wrong_journal_is_named(
    spark: SparkSession,
) -> None:
    binlog = CORPUS.parent / "beanstalkd" / "killed"
    frame = read(spark, binlog, "entries", journal="beanstalkd")
    assert len({row.id for row in frame.select("id").collect()}) == 111
    with pytest.raises(Exception, match="holds the binlog of a beanstalkd, and none of kestrel"):
        read(spark, binlog, "records", journal="kestrel")


def test_spark_loads_other_formats_as_before(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "table"))
    assert spark.read.parquet(str(tmp_path / "table")).count() == 3
    assert spark.read.format("parquet").load(str(tmp_path / "table")).count() == 3


def test_log_that_is_empty_has_no_entries(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / APPEND_LOCK).touch()
    for view in ("records", "entries"):
        assert read(spark, tmp_path, view).collect() == []
    # The start of a record that the writer is not done with.
    segment = SegmentBuilder()
    command = Command.ADD
    segment.record(bytes(command))
    (tmp_path / segment_name(1)).write_bytes(bytes(segment) + b"\x01\x00\x00")
    assert read(spark, tmp_path, "records").count() == 1
