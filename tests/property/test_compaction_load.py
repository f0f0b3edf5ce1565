"""The log stays small under steady load, whatever the load's shape.

Promise: once settled, at most 2.5 times what is live, and two segments. Live are the records of
entries and those of tombstones that stand. When all tombstones and pauses are over, no record of
what is gone stays in a segment that is compacted. Where cleaning gets too little time, at most four
times and four segments, for writers are slowed down.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fastjournal.limits import UNDERSIZED_SEGMENTS_MAX
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournald.compaction.backpressure import Backpressure
from fastjournald.compaction.policy import TIERS, bytes_usual, candidates, live_bytes
from tests.property.compacted_log import CompactedLog
from tests.property.subject import SECOND

SEGMENT_BYTES = 64 * 1024
STEPS = 8000
"""Steps of a load; half as many of the one that is five loads at once."""
LOOK_STEPS = 100
"""Between two looks at how large the log is: the daemon looks every second."""
ALL_IS_OVER_S = 2 * 3600
"""Longer than tombstones, pauses and leases of the loads last."""
USUAL_US = 300 * SECOND


class Load:
    """Something that is done to a log again and again, a hundred times a second.

    Args:
        options: Options of the daemon.
    """

    def __init__(self, **options: int) -> None:
        # jobs fail without end: none is a dead letter
        always = {"cmdlog_seg_size": SEGMENT_BYTES, "max_attempts": 0}
        self.log = CompactedLog(**{**always, **options})
        self.draw = random.Random(1)
        self.number = 0
        self.kept: list[bytes] = []
        self.leased: list[tuple[bytes, int]] = []

    def put(self, key: bytes, size: int = 100, **how: int) -> None:
        self.log.done(Function.SET, key, b"v" * size, flags=Flag.OVERWRITE, **how)

    def cold(self, count: int) -> None:
        """Entries that stay for ever stand at the start of the log."""
        if self.number < count:
            self.put(b"cold/%d" % self.number)

    def jobs(self) -> None:
        self.put(b"d:1:0:%d" % self.number)
        if self.number > 500:
            reply = self.log.ask(Function.NEXT, b"d", timeout=30 * SECOND)
            assert reply.pairs
            done = {"flags": Flag.WORKED_ON, "timeout": reply.timeout}
            self.log.done(Function.DELETE, reply.pairs[0].key, **done)

    def hot_and_cold(self) -> None:
        self.cold(2000)
        if self.number % 25 == 0 and self.number > 2000:
            # a little dies of what is old, now and then
            self.log.ask(
                Function.DELETE, b"cold/%d" % (self.number * 7 % 2000), flags=Flag.OVERWRITE
            )
        self.put(b"hot/%d" % self.draw.randrange(50), 200)

    def expiring(self) -> None:
        self.cold(1000)
        self.put(b"short/%d" % self.number, timeout=self.log.clock.instant_us + 5 * SECOND)

    def mass_expiry(self) -> None:
        self.cold(500)
        minute = self.log.clock.instant_us // (20 * SECOND) * 20 * SECOND
        self.put(b"short/%d" % self.number, timeout=minute + 20 * SECOND)

    def dying_at_random(self) -> None:
        self._dying(Flag.OVERWRITE, (10, 100, 3000))

    def leaving_tombstones(self) -> None:
        self._dying(Flag(0), (100,))

    def _dying(self, flags: Flag, sizes: tuple[int, ...]) -> None:
        self.put(b"e/%d" % self.number, self.draw.choice(sizes))
        self.kept.append(b"e/%d" % self.number)
        if len(self.kept) > 600:
            at = self.draw.randrange(600)
            self.kept[at], self.kept[-1] = self.kept[-1], self.kept[at]
            self.log.done(Function.DELETE, self.kept.pop(), flags=flags)

    def pauses(self) -> None:
        self.cold(1000)
        ttl = self.draw.choice((1, 3)) * SECOND
        self.log.done(Function.PAUSE, b"domain%d" % self.number, ttl=ttl)

    def counters(self) -> None:
        if self.number < 100:
            self.log.done(Function.SET, b"c/%d" % self.number, bytes(8), kind=ValueType.INTEGER)
        key = b"c/%d" % self.draw.randrange(min(self.number + 1, 100))
        self.log.done(Function.ADD, key, (1).to_bytes(8), kind=ValueType.INTEGER)

    def long_leases(self) -> None:
        if self.number < 800:
            self.put(b"d:1:0:%d" % self.number)
        reply = self.log.ask(Function.NEXT, b"d", timeout=20 * SECOND)
        if reply.pairs:
            assert reply.timeout
            self.leased.append((reply.pairs[0].key, reply.timeout))
        if len(self.leased) > 200:
            key, token = self.leased.pop(self.draw.randrange(200))
            self.log.ask(Function.RELEASE, key, flags=Flag.WORKED_ON, timeout=token)

    def lease_extensions(self) -> None:
        """A few hundred jobs that are worked on, and extended all the time."""
        if self.number < 300:
            self.put(b"d:1:0:%d" % self.number, self.draw.choice((10, 1000)))
        reply = self.log.ask(Function.NEXT, b"d", timeout=60 * SECOND)
        if reply.pairs:
            assert reply.timeout
            self.leased.append((reply.pairs[0].key, reply.timeout))
        at = self.draw.randrange(len(self.leased))
        key, token = self.leased[at]
        how = {"flags": Flag.WORKED_ON, "timeout": token, "ttl": 60 * SECOND}
        extended = self.log.ask(Function.TOUCH, key, **how)
        if extended.timeout:
            self.leased[at] = key, extended.timeout

    def failed_attempts(self) -> None:
        """Jobs that fail at once, again and again, with a long error."""
        if self.number < 100:
            self.put(b"d:1:0:%d" % self.number)
        reply = self.log.ask(Function.NEXT, b"d", timeout=60 * SECOND)
        assert reply.pairs
        how = {"flags": Flag.WORKED_ON, "timeout": reply.timeout, "ttl": 0}
        error = b"%d " % self.number * 100
        self.log.done(Function.RELEASE, reply.pairs[0].key, error, kind=ValueType.STRING, **how)

    def limits_changed(self) -> None:
        """Domains whose limits change all the time."""
        self.cold(1000)
        jobs = self.draw.choice((0, 1, 2))
        domain = b"domain%d" % (self.number % 200)
        self.log.done(Function.LIMIT, domain, b'{"jobs":%d}' % jobs, kind=ValueType.STRING)

    def purged(self) -> None:
        """Domains that fill and are emptied."""
        self.put(b"d:1:0:%d" % self.number)
        if self.number % 700 == 699:
            while self.log.ask(Function.PURGE, b"d", count=250).ttl:
                pass

    def pauses_toggled(self) -> None:
        """Domains that are paused for long, and go on soon."""
        ttl = self.draw.choice((0, 1000, 3600)) * SECOND
        self.log.done(Function.PAUSE, b"domain%d" % (self.number % 200), ttl=ttl)

    def erased_tombstones(self) -> None:
        """Deleted, set anew, and deleted without trace."""
        self.cold(300)
        key = b"t/%d" % (self.number % 2000)
        self.put(key)
        self.log.done(Function.DELETE, key)
        self.log.pass_time(0.001)
        self.put(key)
        self.log.done(Function.DELETE, key, flags=Flag.OVERWRITE)

    def renamed(self) -> None:
        if self.number < 400:
            self.put(b"r/%d" % self.number)
            self.kept.append(b"r/%d" % self.number)
        at = self.draw.randrange(len(self.kept))
        new = b"r/%d/%d" % (at, self.number)
        self.log.done(Function.RENAME, self.kept[at], uri=new)
        self.kept[at] = new

    def bursts_and_idle_days(self) -> None:
        self.put(b"b/%d" % (self.number % 700))
        if self.number % 3000 == 2999:
            for _ in range(6):
                self.log.pass_time(8 * 3600)
                self.log.clean_all()

    def all_of_it(self) -> None:
        for part in (self.jobs, self.hot_and_cold, self.expiring, self.pauses, self.counters):
            part()


LOADS: list[tuple[Callable[[Load], None], dict[str, int]]] = [
    *((load, {"tombstone_ttl": 10}) for load in vars(Load).values() if callable(load)),
    (Load.jobs, {"tombstones_max": 300}),
    (Load.leaving_tombstones, {"tombstones_max": 300}),
    (Load.expiring, {}),
    (Load.all_of_it, {"memory_limit": 1}),
    (Load.hot_and_cold, {"memory_limit": 1}),
]
LOADS = [
    (load, options)
    for load, options in LOADS
    if load.__name__[0] != "_" and load.__name__ not in ("put", "cold")
]


@pytest.mark.parametrize(("step", "options"), LOADS)
def test_disk_use_stays_under_a_multiple_of_what_is_live(
    step: Callable[[Load], None], options: dict[str, int]
) -> None:
    load = Load(**options)
    log = load.log
    cleaned_at = log.clock.instant_us
    steps = STEPS if step is not Load.all_of_it else STEPS // 2
    for load.number in range(steps):
        step(load)
        log.pass_time(0.01)
        if load.number % LOOK_STEPS:
            continue
        live = live_bytes(log.engine.store)
        large = log.log_bytes() > 2 * live + 2 * SEGMENT_BYTES
        if large or log.clock.instant_us >= cleaned_at + USUAL_US:
            cleaned_at = log.clock.instant_us
            log.clean_all()
        if load.number > STEPS // 3:
            assert log.log_bytes() <= 2.5 * live + 2 * SEGMENT_BYTES
            files = len(log.segments())
            assert files <= 8 * live / SEGMENT_BYTES + UNDERSIZED_SEGMENTS_MAX + 5
    # what came and went has left nothing when its time is over
    log.pass_time(ALL_IS_OVER_S)
    log.clean_settled()
    log.roll()
    for info in list(log.writer.sealed):
        log.clean(info)
    assert log.log_bytes() <= 1.4 * log.engine.journal.records.live_bytes + SEGMENT_BYTES / 8
    assert_comes_to_rest(log)


# --- more work than the event loop has time for ---------------------------------------------------


class Saturated:
    """A log whose cleaning gets one of its steps in so many requests, as under far too much load.

    Args:
        load: The requests to it.
        step: One of its loads.
        requests: Between two steps of cleaning.
    """

    def __init__(self, load: Load, step: Callable[[Load], None], requests: int) -> None:
        self.load = load
        self.log = load.log
        self.factor = 0.0
        """Bytes of the log in units of what is live and one segment, at the most."""
        self.slowed = 0
        """How often a client had to wait."""
        self._step = step
        self._requests = requests
        self.pressure = Backpressure(self.log.engine, self.log.writer, compacts=True)

    def run(self, steps: int) -> None:
        """Let clients ask so often, while the log is cleaned behind them."""
        store, writer = self.log.engine.store, self.log.writer
        while self.load.number < steps:
            self._ask()
            if writer.log_bytes <= bytes_usual(store, writer):
                continue
            freed = 0
            for info in candidates(store, writer, self.log.clock.instant_us, merge=False):
                self.log.clean(info, self._ask_often)
                left = next((i.bytes for i in writer.sealed if i.number == info.number), 0)
                freed += info.bytes - left
                self.pressure.freed(info.bytes - left)
                if writer.log_bytes <= bytes_usual(store, writer):
                    break
            self.pressure.look()
            if self.pressure.needed and not freed:
                self.pressure.stop_slowing()

    def _ask_often(self) -> None:
        for _ in range(self._requests):
            if self.pressure.needed:
                self.slowed += 1
                return
            self._ask()

    def _ask(self) -> None:
        self.load.number += 1
        self._step(self.load)
        self.log.pass_time(0.01)
        if self.log.writer.appended >= self.pressure.look_at:
            self.pressure.look()
        writer = self.log.writer
        live = live_bytes(self.log.engine.store)
        size = writer.log_bytes / (live + writer.segment_bytes_max)
        self.factor = max(self.factor, size)


@pytest.mark.parametrize("segment_bytes", [16 * 1024, 64 * 1024])
@pytest.mark.parametrize(
    "step",
    [
        Load.hot_and_cold,
        Load.jobs,
        Load.dying_at_random,
        Load.leaving_tombstones,
        Load.lease_extensions,
        Load.failed_attempts,
    ],
)
def test_backpressure_bounds_the_log_where_cleaning_gets_too_little_time(
    step: Callable[[Load], None], segment_bytes: int
) -> None:
    load = Load(cmdlog_seg_size=segment_bytes, tombstone_ttl=10)
    saturated = Saturated(load, step, requests=150)
    saturated.run(5000)
    assert saturated.slowed > 0, "this load is too light"
    assert 2 < saturated.factor <= 4
    load.log.flush()
    load.log.check()


def assert_comes_to_rest(log: CompactedLog) -> None:
    """Where nothing is written but by compaction, that ends, although snapshots seal segments."""
    appended = []
    for _ in range(8):
        log.roll()
        before = log.writer.appended
        log.clean_all()
        appended.append(log.writer.appended - before)
        log.pass_time(300)
    assert appended[5:] == [0, 0, 0], "cleaning goes on and on"


@pytest.mark.parametrize("size", [20, 45, 50, 54, 90, 400])
def test_compaction_merges_the_tiny_segments_that_snapshots_seal(size: int) -> None:
    load = Load(tombstone_ttl=10)
    log = load.log
    for number in range(300):
        log.done(Function.SET, b"s/%d" % number, b"v" * size)
        log.done(Function.SET, b"d:1:0:%d" % number, b"v" * size)
        log.roll()
        if number % 25 == 24:
            log.clean_all()
            log.pass_time(300)
    assert len(log.segments()) < 3 * TIERS + 3
    assert_comes_to_rest(log)
    log.check()


def test_compaction_copies_what_it_merges_a_few_times_only() -> None:
    log = CompactedLog(cmdlog_seg_size=1 << 20)
    for number in range(600):
        log.done(Function.SET, b"s/%d" % number, b"v" * 500)
        log.roll()
        log.clean_all()
        log.pass_time(300)
    live = log.engine.journal.records.live_bytes
    assert log.writer.appended < (TIERS + 2) * live
    assert len(log.segments()) < 3 * TIERS + 3
    log.check()
