"""A daemon without sockets whose log is compacted when a test says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import trio

from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.cmdlog.format.records import decode_time
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.errors import FastjournalError, LogCorruptError, LogFailedError, LogLockedError
from fastjournal.protocol import SUCCESS_BYTES, decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query, ValueType
from fastjournal.protocol.messages import Reply, Request
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.workq_rules import WorkqState, assert_workq_accepts
from fastjournald.compaction.backpressure import Backpressure
from fastjournald.compaction.compact_segment import DURABLE, NOW, TURN, Blocking, compact_segment
from fastjournald.compaction.policy import candidates
from fastjournald.config.options import Config
from fastjournald.engine.engine import Missing, Scan
from fastjournald.engine.value_memory import evict_values
from fastjournald.recovery.recover import recover_engine
from fastjournald.runtime import Counters
from fastjournald.tables.entry import Entry
from tests.property.cold_values import fetch
from tests.property.crashing_daemon import Dump, dump, intervals_of
from tests.property.subject import SECOND, START

LOG = "/log"
PERSIST = int(Flag.PERSIST)
RANGE = Query.RANGE << QUERY_SHIFT


async def nothing_to_archive() -> None:
    """Without an archive, compaction waits for nothing."""


def runtime_of(
    log: CompactedLog, wait_durable: Callable[[int], Awaitable[None]] | None = None
) -> Any:
    """Return what the compactor takes of the daemon; a wait for the disk flushes, or is given."""

    async def durable(mark: int) -> None:
        log.flush()

    async def roll() -> list[SegmentInfo]:
        log.writer.roll()
        return log.writer.sealed

    return SimpleNamespace(
        engine=log.engine,
        writer=log.writer,
        disk=log.disk,
        archive=None,
        remote=None,
        config=log.config,
        clock=log.clock,
        wake_tasks=lambda: None,
        commit=SimpleNamespace(wait_durable=wait_durable or durable, roll=roll),
        segments_free=trio.Lock(),
        counters=Counters(),
        backpressure=Backpressure(log.engine, log.writer, compacts=True),
    )


class CompactedLog:
    """Engine and log on a simulated disk, and a clock that advances only when it is moved.

    Args:
        options: Options of the daemon, instead of the usual ones.
    """

    def __init__(self, **options: int) -> None:
        self.config = Config(
            cmdlog_path=LOG, **{"cmdlog_seg_size": 4096, **options}
        )  # all of them are numbers
        self.clock = ManualClock(START)
        self.disk = SimulatedDisk()
        self.disk.mkdir(LOG)
        self.settings = self.config.settings()
        if self.config.memory_limit:
            # all values leave it, however small
            self.settings = msgspec.structs.replace(self.settings, cold_bytes_min=1)
        self.starts = 0
        self.start()

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover what is on the disk."""
        self.starts += 1
        self.engine, self.writer = recover_engine(
            self.disk, self.config, self.settings, self.clock, seed=self.starts.to_bytes(8)
        )
        self.flush()
        self.engine.check()

    def restart(self) -> None:
        """End orderly, and recover."""
        self.writer.close()
        self.disk = self.disk.kill()
        self.start()

    def lose_power(self, seed: int = 0) -> None:
        """Lose what is not durable, and recover."""
        self.disk = self.disk.crash(seed)
        self.start()

    def state(self) -> Dump:
        """State that must survive."""
        return dump(self.engine, self.clock.instant_us, exact=True, disk=self.disk)

    # --- requests -------------------------------------------------------------------------------

    def ask(self, function: int, key: bytes = b"", value: bytes | None = None, **how: Any) -> Reply:
        """Ask for something at the present instant, and return the reply; ``_answer`` has how."""
        return decode_reply(self._answer(function, key, value, **how))

    def _answer(
        self,
        function: int,
        key: bytes,
        value: bytes | None,
        *,
        flags: int = 0,
        uri: bytes | None = None,
        persist: bool = True,
        kind: int = ValueType.BUFFER,
        at: int | None = None,
        timeout: int | None = None,
        ttl: int | None = None,
        count: int | None = None,
    ) -> bytes:
        """Return the reply's bytes; every write is durable at once."""
        now = self.clock.instant_us
        asked = Request(
            function,
            7,
            int(flags) | (PERSIST if persist else 0) | (RANGE if uri is not None else 0),
            now if at is None else at,
            key,
            uri,
            None if value is None else kind,
            value or b"",
            timeout,
            ttl,
            count,
        )
        answer = self.engine.handle("session", asked, now)
        while isinstance(answer, Missing):
            unreadable = fetch(self.engine, self.disk, LOG, answer)
            answer = self.engine.handle("session", asked, now, unreadable)
        while isinstance(answer, Scan):
            stepped = self.engine.step(answer, now)
            assert not isinstance(stepped, Missing)
            if stepped is not None:
                answer = stepped
        assert answer is not None
        if len(self.writer._buffer) > 20:
            self.flush()
        return answer

    def done(self, function: int, key: bytes = b"", value: bytes | None = None, **how: Any) -> None:
        """Ask for something that works."""
        answer = self._answer(function, key, value, **how)
        # a reply that says success and nothing else is the only one of so many bytes
        if len(answer) != SUCCESS_BYTES:
            reply = decode_reply(answer)
            assert reply.code == "", reply.error

    def fill(self, count: int, *, key: bytes = b"fill/%d", size: int = 100, **how: int) -> None:
        """Set that many plain entries."""
        for number in range(count):
            self.done(Function.SET, key % number, b"v" * size, flags=Flag.OVERWRITE, **how)

    def empty(self, count: int, *, key: bytes = b"fill/%d") -> None:
        """Delete that many plain entries, without trace."""
        for number in range(count):
            self.done(Function.DELETE, key % number, flags=Flag.OVERWRITE)

    def entry(self, key: bytes) -> Entry:
        """Return what stands under a key."""
        found = self.engine.store.find(key)
        assert found is not None
        return found

    def flush(self) -> None:
        """Write and sync."""
        self.writer.write()
        self.writer.sync()
        while evict_values(self.engine.store, self.writer.durable_at, 1000):
            pass

    def roll(self) -> SegmentInfo:
        """Seal the active segment and return it."""
        self.writer.roll()
        return self.writer.sealed[-1]

    # --- compaction -----------------------------------------------------------------------------

    def clean(self, info: SegmentInfo, between: Callable[[], None] = lambda: None) -> str:
        """Clean a segment to the end.

        Args:
            info: Which.
            between: Called at each of its pauses.

        Raises:
            LogFailedError: It ends the daemon.
        """
        compaction = compact_segment(
            self.engine.store, self.writer, self.disk, LOG, info, self.clock.instant_us
        )
        answer: object = None
        failure: FastjournalError | None = None
        while True:
            try:
                wanted = compaction.send(answer) if failure is None else compaction.throw(failure)
            except StopIteration as stop:
                return str(stop.value)
            answer = failure = None
            between()
            if wanted in (TURN, NOW):
                answer = self.clock.instant_us
            elif wanted is DURABLE:
                self.flush()
            else:
                assert isinstance(wanted, Blocking)
                try:
                    answer = wanted.call()
                except (LogFailedError, LogLockedError, LogCorruptError) as error:
                    failure = error

    def clean_all(self) -> list[str]:
        """Clean what is worth it, the oldest first, as the daemon does."""
        self.flush()
        now = self.clock.instant_us
        return [self.clean(info) for info in candidates(self.engine.store, self.writer, now)]

    def clean_settled(self) -> None:
        """Clean until nothing is worth it, and hold the log against all that must hold."""
        self.roll()
        for _ in range(20):
            if not self.clean_all():
                break
        self.check()

    def check(self) -> None:
        """The log is what workq takes, and gives the same entries; the engine is sound."""
        self.engine.check()
        self.assert_replays()
        self.assert_bounds()
        self.workq()

    def assert_replays(self) -> None:
        """A restart from what is on the disk gives the same."""
        self.flush()
        state, clock = self.state(), ManualClock(START)
        clock.instant_us = self.clock.instant_us
        engine, _ = recover_engine(
            self.disk.kill(), self.config, self.settings, clock, seed=bytes(8)
        )
        engine.check()
        found = dump(engine, clock.instant_us, exact=True, disk=self.disk)
        assert found == state
        assert intervals_of(engine) == intervals_of(self.engine)
        # where they are, too
        assert {entry.key: entry.position for entry in engine.store if entry.persistent} == {
            entry.key: entry.position for entry in self.engine.store if entry.persistent
        }

    def assert_bounds(self) -> None:
        """The bounds of times that the writer knows of each segment are those of its records."""
        self.flush()
        for info in (*self.writer.sealed, *filter(None, [self.writer.active])):
            data = self.disk.read(f"{LOG}/{info.name}")
            times = [decode_time(data[at : at + 15]) for at, _, _ in scan_segment(data).spans()]
            found = [time for time in times if time is not None]
            assert len(found) == len(times) == info.records
            if times:
                assert (info.min_us, info.max_us) == (min(found), max(found))

    def workq(self) -> WorkqState:
        """Workq's rules take the log."""
        self.flush()
        names = [name for name in sorted(self.disk.listdir(LOG)) if name.endswith(".log")]
        return assert_workq_accepts(self.disk.read(f"{LOG}/{name}") for name in names)

    def segments(self) -> list[str]:
        """Names of the segments on the disk."""
        return [name for name in sorted(self.disk.listdir(LOG)) if name.endswith(".log")]

    def log_bytes(self) -> int:
        """Bytes of all segments."""
        self.flush()
        return sum(self.disk.size(f"{LOG}/{name}") for name in self.segments())

    def step_clock(self, seconds: int) -> None:
        """Set the clock: no time passes."""
        self.clock.step(seconds * SECOND)
        self.engine.clock_stepped(self.clock.instant_us, seconds * SECOND)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and what ends by it, as the timers do."""
        self.clock.instant_us += round(seconds * SECOND)
        while self.clock.instant_us >= self.engine.signals.deadline:
            self.engine.advance(self.clock.instant_us)
