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

from fastjournal.cmdlog.archive_format import STATE_NAME, ArchivedSegment, archived_segment
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.spark.execution.process_pool import Here, process_pool
from fastjournal.spark.history import extraction_tasks
from fastjournal.spark.history.event_rows import EventKind
from fastjournal.spark.history.event_table import ARCHIVE_LOCK, EventTable
from fastjournal.spark.history.extractor import EventExtractor, History
from fastjournal.testing.logs import SegmentBuilder
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun
from tests.property.test_event_extraction import by_day, records_of

EVENTS = "/output/events"
NANOSECONDS = Struct(">i")
OPERATIONS = 500
PARALLEL = (1, 2, 4)
"""Tasks at once, from which the number of shards comes; it differs from night to night."""
ARCHIVE_BYTES = 12_000
NEW_MEMBERS = ("shards", "moved", "jobs", "state_crc32c")
"""Members of a commit that those of version 1 do not have."""
LEASE_OVER = "lease over"
RULES = {EventKind.PAUSED, EventKind.RESUMED, EventKind.LIMITED}
"""Kinds that compaction repeats, which is an event behind a gap that has the change."""


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
    failed, moved, shards = 0, 0, set[int]()
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
        assert len(disk.listdir(f"{EVENTS}/_state")) == 1
        assert disk.listdir(f"{EVENTS}/_work") == []
        shards |= {commit.shards for commit in table.commits}
        moved += sum(len(commit.moved) for commit in table.commits)
        assert EventTable(disk, EVENTS).update(ARCHIVE) == 0
        failed += nights.failed
    assert failed > 4
    assert shards == {*PARALLEL}
    assert moved > 0, "jobs are written again under ids that are at home in other shards"


def test_event_table_has_each_event_once_whichever_call_of_a_night_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # two segments, read some 300 times: what their bytes say is decoded once
    monkeypatch.setattr(extraction_tasks, "read_rows", cache(extraction_tasks.read_rows))
    ledger = EventLedger(3)
    run = LedgerRun(ledger, 100, lambda _: None)
    run.run()
    run.archive_sealed()
    EventTable(run.log.disk, EVENTS).update(ARCHIVE)
    run.operations = 45
    run.run()
    run.archive_sealed()
    extractor = EventExtractor(History())
    truth = by_day(
        event
        for name, data in sorted(run.kept.items())
        for event in extractor.extract(records_of(name, data))
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
    assert number > 100
    assert committed == {False, True}, "before the commit and behind it"


@pytest.fixture(scope="module")
def long_run() -> LedgerRun:
    """A run whose archive is empty: ``kept`` has all segments."""
    run = LedgerRun(EventLedger(5), 3 * OPERATIONS, lambda _: None)
    run.run()
    for name in run.kept:
        run.log.disk.unlink(f"{ARCHIVE}/{name}")
    return run


@pytest.mark.parametrize("tells", [True, False])
def test_event_table_has_the_same_rows_with_any_number_of_shards(
    tells: bool, long_run: LedgerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = long_run
    monkeypatch.setattr(run.log, "disk", run.log.disk.kill())
    kept = run.kept if tells else dict(map(untold, run.kept.items()))
    extractor = EventExtractor(History())
    truth = [
        msgspec.structs.asdict(event)
        for name, data in sorted(kept.items())
        for event in extractor.extract(records_of(name, data))
    ]
    moved = 0
    for parallel in (1, 8):
        for name, data in kept.items():
            write(run.log.disk, f"{ARCHIVE}/{name}", data)
        place = f"{EVENTS}-{parallel}"
        table = EventTable(run.log.disk, place, segments_a_commit=3)
        assert table.update(ARCHIVE, parallel=parallel) == len(truth)
        found = [
            row | {"segment": int(path.partition("segment=")[2][:9])}
            for path in table.files
            for row in rows(run, path)
        ]
        found.sort(key=lambda row: (row["segment"], row["offset"]))
        for row, event in zip(found, truth, strict=True):
            assert {**row, **us_of(row)} == event
        moved += sum(len(commit.moved) for commit in table.commits)
    assert moved > 2, "jobs are written again under ids that are at home in other shards"


def untold(file: tuple[str, bytes]) -> tuple[str, bytes]:
    """Return a segment as an older version wrote it: its removals do not tell their reason."""
    name, whole = file
    data = bytearray(whole)
    for run in scan_segment(whole).runs:
        for start, end in zip([run.start, *run.ends], run.ends, strict=False):
            if decode_record(whole, start)[0].command in (Command.COMPLETE, Command.DELETE):
                (nanoseconds,) = NANOSECONDS.unpack_from(data, start + 9)
                NANOSECONDS.pack_into(data, start + 9, nanoseconds - nanoseconds % 1000)
                crc32c = google_crc32c.value(bytes(data[start : end - 4]))
                data[end - 4 : end] = crc32c.to_bytes(4)
    crc32c = google_crc32c.value(bytes(data))
    return ArchivedSegment(int(name[:9]), crc32c).name, bytes(data)


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

        extractor = EventExtractor(History())
        records = [(name, list(records_of(name, data))) for name, data in sorted(run.kept.items())]
        truth = [event for _, those in records for event in extractor.extract(those)]
        assert by_day(truth) == ledger.counts, "the segments that were dropped have the rest"
        found = [
            row | us_of(row) | {"segment": int(path.partition("segment=")[2][:9])}
            for path in table.files
            for row in rows(run, path)
        ]
        events = [msgspec.structs.asdict(event) for event in truth if event.segment in taken]
        check_before_the_first(found, events, min(gaps, default=max(taken) + 1))
        named = {
            (one.segment, one.offset)
            for _, those in records
            for one in those
            if one.key is not None
        }
        check_behind_gaps(found, events, named)
        kinds |= {str(row["event"]) for row in found}
    assert dropped > 5
    assert kinds >= {*EventKind} - RULES


def check_before_the_first(
    found: list[dict[str, Any]], truth: list[dict[str, Any]], first: int
) -> None:
    """Check that the rows of segments before the first gap are those of a log without any."""
    places = [
        sorted(
            (row["segment"], row["offset"], row["event"], row["key"] or b"")
            for row in rows
            if row["segment"] < first
        )
        for rows in (found, truth)
    ]
    assert places[0] == places[1]


def check_behind_gaps(
    found: list[dict[str, Any]], truth: list[dict[str, Any]], named: set[tuple[int, int]]
) -> None:
    """Check the rows of all segments, as far as docs/spark.md says that they stay exact.

    Args:
        found: Rows of a table with gaps.
        truth: Rows of the same segments, of a log without any.
        named: Segment and offset of each record that has the key of its job.
    """
    true, told = ({place_and_kind(row): row for row in rows} for rows in (truth, found))
    assert len(true) == len(truth)
    assert len(told) == len(found)
    assert {kind for _, _, kind in told.keys() - true.keys()} <= RULES
    missing = true.keys() - told.keys()
    assert {kind for _, _, kind in missing} <= {LEASE_OVER, EventKind.KICKED, *RULES}
    begun = {row["lease_start"] for row in truth if row["event"] == EventKind.LEASED}
    for place in missing:
        assert place[2] != LEASE_OVER or true[place]["lease_start"] not in begun
    for place, row in told.items():
        known = true.get(place, row)
        assert row["key"] in (None, known["key"])
        assert row["domain"] in (None, known["domain"])
        for name in ("due", "lease_start"):
            assert row[name] in (None, known[name])
        if place[:2] in named and place in true:
            assert (row["key"], row["domain"]) == (known["key"], known["domain"])
        if row["event"] != known["event"]:
            assert (known["event"], row["event"]) == (EventKind.LOST, EventKind.RETURNED)
            assert known["lease_start"] not in begun


def place_and_kind(row: dict[str, Any]) -> tuple[int, int, str]:
    """Return segment, offset and kind; a lost lease and a returned one are one kind."""
    kind = str(row["event"])
    over = kind in (EventKind.LOST, EventKind.RETURNED)
    return row["segment"], row["offset"], LEASE_OVER if over else kind


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


def test_event_table_goes_on_from_the_state_of_an_earlier_release() -> None:
    run = LedgerRun(EventLedger(5), OPERATIONS, lambda _: None)
    run.run()
    disk = run.log.disk
    names = sorted(name for name in disk.listdir(ARCHIVE) if name.endswith(".log"))
    state = disk.read(f"{ARCHIVE}/{STATE_NAME}")
    # the archive as it was earlier
    for name in (STATE_NAME, *names[len(names) // 2 :]):
        disk.unlink(f"{ARCHIVE}/{name}")
    table = EventTable(disk, EVENTS)
    table.update(ARCHIVE)
    # its state was one file, and its commits had version 1
    (commit,) = table.commits
    old = f"{EVENTS}/_state/000000001.parquet"
    write(disk, old, disk.read(f"{EVENTS}/{commit.state}/part-00000.parquet"))
    path = f"{EVENTS}/_commits/000000001.json"
    told = msgspec.to_builtins(commit) | {"state": "_state/000000001.parquet", "version": 1}
    disk.unlink(path)
    written = {key: told[key] for key in told if key not in NEW_MEMBERS}
    write(disk, path, msgspec.json.encode(written))
    for name in names[len(names) // 2 :]:
        write(disk, f"{ARCHIVE}/{name}", run.kept[name])
    write(disk, f"{ARCHIVE}/{STATE_NAME}", state)
    table = EventTable(disk, EVENTS)
    table.update(ARCHIVE, parallel=4)
    counts = run.ledger.counts
    assert counts_of(run, table) == {(day, str(kind)): counts[day, kind] for day, kind in counts}
    assert not disk.exists(old)


class KilledPool(Executor):
    """Pool of two processes, one of which is killed before tasks of a kind."""

    def __init__(self, pool: Executor, before: str) -> None:
        self._pool: Any = pool
        self._before = before

    def map(self, fn: Any, *inputs: Any, timeout: Any = None, chunksize: int = 1) -> Any:
        if fn.func.__name__ == self._before:
            os.kill(min(self._pool._processes), signal.SIGKILL)
            deadline = time.monotonic() + 60
            with suppress(BrokenExecutor):
                while time.monotonic() < deadline:
                    self._pool.submit(int).result()
        return self._pool.map(fn, *inputs)


@pytest.mark.parametrize("before", ["route_segment", "fold_shard"])
def test_event_table_counts_each_event_once_when_a_process_of_the_pool_is_killed(
    before: str, tmp_path: Path
) -> None:
    run = LedgerRun(EventLedger(5), 200, lambda _: None)
    run.run()
    archive = tmp_path / "archive"
    archive.mkdir()
    for name, data in run.kept.items():
        (archive / name).write_bytes(data)
    place, disk = tmp_path / "events", OsDisk()
    with process_pool(2) as pool, pytest.raises(LogFailedError, match="was ended from outside"):
        EventTable(disk, str(place)).update(str(archive), KilledPool(pool, before), parallel=2)
    assert list(place.glob("_work/*/*/*.arrow")), "what its tasks have left"
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
