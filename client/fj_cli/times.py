"""Durations and instants as people write them, to microseconds and back.

A duration: one or more numbers with a unit, ``90s``, ``5m``, ``1h30m``, ``1.5h``, ``250ms``; units
us, ms, s, m, h, d, w. A number alone is seconds, as for sleep(1).

An instant: ISO 8601, ``2026-11-20T12:00Z``, ``2026-11-20 12:00:30.5+01:00``, ``2026-11-20``,
without a zone in UTC; ``+10m``: that long from now; ``now``; ``@1763640000.25``: seconds since the
Unix epoch.

Instants for people: local time with its offset, and how far from now. The offset, not the name of
the zone: names are ambiguous, and an instant with a date and an offset can be given to an option as
it is shown. One that is typed without an offset is UTC.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from math import inf
from typing import NamedTuple

from fastjournal.errors import BadRequestError
from fastjournal.limits import INSTANT_MAX, WAIT_WITHOUT_END
from fastjournal.times import DURATION_UNITS_US, to_timedelta, unit_words

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|m|h|d|w)\s*", re.ASCII)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WRITE_DURATION = "write it like 90s, 5m, 1h30m or 250ms"
_WRITE_INSTANT = "write it like 2026-11-20T12:00Z, +10m, now or @1763640000"


class Microseconds(int):
    """Microseconds of a duration, and what was written."""

    def __new__(cls, us: int, _text: str) -> Microseconds:
        """Take the number alone."""
        return super().__new__(cls, us)

    def __init__(self, _us: int, text: str) -> None:
        self.text = text


class _WrittenDuration(timedelta):
    """A duration that errors show as it was written."""

    text = ""

    def __str__(self) -> str:
        return self.text


FOREVER_US = INSTANT_MAX
"""As the microseconds of a wait: without end."""


def to_wait(us: int | None) -> float | timedelta | None:
    """Return the microseconds of a wait as the clients take it; None: no wait."""
    return WAIT_WITHOUT_END if us == FOREVER_US else to_duration_or_none(us)


def to_duration(us: int) -> timedelta:
    """Return microseconds as the clients take them; their errors show what was written."""
    if not isinstance(us, Microseconds):
        return to_timedelta(us)
    try:
        written = _WrittenDuration(microseconds=us)
    except OverflowError as error:
        raise BadRequestError(f"{us.text} is too long", hint=WRITE_DURATION) from error
    written.text = us.text
    return written


def to_duration_or_none(us: int | None) -> timedelta | None:
    """Return the same; None for None."""
    return None if us is None else to_duration(us)


def parse_duration(text: str) -> int:
    """Return the microseconds of a duration.

    Raises:
        BadRequestError: It is none, over 2**64 - 1 microseconds, or rounds to 0 and is not 0.
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        return _whole_duration(text, Decimal(stripped) * 1_000_000)
    total, position = Decimal(0), 0
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            break
        total += Decimal(part[1]) * DURATION_UNITS_US[part[2]]
        position = part.end()
    if not stripped or position < len(stripped):
        raise BadRequestError(f"{text!r} is no duration", hint=WRITE_DURATION)
    return _whole_duration(text, total)


def parse_instant(text: str, now_us: int) -> int:
    """Return the microseconds since the Unix epoch of an instant.

    Args:
        text: Text that was written.
        now_us: The instant from which ``+10m`` counts.

    Raises:
        BadRequestError: It is none, or before 1970.
    """
    stripped = text.strip()
    if stripped == "now":
        return now_us
    if stripped.startswith("+"):
        return _whole(text, Decimal(now_us + parse_duration(stripped[1:])), _WRITE_INSTANT)
    if stripped.startswith("@") and _NUMBER.fullmatch(stripped[1:]):
        seconds = Decimal(stripped[1:])
        unit = f"; {unit_words('seconds', int(seconds))}"
        return _whole(text, seconds * 1_000_000, _WRITE_INSTANT, unit)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError as error:
        raise BadRequestError(f"{text!r} is no instant", hint=_WRITE_INSTANT) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return _whole(text, Decimal((moment - _EPOCH) // timedelta(microseconds=1)), _WRITE_INSTANT)


def format_instant(us: int) -> str:
    """Return an instant as ISO 8601 in UTC, with as many decimals as it needs."""
    try:
        moment = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return f"@{us / 1_000_000:.0f}"
    unit = "microseconds" if us % 1_000 else "milliseconds" if us % 1_000_000 else "seconds"
    return moment.isoformat(timespec=unit).replace("+00:00", "Z")


def _whole_duration(text: str, us: Decimal) -> int:
    whole = _whole(text, us, WRITE_DURATION)
    if us and not whole:
        # 0 has a meaning of its own: no limit, a default
        raise BadRequestError(f"{text!r} rounds to 0 microseconds", hint="write 0, or 1us or more")
    return whole


def _whole(text: str, us: Decimal, hint: str, unit: str = "") -> int:
    with localcontext() as context:
        context.prec = 60
        rounded = int(us.to_integral_value()) if us.adjusted() < 40 else INSTANT_MAX + 1
    if not 0 <= rounded <= INSTANT_MAX:
        raise BadRequestError(f"{text!r} is outside the range of time{unit}", hint=hint)
    return rounded


class _TimeUnit(NamedTuple):
    unit: str
    size: int
    """Microseconds."""
    of_next: float
    """Number that is one of the next unit."""


_STEPS = (
    _TimeUnit("ms", 1_000, 1_000),
    _TimeUnit("s", 1_000_000, 60),
    _TimeUnit("m", 60_000_000, 60),
    _TimeUnit("h", 3_600_000_000, 24),
)
_DAYS = _TimeUnit("d", 86_400_000_000, inf)


def show_relative(us: int, now_us: int) -> str:
    """Return how far an instant is from now: ``in 3 m``, ``2 h ago``, ``now``.

    It is to the nearest unit, so a lease of five minutes is ``in 5 m`` when it is shown.
    """
    distance = abs(us - now_us)
    if distance < 1_000:
        return "now"
    step = next((step for step in _STEPS if _nearest(distance, step) < step.of_next), _DAYS)
    text = f"{_nearest(distance, step):,} {step.unit}"
    return f"in {text}" if us > now_us else f"{text} ago"


def _nearest(distance: int, step: _TimeUnit) -> int:
    """Return a distance in a unit; a half counts down."""
    return (distance + (step.size - 1) // 2) // step.size


def show_local(us: int, now_us: int) -> str:
    """Return an instant in local time: ``14:05:33+01:00`` of today, else with its date."""
    try:
        moment, today = time.localtime(us / 1e6), time.localtime(now_us / 1e6)
        same_day = moment[:3] == today[:3]
        text = time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", moment)
        return text + _offset(moment)
    except (OverflowError, ValueError, OSError):
        return f"@{us // 1_000_000}"  # beyond what the system's calendar has


def show_stamp(us: int) -> str:
    """Return the local time of a line that is kept: ``2026-11-23T14:05:33.250+01:00``."""
    moment = time.localtime(us // 1_000_000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", moment)
    return f"{stamp}.{us // 1000 % 1000:03}{_offset(moment)}"


def _offset(moment: time.struct_time) -> str:
    """Return the offset from UTC as ISO 8601 has it: ``+01:00``, ``Z``."""
    digits = time.strftime("%z", moment)
    return "Z" if digits == "+0000" else f"{digits[:3]}:{digits[3:]}"


def show_instant(us: int, now_us: int) -> str:
    """Return both: ``14:05:33+01:00 (in 3 m)``."""
    return f"{show_local(us, now_us)} ({show_relative(us, now_us)})"
