"""Splitting a log that is larger than memory into parts that can be replayed apart, on local disk.

One process does here the same as Spark's workers do for the view ``entries``
(``fastjournal.spark.entries_view``), with files in a temporary directory instead of a shuffle:

1. One pass over the log. Every record that matters for an entry goes to the file of its job id's
   hash; the keys, URIs and links of entries go, as pairs of hashes (term, label), to the file of
   the term's hash. A label is the hash of the URI, or of the key where there is none; for a key
   that an entry gets later (LINK, RENAME) it is that of this key.
2. Where a term or a job id stands under two labels, these are joined (union-find).
3. The records of each job id go to the part of its label's root.

Memory: the pairs of one file and the labels that were joined; the rest is on disk, about twice the
size of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fastjournal.cmdlog.format.operation_records import Change, Link, Rename
from fastjournal.cmdlog.recovery.segment_chain import TOLD, Chain, Seal
from fastjournal.spark.files import LogDirectory, check_chain
from fastjournal.spark.rows import Row, read_segment

_HEADER = struct.Struct("<IQQQqqBI")
"""Segment, offset, token, serial, job, label, flags, bytes of the record behind it."""
_PAIR = struct.Struct("<qq")
_TOKEN, _OURS, _FOREIGN, _LABEL = 1, 2, 4, 8
_BUFFER_BYTES = 256 * 1024
_NEW_KEY = (Link, Rename)


class Packed(NamedTuple):
    """One record on its way to its part. The order is that of the log."""

    segment: int
    offset: int
    token: int | None
    serial: int | None
    ours: bool
    raw: bytes


class Roots:
    """Union-find over labels; a label that was joined with no other is its own root."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def find(self, label: int) -> int:
        """Return the root of a label's group."""
        parents = self._parents
        root = label
        while (parent := parents.get(root, root)) != root:
            root = parent
        while label != root:
            label, parents[label] = parents[label], root
        return root

    def join(self, one: int, other: int) -> None:
        """Make the groups of two labels one."""
        one, other = self.find(one), self.find(other)
        if one != other:
            self._parents[max(one, other)] = min(one, other)


def read_rows(directory: LogDirectory, on_bytes: Callable[[int], None]) -> Iterator[Packed]:
    """Yield the records of a log that matter for its entries, in order.

    Args:
        directory: The log or snapshot.
        on_bytes: Told the size of each segment that has been read.

    Raises:
        LogCorruptError: It is damaged.
        LogFailedError: It cannot be read.
    """
    for row, serial in _numbered(directory, on_bytes):
        yield _packed(row, serial)


def split(
    directory: LogDirectory, scratch: Path, count: int, on_bytes: Callable[[int], None]
) -> Iterator[list[Packed]]:
    """Yield the parts of a log, each in the order of the log.

    Args:
        directory: The log or snapshot.
        scratch: An empty local directory with room for about twice the log.
        count: Number of parts.
        on_bytes: Told the size of each segment that has been read.

    Raises:
        LogCorruptError: It is damaged.
        LogFailedError: It cannot be read.
    """
    _scatter(directory, scratch, count, on_bytes)
    roots = Roots()
    for index in range(count):
        _join_terms(scratch / f"terms-{index}", roots)
    for index in range(count):
        _label_jobs(scratch / f"jobs-{index}", roots)
    with ExitStack() as stack:
        parts = _open_all(stack, scratch, "part", count)
        for index in range(count):
            _route(scratch / f"jobs-{index}", roots, parts)
    for index in range(count):
        path = scratch / f"part-{index}"
        yield sorted(_unpacked(header, raw) for header, raw in _read_spill(path))
        path.unlink()


def _numbered(
    directory: LogDirectory, on_bytes: Callable[[int], None]
) -> Iterator[tuple[Row, int | None]]:
    """Yield the rows that matter, foreign jobs with the serial number that replay gives them."""
    arrival = 0
    chain = Chain()
    files: dict[int, Seal] = {}
    for segment in directory.segments:
        for row in read_segment(directory.files, segment, permissive=False):
            serial = None
            if row.file is not None:
                files[row.segment] = row.file
            if isinstance(row.operation, TOLD):
                chain.take(row.segment, row.operation)
            if row.entry is not None:
                if row.foreign:
                    arrival += 1
                    serial = arrival
                else:
                    arrival = max(arrival, row.entry.arrival)
            if row.operation is None or isinstance(row.operation, Change):
                yield row, serial
        on_bytes(segment.bytes)
    check_chain(directory, chain, files)


def _packed(row: Row, serial: int | None) -> Packed:
    token = row.token if row.operation is None else None
    return Packed(row.segment, row.offset, token, serial, row.ours, row.raw)


def _scatter(
    directory: LogDirectory, scratch: Path, count: int, on_bytes: Callable[[int], None]
) -> None:
    with ExitStack() as stack:
        jobs = _open_all(stack, scratch, "jobs", count)
        terms = _open_all(stack, scratch, "terms", count)
        for row, serial in _numbered(directory, on_bytes):
            job = hash(row.target)
            label = 0
            entry = row.entry
            if entry is not None:
                key = hash(entry.key)
                label = key if entry.uri is None else hash(entry.uri)
                for term in {key, label, *map(hash, entry.links)}:
                    terms[term % count].write(_PAIR.pack(term, label))
            elif isinstance(row.operation, _NEW_KEY):
                label = hash(row.operation.key)
                terms[label % count].write(_PAIR.pack(label, label))
            packed = _packed(row, serial)
            flags = (
                _TOKEN * (packed.token is not None)
                | _OURS * row.ours
                | _FOREIGN * row.foreign
                | _LABEL * (entry is not None or isinstance(row.operation, _NEW_KEY))
            )
            header = (row.segment, row.offset, packed.token or 0, serial or 0, job, label, flags)
            file = jobs[job % count]
            file.write(_HEADER.pack(*header, len(row.raw)))
            file.write(row.raw)


def _join_terms(path: Path, roots: Roots) -> None:
    labels: dict[int, int] = {}
    data = path.read_bytes()
    path.unlink()
    for term, label in _PAIR.iter_unpack(data):
        first = labels.setdefault(term, label)
        if first != label:
            roots.join(first, label)


def _label_jobs(path: Path, roots: Roots) -> dict[int, int]:
    """Return the label of each job in a file; those of one job are joined."""
    labels: dict[int, int] = {}
    for header, _ in _read_spill(path):
        _, _, _, _, job, label, flags, _ = header
        if flags & _LABEL:
            first = labels.setdefault(job, label)
            if first != label:
                roots.join(first, label)
    return labels


def _route(path: Path, roots: Roots, parts: list[BinaryIO]) -> None:
    """Move the records of a file to the parts of their jobs; those without a job are dropped."""
    labels = _label_jobs(path, roots)
    for header, raw in _read_spill(path):
        label = labels.get(header[4])
        if label is not None:
            part = parts[roots.find(label) % len(parts)]
            part.write(_HEADER.pack(*header))
            part.write(raw)
    path.unlink()


def _open_all(stack: ExitStack, scratch: Path, name: str, count: int) -> list[BinaryIO]:
    return [
        stack.enter_context((scratch / f"{name}-{index}").open("wb", buffering=_BUFFER_BYTES))
        for index in range(count)
    ]


def _read_spill(path: Path) -> Iterator[tuple[tuple[int, ...], bytes]]:
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        while head := file.read(_HEADER.size):
            header = _HEADER.unpack(head)
            yield header, file.read(header[-1])


def _unpacked(header: tuple[int, ...], raw: bytes) -> Packed:
    segment, offset, token, serial, _, _, flags, _ = header
    return Packed(
        segment,
        offset,
        token if flags & _TOKEN else None,
        serial if flags & _FOREIGN else None,
        bool(flags & _OURS),
        raw,
    )
