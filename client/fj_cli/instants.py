"""Instants for people: local time with its offset, and how far from now.

The offset, not the name of the zone: names are ambiguous, and an instant with a date and an offset
can be given to an option as it is shown. One that is typed without an offset is UTC.
"""

from __future__ import annotations

import time
from math import inf
from typing import NamedTuple


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
