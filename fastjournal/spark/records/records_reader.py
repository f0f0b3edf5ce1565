"""Readers of the view ``records``: as a table, and as a stream.

*Table.* A task reads a segment, or a slice of a large one.

*Stream* of the records of a log, an archive, or the newest snapshot of a directory of snapshots. An
offset is ``{"segment": N, "offset": BYTES, "crc32c": NUMBER, "sealed": BOOL}``: everything before
that byte of that segment was read. It lies at the end of a whole group of records, so that no batch
has a part of a lease. ``crc32c`` is the checksum of the segment up to there. Each batch compares
it, because compaction may rewrite a segment of a log in use, whose records would then be read
twice, or not at all. ``sealed``: this is the end of the segment, and its checksum is 0 if it is
unknown. A segment that grew while the daemon had no archive is archived again; the stream takes the
rest of it.

An offset at the end of a segment that is in no archive has ``head``, the checksum of its first
bytes: another segment of its size is of a log that was restored (``stream_segments``).

An offset in an archive has the number of the first segment of the stream, ``first``. With
``cleanSource=delete`` it has ``segments``, the names of the files that its commit unlinks.

``maxBytesPerTrigger`` bounds the bytes of a batch (admission control); one group is the least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import google_crc32c
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from fastjournal.cmdlog.archive import ArchivedSegment, gaps_between, missing_text
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.decoding.rows import read_bytes
from fastjournal.spark.decoding.vectorised.frames import GroupSpan, SegmentSlice, slices_of
from fastjournal.spark.decoding.vectorised.groups import find_group_end
from fastjournal.spark.decoding.vectorised.vectorised_reader import read_batches
from fastjournal.spark.query.paths import newest_snapshot, open_log
from fastjournal.spark.query.requested_schema import PartReader, RequestedColumn, cast_batch
from fastjournal.spark.query.source_options import Options, RecordRange
from fastjournal.spark.records.stream_segments import (
    RESTORED,
    Sealed,
    check_end,
    check_link,
    check_read,
    clean_archive,
    head_of,
    read_head,
)
from fastjournal.spark.storage.files import LogDirectory, SegmentFile, resolve


class RecordsPart(NamedTuple):
    """A segment of a directory, or a slice of it."""

    directory: str
    segment: SegmentFile
    slice: SegmentSlice


class RecordsReader(PartReader):
    """Reads the records of the segments of directories; see ``PartReader``."""

    def parts(self, directory: str) -> Iterator[RecordsPart]:
        """Yield the parts of the segments that may have records of the range."""
        log, wanted = open_log(directory), RecordRange.of(self._options)
        listed = {one.number: one for one in log.manifest.segments} if log.manifest else {}
        for segment in log.segments:
            if wanted.has_segment(segment, listed.get(segment.number)):
                for part in slices_of(segment.bytes, self._options.bytes_per_partition):
                    yield RecordsPart(directory, segment, part)

    def batches(self, part: RecordsPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one segment, or of a slice."""
        files, _ = resolve(part.directory)
        wanted = RecordRange.of(self._options)
        names = list(dict.fromkeys((*self._names, *wanted.columns)))
        batches = read_batches(
            files, part.segment, names, permissive=self._options.permissive, part=part.slice
        )
        for batch in batches:
            found = wanted.rows(batch)
            if len(found):
                yield found


_HINT = "stream from the archive of the log, whose segments never change (--archive-dir)"


Offset: TypeAlias = dict[str, Any]
"""Position in a log, as Spark keeps it in JSON; see the module."""


class SegmentSpan(NamedTuple):
    """Part of a segment that one task of a stream reads."""

    segment: SegmentFile
    span: GroupSpan


class RecordsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream of records.

    Args:
        directory: Log, archive or directory of snapshots.
        columns: Columns to build, in this order.
        options: Options of the stream.

    Raises:
        BadRequestError: The directory is no archive, and is to be cleaned.
    """

    def __init__(
        self, directory: str, columns: Sequence[RequestedColumn], options: Options
    ) -> None:
        self._directory = directory
        self._columns = columns
        self._names = [column.source for column in columns]
        self._permissive = options.permissive
        self._bytes_max = options.bytes_per_trigger
        self._target: Offset | None = None
        """Where a query with the trigger AvailableNow ends."""
        self._cleans = options.cleans
        if self._cleans and self._log().segments and not self._log().is_archive:
            raise BadRequestError(
                f"{directory} is no archive, and cleanSource=delete cleans one",
                hint="leave the option out: the daemon cleans its log",
            )

    def initialOffset(self) -> Offset:  # noqa: N802 - PySpark's name
        """Return the position before the first record."""
        return Offset(segment=0, offset=0, crc32c=0, sealed=True)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """Return the bound of a batch."""
        return ReadAllAvailable() if self._bytes_max is None else ReadMaxBytes(self._bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Take the end of what is there now as the end of the query."""
        self._target = self._end(*self._listed(), self.initialOffset(), None)

    def latestOffset(  # noqa: N802 - PySpark's name
        self, start: Offset, limit: ReadLimit
    ) -> Offset:
        """Return the end of the next batch, at the end of a whole group."""
        log, over = self._listed()
        self._check_log(log, start)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        end = self._end(log, over, start, bytes_max)
        if self._target is not None and _place(end) > _place(self._target):
            end = max(start, self._target, key=_place)
        return end if _place(end) == _place(start) else self._with_segments(log, start, end)

    def _check_log(self, log: LogDirectory, start: Offset) -> None:
        """Check that the log is the one of which the stream has read a part.

        Raises:
            LogCorruptError: It was restored, and has other segments now.
        """
        read = _read_of(start)
        check_end(log, read, lambda: start.get("segments", ()))
        for one, size in log.archived.items():
            # a longer version is compared when it is read, a shorter one with the next segment
            if start["sealed"] and one.number == read.number and size == read.bytes:
                if one.crc32c == read.crc32c:
                    continue
                raise LogCorruptError(
                    f"the stream has read another segment {one.number}",
                    path=f"{log.path}/{one.name}",
                    hint=RESTORED,
                )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return one partition for each segment between two offsets.

        Raises:
            LogCorruptError: A segment that was not read to its end, or one of an archive, is
                missing.
        """
        for check in self._checks():
            check(self._log(), start, end)
        return self.spans(start, end)

    def faults(self, start: Offset, end: Offset) -> list[str]:
        """Return texts of what is missing between two offsets: mode ``failfast`` ends there."""
        found = []
        every = (self._check_identity, self._check_there, self._check_numbers, self._check_links)
        for check in every:
            try:
                check(self._log(), start, end)
            except LogCorruptError as error:
                found.append(str(error))
        return found

    def _checks(self) -> list[Callable[[LogDirectory, Offset, Offset], None]]:
        strict = () if self._permissive else (self._check_numbers, self._check_links)
        return [self._check_identity, self._check_there, *strict]

    def _check_there(self, log: LogDirectory, start: Offset, end: Offset) -> None:
        """Check that the segments are there in which two offsets are."""
        numbers = [segment.number for segment in log.segments]
        for boundary, needed in ((start, not start["sealed"]), (end, _place(start) != _place(end))):
            if needed and boundary["segment"] not in numbers:
                raise LogCorruptError(
                    f"segment {boundary['segment']}, of which a stream has read a part, is gone",
                    path=log.path,
                    hint=_HINT,
                )

    def _check_numbers(self, log: LogDirectory, start: Offset, end: Offset) -> None:
        """Check that all segments of an archive between two offsets are there."""
        if log.is_archive and _place(start) != _place(end):
            numbers = [segment.number for segment in log.segments]
            first = start["segment"] + 1
            if not start["segment"]:
                first = end.get("first") or min(numbers, default=end["segment"])
            _check_numbers(log.path, first, end["segment"], numbers)

    def spans(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the parts of segments between two offsets.

        Raises:
            LogCorruptError: The last one has another size than it had.
        """
        if _place(start) == _place(end):
            return []
        log = self._log()
        found: list[InputPartition] = []
        for segment in log.segments:
            span = GroupSpan(0, segment.bytes)
            if segment.number == start["segment"]:
                span = GroupSpan(start["offset"], segment.bytes, start["crc32c"])
            if segment.number == end["segment"]:
                span = span._replace(stop=end["offset"])
                if not end["sealed"] or (log.is_archive and segment.bytes > end["offset"]):
                    span = span._replace(stop_crc32c=end["crc32c"])
                elif segment.bytes != end["offset"]:
                    raise LogCorruptError(
                        f"the segment has {segment.bytes} bytes; it had {end['offset']}",
                        path=segment.path,
                        hint=_HINT,
                    )
            if start["segment"] <= segment.number <= end["segment"] and span.first < span.stop:
                found.append(InputPartition(SegmentSpan(segment, span)))
        return found

    def _check_links(self, log: LogDirectory, start: Offset, end: Offset) -> None:
        """Check that each segment of an archive follows the one before it.

        Raises:
            LogCorruptError: One does not: the log was restored.
        """
        read = _read_of(start)
        for segment in log.segments if log.is_archive else ():
            if segment.number == read.number + 1 <= end["segment"] and start["sealed"]:
                check_link(read, read_head(log.files, segment), segment)
            if read.number <= segment.number <= end["segment"]:
                # also with the bytes after the part that was read
                assert segment.crc32c is not None
                read = Sealed(segment.number, segment.bytes, segment.crc32c)

    def _check_identity(self, log: LogDirectory, start: Offset, _end: Offset) -> None:
        """Check that a batch goes on with the log of which the stream has read a part.

        Raises:
            LogCorruptError: It does not.
        """
        read = _read_of(start)
        for segment in log.segments:
            if segment.number == read.number and segment.bytes == read.bytes:
                head = start.get("head")
                if not log.is_archive and head not in (None, head_of(log.files, segment)):
                    raise LogCorruptError(
                        f"the stream has read another segment {segment.number}",
                        path=segment.path,
                        hint=RESTORED,
                    )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part of a segment."""
        segment, span = partition.value
        files, _ = resolve(self._directory)
        batches = read_batches(
            files,
            segment,
            self._names,
            permissive=self._permissive,
            span=span,
        )
        for batch in batches:
            yield cast_batch(batch, self._columns)

    def commit(self, end: Offset) -> None:
        """Unlink the archived segments of a batch that is done for ever, where asked to.

        Raises:
            LogError: A segment could not be read or removed. The query ends; the first commit
                after its restart tries again.
        """
        names = end.get("segments", ()) if self._cleans else ()
        if names:
            done = check_read(self._directory, names, checksums=self._permissive)
            clean_archive(self._directory, done)

    def _log(self) -> LogDirectory:
        return open_log(newest_snapshot(self._directory) or self._directory)

    def _with_segments(self, log: LogDirectory, start: Offset, end: Offset) -> Offset:
        """Return the end of a batch with what the offset of an archive has besides."""
        if not log.is_archive:
            for segment in log.segments:
                if segment.number == end["segment"] and end["sealed"]:
                    return end | {"head": head_of(log.files, segment)}
            return end
        first = start.get("first") if start["segment"] else log.segments[0].number
        found = end | ({} if first is None else {"first": first})
        if self._cleans:
            # a commit that failed, or did not come, is made up for by the next one
            names = {one.name for one in log.archived} & set(start.get("segments", ()))
            names.update(
                ArchivedSegment(one.number, one.crc32c).name
                for one in log.segments
                if _is_behind(one, start) and one.number < end["segment"]
                if one.crc32c is not None
            )
            if end["sealed"]:
                names.add(ArchivedSegment(end["segment"], end["crc32c"]).name)
            found["segments"] = sorted(names)
        return found

    def _listed(self) -> tuple[LogDirectory, set[int]]:
        """Return the log, and the numbers of the segments that are over."""
        # a segment is over when a listing that began later finds a later one
        over = {segment.number for segment in self._log().segments[:-1]}
        return self._log(), over

    def _end(
        self, log: LogDirectory, over: set[int], start: Offset, bytes_max: int | None
    ) -> Offset:
        """Return the end of the last whole group, at most ``bytes_max`` after an offset."""
        end = start
        left = bytes_max
        for segment in log.segments:
            first = start["offset"] if segment.number == start["segment"] else 0
            grown = log.is_archive and segment.bytes > first
            if segment.number < start["segment"] or (first and start["sealed"] and not grown):
                continue
            is_over = segment.crc32c is not None or segment.number in over
            if segment.bytes == first:
                if is_over:
                    continue
                # nothing is new; the next segments wait until it is known to be over
                return end
            if is_over and (left is None or segment.bytes - first <= left):
                end = Offset(
                    segment=segment.number,
                    offset=segment.bytes,
                    crc32c=segment.crc32c or 0,
                    sealed=True,
                )
                left = None if left is None else left - (segment.bytes - first)
                continue
            return self._end_in(log, segment, end, start, left, is_over=is_over)
        return end

    def _end_in(
        self,
        log: LogDirectory,
        segment: SegmentFile,
        before: Offset,
        start: Offset,
        left: int | None,
        *,
        is_over: bool,
    ) -> Offset:
        """Return the end of the last whole group of a segment that is read to its end, or not."""
        data = read_bytes(log.files, segment)
        first = 0
        if segment.number == start["segment"]:
            first = start["offset"]
            GroupSpan(first, len(data), start["crc32c"]).check(data, segment.path)
        limit = len(data) if left is None else first + left
        found = find_group_end(data, segment, first, limit, forced=before is start)
        if found <= first and is_over and before is start:
            # after the last group is damage, which has no end of its own
            found = len(data)
        if found <= first:
            return before
        sealed = is_over and found == len(data)
        crc32c = google_crc32c.value(data[:found])
        return Offset(segment=segment.number, offset=found, crc32c=crc32c, sealed=sealed)


def _check_numbers(path: str, first: int, last: int, numbers: list[int]) -> None:
    """Check that all segments from one number to another are there; these may be far apart."""
    present = [(number, number) for number in (first - 1, *numbers) if first - 1 <= number <= last]
    missing = [(begin, end) for begin, end, *_ in gaps_between(present, [], last)]
    if missing:
        more = sum(end - begin + 1 for begin, end in missing[1:])
        raise LogCorruptError(
            missing_text(*missing[0]) + (f", nor {more} more behind" if more else ""),
            path=path,
            hint="option mode=permissive reads on behind them; ARCHIVE.json may tell the reason",
        )


def _is_behind(segment: SegmentFile, start: Offset) -> bool:
    """Return whether a batch reads a segment, its rest, or comes to its end at least."""
    if segment.number != start["segment"]:
        return bool(segment.number > start["segment"])
    return bool(segment.bytes > start["offset"] or segment.crc32c == start["crc32c"])


def _read_of(offset: Offset) -> Sealed:
    """Return the segment in which an offset is, as far as it was read."""
    return Sealed(offset["segment"], offset["offset"], offset["crc32c"])


def _place(offset: Offset) -> tuple[int, int]:
    return offset["segment"], offset["offset"]
