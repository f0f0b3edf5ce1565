"""Event extraction: the events of archived segments against a client's own ledger.

A client asks an engine for thousands of changes in virtual time, while segments are small, all of
them are compacted again and again, and the power fails. The client counts what it was told. Nothing
of that comes from the log.
"""

from __future__ import annotations

import random
from collections import Counter

from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Reply
from fastjournal.spark.event_extractor import POPPED, EventExtractor, History
from fastjournal.spark.event_rows import EVENT_SCHEMA, Event, EventKind, event_batch
from fastjournal.spark.files import SegmentFile
from fastjournal.spark.rows import segment_rows
from tests.door.recovery import open_archive
from tests.property.compacted_log import CompactedLog
from tests.property.subject import SECOND

ARCHIVE = "/archive"
LEASE = 5 * SECOND
OPERATIONS = 1_500


class Ledger:
    """A client that counts what it was told, and an archive that is read as it grows."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.log = CompactedLog(cmdlog_seg_size=3000)
        self.log.config.archive_dir = ARCHIVE
        self.log.disk.mkdir(ARCHIVE)
        self.counts: Counter[EventKind] = Counter()
        self.jobs: dict[bytes, tuple[bytes | None, int]] = {}
        """Key to URI and lease token (0: none) of each entry."""
        self.buried: set[bytes] = set()
        self.superseded: set[bytes] = set()
        self.serial = 0
        self.operations = OPERATIONS
        self.open()
        self.history = History()
        self.events: list[Event] = []
        self.taken: set[str] = set()

    def open(self) -> None:
        log = self.log
        self.archive = open_archive(log.disk, log.config, log.engine.journal.usage, log.writer)

    # --- what the client asks ---------------------------------------------------------------------

    def ask(self, function: int, key: bytes = b"", value: bytes | None = None, **how: int) -> Reply:
        self.pass_time(1)
        return self.log.ask(function, key, value, **how)

    def count(self, kind: EventKind, number: int = 1) -> None:
        self.counts[kind] += number

    def pass_time(self, us: int) -> None:
        """Let time pass: leases end whose instant comes."""
        self.log.pass_time(us / SECOND)
        for key, (_, token) in list(self.jobs.items()):
            if 0 < token <= self.log.clock.now:
                self.count(EventKind.LOST)
                self.lease_over(key)

    def lease_over(self, key: bytes) -> None:
        if key in self.superseded:
            self.superseded.discard(key)
            self.count(EventKind.REPLACED)
            del self.jobs[key]
        else:
            self.jobs[key] = (self.jobs[key][0], 0)

    def set(self) -> None:
        uri = self.draw.choice((None, None, b"u", b"v"))
        overwrite = self.draw.random() < 0.2 and self.jobs
        self.serial += 1
        key = b"%s:1:0:%d" % (self.draw.choice((b"a", b"b")), self.serial)
        if overwrite:
            key, uri = self.draw.choice(sorted(self.jobs)), None
            if key in self.superseded:
                return
        flags = Flag.OVERWRITE if overwrite else 0
        reply = self.ask(Function.SET, key, b"v" * 30, flags=flags, uri=uri)
        assert reply.code == "", reply.error
        self.count(EventKind.SET)
        standing = self.jobs.pop(key, None)
        if standing is not None:
            self.count(EventKind.REPLACED)
            self.buried.discard(key)
            uri = standing[0]
        else:
            self.take_uri(uri)
        self.jobs[key] = (uri, 0)

    def take_uri(self, uri: bytes | None) -> None:
        for key, (other, token) in list(self.jobs.items()):
            if uri is None or other != uri or key in self.superseded:
                continue
            if token:
                self.superseded.add(key)
            else:
                self.count(EventKind.REPLACED)
                self.buried.discard(key)
                del self.jobs[key]

    def next(self, *, pop: bool) -> None:
        flags = Flag.OVERWRITE if pop else 0
        reply = self.ask(Function.NEXT, flags=flags, count=self.draw.randint(1, 3), timeout=LEASE)
        for pair in reply.pairs or ():
            if pop:
                del self.jobs[pair.key]
                self.count(EventKind.COMPLETED)
            else:
                assert reply.timeout is not None
                self.jobs[pair.key] = (self.jobs[pair.key][0], reply.timeout)
                self.count(EventKind.LEASED)

    def work(self) -> None:
        """End or extend a lease."""
        leased = [key for key, (_, token) in sorted(self.jobs.items()) if token]
        if not leased:
            return
        key = self.draw.choice(leased)
        uri, token = self.jobs[key]
        how: dict[str, int] = {"flags": Flag.WORKED_ON, "timeout": token}
        superseded = key in self.superseded
        chance = self.draw.random()
        if token <= self.log.clock.now + 2:
            return
        if chance < 0.4:
            assert self.ask(Function.DELETE, key, **how).code == ""
            self.count(EventKind.COMPLETED)
            self.superseded.discard(key)
            del self.jobs[key]
        elif chance < 0.6:
            reply = self.ask(Function.TOUCH, key, ttl=LEASE, **how)
            assert reply.timeout is not None
            self.jobs[key] = (uri, reply.timeout)
            self.count(EventKind.EXTENDED)
        elif chance < 0.75:
            assert self.ask(Function.RELEASE, key, **how).code == ""
            self.count(EventKind.RETURNED)
            self.lease_over(key)
        elif chance < 0.9 and not superseded:
            how |= {"kind": ValueType.STRING}
            assert self.ask(Function.RELEASE, key, b"boom", **how).code == ""
            self.count(EventKind.FAILED)
            self.lease_over(key)
        elif not superseded:
            assert self.ask(Function.BURY, key, b"bad", kind=ValueType.STRING, **how).code == ""
            self.count(EventKind.BURIED)
            self.lease_over(key)
            self.buried.add(key)

    def change_waiting(self) -> None:
        waiting = [key for key, (_, token) in sorted(self.jobs.items()) if not token]
        if not waiting:
            return
        key, chance = self.draw.choice(waiting), self.draw.random()
        if self.buried and self.draw.random() < 0.2:
            key, chance = self.draw.choice(sorted(self.buried)), 0.5
        if chance < 0.4:
            assert self.ask(Function.DELETE, key).code == ""
            self.count(EventKind.DELETED)
            self.buried.discard(key)
            del self.jobs[key]
        elif chance < 0.6 and key in self.buried:
            assert self.ask(Function.KICK, key).code == ""
            self.count(EventKind.KICKED)
            self.buried.discard(key)
        elif chance < 0.8:
            self.serial += 1
            new = b"a:1:0:renamed%d" % self.serial
            reply = self.log.ask(Function.RENAME, key, uri=new, at=self.log.clock.now)
            assert reply.code == "", reply.error
            self.count(EventKind.RENAMED)
            self.jobs[new] = self.jobs.pop(key)
            if key in self.buried:
                self.buried.discard(key)
                self.buried.add(new)
        else:
            domain = self.draw.choice((b"a", b"b"))
            ttl = self.draw.choice((0, SECOND))
            before = self.log.engine.store.rules.pauses.until(domain)
            assert self.ask(Function.PAUSE, domain, ttl=ttl).code == ""
            if ttl:
                self.count(EventKind.PAUSED)
            elif before:
                self.count(EventKind.RESUMED)

    # --- what goes on besides ---------------------------------------------------------------------

    def compact(self) -> None:
        """Archive, and compact everything that may be compacted."""
        self.archive_sealed()
        for info in list(self.log.writer.sealed):
            self.log.clean(info)

    def archive_sealed(self) -> None:
        if infos := self.archive.waiting(self.log.writer.sealed):
            self.archive.take(infos)
            self.log.engine.journal.usage.archived_before = self.archive.next

    def restart(self) -> None:
        self.log.flush()
        if self.draw.random() < 0.5:
            self.log.restart()
        else:
            self.log.lose_power(self.draw.getrandbits(20))
        self.open()
        self.pass_time(1)

    def read(self) -> None:
        """Read the archive, as a night does: each segment once, and only once."""
        extractor = EventExtractor(self.history)
        disk = self.log.disk
        for name in disk.listdir(ARCHIVE):
            if not name.endswith(".log"):
                continue
            if name in self.taken:
                # a power loss has brought its name back
                disk.unlink(f"{ARCHIVE}/{name}")
                continue
            self.taken.add(name)
            data = disk.read(f"{ARCHIVE}/{name}")
            segment = SegmentFile(name, int(name[:9]), len(data), last=False, open=False)
            self.events += extractor.extract(segment_rows(data, segment, permissive=False))
            disk.unlink(f"{ARCHIVE}/{name}")

    def run(self) -> None:
        for _ in range(self.operations):
            chance = self.draw.random()
            if chance < 0.35:
                self.set()
            elif chance < 0.5:
                self.next(pop=False)
            elif chance < 0.55:
                self.next(pop=True)
            elif chance < 0.8:
                self.work()
            else:
                self.change_waiting()
            if self.draw.random() < 0.2:
                self.pass_time(self.draw.choice((1000, SECOND, 3 * SECOND)))
            if self.draw.random() < 0.02:
                self.compact()
            if self.draw.random() < 0.01:
                self.read()
            if self.draw.random() < 0.005:
                self.restart()
        self.log.flush()
        self.log.writer.roll()
        self.archive_sealed()
        self.read()


def test_event_counts_equal_the_ledger_while_everything_is_compacted() -> None:
    for seed in range(3):
        ledger = Ledger(seed)
        ledger.run()
        assert ledger.archive.gaps == ()
        found = Counter(event.event for event in ledger.events)
        assert found == ledger.counts
        assert {*EventKind} - {*found} <= {EventKind.EXPIRED, EventKind.PURGED, EventKind.LIMITED}
        assert min(found[kind] for kind in (EventKind.LOST, EventKind.FAILED)) > 20
        check_columns(ledger.events)
        live = {job.key for job in ledger.history.jobs.values()}
        assert live == ledger.jobs.keys()


def check_columns(events: list[Event]) -> None:
    """Each event is in order, and says of its job what is known."""
    places = [(event.segment, event.offset) for event in events]
    assert places == sorted(places)
    for event in events:
        if event.event not in (EventKind.PAUSED, EventKind.RESUMED):
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
