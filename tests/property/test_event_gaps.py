"""Event table: one pipeline takes an archive, and names each gap once, with its reason."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from fastjournal.cmdlog.archive_format import Gap, read_state, write_state
from fastjournal.errors import LogFailedError, LogLockedError
from fastjournal.spark.history.event_table import ARCHIVE_LOCK, EventTable
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun
from tests.property.test_event_table import EVENTS, DroppingDisk, write


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


class HidingDisk:
    """Disk whose first listing of the archive leaves out a segment that is linked meanwhile."""

    def __init__(self, disk: Any, number: int) -> None:
        self._disk = disk
        self._hidden = f"{number:09d}-"

    def listdir(self, path: str) -> list[str]:
        names: list[str] = self._disk.listdir(path)
        if path == ARCHIVE and self._hidden:
            names = [name for name in names if not name.startswith(self._hidden)]
            self._hidden = ""
        return names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


@pytest.mark.parametrize("number", [2, 3])
def test_event_table_names_no_gap_of_a_segment_that_a_listing_leaves_out(number: int) -> None:
    run, _ = archived(1)
    EventTable(run.log.disk, EVENTS).update(ARCHIVE)
    more(run, 3)
    disk: Any = HidingDisk(run.log.disk, number)
    table = EventTable(disk, EVENTS)
    assert table.update(ARCHIVE) == 9
    assert gaps(table) == []
    assert [segment.number for segment in table.taken] == [1, 2, 3, 4]


class NoRename:
    """Disk on which no damaged segment can be renamed."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def rename(self, source: str, target: str) -> None:
        if target.endswith(".damaged"):
            raise LogFailedError("not permitted", path=source)
        self._disk.rename(source, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def test_event_table_names_a_damaged_segment_once_if_it_cannot_be_renamed() -> None:
    run, paths = archived(3)
    disk = run.log.disk
    disk.truncate(paths[1], disk.size(paths[1]) - 1)
    for _ in range(3):
        broken: Any = NoRename(disk)
        with pytest.raises(LogFailedError, match="not permitted"):
            EventTable(broken, EVENTS).update(ARCHIVE)
    table = EventTable(disk, EVENTS)
    assert table.update(ARCHIVE) == 0
    assert gaps(table) == [(2, 2, "damaged")]
    assert disk.exists(f"{paths[1]}.damaged")


def test_event_table_names_segments_that_are_put_back_as_late() -> None:
    run, paths = archived(6)
    disk = run.log.disk
    data = {path: disk.read(path) for path in paths}
    for path in paths[1:5]:
        disk.unlink(path)
    table = EventTable(disk, EVENTS)
    assert table.update(ARCHIVE) == 6
    assert gaps(table) == [(2, 5, "missing")]
    write(disk, paths[2], data[paths[2]])
    assert table.update(ARCHIVE) == 3
    expected = [(2, 2, "missing"), (3, 3, "late"), (4, 5, "missing")]
    assert gaps(table) == gaps(EventTable(disk, EVENTS)) == expected
    (late,) = (gap for gap in table.gaps if gap.reason == "late")
    assert (late.first_us, late.last_us) == (table.taken[-1].first_us, table.taken[-1].last_us)
    for path in paths[1:5]:
        write(disk, path, data[path])
    assert EventTable(disk, EVENTS).update(ARCHIVE) == 9
    assert gaps(EventTable(disk, EVENTS)) == [(number, number, "late") for number in range(2, 6)]


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
