"""Day arithmetic of the nightly run: UTC days, trends, and which days are pruned. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta

from fastjournal.errors import BadRequestError

TREND_DAYS = 28
"""Days that a report looks back, its own among them."""
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
DAY_US = 86_400_000_000


def day_at(instant_us: int) -> date:
    """Return the UTC day of an instant in microseconds since the Unix epoch."""
    return (_EPOCH + timedelta(microseconds=instant_us)).date()


def begin_us(day: date) -> int:
    """Return the first instant of a UTC day, in microseconds since the Unix epoch."""
    return (day - _EPOCH.date()).days * DAY_US


def last_ended_day(now_us: int) -> date:
    """Return the UTC day that ended last before an instant."""
    return day_at(now_us) - _DAY


def checked_day(text: str | None, now_us: int) -> date:
    """Return the day of a report.

    Args:
        text: The option ``--date``; None: the day that ended last.
        now_us: Instant of the run, in microseconds since the Unix epoch.

    Raises:
        BadRequestError: It is no date, or the day has not ended.
    """
    last = last_ended_day(now_us)
    if text is None:
        return last
    try:
        # it takes other forms of ISO 8601, too: 20261120, 2026-W47-5
        day = date.fromisoformat(text if _DATE.fullmatch(text) else "")
    except ValueError:
        raise BadRequestError(
            f"--date {text!r} is no date", hint="write it as 2026-11-20", code="bad-date"
        ) from None
    if day > last:
        raise BadRequestError(
            f"--date {day} has not ended in UTC",
            hint=f"the last day that has is {last}",
            code="bad-date",
        )
    return day


def trend_days(day: date) -> list[date]:
    """Return the days that the report of a day covers, oldest first."""
    return [day - number * _DAY for number in reversed(range(TREND_DAYS))]


def stale_days(
    days: Iterable[date], sources: Mapping[str, list[str]], computed: Mapping[str, list[str]]
) -> list[date]:
    """Return the days whose tables have to be computed.

    The tables of a day with removed events stay unchanged: it was pruned.

    Args:
        days: Requested days.
        sources: Segments of the events of each day that has any, by number and checksum.
        computed: Segments of the events that the tables of each day were computed from.
    """
    return [day for day in days if _is_stale(sources.get(str(day), []), computed.get(str(day)))]


def _is_stale(source: list[str], computed: list[str] | None) -> bool:
    if computed is None:
        return bool(source)
    return source != computed and not is_pruned(source, computed)


def is_pruned(source: list[str], computed: list[str] | None) -> bool:
    """Whether some of the segments that tables were computed from have no events any more."""
    numbers = {name.partition("-")[0] for name in source}
    return any(name.partition("-")[0] not in numbers for name in computed or ())


def days_to_prune(present: Iterable[str], day: date, keep: int | None) -> list[str]:
    """Return the days whose tables are removed, oldest first.

    Args:
        present: Days that have tables.
        day: Day of the report.
        keep: Days that stay, this one and those before it; None: all.
    """
    if keep is None:
        return []
    first = str(day - (keep - 1) * _DAY)
    return sorted(name for name in present if name < first)
