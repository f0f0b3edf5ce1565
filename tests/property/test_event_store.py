"""Event files in an object store that loses requests, or their replies, in any night."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import pytest

from fastjournal.errors import LogFailedError, LogLockedError
from fastjournal.spark.execution.cluster_tasks import Here
from fastjournal.spark.history.archive_taking import ARCHIVE_LOCK, take_segments
from fastjournal.spark.history.event_files import EventDirectory
from tests.property.event_archives import (
    EVENTS,
    archived,
    counts_of,
    gaps,
    more,
    rows_of,
    take,
    waiting,
)
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun

OPERATIONS = 400


class LosingStore:
    """Object store in memory; the nth request fails, before or behind its effect."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails_in = 0
        self.is_done = False
        """Whether the request that fails has its effect."""

    def read(self, path: str) -> bytes:
        self._request()
        return self.objects[path]

    def tail(self, path: str, size: int) -> bytes:
        return self.read(path)[-size:]

    def names(self, path: str) -> list[str]:
        return sorted({name.partition("/")[0] for name in self.walk(path)})

    def walk(self, path: str) -> list[str]:
        self._request()
        return sorted(
            one.removeprefix(f"{path}/") for one in self.objects if one.startswith(f"{path}/")
        )

    def put(self, path: str, data: bytes) -> None:
        fails = self._fails()
        if not fails or self.is_done:
            self.objects[path] = data
        self._fail(fails)

    def delete(self, path: str) -> None:
        fails = self._fails()
        if not fails or self.is_done:
            self.objects.pop(path, None)
        self._fail(fails)

    def remove_empty(self, path: str) -> None:
        assert self.walk(path) == []

    def each(self, function: Callable[[Any], Any], given: Iterable[Any]) -> list[Any]:
        return [function(one) for one in given]

    def _request(self) -> None:
        self._fail(self._fails())

    def _fails(self) -> bool:
        self.fails_in -= 1
        return self.fails_in == 0

    def _fail(self, fails: bool) -> None:
        if fails:
            raise LogFailedError("the store did not answer", path=EVENTS)


class StoreNights:
    """A pipeline whose store fails again and again."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.store = LosingStore()
        self.failed = 0

    def read(self, run: LedgerRun) -> None:
        """Take the archive; at a failure the next night takes what is left."""
        run.log.flush()
        self.store.is_done = self.draw.random() < 0.5
        self.store.fails_in = self.draw.randint(1, 20)
        try:
            take(run.log.disk, files=self.store, parallel=self.draw.choice((1, 4)))
        except LogFailedError:
            self.failed += 1
        self.store.fails_in = 0


def test_event_files_in_a_store_that_loses_requests_have_each_event_once() -> None:
    failed = 0
    for seed in range(4):
        ledger, nights = EventLedger(seed), StoreNights(seed)
        run = LedgerRun(ledger, OPERATIONS, nights.read)
        run.run()
        run.archive_sealed()
        take(run.log.disk, files=nights.store)
        events = EventDirectory(nights.store, EVENTS)
        truth = {(day, str(kind)): count for (day, kind), count in ledger.counts.items()}
        assert counts_of(events) == truth
        written = sorted(f"{EVENTS}/{file.path}" for file in events.listed())
        assert sorted(nights.store.objects) == written, "nothing is beside the files of segments"
        assert waiting(run.log.disk) == []
        assert gaps(events, run.log.disk) == []
        failed += nights.failed
    assert failed > 4


class OvertakenStore(LosingStore):
    """Object store in memory; behind the nth request of its user something else happens."""

    def __init__(self, objects: dict[str, bytes], number: int, happens: Callable[[], object]):
        super().__init__()
        self.objects = objects
        self._left = number
        self._happens = happens

    def _fails(self) -> bool:
        self._left -= 1
        if self._left == 0:
            self._happens()
        return super()._fails()


def test_event_files_of_a_run_that_another_one_overtakes_anywhere_have_each_event_once() -> None:
    for number in range(1, 40):
        run, _ = archived(3)
        disk, store = run.log.disk, LosingStore()

        def next_run(run: LedgerRun = run, store: LosingStore = store) -> None:
            more(run, 1)
            take_segments(run.log.disk, ARCHIVE, EventDirectory(store, EVENTS), Here(), 1)

        overtaken = OvertakenStore(store.objects, number, next_run)
        take_segments(disk, ARCHIVE, EventDirectory(overtaken, EVENTS), Here(), 1)
        events = EventDirectory(store, EVENTS)
        numbers = sorted(row["segment"] for row in rows_of(events))
        if overtaken._left > 0:
            break
        assert numbers == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4], number
        assert gaps(events) == []
        assert waiting(disk) == []
    assert number > 5


def test_archive_that_a_run_takes_is_refused_to_another_pipeline() -> None:
    run, paths = archived(3)
    disk = run.log.disk
    with (
        closing(disk.lock(f"{ARCHIVE}/{ARCHIVE_LOCK}")),
        pytest.raises(LogLockedError, match="another fj-nightly takes the segments"),
    ):
        take(disk, files=LosingStore())
    assert waiting(disk) == paths
    assert take(disk) == 9
