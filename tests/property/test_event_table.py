"""Event table: each archived segment once, whatever fails while it is written."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor
from contextlib import closing, suppress
from datetime import date
from functools import cache, partial
from pathlib import Path
from struct import Struct
from typing import Any

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from fastjournal.cmdlog.archive_format import ArchivedSegment, archived_segment
from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.spark.execution.process_pool import Here, process_pool
from fastjournal.spark.history import extraction_tasks
from fastjournal.spark.history.event_rows import EventKind
from fastjournal.spark.history.event_table import ARCHIVE_LOCK, EventTable
from fastjournal.spark.history.extractor import extract_events
from fastjournal.testing.logs import SegmentBuilder
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun
from tests.property.test_event_extraction import by_day, events_of_segment

EVENTS = "/output/events"
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
            table = EventTable(run.log.disk, EVENTS, segments_a_commit=2)
            table.update(ARCHIVE, parallel=self.draw.choice(PARALLEL))
        except LogFailedError:
            self.failed += 1
        run.log.lose_power(self.draw.getrandbits(20))
        run.recovered()


def last_night(run: LedgerRun) -> EventTable:
    """Take what is left, on a disk that works."""
    run.archive_sealed()
    table = EventTable(run.log.disk, EVENTS)
    table.update(ARCHIVE, parallel=4)
    return table


def columns(data: bytes, names: list[str] | None = None) -> pa.Table:
    """Return the rows of a Parquet file; threads would cost more than they save."""
    return pa.parquet.ParquetFile(pa.BufferReader(data)).read(names, use_threads=False)


def rows(run: LedgerRun, path: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = columns(run.log.disk.read(path)).to_pylist()
    return found


@cache
def kinds_in(data: bytes) -> Counter[str]:
    """Count the rows of a file by kind; a night that goes on behind a failure has many again."""
    return Counter(columns(data, ["event"])["event"].to_pylist())


def counts_of(run: LedgerRun, table: EventTable) -> Counter[tuple[str, str]]:
    """Count the rows of the table by UTC day and kind."""
    counts = Counter[tuple[str, str]]()
    for path in table.files:
        day = path.removeprefix(f"{EVENTS}/day=").partition("/")[0]
        for kind, count in kinds_in(run.log.disk.read(path)).items():
            counts[day, kind] += count
    return counts


def test_event_table_has_each_event_once_whatever_fails_in_any_night() -> None:
    failed = 0
    for seed in range(4):
        ledger, nights = EventLedger(seed), Nights(seed)
        run = LedgerRun(ledger, OPERATIONS, nights.read)
        run.run()
        table = last_night(run)
        found = counts_of(run, table)
        assert found == {(day, str(kind)): count for (day, kind), count in ledger.counts.items()}
        assert table.gaps == []
        assert sum(commit.rows for commit in table.commits) == found.total()
        disk = run.log.disk
        assert [name for name in disk.listdir(ARCHIVE) if name.endswith(".log")] == []
        # and nothing is beside what the commits name
        days = [name for name in disk.listdir(EVENTS) if name.startswith("day=")]
        written = [
            f"{EVENTS}/{day}/{segment}/{file}"
            for day in days
            for segment in disk.listdir(f"{EVENTS}/{day}")
            for file in disk.listdir(f"{EVENTS}/{day}/{segment}")
        ]
        assert sorted(written) == sorted(table.files)
        assert disk.listdir(f"{EVENTS}/_work") == []
        assert EventTable(disk, EVENTS).update(ARCHIVE) == 0
        failed += nights.failed
    assert failed > 4


def test_event_table_has_each_event_once_whichever_call_of_a_night_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # two segments, read some 300 times: what their bytes say is decoded once
    extract = cache(lambda data, segment, skipped: list(extract_events(data, segment, skipped)))
    monkeypatch.setattr(extraction_tasks, "extract_events", extract)
    ledger = EventLedger(3)
    run = LedgerRun(ledger, 100, lambda _: None)
    run.run()
    run.archive_sealed()
    EventTable(run.log.disk, EVENTS).update(ARCHIVE)
    run.operations = 45
    run.run()
    run.archive_sealed()
    truth = by_day(
        event for name, data in sorted(run.kept.items()) for event in events_of_segment(name, data)
    )
    expected = {(day, str(kind)): count for (day, kind), count in truth.items()}
    assert len(EventTable(run.log.disk, EVENTS).taken) > 1
    waiting = {name for name in run.log.disk.listdir(ARCHIVE) if name.endswith(".log")}
    assert len(waiting) == 2
    evening, failing, committed, number = run.log.disk, True, set[bool](), 0
    while failing:
        number += 1
        disk = evening.kill()
        disk.fail_at(number)
        failing = False
        try:
            table = EventTable(disk, EVENTS, segments_a_commit=1)
            table.update(ARCHIVE)
        except LogFailedError:
            failing = True
            committed.add(len(disk.kill().listdir(f"{EVENTS}/_commits")) > 1)
        # the power may go as well, and the next night takes what is left
        run.log.disk = disk.crash(number) if number % 2 else disk.kill()
        table = EventTable(run.log.disk, EVENTS)
        table.update(ARCHIVE, parallel=1)
        assert counts_of(run, table) == expected, number
        assert table.gaps == []
        assert waiting.isdisjoint(run.log.disk.listdir(ARCHIVE))
    assert number > 60
    assert committed == {False, True}, "before the commit and behind it"


@pytest.fixture(scope="module")
def long_run() -> LedgerRun:
    """A run whose archive is empty: ``kept`` has all segments."""
    run = LedgerRun(EventLedger(5), 3 * OPERATIONS, lambda _: None)
    run.run()
    for name in run.kept:
        run.log.disk.unlink(f"{ARCHIVE}/{name}")
    return run


def us_of(row: dict[str, Any]) -> dict[str, int | None]:
    """Return the instants of a row in microseconds."""
    names = ("time", "due", "lease_start")
    return {name: row[name] and round(row[name].timestamp() * 1_000_000) for name in names}


def write(disk: Any, path: str, data: bytes) -> None:
    with closing(disk.create(path)) as file:
        file.write(data)


def test_event_table_names_each_segment_that_an_overflowing_archive_dropped() -> None:
    dropped, kinds = 0, set[str]()
    for seed in range(8):
        ledger, nights = EventLedger(seed, ARCHIVE_BYTES), Nights(seed)
        run = LedgerRun(ledger, OPERATIONS, nights.read)
        run.run()
        table = last_night(run)
        taken = {segment.number for segment in table.taken}
        gaps = {number for gap in table.gaps for number in range(gap.first, gap.last + 1)}
        assert {gap.reason for gap in table.gaps} <= {"dropped"}
        assert not taken & gaps
        assert taken | gaps == set(range(1, max(taken) + 1)), "each segment is in, or named"
        dropped += len(gaps)

        events = [events_of_segment(name, data) for name, data in sorted(run.kept.items())]
        truth = [event for those in events for event in those]
        assert by_day(truth) == ledger.counts, "the segments that were dropped have the rest"
        found = [
            row | us_of(row) | {"segment": int(path.partition("segment=")[2][:9])}
            for path in table.files
            for row in rows(run, path)
        ]
        found.sort(key=place_of)
        told = [msgspec.structs.asdict(event) for event in truth if event.segment in taken]
        assert found == sorted(told, key=place_of), "also behind gaps"
        kinds |= {str(row["event"]) for row in found}
    assert dropped > 5
    assert kinds >= {*EventKind} - {EventKind.RESUMED}


def place_of(row: dict[str, Any]) -> tuple[int, int]:
    """Return the place of a row; those of one record are in order."""
    return row["segment"], row["offset"]


def test_event_table_lists_what_is_missing_dropped_or_damaged() -> None:
    ledger = EventLedger(1)
    run, log = LedgerRun(ledger, 0, Nights(1).read), ledger.log
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
    table = EventTable(log.disk, EVENTS)
    assert table.update(ARCHIVE) == 9
    assert [(gap.first, gap.last, gap.reason) for gap in table.gaps] == [
        (2, 2, "not-linked"),
        (4, 4, "missing"),
        (5, 5, "damaged"),
    ]
    (gaps,) = log.disk.listdir(f"{EVENTS}/_gaps")
    assert [row["reason"] for row in rows(run, f"{EVENTS}/_gaps/{gaps}")] == [
        "not-linked",
        "missing",
        "damaged",
    ]
    assert table.gaps[0].first_us == infos[1].first_us
    ledger.pass_time(1)
    log.fill(3, key=b"a:1:0:again-%d")
    log.roll()
    run.archive_sealed()
    assert table.update(ARCHIVE) == 3
    assert len(table.gaps) == 3, "each gap once"
    assert log.disk.exists(f"{names[4]}.damaged")


@pytest.mark.parametrize("left", [0, 1, 2])
def test_event_table_names_the_last_segments_of_an_archive_where_they_are_missing(
    left: int,
) -> None:
    ledger = EventLedger(1)
    run, log = LedgerRun(ledger, 0, Nights(1).read), ledger.log
    table = EventTable(log.disk, EVENTS)
    log.fill(3, key=b"a:1:0:first-%d")
    log.roll()
    run.archive_sealed()
    assert table.update(ARCHIVE) == 3
    for number in range(4):
        log.fill(3, key=b"a:1:0:%d-%%d" % number)
        log.roll()
    run.archive_sealed()
    names = sorted(name for name in log.disk.listdir(ARCHIVE) if name.endswith(".log"))
    for name in names[left:]:
        log.disk.unlink(f"{ARCHIVE}/{name}")
    for _ in range(2):
        assert table.update(ARCHIVE) in (3 * left, 0)
        (gap,) = table.gaps
        assert (gap.first, gap.last, gap.reason) == (2 + left, 5, "missing")
        table = EventTable(log.disk, EVENTS)
    # what comes behind them is taken, and no gap is named again
    log.fill(3, key=b"a:1:0:last-%d")
    log.roll()
    run.archive_sealed()
    assert table.update(ARCHIVE) == 3
    assert [(gap.first, gap.last) for gap in table.gaps] == [(2 + left, 5)]
    (kept,) = log.disk.listdir(f"{EVENTS}/_gaps")
    assert [row["reason"] for row in rows(run, f"{EVENTS}/_gaps/{kept}")] == ["missing"]


class ArchivingDisk:
    """Disk on which the daemon archives one more segment as soon as the archive was listed."""

    def __init__(self, disk: Any, archive: Callable[[], None]) -> None:
        self._disk = disk
        self._archive = archive
        self.listed = 0

    def listdir(self, path: str) -> list[str]:
        found: list[str] = self._disk.listdir(path)
        if path == ARCHIVE:
            self.listed += 1
            self._archive()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def test_event_table_names_no_segment_that_is_archived_meanwhile() -> None:
    ledger = EventLedger(1)
    run, log = LedgerRun(ledger, 0, Nights(1).read), ledger.log

    def archive() -> None:
        log.fill(3, key=b"a:1:0:%d-%%d" % log.writer.next_number)
        log.roll()
        run.archive_sealed()

    archive()
    disk = ArchivingDisk(log.disk, archive)
    table = EventTable(disk, EVENTS)
    for _ in range(3):
        assert table.update(ARCHIVE) == 3
    assert disk.listed == 3
    assert table.gaps == []


def test_event_table_takes_only_the_rest_of_a_segment_that_grew() -> None:
    ledger = EventLedger(1)
    run, log = LedgerRun(ledger, 0, Nights(1).read), ledger.log
    table = EventTable(log.disk, EVENTS)
    log.fill(3, key=b"a:1:0:%d")
    log.roll()
    run.archive_sealed()
    assert table.update(ARCHIVE) == 3
    # a time without an archive
    log.config.archive_dir = ""
    log.restart()
    log.fill(2, key=b"a:1:0:more-%d")
    log.config.archive_dir = ARCHIVE
    log.restart()
    run.open()
    run.archive_sealed()
    table = EventTable(log.disk, EVENTS)
    assert table.update(ARCHIVE) == 2
    assert [segment.number for segment in table.taken] == [1, 1]
    assert table.gaps == []


def test_event_table_names_the_rest_of_a_segment_that_grew_and_was_compacted() -> None:
    run, (_, longer) = grown("grown")
    run.log.disk.unlink(f"{ARCHIVE}/{longer}")
    run.log.roll()
    run.log.fill(3, key=b"a:1:0:last-%d")
    run.log.roll()
    run.archive_sealed()
    table = EventTable(run.log.disk, EVENTS)
    assert table.update(ARCHIVE) == 6
    assert [(gap.first, gap.last, gap.reason) for gap in table.gaps] == [(1, 1, "missing")]


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


def grown(text: str) -> tuple[LedgerRun, list[str]]:
    """Return a run whose archive has a segment twice, and both names, the shorter first."""
    run = LedgerRun(EventLedger(1), 0, Nights(1).read)
    log = run.log
    log.fill(3, key=b"a:1:0:%s-%%d" % text.encode())
    log.roll()
    run.archive_sealed()
    log.config.archive_dir = ""
    log.restart()
    log.fill(2, key=b"a:1:0:more-%d")
    log.config.archive_dir = ARCHIVE
    log.restart()
    run.open()
    run.archive_sealed()
    names = [name for name in log.disk.listdir(ARCHIVE) if name.endswith(".log")]
    assert [name[:9] for name in names] == ["000000001"] * 2
    return run, sorted(names, key=lambda name: log.disk.size(f"{ARCHIVE}/{name}"))


def test_event_table_takes_both_versions_of_a_segment_in_one_commit_or_two() -> None:
    orders = set()
    for number in range(8):
        for step in (1, 64):
            run, names = grown(str(number))
            orders.add(names == sorted(names))
            table = EventTable(run.log.disk, EVENTS, segments_a_commit=step)
            assert table.update(ARCHIVE) == 5
            assert [segment.rows for segment in table.taken] == [3, 2]
            found = [row["key"] for path in table.files for row in rows(run, path)]
            assert len(set(found)) == len(found) == 5
            assert table.gaps == []
    assert orders == {True, False}, "the checksums are in both orders"


@pytest.mark.parametrize("call", ["size", "read"])
def test_event_table_names_no_gap_where_the_longer_version_of_a_segment_is_left(call: str) -> None:
    run, (shorter, longer) = grown("dropped")
    disk: Any = DroppingDisk(run.log.disk, call, f"{ARCHIVE}/{shorter}")
    table = EventTable(disk, EVENTS)
    assert table.update(ARCHIVE) == 5
    assert table.gaps == []
    run, (_, longer) = grown("dropped")
    disk = DroppingDisk(run.log.disk, "read", f"{ARCHIVE}/{longer}")
    table = EventTable(disk, EVENTS)
    assert table.update(ARCHIVE) == 3
    assert [(gap.first, gap.reason) for gap in table.gaps] == [(1, "missing")]


def test_event_table_prunes_days_once_their_commit_is_durable_whatever_fails() -> None:
    seen = Counter[bool]()
    run = LedgerRun(EventLedger(3), 100, lambda _: None)
    run.run()
    evening = run.log.disk
    table = EventTable(evening, EVENTS)
    table.update(ARCHIVE)
    truth = counts_of(run, table)
    days = sorted({day for day, _ in truth})
    first = date.fromisoformat(days[len(days) // 2])
    for step in range(1, 60):
        disk = run.log.disk = evening.kill()
        table = EventTable(disk, EVENTS)
        disk.fail_at(step)
        try:
            table.prune(first)
            failed = False
        except LogFailedError:
            failed = True
        run.log.lose_power(step)
        run.recovered()
        run.archive_sealed()
        table = EventTable(run.log.disk, EVENTS)
        kept = {pair: count for pair, count in truth.items() if pair[0] >= str(first)}
        seen[bool(table.kept_from)] += 1
        assert counts_of(run, table) == (kept if table.kept_from else truth)
        table.prune(first)
        assert counts_of(run, table) == kept
        left = {name for name in run.log.disk.listdir(EVENTS) if name.startswith("day=")}
        assert left == {f"day={day}" for day in days if day >= str(first)}
        assert EventTable(run.log.disk, EVENTS).update(ARCHIVE) == 0, "no segment comes again"
        if not failed:
            break
    assert not failed
    assert seen[True] > 1
    assert seen[False] > 1


class Elsewhere(Here):
    """Executor on a machine that has no archive."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        work, *others = fn.args
        return super().submit(fn.func, work._replace(archive="/elsewhere"), *others, *args)


def test_event_table_takes_no_segment_as_dropped_that_executors_do_not_reach() -> None:
    ledger = EventLedger(1)
    run, log = LedgerRun(ledger, 0, Nights(1).read), ledger.log
    log.fill(3, key=b"a:1:0:%d")
    log.roll()
    run.archive_sealed()
    table = EventTable(log.disk, EVENTS)
    with pytest.raises(LogFailedError, match="an executor does not find the archived segment"):
        table.update(ARCHIVE, Elsewhere())
    assert table.commits == []
    assert table.update(ARCHIVE) == 3


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


def test_event_table_counts_each_event_once_when_a_process_of_the_pool_is_killed(
    tmp_path: Path,
) -> None:
    run = LedgerRun(EventLedger(5), 200, lambda _: None)
    run.run()
    archive = tmp_path / "archive"
    archive.mkdir()
    for name, data in run.kept.items():
        (archive / name).write_bytes(data)
    place, disk = tmp_path / "events", OsDisk()
    with process_pool(2) as pool, pytest.raises(LogFailedError, match="was ended from outside"):
        EventTable(disk, str(place)).update(str(archive), KilledPool(pool), parallel=2)
    with process_pool(2) as pool:
        rows = EventTable(disk, str(place)).update(str(archive), pool, parallel=2)
    assert rows == run.ledger.counts.total()
    assert [file for file in place.rglob("*") if file.is_file() and "_work" in file.parts] == []
    assert [path.name for path in archive.iterdir()] == [ARCHIVE_LOCK]


def test_event_table_refuses_a_copy_that_lacks_commits_and_removes_nothing() -> None:
    run = LedgerRun(EventLedger(5), 200, lambda _: None)
    run.run()
    disk = run.log.disk
    EventTable(disk, EVENTS, segments_a_commit=2).update(ARCHIVE)
    commits = {name: disk.read(f"{EVENTS}/_commits/{name}") for name in commits_in(disk)}
    assert len(commits) > 2
    files = EventTable(disk, EVENTS).files
    disk.unlink(f"{EVENTS}/_commits/000000002.json")
    with pytest.raises(LogCorruptError, match="commit 2 of the table of events is missing"):
        EventTable(disk, EVENTS)
    for name in commits_in(disk):
        disk.unlink(f"{EVENTS}/_commits/{name}")
    with pytest.raises(LogCorruptError, match=r"there are events, and no commit .*copy _commits"):
        EventTable(disk, EVENTS).update(ARCHIVE)
    for name, data in commits.items():
        write(disk, f"{EVENTS}/_commits/{name}", data)
    table = EventTable(disk, EVENTS)
    assert table.update(ARCHIVE) == 0
    assert table.files == files
    assert counts_of(run, table).total() == run.ledger.counts.total()


def commits_in(disk: Any) -> list[str]:
    return sorted(name for name in disk.listdir(f"{EVENTS}/_commits") if name.endswith(".json"))


@pytest.mark.parametrize(
    ("second", "day"),
    [(-1, "0001-01-01"), (-(1 << 62), "0001-01-01"), (1, "0001-01-01"), (1 << 62, "9999-12-31")],
)
def test_event_table_takes_a_record_of_any_time(second: int, day: str, tmp_path: Path) -> None:
    segment = SegmentBuilder()
    segment.entry(b"web:001:5:x")
    data, at = bytearray(bytes(segment)), segment.offsets[1]
    Struct(">q").pack_into(data, at + 1, second)
    data[-4:] = google_crc32c.value(bytes(data[at:-4])).to_bytes(4)
    name = ArchivedSegment(1, google_crc32c.value(bytes(data))).name
    (tmp_path / name).write_bytes(data)
    table = EventTable(OsDisk(), str(tmp_path / "events"))
    assert table.update(str(tmp_path)) == 1
    (file,) = table.files
    assert f"/day={day}/" in file
