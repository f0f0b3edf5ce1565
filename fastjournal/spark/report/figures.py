"""Figures of a report, read from the stored tables. No Spark, no Java."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs

from fastjournal.spark.coverage import Span
from fastjournal.spark.day_store import DayState, DayStore
from fastjournal.spark.days import begin_us, trend_days
from fastjournal.spark.files import translating

Row: TypeAlias = dict[str, Any]
"""Row of a stored table."""

HOUR_US = 3_600_000_000
_WEEK_AGO = 7
_SIZES = ("set", "leased", "completed")
_LARGE_DOMAINS = 50
"""Domains whose days are read for the trend: those with most events on the day."""


class Figures(msgspec.Struct):
    """Figures of one day, and of the days before it."""

    day: date
    state: DayState
    spans: list[Span]
    """Coverage of the whole history."""
    days: list[date]
    """Days of the trend, oldest first."""
    totals: dict[date, Row]
    """All domains by day."""
    domains: dict[str, dict[date, Row]]
    """Each of the largest domains by day."""
    hours: dict[date, dict[int, Row]]
    """All domains by hour: of the day, the day before, and the same day a week before."""
    domain_hours: dict[str, dict[int, Row]]
    """Each domain by hour of the day."""
    minutes: list[int]
    """Completed work of each minute of the day."""
    domains_in_all: int
    attempts: list[Row]
    failures: list[Row]
    first_failures: dict[tuple[str, str, str], datetime]
    """First instant in the trend by domain, event and reason."""
    churn: list[Row]
    backlog: list[Row]
    ages: list[Row]
    starving: list[Row]
    log: list[Row]
    archive: Row
    """``waiting``, ``bytes``: archived segments that no run has taken yet."""
    snapshots: Row
    """``count``, ``bytes``: snapshots beside the one of the report, with it; ``unreadable``: names
    of those whose manifest cannot be read."""


class TableReader:
    """Reader of stored tables.

    Args:
        store: Where they are.
    """

    def __init__(self, store: DayStore) -> None:
        self._store = store

    def rows(
        self,
        name: str,
        days: Sequence[date],
        condition: pa.dataset.Expression | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[Row]:
        """Return the rows of a table on these days, with the day as ``dt``."""
        return [
            {**row, "dt": day}
            for day in days
            for table in self.tables(name, [day], condition, columns)
            for row in table.to_pylist()
        ]

    def tables(
        self,
        name: str,
        days: Sequence[date],
        condition: pa.dataset.Expression | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield a table on these days, as far as it is there."""
        files = self._store.files
        for day in days:
            path = f"{self._store.path}/{name}/dt={day}"
            if files.get_file_info(path).type != pa.fs.FileType.Directory:
                continue
            with translating("read", path):
                table = pa.dataset.dataset(path, filesystem=files, format="parquet")
                if table.schema.names:
                    wanted = None if columns is None else list(columns)
                    yield table.to_table(columns=wanted, filter=condition)


def load(
    store: DayStore, day: date, state: DayState, spans: list[Span], *, archive: Row, snapshots: Row
) -> Figures:
    """Return the figures of a day."""
    reader = TableReader(store)
    days = trend_days(day)
    field = pa.dataset.field
    totals = reader.rows("hours", days, field("all_domains") & field("all_hours"))
    sizes = _domains_by_size(reader, day)
    large = sizes[:_LARGE_DOMAINS]
    # those that stopped since the day before, too
    large += [name for name in _domains_by_size(reader, days[-2]) if name not in large]
    large = large[:_LARGE_DOMAINS]
    is_large = field("domain").isin(pa.array(large, pa.string()))
    by_day = reader.rows("hours", days, field("all_hours") & is_large)
    of_day = reader.rows("hours", [day], ~field("all_hours") & is_large)
    compared = [days[-1 - _WEEK_AGO], days[-2], day]
    by_hour = reader.rows("hours", compared, field("all_domains") & ~field("all_hours"))
    failures = reader.rows("failures", [day])
    return Figures(
        day=day,
        state=state,
        spans=spans,
        days=days,
        totals={row["dt"]: row for row in totals},
        domains={
            name: {row["dt"]: row for row in by_day if row["domain"] == name} for name in large
        },
        hours={one: {_hour(row): row for row in by_hour if row["dt"] == one} for one in compared},
        domain_hours={
            name: {_hour(row): row for row in of_day if row["domain"] == name} for name in large
        },
        minutes=_minutes(reader, day),
        domains_in_all=len(sizes),
        attempts=reader.rows("attempts", [day]),
        failures=sorted(failures, key=lambda row: (-row["count"], str(row["domain"]))),
        first_failures=_first_failures(reader.rows("failures", days)),
        churn=sorted(
            reader.rows("churn", [day]), key=lambda row: (-row["set"], -row["replaced"], row["uri"])
        ),
        backlog=reader.rows("backlog", [day]),
        ages=reader.rows("ages", [day]),
        starving=sorted(reader.rows("starving", [day]), key=lambda row: -row["oldest_due_us"]),
        log=sorted(reader.rows("log", [day]), key=lambda row: row["segment"]),
        archive=archive,
        snapshots=snapshots,
    )


def hours_of(store: DayStore, domain: str, day: date) -> dict[int, Row]:
    """Return the hours of a domain on any day."""
    field = pa.dataset.field
    rows = TableReader(store).rows(
        "hours", [day], (field("domain") == domain) & ~field("all_hours")
    )
    return {_hour(row): row for row in rows}


def _domains_by_size(reader: TableReader, day: date) -> list[str]:
    """Return the domains of a day, those with most events first."""
    field = pa.dataset.field
    known = ~field("all_domains") & field("all_hours") & field("domain").is_valid()
    rows = reader.rows("hours", [day], known, ["domain", *_SIZES])
    rows.sort(key=lambda row: (-sum(row[name] for name in _SIZES), row["domain"]))
    return [row["domain"] for row in rows]


def _minutes(reader: TableReader, day: date) -> list[int]:
    minutes = [0] * 1440
    for table in reader.tables("throughput", [day], columns=["minute", "completed"]):
        # summed in Arrow: there is a row for each domain
        sums = table.group_by("minute").aggregate([("completed", "sum")]).to_pylist()
        for row in sums:
            minute = (_micros(row["minute"]) - begin_us(day)) // 60_000_000
            minutes[minute] = row["completed_sum"]
    return minutes


def _first_failures(rows: list[Row]) -> dict[tuple[str, str, str], datetime]:
    first: dict[tuple[str, str, str], datetime] = {}
    for row in rows:
        key = row["domain"] or "", row["event"], row["reason"] or ""
        seen = utc(row["first_seen"])
        first[key] = min(first.get(key, seen), seen)
    return first


def _hour(row: Row) -> int:
    return utc(row["hour"]).hour


def utc(instant: datetime) -> datetime:
    """Return an instant of a stored table in UTC; one without a zone is in UTC already."""
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _micros(instant: datetime) -> int:
    whole = utc(instant)
    return int(whole.timestamp()) * 1_000_000 + whole.microsecond
