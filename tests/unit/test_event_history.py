"""Event history of files: a compacted log, an archive, a table; and the span that it tells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import google_crc32c
import pytest

pytest.importorskip("pyspark")


from fastjournal.cmdlog.archive import (
    FORMAT,
    VERSION,
    ArchivedSegment,
    ArchiveState,
    Gap,
    join_gaps,
    write_state,
)
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.protocol.constants import Function
from fastjournal.spark import event_span
from fastjournal.spark.data_source.source import FastjournalSource
from fastjournal.spark.history.archive_taking import take_archive
from fastjournal.spark.history.coverage import gaps_of, spans
from fastjournal.spark.history.event_rows import EventRow
from fastjournal.spark.history.events_view import history_parts, read_events
from fastjournal.spark.storage.files import LogDirectory
from tests.property.compacted_log import LOG
from tests.property.event_archives import events_on
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun
from tests.property.subject import SECOND
from tests.property.test_event_extraction import events_of_segment
from tests.spark.plain_reader import segment_rows


class Kept:
    """Directories with the log and the archive of a ledger, and the events of all of it."""

    def __init__(self, directory: Path) -> None:
        run = LedgerRun(EventLedger(5), 400, lambda _: None)
        run.run()
        run.compact()
        for _ in range(60):
            run.ledger.set()
            run.ledger.next(pop=False)
            run.ledger.work()
        run.log.flush()
        run.log.roll()
        run.archive_sealed()
        self.log, self.archive = directory / "log", directory / "archive"
        for made in (self.log, self.archive):
            made.mkdir()
        disk = run.log.disk
        for name in run.log.segments():
            (self.log / name).write_bytes(disk.read(f"{LOG}/{name}"))
        for name, data in run.kept.items():
            (self.archive / name).write_bytes(data)
        self.events = [
            event
            for name, data in sorted(run.kept.items())
            for event in events_of_segment(name, data)
        ]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("history"))


def read(directory: Path) -> list[tuple[object, ...]]:
    found = [
        (row["segment"], row["offset"], row["event"], row["key"])
        for part in history_parts(str(directory))
        for batch in read_events(part)
        for row in batch.to_pylist()
    ]
    return sorted(found, key=str)


def told(events: list[EventRow], first: int = 0) -> list[tuple[object, ...]]:
    found = [
        (event.segment, event.offset, str(event.event), event.key)
        for event in events
        if event.segment >= first
    ]
    return sorted(found, key=str)


def test_history_of_a_compacted_log_is_that_of_its_last_whole_segments(kept: Kept) -> None:
    numbers = [int(path.stem) for path in kept.log.iterdir()]
    span = event_span(kept.log)
    assert min(numbers) < span.first < span.last == max(numbers)
    assert span.gaps == []
    assert read(kept.log) == told(kept.events, span.first)
    times = [event.time for event in kept.events if event.segment >= span.first]
    assert span.first_us is not None
    assert span.first_us <= min(time for time in times if time is not None)


def test_span_of_a_log_has_all_times_of_a_clock_that_was_set_back(tmp_path: Path) -> None:
    ledger = EventLedger(1)
    log = ledger.log
    run = LedgerRun(ledger, 0, lambda _: None)
    start = log.clock.instant_us
    log.done(Function.SET, b"gone", b"v")
    log.done(Function.DELETE, b"gone")
    gone = log.roll()
    for minutes in (30, 24, 26, 25):
        log.clock.instant_us = start + minutes * 60 * SECOND
        log.restart()
        run.open()
        log.done(Function.SET, b"a:1:0:%d" % minutes, b"v")
        if minutes == 30:
            run.archive_sealed()
            # compaction writes the tombstone again, with its old time
            log.clean(gone)
        log.roll()
    run.archive_sealed()
    archive, disk = tmp_path / "archive", log.disk
    archive.mkdir()
    for name in disk.listdir(ARCHIVE):
        if name.endswith(".log") and not name.startswith(f"{gone.number:09d}"):
            (archive / name).write_bytes(disk.read(f"{ARCHIVE}/{name}"))
    span = event_span(archive)
    assert span is not None
    expected = (start + 24 * 60 * SECOND, start + 30 * 60 * SECOND)
    assert (span.first_us, span.last_us) == expected
    events = events_on(OsDisk(), str(tmp_path))
    take_archive(OsDisk(), str(archive), events)
    assert event_span(tmp_path / "events") == span
    taken = events.segments()
    (covered,) = spans(taken, gaps_of(taken))
    assert (covered.first_us, covered.last_us) == expected


def test_history_of_an_archive_and_of_its_table_are_the_same(kept: Kept, tmp_path: Path) -> None:
    span = event_span(kept.archive)
    assert span is not None
    assert read(kept.archive) == told(kept.events)
    archive = tmp_path / "archive"
    archive.mkdir()
    for path in kept.archive.iterdir():
        (archive / path.name).write_bytes(path.read_bytes())
    missing = sorted(archive.iterdir())[3]
    take_archive(OsDisk(), str(archive), events_on(OsDisk(), str(tmp_path / "out")))
    assert read(tmp_path / "out") == read(tmp_path / "out" / "events") == told(kept.events)
    assert event_span(tmp_path / "out") == span
    # what was taken and is gone is a gap of the archive alone
    for path in sorted(kept.archive.iterdir()):
        if path.name != missing.name:
            (archive / path.name).write_bytes(path.read_bytes())
    assert event_span(archive).gaps == [(4, 4, "missing")]


@pytest.mark.parametrize("lost", [2, 3])
def test_gap_of_an_archive_ends_the_view_events_or_is_a_row(
    kept: Kept, tmp_path: Path, lost: int
) -> None:
    archived = copy_archive(kept, tmp_path)
    archived[lost - 1].unlink()
    with pytest.raises(LogCorruptError, match=rf"segment {lost} is not there .*mode=permissive"):
        view(tmp_path)
    found = view(tmp_path, mode="permissive")
    assert corrupt(found) == [f"{tmp_path}: segment {lost} is not there"]
    assert told_by(found) == told(extracted(path for path in archived if path.exists()))


def test_gap_that_the_state_of_an_archive_names_ends_the_view_events_where_it_adjoins(
    kept: Kept, tmp_path: Path
) -> None:
    for path in copy_archive(kept, tmp_path)[:4]:
        path.unlink()
    last = event_span(tmp_path)
    assert (last.first, last.gaps) == (5, [])
    dropped, beside = Gap(3, 4, 2, 99, None, None, "dropped"), Gap(3, 4, 2, 99, 1, 2, "compacted")
    taken = Gap(1, 2, 2, 99, None, None, "dropped")
    lost = Gap(1, 2, 2, 98, None, None, "dropped")
    unlinked = Gap(last.last + 1, last.last + 1, 1, 9, None, None, "not-linked")
    for gaps, expected in (
        ([beside], []),
        ([taken], []),
        ([taken, dropped], ["segments 1 to 4 are not there (dropped)"]),
        ([dropped], ["segments 3 to 4 are not there (dropped)"]),
        ([unlinked], [f"segment {last.last + 1} is not there (not-linked)"]),
        # the state says that it was there, and no segment comes behind it
        ([lost], [f"segment {last.last + 1} is not there"]),
    ):
        following = last.last + 1 + (unlinked in gaps or lost in gaps)
        state = ArchiveState(FORMAT, VERSION, following, None, join_gaps(gaps))
        write_state(OsDisk(), str(tmp_path), state)
        if expected:
            with pytest.raises(LogCorruptError, match=re.escape(expected[0])):
                view(tmp_path)
        found = view(tmp_path, mode="permissive")
        texts = corrupt(found)
        assert texts == [f"{tmp_path}: {text}" for text in expected]
        assert len(found) > len(texts)
        # a stream begins at what is there
        assert FastjournalSource({"view": "events", "path": str(tmp_path)}).schema()


def test_damaged_segment_of_an_archive_ends_the_view_events_or_is_a_row(
    kept: Kept, tmp_path: Path
) -> None:
    archived = copy_archive(kept, tmp_path)
    data = bytearray(archived[2].read_bytes())
    data[-1] ^= 1
    archived[2].write_bytes(data)
    with pytest.raises(LogCorruptError, match="another checksum"):
        view(tmp_path)
    found = view(tmp_path, mode="permissive")
    assert corrupt(found) == [f"{archived[2]}: the segment has another checksum"]
    assert told_by(found) == told(extracted(archived[:2] + archived[3:]))


def test_segment_of_an_archive_that_is_shorter_than_it_was_sealed_is_named(
    kept: Kept, tmp_path: Path
) -> None:
    archived = copy_archive(kept, tmp_path)
    segment = LogDirectory(tmp_path).segments[2]
    data = archived[2].read_bytes()
    # a whole record is missing at its end, so that only the next segment tells
    data = data[: list(segment_rows(data, segment, permissive=False))[-1].offset]
    archived[2].unlink()
    (tmp_path / ArchivedSegment(3, google_crc32c.value(data)).name).write_bytes(data)
    with pytest.raises(LogCorruptError, match=r"segment 3 before it had .* when it was sealed"):
        view(tmp_path)
    texts = corrupt(view(tmp_path, mode="permissive"))
    assert len(texts) == 1
    assert texts[0].startswith(f"{archived[3]}: segment 3 before it had ")


def test_gap_of_a_table_is_a_row_of_the_view_events_in_mode_permissive(
    kept: Kept, tmp_path: Path
) -> None:
    archive, table = tmp_path / "archive", tmp_path / "out" / "events"
    archive.mkdir()
    copy_archive(kept, archive)[2].unlink()
    take_archive(OsDisk(), str(archive), events_on(OsDisk(), str(tmp_path / "out")))
    found = view(table, mode="permissive")
    texts = corrupt(found)
    assert texts == [f"{table}: segment 3 is not there"]
    assert len(found) == len(view(table)) + 1


def corrupt(rows: list[dict[str, object]]) -> list[object]:
    return [row["_corrupt"] for row in rows if row["_corrupt"]]


def view(directory: Path, **options: str) -> list[dict[str, object]]:
    """Return the rows of the view events, as Spark's tasks read them."""
    source = FastjournalSource({"view": "events", "path": str(directory), **options})
    reader = source.reader(source.schema())
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def copy_archive(kept: Kept, directory: Path) -> list[Path]:
    """Copy the archive; return its files in the order of their numbers, which begin at 1."""
    for path in kept.archive.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    return sorted(directory.iterdir())


def extracted(paths: Iterable[Path]) -> list[EventRow]:
    return [event for path in paths for event in events_of_segment(path.name, path.read_bytes())]


def told_by(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    names = ("segment", "offset", "event", "key")
    found = [tuple(row[name] for name in names) for row in rows if row["_corrupt"] is None]
    return sorted(found, key=str)


def test_archive_has_no_events_where_all_of_it_is_taken(tmp_path: Path) -> None:
    (tmp_path / "ARCHIVE.json").touch()
    assert event_span(tmp_path) is None
    assert read(tmp_path) == []


def test_history_of_a_damaged_archive_or_of_none_is_one_sentence(
    kept: Kept, tmp_path: Path
) -> None:
    with pytest.raises(BadRequestError, match="is empty"):
        event_span(tmp_path)
    path = sorted(kept.archive.iterdir())[0]
    copy = tmp_path / ArchivedSegment(1, 1).name
    copy.write_bytes(path.read_bytes())
    with pytest.raises(LogCorruptError, match="another checksum"):
        list(read_all(tmp_path))


def test_history_of_a_log_with_a_flipped_bit_in_its_last_segment_is_refused(
    kept: Kept, tmp_path: Path
) -> None:
    for path in kept.log.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    last = max(tmp_path.iterdir())
    data = bytearray(last.read_bytes())
    at = data.index(bytes(8), len(data) // 2)
    data[at] ^= 1
    last.write_bytes(data)
    with pytest.raises(LogCorruptError) as caught:
        list(read_all(tmp_path))
    assert caught.value.path == str(last)


def read_all(directory: Path) -> Iterator[object]:
    for part in history_parts(str(directory)):
        yield from read_events(part)
