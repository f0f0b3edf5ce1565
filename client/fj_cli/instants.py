"""Instants for people: local time, and how far from now."""

from __future__ import annotations

import time

_STEPS = (
    (1_000_000, "ms", 1_000),
    (60_000_000, "s", 1_000_000),
    (3_600_000_000, "m", 60_000_000),
    (86_400_000_000, "h", 3_600_000_000),
)
_DAYS = "d", 86_400_000_000


def show_relative(us: int, now_us: int) -> str:
    """Return how far an instant is from now: ``in 3 m``, ``2 h ago``, ``now``."""
    distance = abs(us - now_us)
    if distance < 1_000:
        return "now"
    unit, size = next(((unit, size) for end, unit, size in _STEPS if distance < end), _DAYS)
    text = f"{distance // size:,} {unit}"
    return f"in {text}" if us > now_us else f"{text} ago"


def show_local(us: int, now_us: int) -> str:
    """Return an instant in local time: ``14:05:33`` of today, else with its date."""
    try:
        moment, today = time.localtime(us / 1e6), time.localtime(now_us / 1e6)
        same_day = moment[:3] == today[:3]
        return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", moment)
    except (OverflowError, ValueError, OSError):
        return f"@{us // 1_000_000}"  # beyond what the system's calendar has


def show_stamp(us: int) -> str:
    """Return the local time of a line that is kept, with its date: ``2026-11-23T14:05:33.250``."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(us // 1_000_000))
    return f"{stamp}.{us // 1000 % 1000:03}"


def show_instant(us: int, now_us: int) -> str:
    """Return both: ``14:05:33 (in 3 m)``."""
    return f"{show_local(us, now_us)} ({show_relative(us, now_us)})"
