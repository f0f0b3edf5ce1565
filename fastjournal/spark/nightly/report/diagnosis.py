"""Diagnosis of slow domains: which were slow on a day, since when, and the evidence why. Pure.

A domain was slow when the p90 of its wait or run times was at least ``SLOW_FACTOR`` times the
typical one, and ``SLOW_US`` longer. The typical one is the median of the p90 of the days before, on
which at least ``LEASES_MIN`` jobs were leased; at least ``DAYS_MIN`` such days are needed. The
slowness began on the first of the days, without a pause up to this one, that were slow like this:
in its first slow hour, or in the last hours of the day before, where these were slow already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from itertools import takewhile
from operator import itemgetter
from statistics import median

import msgspec

from fastjournal.spark.history.days import DAY_US
from fastjournal.spark.nightly.analysis_jobs import STARVING_US
from fastjournal.spark.nightly.report.figures import Figures, TableRow, utc

SLOW_FACTOR = 2.0
SLOW_US = 10_000_000
LEASES_MIN = 5
DAYS_MIN = 3
MANY = 0.05
"""Share of leases that failed or were lost, from which on it is evidence."""


class Cause(msgspec.Struct):
    """Evidence: a sentence, and since when it was seen."""

    text: str
    since: datetime | None = None


class Slow(msgspec.Struct):
    """Domain that was slow."""

    domain: str
    what: str
    """``wait`` or ``run``."""
    p90_us: int
    typical_us: int
    since: date
    since_hour: int | None
    """Hour of that day; None: not known."""
    worst_hour: int | None
    """Hour of the day of the report with the longest p90."""
    causes: list[Cause]
    leased: int
    """Leases of the day."""

    @property
    def impact(self) -> int:
        """Time by which it was longer, over all leases: the worst domain has the most."""
        return (self.p90_us - self.typical_us) * self.leased

    @property
    def factor(self) -> float:
        """How many times the typical p90."""
        return self.p90_us / max(self.typical_us, 1_000_000)


def diagnose(
    figures: Figures, hours_of: Callable[[str, date], Mapping[int, TableRow]]
) -> list[Slow]:
    """Return the slow domains of a day, the worst first.

    Args:
        figures: Figures of the day and of the days before.
        hours_of: Returns the hours of a domain on a day.
    """
    found = []
    for domain, rows in figures.domains.items():
        for what in ("wait", "run"):
            slow = slow_since(figures.days, rows, what)
            if slow is None:
                continue
            first, usual = slow
            since, since_hour = slow_from(
                partial(hours_of, domain), figures.days, first, what, usual
            )
            own = [row for row in figures.failures if row["domain"] == domain]
            found.append(
                Slow(
                    domain=domain,
                    what=what,
                    p90_us=rows[figures.day][f"{what}_p90_us"],
                    typical_us=int(usual),
                    since=since,
                    since_hour=since_hour,
                    worst_hour=worst_hour(figures.domain_hours[domain], what),
                    causes=causes(what, figures.days, rows, own, figures.first_failures),
                    leased=rows[figures.day]["leased"],
                )
            )
    return sorted(found, key=lambda one: (-one.impact, one.domain, one.what))


def typical(days: Sequence[date], rows: Mapping[date, TableRow], column: str) -> float | None:
    """Return the median of a column over days with enough leases; None: there are too few."""
    values = [
        rows[day][column]
        for day in days
        if day in rows and rows[day]["leased"] >= LEASES_MIN and rows[day][column] is not None
    ]
    return median(values) if len(values) >= DAYS_MIN else None


def is_slow(p90_us: float | None, typical_us: float) -> bool:
    """Whether a p90 counts as slow."""
    if p90_us is None:
        return False
    return p90_us >= SLOW_FACTOR * typical_us and p90_us >= typical_us + SLOW_US


def slow_since(
    days: Sequence[date], rows: Mapping[date, TableRow], what: str
) -> tuple[date, float] | None:
    """Return since when a domain is slow, and its typical p90; None: it is not slow.

    Args:
        days: Days of the trend, oldest first; the last one is asked about.
        rows: Figures of the domain by day.
        what: ``wait`` or ``run``.
    """
    column = f"{what}_p90_us"
    usual = typical(days[:-1], rows, column)
    if usual is None or days[-1] not in rows or rows[days[-1]]["leased"] < LEASES_MIN:
        return None
    since = None
    for day in reversed(days):
        row = rows.get(day)
        if row is None or not is_slow(row[column], usual):
            break
        since = day
    return None if since is None else (since, usual)


def slow_from(
    hours_on: Callable[[date], Mapping[int, TableRow]],
    days: Sequence[date],
    first: date,
    what: str,
    typical_us: float,
) -> tuple[date, int | None]:
    """Return day and hour since which a domain is slow; no hour: it is not known.

    Args:
        hours_on: Returns its hours on a day.
        days: Days of the trend, oldest first.
        first: The first slow day.
        what: ``wait`` or ``run``.
        typical_us: Its typical p90.
    """
    hours = _slow_hours(hours_on(first), what, typical_us)
    slow = [hour for hour, is_one in hours if is_one]
    if slow and hours[0][1] and first != days[0]:
        # most of the day before was as usual, but it may have ended slow
        before = days[days.index(first) - 1]
        ending = takewhile(itemgetter(1), reversed(_slow_hours(hours_on(before), what, typical_us)))
        if late := [hour for hour, _ in ending]:
            return before, late[-1]
    return first, min(slow, default=None)


def _slow_hours(
    hours: Mapping[int, TableRow], what: str, typical_us: float
) -> list[tuple[int, bool]]:
    """Return the hours of a day that have a p90, in their order, and whether it is slow."""
    known = ((hour, hours[hour][f"{what}_p90_us"]) for hour in sorted(hours))
    return [(hour, is_slow(p90, typical_us)) for hour, p90 in known if p90 is not None]


def worst_hour(hours: Mapping[int, TableRow], what: str) -> int | None:
    """Return the hour with the longest p90."""
    known = {hour: row[f"{what}_p90_us"] for hour, row in hours.items()}
    known = {hour: value for hour, value in known.items() if value is not None}
    return max(known, key=lambda hour: (known[hour], -hour), default=None)


def starving_complaint(row: TableRow, day: date, covered: float) -> str:
    """Return what is wrong with a domain whose due work waits for long, as far as it is known.

    Args:
        row: Row of the table ``starving``.
        day: Day of the report.
        covered: Part of the day that the history covers, 0 to 1: only a whole one shows that
            there was no lease.
    """
    last = row["last_leased"]
    if covered < 1 or (last is not None and _until_midnight_us(last, day) < STARVING_US):
        return "due work waits for long"
    if last is None:
        return f"nobody took its work on {day}"
    return f"nobody took its work after {utc(last):%H:%M} on {day}"


def _until_midnight_us(instant: datetime, day: date) -> int:
    """Return the time from an instant to the end of a UTC day, in microseconds."""
    seconds = (utc(instant) - datetime(day.year, day.month, day.day, tzinfo=UTC)).total_seconds()
    return DAY_US - int(seconds * 1_000_000)


def causes(
    what: str,
    days: Sequence[date],
    rows: Mapping[date, TableRow],
    failures: Sequence[TableRow],
    first_failures: Mapping[tuple[str, str, str], datetime],
) -> list[Cause]:
    """Return the evidence why a domain was slow on the last of the days.

    Args:
        what: ``wait`` or ``run``.
        days: Days of the trend, oldest first.
        rows: Figures of the domain by day.
        failures: Rows of the table ``failures`` for the domain on that day, most frequent first.
        first_failures: First instant in the trend by domain, event and reason.
    """
    row = rows[days[-1]]
    found = []
    for event, verb in (("failed", "failed"), ("lost", "were lost by time")):
        share = row[event] / row["leased"] if row["leased"] else 0.0
        if share >= MANY:
            text = f"{row[event]:,} of {row['leased']:,} attempts ({share:.0%}) {verb}"
            first = next((one for one in failures if one["event"] == event), None)
            since = None
            if first is not None:
                key = first["domain"] or "", event, first["reason"] or ""
                since = first_failures.get(key)
                text += f", most with the error “{first['reason']}”" if first["reason"] else ""
            found.append(Cause(text, since))
    for column, text in (
        ("set", "requests came"),
        ("run_p90_us" if what == "wait" else "", "the work itself took"),
    ):
        usual = typical(days[:-1], rows, column) if column else None
        if usual and row[column] is not None and row[column] >= SLOW_FACTOR * usual:
            times = row[column] / usual
            count = f"{row[column]:,} {text}, {times:.1f} times the typical number"
            longer = f"{text} {times:.1f} times as long as is typical (p90)"
            found.append(Cause(count if column == "set" else longer))
    if row["paused"]:
        found.append(Cause(f"the domain was paused {row['paused']:,} times"))
    if not found:
        found.append(
            Cause("no more attempts failed and no more requests came: look at the workers")
        )
    return found
