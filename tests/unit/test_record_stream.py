"""Stream of records without a Spark session: offsets, batches, restarts, changed segments."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import google_crc32c
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from fastjournal.cmdlog.archive import FORMAT, VERSION, ArchivedSegment, ArchiveState, write_state
from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.cmdlog.format.operation_records import SegmentStart
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.data_source.source import FastjournalSource
from fastjournal.spark.records.records_reader import Offset, RecordsStream
from fastjournal.testing.logs import SegmentBuilder
from tests.spark.random_logs import write_random_log

COLUMNS = ("segment", "offset", "command", "token", "key", "size")
Rows = list[tuple[Any, ...]]


def open_stream(directory: Path, **options: str) -> RecordsStream:
    source = FastjournalSource({"path": str(directory)} | options)
    schema = source.schema()
    schema.fields = [field for field in schema.fields if field.name in COLUMNS]
    stream = source.streamReader(schema)
    assert isinstance(stream, RecordsStream)
    return stream


def read(stream: RecordsStream, start: Offset, end: Offset) -> Rows:
    return sorted(
        tuple(row.values())
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    )


def read_whole(directory: Path) -> Rows:
    source = FastjournalSource({"path": str(directory)})
    schema = source.schema()
    schema.fields = [field for field in schema.fields if field.name in COLUMNS]
    reader = source.reader(schema)
    return sorted(
        tuple(row.values())
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    )


def batches(stream: RecordsStream, start: Offset) -> Iterator[tuple[Offset, Rows]]:
    """Yield the batches that Spark would run until nothing is new."""
    while True:
        end: Offset = json.loads(
            json.dumps(stream.latestOffset(start, stream.getDefaultReadLimit()))
        )
        if end == start:
            return
        yield end, read(stream, start, end)
        start = end


@pytest.mark.parametrize("seed", range(6))
def test_stream_of_a_growing_log_reads_each_record_once(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    write_random_log(tmp_path / "whole", seed, segments=3, records=40)
    log = tmp_path / "log"
    log.mkdir()
    options = {"maxBytesPerTrigger": str(draw.choice((1, 300, 2000)))} if seed % 3 else {}
    found: Rows = []
    end: Offset | None = None
    for path in sorted((tmp_path / "whole").iterdir()):
        data = path.read_bytes()
        # a writer stops anywhere, in a record or in a group
        cuts = sorted(draw.sample(range(8, len(data)), 3))
        for stop in (*cuts, len(data)):
            (log / path.name).write_bytes(data[:stop])
            stream = open_stream(log, **options)
            start = stream.initialOffset() if end is None else end
            for end, rows in batches(stream, start):
                assert rows
                # after a crash Spark asks a new reader for the same batch
                assert read(open_stream(log), start, end) == rows
                found += rows
                start = end
    assert len(found) > 100
    assert sorted(found) == read_whole(log)


def test_stream_takes_no_part_of_a_group_and_at_least_one_group(tmp_path: Path) -> None:
    segment = SegmentBuilder()
    jobs = [segment.entry(b"web:001:5:%d" % number) for number in range(5)]
    before = len(segment.data)
    segment.lease(jobs, 77)
    group = len(segment.data)
    segment.entry(b"last")
    (tmp_path / segment_name(1)).write_bytes(bytes(segment))
    stream = open_stream(tmp_path, maxBytesPerTrigger="1")
    ends = [end["offset"] for end, _ in batches(stream, stream.initialOffset())]
    assert ends == [*segment.offsets[1:6], before, group, len(segment.data)]
    for size in range(before, group):
        (tmp_path / segment_name(1)).write_bytes(bytes(segment)[:size])
        latest = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        assert latest["offset"] == before


def test_stream_with_the_trigger_available_now_ends_at_what_was_there(tmp_path: Path) -> None:
    segment = SegmentBuilder()
    for number in range(9):
        segment.entry(b"%d" % number)
    (tmp_path / segment_name(1)).write_bytes(bytes(segment))
    stream = open_stream(tmp_path, maxBytesPerTrigger="200")
    stream.prepareForTriggerAvailableNow()
    there = len(segment.data)
    segment.entry(b"later")
    (tmp_path / segment_name(1)).write_bytes(bytes(segment))
    ends = [end["offset"] for end, _ in batches(stream, stream.initialOffset())]
    assert len(ends) > 3
    assert ends[-1] == there


def test_stream_ends_with_an_error_where_a_segment_was_rewritten_or_is_gone(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    segment = SegmentBuilder()
    segment.entry(b"one", value=b"a" * 30)
    path.write_bytes(bytes(segment))
    stream = open_stream(tmp_path)
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert not start["sealed"]
    rewritten = SegmentBuilder()
    rewritten.entry(b"two", value=b"b" * 30)
    rewritten.entry(b"three")
    path.write_bytes(bytes(rewritten))
    with pytest.raises(LogCorruptError, match="was rewritten since"):
        stream.latestOffset(start, ReadAllAvailable())
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    with pytest.raises(LogCorruptError, match="was rewritten since"):
        read(stream, start, end)
    (tmp_path / segment_name(2)).write_bytes(bytes(SegmentBuilder(1)))
    end = stream.latestOffset(start | {"segment": 2, "offset": 0}, ReadAllAvailable())
    path.unlink()
    with pytest.raises(LogCorruptError, match="segment 1, of which a stream has read a part, is g"):
        stream.partitions(start, end)


def test_stream_follows_an_archive_and_a_directory_of_snapshots(tmp_path: Path) -> None:
    archive, snapshots = tmp_path / "archive", tmp_path / "snapshots"
    archive.mkdir()
    set_next(archive, 4)
    stream = open_stream(archive)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    found: Rows = []
    for number in (1, 2, 3):
        segment = SegmentBuilder(number - 1, ids_from=number * 1000)
        segment.entry(b"%d" % number)
        data = bytes(segment)
        (archive / f"{number:09d}-{google_crc32c.value(data):08x}.log").write_bytes(data)
        snapshot = snapshots / f"2026112{number}T000000.000000Z"
        snapshot.mkdir(parents=True)
        for taken in range(1, number + 1):
            (archived,) = archive.glob(f"*{taken}-*")
            (snapshot / segment_name(taken)).write_bytes(archived.read_bytes())
        ((start, rows),) = batches(stream, start)
        found += rows
        assert start["sealed"]
    assert len(found) == 6
    assert found == read_whole(archive)
    (second,) = archive.glob("*2-*")
    second.unlink()
    with pytest.raises(LogCorruptError, match="segment 2 is not there"):
        read(stream, stream.initialOffset(), start)
    assert len(read(open_stream(archive, mode="permissive"), stream.initialOffset(), start)) == 4
    newest = open_stream(snapshots)
    end = newest.latestOffset(newest.initialOffset(), ReadAllAvailable())
    assert read(newest, newest.initialOffset(), end) == found
    assert end["segment"] == start["segment"] == 3
    with pytest.raises(BadRequestError, match="holds snapshots"):
        read_whole(snapshots)


def test_stream_is_of_one_directory_and_of_the_view_records(tmp_path: Path) -> None:
    (tmp_path / segment_name(1)).write_bytes(bytes(SegmentBuilder()))
    for options in ({"view": "entries"}, {"maxBytesPerTrigger": "0"}, {"maxBytesPerTrigger": "1x"}):
        with pytest.raises(BadRequestError):
            open_stream(tmp_path, **options)


def set_next(archive: Path, number: int) -> None:
    """Let the state of an archive say which segment comes next."""
    write_state(OsDisk(), str(archive), ArchiveState(FORMAT, VERSION, number, None, ()))


def archive_segment(directory: Path, number: int, data: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / f"{number:09d}-{google_crc32c.value(data):08x}.log"
    path.write_bytes(data)
    return path


def test_stream_refuses_a_longer_segment_with_another_begin(tmp_path: Path) -> None:
    segment = SegmentBuilder()
    segment.entry(b"one")
    archive_segment(tmp_path, 1, bytes(segment))
    stream = open_stream(tmp_path)
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    other = SegmentBuilder()
    other.entry(b"two")
    other.entry(b"three")
    archive_segment(tmp_path, 1, bytes(other))
    end = stream.latestOffset(start, ReadAllAvailable())
    with pytest.raises(LogCorruptError, match="was rewritten since"):
        read(stream, start, end)


def sealed_segment(number: int, before: bytes | None, key: bytes) -> bytes:
    """Return a segment that names the one before it, as the daemon writes it."""
    segment = SegmentBuilder(None, ids_from=number * 1000 + key[0])
    crc32c = 0 if before is None else google_crc32c.value(before)
    segment.operation(SegmentStart(number - 1, 0, len(before or b""), crc32c, 0))
    segment.entry(key)
    return bytes(segment)


def restored(tmp_path: Path) -> tuple[RecordsStream, Offset, list[bytes]]:
    """Return a stream that has read three segments of an archive, its offset, and these."""
    datas = list[bytes]()
    for number in (1, 2, 3):
        datas.append(sealed_segment(number, datas[-1] if datas else None, b"one"))
        archive_segment(tmp_path, number, datas[-1])
    set_next(tmp_path, 4)
    stream = open_stream(tmp_path)
    ((start, _),) = batches(stream, stream.initialOffset())
    assert start["segment"] == 3
    return stream, start, datas


ANEW = "archive the log to another directory, and begin anew with another checkpoint"


def test_stream_refuses_a_segment_of_a_restored_log_with_the_same_number_and_size(
    tmp_path: Path,
) -> None:
    stream, start, datas = restored(tmp_path)
    other = sealed_segment(3, datas[1], b"two")
    assert len(other) == len(datas[2])
    archive_segment(tmp_path, 3, other)
    with pytest.raises(LogCorruptError, match=f"stream has read another segment 3 .*{ANEW}"):
        stream.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("others_stay", [True, False])
def test_stream_refuses_an_archive_that_goes_on_under_lower_numbers(
    others_stay: bool, tmp_path: Path
) -> None:
    stream, start, datas = restored(tmp_path)
    set_next(tmp_path, 2)
    # nothing has come so far, and the state may come behind the link of the last segment
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    for path in () if others_stay else tmp_path.glob("*.log"):
        path.unlink()
    archive_segment(tmp_path, 2, sealed_segment(2, datas[0], b"two"))
    set_next(tmp_path, 3)
    with pytest.raises(LogCorruptError, match=f"ends at segment 2, .* up to segment 3 .*{ANEW}"):
        stream.latestOffset(start, ReadAllAvailable())


def test_stream_refuses_a_segment_that_follows_another_one_than_it_has_read(tmp_path: Path) -> None:
    stream, start, datas = restored(tmp_path)
    # while the stream was down a restored log went beyond the number that it has read
    shorter = sealed_segment(3, datas[1], b"2")
    archive_segment(tmp_path, 4, sealed_segment(4, shorter, b"four"))
    set_next(tmp_path, 5)
    end = stream.latestOffset(start, ReadAllAvailable())
    text = f"segment 3 before it had {len(shorter)} bytes and another checksum"
    with pytest.raises(LogCorruptError, match=text):
        read(stream, start, end)
    assert len(read(open_stream(tmp_path, mode="permissive"), start, end)) == 2
    (path,) = tmp_path.glob("*4-*")
    path.unlink()
    archive_segment(tmp_path, 4, sealed_segment(4, datas[2], b"four"))
    assert len(read(stream, start, stream.latestOffset(start, ReadAllAvailable()))) == 2


def test_stream_of_a_log_refuses_one_that_was_restored(tmp_path: Path) -> None:
    paths = [tmp_path / segment_name(number) for number in (1, 2, 3)]
    datas = [bytes(SegmentBuilder(number, ids_from=100 * number)) for number in range(3)]
    for path, data in zip(paths, datas, strict=True):
        path.write_bytes(data)
    stream = open_stream(tmp_path)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert end["segment"] == 3
    (paths[1].parent / segment_name(4)).write_bytes(bytes(SegmentBuilder(3)))
    ((sealed, _),) = batches(open_stream(tmp_path, maxBytesPerTrigger="1"), end)
    before = stream.latestOffset(
        stream.initialOffset(), ReadMaxBytes(sum(len(data) for data in datas[:2]))
    )
    assert (before["segment"], before["sealed"]) == (2, True)
    after = stream.latestOffset(before, ReadAllAvailable())
    paths[1].write_bytes(bytes(SegmentBuilder(1, ids_from=777)))
    assert paths[1].stat().st_size == before["offset"]
    with pytest.raises(LogCorruptError, match=f"stream has read another segment 2 .*{ANEW}"):
        read(stream, before, after)
    for path in (paths[2], tmp_path / segment_name(4)):
        path.unlink()
    with pytest.raises(LogCorruptError, match=f"ends at segment 2, .* segment {sealed['segment']}"):
        stream.latestOffset(sealed, ReadAllAvailable())


def test_stream_of_an_archive_names_segments_far_from_each_other_at_once(tmp_path: Path) -> None:
    data = bytes(SegmentBuilder())
    last = 5_000_000
    for number in (1, 3, 3_000_000, last):
        name = ArchivedSegment(number, google_crc32c.value(data)).name
        (tmp_path / name).write_bytes(data)
    stream = open_stream(tmp_path)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert (end["first"], end["segment"]) == (1, last)
    begun = time.process_time()
    told = f"segment 2 is not there, nor {last - 5} more behind"
    with pytest.raises(LogCorruptError, match=told):
        read(stream, start, end)
    assert time.process_time() - begun < 1
