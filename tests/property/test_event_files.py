"""Event files: each archived segment once, whatever fails while it is taken."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor
from contextlib import suppress
from datetime import date
from functools import cache, partial
from pathlib import Path
from struct import Struct
from typing import Any

import duckdb
import google_crc32c
import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from fastjournal.cmdlog.archive import ArchivedSegment, archived_segment
from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.protocol.constants import Function
from fastjournal.spark.execution.cluster_tasks import Here, process_pool
from fastjournal.spark.history import archive_taking
from fastjournal.spark.history.archive_taking import ARCHIVE_LOCK, take_archive, take_segments
from fastjournal.spark.history.event_files import EventDirectory
from fastjournal.spark.history.event_rows import EVENT_SCHEMA, EventKind
from fastjournal.spark.history.extractor import extract_events
from fastjournal.testing.logs import SegmentBuilder
from tests.property.event_archives import (
    EVENTS,
    archived,
    counts_of,
    events_on,
    gaps,
    grown,
    more,
    named,
    rows_of,
    take,
    waiting,
    write,
)
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun
from tests.property.test_event_extraction import by_day, events_of_segment

OPERATIONS = 500
PARALLEL = (1, 2, 4)
"""Tasks at once; they differ from night to night."""
ARCHIVE_BYTES = 12_000


class Nights:
    """A pipeline that is killed again and again, on a disk that fails meanwhile."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.failed = 0

    def read(self, run: LedgerRun) -> None:
        """Take the archive; at a failure the power goes, and the next night takes what is left."""
        run.log.flush()
        run.log.disk.fail_at(self.draw.randint(1, 240))
        try:
            take(run.log.disk, parallel=self.draw.choice(PARALLEL))
        except LogFailedError:
            self.failed += 1
        run.log.lose_power(self.draw.getrandbits(20))
        run.recovered()


def last_night(run: LedgerRun) -> None:
    """Take what is left, on a disk that works."""
    run.archive_sealed()
    take(run.log.disk, parallel=4)


def told_by(counts: Counter[tuple[str, EventKind]]) -> dict[tuple[str, str], int]:
    return {(day, str(kind)): count for (day, kind), count in counts.items()}


def test_event_files_have_each_event_once_whatever_fails_in_any_night() -> None:
    failed = 0
    for seed in range(4):
        ledger, nights = EventLedger(seed), Nights(seed)
        run = LedgerRun(ledger, OPERATIONS, nights.read)
        run.run()
        last_night(run)
        disk = run.log.disk
        events = events_on(disk)
        assert counts_of(events) == told_by(ledger.counts)
        assert gaps(events, disk) == []
        assert waiting(disk) == []
        # and nothing is beside the files of segments
        assert disk.listdir("/output") == ["events"]
        assert take(disk) == 0
        failed += nights.failed
    assert failed > 4


def test_event_files_have_each_event_once_whichever_call_of_a_night_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # two segments, read some 200 times: what their bytes say is decoded once
    extract = cache(lambda data, segment: list(extract_events(data, segment)))
    monkeypatch.setattr(archive_taking, "extract_events", extract)
    run = LedgerRun(EventLedger(3), 100, lambda _: None)
    run.run()
    run.archive_sealed()
    take(run.log.disk)
    run.operations = 45
    run.run()
    run.archive_sealed()
    expected = told_by(
        by_day(
            [
                event
                for name, data in sorted(run.kept.items())
                for event in events_of_segment(name, data)
            ]
        )
    )
    left = waiting(run.log.disk)
    assert len(left) == 2
    evening, failing, unlinked, number = run.log.disk, True, set[int](), 0
    while failing:
        number += 1
        disk = evening.kill()
        disk.fail_at(number)
        failing = False
        try:
            take(disk)
        except LogFailedError:
            failing = True
            unlinked.add(len(left) - len(waiting(disk.kill())))
        # the power may go as well, and the next night takes what is left
        disk = disk.crash(number) if number % 2 else disk.kill()
        events = events_on(disk)
        found = counts_of(events)
        assert all(found[pair] <= expected[pair] for pair in found), "nothing is doubled meanwhile"
        take(disk)
        assert counts_of(events) == expected, number
        assert gaps(events, disk) == []
        assert waiting(disk) == []
    assert number > 20
    assert unlinked >= {0, 1}, "before a segment goes and behind that"


def us_of(row: dict[str, Any]) -> dict[str, int | None]:
    """Return the instants of a row in microseconds."""
    names = ("time", "due", "lease_start")
    return {name: row[name] and round(row[name].timestamp() * 1_000_000) for name in names}


def place_of(row: dict[str, Any]) -> tuple[int, int]:
    """Return the place of a row; those of one record are in order."""
    return row["segment"], row["offset"]


def test_event_gaps_are_each_segment_that_an_overflowing_archive_dropped() -> None:
    dropped, kinds = 0, set[str]()
    for seed in range(8):
        ledger, nights = EventLedger(seed, ARCHIVE_BYTES), Nights(seed)
        run = LedgerRun(ledger, OPERATIONS, nights.read)
        run.run()
        last_night(run)
        events = events_on(run.log.disk)
        taken = {segment.number for segment in events.segments()}
        for disk, reasons in ((run.log.disk, {"dropped"}), (None, {"missing"})):
            # the chain of segments shows the same gaps without the archive
            found = gaps(events, disk)
            gone = {number for gap in found for number in range(gap.first, gap.last + 1)}
            assert {gap.reason for gap in found} <= reasons
            assert not taken & gone
            missing = {*range(1 if disk else min(taken), max(taken) + 1)} - taken
            assert gone == missing, "each segment is in, or named"
        dropped += len(missing)

        known = [events_of_segment(name, data) for name, data in sorted(run.kept.items())]
        truth = [event for those in known for event in those]
        assert by_day(truth) == ledger.counts, "the segments that were dropped have the rest"
        rows = [row | us_of(row) for row in rows_of(events)]
        told = [msgspec.structs.asdict(event) for event in truth if event.segment in taken]
        assert sorted(rows, key=place_of) == sorted(told, key=place_of), "also behind gaps"
        kinds |= {str(row["event"]) for row in rows}
    assert dropped > 5
    assert kinds >= {*EventKind} - {EventKind.RESUMED}


def test_event_gaps_are_what_is_missing_dropped_or_damaged() -> None:
    ledger = EventLedger(1)
    run, log = LedgerRun(ledger, 0, lambda _: None), ledger.log
    infos = []
    for number in range(6):
        ledger.pass_time(1)
        log.fill(3, key=b"a:1:0:%d-%%d" % number)
        infos.append(log.roll())
    run.archive.take(infos[:1])
    run.archive.skip(infos[1:2])
    run.archive.take(infos[2:])
    names = [f"{ARCHIVE}/{ArchivedSegment(info.number, info.crc32c).name}" for info in infos]
    log.disk.unlink(names[3])
    log.disk.truncate(names[4], infos[4].bytes - 1)
    assert take(log.disk) == 9
    events = events_on(log.disk)
    expected = [(2, 2, "not-linked"), (4, 4, "missing"), (5, 5, "damaged")]
    assert named(gaps(events, log.disk)) == expected
    assert gaps(events, log.disk)[0].first_us == infos[1].first_us
    assert named(gaps(events)) == [(2, 2, "missing"), (4, 5, "missing")]
    assert log.disk.exists(f"{names[4]}.damaged")
    more(run, 1)
    assert take(log.disk) == 3
    assert named(gaps(events, log.disk)) == expected


@pytest.mark.parametrize("left", [0, 1, 2])
def test_event_gaps_are_the_last_segments_of_an_archive_where_they_are_missing(left: int) -> None:
    run, _ = archived(1)
    disk = run.log.disk
    assert take(disk) == 3
    more(run, 4)
    for path in waiting(disk)[left:]:
        disk.unlink(path)
    assert take(disk) == 3 * left
    events = events_on(disk)
    assert named(gaps(events, disk)) == [(2 + left, 5, "missing")]
    assert gaps(events) == [], "nothing behind them shows it without the archive"
    # what comes behind them does
    more(run, 1)
    assert take(disk) == 3
    assert named(gaps(events)) == [(2 + left, 5, "missing")]


def test_event_gap_ends_when_its_segments_come() -> None:
    run, paths = archived(6)
    disk = run.log.disk
    data = {path: disk.read(path) for path in paths}
    for path in paths[1:5]:
        disk.unlink(path)
    assert take(disk) == 6
    events = events_on(disk)
    assert named(gaps(events)) == [(2, 5, "missing")]
    write(disk, paths[2], data[paths[2]])
    assert take(disk) == 3
    assert named(gaps(events)) == [(2, 2, "missing"), (4, 5, "missing")]
    for path in paths[1:5]:
        write(disk, path, data[path])
    # one of them has been taken, and gives the same rows again
    before = disk.read(f"{EVENTS}/{events.listed()[1].path}")
    assert take(disk) == 12
    assert gaps(events) == []
    assert before in [disk.read(f"{EVENTS}/{file.path}") for file in events.listed()]
    assert sorted(Counter(row["segment"] for row in rows_of(events)).items()) == [
        (number, 3) for number in range(1, 7)
    ]


class ArchivingDisk:
    """Disk on which the daemon archives one more segment as soon as the archive was listed."""

    def __init__(self, disk: Any, archive: Callable[[], None]) -> None:
        self._disk = disk
        self._archive = archive

    def listdir(self, path: str) -> list[str]:
        found: list[str] = self._disk.listdir(path)
        if path == ARCHIVE:
            self._archive()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def test_event_gaps_are_no_segments_that_are_archived_meanwhile() -> None:
    run, _ = archived(1)
    disk = ArchivingDisk(run.log.disk, partial(more, run, 1))
    for _ in range(3):
        assert take(disk) == 3
    assert gaps(events_on(run.log.disk)) == []


class HidingDisk(ArchivingDisk):
    """Disk whose first listing of the archive leaves out a segment that is linked meanwhile."""

    def __init__(self, disk: Any, number: int) -> None:
        super().__init__(disk, lambda: None)
        self._hidden = f"{number:09d}-"

    def listdir(self, path: str) -> list[str]:
        names = super().listdir(path)
        if path == ARCHIVE and self._hidden:
            names = [name for name in names if not name.startswith(self._hidden)]
            self._hidden = ""
        return names


@pytest.mark.parametrize("number", [2, 3])
def test_event_gaps_are_no_segment_that_a_listing_leaves_out(number: int) -> None:
    run, _ = archived(1)
    take(run.log.disk)
    more(run, 3)
    assert take(HidingDisk(run.log.disk, number)) == 9
    assert gaps(events_on(run.log.disk)) == []


# --- segments that grew ---------------------------------------------------------------------------


def test_event_files_take_only_the_rest_of_a_segment_that_grew() -> None:
    run, (_, longer) = grown("rest")
    disk = run.log.disk
    data = disk.read(longer)
    disk.unlink(longer)
    assert take(disk) == 3
    write(disk, longer, data)
    assert take(disk) == 2
    events = events_on(disk)
    assert [segment.number for segment in events.segments()] == [1, 1]
    assert gaps(events, disk) == []


def test_event_files_have_both_versions_of_a_segment_once_in_any_order() -> None:
    orders = set()
    for number in range(8):
        run, paths = grown(str(number))
        disk = run.log.disk
        data = {path: disk.read(path) for path in paths}
        orders.add(paths == sorted(paths))
        assert take(disk) == 5
        events = events_on(disk)
        assert len({row["key"] for row in rows_of(events)}) == len(rows_of(events)) == 5
        # put back, one by one, and as the only one
        for path in (*paths, paths[0]):
            write(disk, path, data[path])
            take(disk)
            assert len({row["key"] for row in rows_of(events)}) == len(rows_of(events)) == 5
        for file in events.listed():
            disk.unlink(f"{EVENTS}/{file.path}")
        for path in reversed(paths):
            write(disk, path, data[path])
            assert take(disk) == (5 if path == paths[1] else 0)
        assert len({row["key"] for row in rows_of(events)}) == len(rows_of(events)) == 5
        assert gaps(events) == []
    assert orders == {True, False}, "the checksums are in both orders"


def test_event_gap_is_the_rest_of_a_segment_that_grew_and_was_compacted() -> None:
    run, (_, longer) = grown("grown")
    disk = run.log.disk
    disk.unlink(longer)
    run.log.roll()
    run.log.fill(3, key=b"a:1:0:last-%d")
    run.log.roll()
    run.archive_sealed()
    assert take(disk) == 6
    assert named(gaps(events_on(disk))) == [(1, 1, "missing")]


class DroppingDisk:
    """Disk on which the daemon drops a file before the first call of a kind for a segment."""

    def __init__(self, disk: Any, call: str, path: str) -> None:
        self._disk = disk
        self._call = call
        self._path = path

    def __getattr__(self, name: str) -> Any:
        plain = getattr(self._disk, name)
        return partial(self._called, plain) if name == self._call else plain

    def _called(self, plain: Any, path: str, *more: Any) -> Any:
        if archived_segment(path.rpartition("/")[2]) and self._disk.exists(self._path):
            self._disk.unlink(self._path)
        return plain(path, *more)


@pytest.mark.parametrize("call", ["size", "read"])
def test_event_gaps_are_none_where_the_longer_version_of_a_segment_is_left(call: str) -> None:
    run, (shorter, _) = grown("dropped")
    assert take(DroppingDisk(run.log.disk, call, shorter)) == 5
    assert gaps(events_on(run.log.disk)) == []
    run, (_, longer) = grown("dropped")
    assert take(DroppingDisk(run.log.disk, "read", longer)) == 3
    more(run, 1)
    assert take(run.log.disk) == 3
    assert named(gaps(events_on(run.log.disk))) == [(1, 1, "missing")]


# --- two days, two runs ---------------------------------------------------------------------------


def over_midnight() -> tuple[LedgerRun, str]:
    """Return a run with two archived segments, the first of which is over midnight; its path."""
    run, _ = archived(0)
    run.log.fill(3, key=b"a:1:0:before-%d")
    run.ledger.pass_time(86_400_000_000)
    run.log.fill(2, key=b"a:1:0:behind-%d")
    run.log.roll()
    more(run, 1)
    return run, waiting(run.log.disk)[0]


def test_event_gap_is_the_day_of_a_segment_that_a_killed_run_did_not_write() -> None:
    run, path = over_midnight()
    disk = run.log.disk
    data = disk.read(path)
    assert take(disk) == 8
    events = events_on(disk)
    first, second, *_ = events.listed()
    assert first.number == 1
    assert Counter(row["segment"] for row in rows_of(events)) == {1: 5, 2: 3}
    assert events.segments()[0].facts.rows.keys() == {first.day, second.day}
    # the daemon has dropped it meanwhile
    disk.unlink(f"{EVENTS}/day={second.day}/segment-{first.segment}.parquet")
    ((number, last, begin, end, reason),) = gaps(events)
    assert (number, last, reason) == (1, 1, "missing")
    assert begin is not None
    assert end is not None
    assert end - begin == 86_400_000_000
    # it comes again
    write(disk, path, data)
    assert take(disk) == 5
    assert gaps(events) == []
    # days that were pruned are no gap
    events.remove(file for file in events.listed() if file.day < second.day)
    assert {file.day for file in events.listed()} == {second.day}
    assert gaps(events) == []


def test_event_files_of_a_segment_without_events_say_that_it_was_taken() -> None:
    run, _ = archived(1)
    run.ledger.pass_time(1)
    run.ledger.ask(Function.LINK, b"a:1:0:1-0", uri=b"link")
    run.log.roll()
    run.archive_sealed()
    more(run, 1)
    take(run.log.disk)
    events = events_on(run.log.disk)
    assert [segment.facts.rows.popitem()[1] for segment in events.segments()] == [3, 0, 3]
    assert gaps(events) == []


class Meanwhile(Here):
    """Executor behind whose nth task another run takes all of the archive."""

    def __init__(self, disk: Any, number: int) -> None:
        self._disk = disk
        self._left = number

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        before, behind = self._left == 0, self._left == -1
        if before or behind:
            take_segments(self._disk, ARCHIVE, events_on(self._disk), Here(), 1)
        return super().submit(fn, *args, **kwargs)


@pytest.mark.parametrize("number", range(1, 5))
def test_event_files_of_two_runs_at_once_have_each_event_once(number: int) -> None:
    run, _ = over_midnight()
    more(run, 1)
    disk = run.log.disk
    take_segments(disk, ARCHIVE, events_on(disk), Meanwhile(disk, number), 1)
    assert Counter(row["segment"] for row in rows_of(events_on(disk))) == {1: 5, 2: 3, 3: 3}
    assert gaps(events_on(disk)) == []
    assert waiting(disk) == []


def prune(events: EventDirectory, first: date) -> None:
    events.remove(file for file in events.listed() if file.day < str(first))


def test_event_pruning_is_finished_by_the_next_run_whatever_fails() -> None:
    run = LedgerRun(EventLedger(3), 100, lambda _: None)
    run.run()
    evening = run.log.disk
    take(evening)
    truth = counts_of(events_on(evening))
    days = sorted({day for day, _ in truth})
    first = date.fromisoformat(days[len(days) // 2])
    kept = {pair: count for pair, count in truth.items() if pair[0] >= str(first)}
    for step in range(1, 60):
        disk = evening.kill()
        disk.fail_at(step)
        try:
            prune(events_on(disk), first)
            failed = False
        except LogFailedError:
            failed = True
        events = events_on(disk.crash(step))
        assert kept.items() <= counts_of(events).items()
        prune(events, first)
        assert counts_of(events) == kept
        assert gaps(events) == []
        if not failed:
            break
    assert not failed
    assert step > 5


# --- executors ------------------------------------------------------------------------------------


class Elsewhere(Here):
    """Executor on a machine that has no archive."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        place, *others = fn.args
        return super().submit(fn.func, place._replace(archive="/elsewhere"), *others, *args)


def test_event_gap_is_no_segment_that_executors_do_not_reach() -> None:
    run, _ = archived(1)
    with pytest.raises(LogFailedError, match="an executor does not find the archived segment"):
        take(run.log.disk, Elsewhere())
    assert take(run.log.disk) == 3


class KilledPool(Executor):
    """Pool of two processes, one of which is killed before its tasks."""

    def __init__(self, pool: Executor) -> None:
        self._pool: Any = pool

    def map(self, fn: Any, *inputs: Any, timeout: Any = None, chunksize: int = 1) -> Any:
        self._pool.submit(int).result()
        os.kill(min(self._pool._processes), signal.SIGKILL)
        deadline = time.monotonic() + 60
        with suppress(BrokenExecutor):
            while time.monotonic() < deadline:
                self._pool.submit(int).result()
        return self._pool.map(fn, *inputs)


def kept_archive(run: LedgerRun, directory: Path) -> Path:
    """Write all segments of a run, whatever became of its archive, as an archive."""
    archive = directory / "archive"
    archive.mkdir()
    for name, data in run.kept.items():
        (archive / name).write_bytes(data)
    return archive


def test_event_files_have_each_event_once_when_a_process_of_the_pool_is_killed(
    tmp_path: Path,
) -> None:
    run = LedgerRun(EventLedger(5), 200, lambda _: None)
    run.run()
    archive = kept_archive(run, tmp_path)
    disk, output = OsDisk(), str(tmp_path / "out")
    with process_pool(2) as pool, pytest.raises(LogFailedError, match="was ended from outside"):
        take_archive(disk, str(archive), events_on(disk, output), KilledPool(pool), parallel=2)
    with process_pool(2) as pool:
        rows = take_archive(disk, str(archive), events_on(disk, output), pool, parallel=2)
    assert rows == run.ledger.counts.total()
    assert [path.name for path in archive.iterdir()] == [ARCHIVE_LOCK]


# --- input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "day"),
    [(-1, "0001-01-01"), (-(1 << 62), "0001-01-01"), (1, "0001-01-01"), (1 << 62, "9999-12-31")],
)
def test_event_files_have_a_record_of_any_time(second: int, day: str, tmp_path: Path) -> None:
    segment = SegmentBuilder()
    segment.entry(b"web:001:5:x")
    data, at = bytearray(bytes(segment)), segment.offsets[1]
    Struct(">q").pack_into(data, at + 1, second)
    data[-4:] = google_crc32c.value(bytes(data[at:-4])).to_bytes(4)
    name = ArchivedSegment(1, google_crc32c.value(bytes(data))).name
    (tmp_path / name).write_bytes(data)
    events = events_on(OsDisk(), str(tmp_path / "out"))
    assert take_archive(OsDisk(), str(tmp_path), events) == 1
    (row,) = rows_of(events)
    assert row["event"] == "set"
    assert (row["time"] is None) == (second != 1)
    assert day in [file.day for file in events.listed()]


def test_event_files_of_another_program_are_one_sentence_and_nothing_is_taken() -> None:
    for path in ("day=2026-11-20/part-00000.parquet", "_commits/1.json", "other.txt"):
        run, paths = archived(2)
        disk = run.log.disk
        disk.mkdir(f"{EVENTS}/{path}".rpartition("/")[0])
        write(disk, f"{EVENTS}/{path}", b"theirs")
        if path.startswith("_"):
            # no reader of Parquet looks at these
            assert take(disk) == 6
            continue
        with pytest.raises(
            LogCorruptError, match=r"is no file of the events.*name another --output"
        ):
            take(disk)
        assert waiting(disk) == paths
        assert disk.read(f"{EVENTS}/{path}") == b"theirs"


def test_event_file_with_other_rows_than_its_segment_is_one_sentence_and_is_written_again() -> None:
    run, paths = archived(3)
    disk = run.log.disk
    data = disk.read(paths[0])
    take(disk)
    events = events_on(disk)
    first, second, _ = events.listed()
    whole = disk.read(f"{EVENTS}/{first.path}")
    for wrong in (disk.read(f"{EVENTS}/{second.path}"), whole[:-9], b"", b"PAR1" * 3):
        write(disk, f"{EVENTS}/{first.path}", wrong)
        with pytest.raises(
            LogCorruptError, match=rf"put the archived segment {first.segment}\.log"
        ):
            events.segments()
        with pytest.raises(LogCorruptError, match=r"put the archived segment"):
            events.read(first)
    write(disk, paths[0], data)
    assert take(disk) == 3
    assert disk.read(f"{EVENTS}/{first.path}") == whole
    assert len(events.segments()) == 3


# --- readers of Parquet ---------------------------------------------------------------------------


def test_event_files_are_read_by_any_reader_of_parquet(tmp_path: Path) -> None:
    run = LedgerRun(EventLedger(5), 200, lambda _: None)
    run.run()
    archive = kept_archive(run, tmp_path)
    output = tmp_path / "out"
    take_archive(OsDisk(), str(archive), events_on(OsDisk(), str(output)))
    # a process that was killed has left a file that is not whole
    (output / "events-new").mkdir()
    unfinished = f"segment-000000009-00000000.parquet.{0:032x}.new"
    (output / "events-new" / unfinished).write_bytes(b"PAR1")
    truth = Counter[tuple[str, str]](told_by(run.ledger.counts))
    place = str(output / "events")
    query = f"SELECT day, event FROM read_parquet('{place}/*/*.parquet', hive_partitioning=true)"
    found = {
        "pyarrow": pa.dataset.dataset(place, partitioning="hive").to_table(["day", "event"]),
        "pandas": pa.Table.from_pandas(pd.read_parquet(place, columns=["day", "event"])),
        "duckdb": duckdb.sql(query).to_arrow_table(),
    }
    for name, table in found.items():
        rows = zip(map(str, table["day"].to_pylist()), table["event"].to_pylist(), strict=True)
        assert Counter(rows) == truth, name
    assert found["pyarrow"].num_rows == truth.total()


def test_event_file_of_another_release_has_null_for_a_column_that_it_lacks() -> None:
    run, _ = archived(1)
    take(run.log.disk)
    events = events_on(run.log.disk)
    (file,) = events.listed()
    path = f"{EVENTS}/{file.path}"
    table = pa.parquet.read_table(pa.BufferReader(run.log.disk.read(path)))
    rows = events.read(file)
    assert rows.schema == EVENT_SCHEMA
    # one more at the end, as a newer release writes it, and one less, as an older one does
    newer = table.append_column("worker", pa.array(["w"] * 3)).drop_columns(["reason"])
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(newer, sink)
    write(run.log.disk, path, sink.getvalue().to_pybytes())
    assert events.read(file) == rows
