"""Periodic tasks: cron schedules whose every tick is one job, whatever the number of hosts.

Each worker sets the job of a tick by itself. The primary key is ``<queue>:<priority>:<tick>:<id>``,
the timestamp of the SET is the tick, and OVERWRITE is off: the daemon takes the first SET, and
refuses all others, by the entry or by its tombstone (idempotent SET). Nothing else is kept, and no
worker is the leader.

- The clock is the daemon's, asked with NOP at each look: hosts agree on it, whatever their own
  clocks do, and no tick is set early.
- A tombstone lives for the daemon's ``tombstone-ttl`` (1 h by default). A tick older than half of
  that, or than its catch-up, is never set, so that a SET that is late is refused nevertheless.
- Of the ticks that a worker has missed (it was suspended, or the daemon was away) it sets the
  newest, and says how many others there are.

Ticks are computed for each hour of UTC from its own begin. What cronsim answers depends on where it
begins, if clocks change there; so all hosts compute the same.
"""

from __future__ import annotations

import logging
import time
from bisect import insort
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import anyio
import msgspec
from cronsim import CronSim, CronSimError

from fastjournal.client import Call, Written
from fastjournal.errors import BadRequestError, CannotConnectError, FastjournalError
from fastjournal.keys import journal_key_of, parse_journal_key
from fastjournal.loglines import LogEvent
from fastjournal.protocol import Function, Reply, Request
from fastjournal.protocol.constants import Flag
from fastjournal.times import to_datetime

if TYPE_CHECKING:
    from fastjournal.client import Client, SyncClient

LOOK_S: Final = 10.0
"""Most seconds between two looks at the daemon's clock: so late is a step of it noticed."""

SET_WITHIN_S: Final = 60.0
"""Seconds after a look at the clock in which a tick may be sent; later the clock is asked anew."""

_HOUR_US = 3_600_000_000
_COUNTED_US = 24 * _HOUR_US
"""Missed ticks are counted over so long, at most."""
_DONE_MAX = 4096
"""Ticks that a worker remembers of each periodic task."""

_log = logging.getLogger("fastjournal.tasks")


class Schedule(msgspec.Struct, frozen=True):
    """Cron line in a time zone; ``parse_schedule`` checks them."""

    line: str
    zone: str


def parse_schedule(line: str, zone: str) -> Schedule:
    """Return a schedule.

    Args:
        line: Five fields of cron, or six, of which the first is the seconds.
        zone: Name in the IANA database, such as ``Europe/Berlin``.

    Raises:
        BadRequestError: The line is none, it names days that never come, or there is no such zone.
    """
    try:
        start = datetime(2000, 1, 1, tzinfo=ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadRequestError(
            f"{zone!r} is no time zone of this machine",
            hint="give a name of the IANA database, such as 'Europe/Berlin', or install tzdata",
        ) from error
    try:
        next(CronSim(line, start))
    except (CronSimError, StopIteration) as error:
        if isinstance(error, StopIteration) or _is_of_longer_months(line, str(error), start):
            raise BadRequestError(
                f"{line!r} never comes: no month that it names has such a day",
                hint="for the last day of a month write L",
            ) from None
        raise BadRequestError(
            f"{line!r} is no cron line: {error}",
            hint="write: minute hour day-of-month month day-of-week, as in '*/5 * * * *'",
        ) from None
    return Schedule(line, zone)


def _is_of_longer_months(line: str, refusal: str, start: datetime) -> bool:
    """Whether a line that is refused for its day would be one with other months."""
    fields = line.split()
    fields[-2:-1] = ["*"]
    try:
        CronSim(" ".join(fields), start)
    except CronSimError:
        return False
    return refusal == "Bad day-of-month"


@lru_cache(maxsize=512)
def _hour_ticks(schedule: Schedule, hour: int) -> tuple[int, ...]:
    """Return the ticks after the begin of an hour, its end included, in microseconds."""
    begin = datetime.fromtimestamp(hour * 3600, UTC)
    ticks: list[int] = []
    for local in CronSim(schedule.line, begin.astimezone(ZoneInfo(schedule.zone))):
        tick = local.astimezone(UTC)
        if tick > begin + timedelta(hours=1):
            break
        at_us = int(tick.timestamp()) * 1_000_000
        # an answer may lie before the begin, or come twice, where clocks change
        if at_us > (ticks[-1] if ticks else hour * _HOUR_US):
            ticks.append(at_us)
    return tuple(ticks)


def next_ticks(schedule: Schedule, after_us: int, until_us: int) -> list[int]:
    """Return the ticks later than ``after_us`` and not later than ``until_us``, in their order.

    Args:
        schedule: The cron line and its zone.
        after_us: Microseconds since 1970.
        until_us: The same.
    """
    hours = range(after_us // _HOUR_US, -(-until_us // _HOUR_US))
    ticks = (tick for hour in hours for tick in _hour_ticks(schedule, hour))
    return [tick for tick in ticks if after_us < tick <= until_us]


class Periodic(msgspec.Struct, frozen=True, kw_only=True):
    """Schedule of a task."""

    id: str
    """Last part of the keys: one for each, else two would be one job where their ticks meet."""
    schedule: Schedule
    enqueue: Callable[[], Call[Written]]
    """Returns the call that enqueues the task now, after the hooks."""
    catch_up_us: int = 1_800_000_000
    """Age of a tick beyond which it is not set; the default is half of ``tombstone-ttl``."""
    expires_us: int = 0
    """A job that nobody has begun vanishes so long after its tick; 0: never."""

    def call(self, tick_us: int) -> Call[Written]:
        """Return the SET of a tick; its outcome is ``kept`` where another worker did it."""
        call = self.enqueue()
        parts = parse_journal_key(call.request.key)
        assert parts is not None, "it enqueues a job"
        request = msgspec.structs.replace(
            call.request,
            key=journal_key_of(parts.domain, self.id, tick_us, parts.priority),
            timestamp=tick_us,
            timeout=tick_us + self.expires_us if self.expires_us else None,
        )
        kept = frozenset({"exists", "stale"})
        return msgspec.structs.replace(call, request=request, kept_codes=kept)


class Ticker:
    """Decides which ticks of a periodic task this worker sets. Pure: instants are arguments.

    Args:
        periodic: The task.
    """

    def __init__(self, periodic: Periodic) -> None:
        self.periodic = periodic
        self._looked_us = 2**63
        """The last look, by the daemon's clock; before the first one, later than any."""
        self._done: list[int] = []
        """Ticks that were set, in their order; up to the first of them all are done. A clock that
        was set ahead, and is set back, comes once more to those that this worker has skipped."""

    def due(self, now_us: int, catch_up_us: int) -> tuple[int | None, list[int]]:
        """Return the tick to set now, and those that came since the last look and are missed.

        Until ``settle`` says that it was done, it stays due. None: there is none, or it is older
        than the catch-up of the task, or than ``catch_up_us``.
        """
        catch_up_us = min(catch_up_us, self.periodic.catch_up_us)
        oldest_us = now_us - min(catch_up_us, self.periodic.expires_us or catch_up_us)
        # at the first look another worker, or this one before a restart, may have left a tick
        begins = now_us < self._looked_us  # the first look, or the clock was set back
        after_us = oldest_us if begins else max(self._looked_us, now_us - _COUNTED_US)
        ticks = next_ticks(self.periodic.schedule, after_us, now_us)
        done = set(self._done) or {oldest_us}
        first_us = min(done)
        passed = [tick for tick in ticks if tick > first_us and tick not in done]
        newest = passed.pop() if passed and passed[-1] == ticks[-1] > oldest_us else None
        return newest, [] if begins else passed

    def settle(self, now_us: int, tick_us: int | None) -> None:
        """Note that a tick was set, or refused as done; None: there was none at this look."""
        self._looked_us = now_us
        if not self._done:
            self._done.append(now_us)
        elif tick_us is not None:
            insort(self._done, tick_us)
        del self._done[:-_DONE_MAX]

    def wake_us(self, now_us: int) -> int:
        """Return when to look again: at the next tick, or at ``LOOK_S`` from now."""
        until_us = now_us + int(LOOK_S * 1e6)
        return min(next_ticks(self.periodic.schedule, now_us, until_us), default=until_us)


def _read_clock(_request: Request, reply: Reply) -> tuple[int, int]:
    assert reply.pairs
    return reply.timestamp, msgspec.json.decode(reply.pairs[0].value)["tombstone_ttl_us"] // 2


_CLOCK: Final = Call(Request(Function.NOP, flags=Flag.META), _read_clock)
"""Returns the daemon's clock, and half the life of a tombstone: an older tick may be forgotten."""


class TickSetter:
    """Sets ticks as they come: ``await TickSetter(periodics).run(client)``.

    Args:
        periodics: The periodic tasks.
    """

    def __init__(self, periodics: Iterable[Periodic]) -> None:
        self._tickers = [Ticker(each) for each in periodics]
        self._said: dict[str, str] = {}
        """The last failure that was logged of each periodic task; of the daemon under ""."""

    async def run(self, client: Client) -> None:
        """Set ticks until this is cancelled. A failure is logged once, and tried again."""
        while True:
            try:
                pause_s = await self.look(client)
            except (FastjournalError, TimeoutError) as error:
                self._failed("", error)
                pause_s = LOOK_S / 2
            else:
                self._said.pop("", None)
            await anyio.sleep(pause_s)

    async def look(self, client: Client) -> float:
        """Set what is due; return the seconds until the next look."""
        asked_s = _elapsed_s()
        now_us, catch_up_us = await client.call(_CLOCK)
        failed = False
        for ticker in self._tickers:
            tick_us, missed = ticker.due(now_us, catch_up_us)
            if _elapsed_s() - asked_s > SET_WITHIN_S:
                return 0.0  # suspended meanwhile: tombstones may have ended since the look
            periodic, outcome = ticker.periodic, None
            try:
                if tick_us is not None:
                    with anyio.fail_after(SET_WITHIN_S):
                        outcome = (await client.call(periodic.call(tick_us))).outcome
            except (CannotConnectError, TimeoutError):
                raise
            except Exception as error:  # noqa: BLE001 - a hook's, too: the other tasks go on
                failed = True
                self._failed(periodic.id, error)
                continue
            self._said.pop(periodic.id, None)
            ticker.settle(now_us, tick_us)
            if missed:
                event = LogEvent(
                    "ticks-missed",
                    id=periodic.id,
                    missed=len(missed),
                    first=to_datetime(missed[0]).isoformat(),
                    last=to_datetime(missed[-1]).isoformat(),
                    set=None if tick_us is None else to_datetime(tick_us).isoformat(),
                    outcome=outcome,
                    why="suspended, or without a daemon; other workers may have set them",
                )
                _log.warning(event)
        pause_s = (min(each.wake_us(now_us) for each in self._tickers) - now_us) / 1e6 + 0.001
        return min(pause_s, LOOK_S / 2) if failed else pause_s

    def _failed(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        # the text of a refusal names the key of the tick
        kind = error.code if isinstance(error, FastjournalError) else text
        if self._said.get(name) != kind:
            self._said[name] = kind
            event = LogEvent("ticks-not-set", id=name, error=text, hint="it tries again")
            _log.warning(event, exc_info=None if isinstance(error, FastjournalError) else error)


def set_due_ticks(periodics: Iterable[Periodic], client: SyncClient) -> None:
    """Set the newest tick of each, as a worker does that has just started: for tests."""
    now_us, catch_up_us = client.call(_CLOCK)
    for each in periodics:
        tick_us, _ = Ticker(each).due(now_us, catch_up_us)
        if tick_us is not None:
            client.call(each.call(tick_us))


def _elapsed_s() -> float:
    """Return seconds that no setting of the clock changes; suspensions count where they can."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
