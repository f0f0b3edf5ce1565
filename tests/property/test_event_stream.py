"""Stream of events without a Spark session: each event once, whatever is repeated or cleaned."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark")

import google_crc32c

from fastjournal.cmdlog.archive import FORMAT, VERSION, ArchiveState, write_state
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.data_source.source import EventsStream, FastjournalSource
from fastjournal.spark.decoding.vectorised.groups import find_group_end
from fastjournal.spark.records.records_reader import Offset, RecordsStream
from fastjournal.spark.storage.files import SegmentFile
from tests.property.event_ledger import EventLedger, day_of
from tests.property.ledger_run import LedgerRun

OPERATIONS = 300
Rows = list[dict[str, Any]]
Segments = tuple[tuple[str, bytes], ...]
"""Names and contents, in the order of the log."""


def open_stream(archive: Path, **options: str) -> EventsStream:
    given = {"path": str(archive), "view": "events", "instants": "us"}
    source = FastjournalSource(given | options)
    stream = source.streamReader(source.schema())
    assert isinstance(stream, EventsStream)
    return stream


def read(stream: EventsStream | RecordsStream, start: Offset, end: Offset) -> Rows:
    return [
        row
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


def next_offset(stream: EventsStream | RecordsStream, start: Offset) -> Offset:
    """Return the end of the next batch, as it comes back from the checkpoint."""
    end: Offset = json.loads(json.dumps(stream.latestOffset(start, stream.getDefaultReadLimit())))
    return end


def read_first(stream: EventsStream | RecordsStream) -> tuple[Offset, Offset, Rows]:
    """Return begin, end and rows of the first batch; there is something new."""
    start = stream.initialOffset()
    end = next_offset(stream, start)
    rows = read(stream, start, end)
    assert rows
    return start, end, rows


def batches(stream: EventsStream, start: Offset) -> Iterator[tuple[Offset, Offset, Rows]]:
    """Yield begin, end and rows of the batches until nothing is new."""
    while (end := next_offset(stream, start)) != start:
        yield start, end, read(stream, start, end)
        start = end


def begin_archive(directory: Path) -> Path:
    archive = directory / "archive"
    archive.mkdir(parents=True)
    write_state(OsDisk(), str(archive), ArchiveState(FORMAT, VERSION, 1000, None, ()))
    return archive


def write_archive(archive: Path, segments: Iterable[tuple[str, bytes]]) -> None:
    for name, data in segments:
        (archive / name).write_bytes(data)


def read_at_once(directory: Path, segments: Segments, **options: str) -> Rows:
    """Return the rows of an archive of its own, of one batch."""
    archive = begin_archive(directory)
    write_archive(archive, segments)
    stream = open_stream(archive, **options)
    ((_, _, rows),) = batches(stream, stream.initialOffset())
    return rows


def segments_of(archive: Path) -> list[str]:
    return sorted(path.name for path in archive.glob("*.log"))


@cache
def ledger_segments(seed: int) -> tuple[EventLedger, Segments]:
    """Return a ledger that has worked, and the segments of its log."""
    ledger = EventLedger(seed)
    run = LedgerRun(ledger, OPERATIONS, lambda _: None)
    run.run()
    return ledger, tuple(sorted(run.kept.items()))


@pytest.fixture
def segments() -> Segments:
    return ledger_segments(1)[1]


@pytest.fixture
def other_segments() -> Segments:
    """Segments of another log."""
    return ledger_segments(2)[1]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return begin_archive(tmp_path)


class Archived(NamedTuple):
    """An archive of one segment, and the first batch of a stream of events of it."""

    archive: Path
    segments: Segments
    stream: EventsStream
    start: Offset
    end: Offset


@pytest.fixture
def archived(archive: Path, segments: Segments) -> Archived:
    write_archive(archive, segments[:1])
    stream = open_stream(archive)
    start = stream.initialOffset()
    return Archived(archive, segments, stream, start, next_offset(stream, start))


@pytest.mark.parametrize("seed", range(3))
def test_stream_of_events_equals_the_ledger_over_restarts_and_repeated_batches(
    seed: int, archive: Path
) -> None:
    draw = random.Random(seed)
    ledger, segments = ledger_segments(seed)
    options = {"maxBytesPerTrigger": str(draw.choice((1, 9000)))} | {"cleanSource": "delete"}
    found: Rows = []
    start = open_stream(archive, **options).initialOffset()
    uncommitted: Offset | None = None
    while segments or uncommitted is not None:
        for name, data in segments[:4]:
            (archive / name).write_bytes(data)
        segments = segments[4:]
        stream = open_stream(archive, **options)
        uncommitted = None
        for begin, end, rows in batches(stream, start):
            there = segments_of(archive)
            if draw.random() < 0.5:
                # killed before Spark knew that the batch was done: a new reader repeats it
                stream = open_stream(archive, **options)
                assert read(stream, begin, end) == rows
            assert segments_of(archive) == there, "nothing goes before the commit"
            found += rows
            start = uncommitted = end
            if draw.random() < 0.7:
                stream.commit(end)
                uncommitted = None
                first = end["segment"] + (1 if end["sealed"] else 0)
                assert [one for one in segments_of(archive) if int(one[:9]) < first] == []
    counted = Counter((day_of(row["time"]), row["event"]) for row in found)
    assert counted == {(day, str(kind)): n for (day, kind), n in ledger.counts.items()}


def test_stream_of_events_keeps_segments_unless_it_is_asked_to_clean(
    archive: Path, segments: Segments
) -> None:
    write_archive(archive, segments)
    stream = open_stream(archive)
    ((_, end, _),) = batches(stream, stream.initialOffset())
    stream.commit(end)
    assert segments_of(archive) == [name for name, _ in segments]


def test_stream_of_records_unlinks_archived_segments_of_committed_batches(
    archive: Path, segments: Segments
) -> None:
    write_archive(archive, segments)
    # in the middle of the third one
    size = sum(len(data) for _, data in segments[:2]) + len(segments[2][1]) // 2
    stream = open_view("records", archive, maxBytesPerTrigger=str(size))
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert (end["segment"], end["sealed"]) == (3, False)
    assert len(segments_of(archive)) == len(segments)
    stream.commit(end)
    assert segments_of(archive) == [name for name, _ in segments[2:]]
    following = stream.latestOffset(end, stream.getDefaultReadLimit())
    assert following["segment"] > 3
    assert stream.partitions(end, following)


def test_stream_of_events_ends_at_a_gap_or_tells_of_it_in_a_row(
    archive: Path, segments: Segments
) -> None:
    for number, (name, data) in enumerate(segments[:6]):
        if number not in (2, 3):
            (archive / name).write_bytes(data if number != 4 else data[:-1])
    stream = open_stream(archive)
    end = next_offset(stream, stream.initialOffset())
    with pytest.raises(LogCorruptError, match="segments 3 to 4 are not there"):
        read(stream, stream.initialOffset(), end)
    stream = open_stream(archive, mode="permissive")
    rows = read(stream, stream.initialOffset(), end)
    texts = [row["_corrupt"] for row in rows if row["_corrupt"] is not None]
    assert "segments 3 to 4 are not there" in texts[0]
    # the segment behind the damaged one says how it was
    assert "segment 5 before it had" in texts[1]
    assert "the segment has another checksum" in texts[2]
    assert len(texts) == 3
    assert {row["segment"] for row in rows if row["_corrupt"] is None} == {1, 2, 6}


def test_stream_of_events_takes_the_rest_of_a_segment_that_grew(
    archive: Path, other_segments: Segments, tmp_path: Path
) -> None:
    write_archive(archive, [shortened(1, other_segments[0][1])])
    stream = open_stream(archive)
    ((_, end, first),) = batches(stream, stream.initialOffset())
    write_archive(archive, other_segments[:1])
    ((_, _, rest),) = batches(open_stream(archive), end)
    both = read_at_once(tmp_path / "whole", other_segments[:1])
    assert first + rest == both
    assert first
    assert rest


@pytest.mark.parametrize("mode", ["failfast", "permissive"])
@pytest.mark.parametrize("keeps_both", [True, False])
def test_stream_of_events_repeats_a_batch_whose_last_segment_grew_meanwhile(
    mode: str, keeps_both: bool, archive: Path, other_segments: Segments, tmp_path: Path
) -> None:
    name, data = other_segments[1]
    shorter = shortened(2, data)
    short = archive / shorter[0]
    write_archive(archive, [other_segments[0], shorter])
    stream = open_stream(archive, mode=mode)
    start = stream.initialOffset()
    planned = next_offset(stream, start)
    expected = read(stream, start, planned)
    # killed before Spark knew that the batch was done; the daemon archives the rest
    (archive / name).write_bytes(data)
    if not keeps_both:
        short.unlink()
    stream = open_stream(archive, mode=mode)
    assert read(stream, start, planned) == expected
    ((_, _, rest),) = batches(stream, planned)
    assert rest
    both = read_at_once(tmp_path / "whole", other_segments[:2], mode=mode)
    assert expected + rest == both


def check_missing(
    stream: EventsStream | RecordsStream, mode: str, start: Offset, end: Offset, names: str
) -> Rows:
    """Check that a batch ends with an error, or tells of segments in a row; return the others."""
    text = f"{names} not there"
    if mode == "failfast":
        with pytest.raises(LogCorruptError, match=text):
            stream.partitions(start, end)
        return []
    told, *rows = read(stream, start, end)
    assert text in told["_corrupt"]
    return rows


def test_stream_of_events_says_what_it_needs(archived: Archived, tmp_path: Path) -> None:
    archive, segments, *_ = archived
    with pytest.raises(BadRequestError, match="cleanSource=archive is not one of off, delete"):
        open_stream(archive, cleanSource="archive")
    log = tmp_path / "log"
    log.mkdir()
    (log / "000000001.log").write_bytes(segments[0][1])
    with pytest.raises(BadRequestError, match="is no archive, and a stream of events reads one"):
        open_stream(log)
    source = FastjournalSource({"path": str(log), "cleanSource": "delete"})
    schema = source.schema()
    with pytest.raises(BadRequestError, match="is no archive, and cleanSource=delete cleans one"):
        source.streamReader(schema)


def other_version(name: str, data: bytes) -> tuple[str, bytes]:
    """Return a segment of a restored log: of the same number and size, and with other bytes."""
    other = data[:-1] + bytes([data[-1] ^ 1])
    return f"{name[:9]}-{google_crc32c.value(other):08x}.log", other


def shortened(number: int, data: bytes) -> tuple[str, bytes]:
    """Return a segment as it was archived before it grew: whole record groups of its first half."""
    segment = SegmentFile(str(number), number, len(data), True, False)
    shorter = data[: find_group_end(data, segment, 0, len(data) // 2, forced=False)]
    return f"{number:09d}-{google_crc32c.value(shorter):08x}.log", shorter


def open_view(view: str, archive: Path, **options: str) -> EventsStream | RecordsStream:
    given = {"path": str(archive), "view": view, "cleanSource": "delete"} | options
    source = FastjournalSource(given | ({"instants": "us"} if view == "events" else {}))
    stream = source.streamReader(source.schema())
    assert isinstance(stream, EventsStream | RecordsStream)
    return stream


VIEWS = pytest.mark.parametrize("view", ["events", "records"])


@VIEWS
def test_stream_unlinks_only_segments_that_it_has_read(
    view: str, archive: Path, segments: Segments
) -> None:
    write_archive(archive, segments[2:4])
    stream = open_view(view, archive)
    _, end, _ = read_first(stream)
    # after the batch: one from before it, and those of a restored log
    restored = [other_version(*segment) for segment in segments[1:3]]
    unread = [segments[0], *restored]
    write_archive(archive, unread)
    stream.commit(end)
    assert segments_of(archive) == sorted(name for name, _ in unread)
    write_archive(archive, segments[4:5])
    stream = open_view(view, archive)
    following = next_offset(stream, end)
    assert read(stream, end, following)
    stream.commit(following)
    assert segments_of(archive) == sorted(name for name, _ in unread)


@VIEWS
def test_stream_unlinks_what_a_commit_before_a_crash_left(
    view: str, archive: Path, segments: Segments
) -> None:
    write_archive(archive, segments[:2])
    stream = open_view(view, archive)
    _, end, _ = read_first(stream)
    # killed behind the plan of the next batch, before the commit of this one
    write_archive(archive, segments[2:3])
    following = next_offset(stream, end)
    stream = open_view(view, archive)
    assert read(stream, end, following)
    stream.commit(following)
    assert segments_of(archive) == []


@VIEWS
def test_stream_unlinks_both_versions_of_a_segment_that_grew(
    view: str, archive: Path, other_segments: Segments
) -> None:
    write_archive(archive, [shortened(1, other_segments[0][1]), other_segments[0]])
    stream = open_view(view, archive)
    _, end, _ = read_first(stream)
    stream.commit(end)
    assert segments_of(archive) == []
    # the next one grows behind the plan of its batch
    name, data = other_segments[1]
    write_archive(archive, [shortened(2, data)])
    planned = next_offset(stream, end)
    write_archive(archive, [(name, data)])
    first = read(stream, end, planned)
    stream.commit(planned)
    assert segments_of(archive) == [name], "its rest was not read"
    last = next_offset(stream, planned)
    assert first or view == "events"
    assert read(stream, planned, last)
    stream.commit(last)
    assert segments_of(archive) == []


@VIEWS
def test_stream_keeps_damaged_segments_under_another_name(
    view: str, archive: Path, segments: Segments
) -> None:
    write_archive(archive, segments[:3])
    name, data = segments[1]
    damaged = (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    )
    (archive / name).write_bytes(damaged)
    stream = open_view(view, archive, mode="permissive")
    _, end, rows = read_first(stream)
    assert any(row["_corrupt"] is not None for row in rows)
    stream.commit(end)
    assert segments_of(archive) == []
    assert (archive / f"{name}.damaged").read_bytes() == damaged
    # a commit that Spark repeats finds nothing to do
    stream.commit(end)
    assert next_offset(open_view(view, archive, mode="permissive"), end) == end


@VIEWS
def test_stream_leaves_the_last_segment_of_an_archive_without_its_state(
    view: str, segments: Segments, tmp_path: Path
) -> None:
    archive = tmp_path / "copy"
    archive.mkdir()
    write_archive(archive, segments[:3])
    stream = open_view(view, archive)
    _, end, _ = read_first(stream)
    stream.commit(end)
    assert segments_of(archive) == [segments[2][0]]
    stream = open_view(view, archive)
    assert next_offset(stream, end) == end
    write_archive(archive, segments[3:5])
    following = next_offset(stream, end)
    assert read(stream, end, following)
    stream.commit(following)
    assert segments_of(archive) == [segments[4][0]]


def test_stream_of_events_ends_where_its_last_segment_was_replaced(
    archive: Path, segments: Segments
) -> None:
    write_archive(archive, segments[:2])
    stream = open_stream(archive)
    ((_, end, _),) = batches(stream, stream.initialOffset())
    (archive / segments[1][0]).unlink()
    restored = other_version(*segments[1])
    write_archive(archive, [restored, segments[2]])
    with pytest.raises(LogCorruptError, match="the stream has read another segment 2") as raised:
        next_offset(open_stream(archive), end)
    assert restored[0] in str(raised.value)
    assert "another checkpoint" in str(raised.value)


def test_stream_of_events_ends_behind_a_last_segment_that_was_replaced_by_a_shorter_one(
    archive: Path, segments: Segments
) -> None:
    write_archive(archive, segments[:2])
    stream = open_stream(archive)
    ((_, start, _),) = batches(stream, stream.initialOffset())
    name, data = segments[1]
    (archive / name).unlink()
    write_archive(archive, [other_version(name, data[:-9]), segments[2]])
    stream = open_stream(archive)
    end = next_offset(stream, start)
    with pytest.raises(LogCorruptError, match=r"segment 2 before it had .* another checkpoint"):
        read(stream, start, end)


def test_stream_of_events_refuses_a_segment_that_follows_another_one_than_it_has_read(
    archive: Path, segments: Segments, other_segments: Segments
) -> None:
    write_archive(archive, segments[:3])
    stream = open_stream(archive)
    _, start, _ = read_first(stream)
    # while the stream was down a restored log went beyond the number that it has read
    write_archive(archive, other_segments[3:4])
    end = next_offset(stream, start)
    text = "segment 3 before it had .* and another checksum .* begin anew with another checkpoint"
    with pytest.raises(LogCorruptError, match=text):
        read(stream, start, end)
    rows = read(open_stream(archive, mode="permissive"), start, end)
    assert len([row for row in rows if "segment 3 before it had" in str(row)]) == 1


def test_stream_of_events_knows_a_shorter_version_of_what_it_has_read(
    archive: Path, other_segments: Segments
) -> None:
    name, data = other_segments[0]
    shorter = data[: len(data) // 2]
    short = f"000000001-{google_crc32c.value(shorter):08x}.log"
    write_archive(archive, [(short, shorter), (name, data)])
    stream = open_stream(archive)
    ((_, end, _),) = batches(stream, stream.initialOffset())
    # the daemon drops files beyond its bound
    (archive / name).unlink()
    assert next_offset(open_stream(archive), end) == end


@pytest.mark.parametrize(
    ("view", "mode"), [("events", "failfast"), ("events", "permissive"), ("records", "failfast")]
)
def test_stream_misses_the_segments_that_its_first_batch_was_planned_with(
    view: str, mode: str, archive: Path, segments: Segments
) -> None:
    write_archive(archive, segments[1:4])
    stream = open_view(view, archive, mode=mode)
    start = stream.initialOffset()
    end = next_offset(stream, start)
    (archive / segments[1][0]).unlink()
    stream = open_view(view, archive, mode=mode)
    rows = check_missing(stream, mode, start, end, "segment 2 is")
    assert {row["segment"] for row in rows} == ({3, 4} if mode == "permissive" else set())
