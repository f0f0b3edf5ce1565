"""Manners of the data source that need no Spark session: options, paths, what a directory holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.fs
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fastjournal.cmdlog.format.layout import Command, segment_name
from fastjournal.cmdlog.format.records import encode_result, encode_time
from fastjournal.cmdlog.locks import APPEND_LOCK
from fastjournal.cmdlog.snapshot import ManifestSegment, take_snapshot
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError
from fastjournal.remote.objects import ChunkId
from fastjournal.spark.data_source.source import FastjournalSource
from fastjournal.spark.decoding.view_columns import TIMESTAMPS
from fastjournal.spark.query.paths import find_directories, open_log
from fastjournal.spark.query.requested_schema import INSTANTS, RequestedColumn, cast_batch
from fastjournal.spark.query.source_options import LOG_VIEWS, OPTIONS, Options, RecordRange
from fastjournal.spark.storage.files import SegmentFile, resolve
from fastjournal.spark.storage.remote_checkpoints import split_checkpoint
from fastjournal.spool.slots import slot_name
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.spark.random_logs import write_log

STRING, BIGINT = StringType(), LongType()
CORPUS = Path(__file__).parent.parent / "format" / "data"


def test_option_names_are_checked_in_any_case_and_the_near_one_is_named() -> None:
    assert Options({"VIEW": "Entries"}).view == "entries"
    assert Options({"Mode": "PERMISSIVE"}).permissive
    for given, told in (
        ({"veiw": "records"}, ["no option veiw", "did you mean view?"]),
        ({"jornal": "kestrel"}, ["did you mean journal?"]),
        ({"view": "entrys"}, ["view=entrys is not one of records, entries", "mean entries?"]),
        ({"mode": "dropmalformed"}, ["mode=dropmalformed is not one of failfast, permissive"]),
        ({"header": "true"}, ["no option header"]),
    ):
        with pytest.raises(BadRequestError) as caught:
            Options(given)
        assert all(part in str(caught.value) for part in told), str(caught.value)
    with pytest.raises(BadRequestError) as caught:
        FastjournalSource({"zzz": ""})
    known = {option.name for option in OPTIONS} - {"paths"}
    assert all(name in str(caught.value) for name in known)
    assert "mean" not in str(caught.value)


def test_options_of_a_table_are_told_from_its_other_properties() -> None:
    table = {"provider": "fastjournal", "owner": "me", "x": "y", "path": "file:/log"}
    assert Options({**table, "option.view": "entries", "view": "entries"}).view == "entries"
    with pytest.raises(BadRequestError, match="no option veiw"):
        Options({**table, "option.veiw": "entries", "veiw": "entries"})


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*", ["a1", "a2", "b"]), ("a?", ["a1", "a2"]), ("a[!1]", ["a2"]), ("a[^1]", ["a2"]),
        ("{a1,b,none}", ["a1", "b"]), ("{a,b}*", ["a1", "a2", "b"]), ("../*/a[12]", ["a1", "a2"]),
        ("_*", ["_temporary"]), ("[x]", ["[x]"]),
    ],
)  # fmt: skip
def test_glob_names_the_directories_that_spark_would_take(
    tmp_path: Path, glob: str, found: list[str]
) -> None:
    names = ["a1", "a2", "_temporary", ".hidden", "b", "20261123T000000.000000Z.partial"]
    for name in [*names, *(["[x]"] if glob == "[x]" else [])]:
        write_log(tmp_path / "logs" / name, SegmentBuilder())
    (tmp_path / "logs" / "file").touch()
    for scheme in ("", "file:", "file://"):
        directories = find_directories(Options({"path": f"{scheme}{tmp_path}/logs/{glob}"}))
        assert [Path(one).name for one in directories] == found
        assert all(open_log(one).segments for one in directories)


def test_paths_come_as_one_text_or_as_a_list_in_json(tmp_path: Path) -> None:
    paths = [f"{tmp_path}/b", "s3://bucket/log", f"file://localhost{tmp_path}/a"]
    found = find_directories(Options({"paths": json.dumps(paths)}))
    assert found == [f"{tmp_path}/b", "s3://bucket/log", f"{tmp_path}/a"]
    with pytest.raises(BadRequestError, match="no directory is given"):
        find_directories(Options({}))
    for wrong, fault in (
        ("[", "truncated"),
        ('["\\ud800"]', "half of a surrogate pair"),
        ("{}", "array"),
    ):
        with pytest.raises(BadRequestError, match=f"the option paths is no JSON list .*{fault}"):
            find_directories(Options({"paths": wrong}))
    (tmp_path / "there").mkdir()
    with pytest.raises(BadRequestError, match=r"no directory matches .*x\* .*has there"):
        find_directories(Options({"path": f"{tmp_path}/x*"}))


def test_directory_without_a_log_is_an_error_that_names_what_is_there(tmp_path: Path) -> None:
    log, empty, other = tmp_path / "log", tmp_path / "empty", tmp_path / "other"
    write_log(log, SegmentBuilder())
    empty.mkdir()
    other.mkdir()
    for name in "abcde":
        (other / name).write_text("text")
    (tmp_path / "snapshots" / "20261123T000000.000000Z").mkdir(parents=True)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "part-0.parquet").touch()
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / slot_name(0)).touch()
    for path, journal, told in (
        (empty, None, "is empty (name the directory of a log"),
        (empty, "kestrel", "is empty (name the directory of a log"),
        (other, None, "holds no log, but a, b, c and 2 more"),
        (tmp_path / "log" / "no" / "where", None, f"does not exist ({log} has 000000001.log)"),
        (tmp_path / "nowhere", "workq", "does not exist"),
        (log / segment_name(1), None, f"is a file (name its directory: {log})"),
        (tmp_path / "snapshots", None, "such as {path}/20261123T000000.000000Z"),
        (tmp_path / "table", None, "spark.read.parquet"),
        (tmp_path / "spool", None, "holds a spool"),
        (CORPUS / "kestrel" / "names", None, "add option('journal', 'kestrel')"),
        (CORPUS / "beanstalkd" / "killed", None, "add option('journal', 'beanstalkd')"),
        (CORPUS / "beanstalkd" / "killed", "kestrel", "name beanstalkd instead"),
    ):
        options = {"path": str(path)} | ({} if journal is None else {"journal": journal})
        with pytest.raises(BadRequestError) as caught:
            FastjournalSource(options).check_directories()
        assert told.format(path=path) in str(caught.value), str(caught.value)
    # a daemon has just begun here
    (empty / APPEND_LOCK).touch()
    assert FastjournalSource({"path": str(empty)}).check_directories() == [str(empty)]


def test_schema_of_a_view_has_timestamps_or_microseconds(tmp_path: Path) -> None:
    write_log(tmp_path / "log", SegmentBuilder())
    for view in LOG_VIEWS:
        for options, wanted in (({}, "timestamp"), ({"instants": "us"}, "bigint")):
            source = FastjournalSource({"path": f"{tmp_path}/log", "view": view} | options)
            types = {one.name: one.dataType.simpleString() for one in source.schema().fields}
            of_events = view == "events"
            instants = {"time", "due", "lease_start"} if of_events else INSTANTS
            assert {types[name] for name in instants} == {wanted}
            numbers = ("wait_us", "run_us") if of_events else ("ttl", "arrival")
            assert {types[name] for name in numbers} == {"bigint"}


def test_schema_of_the_user_is_checked_before_anything_is_read() -> None:
    source = FastjournalSource({"columnNameOfCorruptRecord": "Bad"})
    asked = [("KEY", STRING), ("value", BinaryType()), ("time", BIGINT), ("Bad", STRING)]
    schema = StructType([StructField(name, kind, False) for name, kind in asked])
    found = source.check_schema(schema)
    assert [(one.name, one.source) for one in found] == [
        ("KEY", "key"), ("value", "value"), ("time", "time"), ("Bad", "_corrupt"),
    ]  # fmt: skip
    for name, kind, told in (
        ("key", BIGINT, "the column key of the view records cannot be BIGINT; it can be BINARY or"),
        ("created", STRING, "cannot be STRING; it can be TIMESTAMP or BIGINT"),
        ("priority", BIGINT, "cannot be BIGINT; it can be INT"),
        ("links", ArrayType(STRING), "cannot be ARRAY<STRING>; it can be ARRAY<BINARY>"),
        ("_corrupt", STRING, "has no column _corrupt; it has segment, offset"),
        ("tim", BIGINT, "did you mean time?"),
    ):
        with pytest.raises(BadRequestError) as caught:
            source.check_schema(StructType([StructField(name, kind)]))
        assert told in str(caught.value)
    for first, second in (("time", "time"), ("key", "KEY"), ("Bad", "Bad")):
        fields = [
            StructField(name, STRING if name != "time" else BIGINT) for name in (first, second)
        ]
        with pytest.raises(BadRequestError, match=f"the column {second} of the view records twice"):
            source.check_schema(StructType(fields))
    taken = FastjournalSource({"mode": "permissive", "columnNameOfCorruptRecord": "key"})
    with pytest.raises(BadRequestError, match="key is a column of the view records"):
        taken.check_schema(StructType([]))


def test_instants_that_are_none_or_never_are_null() -> None:
    instants = pa.array([0, 1, 2**63 - 1, None, TIMESTAMPS.stop - 1, TIMESTAMPS.stop])
    whole = pa.record_batch([instants, pa.array([b"a", b"\xff", None, b"", b"", b""])], ["c", "k"])
    columns = [
        RequestedColumn("created", "created", "instant", "timestamp", nullable=False),
        RequestedColumn("key", "key", "bytes", "string"),
    ]
    batch = cast_batch(whole, columns)
    assert batch.schema.field("created") == pa.field("created", pa.timestamp("us", "UTC"), False)
    assert batch.column(0).cast(pa.int64()).to_pylist() == (
        [None, 1, None, None, TIMESTAMPS.stop - 1, None]
    )
    assert batch.column(1).to_pylist() == ["a", "\\xff", None, "", "", ""]
    numbers = cast_batch(whole, [columns[0]._replace(type="bigint"), columns[1]]).column(0)
    assert numbers.to_pylist() == [None, *instants.to_pylist()[1:]]


HOUR_US = 3_600_000_000


def instant(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def range_of(**options: str) -> RecordRange:
    return RecordRange.of(Options({"path": "/log"} | options))


def test_range_of_records_is_named_by_numbers_instants_and_a_domain() -> None:
    assert range_of() == RecordRange()
    assert range_of(segments="7") == RecordRange(segments=(7, 7))
    assert range_of(segments=" 7-9 ") == RecordRange(segments=(7, 9))
    assert range_of(segments="7-") == RecordRange(segments=(7, None))
    assert range_of(domain="") == RecordRange(domain="")
    hour = range_of(since="1970-01-01T02:00:00+01:00", until="7200000000")
    assert hour == RecordRange(since_us=HOUR_US, until_us=2 * HOUR_US)
    assert range_of(since="0") == RecordRange(since_us=0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"segments": "seven"}, "option segments=seven is no number of a segment, such as 7, and"),
        ({"segments": "9-7"}, "option segments=9-7 is no number of a segment, such as 7, and no"),
        ({"segments": "7,9"}, "option segments=7,9 is no number"),
        ({"since": "yesterday"}, "option since=yesterday is no instant with a time zone, such as"),
        ({"until": "2026-11-20T08:00:00"}, "option until=.* is no instant with a time zone"),
        ({"since": "8", "until": "8"}, "option until=8 is not after since=8"),
        ({"view": "entries", "domain": "d"}, "option domain is not for the view entries"),
        (
            {"journal": "kestrel", "domain": "d"},
            "option domain is for a command log, not for a journal of kestrel",
        ),
    ],
)
def test_range_of_records_that_is_wrong_is_named(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadRequestError, match=told):
        range_of(**options)


def test_range_of_records_is_refused_for_a_stream(tmp_path: Path) -> None:
    (tmp_path / segment_name(1)).write_bytes(bytes(SegmentBuilder()))
    source = FastjournalSource({"path": str(tmp_path), "domain": "d"})
    with pytest.raises(BadRequestError, match="until are not for a stream"):
        source.streamReader(source.schema())


def test_range_of_records_has_its_rows_and_those_of_damage() -> None:
    batch = pa.record_batch(
        {
            "time": pa.array([1, 2, None, 2, None], pa.timestamp("us", "UTC")),
            "domain": ["a", "a", "a", "b", None],
            "command": ["add", "add", "add", "add", None],
        }
    )

    def rows(asked: RecordRange) -> list[int]:
        numbered = batch.append_column("row", pa.array(range(5)))
        return list(asked.rows(numbered).column("row").to_pylist())

    assert rows(RecordRange()) == [0, 1, 2, 3, 4]
    assert rows(RecordRange(domain="a")) == [0, 1, 2, 4]
    assert rows(RecordRange(domain="a", since_us=2)) == [1, 4]
    assert rows(RecordRange(since_us=0, until_us=2)) == [0, 4]
    assert rows(RecordRange(until_us=3)) == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"since": 2 * HOUR_US}, [2, 3]),
        ({"since": 3.5 * HOUR_US}, [3]),
        ({"since": 3.7 * HOUR_US}, []),
        ({"until": 2 * HOUR_US}, [1]),
        ({"until": 2 * HOUR_US + 1}, [1, 2]),
        ({"since": 1.7 * HOUR_US, "until": 2 * HOUR_US}, []),
        ({"segments": "1-2", "since": 2 * HOUR_US}, [2]),
        ({"segments": "2-"}, [2, 3]),
    ],
)
def test_range_of_records_leaves_the_segments_of_the_manifest_that_overlap(
    options: dict[str, Any], kept: list[int]
) -> None:
    listed = [
        ManifestSegment(
            segment_name(number),
            number,
            8,
            "00000000",
            number * HOUR_US,
            number * HOUR_US,
            1,
            number * HOUR_US,
            number * HOUR_US + HOUR_US - 20 * 60_000_000,
        )
        for number in (1, 2, 3)
    ]
    texts = {name: v if isinstance(v, str) else str(int(v)) for name, v in options.items()}
    asked = range_of(**texts)
    segments = [SegmentFile("", one.number, 8, last=False, open=False) for one in listed]
    pairs = zip(segments, listed, strict=True)
    assert [one.number for one, info in pairs if asked.has_segment(one, info)] == kept


DAY = timedelta(days=1)


def log_of_clocks(directory: Path, *clocks: Sequence[timedelta]) -> Path:
    """Write a log with a segment for each clock, take a snapshot of it, and return that.

    Args:
        directory: An empty one.
        clocks: Times of the records of a segment, from the begin of the log.
    """
    disk = OsDisk()
    directory.mkdir()
    writer = LogWriter(
        disk,
        str(directory),
        segment_bytes_max=1 << 20,
        sync=SyncPolicy.OS,
        active=None,
        sealed=(),
        segment_start=lambda _, now_us: encode_result(
            Command.COMPLETE, encode_time(now_us), bytes(16), b""
        ),
    )
    for times in clocks:
        for number, time in enumerate(times):
            now_us = START_US + time // timedelta(microseconds=1)
            job_id = number.to_bytes(16, "big")
            writer.append(
                encode_result(Command.COMPLETE, encode_time(now_us), job_id, b""), 1, now_us
            )
        writer.roll()
    writer.close()
    return Path(
        take_snapshot(disk, str(directory), f"{directory}/snapshots", writer.sealed, START_US)
    )


def test_range_of_time_loses_no_record_of_a_clock_that_was_set_back(tmp_path: Path) -> None:
    back_and_forth = [DAY * 0, -2 * DAY, 2 * DAY, DAY * 0]
    snapshot = log_of_clocks(
        tmp_path / "log", back_and_forth, [DAY * 0, DAY * 0.1], [-DAY, -DAY * 0.9], [DAY, DAY * 1.1]
    )
    all_times = read_times(snapshot)[0]
    assert len(all_times) == 4 + 10
    for days in range(-3, 4):
        begin, end = instant(START_US) + days * DAY, instant(START_US) + (days + 1) * DAY
        found, segments = read_times(snapshot, since=begin.isoformat(), until=end.isoformat())
        assert found == [time for time in all_times if begin <= time < end]
        # only what says that it has no such record is not opened
        assert segments == {-3: 0, -2: 1, -1: 2, 0: 2, 1: 2, 2: 1, 3: 0}[days]


def read_times(snapshot: Path, **options: str) -> tuple[list[datetime], int]:
    """Return the times of the records that options ask for, and the number of segments read."""
    source = FastjournalSource({"path": str(snapshot)} | options)
    reader = source.reader(StructType([StructField("time", TimestampType())]))
    partitions = list(reader.partitions())
    batches = [batch for one in partitions for batch in reader.read(one)]
    return [time for batch in batches for time in batch.column(0).to_pylist()], len(partitions)


def read_offsets(directory: Path, **options: str) -> list[list[int]]:
    """Return the offsets in each partition of the view records."""
    source = FastjournalSource({"path": str(directory)} | options)
    schema = StructType([StructField("offset", LongType())])
    reader = source.reader(schema)
    return [
        [offset for batch in reader.read(one) for offset in batch.column(0).to_pylist()]
        for one in reader.partitions()
    ]


def test_partition_is_a_slice_of_a_segment_larger_than_asked_for(tmp_path: Path) -> None:
    builder = SegmentBuilder()
    for number in range(100):
        builder.entry(b"%d" % number)
    (tmp_path / segment_name(1)).write_bytes(bytes(builder))
    assert read_offsets(tmp_path) == [builder.offsets]
    sliced = read_offsets(tmp_path, maxPartitionBytes=str(len(builder.data) // 4))
    assert [offset for part in sliced for offset in part] == builder.offsets
    assert [len(part) // 20 for part in sliced] == [1, 1, 1, 1]
    with pytest.raises(BadRequestError, match="maxPartitionBytes=1x is not a number of bytes"):
        read_offsets(tmp_path, maxPartitionBytes="1x")


def test_azure_is_the_same_container_and_prefix_for_both_of_its_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    obstore = pytest.importorskip("obstore.store")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(BadRequestError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        resolve("az://container/a/prefix")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    files, path = resolve("az://container/a/prefix")
    assert isinstance(files, pa.fs.AzureFileSystem)
    store = obstore.from_url("az://container/a/prefix")
    assert path == f"{store.config['container_name']}/{store.prefix}"


def test_checkpoint_is_known_by_its_path_and_options_of_a_uri_stay() -> None:
    name = "checkpoints/0000000002-000000000007.json"
    assert split_checkpoint(f"/a?b/{name}") == ("/a?b", ChunkId(2, 7))
    uri = f"s3://bucket/log/{name}?scheme=http"
    assert split_checkpoint(uri) == ("s3://bucket/log?scheme=http", ChunkId(2, 7))
    for other in ("/a", f"/a/{name}/", "/a/checkpoints/2-7.json", f"/a/more-{name}"):
        assert split_checkpoint(other) == (other, None)
