"""Event table: one pipeline takes an archive, and names each gap once, with its reason."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from fastjournal.cmdlog.archive_format import Gap, read_state, write_state
from fastjournal.errors import LogLockedError
from fastjournal.spark.history.event_table import ARCHIVE_LOCK, EventTable
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun
from tests.property.test_event_table import EVENTS, DroppingDisk


def archived(count: int) -> tuple[LedgerRun, list[str]]:
    """Return a run with so many archived segments of three SETs, and their paths."""
    run = LedgerRun(EventLedger(1), 0, lambda _: None)
    more(run, count)
    names = run.log.disk.listdir(ARCHIVE)
    return run, sorted(f"{ARCHIVE}/{name}" for name in names if name.endswith(".log"))


def more(run: LedgerRun, count: int) -> None:
    """Archive more segments."""
    for _ in range(count):
        run.ledger.pass_time(1)
        run.log.fill(3, key=b"a:1:0:%d-%%d" % run.log.writer.next_number)
        run.log.roll()
    run.archive_sealed()


def gaps(table: EventTable) -> list[tuple[int, int, str]]:
    return [(gap.first, gap.last, gap.reason) for gap in table.gaps]


def test_event_table_takes_no_segment_of_an_archive_that_another_one_takes() -> None:
    run, paths = archived(6)
    disk: Any = run.log.disk
    others = [EventTable(disk, f"/{name}/events", segments_a_commit=2) for name in "ab"]
    with closing(disk.lock(f"{ARCHIVE}/{ARCHIVE_LOCK}")):
        for table in others:
            with pytest.raises(LogLockedError, match="another fj-nightly takes the segments"):
                table.update(ARCHIVE)
    assert all(disk.exists(path) for path in paths)
    assert others[0].update(ARCHIVE) == 18
    assert others[1].update(ARCHIVE) == 0
    assert [gaps(table) for table in others] == [[], []]


class NamingDisk(DroppingDisk):
    """Disk on which the daemon names a segment as dropped, and drops its file then."""

    def _called(self, plain: Any, path: str, *more: Any) -> Any:
        if self._disk.exists(self._path):
            state = read_state(self._disk, ARCHIVE)
            assert state is not None
            gap = Gap(2, 2, 1, 1, None, None, "dropped")
            found = type(state)(state.format, state.version, state.next, state.last, (gap,))
            write_state(self._disk, ARCHIVE, found)
        return super()._called(plain, path, *more)


@pytest.mark.parametrize(("kind", "reason"), [(NamingDisk, "dropped"), (DroppingDisk, "missing")])
def test_event_table_takes_a_segment_as_dropped_only_where_the_archive_says_so(
    kind: type[DroppingDisk], reason: str
) -> None:
    run, paths = archived(3)
    table = EventTable(kind(run.log.disk, "read", paths[1]), EVENTS)
    assert table.update(ARCHIVE) == 6
    assert gaps(table) == [(2, 2, reason)]
