"""Archive of sealed segments: hard links of whole segments, made before compaction touches them.

The directory has the links and the state (``archive_format``). A reader takes a file, makes its own
copy of the contents durable, and unlinks it. It knows a file that comes again by its name.

Compaction may touch a segment only when its number is below ``next``, and ``next`` moves in this
order: link, sync of the directory, new state beside the old one, sync, rename, sync of the
directory. So after a crash

- before the state is durable, the segment is in the log as it was sealed. It is linked at the next
  start, perhaps for the second time, under the same name;
- after that, the link was durable before, and nobody looks at the segment again. It may be without
  a link by then because a reader has taken it, and compaction may have rewritten it.

A segment that compaction rewrote, in a time without ``--archive-dir``, is never taken for a whole
one: the first record of the segment behind it has its size and CRC-32C when it was sealed. The last
segment has none behind it. It is whole, for its rewriting needs a durable record in a later one.
No segment grows once it was linked, because a daemon with an archive begins a new one at its start.

A gap is durable before a link of it is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from fastjournal.cmdlog.archive_format import (
    FORMAT,
    VERSION,
    ArchivedSegment,
    ArchiveState,
    Gap,
    Last,
    join_gaps,
    list_archived,
    read_state,
    write_state,
)
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, TIME_BYTES
from fastjournal.cmdlog.format.records import decode_time
from fastjournal.cmdlog.format.segments import SegmentInfo
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError


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
            # it grew while nobody archived, or this is another log
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
