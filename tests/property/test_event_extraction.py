"""Event extraction: the events of archived segments against a client's own ledger."""

from __future__ import annotations

from collections import Counter

from fastjournal.cmdlog.format.endings import REPLACED, how_of
from fastjournal.cmdlog.format.envelope import unpack_completion
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.spark.history.event_rows import (
    EVENT_SCHEMA,
    POPPED,
    EventKind,
    EventRow,
    event_batch,
)
from fastjournal.spark.history.extractor import extract_events
from fastjournal.spark.storage.files import SegmentFile
from tests.property.event_ledger import ARCHIVE, LEASE, EventLedger, day_of
from tests.property.ledger_run import LedgerRun

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
        if event.event == EventKind.LEASED:
            assert event.lease_start == event.time
            assert event.wait_us is not None
            assert event.due is not None
            assert event.wait_us == event.time - event.due
        if event.event in (EventKind.COMPLETED, EventKind.LOST) and event.reason != POPPED:
            assert event.lease_start is not None
            assert event.time == event.lease_start + (event.run_us or 0)
            assert event.event == EventKind.COMPLETED or event.run_us >= LEASE - 1000
    batch = event_batch(events)
    assert batch.schema == EVENT_SCHEMA
    assert batch.num_rows == len(events)
