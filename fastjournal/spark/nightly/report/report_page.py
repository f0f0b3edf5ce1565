"""HTML page of a report: self-contained, without scripts, fonts or anything from a network."""

from __future__ import annotations

from collections import Counter
from datetime import date
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fastjournal.spark.history.coverage import (
    Span,
    covered_share,
    is_covered,
    spans_between,
)
from fastjournal.spark.history.days import DAY_US, begin_us
from fastjournal.spark.nightly.analysis_jobs import AGES, BACKLOG_NUMBERS, OLDEST, PERCENTILES
from fastjournal.spark.nightly.report import diagnosis, texts
from fastjournal.spark.nightly.report.charts import (
    Chart,
    HeatMap,
    Series,
    Strip,
    chart,
    heat_map,
    marks_of_duration,
    round_duration,
    strip,
)
from fastjournal.spark.nightly.report.console import coverage_warning
from fastjournal.spark.nightly.report.diagnosis import Slow
from fastjournal.spark.nightly.report.figures import DOMAINS_SHOWN, HOUR_US, Figures, TableRow

ROWS_MAX = DOMAINS_SHOWN
"""Rows of a table that the page shows; the stored tables have all."""
TRENDS_MAX = 4
"""Domains with a chart of their own."""
HEADLINES_MAX = 5
"""Domains that the line on top names."""
MINUTES_A_POINT = 10
_HEAT_US = 1_000_000.0
_NOTHING: TableRow = dict.fromkeys(("set", "leased", "completed"), 0) | dict.fromkeys(
    f"{what}_{name}_us" for what in ("wait", "run") for name in PERCENTILES
)
"""Row of a covered hour without events."""
_COMPLAINTS = {
    "wait": "work waited for long",
    "run": "work took long",
}


@cache
def _page() -> Template:
    """Return the template of the page, read and compiled once for the reports of all days."""
    environment = Environment(
        loader=PackageLoader("fastjournal.spark.nightly.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=texts.count,
        duration=texts.duration,
        size=texts.size,
        instant=texts.instant,
        name=texts.name,
    )
    return environment.get_template("page.html.jinja")


def render(figures: Figures, slow: list[Slow]) -> str:
    """Return the page."""
    total = figures.totals.get(figures.day)
    covered = covered_share(figures.spans, figures.day)
    starving = [
        (row, diagnosis.starving_complaint(row, figures.day, covered)) for row in figures.starving
    ]
    headlines = _headlines(slow, starving)
    return _page().render(
        figures=figures,
        slow=slow,
        complaints=_COMPLAINTS,
        headlines=headlines[:HEADLINES_MAX],
        more_headlines=len(headlines)
        + figures.starving_in_all
        - len(figures.starving)
        - HEADLINES_MAX,
        total=total,
        starving=starving[:ROWS_MAX],
        strip=_strip(figures),
        spans=spans_between(figures.spans, *_strip_time(figures)),
        warning=coverage_warning(figures.spans, figures.day),
        cards=_cards(figures, total),
        hours=_hours(figures),
        minutes=_minutes(figures),
        trends=_trends(figures, slow),
        heat=_heat(figures),
        comparison=_comparison(figures),
        domains=_domains(figures),
        attempts=_attempts(figures),
        ages=_ages(figures),
        backlog=_backlog(figures),
        log=_log(figures),
        limits={
            "factor": diagnosis.SLOW_FACTOR,
            "more": diagnosis.SLOW_US,
            "leases": diagnosis.LEASES_MIN,
            "rows": ROWS_MAX,
        },
        share=texts.share,
        change=texts.change,
    )


def _headlines(
    slow: list[Slow], starving: list[tuple[TableRow, str]]
) -> list[tuple[str, list[str]]]:
    """Return the domains with a complaint, and theirs; the worst first."""
    found: dict[str, list[str]] = {}
    for one in slow:
        found.setdefault(one.domain, []).append(_COMPLAINTS[one.what])
    for row, complaint in starving:
        found.setdefault(row["domain"], []).append(complaint)
    return list(found.items())


def _cards(figures: Figures, total: TableRow | None) -> list[tuple[str, str, str]]:
    """Return title, value and remark of the figures on top."""
    before = figures.totals.get(figures.days[-2])
    cards = []
    if total is not None:
        for title, column in (("requests", "set"), ("executions", "completed")):
            other = None if before is None else before[column]
            remark = f"{texts.change(total[column], other)} against the day before"
            cards.append((title, texts.count(total[column]), remark))
        saved = texts.share(total["replaced"], total["set"])
        cards.append(("requests saved", texts.count(total["replaced"]), f"{saved} of all"))
        cards.append(("wait, p90", texts.duration(total["wait_p90_us"]), "from due to leased"))
        cards.append(("run, p90", texts.duration(total["run_p90_us"]), "from leased to completed"))
        failed, ended = _attempts_without_success(figures, total)
        remark = f"{texts.share(failed, ended)} of all, by error, lost lease or burial"
        cards.append(("attempts without success", texts.count(failed), remark))
    if figures.state.taken_us is not None:
        total = figures.backlog_total
        remark = f"of {texts.count(total['entries'])} live entries"
        cards.append(("due and waiting", texts.count(total["due"]), remark))
    return cards


def _attempts_without_success(figures: Figures, total: TableRow) -> tuple[int, int]:
    """Return how many attempts ended without success, and how many ended at all.

    The burial after a last attempt is an event of its own: the attempt counts as failed or lost.
    Only a burial that ends an attempt itself has the number of the attempt.
    """
    failed: int = total["failed"] + total["lost"] + sum(row["buried"] for row in figures.attempts)
    return failed, failed + total["completed"] + total["returned"]


def _strip(figures: Figures) -> Strip:
    first, last = _strip_time(figures)
    spans = [
        (float(span.first_us), float(span.last_us), _style(span), _span_text(span))
        for span in sorted(figures.spans, key=lambda span: span.reason is not None)
    ]
    days = [*(figures.days[at] for at in (0, 7, 14, 21)), figures.day]
    return strip(spans, first, last, [(begin_us(day), day.strftime("%d %b")) for day in days])


def _strip_time(figures: Figures) -> tuple[int, int]:
    """Return begin and end of the days of the report, with that on which its snapshot was taken."""
    return begin_us(figures.days[0]), begin_us(figures.day) + 2 * DAY_US


def _style(span: Span) -> str:
    return "covered" if span.reason is None else "gap"


def _span_text(span: Span) -> str:
    kind = "covered" if span.reason is None else f"gap ({span.reason})"
    return f"{kind}: {texts.instant(span.first_us or None)} to {texts.instant(span.last_us)}"


def _hours(figures: Figures) -> Chart:
    labels = [f"{hour:02}" for hour in range(24)]
    week, before, day = figures.hours
    return chart(
        "Completed work by hour",
        [
            Series("the day before", _by_hour(figures, before), "line other"),
            Series("a week before", _by_hour(figures, week), "line third"),
        ],
        labels,
        format=texts.count,
        mark=texts.short_count,
        bars=[value or 0 for value in _by_hour(figures, day)],
        bars_name="completed",
    )


def _by_hour(figures: Figures, day: date) -> list[float | None]:
    return [None if row is None else row["completed"] for row in _hour_rows(figures, day)]


def _hour_rows(figures: Figures, day: date) -> list[TableRow | None]:
    """Return the rows of the hours of a day; one of zeros where nothing happened; None: unknown."""
    rows, begin = figures.hours[day], begin_us(day)
    return [
        rows.get(hour)
        or (_NOTHING if _is_known(figures, begin + hour * HOUR_US, HOUR_US) else None)
        for hour in range(24)
    ]


def _is_known(figures: Figures, begin_us: int, length_us: int) -> bool:
    return is_covered(figures.spans, begin_us, begin_us + length_us)


def _minutes(figures: Figures) -> Chart:
    begin, minute = begin_us(figures.day), HOUR_US // 60
    values = [
        max(figures.minutes[at : at + MINUTES_A_POINT])
        if _is_known(figures, begin + at * minute, MINUTES_A_POINT * minute)
        else None
        for at in range(0, 1440, MINUTES_A_POINT)
    ]
    labels = [f"{at // 60:02}:{at % 60:02}" for at in range(0, 1440, MINUTES_A_POINT)]
    return chart(
        "Busiest minute of each 10 minutes",
        [Series("completed a minute", values, "line")],
        labels,
        format=texts.count,
        mark=texts.short_count,
    )


def _trends(figures: Figures, slow: list[Slow]) -> list[Chart]:
    names = dict.fromkeys([one.domain for one in slow] + list(figures.domains))
    labels = [day.strftime("%d %b") for day in figures.days]
    charts = []
    for name in list(names)[:TRENDS_MAX]:
        rows = figures.domains[name]
        for what, text in (("wait", "Wait"), ("run", "Run")):
            column = f"{what}_p90_us"
            values = [rows[day][column] if day in rows else None for day in figures.days]
            charts.append(
                chart(
                    f"{text} time p90 by day: {texts.name(name, 40)}",
                    [Series("p90", values, "line")],
                    labels,
                    format=texts.short,
                    top=round_duration,
                    marks=marks_of_duration,
                )
            )
    return charts


def _heat(figures: Figures) -> HeatMap | None:
    rows = []
    for name, hours in list(figures.domain_hours.items())[:ROWS_MAX]:
        values = [hours[hour]["wait_p90_us"] if hour in hours else None for hour in range(24)]
        rows.append((texts.name(name, 15), values))
    return heat_map(rows, format=texts.duration, lowest=_HEAT_US) if rows else None


def _comparison(
    figures: Figures,
) -> list[tuple[str, TableRow | None, TableRow | None, TableRow | None]]:
    """Return rows of an hour: the day, the day before, a week before."""
    week, before, day = (_hour_rows(figures, day) for day in figures.hours)
    return [(f"{hour:02}:00", day[hour], before[hour], week[hour]) for hour in range(24)]


def _domains(figures: Figures) -> list[tuple[str, TableRow]]:
    rows = [
        (name, days[figures.day]) for name, days in figures.domains.items() if figures.day in days
    ]
    return rows[:ROWS_MAX]


def _attempts(figures: Figures) -> list[TableRow]:
    """Return the attempts of all domains by their number."""
    return sorted(figures.attempts, key=lambda row: row["attempt"])[:ROWS_MAX]


def _ages(figures: Figures) -> list[tuple[str, int, int, float]]:
    """Return the classes of age with due and delayed entries, and the length of the bar."""
    sums: dict[str, Counter[str]] = {
        name: Counter() for name in (*(name for name, _ in AGES), OLDEST)
    }
    for row in figures.ages:
        sums[row["age"]].update(due=row["due"], delayed=row["delayed"])
    most = max([1, *(one.total() for one in sums.values())])
    return [
        (name, one["due"], one["delayed"], one.total() / most * 100) for name, one in sums.items()
    ]


def _backlog(figures: Figures) -> list[tuple[str, str, TableRow]]:
    """Return domain, priority and numbers: each domain in all, then its priorities."""
    domains: dict[str, list[TableRow]] = {}
    for row in figures.backlog:
        domains.setdefault(row["domain"], []).append(row)
    order = sorted(domains, key=lambda name: (-sum(row["entries"] for row in domains[name]), name))
    rows: list[tuple[str, str, TableRow]] = []
    for name in order[:ROWS_MAX]:
        found = sorted(domains[name], key=lambda row: row["priority"])
        total: dict[str, Any] = {key: sum(row[key] for row in found) for key in BACKLOG_NUMBERS}
        total["oldest_due_us"] = max(row["oldest_due_us"] for row in found)
        rows.append((name, "all", total))
        if len(found) > 1:
            rows += [("", str(row["priority"]), row) for row in found]
    return rows


def _log(figures: Figures) -> TableRow | None:
    if not figures.log:
        return None
    names = ("records", "bytes", "live_records", "live_bytes")
    total = {name: sum(row[name] for row in figures.log) for name in names}
    return {
        **total,
        "segments": len(figures.log),
        "dead_bytes": total["bytes"] - total["live_bytes"],
    }
