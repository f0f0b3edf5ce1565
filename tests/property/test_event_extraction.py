"""Event extraction: the events of archived segments against a client's own ledger."""

from __future__ import annotations

from collections import Counter

import pytest

from fastjournal.cmdlog.format.endings import REPLACED, how_of
from fastjournal.cmdlog.format.envelope import unpack_completion
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, Command, segment_name
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.recovery.repair import write_file
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.keys import parse_journal_key
from fastjournal.protocol.constants import Flag, Function
from fastjournal.spark.decoding.view_columns import to_batch
from fastjournal.spark.history.event_rows import (
    EVENT_COLUMNS,
    EVENT_SCHEMA,
    POPPED,
    UNDELIVERED,
    EventKind,
    EventRow,
)
from fastjournal.spark.history.extractor import extract_events
from fastjournal.spark.storage.files import SegmentFile
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import SegmentBuilder
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.event_ledger import ARCHIVE, LEASE, EventLedger, day_of
from tests.property.ledger_run import LedgerRun
from tests.property.subject import SECOND

OPERATIONS = 1_500


class Reader:
    """Reads the archive as a night does: each segment once, and only once."""

    def __init__(self) -> None:
        self.events: list[EventRow] = []
        self.taken: set[str] = set()
        self.torn = 0
        """Removals that a start appended, because those before it were torn off."""

    def read(self, run: LedgerRun) -> None:
        """Take all segments."""
        disk = run.log.disk
        for name in disk.listdir(ARCHIVE):
            if not name.endswith(".log"):
                continue
            if name not in self.taken:
                self.taken.add(name)
                data = disk.read(f"{ARCHIVE}/{name}")
                self.events += events_of_segment(name, data)
                self.torn += removals_of_a_start(data)
            # a power loss may have brought the name of a segment back
            disk.unlink(f"{ARCHIVE}/{name}")


def removals_of_a_start(data: bytes) -> int:
    """Count the removals that a start of the daemon appended."""
    records = [decode_record(data, start)[0] for start, _, _ in scan_segment(data).spans()]
    results = [each.result for each in records if each.command == Command.COMPLETE]
    return sum(how_of(unpack_completion(result).facts) == REPLACED for result in results)


def events_of_segment(name: str, data: bytes) -> list[EventRow]:
    """Return the events of an archived segment."""
    segment = SegmentFile(name, int(name[:9]), len(data), last=False, open=False)
    return list(extract_events(data, segment))


def by_day(events: list[EventRow]) -> Counter[tuple[str, EventKind]]:
    """Count events by UTC day and kind."""
    return Counter((day_of(event.time or 0), event.event) for event in events)


def test_event_counts_equal_the_ledger_while_everything_is_compacted() -> None:
    torn, found = 0, set[EventKind]()
    for seed in range(3):
        ledger, reader = EventLedger(seed), Reader()
        run = LedgerRun(ledger, OPERATIONS, reader.read)
        run.run()
        assert run.archive.gaps == ()
        assert by_day(reader.events) == ledger.counts
        assert len({day for day, _ in ledger.counts}) > 7
        check_columns(reader.events)
        check_serials(reader.events)
        found |= {event.event for event in reader.events}
        torn += reader.torn
    assert found == {*EventKind}
    assert torn > 2, torn


def check_columns(events: list[EventRow]) -> None:
    """Each event is in order, and says of its job what is known."""
    places = [(event.segment, event.offset) for event in events]
    assert places == sorted(places)
    for event in events:
        if event.event not in (EventKind.PAUSED, EventKind.RESUMED, EventKind.LIMITED):
            assert event.serial is not None
        if event.event in (EventKind.SET, EventKind.KICKED, EventKind.RENAMED):
            assert event.key is not None
        assert event.domain in ("a", "b")
        writes = event.event in (EventKind.SET, EventKind.KICKED) or event.reason == UNDELIVERED
        assert (event.value_bytes is not None) == writes
        assert event.uri is None or writes
        if event.event in (EventKind.LEASED, EventKind.EXTENDED, EventKind.FAILED):
            assert event.key is None
        if event.event == EventKind.LEASED:
            assert event.lease_start == event.time
            assert event.wait_us is not None
            assert event.due is not None
            assert event.wait_us == event.time - event.due
        if event.event in (EventKind.COMPLETED, EventKind.LOST) and event.reason != POPPED:
            assert event.lease_start is not None
            assert event.time == event.lease_start + (event.run_us or 0)
            assert event.event == EventKind.COMPLETED or event.run_us >= LEASE - 1000
    batch = to_batch(events, EVENT_COLUMNS)
    assert batch.schema == EVENT_SCHEMA
    assert batch.num_rows == len(events)


def check_serials(events: list[EventRow]) -> None:
    """No two entries have one serial number: a SET over an entry, and a RENAME, keep it."""
    keys: dict[int, bytes] = {}
    for event in events:
        if event.serial is None:
            continue
        if event.event == EventKind.RENAMED:
            assert event.key is not None
            keys[event.serial] = event.key
        elif event.key is not None:
            assert keys.setdefault(event.serial, event.key) == event.key
        elif event.serial in keys:
            parts = parse_journal_key(keys[event.serial])
            assert parts is not None
            assert parts.domain.decode() == event.domain


# --- serial numbers behind what a start cannot know -----------------------------------------------


def with_segments(log: CompactedLog, segments: dict[str, bytes]) -> None:
    """Let the daemon start on these segments."""
    log.writer.close()
    log.disk = SimulatedDisk()
    log.disk.mkdir(LOG)
    for name, data in segments.items():
        write_file(log.disk, f"{LOG}/{name}", data, like=LOG)
    log.disk.sync_directory(LOG)
    log.start()


def files_of(log: CompactedLog) -> dict[str, bytes]:
    """Return the segments of a log."""
    log.flush()
    return {name: log.disk.read(f"{LOG}/{name}") for name in log.segments()}


@pytest.mark.parametrize("compacted", [0, 1])
@pytest.mark.parametrize("starts", [1, 2, 3])
def test_event_serial_of_a_job_of_workq_is_that_of_no_other(compacted: int, starts: int) -> None:
    log = CompactedLog(cmdlog_seg_size=1 << 20)
    segments = {}
    for number in (1, 2):
        builder = SegmentBuilder(None, ids_from=100 * number)
        for job in range(5):
            builder.foreign(b"pages", b"%d" % job)
        segments[segment_name(number)] = bytes(builder)
    log.clock.instant_us = builder.now_us + SECOND
    with_segments(log, segments)
    # a job of workq has other numbers behind a start, until its record is one of ours
    jobs: dict[int, bytes] = {}
    for _ in range(starts):
        for entry in log.engine.store:
            assert jobs.setdefault(entry.arrival, entry.key) == entry.key
        reply = log.ask(Function.NEXT, b"pages", timeout=100 * SECOND, count=2)
        for pair in reply.pairs or ():
            log.done(Function.DELETE, pair.key, flags=Flag.WORKED_ON, timeout=reply.timeout)
        log.flush()
        foreign = [info for info in log.writer.sealed if info.number <= 2]
        for info in foreign[compacted : compacted + 1]:
            log.clean(info)
        log.restart()
    log.done(Function.SET, b"pages:1:0:new", b"new")
    for entry in log.engine.store:
        assert jobs.setdefault(entry.arrival, entry.key) == entry.key
    log.engine.check()
    log.workq()


@pytest.mark.parametrize("lost", [("first", "set"), ("set",), ("first", "set", "leased")])
@pytest.mark.parametrize("by_daemon", [True, False])
def test_event_serial_that_is_told_behind_damage_only_does_not_come_again(
    lost: tuple[str, ...], by_daemon: bool
) -> None:
    log = CompactedLog(cmdlog_seg_size=1 << 20)
    log.fill(3)
    log.roll()
    for number in range(8):
        log.done(Function.SET, b"a:1:%d:before" % number, b"v")
    reply = log.ask(Function.NEXT, b"a", timeout=100 * SECOND, count=8)
    assert reply.pairs is not None
    for pair in reply.pairs[:4]:
        log.done(Function.DELETE, pair.key, flags=Flag.WORKED_ON, timeout=reply.timeout)
    segments = files_of(log)
    name = max(segments)
    data = bytearray(segments[name])
    for start, body, end in scan_segment(bytes(data)).spans():
        record, _ = decode_record(bytes(data), start)
        is_first = start == len(SEGMENT_HEADER)
        kind = "first" if is_first else "set" if b"before" in record.payload else "leased"
        if kind in lost and record.command <= Command.SCHEDULE:
            data[body:end] = bytes(end - body)
    segments[name] = bytes(data)
    if by_daemon:
        log.config.repair = True
        with_segments(log, segments)
        log.config.repair = False
        log.restart()
    else:
        disk = SimulatedDisk()
        disk.mkdir(LOG)
        for each, content in segments.items():
            write_file(disk, f"{LOG}/{each}", content, like=LOG)
        recover(disk, LOG, now_us=log.clock.instant_us, repair=True)
        with_segments(log, {each: disk.read(f"{LOG}/{each}") for each in segments})
    told = max(event.serial or 0 for event in events_of_segment(name, files_of(log)[name]))
    assert told >= 4
    log.done(Function.SET, b"a:1:0:new", b"new")
    assert log.entry(b"a:1:0:new").arrival > told
    log.check()
