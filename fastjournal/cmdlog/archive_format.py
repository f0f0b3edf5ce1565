"""Format of an archive directory: names of archived segments, and the state with its gaps.

A segment is ``000000007-0a1b2c3d.log``: its number, and the CRC-32C of the whole file when it was
sealed. The state is ``ARCHIVE.json``::

    {"format": "fastjournal-archive", "version": 1, "next": int,
     "last": {"number": int, "bytes": int, "crc32c": "8 hex digits"}|null,
     "gaps": [{"first": int, "last": int, "segments": int, "bytes": int,
               "first_us": int|null, "last_us": int|null, "reason": str}, ...]}

Each segment below ``next`` was linked, or is in a gap. Numbers of segments ascend by one, so a
reader finds gaps of which the state says nothing (the directory was replaced) by the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

import msgspec

from fastjournal.cmdlog.format.segments import SEGMENT_NUMBER_MAX, SegmentInfo
from fastjournal.disk import Disk
from fastjournal.limits import ARCHIVE_GAPS_MAX
from fastjournal.versioned_json import Crc32cDigits, decode_versioned

STATE_NAME = "ARCHIVE.json"
FORMAT = "fastjournal-archive"
VERSION = 1

_NAME = re.compile(r"([0-9]{9})-([0-9a-f]{8})\.log")
_BESIDE = f"{STATE_NAME}.new"

SegmentNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=SEGMENT_NUMBER_MAX)]
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Reason: TypeAlias = Literal["dropped", "not-linked", "compacted", "merged"]
"""Reason of a gap: the bound of the archive; the system refused the link; compaction came before
there was an archive; several reasons, of old gaps."""
MISSING = "missing"
"""Reason of a gap of which the archive says nothing."""


class Gap(msgspec.Struct, frozen=True):
    """Segments, side by side, that are not in the archive."""

    first: SegmentNumber
    """Number of the first."""
    last: SegmentNumber
    segments: Size
    """How many of them are known to have been there."""
    bytes: Size
    """Size of these, as far as it is known."""
    first_us: int | None
    """Time of the first record, in microseconds since the Unix epoch; None: not known."""
    last_us: int | None
    """An instant not before the last record; None: not known."""
    reason: Reason

    @classmethod
    def of_segment(cls, info: SegmentInfo, reason: Reason) -> Self:
        """Return the gap that one segment is."""
        return cls(info.number, info.number, 1, info.bytes, info.first_us, info.last_us, reason)

    @classmethod
    def of_absent(cls, first: int, last: int) -> Self:
        """Return the gap of segments of which nothing is left."""
        return cls(first, last, last - first + 1, 0, None, None, "compacted")

    def covers(self, other: Gap) -> bool:
        """Return whether all segments of another gap are in this one."""
        return self.first <= other.first and other.last <= self.last


class Last(msgspec.Struct, frozen=True):
    """The last segment that was linked."""

    number: SegmentNumber
    bytes: Size
    crc32c: Crc32cDigits

    @property
    def seal(self) -> tuple[int, int]:
        """Size and CRC-32C."""
        return self.bytes, int(self.crc32c, 16)


class ArchiveState(msgspec.Struct, frozen=True):
    """Contents of the state file."""

    format: str
    version: int
    next: Size
    """Each segment below was linked, or is in a gap."""
    last: Last | None
    gaps: tuple[Gap, ...]


class ArchivedSegment(NamedTuple):
    """A file of the archive."""

    number: int
    crc32c: int

    @property
    def name(self) -> str:
        """File name in the directory."""
        return f"{self.number:09d}-{self.crc32c:08x}.log"


def archived_segment(name: str) -> ArchivedSegment | None:
    """Return number and CRC-32C from a file name, or None where it is not an archived segment's."""
    match = _NAME.fullmatch(name)
    return ArchivedSegment(int(match[1]), int(match[2], 16)) if match else None


def list_archived(disk: Disk, directory: str) -> list[ArchivedSegment]:
    """Return the files of the archive, in the order of the log.

    Raises:
        LogFailedError: The directory cannot be read.
    """
    found = (archived_segment(name) for name in disk.listdir(directory))
    return sorted(segment for segment in found if segment is not None)


def list_whole(disk: Disk, directory: str, before: int) -> list[ArchivedSegment]:
    """Return the files of the archive up to the last that a listing shows, all of them.

    A listing may leave out a name that the daemon links meanwhile, and have a later one. So where
    numbers are missing it is listed again: what is before the last one was linked by then.

    Args:
        disk: Where it is.
        directory: The archive.
        before: Number of the last segment that the caller knows.

    Raises:
        LogFailedError: The directory cannot be read.
    """
    found = list_archived(disk, directory)
    numbers = {segment.number for segment in found if segment.number > before}
    last = max(numbers, default=before)
    if last - before == len(numbers):
        return found
    return [one for one in list_archived(disk, directory) if one.number <= last]


def read_state(disk: Disk, directory: str) -> ArchiveState | None:
    """Return the state of an archive; None: there is none so far.

    Raises:
        LogCorruptError: The file is not one that this version can read.
        LogFailedError: It cannot be read.
    """
    path = f"{directory}/{STATE_NAME}"
    return decode_state(disk.read(path), path) if disk.exists(path) else None


def decode_state(data: bytes, path: str) -> ArchiveState:
    """Return the state of an archive.

    Args:
        data: Contents of its file.
        path: The file, for errors.

    Raises:
        LogCorruptError: The file is not one that this version can read.
    """
    return decode_versioned(
        data,
        ArchiveState,
        format_name=FORMAT,
        version=VERSION,
        path=path,
        hint="read it with the release that wrote it, or remove it: the archive begins anew then",
    )


def write_state(disk: Disk, directory: str, state: ArchiveState) -> None:
    """Replace the state of an archive, durably.

    Raises:
        LogFailedError: It could not be written; the old one stands, or the new one.
    """
    path, beside = f"{directory}/{STATE_NAME}", f"{directory}/{_BESIDE}"
    if disk.exists(beside):
        disk.unlink(beside)
    file = disk.create(beside, like=path if disk.exists(path) else None)
    try:
        file.write(msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n")
        file.sync()
    finally:
        file.close()
    disk.rename(beside, path)
    disk.sync_directory(directory)


def join_gaps(gaps: list[Gap]) -> tuple[Gap, ...]:
    """Return gaps with neighbours of one reason joined, and the oldest where they are many."""
    joined: list[Gap] = []
    for gap in gaps:
        if joined and joined[-1].reason == gap.reason and joined[-1].last + 1 == gap.first:
            joined[-1] = _union(joined[-1], gap, gap.reason)
        else:
            joined.append(gap)
    while len(joined) > ARCHIVE_GAPS_MAX:
        joined[:2] = [_union(joined[0], joined[1], "merged")]
    return tuple(joined)


def _union(one: Gap, other: Gap, reason: Reason) -> Gap:
    starts = [gap.first_us for gap in (one, other) if gap.first_us is not None]
    ends = [gap.last_us for gap in (one, other) if gap.last_us is not None]
    return Gap(
        min(one.first, other.first),
        max(one.last, other.last),
        one.segments + other.segments,
        one.bytes + other.bytes,
        min(starts, default=None),
        max(ends, default=None),
        reason,
    )


def gaps_between(
    present: Iterable[tuple[int, int]], known: Sequence[Gap], last: int
) -> list[tuple[int, int, int | None, int | None, str]]:
    """Return the gaps up to a segment: first and last number, first and last time, reason.

    It takes no longer where a range of numbers is larger: a number in a name may be any.

    Args:
        present: First and last numbers of segments that are there, or are in a gap already.
        known: Gaps that the archive knows; the first of two that overlap counts.
        last: Number of the last segment.
    """
    spans = sorted(present)
    first = min([*(begin for begin, _ in spans), *(gap.first for gap in known)])
    absent = list(_absent(spans, first, last))
    found: list[tuple[int, int, int | None, int | None, str]] = []
    for gap in known:
        rest = []
        for begin, end in absent:
            low, high = max(begin, gap.first), min(end, gap.last)
            if low > high:
                rest.append((begin, end))
                continue
            found.append((low, high, gap.first_us, gap.last_us, gap.reason))
            rest += [part for part in ((begin, low - 1), (high + 1, end)) if part[0] <= part[1]]
        absent = rest
    found += [(begin, end, None, None, MISSING) for begin, end in absent]
    return sorted(found, key=lambda gap: gap[0])


def missing_text(first: int, last: int) -> str:
    """Return what an error tells of a range of missing segments."""
    if first == last:
        return f"segment {first} is not there"
    return f"segments {first} to {last} are not there"


def _absent(spans: Iterable[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of numbers from ``first`` to ``last`` that are in no span, in order."""
    number = first
    for begin, end in spans:
        if begin > number and number <= last:
            yield number, min(begin - 1, last)
        number = max(number, end + 1)
    if number <= last:
        yield number, last
