"""Event table in an object store that loses requests, or their replies, in any night."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet
import pytest

from fastjournal.errors import LogFailedError, LogLockedError
from fastjournal.spark.history.event_table import EventTable
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun

EVENTS = "bucket/events"
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

    def settle(self, paths: Iterable[str]) -> None:
        """Nothing to do: a store has no cache."""

    def remove_empty(self, path: str) -> None:
        assert self.walk(path) == []

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
        self.store.fails_in = self.draw.randint(1, 60)
        try:
            self.table(run).update(ARCHIVE, parallel=self.draw.choice((1, 4)))
        except LogFailedError:
            self.failed += 1
        self.store.fails_in = 0

    def table(self, run: LedgerRun) -> EventTable:
        return EventTable(run.log.disk, EVENTS, files=self.store, segments_a_commit=2)

    def rows(self, path: str) -> list[dict[str, object]]:
        data = pa.BufferReader(self.store.objects[path])
        found: list[dict[str, object]] = pa.parquet.read_table(data).to_pylist()
        return found


def test_event_table_in_a_store_that_loses_requests_has_each_event_once() -> None:
    failed = 0
    for seed in range(4):
        ledger, nights = EventLedger(seed), StoreNights(seed)
        run = LedgerRun(ledger, OPERATIONS, nights.read)
        run.run()
        run.archive_sealed()
        table = nights.table(run)
        table.update(ARCHIVE)
        found = Counter(
            (path.removeprefix(f"{EVENTS}/day=").partition("/")[0], str(row["event"]))
            for path in table.files
            for row in nights.rows(path)
        )
        assert found == {(day, str(kind)): count for (day, kind), count in ledger.counts.items()}
        written = [one for one in nights.store.objects if "/day=" in one]
        assert sorted(written) == sorted(table.files), "nothing is beside what the commits name"
        assert [name for name in run.log.disk.listdir(ARCHIVE) if name.endswith(".log")] == []
        failed += nights.failed
    assert failed > 4


def test_event_table_of_two_writers_refuses_the_commit_of_the_slower_one() -> None:
    ledger, nights = EventLedger(1), StoreNights(1)
    run = LedgerRun(ledger, 0, nights.read)
    run.log.fill(3, key=b"a:1:0:%d")
    run.log.roll()
    run.archive_sealed()
    slower = nights.table(run)
    (name,) = [name for name in run.log.disk.listdir(ARCHIVE) if name.endswith(".log")]
    data = run.log.disk.read(f"{ARCHIVE}/{name}")
    assert nights.table(run).update(ARCHIVE) == 3
    # the slower one has listed the archive before
    with closing(run.log.disk.create(f"{ARCHIVE}/{name}")) as file:
        file.write(data)
    with pytest.raises(LogLockedError, match="has written _commits/000000001"):
        slower.update(ARCHIVE)
    assert [segment.rows for segment in nights.table(run).taken] == [3]
    assert run.log.disk.exists(f"{ARCHIVE}/{name}"), "it unlinks nothing"
