"""Durations and instants as text: one spelling for what people write and what they are shown.

A duration: one or more numbers with a unit, ``90s``, ``5m``, ``1h 30m``, ``1.5h``, ``250ms``; units
us, ms, s, m, h, d, w. A number alone is seconds, as for sleep(1).

An instant: ISO 8601, ``2026-11-20T12:00Z``, ``2026-11-20 12:00:30.5+01:00``, ``2026-11-20``,
without a zone in UTC; ``+10m``: that long from now; ``now``; ``@1763640000.25``: seconds since the
Unix epoch.

Pages and reports show instants in UTC. A terminal shows local time with its offset, and how far
from now. The offset, not the name of the zone: names are ambiguous, and an instant with a date and
an offset can be given to an option as it is shown. One that is typed without an offset is UTC.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from fastjournal.errors import BadRequestError
from fastjournal.limits import INSTANT_MAX, INSTANT_US_MAX
from fastjournal.times import unit_words

if TYPE_CHECKING:
    from decimal import Decimal

_UNITS_US: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 7 * 86_400_000_000,
}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|m|h|d|w)\s*", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
WRITE_DURATION: Final = "write it like 90s, 5m, 1h30m or 250ms"
_WRITE_INSTANT: Final = "write it like 2026-11-20T12:00Z, +10m, now or @1763640000"


def parse_duration(text: str) -> int:
    """Return the microseconds of a duration.

    Raises:
        BadRequestError: It is none, over 2**64 - 1 microseconds, or rounds to 0 and is not 0.
    """
    from decimal import Decimal  # noqa: PLC0415 - slow to load

    stripped = text.strip()
    total, position = Decimal(0), 0
    if _NUMBER.fullmatch(stripped):
        total, position = Decimal(stripped) * 1_000_000, len(stripped)
    while part := _PART.match(stripped, position):
        total += Decimal(part[1]) * _UNITS_US[part[2]]
        position = part.end()
    if not stripped or position < len(stripped):
        raise BadRequestError(f"{text!r} is no duration", hint=WRITE_DURATION)
    us = _whole(text, total, WRITE_DURATION)
    if total and not us:
        # 0 has a meaning of its own: no limit, a default
        raise BadRequestError(f"{text!r} rounds to 0 microseconds", hint="write 0, or 1us or more")
    return us


def parse_instant(text: str, now_us: int) -> int:
    """Return the microseconds since the Unix epoch of an instant.

    Args:
        text: Text that was written.
        now_us: The instant from which ``+10m`` counts.

    Raises:
        BadRequestError: It is none, or before 1970.
    """
    from decimal import Decimal  # noqa: PLC0415 - slow to load

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


def _whole(text: str, us: Decimal, hint: str, unit: str = "") -> int:
    from decimal import localcontext  # noqa: PLC0415 - slow to load

    with localcontext() as context:
        context.prec = 60
        rounded = int(us.to_integral_value()) if us.adjusted() < 40 else INSTANT_MAX + 1
    if not 0 <= rounded <= INSTANT_MAX:
        raise BadRequestError(f"{text!r} is outside the range of time{unit}", hint=hint)
    return rounded


def format_duration(us: float) -> str:
    """Return a duration in its two largest units: ``1h 30m``, ``2.5s``, ``12ms``."""
    us = round(us)
    if us < 1_000:
        return f"{us}us" if us else "0s"
    if us < 999_500:  # which three digits show as 1,000
        return f"{us / 1_000:.3g}ms"
    if us < 60_000_000:
        return f"{us / 1_000_000:.3g}s"
    parts = []
    for unit in ("w", "d", "h", "m", "s"):
        count, us = divmod(us, _UNITS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def format_round_duration(us: float) -> str:
    """Return a duration in one unit, as at an axis: ``1.5h``, ``400d``."""
    unit = next((unit for unit in ("d", "h", "m", "s", "ms") if us >= _UNITS_US[unit]), "us")
    number = us / _UNITS_US[unit]
    return f"{f'{number:.3g}' if number < 999 else f'{number:,.0f}'}{unit}" if us else "0"


def format_relative(us: int, now_us: int) -> str:
    """Return how far an instant is from now: ``in 3m``, ``2h ago``, ``now``.

    It is to the nearest unit, so a lease of five minutes is ``in 5m`` when it is shown.
    """
    distance = abs(us - now_us)
    if distance < 1_000:
        return "now"
    number, unit = 0, ""
    for unit, most in (("ms", 1_000), ("s", 60), ("m", 60), ("h", 24), ("d", INSTANT_MAX)):
        size = _UNITS_US[unit]
        number = (distance + (size - 1) // 2) // size  # a half counts down
        if number < most:
            break
    return f"in {number:,}{unit}" if us > now_us else f"{number:,}{unit} ago"


def format_instant(us: int) -> str:
    """Return an instant as ISO 8601 in UTC, with as many decimals as it needs."""
    try:
        moment = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return f"@{us / 1_000_000:.0f}"
    unit = "microseconds" if us % 1_000 else "milliseconds" if us % 1_000_000 else "seconds"
    return moment.isoformat(timespec=unit).replace("+00:00", "Z")


def format_local(us: int, now_us: int) -> str:
    """Return an instant in local time: ``14:05:33+01:00`` of today, else with its date."""
    try:
        moment, today = time.localtime(us / 1e6), time.localtime(now_us / 1e6)
        same_day = moment[:3] == today[:3]
        text = time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", moment)
        return text + _offset(moment)
    except (OverflowError, ValueError, OSError):
        return f"@{us // 1_000_000}"  # beyond what the system's calendar has


def format_when(us: int, now_us: int) -> str:
    """Return both: ``14:05:33+01:00 (in 3m)``; after the year 9999 ``without end``."""
    if us > INSTANT_US_MAX:
        return "without end"
    return f"{format_local(us, now_us)} ({format_relative(us, now_us)})"


def format_stamp(us: int) -> str:
    """Return the local time of a line that is kept: ``2026-11-23T14:05:33.250+01:00``."""
    moment = time.localtime(us // 1_000_000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", moment)
    return f"{stamp}.{us // 1000 % 1000:03}{_offset(moment)}"


def _offset(moment: time.struct_time) -> str:
    """Return the offset from UTC as ISO 8601 has it: ``+01:00``, ``Z``."""
    digits = time.strftime("%z", moment)
    return "Z" if digits == "+0000" else f"{digits[:3]}:{digits[3:]}"
