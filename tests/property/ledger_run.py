"""Run of a ledger through weeks of virtual time: compaction, archive, restarts and torn writes.

Each segment is archived and compacted as soon as it is sealed, whatever of it is live, which is
more eager than any daemon. ``read`` is the pipeline under test.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournald.recovery.recover import open_archive
from tests.property.compacted_log import LOG
from tests.property.event_ledger import ARCHIVE, IN_MEMORY, EventLedger
from tests.property.subject import SECOND

HOUR = 3600 * SECOND


class LedgerRun:
    """Life of the daemon around a ledger.

    Args:
        ledger: The client.
        operations: Its requests, about.
        read: Takes the archive.
    """

    def __init__(
        self, ledger: EventLedger, operations: int, read: Callable[[LedgerRun], None]
    ) -> None:
        self.ledger = ledger
        self.log = ledger.log
        self.operations = operations
        self.kept: dict[str, bytes] = {}
        """Segments as they were archived, whatever became of the archive."""
        self._read = read
        self.open()

    @property
    def draw(self) -> random.Random:
        """Source of all that is random."""
        return self.ledger.draw

    def open(self) -> None:
        log = self.log
        self.archive = open_archive(log.disk, log.config, log.engine.journal.usage, log.writer)

    def compact(self) -> None:
        """Archive, and compact everything that may be compacted."""
        self.archive_sealed()
        for info in list(self.log.writer.sealed):
            self.log.clean(info)

    def archive_sealed(self) -> None:
        if infos := self.archive.waiting(self.log.writer.sealed):
            self.archive.take(infos)
            self.log.engine.journal.usage.archived_before = self.archive.next
            disk = self.log.disk
            for name in disk.listdir(ARCHIVE):
                if name.endswith(".log"):
                    self.kept[name] = disk.read(f"{ARCHIVE}/{name}")
            self.archive.enforce_bound()

    def restart(self) -> None:
        self.log.flush()
        if self.draw.random() < 0.5:
            self.log.restart()
        else:
            self.log.lose_power(self.draw.getrandbits(20))
        self.recovered()

    def recovered(self) -> None:
        """Go on behind a start: no record says that an entry in memory took a URI."""
        self.open()
        for job in self.ledger.jobs.values():
            if job.superseded == IN_MEMORY:
                job.superseded = 0
        self.ledger.pass_time(1)

    def tear(self) -> None:
        """Lose the power in the middle of a SET, of which any part may be durable."""
        ledger, log = self.ledger, self.log
        log.flush()
        ledger.pass_time(1)
        log.flush()
        durable = {name: log.disk.size(f"{LOG}/{name}") for name in log.segments()}
        key, uri, how = ledger.place()
        standing = ledger.pick(leased=self.draw.choice((None, True)))
        if standing is not None:
            key, uri, how = standing, None, {"kind": ValueType.INTEGER, "flags": Flag.OVERWRITE}
        now = log.clock.instant_us
        reply = log.ask(Function.SET, key, bytes(8), uri=uri, **how)
        assert reply.code == "", reply.error
        log.writer.write()
        log.disk = log.disk.kill()
        name = log.segments()[-1]
        path = f"{LOG}/{name}"
        # at the end of any record, from those before it to all of its own
        ends = scan_segment(log.disk.read(path)).runs[-1].ends
        log.disk.truncate(
            path, self.draw.choice([end for end in ends if end >= durable.get(name, 0)])
        )
        log.start()
        entry = log.engine.store.find(key)
        if entry is not None and entry.timestamp == now:
            ledger.stored(key, uri, how, logged=True)
        self.recovered()

    def read(self) -> None:
        self._read(self)

    def run(self) -> None:
        ledger, draw = self.ledger, self.draw
        for _ in range(self.operations):
            chance = draw.random()
            if chance < 0.3:
                ledger.set()
            elif chance < 0.33:
                ledger.set(persist=False)
            elif chance < 0.48:
                ledger.next(pop=False)
            elif chance < 0.52:
                ledger.next(pop=True)
            elif chance < 0.78:
                ledger.work()
            elif chance < 0.96:
                ledger.change()
            else:
                ledger.rule()
            if draw.random() < 0.2:
                ledger.pass_time(draw.choice((1000, SECOND, 3 * SECOND)))
            if draw.random() < 0.02:
                self.compact()
            if draw.random() < 0.02:
                ledger.pass_time(draw.choice((4, 20)) * HOUR)
            if draw.random() < 0.01:
                self.read()
            if draw.random() < 0.01:
                draw.choice((self.restart, self.tear))()
        self.log.flush()
        self.log.writer.roll()
        self.archive_sealed()
        self.read()
