"""Report of a day: diagnosis, texts, HTML and terminal, where names are hostile."""

from __future__ import annotations

import io
import re
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fastjournal.spark.history.coverage import Span
from fastjournal.spark.history.days import DAY_US, begin_us, trend_days
from fastjournal.spark.nightly.analysis_jobs import KINDS
from fastjournal.spark.nightly.day_store import DayState, DayStore, HistoryTables, StateTables
from fastjournal.spark.nightly.report import texts
from fastjournal.spark.nightly.report.console import print_report
from fastjournal.spark.nightly.report.diagnosis import diagnose
from fastjournal.spark.nightly.report.figures import (
    HOUR_US,
    LEASE_COUNTS,
    Figures,
    TableReader,
    load,
)
from fastjournal.spark.nightly.report.report_page import render

DAY = date(2026, 11, 20)
DAYS = trend_days(DAY)
STATE = DayState(state=StateTables("snapshot", begin_us(DAY) + 90_000 * 1_000_000, None))
SECOND = 1_000_000
HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "[bold]x[/y]",
    "x\x1b[2J\x9b\r\n\u202e", "a" * 5_000, "{{7 * 7}}", "\\xff\\xfe",
]  # fmt: skip


def row(domain: str | None, **figures: Any) -> dict[str, Any]:
    """A row of the table ``hours``: a quiet day."""
    times = {
        f"{name}_{key}_us": 10 * SECOND
        for name in ("wait", "run")
        for key in ("p50", "p90", "p99", "max")
    }
    counts = dict.fromkeys(KINDS, 0) | {"set": 120, "leased": 100, "completed": 100}
    return {"domain": domain, "hour": None, **counts, **times, **figures}


def build(domain: str = "web", **figures: Any) -> Figures:
    """Figures of a domain; ``figures`` are those of the day."""
    days = {day: row(domain) for day in DAYS} | {DAY: row(domain, **figures)}
    hour = datetime(2026, 11, 20, 9, tzinfo=UTC)
    failure = {
        "domain": domain,
        "event": "failed",
        "reason": domain,
        "count": 7,
        "entries": 3,
        "first_seen": hour,
        "last_seen": hour,
    }
    numbers = dict.fromkeys(("entries", "waiting", "due", "delayed", "worked_on", "buried"), 1)
    return Figures(
        day=DAY,
        state=STATE,
        spans=[Span(begin_us(DAYS[0]), begin_us(DAY) + 90_000 * SECOND, 1, 9)],
        days=DAYS,
        totals=days,
        domains={domain: days},
        hours={DAYS[-8]: {9: row(None)}, DAYS[-2]: {}, DAY: {9: row(None)}},
        domain_hours={domain: {9: row(domain, **figures)}},
        minutes=[0] * 1440,
        domains_in_all=1,
        attempts=[{"attempt": 1, **dict.fromkeys(KINDS, 1)}],
        failures=[failure],
        first_failures={(domain, "failed", domain): hour - timedelta(days=2)},
        churn=[{"uri": domain.encode(), "set": 3, "replaced": 1, "leased": 2, "completed": 2}],
        backlog=[{"domain": domain, "priority": 1, "oldest_due_us": 5, **numbers}],
        backlog_total={"domains": 1, "entries": 1, "due": 1},
        ages=[{"domain": domain, "age": "under 1 hour", "due": 1, "delayed": 1}],
        starving=[
            {
                "domain": domain,
                "due": 1,
                "oldest_due_us": 7_200 * SECOND,
                "set": 1,
                "leased": 0,
                "last_leased": None,
            }
        ],
        starving_in_all=1,
        log=[{"segment": 1, "records": 9, "bytes": 900, "live_records": 1, "live_bytes": 90}],
        archive={"waiting": 0, "bytes": 0},
        snapshots={"count": 1, "bytes": 900, "unreadable": []},
    )


def hours_of(domain: str, day: date) -> dict[int, dict[str, Any]]:
    slow = {7: 10 * SECOND, 8: 90 * SECOND, 9: 95 * SECOND}
    return {hour: row(domain, run_p90_us=us) for hour, us in slow.items()}


def test_slow_domain_has_its_factor_begin_and_evidence() -> None:
    figures = build(run_p90_us=80 * SECOND, failed=30, set=600)
    # a slow day before quiet ones is another story
    for day in (DAYS[-6], *DAYS[-3:-1]):
        figures.domains["web"][day]["run_p90_us"] = 60 * SECOND
    (slow,) = diagnose(figures, hours_of)
    assert (slow.domain, slow.what, slow.factor) == ("web", "run", 8.0)
    assert (slow.since, slow.since_hour, slow.worst_hour) == (DAYS[-3], 8, 9)
    assert [cause.text for cause in slow.causes] == [
        "30 of 100 attempts (30%) failed, most with the error “web”",
        "600 requests came, 5.0 times the typical number",
    ]
    assert slow.causes[0].since == datetime(2026, 11, 18, 9, tzinfo=UTC)


def test_slow_domain_began_in_the_slow_hours_at_the_end_of_the_day_before() -> None:
    figures = build(run_p90_us=80 * SECOND)
    ends: dict[date, dict[int, int | None]] = {
        DAY: {2: 90, 5: 95},
        DAYS[-2]: {9: 90, 11: 10, 17: 90, 18: None, 22: 95},
    }

    def ending(_: str, day: date) -> dict[int, dict[str, Any]]:
        hours = ends.get(day, {})
        return {
            hour: row("web", run_p90_us=seconds and seconds * SECOND)
            for hour, seconds in hours.items()
        }

    (slow,) = diagnose(figures, ending)
    assert (slow.since, slow.since_hour) == (DAYS[-2], 17)
    # an hour of the first day that was as usual
    ends[DAY][1] = 10
    (slow,) = diagnose(figures, ending)
    assert (slow.since, slow.since_hour) == (DAY, 2)
    del ends[DAY][1]
    ends[DAYS[-2]][23] = 10
    (slow,) = diagnose(figures, ending)
    assert (slow.since, slow.since_hour) == (DAY, 2)


def test_worst_domain_is_the_one_that_lost_most_time() -> None:
    figures = build(run_p90_us=80 * SECOND)
    few = {day: row("few") for day in DAYS} | {DAY: row("few", wait_p90_us=800 * SECOND, leased=5)}
    figures.domains["few"] = few
    figures.domain_hours["few"] = {}
    assert [one.domain for one in diagnose(figures, hours_of)] == ["web", "few"]


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"run_p90_us": 19 * SECOND},  # less than twice
        {"run_p90_us": 80 * SECOND, "leased": 4},  # too few
        {"run_p90_us": None},
    ],
)
def test_typical_domain_is_not_slow(figures: dict[str, Any]) -> None:
    assert diagnose(build(**figures), hours_of) == []


def test_new_domain_has_nothing_to_be_compared_with() -> None:
    figures = build(run_p90_us=80 * SECOND)
    figures.domains["web"] = {day: figures.domains["web"][day] for day in DAYS[-3:]}
    assert diagnose(figures, hours_of) == []


def test_longer_runs_explain_longer_waits() -> None:
    found = diagnose(build(wait_p90_us=50 * SECOND, run_p90_us=40 * SECOND), hours_of)
    slow = {one.what: one for one in found}
    assert [cause.text for cause in slow["wait"].causes] == [
        "the work itself took 4.0 times as long as is typical (p90)"
    ]
    assert "look at the workers" in slow["run"].causes[0].text


class Page(HTMLParser):
    """Tags, and the texts between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", HOSTILE)
def test_page_escapes_names_and_has_nothing_from_a_network(name: str) -> None:
    figures = build(name, run_p90_us=80 * SECOND, failed=30)
    quiet = Page(
        render(build("web", run_p90_us=80 * SECOND, failed=30), diagnose(build(), hours_of))
    )
    page = Page(render(figures, diagnose(figures, hours_of)))
    assert page.tags <= quiet.tags | {"ul", "li"}
    assert not page.tags & {"script", "img", "link", "iframe", "object"}
    assert not page.attributes & {"onerror", "onload", "src", "srcset"}
    assert texts.name(name) in page.text
    assert all(character.isprintable() or character == "\n" for character in page.text)
    assert max(map(len, re.findall(r"\S+", page.text))) < 5_000


@pytest.mark.parametrize(
    ("last", "complaint"),
    [
        (None, "nobody took its work on 2026-11-20"),
        (
            datetime(2026, 11, 20, 19, 9, tzinfo=UTC),
            "nobody took its work after 19:09 on 2026-11-20",
        ),
        (datetime(2026, 11, 20, 23, 1, tzinfo=UTC), "due work waits for long"),
    ],
)
def test_starving_domain_has_a_complaint_that_its_leases_bear_out(
    last: datetime | None, complaint: str
) -> None:
    figures = build()
    figures.starving[0] |= {"leased": 0 if last is None else 29, "last_leased": last}
    text = Page(render(figures, [])).text
    assert f"Look at web ({complaint})" in text
    assert f"web: {complaint}" in text
    # a lease may be in the part of the day that is not known
    figures.spans = [msgspec.structs.replace(figures.spans[0], last_us=begin_us(DAY) + HOUR_US)]
    assert "Look at web (due work waits for long)" in Page(render(figures, [])).text


def test_figures_of_many_domains_are_sums_and_the_rows_that_are_shown(tmp_path: Path) -> None:
    many = 1_000
    names = [f"{number:04}" for number in range(many)]
    counts = dict.fromkeys(KINDS, 1)
    numbers = dict.fromkeys(("entries", "waiting", "due", "delayed", "worked_on", "buried"), 1)
    late = {"due": 1, "set": 1, "leased": 0, "last_leased": None}
    hours = {"all_domains": False, "all_hours": True, "hour": None}
    tables: dict[str, list[dict[str, Any]]] = {
        "hours": [{**row(name), **hours, **counts, "set": at + 1} for at, name in enumerate(names)],
        "backlog": [
            {"domain": name, "priority": priority, "oldest_due_us": 5, **numbers, "entries": at}
            for at, name in enumerate(names)
            for priority in (1, 2)
        ],
        "ages": [{"domain": name, "age": "under 1 hour", "due": 1, "delayed": 2} for name in names],
        "starving": [
            {"domain": name, "oldest_due_us": many - at, **late} for at, name in enumerate(names)
        ],
        "attempts": [{"domain": name, "attempt": 1, **counts} for name in names],
    }
    for table, rows in tables.items():
        place = tmp_path / "nightly-staging" / table / f"dt={DAY}"
        place.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), place / "part.parquet")
    store = DayStore(str(tmp_path))
    states = dict[str, DayState]()
    store.publish(states, {str(DAY): HistoryTables([], 1)}, tables)
    reader = TableReader(store, states)
    empty = {"waiting": None, "count": None, "bytes": None, "unreadable": []}
    figures = load(reader, DAY, STATE, [], archive=empty, snapshots=empty)
    assert (len(figures.domains), figures.domains_in_all) == (50, many)
    assert {row["domain"] for row in figures.backlog} == set(names[-20:])
    assert len(figures.backlog) == 40
    entries = many * (many - 1)
    assert figures.backlog_total == {"domains": many, "entries": entries, "due": 2 * many}
    assert figures.ages == [{"age": "under 1 hour", "due": many, "delayed": 2 * many}]
    assert figures.attempts == [{"attempt": 1, **dict.fromkeys(LEASE_COUNTS, many)}]
    # those that wait longest, and the largest ones, which may be slow as well
    assert [row["domain"] for row in figures.starving] == names[:20] + names[-50:]
    assert figures.starving_in_all == many
    text = Page(render(figures, [])).text
    assert f"; {many - 5} more" in text
    assert f"of {entries:,} live entries" in text


def nights_with_gaps(first: date, nights: int) -> list[Span]:
    """Return the spans of nights: in the middle of each, 20 seconds are missing."""
    found, at = list[Span](), 1
    for night in range(nights):
        begin = begin_us(first) + night * DAY_US
        noon = begin + DAY_US // 2
        found += [
            Span(begin, noon, at, at),
            Span(noon, noon + 20 * SECOND, at + 1, at + 1, "dropped"),
            Span(noon + 20 * SECOND, begin + DAY_US, at + 2, at + 2),
        ]
        at += 3
    return found


def test_page_has_a_line_for_each_gap_of_the_days_that_it_shows() -> None:
    figures = build()
    # 30 nights up to the day of the report, and 15 behind it
    first = DAY - timedelta(days=29)
    figures.spans = nights_with_gaps(first, 45)
    page = render(figures, [])
    shown = [int(at) for at in re.findall(r"<td>gap: dropped</td>.*?<td>(\d+) to \1</td>", page)]
    of_day = 3 * 29 + 2
    # those of the 28 days of its charts, and of the day behind, when the snapshot was taken
    assert shown == [*range(8, of_day + 1, 3), of_day + 3]


def test_page_warns_of_the_shortest_gap_of_its_day() -> None:
    figures = build()
    figures.spans = nights_with_gaps(DAY, 1)
    text = Page(render(figures, [])).text
    assert "The history of this day has a gap: 20s of it are missing" in text
    out = io.StringIO()
    print_report(figures, [], Console(file=out, width=400))
    assert "The history of this day has a gap: 20s of it are missing" in out.getvalue()
    figures.spans = nights_with_gaps(DAY - timedelta(days=1), 1)
    figures.spans += [Span(begin_us(DAY), begin_us(DAY) + DAY_US, 4, 4)]
    text = Page(render(figures, [])).text
    assert "has a gap" not in text
    assert "gap: dropped" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_on_a_terminal_are_neither_markup_nor_escapes(name: str) -> None:
    figures = build(name, run_p90_us=80 * SECOND, failed=30)
    out = io.StringIO()
    print_report(figures, diagnose(figures, hours_of), Console(file=out, width=400))
    lines = out.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    assert sum(texts.name(name) in line for line in lines) == 4
