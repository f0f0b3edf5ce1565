"""Archive of sealed segments: hard links made before compaction changes them; format and state.

The directory has the links and the state (``ARCHIVE.json``, below). A reader takes a file, makes
its own copy of the contents durable, and unlinks it. It recognises a repeated file by its name.

Compaction may change a segment only when its number is below ``next``, and ``next`` advances in
this order: link, sync of the directory, new state beside the old one, sync, rename, sync of the
directory. So after a crash

- before the state is durable, the segment is in the log as it was sealed. It is linked at the next
  start, perhaps for the second time, under the same name;
- after that, the link was durable before, and the segment is not linked again. The link may be
  missing then, because a reader has taken it, and compaction may have rewritten the segment.

A segment that compaction rewrote, in a time without ``--archive-dir``, is never taken for a whole
one: the first record of the next segment has its size and CRC-32C when it was sealed. The last
segment has no next one. It is whole, because its rewriting needs a durable record in a later one.
No segment grows after it was linked, because a daemon with an archive begins a new one at its
start.

A gap is durable before a link of it is removed.

A segment file is named ``000000007-0a1b2c3d.log``: its number, and the CRC-32C of the whole file
when it was sealed. The state is ``ARCHIVE.json``::

    {"format": "fastjournal-archive", "version": 1, "next": int,
     "last": {"number": int, "bytes": int, "crc32c": "8 hex digits"}|null,
     "gaps": [{"first": int, "last": int, "segments": int, "bytes": int,
               "first_us": int|null, "last_us": int|null, "reason": str}, ...]}

Each segment below ``next`` was linked, or is in a gap. Numbers of segments ascend by one, so a
reader finds gaps that are not in the state (the directory was replaced) by the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

import msgspec

from fastjournal.cmdlog.format.layout import (
    SEGMENT_HEADER,
    SEGMENT_NUMBER_MAX,
    TIME_BYTES,
    SegmentInfo,
)
from fastjournal.cmdlog.format.records import decode_time
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError
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
"""Reason of a gap that is not in the archive's state."""


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
        """Return the gap of segments that are missing wholly."""
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
    """Return all files of the archive up to the last one in a listing.

    A listing may miss a name that the daemon links at the same time, and have a later one. So if
    numbers are missing, the directory is listed again: all before the last one was linked by then.

    Args:
        disk: Disk of the archive.
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
        LogFailedError: It could not be written; the state is the old or the new one.
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
    """Return the text of an error about a range of missing segments."""
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


class Archive:
    """The archive of a log: links segments, keeps the state, and drops the oldest beyond a bound.

    One thread at a time calls it.

    Args:
        disk: Where log and archive are.
        log_directory: Directory of the log.
        directory: Directory of the archive; it exists, and the caller holds its lock.
        bytes_max: Bytes of the files above which the oldest go; 0: any.

    Raises:
        LogCorruptError: The state cannot be understood.
        LogFailedError: It cannot be read.
    """

    def __init__(self, disk: Disk, log_directory: str, directory: str, bytes_max: int = 0) -> None:
        self._disk = disk
        self._log_directory = log_directory
        self.directory = directory
        self._bytes_max = bytes_max
        state = read_state(disk, directory)
        self.next = state.next if state else 0
        """Each segment below was linked, or is in a gap; compaction may touch it."""
        self.gaps: tuple[Gap, ...] = state.gaps if state else ()
        """Gaps that are known, in the order of finding them."""
        self._last = state.last if state else None
        self._durable = state
        self._incomplete: frozenset[int] = frozenset()
        self.segments = 0
        """Files, when they were last counted."""
        self.bytes = 0
        """Bytes of these."""
        self.dropped = 0
        """Segments dropped because of the bound, in this process."""
        self.missed = 0
        """Segments that were never linked, in this process."""
        self.failures = 0
        """Attempts that failed, in this process."""

    # --- start ------------------------------------------------------------------------------------

    def resume(
        self,
        sealed: Iterable[SegmentInfo],
        sealed_as: Mapping[int, tuple[int, int]],
        next_number: int,
    ) -> str:
        """Find out which segments of a log wait for a link.

        Args:
            sealed: Sealed segments of the log, ascending.
            sealed_as: Segment number to size and CRC-32C when it was sealed, where that is known.
            next_number: The segment that the next append goes to.

        Returns:
            A warning: the log is not the one that was archived last; empty: it is.

        Raises:
            LogFailedError: It is not, and the new state could not be written.
        """
        present = {info.number: info for info in sealed}
        self._incomplete = frozenset(
            number
            for number, info in present.items()
            if sealed_as.get(number) != (info.bytes, info.crc32c)
        )
        first = min(present, default=next_number)
        if not self.next:
            self.next = first
            return ""
        last, warning = self._last, ""
        if self.next > next_number:
            # a log that was restored: else a segment that it begins would count as archived
            first = next_number
            warning = f"the log ends at segment {first - 1}, the archive at {self.next - 1}"
        elif last and sealed_as.get(last.number, last.seal) != last.seal:
            # it grew while the daemon had no archive, or this is another log
            warning = f"segment {last.number} was archived with another checksum"
        if warning:
            self._keep(first, None, list(self.gaps))
        return warning

    def waiting(self, sealed: Iterable[SegmentInfo]) -> list[SegmentInfo]:
        """Return the segments that were neither linked nor skipped, ascending. O(segments)."""
        return [info for info in sealed if info.number >= self.next]

    # --- work, outside of the event loop ----------------------------------------------------------

    def take(self, infos: list[SegmentInfo]) -> None:
        """Link segments, durably, and note those of which only a part is there.

        Args:
            infos: All that wait, ascending.

        Raises:
            LogFailedError: Something could not be written; what is not done is done the next time.
        """
        state, gaps, last = self.next, list(self.gaps), self._last
        missed = 0
        for info in infos:
            if info.number > state:
                gaps.append(Gap.of_absent(state, info.number - 1))
                missed += info.number - state
            if info.number in self._incomplete:
                gaps.append(Gap.of_segment(info, "compacted"))
                missed += 1
            else:
                last = self._link(info)
            state = info.number + 1
        self._disk.sync_directory(self.directory)
        self._keep(state, last, gaps)
        self.missed += missed

    def skip(self, infos: list[SegmentInfo]) -> None:
        """Skip the segments that wait first: the system refuses their links.

        The gap counts at once, and is durable with the next state that can be written. A start
        before that finds it in the log: these segments are not whole any more, or not there.

        Args:
            infos: These, ascending, at least one.
        """
        self.gaps = join_gaps([*self.gaps, *(Gap.of_segment(info, "not-linked") for info in infos)])
        self.next = infos[-1].number + 1
        self.missed += len(infos)
        with suppress(LogFailedError):
            self._keep(self.next, self._last, list(self.gaps))

    def enforce_bound(self) -> list[Gap]:
        """Drop the oldest files beyond the bound, but never the newest one.

        A segment is larger than ``cmdlog_seg_size``, by its last record: a bound of about that
        size would keep none for the reader.

        Returns:
            The gaps that this leaves.

        Raises:
            LogFailedError: Something could not be read or removed.
        """
        files, sizes = self.count()
        total, count = self.bytes, 0
        while 0 < self._bytes_max < total and count < len(files) - 1:
            total -= sizes[count]
            count += 1
        dropped = [
            self._dropped(file, size, following)
            for file, size, following in zip(files[:count], sizes, [*files[1:], None], strict=False)
        ]
        if dropped:
            known = [gap for gap in dropped if not any(old.covers(gap) for old in self.gaps)]
            self._keep(self.next, self._last, [*self.gaps, *known])
            for file in files[:count]:
                self._unlink(file.name)
            self._disk.sync_directory(self.directory)
            self.dropped += len(known)
        self.segments, self.bytes = len(files) - count, total
        return list(join_gaps(dropped))

    def count(self) -> tuple[list[ArchivedSegment], list[int]]:
        """Return the files, in the order of the log, and their sizes.

        Raises:
            LogFailedError: Something could not be read.
        """
        files = list_archived(self._disk, self.directory)
        sizes = [self._size(file) for file in files]
        self.segments, self.bytes = len(files), sum(sizes)
        return files, sizes

    # --- inside -----------------------------------------------------------------------------------

    def _link(self, info: SegmentInfo) -> Last:
        file = ArchivedSegment(info.number, info.crc32c)
        # one from before a crash may be a link to a file that the start has replaced by a copy
        self._unlink(file.name)
        self._disk.link(f"{self._log_directory}/{info.name}", f"{self.directory}/{file.name}")
        return Last(info.number, info.bytes, f"{info.crc32c:08x}")

    def _unlink(self, name: str) -> None:
        """Remove a file, if it is there: a reader may remove it at any time."""
        path = f"{self.directory}/{name}"
        try:
            if self._disk.exists(path):
                self._disk.unlink(path)
        except LogFailedError:
            if self._disk.exists(path):
                raise

    def _keep(self, following: int, last: Last | None, gaps: list[Gap]) -> None:
        """Make a new state durable; it counts from then on."""
        state = ArchiveState(FORMAT, VERSION, following, last, join_gaps(gaps))
        if state != self._durable:
            write_state(self._disk, self.directory, state)
            self._durable = state
        self.next, self._last, self.gaps = following, last, state.gaps

    def _size(self, file: ArchivedSegment) -> int:
        path = f"{self.directory}/{file.name}"
        try:
            return self._disk.size(path)
        except LogFailedError:
            if self._disk.exists(path):
                raise
            return 0

    def _dropped(self, file: ArchivedSegment, size: int, following: ArchivedSegment | None) -> Gap:
        first_us = self._begins_us(file)
        last_us = None if following is None else self._begins_us(following)
        return Gap(file.number, file.number, 1, size, first_us, last_us, "dropped")

    def _begins_us(self, file: ArchivedSegment) -> int | None:
        """Return the time of the first record of a file; None: it is not known."""
        path = f"{self.directory}/{file.name}"
        with suppress(LogFailedError, LogCorruptError):
            time = self._disk.read_slice(path, len(SEGMENT_HEADER), TIME_BYTES)
            return decode_time(time) if len(time) == TIME_BYTES else None
        return None
