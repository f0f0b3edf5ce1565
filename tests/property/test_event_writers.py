"""Event table of two writers: one that was suspended takes nothing from the one that came then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from fastjournal.errors import LogFailedError, LogLockedError
from fastjournal.spark.history.event_table import EventTable
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun
from tests.property.test_event_store import EVENTS, LosingStore, StoreNights

NO_DAY = date(1970, 1, 1)
LATE = date(2999, 1, 1)


class OvertakenStore(LosingStore):
    """Object store in memory; behind one request of its user something else happens."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = objects
        self.request = self.part = ""
        self.happens: Callable[[], object] = lambda: None

    def meanwhile(self, request: str, part: str, happens: Callable[[], object]) -> None:
        """Let something happen behind the next request to a path with this part."""
        self.request, self.part, self.happens = request, part, happens

    def walk(self, path: str) -> list[str]:
        found = super().walk(path)
        self._meet("walk", path)
        return found

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self._meet("put", path)

    def delete(self, path: str) -> None:
        super().delete(path)
        self._meet("delete", path)

    def _meet(self, request: str, path: str) -> None:
        if request == self.request and self.part in path:
            self.request = ""
            self.happens()


class Elsewhere:
    """Disk of an archive as another machine has it, with locks of its own (NFS may have such)."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def lock(self, path: str) -> Any:
        return self._disk.lock(f"{path}.elsewhere")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class Writers:
    """A table with one commit; a slow writer that knows it; an archive with one more segment."""

    def __init__(self) -> None:
        self.nights = StoreNights(1)
        self.run = LedgerRun(EventLedger(1), 0, self.nights.read)
        self.add_segment(b"first")
        self.next_run()
        self.store = OvertakenStore(self.nights.store.objects)
        self.is_lost = False
        disk: Any = Elsewhere(self.run.log.disk)
        self.slow = EventTable(disk, EVENTS, files=self.store, guard=self._guard)
        self.add_segment(b"second")

    def add_segment(self, name: bytes) -> None:
        """Archive one more segment of three entries."""
        self.run.log.fill(3, key=b"a:1:0:%s-%%d" % name)
        self.run.log.roll()
        self.run.archive_sealed()

    def next_run(self) -> None:
        """Take the archive as the process does that came meanwhile."""
        self.nights.table(self.run).update(ARCHIVE)

    def killed_run(self, behind: str = "/day=") -> None:
        """Take the archive as a process does that is killed behind a file, before its commit."""

        def kill() -> None:
            raise LogFailedError("killed", path=EVENTS)

        store = OvertakenStore(self.nights.store.objects)
        store.meanwhile("put", behind, kill)
        with pytest.raises(LogFailedError, match="killed"):
            EventTable(self.run.log.disk, EVENTS, files=store).update(ARCHIVE)

    def lose_lock(self) -> None:
        """Let the next run take the lock, and the archive."""
        self.is_lost = True
        self.next_run()

    def check(self, rows: list[int]) -> None:
        """Check that a next run finds all events, and goes on."""
        table = self.nights.table(self.run)
        assert [segment.rows for segment in table.taken] == rows
        assert sum(len(self.nights.rows(path)) for path in table.files) == sum(rows)
        self.add_segment(b"last")
        assert table.update(ARCHIVE) == 3

    def _guard(self) -> None:
        if self.is_lost:
            raise LogLockedError("the lock was lost", path=EVENTS)


def test_event_table_of_a_suspended_writer_prunes_no_events_of_the_next_one() -> None:
    writers = Writers()
    writers.next_run()
    with pytest.raises(LogLockedError, match="another process has written _commits/000000002"):
        writers.slow.prune(NO_DAY)
    writers.check([3, 3])


def test_event_table_keeps_events_that_are_committed_while_it_lists_them() -> None:
    writers = Writers()
    writers.killed_run()
    writers.store.meanwhile("walk", EVENTS, writers.next_run)
    with pytest.raises(LogLockedError, match="another process has written _commits/000000002"):
        writers.slow.prune(NO_DAY)
    writers.check([3, 3])


def test_event_table_checks_its_lock_before_each_removal() -> None:
    writers = Writers()
    writers.killed_run()
    writers.add_segment(b"third")
    # the second of the files that are to go is committed behind the removal of the first
    left = [one for one in writers.store.objects if "/day=" in one]
    writers.killed_run("segment=000000003")
    assert len([one for one in writers.store.objects if "/day=" in one]) == len(left) + 1
    writers.store.meanwhile("delete", "/day=", writers.lose_lock)
    with pytest.raises(LogLockedError, match="the lock was lost"):
        writers.slow.prune(NO_DAY)
    writers.check([3, 3, 3])


def test_event_table_keeps_a_commit_behind_its_own() -> None:
    writers = Writers()

    def next_run() -> None:
        writers.add_segment(b"third")
        writers.next_run()

    writers.store.meanwhile("put", "/_commits/", next_run)
    assert writers.slow.update(ARCHIVE) == 3
    writers.check([3, 3, 3])


def test_event_table_of_a_lost_lock_replaces_no_file() -> None:
    writers = Writers()
    found = dict[str, bytes]()

    def overtake() -> None:
        writers.add_segment(b"third")
        writers.lose_lock()
        found.update(writers.store.objects)

    writers.store.meanwhile("put", "/day=", overtake)
    with pytest.raises(LogLockedError, match="the lock was lost"):
        writers.slow.update(ARCHIVE)
    assert {name: writers.store.objects.get(name) for name in found} == found
    writers.check([3, 3, 3])


def test_event_table_of_a_lost_lock_writes_no_commit_that_prunes() -> None:
    writers = Writers()
    writers.lose_lock()
    found = dict(writers.store.objects)
    with pytest.raises(LogLockedError, match="the lock was lost"):
        writers.slow.prune(LATE)
    assert writers.store.objects == found
