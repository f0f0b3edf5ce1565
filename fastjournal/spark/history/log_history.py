"""History of a log, a snapshot or an archive: its events, and the span that they are complete for.

Compaction rewrites segments of a log and removes records. A segment is whole if its size and
CRC-32C are those in the first record of the segment behind it; the last one always is. The history
of a log is that of its last whole segments, side by side.

All files of an archive are whole, and their numbers ascend by one. So a gap is known, and is an
error or a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
import msgspec
import pyarrow.fs

from fastjournal.cmdlog.archive import STATE_NAME, decode_state, gaps_between
from fastjournal.errors import LogCorruptError
from fastjournal.spark.decoding.rows import read_bytes
from fastjournal.spark.history.coverage import adjoining_gaps, gap_text
from fastjournal.spark.history.event_rows import EventRow
from fastjournal.spark.history.extractor import extract_events, outer_times
from fastjournal.spark.query.paths import open_whole
from fastjournal.spark.records.stream_segments import NOTHING, Sealed, check_link, sealed_before
from fastjournal.spark.storage.files import LOG_IN_USE, SegmentFile, read_file, resolve, translating

GAPS_SHOWN = 3
"""Gaps of an archive that an error names."""


class EventSpan(NamedTuple):
    """Span of segments, and of time, that the events of a directory are complete for."""

    first: int
    """Number of the first segment."""
    last: int
    first_us: int | None
    """Earliest time of a record, in microseconds since the Unix epoch; None: there is none."""
    last_us: int | None
    """Latest time of a record."""
    gaps: list[tuple[int, int, str]]
    """Segments that are missing between or beside them: first, last, reason."""


class LogHistory:
    """History of a log, a snapshot or an archive.

    Args:
        directory: Path or URI.

    Raises:
        BadRequestError: It is missing, or something else, which is named.
        LogFailedError: It cannot be read.
    """

    def __init__(self, directory: str) -> None:
        self._files, self._path = resolve(directory)
        # before the listing, in which all segments are then that this state knows
        self._state_before = self._read_state()
        log = open_whole(directory)
        self.is_archive = log.is_archive
        self.segments = log.segments
        """All segments, ascending."""
        self._told = {one.number for one in self.segments if one.crc32c is not None}
        """Those whose checksum a manifest or a name says."""

    def gaps(self) -> list[tuple[int, int, str]]:
        """Return the segments that are missing in an archive: first, last, reason.

        Gaps that the state of the archive names count where they adjoin the segments. Segments
        that were taken and unlinked are none, nor are those from before there was an archive.

        Raises:
            LogCorruptError: The state of the archive cannot be understood.
            LogFailedError: It cannot be read.
        """
        if not self.is_archive:
            return []
        # behind the listing: the daemon names a segment as dropped before it removes the file
        path = f"{self._path}/{STATE_NAME}"
        before, behind = (
            None if data is None else decode_state(data, path)
            for data in (self._state_before, self._read_state())
        )
        known = [] if behind is None else list(behind.gaps)
        numbers = [segment.number for segment in self.segments]
        known = adjoining_gaps(known, numbers[0], numbers[-1])
        linked = 0 if before is None else before.next - 1
        last = max([numbers[-1], linked, *(gap.last for gap in known)])
        found = gaps_between([(number, number) for number in numbers], known, last)
        return [(first, last, reason) for first, last, _, _, reason in found]

    def _read_state(self) -> bytes | None:
        """Return the file with the state of an archive; None: there is none."""
        path = f"{self._path}/{STATE_NAME}"
        with translating("read", path):
            if self._files.get_file_info(path).type != pyarrow.fs.FileType.File:
                return None
        return read_file(self._files, path)

    def check_gaps(self) -> None:
        """Check that no segment of an archive is missing.

        Raises:
            LogCorruptError: One is, or the state of the archive cannot be understood.
            LogFailedError: It cannot be read.
        """
        if found := self.gaps():
            texts = ", ".join(gap_text(*gap) for gap in found[:GAPS_SHOWN])
            more = len(found) - GAPS_SHOWN
            raise LogCorruptError(
                f"{texts} and {more} more" if more > 0 else texts,
                path=self._path,
                hint="option mode=permissive reads on behind them, with a row for each",
            )

    def whole(self, *, permissive: bool = False) -> list[SegmentFile]:
        """Return the last whole segments, side by side, with the checksums that are known.

        Args:
            permissive: Those behind a damaged segment, which is an error otherwise.

        Raises:
            LogCorruptError: A segment is damaged.
            LogFailedError: One cannot be read.
        """
        found = list[SegmentFile]()
        told: Sealed | None = None
        for segment in reversed(self.segments):
            data = read_bytes(self._files, segment)
            crc32c = google_crc32c.value(data)
            if segment.crc32c not in (None, crc32c):
                if permissive:
                    break
                raise _other_checksum(segment)
            if not self.is_archive and told not in (None, (segment.number, len(data), crc32c)):
                break
            # nothing tells the checksum of a log's last segment: its records have theirs
            checked = self.is_archive or told is not None or segment.crc32c is not None
            told_crc32c = crc32c if checked else None
            found.append(msgspec.structs.replace(segment, bytes=len(data), crc32c=told_crc32c))
            told = sealed_before(data)
        return found[::-1]

    def events(self, lost: list[str] | None = None) -> Iterator[EventRow]:
        """Yield the events of the whole segments.

        Args:
            lost: Takes texts of gaps and damaged segments, behind which it reads on; None: these
                are errors.

        Raises:
            LogCorruptError: Segments are missing or damaged, or one follows another one than that
                before it.
            LogFailedError: One cannot be read.
        """
        if lost is None:
            self.check_gaps()
        else:
            lost += [f"{self._path}: {gap_text(*gap)}" for gap in self.gaps()]
        before = NOTHING
        segments = self.segments if self.is_archive else self.whole(permissive=lost is not None)
        for segment in segments:
            try:
                data = self._read(segment)
                if self.is_archive:
                    before = self._linked(before, data, segment, lost)
                yield from extract_events(data, segment)
            except LogCorruptError as error:
                if lost is None:
                    raise
                lost.append(str(error))
                before = NOTHING

    def _linked(
        self, before: Sealed, data: bytes, segment: SegmentFile, lost: list[str] | None
    ) -> Sealed:
        """Check that a segment follows the one before it; return it for the next one."""
        try:
            check_link(before, data, segment)
        except LogCorruptError as error:
            if lost is None:
                raise
            lost.append(str(error))
        assert segment.crc32c is not None
        return Sealed(segment.number, len(data), segment.crc32c)

    def span(self) -> EventSpan | None:
        """Return the segments and instants of the whole segments; None: there is no record."""
        whole = self.whole()
        if not whole:
            return None
        numbers = [segment.number for segment in whole]
        # the clock may have been set back in any of them
        times = [outer_times(self._read(one), one) for one in whole]
        return EventSpan(
            numbers[0],
            numbers[-1],
            min((first for first, _ in times if first is not None), default=None),
            max((last for _, last in times if last is not None), default=None),
            self.gaps(),
        )

    def _read(self, segment: SegmentFile) -> bytes:
        """Return a segment as it was read before, or as its manifest or its name says."""
        data = read_bytes(self._files, segment)
        if segment.crc32c not in (None, google_crc32c.value(data)):
            if self.is_archive or segment.number in self._told:
                raise _other_checksum(segment)
            raise LogCorruptError(
                "the segment has changed while it was read", path=segment.path, hint=LOG_IN_USE
            )
        return data


def _other_checksum(segment: SegmentFile) -> LogCorruptError:
    return LogCorruptError("the segment has another checksum", path=segment.path)
