"""Short report on a terminal: coverage, slow and starving domains, backlog, throughput."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastjournal.spark.history.coverage import Span, covered_share, gaps_on_day, gaps_us
from fastjournal.spark.nightly.analysis_jobs import BACKLOG_NUMBERS
from fastjournal.spark.nightly.report import texts
from fastjournal.spark.nightly.report.diagnosis import Slow
from fastjournal.spark.nightly.report.figures import DOMAINS_SHOWN, Figures

_WHOLE = 0.9995
"""Share of a day that is shown as 100.0 %."""
_THROUGHPUT = ("set", "replaced", "leased", "completed", "failed", "lost", "buried")


def print_report(figures: Figures, slow: Sequence[Slow], console: Console) -> None:
    """Print the day, the domains with most entries first.

    Names are printed as text, for rich takes brackets in a string for markup of its own.
    """
    if warning := coverage_warning(figures.spans, figures.day):
        console.print(Text(warning))
    for one in slow:
        console.print(Text(summary(one)))
    for row in figures.starving[:DOMAINS_SHOWN]:
        waited = texts.duration(row["oldest_due_us"])
        console.print(
            Text(f"{texts.name(row['domain'])}: {row['due']:,} entries are due, up to {waited}")
        )
    table = _table(f"Throughput on {figures.day}", (*_THROUGHPUT, "wait p90", "run p90"))
    for name, days in list(figures.domains.items())[:DOMAINS_SHOWN]:
        if figures.day in days:
            row = days[figures.day]
            times = (texts.duration(row[column]) for column in ("wait_p90_us", "run_p90_us"))
            table.add_row(_name(name), *(f"{row[key]:,}" for key in _THROUGHPUT), *times)
    _add_more(table, figures.domains_in_all)
    console.print(table)
    if figures.state.taken_us is not None:
        console.print(_backlog(figures))


def coverage_warning(spans: Sequence[Span], day: date) -> str:
    """Return what the history of a day lacks, in one sentence; empty: nothing, or all of it."""
    covered, gaps = covered_share(spans, day), len(gaps_on_day(spans, day))
    if not spans:
        return ""
    if covered < _WHOLE:
        return f"The data covers {covered * 100:.1f} % of this day."
    if not gaps:
        return ""
    named = "a gap" if gaps == 1 else f"{gaps:,} gaps"
    missing = gaps_us(spans, day)
    # the begin and the end of a gap are those of the records beside it
    known = f": {texts.duration(missing)} of it are missing" if missing else " of unknown length"
    return f"The history of this day has {named}{known}."


def summary(slow: Slow) -> str:
    """Return a slow domain in one sentence."""
    what = "waited" if slow.what == "wait" else "took"
    hour = "" if slow.since_hour is None else f" {slow.since_hour:02}:00"
    causes = "; ".join(texts.name(cause.text, 200) for cause in slow.causes)
    return (
        f"{texts.name(slow.domain)}: work {what} {texts.duration(slow.p90_us)} (p90), typical is "
        f"{texts.duration(slow.typical_us)}, since {slow.since}{hour}: {causes}"
    )


def _backlog(figures: Figures) -> Table:
    taken = texts.instant(figures.state.taken_us)
    table = _table(f"Backlog at {taken}", (*BACKLOG_NUMBERS, "oldest due"))
    domains: dict[str, list[int]] = {}
    for row in figures.backlog:
        sums = domains.setdefault(row["domain"], [0] * (len(BACKLOG_NUMBERS) + 1))
        for at, key in enumerate(BACKLOG_NUMBERS):
            sums[at] += row[key]
        sums[-1] = max(sums[-1], row["oldest_due_us"])
    for name in sorted(domains, key=lambda name: (-domains[name][0], name))[:DOMAINS_SHOWN]:
        *numbers, oldest = domains[name]
        table.add_row(_name(name), *(f"{number:,}" for number in numbers), texts.duration(oldest))
    _add_more(table, figures.backlog_total["domains"])
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("domain")
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    return table


def _add_more(table: Table, domains: int) -> None:
    if domains > DOMAINS_SHOWN:
        table.add_row(f"({domains - DOMAINS_SHOWN:,} more)")


def _name(domain: str) -> Text:
    return Text(texts.name(domain))
