"""Simulation of four weeks: the real change events, worked off by simulated workers.

The newest events of the shipped file are spread over the weeks in their order, bursts and all. The
rules are those of the play: a page is worked on when it was left alone for a while, and a change of
a waiting page moves its entry. The workers, their errors and their speed are made up, so that there
is something to find:

- from two days and ten hours before the end, work on gohugo.io takes eight times as long, and a
  third of the attempts fail with HTTP 503;
- the workers of peps.python.org stop six hours before the end;
- one lease in a hundred is lost, as if a worker had crashed.

The log is written as the daemon writes it, with the instants of the simulation. The ledger counts
what the simulation did, without looking at the log.

``Weeks`` starts a daemon on the log and has ``fj-nightly`` report on it.
"""

from __future__ import annotations

import heapq
import random
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from fastjournal.clock import SystemClock
from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.keys import build_journal_key
from fj_cli.demo.history_log import HistoryLog
from fj_cli.demo.players import SECOND_US, PageChange
from fj_cli.demo.services import Daemon, DemoError, installed

MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
DELAY_US = 10 * MINUTE_US
"""A changed page is left alone for so long."""
LEASE_US = 30 * MINUTE_US
RETRY_US = 5 * MINUTE_US
ATTEMPTS_MAX = 4
DAYS = 28
SEGMENT_BYTES = 256 * 1024
SLOW_DOMAIN = b"gohugo.io"
SLOW_US = 58 * HOUR_US
SLOW_FACTOR = 8
SLOW_ERRORS = 0.33
STOPPED_DOMAIN = b"peps.python.org"
STOPPED_US = 6 * HOUR_US
LOST = 0.01
ERROR = b"HTTP 503 Service Unavailable"
WORKERS = 3
WORK_US = 20 * SECOND_US
_PRIORITIES = {b"A": 64, b"M": 128, b"D": 192}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SimulatedWork(msgspec.Struct, eq=False):
    """An entry of the simulation."""

    job_id: bytes
    key: bytes
    uri: bytes
    domain: bytes
    priority: int
    created: int
    due: int
    attempts: int = 0
    lease_start: int = 0
    """0: it waits."""
    over: bool = False
    """Replaced, completed or buried."""
    buried: bool = False


def _lists() -> Any:
    return msgspec.field(default_factory=lambda: defaultdict(list))


class HistoryLedger(msgspec.Struct):
    """Counts of the simulation, by UTC day and domain. Durations are microseconds."""

    events: Counter[tuple[str, str, str]] = msgspec.field(default_factory=Counter)
    """By day, domain and kind of event."""
    waits: dict[tuple[str, str], list[int]] = _lists()
    """From due to leased, of each lease."""
    runs: dict[tuple[str, str], list[int]] = _lists()
    """From leased to completed, of each completion."""
    attempts: Counter[tuple[str, str, int, str]] = msgspec.field(default_factory=Counter)
    """By day, domain, number of the attempt and kind of event."""
    failures: dict[tuple[str, str, str], list[int]] = _lists()
    """Instants by day, domain and reason, of failed attempts."""
    changes: Counter[tuple[str, bytes]] = msgspec.field(default_factory=Counter)
    """Requests by day and URI."""
    live: list[SimulatedWork] = msgspec.field(default_factory=list)
    """Entries at the end."""
    segments: list[SegmentInfo] = msgspec.field(default_factory=list)


def day_of(instant_us: int) -> str:
    """Return the UTC day of an instant in microseconds since the Unix epoch."""
    return (_EPOCH + timedelta(microseconds=instant_us)).date().isoformat()


class Simulation:
    """Simulation of requests and workers.

    Args:
        directory: Directory of the log; it is created.
        changes: Events, oldest first.
        until_us: Instant of the end, in microseconds since the Unix epoch.
        days: Days over which the events are spread.
        seed: Seed of durations and errors.
    """

    def __init__(
        self, directory: Path, changes: list[PageChange], *, until_us: int, days: int, seed: int = 1
    ) -> None:
        self._log = HistoryLog(directory, SEGMENT_BYTES)
        self._random = random.Random(seed)
        self._until = until_us
        self._begin = until_us - days * DAY_US
        self._changes = changes
        self._waiting: dict[bytes, SimulatedWork] = {}
        self._working: dict[bytes, SimulatedWork] = {}
        self._put_off: dict[bytes, PageChange] = {}
        self._ready: dict[bytes, list[tuple[int, int, SimulatedWork]]] = defaultdict(list)
        self._free: Counter[bytes] = Counter()
        self._agenda: list[tuple[int, int, SimulatedWork | bytes]] = []
        self._serial = 0
        self._buried: dict[bytes, SimulatedWork] = {}
        self.ledger = HistoryLedger()

    def run(self) -> HistoryLedger:
        """Run the simulation, and seal its log."""
        for domain in {change.domain for change in self._changes}:
            self._free[domain] = WORKERS
        for at, change in self._arrivals():
            self._work_until(at)
            self._change(change, at)
        self._work_until(self._until)
        self.ledger.live = [*self._waiting.values(), *self._working.values()]
        self.ledger.live += self._buried.values()
        self.ledger.segments = self._log.close()
        return self.ledger

    def _arrivals(self) -> Iterator[tuple[int, PageChange]]:
        first, last = self._changes[0].at_s, self._changes[-1].at_s
        scale = (self._until - self._begin - HOUR_US) / (last - first)
        for number, change in enumerate(self._changes):
            # changes of one second get successive instants
            yield self._begin + int((change.at_s - first) * scale) + number * 1000, change

    def _work_until(self, now: int) -> None:
        while self._agenda and self._agenda[0][0] <= now:
            at, _, what = heapq.heappop(self._agenda)
            if isinstance(what, bytes):
                self._dispatch(what, at)
            else:
                self._end(what, at)

    def _later(self, at: int, what: SimulatedWork | bytes) -> None:
        self._serial += 1
        heapq.heappush(self._agenda, (at, self._serial, what))

    def _count(self, kind: str, work: SimulatedWork, now: int) -> None:
        self.ledger.events[day_of(now), work.domain.decode(), kind] += 1
        if kind not in ("set", "replaced"):
            attempt = day_of(now), work.domain.decode(), work.attempts + 1, kind
            self.ledger.attempts[attempt] += 1

    def _change(self, change: PageChange, now: int) -> None:
        uri = change.uri
        if uri in self._working:
            # the request comes when the work on the page is over
            self._put_off[uri] = change
            return
        priority = _PRIORITIES.get(change.kind, 128)
        self._serial += 1
        due = now + DELAY_US
        key = build_journal_key(
            change.domain, b"%d" % self._serial, not_before_us=due, priority=priority
        )
        old = self._waiting.pop(uri, None) or self._buried.pop(uri, None)
        replaces = None if old is None else old.job_id
        job_id = self._log.set(key, uri, now, due, replaces)
        work = SimulatedWork(job_id, key, uri, change.domain, priority, now, due)
        self._count("set", work, now)
        self.ledger.changes[day_of(now), uri] += 1
        if old is not None:
            old.over = True
            self._count("replaced", old, now)
        self._wait(work)

    def _wait(self, work: SimulatedWork) -> None:
        self._waiting[work.uri] = work
        self._serial += 1
        heapq.heappush(self._ready[work.domain], (work.due, self._serial, work))
        self._later(work.due, work.domain)

    def _is_slow(self, domain: bytes, now: int) -> bool:
        return domain == SLOW_DOMAIN and now > self._until - SLOW_US

    def _dispatch(self, domain: bytes, now: int) -> None:
        if domain == STOPPED_DOMAIN and now > self._until - STOPPED_US:
            return
        ready = self._ready[domain]
        while ready and self._free[domain] and ready[0][0] <= now:
            _, _, work = heapq.heappop(ready)
            if work.over:
                continue
            self._free[domain] -= 1
            del self._waiting[work.uri]
            self._working[work.uri] = work
            work.lease_start = now
            self._log.lease(work.job_id, now, now + LEASE_US)
            self._count("leased", work, now)
            self.ledger.waits[day_of(now), domain.decode()].append(now - work.due)
            took = int(WORK_US * self._random.lognormvariate(0, 0.5))
            if self._is_slow(domain, now):
                took *= SLOW_FACTOR
            lost = self._random.random() < LOST or took >= LEASE_US
            self._later(now + (LEASE_US if lost else took), work)

    def _end(self, work: SimulatedWork, now: int) -> None:
        start, work.lease_start = work.lease_start, 0
        del self._working[work.uri]
        self._free[work.domain] += 1
        if now - start >= LEASE_US:
            self._log.lose(work.job_id, now)
            self._count("lost", work, now)
            work.attempts += 1
            work.due = now
            self._wait(work)
        elif self._is_slow(work.domain, start) and self._random.random() < SLOW_ERRORS:
            self._fail(work, now)
        else:
            self._log.complete(work.job_id, now)
            self._count("completed", work, now)
            self.ledger.runs[day_of(now), work.domain.decode()].append(now - start)
            work.over = True
        change = self._put_off.pop(work.uri, None)
        if change is not None:
            self._change(change, now)
        self._dispatch(work.domain, now)

    def _fail(self, work: SimulatedWork, now: int) -> None:
        if work.attempts + 1 >= ATTEMPTS_MAX:
            self._log.bury(work.job_id, ERROR, now)
            self._count("buried", work, now)
            work.over = work.buried = True
            self._buried[work.uri] = work
            return
        self._log.fail(work.job_id, ERROR, now, now + RETRY_US)
        self._count("failed", work, now)
        failed = day_of(now), work.domain.decode(), ERROR.decode()
        self.ledger.failures[failed].append(now)
        work.attempts += 1
        work.due = now + RETRY_US
        self._wait(work)


CHANGES = 10_000
"""Newest events of the file, which are spread over the weeks."""


class Weeks:
    """Weeks that end now.

    Args:
        directory: Directory of everything; it is created.
        changes: Events, oldest first.
    """

    def __init__(self, directory: Path, changes: list[PageChange]) -> None:
        self._directory = directory
        directory.mkdir()
        self._archive = directory / "archive"
        self._daemon = Daemon(directory, self._archive)
        self.ledger = Simulation(
            self._daemon.cmdlog, changes[-CHANGES:], until_us=SystemClock().now_us(), days=DAYS
        ).run()

    def report(self) -> Path:
        """Start a daemon on the log, run the report of ``fj-nightly`` on it, and return the page.

        Raises:
            DemoError: One of them failed.
        """
        output = self._directory / "report"
        command = [installed("fj-nightly"), f"--server={self._daemon.address}"]
        command += [f"--archive={self._archive}", f"--output={output}"]
        with self._daemon:
            self._daemon.start()
            status = subprocess.run(command, check=False)
        if status.returncode:
            raise DemoError("fj-nightly failed", hint="--no-spark leaves it out")
        return max((output / "reports").iterdir())
