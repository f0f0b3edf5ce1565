"""Scheduler of the test processes: each test is given once, and a unit to one process."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.work_units import COMPUTING, WAITING, WorkUnits, tier_turns

TESTS = [
    *("tests/spark/a::test_1@spark", "tests/spark/b::test_2@spark"),
    *(f"tests/system/c::test_{number}[x@y]" for number in range(5)),
    *(f"tests/unit/d::test_{number}[x::y@z]" for number in range(40)),
    *(f"tests/unit/e::test_{number}" for number in range(3)),
    "tests/unit/f::test_7@spark",
]


class Process:
    """Process that carries out what it is given, in order."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.shutting_down = False
        self.given: list[int] = []
        self.done = 0

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduler(processes: list[Process]) -> WorkUnits:
    option = SimpleNamespace(loadscopereorder=True)
    config: Any = SimpleNamespace(option=option, getvalue=lambda name: ["popen"] * len(processes))
    units = WorkUnits(config, None)
    for process in processes:
        units.add_node(process)
        units.add_node_collection(process, TESTS)
    units.schedule()
    return units


def carry_out(units: WorkUnits, processes: list[Process]) -> None:
    """Let the processes do one test after the other, in turns; the last needs to know its next."""
    while True:
        ready = [p for p in processes if len(p.given) - p.done > (not p.shutting_down)]
        if not ready:
            return
        for process in ready:
            units.mark_test_complete(process, process.given[process.done])
            process.done += 1


def test_tiers_that_wait_and_tiers_that_compute_last_from_the_beginning_to_the_end() -> None:
    tiers = [*["format"] * 20, *["integration"] * 150, *["docs"] * 3, *["property"] * 100, "other"]
    turns = tier_turns(tiers)
    in_order = sorted(zip(turns, tiers, strict=True))
    last = {tier: turn for turn, tier in in_order}
    first = {tier: turn for turn, tier in reversed(in_order)}
    assert first["docs"] == first["property"] == 0
    assert last["docs"] < first["integration"]
    assert last["property"] < first["format"]
    assert last["other"] == 1 > last["format"] > 0.98
    assert last["integration"] > 0.98
    # in the order of collection inside of a tier
    assert turns[:20] == sorted(turns[:20])
    before_half = Counter(tier for turn, tier in zip(turns, tiers, strict=True) if turn < 0.5)
    # a tier takes turns for its share of the seconds
    docs, integration = WAITING["docs"], WAITING["integration"]
    half = (docs + integration) / 2
    assert before_half["integration"] == pytest.approx(150 * (half - docs) / integration, abs=1)
    half = (COMPUTING["property"] + COMPUTING["format"]) / 2
    assert before_half["property"] == pytest.approx(100 * half / COMPUTING["property"], abs=1)


def test_scheduler_gives_each_test_to_one_process() -> None:
    processes = [Process() for _ in range(3)]
    units = scheduler(processes)
    carry_out(units, processes)
    assert sorted(at for p in processes for at in p.given) == list(range(len(TESTS)))
    assert all(p.shutting_down and p.done == len(p.given) for p in processes)
    assert units.tests_finished
    assert not units.has_pending


def test_scheduler_gives_files_of_unit_tests_and_groups_to_one_process_in_order() -> None:
    processes = [Process() for _ in range(3)]
    carry_out(scheduler(processes), processes)
    for part in ("@spark", "unit/d", "unit/e"):
        wanted = [at for at, nodeid in enumerate(TESTS) if part in nodeid]
        got = [[at for at in p.given if at in wanted] for p in processes]
        assert sorted(map(len, got)) == [0, 0, len(wanted)]
        assert max(got, key=len) == wanted
    (first,) = (p for p in processes if 0 in p.given)
    assert first.given[0] == 0, "the group comes first, not the largest unit"


def test_scheduler_gives_other_tests_one_by_one() -> None:
    processes = [Process() for _ in range(3)]
    carry_out(scheduler(processes), processes)
    assert all(2 <= min(p.given) <= 6 for p in processes if 0 not in p.given)


def test_scheduler_gives_the_tests_of_a_process_that_ended_to_another() -> None:
    processes = [Process() for _ in range(2)]
    units = scheduler(processes)
    lost = processes.pop()
    crashed = units.remove_node(lost)
    assert crashed == TESTS[lost.given[0]]
    carry_out(units, processes)
    assert sorted(processes[0].given) == list(range(len(TESTS)))
