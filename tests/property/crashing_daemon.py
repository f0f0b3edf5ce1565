"""A daemon without sockets on a disk that fails: requests, group commits, crashes, recovery.

It keeps the persistent state after every step since the last acknowledged one. Whatever
happens to the disk, what a recovery finds must be one of these: everything acknowledged, nothing
half. Somebody listens to every key: what was heard, and did not change since, must be found too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.cmdlog.locks import lock_read
from fastjournal.cmdlog.writer import LogWriter
from fastjournal.errors import FastjournalError, LogCorruptError, LogFailedError, LogLockedError
from fastjournal.limits import RETRY_DELAY_US, RETRY_DELAY_US_MAX
from fastjournal.protocol import ClientConnection, ErrorCode, decode_request, encode_request
from fastjournal.protocol.messages import Pair
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.compaction.compact_segment import (
    DURABLE,
    NOW,
    TURN,
    Blocking,
    Compaction,
    compact_segment,
)
from fastjournald.config.options import Config
from fastjournald.engine.engine import Engine, Missing
from fastjournald.engine.job_lifecycle import BURIED_AT_ATTEMPTS_MAX
from fastjournald.engine.key_filter import KeyFilter, range_filter
from fastjournald.engine.undelivered import DeliveredJobs, DeliveringReply
from fastjournald.engine.value_memory import evict_values, missing_notifications
from fastjournald.recovery.recover import recover_engine
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Unreadable
from tests.property.cold_values import fetch, still, value_of
from tests.property.crash_archive import ARCHIVE, CrashedArchive
from tests.property.crash_requests import VOLATILE_URI, draw_request
from tests.property.crash_snapshots import Asked, Snapshots
from tests.property.subject import SECOND, START

LOG = "/log"
LISTENER = "listener"


class Dump(NamedTuple):
    """The persistent state."""

    entries: dict[bytes, tuple[Any, ...]]
    pauses: dict[bytes, int]
    limits: dict[bytes, Any]
    tombstones: dict[bytes, int]
    lease_counter: int


class Told(NamedTuple):
    """A notification."""

    mark: int
    """Bytes that had been appended: it is sent once these are settled."""
    pair: Pair
    """Without metadata: the key is gone."""


class Step(NamedTuple):
    """The state after a request, or after time passed."""

    mark: int
    """Bytes that had been appended."""
    now: int
    state: Dump
    moved: dict[bytes, int]
    """Key to the end of its lease, where a step of the clock moved that."""
    intervals: dict[bytes, int]
    laid: dict[bytes, int]
    """Key to the instant up to which its tombstone stands."""


def entry_at(
    entry: Entry, value: bytes, now: int, attempts_max: int
) -> tuple[Any, ...] | int | None:
    """Return what an entry is at ``now``; a number: gone, with a tombstone; None: just gone."""
    token, attempts, reason = entry.token, entry.extra.attempts, entry.reason
    first_due, until, not_before = entry.extra.first_due, entry.leased_until, entry.not_before
    if token and until <= now:
        if entry.superseded:
            return entry.superseded
        ended, earlier = until, attempts
        token, until, attempts = 0, 0, attempts + 1
        if entry.journal and 0 < attempts_max <= attempts:
            reason = BURIED_AT_ATTEMPTS_MAX
        else:
            if entry.journal and earlier:
                delay = min(RETRY_DELAY_US << earlier, RETRY_DELAY_US_MAX)
                not_before = max(not_before, ended + delay)
            first_due = max(not_before, ended)
    if not token and 0 < entry.expires <= now:
        return None
    return (
        *(entry.uri, tuple(entry.links or ()), entry.value_type, value, entry.timestamp),
        *(entry.created, entry.modified, entry.arrival, not_before, entry.expires),
        *(entry.extra.ttl, attempts, token, until, entry.superseded, reason, first_due),
        *(entry.extra.error, entry.extra.attempts_max if token else 0),
        *(entry.priority, entry.domain.name),
    )


def dump(engine: Engine, now: int, *, exact: bool, disk: SimulatedDisk | None = None) -> Dump:
    """Return the persistent state, with leases and lives over that end until ``now``.

    Args:
        engine: The engine.
        now: Not before any instant that was applied to it.
        exact: All tombstones and tokens are persistent, so they are part of it.
        disk: Where values are that left memory.
    """
    store = engine.store
    entries = {}
    tombstones = {
        key: timestamp
        for key, _ in store.tombstones.items()
        if (timestamp := store.tombstones.get(key, now)) is not None
    }
    disk = still(engine, disk)
    for entry in store:
        # what shares a URI with entries that are not persistent, see VOLATILE_KEYS
        if entry.persistent and (exact or entry.uri != VOLATILE_URI):
            value = value_of(engine, disk, LOG, entry)
            fields = entry_at(entry, value, now, engine.context.jobs.attempts_max_of(entry))
            if isinstance(fields, int):
                tombstones[entry.key] = max(fields, tombstones.get(entry.key, 0))
            elif fields is not None:
                entries[entry.key] = fields
    pauses = {name: until for name, until in store.rules.pauses if until > now}
    limits = dict(store.rules.limits)
    if not exact:
        return Dump(entries, pauses, limits, {}, 0)
    return Dump(entries, pauses, limits, tombstones, engine.context.tokens.count % 1000)


def intervals_of(engine: Engine) -> dict[bytes, int]:
    """Return the domains whose interval runs, and until when: persistent too."""
    limits = engine.store.rules.limits
    return {name: limits.waits_until(name) for _, name in limits._ends}


class CrashingDaemon:
    """Engine, log and disk, and what clients may believe.

    Args:
        seed: Seed of everything.
        config: Options; the sync policy is among them.
        exact: All requests are persistent; else some SETs and DELETEs are not.
    """

    def __init__(self, seed: int, config: Config, *, exact: bool) -> None:
        self.draw = random.Random(seed)
        self.config = config
        self.exact = exact
        self.clock = ManualClock(START)
        self.disk = SimulatedDisk(seed)
        self.disk.mkdir(LOG)
        self.tokens: list[tuple[bytes, int]] = []
        self.values_read = 0
        """Number of evicted values that were read again."""
        self.unfinished: Compaction | None = None
        """Compaction of a daemon with evicted values: it tells positions in the end only."""
        self.cleanings: Counter[str] = Counter()
        """How segments that were cleaned to the end ended."""
        self.snapshots = Snapshots(LOG, random.Random(seed))
        self.archive: CrashedArchive | None = None
        if config.archive_dir:
            self.disk.mkdir(ARCHIVE)
            self.archive = CrashedArchive(config, random.Random(seed))
        self.ahead_us = 0
        """By how much the clock has gone ahead in steps since the start."""
        self.steps: list[Step] = []
        """The newest acknowledged one, then all others."""
        self.tells = random.Random(seed)
        self.told: list[Told] = []
        """Not sent yet."""
        self.heard: dict[bytes, Told] = {}
        self.backs = random.Random(seed)
        self.suspensions = random.Random(seed)
        self.moved_ends = 0
        """Leases that outlived a suspension."""
        self.unsent: list[DeliveredJobs] = []
        """Work in replies that have not left for the client."""
        self.released = 0
        self.recover()

    # --- life and death -------------------------------------------------------------------------

    def recover(self, *, repair: bool = False) -> None:
        """Start on what is on the disk, and hold it against what may be there.

        Raises:
            LogFailedError: The disk failed meanwhile.
            LogCorruptError: There is damage, and ``repair`` was not asked for.
        """
        if self.steps:
            self.tell()
        self.config.repair = repair
        self.snapshots.tidy(self.disk)
        self.engine, self.writer = self._recovered(self.disk)
        if self.archive is not None:
            self.archive.start(self.disk, self.engine, self.writer)
        self.engine.check()
        if self.steps and not repair:
            now = max(step.now for step in self.steps)
            assert any(map(self._is_found, self.steps)), self.explain(now)
            if self.exact:
                self.assert_heard()
        self.told, self.heard, self.unfinished = [], {}, None
        self.unsent, self.ahead_us = [], 0
        # a start returns them again, later, if the power goes before it has settled that
        returned = {
            key: until
            for step in self.steps
            for key, until in step.moved.items()
            if until <= self.clock.instant_us
        }
        everything = range_filter(b"", b"")
        assert isinstance(everything, KeyFilter)
        self.engine.subscriptions.begin(LISTENER, 1, everything)
        # what recovery found is durable, for the writer has synced it
        self.latest = self.clock.instant_us
        self.steps = []
        self.take_down()
        if self.steps:
            self.steps[0] = self.steps[0]._replace(moved=returned | self.steps[0].moved)

    def _is_found(self, step: Step) -> bool:
        """Whether the state is what it was; a lease with a moved end that is over is returned."""
        now = self.clock.instant_us
        over = {key for key, until in step.moved.items() if until <= now}
        there = map(self.engine.store.find, over)
        if any(entry is not None and entry.token for entry in there):
            return False
        found_state, was = (
            state._replace(
                entries={key: entry for key, entry in state.entries.items() if key not in over},
                tombstones={key: at for key, at in state.tombstones.items() if key not in over},
            )
            for state in (self.state(step.now), step.state)
        )
        # the tombstone that such a return lays lets others go whose time is over
        for key in was.tombstones.keys() - found_state.tombstones.keys() if over else ():
            if step.laid.get(key, now + 1) <= now:
                del was.tombstones[key]
        return found_state == was and self._intervals_are_found(step)

    def _intervals_are_found(self, step: Step) -> bool:
        """Whether the intervals run that ran; the log may have one from before a step ahead."""
        # one that was over is not in the step, and may run again as the clock was set back
        now = max(self.clock.instant_us, step.now)
        running = {name for name, end in step.intervals.items() if end > now}
        unmoved = {name for name, end in step.intervals.items() if end - self.ahead_us > now}
        found = {name for name, end in intervals_of(self.engine).items() if end > now}
        return unmoved <= found <= running

    def _recovered(self, disk: SimulatedDisk) -> tuple[Engine, LogWriter]:
        settings = self.config.settings()
        if self.config.memory_limit:
            settings = msgspec.structs.replace(settings, cold_bytes_min=1)
        return recover_engine(disk, self.config, settings, self.clock, seed=self.draw.randbytes(8))

    def _restored(self, disk: SimulatedDisk, at: int) -> Dump:
        """Return what a daemon finds that starts on the copy of a snapshot."""
        engine, writer = self._recovered(disk)
        engine.check()
        writer.close()
        return dump(engine, at, exact=self.exact, disk=disk)

    def assert_heard(self) -> None:
        """Assert that a change heard is there, unless a later one was to be sent at the crash."""
        changed = {told.pair.key for told in self.told}
        for key, told in self.heard.items():
            meta = told.pair.meta
            found = self.engine.store.find(key)
            if key in changed:
                continue
            if meta is None:
                assert found is None, f"{key!r} was told to be gone"
            elif not 0 < (meta.worked_on_until_us or meta.expires_us) <= self.clock.instant_us:
                assert found is not None, f"{key!r} was told to stand"
                # another name of it has a later timestamp, and is sent under that name only
                assert found.timestamp >= meta.timestamp_us, f"{key!r} was told to be newer"
                value = value_of(self.engine, self.disk.kill(), LOG, found)
                assert value == told.pair.value, f"{key!r} was told otherwise"

    def tell(self) -> None:
        """Tell the listener all that changed, in memory; it hears that later."""
        while self.engine.notifications.unmatched:
            self.engine.notifications.match()
        connection = ClientConnection()
        while self.engine.notifications.has_notifications(LISTENER):
            unreadable = self.fetch(missing_notifications(self.engine.context, LISTENER))
            now = self.clock.instant_us
            connection.receive_data(self.engine.notifications.pop(LISTENER, now, unreadable))
        for told in connection.next_events():
            assert told.pairs
            (pair,) = told.pairs
            if told.code == ErrorCode.NOT_READABLE:
                entry = self.engine.store.find(pair.key)
                assert entry is not None
                pair.value = value_of(self.engine, self.disk.kill(), LOG, entry)
            self.told.append(Told(self.writer.appended, pair))

    def fetch(self, missing: Missing | None) -> Unreadable:
        """Read values that left memory; return the reads that failed."""
        unreadable = fetch(self.engine, self.disk, LOG, missing)
        self.values_read += len(missing.entries) - len(unreadable) if missing else 0
        return unreadable

    def state(self, at: int) -> Dump:
        """Return the persistent state at an instant."""
        return dump(self.engine, at, exact=self.exact, disk=self.disk)

    def explain(self, now: int) -> str:
        """Tell what was found and what might have been."""
        lines = [f"found {self.state(now)}, {intervals_of(self.engine)}"]
        lines += [f"or {step.mark} at {step.now}: {step[2:]}" for step in self.steps]
        return "\n".join(lines)

    def lose_power(self, *, holes: bool = False) -> None:
        """Lose a part of the bytes that were not synced."""
        self.disk = self.disk.crash(self.draw.getrandbits(32), holes=holes)
        self.snapshots.check(self.disk.kill(), self._restored)

    def be_killed(self) -> None:
        """Kill the process: bytes that were written stay, until the power goes."""
        self.disk = self.disk.kill(self.draw.getrandbits(32))
        self.snapshots.check(self.disk.kill(), self._restored)

    # --- requests -------------------------------------------------------------------------------

    def take_down(self) -> None:
        """Remember the state; what changes it appends to the log, or is a matter of time."""
        mark = self.writer.appended
        if not self.steps or self.steps[-1][:2] != (mark, self.latest):
            moved = {
                entry.key: entry.leased_until
                for entry in self.engine.store
                if entry.leased_until != entry.token
            }
            tombstones = self.engine.store.tombstones
            laid = {
                key: found[1] + tombstones.ttl_us
                for key, _ in tombstones.items()
                if (found := tombstones.find(key, self.latest)) is not None
            }
            state, intervals = self.state(self.latest), intervals_of(self.engine)
            self.steps.append(Step(mark, self.latest, state, moved, intervals, laid))

    @contextmanager
    def each_record_taken_down(self) -> Iterator[None]:
        """Remember the state behind each record: these are no group, a crash may keep some."""
        leases = self.engine.journal.leases
        append = leases.append

        def append_and_take_down(data: bytes, records: int, now: int) -> int:
            position = append(data, records, now)
            self.take_down()
            return position

        leases.append = append_and_take_down
        try:
            yield
        finally:
            leases.append = append

    def acknowledge(self) -> None:
        """Acknowledge every request that is settled by now."""
        settled = self.writer.settled
        if self.archive is not None:
            self.archive.acknowledge()
        evict_values(self.engine.store, self.writer.durable_at, 1000)
        while self.told and self.told[0].mark <= settled:
            told = self.told.pop(0)
            self.heard[told.pair.key] = told
        acknowledged = [at for at, step in enumerate(self.steps) if step.mark <= settled]
        if acknowledged:
            # else not even what the recovery appended is settled
            del self.steps[: acknowledged[-1]]

    def live(self, requests: int) -> None:
        """Handle requests, with commits, rolls and snapshots in between.

        Raises:
            LogFailedError: The disk failed.
        """
        for _ in range(requests):
            self.ask()
            if not self.other_task() and self.draw.random() < 0.08 and self.writer.sealed:
                one = self.draw.choice(self.writer.sealed)
                for info in self.draw.choice(([one], [one], list(self.writer.sealed))):
                    self.clean(info)

    def other_task(self) -> bool:
        """Commit, roll or take a snapshot, perhaps; return whether anything was done."""
        if self.archive is not None and self.draw.random() < 0.2:
            self.archive.work()
        self.snapshots.go_on(self.disk)
        chance = self.draw.random()
        if chance < 0.25:
            self.commit()
        elif chance < 0.28:
            self.writer.roll()
            self.acknowledge()
            if chance >= 0.27 and not (self.steps and self.steps[-1].moved):
                self.clock.instant_us += 1
                asked = Asked(self.latest, self.state(self.latest))
                store, now = self.engine.store, self.clock.instant_us
                self.snapshots.begin(self.disk, store, self.writer, now, asked)
        else:
            return False
        return True

    def clean(self, info: SegmentInfo) -> None:
        """Clean a segment, with all else between its steps; perhaps not to the end.

        Raises:
            LogFailedError: The disk failed in a way that ends the daemon.
        """
        draw = self.draw
        store, writer, now = self.engine.store, self.writer, self.clock.instant_us
        if self.unfinished is not None:
            return
        compaction = compact_segment(store, writer, self.disk, LOG, info, now)
        steps = draw.choice((3, 10, 1000, 1000, 1000))
        answer: object = None
        failure: FastjournalError | None = None
        changed = False
        # once a file has changed, only the end of the daemon ends it
        while steps > 0 or changed:
            steps -= 1
            try:
                wanted = compaction.send(answer) if failure is None else compaction.throw(failure)
            except StopIteration as stop:
                self.take_down()
                self.cleanings[str(stop.value).partition(":")[0].partition(" at")[0]] += 1
                return
            # a failure that ends the daemon changes nothing, but leaves positions that may be wrong
            self.take_down()
            failure = answer = None
            if draw.random() < 0.3:
                self.ask()
            if draw.random() < 0.3:
                self.other_task()
            if wanted in (TURN, NOW):
                answer = self.clock.instant_us
            elif wanted is DURABLE:
                writer.write()
                writer.sync()
                self.acknowledge()
            else:
                assert isinstance(wanted, Blocking)
                reader = None
                if draw.random() < 0.05:
                    with suppress(LogLockedError):
                        reader = lock_read(self.disk, LOG)
                try:
                    answer = wanted.call()
                except (LogFailedError, LogLockedError, LogCorruptError) as error:
                    failure = error
                if reader is not None:
                    reader.close()
            changed = changed or (isinstance(wanted, Blocking) and wanted.exclusive)
        if self.config.memory_limit:
            self.unfinished = compaction

    def commit(self) -> None:
        """Write and sync for all who wait; more requests may come between."""
        self.writer.write()
        self.acknowledge()
        if self.draw.random() < 0.3:
            self.ask()
        if self.config.cmdlog_sync == "always" or self.draw.random() < 0.2:
            self.writer.sync()
        self.acknowledge()

    def ask(self) -> None:
        """Let time pass and carry out one request."""
        draw, engine = self.draw, self.engine
        jump = draw.choices(
            (0, 1, 7000, SECOND, 9 * SECOND, 100 * SECOND, -3), (5, 5, 3, 2, 2, 1, 1)
        )
        self.clock.instant_us += jump[0]
        if self.suspensions.random() < 0.03:
            step_us = self.suspensions.choice((2 * SECOND, 100 * SECOND))
            self.clock.step(step_us)
            self.ahead_us += step_us
            with self.each_record_taken_down():
                self.moved_ends += engine.clock_stepped(self.clock.instant_us, step_us).total()
        self.latest = max(self.latest, self.clock.instant_us)
        engine.advance(self.clock.instant_us)
        self.take_down()
        asked = draw_request(draw, self.clock.instant_us, self.tokens, exact=self.exact)
        # as a client's bytes
        asked = decode_request(encode_request(asked))
        answer = engine.handle("session", asked, self.clock.instant_us)
        while isinstance(answer, Missing):
            answer = engine.handle("session", asked, self.clock.instant_us, self.fetch(answer))
        assert answer is not None
        if isinstance(answer, DeliveringReply):
            self.unsent.append(answer.jobs)
        self.tokens += sorted((entry.key, entry.token) for entry in engine.store if entry.token)
        del self.tokens[:-6]
        self.take_down()
        self.lose_client()
        if self.tells.random() < 0.5:
            self.tell()

    def lose_client(self) -> None:
        """Send what was delivered, or keep it for a while, or find that the client is gone."""
        chance = self.backs.random()
        if chance < 0.4:
            self.unsent.clear()
        while chance > 0.8 and self.unsent:
            self.unsent = self.engine.release_undelivered(self.unsent, 1, self.clock.instant_us)
            self.released += 1
            self.engine.check()
            self.take_down()


def until_it_starts(daemon: CrashingDaemon, *, repair: bool = False) -> None:
    """Recover on a disk that fails meanwhile, perhaps; the power may go in the middle of it."""
    while True:
        try:
            return daemon.recover(repair=repair)
        except LogFailedError:
            if daemon.config.cmdlog_sync == "always" and daemon.draw.random() < 0.6:
                daemon.lose_power()
            else:
                daemon.be_killed()
            if daemon.draw.random() < 0.5:
                daemon.disk.fail_at(daemon.draw.randint(1, 20))
