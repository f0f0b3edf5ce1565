"""The live index of a snapshot is what replay of its segments gives, whatever happens meanwhile.

Sessions of random requests go on while the index is taken in slices: with restarts before it, steps
of the clock, replies that were never sent, evicted values and compaction.

FASTJOURNAL_LIVE_INDEXES=20000 looks at so many sessions instead of the usual number.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Hashable

import pytest

from fastjournal.protocol import decode_reply
from fastjournal.protocol.constants import Function
from fastjournal.protocol.messages import Request
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import SegmentBuilder
from fastjournald.engine.engine import Missing, Scan
from fastjournald.engine.key_filter import LongMatches
from fastjournald.engine.undelivered import DeliveredJobs, DeliveringReply
from tests.property.cold_values import fetch
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.live_indexes import TakenIndex
from tests.property.random_sessions import RESTART, Choices, draw_session
from tests.property.subject import SECOND, START

SESSIONS = int(os.environ.get("FASTJOURNAL_LIVE_INDEXES", "1200"))
PARTS = 8
REQUESTS = 240
FUNCTIONS = (
    *(function for function in Function if function.declared.by_engine),
    *(Function.NEXT, Function.RELEASE, Function.RELEASE, Function.RELEASE, Function.BURY),
)
"""Those that need a lease, or make dead letters, come more often."""
DURATIONS = (1000, SECOND, 5 * SECOND, 60 * SECOND)


class Session:
    """A random session, and the live indexes that are taken in it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.log = CompactedLog(
            cmdlog_seg_size=3000,
            default_lease=5000,
            max_attempts=seed % 3,
            tombstone_ttl=self.draw.choice((2, 3600)),
            memory_limit=seed % 4 > 1,
        )
        if seed % 5 == 0:
            self.begin_with_workq()
        choices = Choices(
            START, DURATIONS, restarts=seed % 2 == 0, listens=False, functions=FUNCTIONS
        )
        self.steps = draw_session(seed, REQUESTS, choices)
        self.leases: list[tuple[int, bytes]] = []
        self.delivered: list[DeliveredJobs] = []
        self.taken: TakenIndex | None = None
        self.seen: Counter[str] = Counter()
        """Entries in the indexes, by what they have, and other things that happened."""

    def begin_with_workq(self) -> None:
        """Begin with a segment that workq has written."""
        log, segment = self.log, SegmentBuilder(None)
        segment.now_us = START - SECOND
        for number in range(6):
            segment.foreign(
                self.draw.choice((b"a", b"b")),
                b"job %d" % number,
                priority=number - 3,
                ttl_ms=3_600_000,
            )
        log.disk = SimulatedDisk()
        log.disk.mkdir(LOG)
        log.disk.create(f"{LOG}/000000001.log").write(bytes(segment))
        log.start()

    def run(self) -> None:
        """Play the session; each index that is taken is held against replay."""
        log = self.log
        for step in self.steps:
            log.pass_time(step.wait / SECOND)
            if step.function == RESTART:
                self.end_index()
                log.restart()
                continue
            self.ask(step.session, step.request(log.clock.instant_us, self.leases))
            for _, data in log.engine.serve_waiters(log.clock.instant_us):
                self.note(data)
            self.happen()
            if self.taken is None:
                if self.draw.random() < 0.06:
                    self.begin_index()
            elif self.draw.random() < 0.02:
                self.end_index()
            for _ in range(self.draw.choice((0, 0, 1, 5, 20))):
                self.walk()
        self.end_index()
        log.engine.check()

    def ask(self, session: Hashable, asked: Request) -> None:
        """Ask for something, and take what it leased."""
        log, now = self.log, self.log.clock.instant_us
        answer = log.engine.handle(session, asked, now)
        while isinstance(answer, Missing):
            answer = log.engine.handle(
                session, asked, now, fetch(log.engine, log.disk, LOG, answer)
            )
        while isinstance(answer, Scan):
            stepped = log.engine.step(answer, now)
            while isinstance(stepped, Missing):
                stepped = log.engine.step(answer, now, fetch(log.engine, log.disk, LOG, stepped))
            if isinstance(stepped, LongMatches):
                stepped.run()
            elif stepped is not None:
                answer = stepped
        if answer is not None:
            self.note(answer)
        log.flush()

    def note(self, data: bytes) -> None:
        """Take the leases of a reply."""
        if isinstance(data, DeliveringReply):
            self.delivered.append(data.jobs)
            reply = decode_reply(data)
            if reply.timeout:
                self.leases += [(reply.timeout, pair.key) for pair in reply.pairs or ()]

    def happen(self) -> None:
        """Let something else happen, perhaps."""
        log, chance = self.log, self.draw.random()
        if chance < 0.04:
            log.step_clock(self.draw.choice((2, 100, -2, -100)))
        elif chance < 0.1 and self.delivered:
            lost = [self.delivered.pop(self.draw.randrange(len(self.delivered)))]
            log.engine.release_undelivered(lost, 100, log.clock.instant_us)
        elif chance < 0.16 and log.writer.sealed:
            outcome = log.clean(self.draw.choice(log.writer.sealed), self.walk)
            self.seen[f"compaction {outcome}"] += 1

    # --- the index ------------------------------------------------------------------------------

    def begin_index(self) -> None:
        """Seal the active segment, and begin to take an index."""
        log = self.log
        log.writer.roll()
        files = [log.disk.read(f"{LOG}/{info.name}") for info in log.writer.sealed]
        self.taken = TakenIndex(
            log.engine.store, list(log.writer.sealed), files, log.writer.next_number
        )

    def walk(self) -> None:
        """Walk over some entries, if an index is taken."""
        if self.taken is not None:
            self.taken.step(self.draw.choice((1, 2)))

    def end_index(self) -> None:
        """Finish the index that is taken, if one is, and check it."""
        if self.taken is None:
            return
        for row in self.taken.check().values():
            self.seen["entries"] += 1
            for name in NAMES:
                self.seen[name] += row[name] not in (None, 0, [])
        self.seen["indexes"] += 1
        self.taken = None


NAMES = ("token", "superseded", "links", "attempts", "expires", "uri", "reason")


@pytest.mark.parametrize("part", range(PARTS))
def test_snapshot_index_that_is_taken_while_entries_change_equals_replay(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part % 2:
        monkeypatch.setattr("fastjournald.wal.live_capture.RUN_ENTRIES", 3)
        monkeypatch.setattr("fastjournald.wal.live_capture.RUN_CHANGES", 2)
    seen: Counter[str] = Counter()
    for seed in range(part, SESSIONS, PARTS):
        session = Session(seed)
        try:
            session.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += session.seen
    for name in NAMES:
        assert seen[name], f"no entry has {name}"
