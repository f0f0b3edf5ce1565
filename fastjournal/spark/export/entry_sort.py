"""External merge sort of entries by domain: sorted runs on a local disk, and ranges of domains.

A task writes the entries of a part of the log as *runs*, each sorted by domain, in *groups* of few
rows whose first and last domain are known (``write_runs``). From these follow *ranges* of domains
(``find_ranges``) of about ``RANGE_BYTES``: a task sorts the rows of a range in memory
(``read_range``). A domain that has more than that is several ranges: its rows need no sort. Plain
keys, which have no domain, come first. Memory is that of a run, or of a range, and one record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from fastjournal.errors import LogFailedError
from fastjournal.spark.live_entries.fetch import ENTRY_ARROW_SCHEMA

RUN_BYTES = 64 * 1024 * 1024
GROUP_ROWS = 2048
GROUP_BYTES = 1024 * 1024
"""Bytes of a group, about; it may hold one record that is larger."""
RANGE_BYTES = 64 * 1024 * 1024
_COPIED_BYTES_MAX = 1 << 30
"""A range of more bytes is put in order row by row: Arrow cannot join larger columns."""
_PLAIN = ""
"""Domain of plain keys: no other domain is empty."""


class RunGroup(NamedTuple):
    """Rows side by side in a file of runs."""

    path: str
    number: int
    """Number of the record batch in the file."""
    rows: int
    bytes: int
    first: str
    last: str

    @property
    def is_one_domain(self) -> bool:
        """Whether all of its rows have one domain."""
        return self.first == self.last


class DomainRange(NamedTuple):
    """Entries of some domains, or a part of those of one domain."""

    groups: tuple[RunGroup, ...]
    """Groups that have rows of it, and perhaps others."""
    rows: int
    """How many rows, about; its groups at the bounds count where they end."""
    bytes: int
    after: str | None
    """Domains after this one; None: from the first one on."""
    upto: str
    """Last domain."""
    without_last: bool = False
    """The last domain is not in it."""
    is_one_domain: bool = False
    """Only the last domain is in it."""


def write_runs(path: str, batches: Iterable[pa.RecordBatch]) -> list[RunGroup]:
    """Write entries as runs to a new file, and return their groups.

    Raises:
        LogFailedError: The temporary file cannot be written.
    """
    found: list[RunGroup] = []
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        _translating(path),
        pa.OSFile(path, "wb") as file,
        pa.ipc.new_file(file, ENTRY_ARROW_SCHEMA, options=options) as writer,
    ):
        for table in _runs(batches):
            rows = max(min(GROUP_ROWS, table.num_rows * GROUP_BYTES // max(table.nbytes, 1)), 1)
            bytes_per_row = table.nbytes / table.num_rows
            for batch in table.to_batches(max_chunksize=rows):
                domains = batch.column("domain")
                first, last = domains[0].as_py(), domains[len(batch) - 1].as_py()
                size = int(len(batch) * bytes_per_row)
                bounds = (first or _PLAIN, last or _PLAIN)
                found.append(RunGroup(path, len(found), len(batch), size, *bounds))
                writer.write_batch(batch)
    return found


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield sorted tables of about ``RUN_BYTES``."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= RUN_BYTES:
            yield from _sorted(pa.Table.from_batches(waiting, ENTRY_ARROW_SCHEMA))
            waiting, size = [], 0
    if waiting:
        yield from _sorted(pa.Table.from_batches(waiting, ENTRY_ARROW_SCHEMA))


def _sorted(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a table in the order of domains: at once, or, where it is huge, row by row."""
    domains = table.column("domain").fill_null(_PLAIN)
    bounds = pc.min_max(domains).as_py()
    if bounds["min"] == bounds["max"]:
        yield table
        return
    order = pc.sort_indices(domains)
    if table.nbytes <= _COPIED_BYTES_MAX:
        yield table.take(order)
    else:
        for row in order.to_pylist():
            yield table.slice(row, 1)


def find_ranges(groups: Sequence[RunGroup]) -> list[DomainRange]:
    """Return the ranges of all domains, in order, of the groups of all files."""
    found: list[DomainRange] = []
    after: str | None = None
    rows = size = 0
    for domain, same in groupby(sorted(groups, key=_by_last), key=_by_last):
        ending = list(same)
        pure = [one for one in ending if one.is_one_domain]
        if sum(one.bytes for one in pure) > RANGE_BYTES:
            found += _of_domains(groups, rows, size, after, domain, without_last=True)
            mixed = [one for one in groups if one.first <= domain <= one.last != one.first]
            found += _of_domain(domain, pure, mixed)
            after, rows, size = domain, 0, 0
            continue
        rows += sum(one.rows for one in ending)
        size += sum(one.bytes for one in ending)
        if size >= RANGE_BYTES:
            found += _of_domains(groups, rows, size, after, domain)
            after, rows, size = domain, 0, 0
    if rows:
        found += _of_domains(groups, rows, size, after, max(map(_by_last, groups)))
    return found


def _by_last(group: RunGroup) -> str:
    return group.last


def _of_domains(
    groups: Iterable[RunGroup],
    rows: int,
    size: int,
    after: str | None,
    upto: str,
    *,
    without_last: bool = False,
) -> Iterator[DomainRange]:
    """Yield the range of the domains after one up to another, if any group has such."""
    chosen = tuple(
        one
        for one in groups
        if (after is None or one.last > after)
        and (one.first < upto or (one.first == upto and not without_last))
    )
    if chosen:
        yield DomainRange(chosen, rows, size, after, upto, without_last)


def _of_domain(
    domain: str, pure: Iterable[RunGroup], mixed: Sequence[RunGroup]
) -> Iterator[DomainRange]:
    """Yield ranges of one domain: of the groups that have no other one, and of those that do."""
    waiting: list[RunGroup] = []
    rows = size = 0
    for group in pure:
        waiting.append(group)
        rows += group.rows
        size += group.bytes
        if size >= RANGE_BYTES:
            yield DomainRange(tuple(waiting), rows, size, None, domain, is_one_domain=True)
            waiting, rows, size = [], 0, 0
    if waiting or mixed:
        yield DomainRange((*waiting, *mixed), rows, size, None, domain, is_one_domain=True)


def read_range(chosen: DomainRange) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a range, by domain.

    Raises:
        LogFailedError: The temporary files cannot be read.
    """
    batches = (batch for batch in _read_groups(chosen) if len(batch))
    if chosen.is_one_domain:
        yield from batches
        return
    waiting = list(batches)
    if waiting:
        for table in _sorted(pa.Table.from_batches(waiting, ENTRY_ARROW_SCHEMA)):
            yield from table.to_batches()


def _read_groups(chosen: DomainRange) -> Iterator[pa.RecordBatch]:
    for path, groups in groupby(chosen.groups, key=lambda one: one.path):
        with _translating(path), pa.memory_map(path) as file:
            reader = pa.ipc.open_file(file)
            for group in groups:
                batch = reader.get_batch(group.number)
                yield batch if _is_inside(group, chosen) else batch.filter(_mask(batch, chosen))


def _is_inside(group: RunGroup, chosen: DomainRange) -> bool:
    """Whether all rows of a group are of a range."""
    if chosen.is_one_domain:
        return group.is_one_domain
    is_behind = chosen.after is None or group.first > chosen.after
    is_before = group.last < chosen.upto or (group.last == chosen.upto and not chosen.without_last)
    return is_behind and is_before


def _mask(batch: pa.RecordBatch, chosen: DomainRange) -> pa.Array:
    domain = batch.column("domain").fill_null(_PLAIN)
    if chosen.is_one_domain:
        return pc.equal(domain, chosen.upto)
    end = pc.less if chosen.without_last else pc.less_equal
    mask = end(domain, chosen.upto)
    return mask if chosen.after is None else pc.and_(mask, pc.greater(domain, chosen.after))


@contextmanager
def _translating(path: str) -> Iterator[None]:
    """Raise what a temporary file raises in the block as a ``LogFailedError``."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise LogFailedError(
            f"cannot sort the entries: {str(error).partition(chr(10))[0]}",
            path=path,
            hint="set TMPDIR to a directory on a disk with more room; where it has room, report"
            " this",
        ) from error
