"""Benchmark beside peers: its rows and aims, and the text that is made from the JSON of a run."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from tests.bench.peers.machine import ECHOES, MACHINE, OTHER_WORK, SYNCS, disturbances
from tests.bench.peers.page import COLUMNS, PAGE, aim_text, render, with_report
from tests.bench.peers.rounds import rounds_until
from tests.bench.peers.rows import (
    GENERATOR,
    LUA,
    OURS,
    PROCESSOR,
    RATE,
    STREAMS,
    Aim,
    Measured,
    Report,
    Row,
    chosen,
    verdicts,
)
from tests.bench.peers.servers import SERVERS
from tests.bench.peers.table import ROWS

KEYS = {
    *("enqueue-1", "enqueue-50", "enqueue-50-interval", "enqueue-256", "move-256"),
    *("take-64", "take-1", "growth", "memory", "start", "lease-p99", "slowest-page"),
}


def a_report(*measured: Measured, rounds: int = 3, missing: tuple[str, ...] = ()) -> Report:
    limits = [
        Measured(MACHINE, "", OTHER_WORK, [0.01, 0.02, 0.5]),
        Measured(MACHINE, "", SYNCS, [5_000.0, 6_000.0, 7_000.0]),
        Measured(MACHINE, "", ECHOES, [40_000.0, 50_000.0, 60_000.0]),
    ]
    machine = "2 processors"
    return Report("abc1234", machine, rounds, 1_000_000, 900.0, [*missing], [*limits, *measured])


def enqueues(ours: list[float], streams: list[float]) -> Report:
    return a_report(
        Measured("enqueue-50", OURS, RATE, ours),
        Measured("enqueue-50", OURS, PROCESSOR, [24.0, 25.0, 26.0]),
        Measured("enqueue-50", OURS, GENERATOR, [0.2, 0.3, 0.4]),
        Measured("enqueue-50", STREAMS, RATE, streams),
        Measured("enqueue-50", STREAMS, GENERATOR, [0.94, 0.95, 0.96]),
    )


def test_peers_have_a_row_for_each_scenario_and_aims_in_each() -> None:
    assert [row.key for row in ROWS] == list(dict.fromkeys(row.key for row in ROWS))
    assert {row.key for row in ROWS} == KEYS
    assert all(row.aims for row in ROWS)
    servers = {kind.name for kind in SERVERS}
    assert servers == set(COLUMNS)
    assert {aim.peer for row in ROWS for aim in row.aims} <= servers - {OURS} | {""}


def test_peers_rows_are_chosen_by_key() -> None:
    assert chosen(ROWS, []) == list(ROWS)
    assert [row.key for row in chosen(ROWS, ["start", "take-1"])] == ["take-1", "start"]
    with pytest.raises(ValueError, match="no row has the key stop"):
        chosen(ROWS, ["start", "stop"])


def test_aim_is_a_ratio_of_medians_or_a_limit_of_the_value() -> None:
    report = enqueues([100.0, 900.0, 1_000.0], [1_000.0, 1_000.0, 5_000.0])
    found = [(each.aim.peer, each.value, each.met) for each in verdicts(report, ROWS)]
    assert found == [(STREAMS, 0.9, True), ("", 25.0, True)]
    report = enqueues([100.0, 799.0, 1_000.0], [1_000.0, 1_000.0, 5_000.0])
    assert [each.met for each in verdicts(report, ROWS)] == [False, True]


def test_aim_of_a_value_is_its_most_or_its_least() -> None:
    most, least = Aim(480), Aim(0.85, least=True)
    row = Row("r", "a row", "bytes", (most, least, Aim(1.5, LUA)))
    report = a_report(Measured("r", OURS, "bytes", [480.5]))
    assert [each.met for each in verdicts(report, [row])] == [False, True]
    assert aim_text(row, most) == "at most 480 bytes"
    assert aim_text(row, least) == "at least 0.85 bytes"
    assert aim_text(row, row.aims[2]) == "at least 1.50 x Redis, Lua"


def test_page_shows_figures_aims_limits_and_a_busy_generator() -> None:
    report = enqueues([800.0, 900.0, 1_000.0], [1_000.0, 1_200.0, 5_000.0])
    text = render(report)
    lines = text.splitlines()
    title = "enqueue, 50 connections, one at a time"
    assert "Measured at abc1234 on 2 processors: medians of 3 interleaved rounds" in text
    assert f"| {title} | a second | 900 (800, 1,000) | 1,200 (1,000, 5,000) |  |  |" in lines
    assert f"| {title} | 25 |  |  |  |" in lines
    assert f"| {title} | at least 0.80 x Redis, streams | 0.75 | **no** |" in lines
    assert f"| {title} | at most 25 processor us | 25 | yes |" in lines
    prose = " ".join(text.split())
    assert "6,000 (5,000, 7,000) appends of 200 bytes with fdatasync a second" in prose
    assert f"It may be the bottleneck of: {title} of Redis, streams (95%)." in prose
    assert "The machine was quiet." in lines


def test_page_names_peers_that_are_missing() -> None:
    assert "Not installed: beanstalkd." in render(a_report(missing=("beanstalkd",)))


def test_page_says_that_the_machine_was_not_quiet() -> None:
    report = enqueues([500.0, 900.0, 1_000.0], [1_000.0, 1_200.0, 5_000.0])
    report.rounds = 5
    report.measured[0].values = [0.1, 0.9, 1.9]
    report.measured[1].values = [500.0, 1_000.0, 6_000.0]
    assert disturbances(report) == [
        "other work kept 0.9 processors busy",
        "syncs a second went from 500 to 6,000",
        "1 of 1 figures of fastjournald spread over more than 50% of their median (enqueue-50)",
        "only 3 of 5 rounds were done in time",
    ]
    prose = " ".join(render(report).split())
    assert f"**The machine was not quiet:** {'; '.join(disturbances(report))}." in prose


def test_page_has_one_place_for_the_figures_and_keeps_the_rest() -> None:
    page = PAGE.read_text(encoding="utf-8")
    report = enqueues([800.0, 900.0, 1_000.0], [1_000.0, 1_200.0, 5_000.0])
    once = with_report(page, report)
    before, _, rest = page.partition("<!-- generated: peers -->\n")
    assert once.startswith(before)
    assert once.endswith(rest.partition("<!-- end -->")[2])
    assert with_report(once, report) == once
    for text in ("no place", page + page):
        with pytest.raises(ValueError, match="exactly one place"):
            with_report(text, report)


def cells_below(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the one table with this heading."""
    _, table = page.split(f"{heading}\n")
    lines = itertools.takewhile(lambda line: line.startswith("|"), table.splitlines()[1:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_page_has_each_aim_and_the_limit_of_each_that_is_not_met() -> None:
    page = PAGE.read_text(encoding="utf-8")
    aims = cells_below(page, "| row | aim | measured | met |")
    assert [aim[:2] for aim in aims] == [
        [row.title, aim_text(row, aim)] for row in ROWS for aim in row.aims
    ]
    limits = cells_below(page, "| row | aim | measured | limit | tried, and its gain |")
    assert [limit[:3] for limit in limits] == [aim[:3] for aim in aims if aim[3] != "yes"]
    assert all(all(limit) for limit in limits)


def test_report_survives_its_json() -> None:
    report = enqueues([1.5, 2.5], [3.5, 4.5])
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


class Clock:
    """Clock on which each round takes a number of seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("end", "least", "expected"), [(100, 1, 5), (30, 1, 3), (29, 1, 2), (0, 2, 2), (5, 1, 1)]
)
def test_rounds_end_in_time_but_for_the_least(end: float, least: int, expected: int) -> None:
    clock = Clock()
    done = []
    for number in rounds_until(end, 5, least=least, clock=clock):
        done.append(number)
        clock.now += 10
    assert done == list(range(expected))
