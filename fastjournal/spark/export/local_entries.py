"""Live entries of a log on one machine, sorted by domain: all cores, and memory with a bound.

Tasks in processes decode segments (``export.export_tasks``); DuckDB joins and groups
what they write, with a memory limit and files in a temporary directory. The algorithm is that of
``live_entries.plan``; ``live_entries.replay_runs`` sorts the records to replay,
``fastjournal.spark.export.domain_runs`` the entries. A log of one part runs in this process.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fastjournal.errors import LogFailedError
from fastjournal.spark.execution.duckdb_engine import DuckDb, parquet_files, translating_sort
from fastjournal.spark.execution.process_pool import process_pool
from fastjournal.spark.export import export_tasks
from fastjournal.spark.export.domain_runs import merge_runs
from fastjournal.spark.live_entries.facts import CHAIN_FACTS, PLACE_BITS, check_facts, offset_of
from fastjournal.spark.live_entries.fetch import Base
from fastjournal.spark.live_entries.plan import Wanted, find_wanted
from fastjournal.spark.live_entries.replay_runs import find_replay_ranges
from fastjournal.spark.storage.files import LogDirectory, SegmentFile

_BEHIND = 2
"""Tasks for each process that wait or run."""


@contextmanager
def _translating(scratch: Path) -> Iterator[None]:
    """Raise what the sort, or the end of a process, raises in the block as a ``LogFailedError``."""
    try:
        with translating_sort(scratch):
            yield
    except BrokenExecutor as error:
        raise LogFailedError(
            "a process that decodes was ended from outside",
            hint="free memory, or call fastjournal.spark.export_snapshot with processes=1",
        ) from error


def _in_turn(executor: Executor, waiting: int, tasks: Iterable[tuple[Any, ...]]) -> Iterator[int]:
    """Run tasks, a bounded number at once; yield their results in order."""
    running: deque[Future[int]] = deque()
    for function, *arguments in tasks:
        running.append(executor.submit(function, *arguments))
        if len(running) > waiting:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def sorted_entries(
    source: LogDirectory,
    uri: str | os.PathLike[str],
    scratch: Path,
    *,
    processes: int,
    on_bytes: Callable[[int], None],
) -> Iterator[pa.RecordBatch]:
    """Yield the live entries of a log, by domain; those of plain keys first.

    Args:
        source: The log or snapshot.
        uri: Its path or URI.
        scratch: An empty local directory.
        processes: Processes that decode; 1: this one.
        on_bytes: Called with the bytes of each segment whose facts, and whose entries, were read.

    Raises:
        LogCorruptError: It is damaged.
        LogFailedError: It cannot be read, the temporary files have no room, or a process was ended.
    """
    waiting = _BEHIND * processes if processes > 1 else 0
    with _translating(scratch), ExitStack() as stack:
        # the processes end before the sort: their memory is that of segments
        with process_pool(processes) as executor:
            tasks = [
                (export_tasks.write_facts, str(uri), one, str(scratch / f"facts-{one.number}"))
                for one in source.segments
            ]
            for size in _in_turn(executor, waiting, tasks):
                on_bytes(size)
            entries = stack.enter_context(closing(_EntryStages(source, str(uri), scratch)))
            entries.find()
            with entries.lookups_only():
                for size in _in_turn(executor, waiting, entries.fetches()):
                    on_bytes(size)
            for stage in (entries.record_fetches(), entries.replays()):
                for _ in _in_turn(executor, waiting, stage):
                    pass
        yield from entries.sorted()


class _EntryStages:
    """The stages behind the facts: which records make entries, and their fetch, replay and sort."""

    def __init__(self, source: LogDirectory, uri: str, scratch: Path) -> None:
        self._source = source
        self._uri = uri
        self._scratch = scratch
        self._engine = DuckDb(scratch)
        self._files: list[str] = []
        """Files with entries."""
        self._records: list[str] = []
        """Files with records to replay."""
        self._wanted: Wanted | None = None

    def lookups_only(self) -> AbstractContextManager[None]:
        """Return the block in which the database has less memory, for those that decode."""
        return self._engine.lookups_only()

    def close(self) -> None:
        """Close the database."""
        self._engine.connection.close()

    def find(self) -> None:
        """Find which records make entries; the facts are there.

        Raises:
            LogCorruptError: A segment is missing, or was cut or replaced.
        """
        if not self._source.segments:
            return
        engine = self._engine
        facts = parquet_files(self._path("facts", segment) for segment in self._source.segments)
        facts = f"(SELECT * FROM {facts})"
        told = self._engine.table(CHAIN_FACTS.format(facts=facts))
        check_facts(self._source, zip(*(one.to_pylist() for one in told.columns), strict=True))
        found = find_wanted(engine, facts)
        self._wanted = Wanted(
            engine.store("plain", "SELECT place FROM {plain} ORDER BY place", plain=found.plain),
            engine.store("replayed", "SELECT * FROM {rows} ORDER BY place", rows=found.replayed),
            engine.store("bases", "SELECT * FROM {bases}", bases=found.bases),
        )

    def _path(self, stage: str, segment: SegmentFile) -> str:
        return str(self._scratch / f"{stage}-{segment.number}")

    def _of_segment(self, columns: str, relation: str, segment: SegmentFile) -> list[Any]:
        first, stop = segment.number << PLACE_BITS, (segment.number + 1) << PLACE_BITS
        found = self._engine.table(
            f"SELECT {columns} FROM {relation} "
            f"WHERE place >= {first} AND place < {stop} ORDER BY place"
        )
        return [np.asarray(column.to_numpy(), np.int64) for column in found.columns]

    def fetches(self) -> Iterator[tuple[Any, ...]]:
        """Yield the tasks that write the entries of records that need no replay."""
        if self._wanted is None:
            return
        for segment in self._source.segments:
            (places,) = self._of_segment("place", self._wanted.plain, segment)
            path = self._path("entries", segment)
            self._files.append(path)
            offsets = offset_of(places)
            yield export_tasks.write_entries, self._uri, segment, offsets, path

    def record_fetches(self) -> Iterator[tuple[Any, ...]]:
        """Yield the tasks that write the records to replay."""
        if self._wanted is None:
            return
        for segment in self._source.segments:
            os.unlink(self._path("facts", segment))
            places, labels = self._of_segment("place, label", self._wanted.replayed, segment)
            if not len(places):
                continue
            path = self._path("records", segment)
            self._records.append(path)
            found = self._engine.table(
                f"SELECT earlier, ahead FROM {self._wanted.bases} "
                f"WHERE segment = {segment.number << PLACE_BITS}"
            )
            base = Base(*(column[0].as_py() for column in found.columns))
            offsets = offset_of(places)
            yield export_tasks.write_replayed, self._uri, segment, offsets, labels, base, path

    def replays(self) -> Iterator[tuple[Any, ...]]:
        """Yield the tasks that replay records, those of a label in one task."""
        if not self._records:
            return
        for chosen in find_replay_ranges(self._engine, self._records):
            path = str(self._scratch / f"replay-{len(self._files)}")
            self._files.append(path)
            yield export_tasks.write_replay, chosen, path

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """Yield all entries, by domain."""
        for path in self._records:
            os.unlink(path)
        yield from merge_runs(self._engine, self._files)
