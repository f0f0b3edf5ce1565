"""Times of the public interface: seconds, ``timedelta`` and aware ``datetime``, as microseconds.

A *duration* is a number of seconds or a ``timedelta``; an *instant* is a number of seconds since
1970 or an aware ``datetime``. The protocol, the log and names that end in ``_us`` have integers of
microseconds. This module alone converts between them. It reads no clock.

The conversion is exact for ``int``, ``timedelta`` and ``datetime``; a ``float`` is rounded to the
nearest microsecond, so 0.1 is 100,000. A value that cannot be meant is refused: microseconds given
as seconds, an expiry in the past, an instant of 1970.
"""

from __future__ import annotations

import math
import operator
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from fastjournal.errors import BadRequestError
from fastjournal.limits import (
    DURATION_US_MAX,
    INSTANT_US_MAX,
    INSTANT_US_MIN,
    LEASE_US_MAX,
    LEASE_US_MIN,
)
from fastjournal.numeric import integer_of

Duration: TypeAlias = float | timedelta
"""Length of time: seconds (``int`` or ``float``), or a ``timedelta``."""

Instant: TypeAlias = float | datetime
"""Point in time: seconds since 1970 (``int`` or ``float``), or an aware ``datetime``."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND_US: Final = 1_000_000
_INSTANT_UNITS: Final = (
    ("seconds", 1),
    ("milliseconds", 1_000),
    ("microseconds", 1_000_000),
    ("nanoseconds", 1_000_000_000),
)
"""Units of instants of programs, and how many are a second. No number of the years 2000 to 9999 in
one of them is such an instant in another one."""
DURATION_HINT: Final = "give seconds, such as 90 or 0.5, or a timedelta"
INSTANT_HINT: Final = "give time.time() + 60, or datetime.now(UTC) + timedelta(minutes=1)"
MICROSECONDS_HINT: Final = "give microseconds since 1970: now is time.time_ns() // 1000"
EARLIER_INSTANT_HINT: Final = "give an earlier one, such as time.time() + 60"
ZONE_HINT: Final = "give datetime(..., tzinfo=UTC), or .astimezone() for the local time zone"


def duration_us(
    name: str,
    value: Duration,
    *,
    least_us: int = 0,
    most_us: int = DURATION_US_MAX,
    zero: bool = True,
) -> int:
    """Return the microseconds of a duration.

    Args:
        name: Name of the argument, for the error.
        value: It.
        least_us: The shortest that is taken, besides 0.
        most_us: The longest that is taken.
        zero: 0 is taken.

    Raises:
        TypeError: It is neither a number nor a timedelta, or a bool.
        BadRequestError: It is negative, no number, or outside of the bounds.
    """
    us = _microseconds(name, value, "a duration")
    if us < 0:
        raise BadRequestError(f"{name} {value} is negative", hint=DURATION_HINT)
    if us == 0 and not zero:
        raise BadRequestError(f"{name} {value} is not above 0", hint=DURATION_HINT)
    if (us == 0 and value) or 0 < us < least_us:
        least = f"{max(least_us, 1) / _SECOND_US:.6f}".rstrip("0").rstrip(".")
        raise BadRequestError(f"{name} {value} is under {least} s", hint=DURATION_HINT)
    if us > most_us:
        most = timedelta(microseconds=most_us).days
        raise BadRequestError(f"{name} {value} is over {most:,} days", hint=DURATION_HINT)
    return us


def lease_us(name: str, value: Duration, *, least_us: int = LEASE_US_MIN, zero: bool = True) -> int:
    """Return the microseconds of a lease, or of a lock; 0: the default of the daemon.

    Raises:
        TypeError, BadRequestError: As ``duration_us``.
    """
    return duration_us(name, value, least_us=least_us, most_us=LEASE_US_MAX, zero=zero)


def duration_s(name: str, value: Duration, *, above_zero: bool = False) -> float:
    """Return the seconds of a duration that this program itself waits.

    Raises:
        TypeError, BadRequestError: As ``duration_us``.
    """
    return duration_us(name, value, zero=not above_zero) / _SECOND_US


def instant_us(name: str, value: Instant) -> int:
    """Return the microseconds since 1970 of an instant.

    Raises:
        TypeError: It is neither a number nor a datetime, or a bool.
        BadRequestError: It has no time zone, or is before 2000 or after 9999: so it was meant as a
            duration, or in another unit.
    """
    return check_instant(f"{name} {value}", _microseconds(name, value, "an instant"))


def check_instant(shown: str, us: int) -> int:
    """Return the microseconds since 1970 of an instant, given in seconds, that can be meant.

    Args:
        shown: Name of the argument and what was given, for the error.
        us: It.

    Raises:
        BadRequestError: It is before 2000 or after 9999.
    """
    if us < INSTANT_US_MIN:
        raise BadRequestError(f"{shown} is before the year 2000", hint=INSTANT_HINT)
    if us > INSTANT_US_MAX:
        raise BadRequestError(
            f"{shown} is after the year 9999; {unit_words('seconds', us // _SECOND_US)}",
            hint=EARLIER_INSTANT_HINT,
        )
    return us


def check_instant_us(
    name: str,
    us: int,
    *,
    least_us: int = INSTANT_US_MIN,
    code: str = BadRequestError.code,
    hint: str = MICROSECONDS_HINT,
) -> int:
    """Return an instant that was given in microseconds since 1970; 0: none.

    Args:
        name: Name of the argument, for the error.
        us: It.
        least_us: The earliest that is taken, besides 0.
        code: Code of the error.
        hint: Hint of the error.

    Raises:
        TypeError: It is no integer.
        BadRequestError: It is negative, before ``least_us``, or after 9999: so it was meant in
            another unit.
    """
    us = integer_of(name, us)
    if us and not least_us <= us <= INSTANT_US_MAX:
        fault = "after the year 9999" if us > 0 else "negative"
        if 0 < us < least_us:
            fault = "before the year 2000"
        shown = f"{name} {us} is {fault}; {unit_words('microseconds', us)}"
        raise BadRequestError(shown, code=code, hint=hint)
    return us


def unit_words(unit: str, number: int) -> str:
    """Return words for the unit of an instant, and the one in which a number would be an instant.

    Args:
        unit: Unit in which it was to be given.
        number: It; no instant of the years 2000 to 9999 in this unit.
    """
    for other, size in _INSTANT_UNITS:
        if INSTANT_US_MIN * size // _SECOND_US <= number <= INSTANT_US_MAX * size // _SECOND_US:
            return f"the unit is {unit}, and this looks like {other}"
    return f"the unit is {unit}"


def expiry_us(name: str, value: Instant, now_us: int) -> int:
    """Return the microseconds since 1970 of an expiry, which must lie ahead; 0: never.

    Args:
        name: Name of the argument, for the error.
        value: It; ``math.inf``: never.
        now_us: The time of this machine.

    Raises:
        TypeError, BadRequestError: As ``instant_us``; or it is in the past.
    """
    if value == math.inf:
        return 0
    us = instant_us(name, value)
    if us <= now_us:
        raise BadRequestError(f"{name} {value} is in the past", hint=INSTANT_HINT)
    return us


def to_datetime(us: int) -> datetime:
    """Return microseconds since 1970 as an aware datetime in UTC; at most the end of 9999."""
    return _EPOCH + timedelta(microseconds=us) if us <= INSTANT_US_MAX else _LAST


def to_datetime_or_none(us: int | None) -> datetime | None:
    """Return the same; None for None and for 0, which means never."""
    return to_datetime(us) if us else None


def to_timedelta(us: int) -> timedelta:
    """Return microseconds as a timedelta."""
    return timedelta(microseconds=us)


def to_timedelta_or_none(us: int | None) -> timedelta | None:
    """Return the same; None for None."""
    return None if us is None else timedelta(microseconds=us)


def _microseconds(name: str, value: float | timedelta | datetime, kind: str) -> int:
    wanted = timedelta if kind == "a duration" else datetime
    if isinstance(value, float):
        if value - value != 0:  # NaN or infinite
            fault = "infinite" if value in (math.inf, -math.inf) else "not a number"
            raise BadRequestError(f"{name} {value} is {fault}", hint=_hint(kind))
        whole = int(value)
        return whole * _SECOND_US + round((value - whole) * _SECOND_US)  # the difference is exact
    if isinstance(value, wanted):
        if isinstance(value, datetime):
            if value.utcoffset() is None:
                raise BadRequestError(f"{name} {value} has no time zone", hint=ZONE_HINT)
            return (value - _EPOCH) // _MICROSECOND
        assert isinstance(value, timedelta)
        return value // _MICROSECOND
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"{name} is a number of seconds or a {wanted.__name__}, not {type(value).__name__}"
            f" ({_hint(kind)})"
        )
    return operator.index(value) * _SECOND_US  # type: ignore[arg-type] # it has __index__


def _hint(kind: str) -> str:
    return DURATION_HINT if kind == "a duration" else INSTANT_HINT
