"""Nightly report: the tables of one snapshot, saved under its date and printed.

    OUTPUT/dt=2026-11-20/entries/      what was live, from ``fastjournal.spark.export``
    OUTPUT/dt=2026-11-20/backlog/      by domain
    OUTPUT/dt=2026-11-20/throughput/   by domain and minute

The date is that of the snapshot, in UTC. A run replaces the files of its date, so a second run on
the same snapshot leaves the same rows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastjournal.errors import LogCorruptError
from fastjournal.printable import safe_text
from fastjournal.spark import jobs
from fastjournal.spark.export import export_snapshot
from fastjournal.spark.files import LogDirectory
from fastjournal.spark.jobs import BACKLOG_NUMBERS, THROUGHPUT_NUMBERS
from fastjournal.spark.session import translating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Row, SparkSession

DOMAINS_SHOWN = 20


class Report(msgspec.Struct):
    """Results of the jobs that are printed."""

    directory: str
    """Where the tables are."""
    backlog: list[Row]
    throughput: list[Row]


@translating()
def run_jobs(spark: SparkSession, snapshot: str, output: str) -> Report:
    """Export a snapshot and run the jobs over it; all tables stand under its date.

    Args:
        spark: From ``start_session``.
        snapshot: Path or URI of the snapshot.
        output: Path or URI under which the dated directories stand.

    Raises:
        LogCorruptError: The snapshot is damaged.
        LogFailedError: It cannot be read.
    """
    manifest = LogDirectory(snapshot).manifest
    if manifest is None:
        raise LogCorruptError(
            "there is no manifest, so this is no snapshot",
            path=snapshot,
            hint="name the directory that 'fj-cli snapshot' printed",
        )
    directory = f"{output.rstrip('/')}/dt={day_of(manifest.taken_us)}"
    reader = spark.read.format("fastjournal").option("view", "entries")
    entries = reader.option("instants", "us").load(snapshot)
    records = spark.read.format("fastjournal").schema(jobs.THROUGHPUT_COLUMNS).load(snapshot)
    tables = {
        "backlog": jobs.backlog(entries, manifest.taken_us),
        "throughput": jobs.throughput(records),
    }
    export_snapshot(snapshot, f"{directory}/entries")
    for name, table in tables.items():
        table.coalesce(1).write.mode("overwrite").parquet(f"{directory}/{name}")
    by_minute = spark.read.parquet(f"{directory}/throughput")
    return Report(
        directory,
        spark.read.parquet(f"{directory}/backlog").orderBy("domain").collect(),
        jobs.throughput_in_all(by_minute).collect(),
    )


def day_of(instant_us: int) -> str:
    """Return the UTC date of an instant in microseconds since the Unix epoch."""
    taken = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant_us)
    return taken.date().isoformat()


def print_report(report: Report, console: Console) -> None:
    """Print the tables, the domains with most entries first."""
    backlog = sorted(report.backlog, key=lambda row: (-row["entries"], row["domain"]))
    table = _table("Backlog", ("domain", *BACKLOG_NUMBERS, "oldest due"))
    for row in backlog[:DOMAINS_SHOWN]:
        oldest = _duration(row["oldest_due_us"])
        table.add_row(_name(row), *_numbers(row, BACKLOG_NUMBERS), oldest)
    late = max((row["oldest_due_us"] for row in backlog), default=0)
    _add_total(table, backlog, BACKLOG_NUMBERS, _duration(late))
    console.print(table)
    busy = sorted(report.throughput, key=lambda row: (-row["set"], row["domain"]))
    table = _table("Throughput", ("domain", *THROUGHPUT_NUMBERS, "minutes", "completed/min"))
    for row in busy[:DOMAINS_SHOWN]:
        rate = f"{row['completed'] / row['minutes']:,.1f}"
        numbers = _numbers(row, THROUGHPUT_NUMBERS)
        table.add_row(_name(row), *numbers, f"{row['minutes']:,}", rate)
    _add_total(table, busy, THROUGHPUT_NUMBERS, "", "")
    console.print(table)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        left = name == "domain"
        table.add_column(
            name.replace("_", " "), justify="left" if left else "right", no_wrap=not left
        )
    return table


def _add_total(table: Table, rows: Sequence[Row], names: Sequence[str], *rest: str) -> None:
    hidden = len(rows) - DOMAINS_SHOWN
    if hidden > 0:
        table.add_row(f"({hidden:,} more)")
    table.add_section()
    table.add_row("all", *(f"{sum(row[name] for row in rows):,}" for name in names), *rest)


def _name(row: Row) -> Text:
    """Return the domain: as text, for rich takes brackets in a string for markup of its own."""
    return Text(safe_text(row["domain"]))


def _numbers(row: Row, names: Sequence[str]) -> list[str]:
    return [f"{row[name]:,}" for name in names]


def _duration(us: int) -> str:
    """Microseconds as a person reads them, to two parts: ``3d 4h``."""
    seconds = us // 1_000_000
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"
