"""Figures of a report, read from the stored tables. No Spark, no Java."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from fastjournal.spark.history.coverage import Span
from fastjournal.spark.history.days import begin_us, trend_days
from fastjournal.spark.nightly.day_store import DayState, DayStore

TableRow: TypeAlias = dict[str, Any]
"""Row of a stored table."""

HOUR_US = 3_600_000_000
_WEEK_AGO = 7
_SIZES = ("set", "leased", "completed")
LEASE_COUNTS = ("leased", "completed", "failed", "lost", "buried")
"""Columns of the table of attempts that the page shows."""
_LARGE_DOMAINS = 50
"""Domains whose days are read for the trend: those with most events on the day."""
DOMAINS_SHOWN = 20
"""Domains of the state that page and terminal show: those with most entries, or longest waits."""


class Figures(msgspec.Struct):
    """Figures of one day, and of the days before it."""

    day: date
    state: DayState
    spans: list[Span]
    """Coverage of the whole history."""
    days: list[date]
    """Days of the trend, oldest first."""
    totals: dict[date, TableRow]
    """All domains by day."""
    domains: dict[str, dict[date, TableRow]]
    """Each of the largest domains by day."""
    hours: dict[date, dict[int, TableRow]]
    """All domains by hour: of the day, the day before, and the same day a week before."""
    domain_hours: dict[str, dict[int, TableRow]]
    """Each domain by hour of the day."""
    minutes: list[int]
    """Completed work of each minute of the day."""
    domains_in_all: int
    attempts: list[TableRow]
    """All domains by number of the attempt."""
    failures: list[TableRow]
    first_failures: dict[tuple[str, str, str], datetime]
    """First instant in the trend by domain, event and reason."""
    churn: list[TableRow]
    backlog: list[TableRow]
    """Priorities of the domains with most entries."""
    backlog_total: TableRow
    """``domains``, ``entries``, ``due``, of all domains."""
    ages: list[TableRow]
    """All domains by class of age."""
    starving: list[TableRow]
    """Domains that wait longest, and the largest ones, if they starve."""
    starving_in_all: int
    log: list[TableRow]
    archive: TableRow
    """``waiting``, ``bytes``: archived segments that no run has taken yet."""
    snapshots: TableRow
    """``count``, ``bytes``: snapshots beside the one of the report, with it; ``unreadable``: names
    of those whose manifest cannot be read."""


class TableReader:
    """Reader of stored tables, by the descriptions of their days.

    Args:
        store: Where they are.
        states: Descriptions of the days.
    """

    def __init__(self, store: DayStore, states: Mapping[str, DayState]) -> None:
        self._store = store
        self._states = states

    def rows(
        self,
        name: str,
        days: Sequence[date],
        condition: pc.Expression | None = None,
    ) -> list[TableRow]:
        """Return the rows of a table on these days, with the day as ``dt``."""
        found = self._store.files.each(lambda day: list(self.tables(name, [day], condition)), days)
        return [
            {**row, "dt": day}
            for day, tables in zip(days, found, strict=True)
            for table in tables
            for row in table.to_pylist()
        ]

    def tables(
        self,
        name: str,
        days: Sequence[date],
        condition: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield a table on these days, as far as it is there.

        Raises:
            LogCorruptError: A file is not the one that the description of its day names.
            LogFailedError: One cannot be read.
        """
        for day in days:
            state = self._states.get(str(day))
            for file in () if state is None else state.files(name):
                data = self._store.read(name, str(day), file)
                table = pa.parquet.ParquetFile(pa.BufferReader(data)).read()
                table = table if condition is None else table.filter(condition)
                yield table if columns is None else table.select(list(columns))

    def sums(self, name: str, day: date, key: str, columns: Sequence[str]) -> list[TableRow]:
        """Return the sums of columns of a table on a day, by another column.

        They are added in Arrow: the table may have a row for each domain.
        """
        rows = []
        for table in self.tables(name, [day], columns=[key, *columns]):
            added = table.group_by(key).aggregate([(column, "sum") for column in columns])
            rows += added.rename_columns([key, *columns]).to_pylist()
        return rows


def load(
    reader: TableReader,
    day: date,
    state: DayState,
    spans: list[Span],
    *,
    archive: TableRow,
    snapshots: TableRow,
) -> Figures:
    """Return the figures of a day."""
    days = trend_days(day)
    field = pc.field
    totals = reader.rows("hours", days, field("all_domains") & field("all_hours"))
    large, domains_in_all = _largest_domains(reader, day)
    # those that stopped since the day before, too
    large += [name for name in _largest_domains(reader, days[-2])[0] if name not in large]
    large = large[:_LARGE_DOMAINS]
    is_large = field("domain").isin(pa.array(large, pa.string()))
    by_day = reader.rows("hours", days, field("all_hours") & is_large)
    of_day = reader.rows("hours", [day], ~field("all_hours") & is_large)
    compared = [days[-1 - _WEEK_AGO], days[-2], day]
    by_hour = reader.rows("hours", compared, field("all_domains") & ~field("all_hours"))
    failures = reader.rows("failures", [day])
    backlog, backlog_total = _backlog(reader, day)
    starving, starving_in_all = _starving(reader, day, large)
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
        domains_in_all=domains_in_all,
        attempts=reader.sums("attempts", day, "attempt", LEASE_COUNTS),
        failures=sorted(failures, key=lambda row: (-row["count"], str(row["domain"]))),
        first_failures=_first_failures(reader.rows("failures", days)),
        churn=sorted(
            reader.rows("churn", [day]), key=lambda row: (-row["set"], -row["replaced"], row["uri"])
        ),
        backlog=backlog,
        backlog_total=backlog_total,
        ages=reader.sums("ages", day, "age", ("due", "delayed")),
        starving=starving,
        starving_in_all=starving_in_all,
        log=sorted(reader.rows("log", [day]), key=lambda row: row["segment"]),
        archive=archive,
        snapshots=snapshots,
    )


def hours_of(reader: TableReader, domain: str, day: date) -> dict[int, TableRow]:
    """Return the hours of a domain on any day."""
    field = pc.field
    rows = reader.rows("hours", [day], (field("domain") == domain) & ~field("all_hours"))
    return {_hour(row): row for row in rows}


def _largest_domains(reader: TableReader, day: date) -> tuple[list[str], int]:
    """Return the domains of a day with most events, in that order, and the number of all."""
    field = pc.field
    known = ~field("all_domains") & field("all_hours") & field("domain").is_valid()
    for table in reader.tables("hours", [day], known, ["domain", *_SIZES]):
        size = pc.add(pc.add(table["set"], table["leased"]), table["completed"])
        order = [("size", "descending"), ("domain", "ascending")]
        sizes = table.append_column("size", size).sort_by(order)
        return sizes["domain"].slice(0, _LARGE_DOMAINS).to_pylist(), sizes.num_rows
    return [], 0


def _backlog(reader: TableReader, day: date) -> tuple[list[TableRow], TableRow]:
    """Return the rows of the domains with most entries, and the sums of all."""
    for table in reader.tables("backlog", [day]):
        sizes = table.group_by("domain").aggregate([("entries", "sum"), ("due", "sum")])
        order = [("entries_sum", "descending"), ("domain", "ascending")]
        largest = sizes.sort_by(order)["domain"].slice(0, DOMAINS_SHOWN).combine_chunks()
        total = {
            "domains": sizes.num_rows,
            "entries": pc.sum(table["entries"]).as_py() or 0,
            "due": pc.sum(table["due"]).as_py() or 0,
        }
        return table.filter(pc.is_in(table["domain"], largest)).to_pylist(), total
    return [], {"domains": 0, "entries": 0, "due": 0}


def _starving(reader: TableReader, day: date, large: list[str]) -> tuple[list[TableRow], int]:
    """Return the starving domains that wait longest or are large, and the number of all."""
    for table in reader.tables("starving", [day]):
        late = table.sort_by([("oldest_due_us", "descending"), ("domain", "ascending")])
        rest = late.slice(DOMAINS_SHOWN)
        rest = rest.filter(pc.is_in(rest["domain"], pa.array(large, pa.string())))
        return late.slice(0, DOMAINS_SHOWN).to_pylist() + rest.to_pylist(), late.num_rows
    return [], 0


def _minutes(reader: TableReader, day: date) -> list[int]:
    minutes = [0] * 1440
    for row in reader.sums("throughput", day, "minute", ["completed"]):
        minute = (_micros(row["minute"]) - begin_us(day)) // 60_000_000
        minutes[minute] = row["completed"]
    return minutes


def _first_failures(rows: list[TableRow]) -> dict[tuple[str, str, str], datetime]:
    first: dict[tuple[str, str, str], datetime] = {}
    for row in rows:
        key = row["domain"] or "", row["event"], row["reason"] or ""
        seen = utc(row["first_seen"])
        first[key] = min(first.get(key, seen), seen)
    return first


def _hour(row: TableRow) -> int:
    return utc(row["hour"]).hour


def utc(instant: datetime) -> datetime:
    """Return an instant of a stored table in UTC; one without a zone is in UTC already."""
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _micros(instant: datetime) -> int:
    whole = utc(instant)
    return int(whole.timestamp()) * 1_000_000 + whole.microsecond
