"""Event extraction: kinds of events that a record alone does not tell."""

from __future__ import annotations

from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.spark.event_extractor import POPPED, UNDELIVERED, EventExtractor, History
from fastjournal.spark.event_rows import Event
from fastjournal.spark.files import SegmentFile
from fastjournal.spark.rows import segment_rows
from tests.door.engine import Handouts
from tests.property.compacted_log import LOG, CompactedLog

DOMAIN = b"a"


def key(number: int) -> bytes:
    return b"a:1:0:%d" % number


class Told:
    """A log, and the events of what was appended since the last look."""

    def __init__(self) -> None:
        self.log = CompactedLog(cmdlog_seg_size=1 << 20)
        self.history = History()

    def set(self, *numbers: int, **how: int) -> None:
        for number in numbers:
            self.log.pass_time(1)
            self.log.done(Function.SET, key(number), b"v", **how)
        self.log.pass_time(1)

    def events(self) -> list[Event]:
        self.log.flush()
        info = self.log.roll()
        data = self.log.disk.read(f"{LOG}/{info.name}")
        segment = SegmentFile(info.name, info.number, len(data), last=False, open=False)
        rows = segment_rows(data, segment, permissive=False)
        return list(EventExtractor(self.history).extract(rows))

    def kinds(self) -> list[str]:
        return [str(event.event) for event in self.events()]


def test_removals_of_one_batch_are_a_purge_or_were_popped() -> None:
    told = Told()
    told.set(1, 2, 3, 4)
    assert told.kinds() == ["set"] * 4
    told.log.ask(Function.NEXT, DOMAIN, flags=Flag.OVERWRITE, count=2)
    told.log.pass_time(1)
    told.log.ask(Function.PURGE, DOMAIN, count=9)
    events = told.events()
    assert [(str(event.event), event.reason) for event in events] == [
        ("completed", POPPED),
        ("completed", POPPED),
        ("purged", None),
        ("purged", None),
    ]
    assert [event.wait_us for event in events] == [4_000_000, 3_000_000, None, None]


def test_dead_letter_that_is_deleted_is_no_purge() -> None:
    told = Told()
    told.set(1)
    told.log.done(Function.BURY, key(1), b"bad", kind=ValueType.STRING)
    told.log.done(Function.BURY, key(1), b"worse", kind=ValueType.STRING)
    told.log.pass_time(1)
    told.log.done(Function.DELETE, key(1))
    assert told.kinds() == ["set", "buried", "deleted"]


def test_popped_entry_that_was_not_delivered_has_returned() -> None:
    told = Told()
    told.set(1)
    handouts = told.log.engine.context.handouts = Handouts()
    told.log.ask(Function.NEXT, DOMAIN, flags=Flag.OVERWRITE)
    told.log.pass_time(1)
    told.log.engine.give_back(handouts.take("session"), 9, told.log.clock.now)
    events = told.events()
    assert [(str(event.event), event.reason) for event in events] == [
        ("set", None),
        ("completed", POPPED),
        ("returned", UNDELIVERED),
    ]
    assert [job.key for job in told.history.jobs.values()] == [key(1)]


def test_lease_that_is_lost_at_the_last_attempt_is_lost_and_buried() -> None:
    told = Told()
    told.log.done(Function.LIMIT, DOMAIN, b'{"attempts":1}', kind=ValueType.STRING)
    told.set(1)
    told.log.ask(Function.NEXT, DOMAIN, timeout=1_000_000)
    told.log.pass_time(1)
    events = told.events()
    assert [str(event.event) for event in events] == ["limited", "set", "leased", "lost", "buried"]
    assert [event.attempt for event in events] == [None, None, 1, 1, None]
    assert events[3].run_us == 1_000_000


def test_entry_that_expires_while_it_is_leased_ends_its_lease() -> None:
    told = Told()
    now = told.log.clock.now
    told.set(1, timeout=now + 6_000_000)
    told.set(2, timeout=now + 6_000_000)
    told.log.ask(Function.NEXT, DOMAIN, timeout=5_000_000)
    told.log.pass_time(10)
    kinds = told.kinds()
    assert sorted(kinds) == ["expired", "expired", "leased", "lost", "set", "set"]
    assert kinds.index("lost") < len(kinds) - 1
    assert not told.history.jobs


def test_lease_after_so_many_that_workq_wants_a_new_job_is_an_event_like_others() -> None:
    told = Told()
    told.set(1)
    for _ in range(260):
        told.log.ask(Function.NEXT, DOMAIN, timeout=1_000_000)
        told.log.pass_time(2)
    kinds = told.kinds()
    assert kinds.count("set") == 1
    assert kinds.count("leased") == kinds.count("lost") == 260
    assert kinds.count("returned") == 0
    (job,) = told.history.jobs.values()
    assert job.attempts == 260


def test_lease_goes_on_in_the_next_segment() -> None:
    told = Told()
    told.set(1)
    lease = told.log.ask(Function.NEXT, DOMAIN, timeout=100_000_000).timeout
    assert lease is not None
    assert told.kinds() == ["set", "leased"]
    told.log.pass_time(7)
    told.log.done(Function.DELETE, key(1), flags=Flag.WORKED_ON, timeout=lease)
    (event,) = told.events()
    assert (str(event.event), event.domain, event.run_us) == ("completed", "a", 7_000_000)
    assert not told.history.jobs
