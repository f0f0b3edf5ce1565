"""Live index: the file ``LIVE`` of a snapshot, which names the records of its live entries.

A reader of these records needs no other record of the snapshot. Byte layout, big endian::

    head    6 bytes  "FJLIVE"
            u16      version, 1
            u64      taken_us, as in the manifest
            u32      number of segments; then each of them, ascending:
            u32 number, u64 bytes, u32 crc32c       as in the manifest
    runs    each one about some entries of one segment, in any order:
            u64 offsets[entries]   where their records begin in the segment, ascending
            u32 rows[changed]      indexes into ``offsets``, ascending: the changed entries
            msgpack array          their ``LiveChanges``, in the same order; only if there are any
    index   a row for each run, by segment, then by place:
            u32 segment, u32 entries, u32 changed, u64 place, u64 bytes, u32 crc32c of the run
    foot    u64 number of entries, u32 number of runs, u64 place of the index,
            u32 crc32c of head, index and foot up to here
            8 bytes  "FJLIVEND"

A place is an offset in this file. Each byte of it is part of one of these, and under one checksum.
The offsets of several runs of a segment may interleave; no record is in two runs.

An entry is *changed* where its record alone does not say what it is: a later record changed it, or
that of another entry did, or it is a job of workq's own. Then ``LiveChanges`` says all of it that
can change, so that a reader never replays. A run holds at most ``RUN_ENTRIES_MAX`` entries.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import lt
from struct import Struct
from typing import NamedTuple, Protocol, TypeAlias

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.envelope import Number
from fastjournal.errors import LogCorruptError

LIVE_NAME = "LIVE"
VERSION = 1
RUN_ENTRIES_MAX = 65_536
"""Entries of a run; a run is written and read in one piece."""

_MAGIC = b"FJLIVE"
_END = b"FJLIVEND"
_HEAD = Struct(">6sHQI")
_SEGMENT = Struct(">IQI")
_INDEX_ROW = Struct(">IIIQQI")
_FOOT = Struct(">QIQ")
_CRC = Struct(">I")
_FOOT_BYTES = _FOOT.size + _CRC.size + len(_END)
_OFFSET_BYTES, _ROW_BYTES = 8, 4
_HINT = "take another snapshot"
_SWAPS = sys.byteorder == "little"

ReadBytes: TypeAlias = Callable[[int, int], bytes]
"""Takes place and size; returns so many bytes of the file, or fewer at its end."""
Kept: TypeAlias = tuple[Number, Number]
"""First bytes of the record's value that still count, and size of the value: zero bytes follow."""


class LiveChanges(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """An entry at the instant of the snapshot, without the fields that only its record has.

    Value type and job id are those of the record, mostly the value too. Fields are only added at
    the end, with a default. Times are microseconds; ``cmdlog.format.envelope`` describes the fields
    with the same names.
    """

    key: bytes
    uri: bytes | None
    links: list[bytes]
    not_before: Number
    timestamp: Number
    created: Number
    modified: Number
    expires: Number
    ttl: Number
    arrival: Number
    attempts: Number
    token: Number
    superseded: Number
    reason: bytes | None = None
    value: bytes | Kept | None = None
    """None: that of the record."""


class SegmentSeal(Protocol):
    """Facts of a sealed segment, as ``SegmentInfo`` has them."""

    @property
    def number(self) -> int:
        """Its number."""

    @property
    def bytes(self) -> int:
        """Its size."""

    @property
    def crc32c(self) -> int:
        """CRC-32C of the whole file."""


class LiveSegment(NamedTuple):
    """A segment of the snapshot, as the head names it."""

    number: int
    bytes: int
    crc32c: int


class LiveRun(NamedTuple):
    """A run: its place in the file, and how many entries it names."""

    segment: int
    entries: int
    changed: int
    place: int
    bytes: int
    crc32c: int


class LiveRecords(NamedTuple):
    """Records of live entries in one segment."""

    offsets: array[int]
    """Type code ``Q``, ascending."""
    changes: dict[int, LiveChanges]
    """By offset: those of changed entries."""


class WrittenIndex(NamedTuple):
    """Facts about a live index that is whole."""

    bytes: int
    crc32c: int
    """CRC-32C of the whole file."""
    entries: int


class LiveIndexWriter:
    """Writes a live index, run by run. Memory: the index, and the run that is being written.

    Args:
        write: Appends bytes to the file; what it raises comes through, and ends the writing.
        taken_us: When the snapshot is taken, in microseconds since the Unix epoch.
        segments: All segments of the snapshot, ascending.
    """

    def __init__(
        self, write: Callable[[bytes], None], taken_us: int, segments: Iterable[SegmentSeal]
    ) -> None:
        self._write = write
        self._sizes: dict[int, int] = {}
        self._runs: list[LiveRun] = []
        self._place = 0
        self._crc = 0
        parts = []
        for segment in segments:
            self._sizes[segment.number] = segment.bytes
            parts.append(_SEGMENT.pack(segment.number, segment.bytes, segment.crc32c))
        head = _HEAD.pack(_MAGIC, VERSION, taken_us, len(parts)) + b"".join(parts)
        self._own_crc = google_crc32c.value(head)
        self._append(head)

    def add_run(
        self, segment: int, offsets: Iterable[int], changes: Mapping[int, LiveChanges] = {}
    ) -> None:
        """Write the records of some live entries of one segment. O(n log n).

        Args:
            segment: Number of the segment.
            offsets: Where the records begin, in any order; at most ``RUN_ENTRIES_MAX``, and each
                in one run only.
            changes: By offset: those of the changed entries among them.

        Raises:
            ValueError: There are too many, or one is there twice, or outside the segment; nothing
                was written.
        """
        ordered = sorted(offsets)
        if not ordered:
            return
        if len(ordered) > RUN_ENTRIES_MAX:
            raise ValueError(f"{len(ordered)} entries in a run, of at most {RUN_ENTRIES_MAX}")
        if not _is_ascending(ordered):
            raise ValueError(f"a record of segment {segment} is twice in a run")
        if ordered[0] < 0 or ordered[-1] >= self._sizes.get(segment, 0):
            raise ValueError(f"a record is outside segment {segment}")
        parts = [_pack("Q", ordered)]
        if changes:
            rows = [row for row, offset in enumerate(ordered) if offset in changes]
            if len(rows) != len(changes):
                raise ValueError(f"changes of entries of segment {segment} that are not in the run")
            parts.append(_pack("I", rows))
            parts.append(msgspec.msgpack.encode([changes[ordered[row]] for row in rows]))
        data = b"".join(parts)
        crc = google_crc32c.value(data)
        run = LiveRun(segment, len(ordered), len(changes), self._place, len(data), crc)
        self._append(data)
        self._runs.append(run)

    def finish(self) -> WrittenIndex:
        """Write index and foot; the caller syncs the file."""
        place = self._place
        index = b"".join(_INDEX_ROW.pack(*run) for run in sorted(self._runs, key=_by_segment))
        entries = sum(run.entries for run in self._runs)
        end = index + _FOOT.pack(entries, len(self._runs), place)
        end += _CRC.pack(google_crc32c.extend(self._own_crc, end)) + _END
        self._append(end)
        return WrittenIndex(self._place, self._crc, entries)

    def _append(self, data: bytes) -> None:
        self._write(data)
        self._crc = google_crc32c.extend(self._crc, data)
        self._place += len(data)


class LiveIndex(msgspec.Struct, frozen=True):
    """Head, index and foot of a live index."""

    path: str
    taken_us: int
    segments: tuple[LiveSegment, ...]
    """All segments of the snapshot, ascending; also those without a live entry."""
    entries: int
    """Number of all live entries."""
    runs: tuple[LiveRun, ...]
    """By segment, then by place."""

    @classmethod
    def open(cls, read: ReadBytes, size: int, path: str) -> LiveIndex:
        """Read head, index and foot; the runs are left where they are.

        Args:
            read: Reads the file.
            size: Its size.
            path: For errors.

        Raises:
            LogCorruptError: It is no live index, of another version, torn, or damaged.
        """
        head = read(0, _HEAD.size)
        if not head.startswith(_MAGIC[: len(head)]):
            raise LogCorruptError("this is no live index of fastjournal", path=path, hint=_HINT)
        if len(head) >= 8 and int.from_bytes(head[6:8], "big") != VERSION:
            version = int.from_bytes(head[6:8], "big")
            raise LogCorruptError(
                f"a live index of version {version}, and this release reads version {VERSION}",
                path=path,
                hint=f"read it with the release that wrote it, or {_HINT}",
            )
        foot_at = size - _FOOT_BYTES
        foot = read(foot_at, _FOOT_BYTES) if foot_at >= _HEAD.size else b""
        if len(foot) < _FOOT_BYTES or not foot.endswith(_END):
            raise LogCorruptError(
                f"the live index is torn: its foot is not at its end, behind {size} bytes",
                path=path,
                hint=_HINT,
            )
        _, _, taken_us, number = _HEAD.unpack(head)
        entries, count, index_at = _FOOT.unpack_from(foot)
        runs_at = _HEAD.size + number * _SEGMENT.size
        if not runs_at <= index_at <= foot_at or foot_at - index_at != count * _INDEX_ROW.size:
            raise _damaged("its head and its foot do not fit its size", path, foot_at)
        head += read(_HEAD.size, runs_at - _HEAD.size)
        index = read(index_at, foot_at - index_at)
        told = _CRC.unpack_from(foot, _FOOT.size)[0]
        if google_crc32c.value(head + index + foot[: _FOOT.size]) != told:
            raise _damaged("the checksum of head, index and foot is wrong", path, foot_at)
        segments = tuple(map(LiveSegment._make, _SEGMENT.iter_unpack(head[_HEAD.size :])))
        runs = tuple(map(LiveRun._make, _INDEX_ROW.iter_unpack(index)))
        found = cls(path, taken_us, segments, entries, runs)
        found._check(runs_at, index_at)
        return found

    def _check(self, runs_at: int, index_at: int) -> None:
        numbers = {segment.number for segment in self.segments}
        place = runs_at
        for run in sorted(self.runs, key=_by_place):
            least = run.entries * _OFFSET_BYTES + run.changed * _ROW_BYTES
            if (
                run.place != place
                or run.segment not in numbers
                or not 0 < run.entries <= RUN_ENTRIES_MAX
                or run.changed > run.entries
                or run.bytes < least
                or (not run.changed and run.bytes > least)
            ):
                raise _damaged("a row of its index contradicts the others", self.path, index_at)
            place += run.bytes
        if place != index_at or sum(run.entries for run in self.runs) != self.entries:
            raise _damaged("its index does not fit its runs", self.path, index_at)

    def runs_of(self, segment: int) -> list[LiveRun]:
        """Return the runs of a segment. O(runs)."""
        return [run for run in self.runs if run.segment == segment]

    def read_records(self, read: ReadBytes, segment: int) -> LiveRecords:
        """Return the records of all live entries of a segment.

        Args:
            read: Reads the file.
            segment: Number of the segment.

        Raises:
            LogCorruptError: A run is torn or damaged.
        """
        runs = self.runs_of(segment)
        size = next((one.bytes for one in self.segments if one.number == segment), 0)
        offsets: array[int] = array("Q")
        changes: dict[int, LiveChanges] = {}
        for run in runs:
            found = self._read_run(read, run)
            offsets += found.offsets
            changes.update(found.changes)
        if len(runs) > 1:
            offsets = array("Q", sorted(offsets))
        if not _is_ascending(offsets) or (offsets and offsets[-1] >= size):
            raise _damaged(
                f"records of segment {segment} are there twice, or outside of it",
                self.path,
                runs[0].place,
            )
        return LiveRecords(offsets, changes)

    def _read_run(self, read: ReadBytes, run: LiveRun) -> LiveRecords:
        data = read(run.place, run.bytes)
        if len(data) != run.bytes or google_crc32c.value(data) != run.crc32c:
            raise _damaged("the checksum of a run is wrong", self.path, run.place)
        rows_at = run.entries * _OFFSET_BYTES
        changes_at = rows_at + run.changed * _ROW_BYTES
        offsets = _unpack("Q", data[:rows_at])
        if not run.changed:
            return LiveRecords(offsets, {})
        rows = _unpack("I", data[rows_at:changes_at])
        try:
            changes = _decode_changes(memoryview(data)[changes_at:])
        except (msgspec.MsgspecError, ValueError) as error:
            raise _damaged(f"changes cannot be read: {error}", self.path, run.place) from error
        if len(changes) != len(rows) or rows[-1] >= len(offsets) or not _is_ascending(rows):
            raise _damaged("its changes are not those of its entries", self.path, run.place)
        found = {offsets[row]: change for row, change in zip(rows, changes, strict=True)}
        return LiveRecords(offsets, found)


_decode_changes = msgspec.msgpack.Decoder(list[LiveChanges]).decode


def _by_segment(run: LiveRun) -> tuple[int, int]:
    return run.segment, run.place


def _by_place(run: LiveRun) -> int:
    return run.place


def _is_ascending(numbers: Sequence[int]) -> bool:
    return all(map(lt, numbers, islice(numbers, 1, None)))


def _pack(code: str, numbers: Iterable[int]) -> bytes:
    packed: array[int] = array(code, numbers)
    if _SWAPS:
        packed.byteswap()
    return packed.tobytes()


def _unpack(code: str, data: bytes) -> array[int]:
    numbers: array[int] = array(code)
    numbers.frombytes(data)
    if _SWAPS:
        numbers.byteswap()
    return numbers


def _damaged(message: str, path: str, offset: int) -> LogCorruptError:
    return LogCorruptError(
        f"the live index is damaged: {message}", path=path, offset=offset, hint=_HINT
    )
