"""Scheduler of pytest-xdist: a unit test file, a group or any other test is one unit of work.

Tests that wait for programs and tests that compute take turns, so that the processors are busy from
the first minute to the last: the tests of daemons alone leave a third of two processors idle.

The scheduler of `--dist loadgroup` makes a unit of each test, and after each test it counts those
of all units that a process was ever given, and looks for the next in a list of all tests: work that
grows with the square of the number of tests. The unit tests are thousands, and short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from xdist.scheduler.loadgroup import LoadGroupScheduling

SHORT_TESTS = "tests/unit/"

WAITING = {"system": 35, "soak": 20, "docs": 50, "integration": 180}
"""Tiers whose tests wait for programs, those with long tests first; seconds of processor time."""
COMPUTING = {"unit": 155, "property": 180, "format": 10}
"""Tiers whose tests compute, in the same way."""


def tier_turns(tiers: Iterable[str]) -> list[float]:
    """Return when the turn of each test is, from 0 for the first to 1, by the tiers of the tests.

    Both kinds of tiers last from the beginning to the end. Tests of no known tier come last.
    """
    named = list(tiers)
    tests = Counter(named)
    begins, lasts = dict[str, float](), dict[str, float]()
    for kind in (WAITING, COMPUTING):
        there = {tier: seconds for tier, seconds in kind.items() if tests[tier]}
        total, before = sum(there.values()), 0
        for tier, seconds in there.items():
            begins[tier], lasts[tier] = before / total, seconds / total
            before += seconds
    done = Counter[str]()
    turns = []
    for tier in named:
        turns.append(begins.get(tier, 1.0) + lasts.get(tier, 0.0) * done[tier] / tests[tier])
        done[tier] += 1
    return turns


class WorkUnits(LoadGroupScheduling):
    """Units in the order of collection; each process has one in progress and one more."""

    def __init__(self, config: Any, log: Any) -> None:
        # else the unit of most tests comes first, not that of the longest
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._indexes: dict[Any, dict[str, int]] = {}

    def _split_scope(self, nodeid: str) -> str:
        unit: str = super()._split_scope(nodeid)
        return unit.partition("::")[0] if unit.startswith(SHORT_TESTS) else unit

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Count a test as done, and drop a unit that is done with it."""
        nodeid = self.registered_collections[node][item_index]
        units = self.assigned_work[node]
        scope = self._split_scope(nodeid)
        units[scope][nodeid] = True
        if all(units[scope].values()):
            del units[scope]
        self._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        """Give a process the next unit."""
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work.setdefault(node, {})[scope] = unit
        if node not in self._indexes:
            collection = self.registered_collections[node]
            self._indexes[node] = {nodeid: at for at, nodeid in enumerate(collection)}
        index = self._indexes[node]
        node.send_runtest_some([index[nodeid] for nodeid, is_done in unit.items() if not is_done])
