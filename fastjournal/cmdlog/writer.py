"""Log writer: append, flushed, durable and commit position (LSN) of a command log.

It is the one appender: buffer, write, sync, roll. Group commit drives it: ``append`` for every
request (memory only), then ``write`` and ``sync`` once for all that wait. Three counters of bytes
are the append, the flushed and the durable position::

    appended >= written >= durable

``committed`` is ``durable`` or ``written``, by the sync policy. ``settled`` is the commit position:
``committed``, and with a remote log not beyond what that has (``set_limit``). A request is safe
once ``settled`` has reached the value of ``appended`` right after its append.

A new segment begins only with the first append after a write. So a segment exceeds its size by at
most one batch, one buffer never spans two segments, and the position of every record is known when
it is appended. The old segment is synced, under every policy, before the new one is created: only
the last segment can ever be torn.

The first failure is final: the failed bytes do not count as durable, and every later call raises
the error again. After a failed fdatasync the kernel may have dropped the pages, so a second try
that succeeds proves nothing.

``ActiveSegment`` has the counters of the segment to append to. The writer counts its appends in the
attributes itself, so an append makes no call there. A segment is created when the writer begins
one, and described when it is sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum

import google_crc32c

from fastjournal.cmdlog.format.layout import (
    OFFSET_BITS,
    SEGMENT_HEADER,
    SEGMENT_NUMBER_MAX,
    TIME_BYTES,
    SegmentInfo,
    pack_position,
    segment_name,
)
from fastjournal.cmdlog.format.records import decode_bounds, encode_time
from fastjournal.disk import Disk, DiskFile
from fastjournal.errors import LogFailedError


class ActiveSegment:
    """A segment while it is appended to."""

    __slots__ = ("bytes", "crc", "first_us", "high", "last_us", "low", "number", "records")

    def __init__(self, number: int) -> None:
        self.number = number
        self.bytes = 0
        """Bytes appended, those in the writer's buffer too."""
        self.crc = 0
        """CRC-32C of the bytes that are written."""
        self.first_us: int | None = None
        """Time of the first record, in microseconds; None without records."""
        self.last_us: int | None = None
        """Time of the last record."""
        self.records = 0
        self.low: bytes | None = None
        """Bytes of the earliest time of a record; None: not known."""
        self.high: bytes | None = None
        """Those of the latest one."""

    def info(self) -> SegmentInfo:
        """Return the description of the segment, as it is kept of a sealed one."""
        min_us, max_us = None, None
        if self.low is not None and self.high is not None:
            min_us, max_us = decode_bounds(self.low, self.high)
        return SegmentInfo(
            self.number,
            self.bytes,
            self.crc,
            self.first_us,
            self.last_us,
            self.records,
            min_us,
            max_us,
        )


def resume_segment(disk: Disk, path: str, active: SegmentInfo) -> ActiveSegment:
    """Return the segment of an earlier process, to append to it.

    Args:
        disk: Where the segment is.
        path: Path of its file.
        active: Its description, by recovery.

    Raises:
        LogFailedError: The file cannot be read, or has another length than described.
    """
    length = disk.size(path)
    if length != active.bytes:
        raise LogFailedError(
            f"the active segment has {length} bytes, not {active.bytes}",
            path=path,
            hint="something else wrote to it; start again",
        )
    segment = ActiveSegment(active.number)
    segment.bytes, segment.crc, segment.records = active.bytes, active.crc32c, active.records
    segment.first_us, segment.last_us = active.first_us, active.last_us
    if active.min_us is not None and active.max_us is not None:
        segment.low, segment.high = encode_time(active.min_us), encode_time(active.max_us)
    return segment


SegmentStart = Callable[[SegmentInfo | None, int], bytes]
"""Returns the first record of a new segment, from what is known of the one before it, all of which
is written (None: there is none), and the time in microseconds."""

_extend_crc = google_crc32c.extend


class SyncPolicy(StrEnum):
    """Sync policy: when written bytes are synced."""

    ALWAYS = "always"
    """Before any client gets OK."""
    INTERVAL = "interval"
    """By the daemon's timer; a power loss costs the appends since the last sync."""
    OS = "os"
    """When the system pleases; a power loss costs what it had not written back."""


class LogWriter:
    """Appends records to the segments of one directory.

    One thread calls it. Only the call that ``syncing`` gives may run in another one: meanwhile this
    one may ``append``, and ``write`` unless that seals a segment (``seals_next``).

    Args:
        disk: Where the log is.
        directory: Directory of the log; it exists, and the caller holds its append lock.
        segment_bytes_max: Size from which on the active segment is sealed.
        sync: Policy of ``flush`` and ``settled``.
        active: The segment to go on with, as long as its file is (0 bytes: not even a header);
            None: the first append starts a new one.
        sealed: All others, ascending.
        segment_start: Builds the first record of each new segment.

    Raises:
        LogFailedError: The last segment cannot be opened and synced, or the active one has another
            length than given.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        segment_bytes_max: int,
        sync: SyncPolicy,
        active: SegmentInfo | None,
        sealed: Iterable[SegmentInfo],
        segment_start: SegmentStart,
    ) -> None:
        self.appended = 0
        """Bytes appended in this writer's life, with headers and first records."""
        self.written = 0
        """Bytes of them that the system has taken."""
        self.durable = 0
        """Bytes of them that survive a power loss."""
        self.committed = 0
        """Bytes of them that are as safe in this directory as the policy wants them."""
        self.settled = 0
        """How many bytes are as safe as they have to be before a client gets OK."""
        self.on_write: Callable[[int, int, bytes], object] | None = None
        """Called with the bytes of each write, their segment, and their offset in it."""
        self.durable_at = 0
        """The position before which everything survives a power loss."""
        self.written_at = 0
        """The position behind the last write of this writer; 0: there was none."""
        self.sealed = list(sealed)
        """All segments before the active one, ascending; who removes a segment takes it out."""
        self.previous: dict[int, int] = {}
        """Number of each segment begun by this writer, to that of the one before it."""
        self.segment_bytes_max = segment_bytes_max
        """Size from which on the active segment is sealed."""
        self._disk = disk
        self._directory = directory
        self._syncs_always = sync is SyncPolicy.ALWAYS
        self._limit: int | None = None
        self._segment_start = segment_start
        self._failure: LogFailedError | None = None
        self._closed = False
        self._last_number = self.sealed[-1].number if self.sealed else 0
        # appends go to _current, writes to _open: they differ until a new segment is written
        self._current: ActiveSegment | None = None
        self._open: ActiveSegment | None = None
        self._file: DiskFile | None = None
        self._directory_dirty = False
        self._syncing = False
        self._buffer: list[bytes] = []
        # bytes of a killed process may not be durable, and are about to be built upon
        if active is not None:
            self._resume(active)
        elif self.sealed:
            file = disk.open_append(f"{directory}/{self.sealed[-1].name}")
            self._sync_file(file, directory=True)
            self.durable_at = pack_position(self._last_number + 1, 0)
            file.close()

    @property
    def dirty(self) -> bool:
        """Whether anything appended is not durable yet."""
        return self.appended > self.durable

    @property
    def seals_next(self) -> bool:
        """Whether the next write seals a segment, which syncs what is not durable of it."""
        return self._open is not None and self._current is not self._open

    @property
    def next_number(self) -> int:
        """Number of the segment of the next append, or of the one before it."""
        return self._last_number + (self._current is None)

    @property
    def failed(self) -> bool:
        """Whether a write or sync failed; it is also true once the writer is closed."""
        return self._failure is not None

    def _settle(self) -> None:
        # attributes, and no properties: they are read several times for each request
        self.committed = self.durable if self._syncs_always else self.written
        limit = self._limit
        self.settled = self.committed if limit is None else min(self.committed, limit)

    def set_limit(self, limit: int | None) -> None:
        """Set how many appended bytes may be settled at most; None: all, -1: not even none."""
        self._limit = limit
        self._settle()

    @property
    def active(self) -> SegmentInfo | None:
        """The segment that appends go to; its CRC covers what is written, the rest all of it.

        From the append that starts a segment to its write, the one before is not in ``sealed`` yet.
        """
        return None if self._current is None else self._current.info()

    @property
    def log_bytes(self) -> int:
        """Bytes of all segments, with what is appended only. O(number of segments)."""
        open_, current = self._open, self._current
        total = sum(info.bytes for info in self.sealed)
        # the next one may have begun, while this one is not sealed yet
        total += open_.bytes if open_ is not None and open_ is not current else 0
        return total + (current.bytes if current is not None else 0)

    def append(self, data: bytes, records: int, now_us: int) -> int:
        """Append records to the buffer; they go into one segment, and to disk in one write.

        Args:
            data: Whole records, which have one time.
            records: Number of records.
            now_us: Present instant, in microseconds since the Unix epoch: the time of the records,
                except of a tombstone that compaction writes again.

        Returns:
            The position of the first byte of ``data``.

        Raises:
            LogFailedError: The writer failed before, or is closed.
        """
        if self._failure is not None:
            raise self._failure
        segment = self._current
        if segment is None or (
            not self._buffer and (segment.bytes >= self.segment_bytes_max or not segment.records)
        ):
            segment = self._begin_segment(now_us)
        position = segment.number << OFFSET_BITS | segment.bytes
        self._take(segment, data, records, now_us)
        return position

    def write(self) -> None:
        """Hand everything buffered to the system, in one call.

        The first write of a new segment also syncs and closes the one before it.

        Raises:
            LogFailedError: It did not work, for ever.
        """
        if self._failure is not None:
            raise self._failure
        if not self._buffer:
            return
        # no context manager: one of a generator would cost a lone request 7,000 instructions
        try:
            segment, file = self._current, self._file
            assert segment is not None
            if file is None or segment is not self._open:
                self._seal()
                path = f"{self._directory}/{segment_name(segment.number)}"
                self._file = file = self._disk.create(path)
                self._open = segment
                self._directory_dirty = True
            data = b"".join(self._buffer)
            self._buffer.clear()
            file.write(data)
            segment.crc = _extend_crc(segment.crc, data)
            self.written += len(data)
            self._settle()
            self.written_at = segment.number << OFFSET_BITS | segment.bytes
            if self.on_write is not None:
                self.on_write(segment.number, segment.bytes - len(data), data)
        except BaseException as error:
            self._die(error)
            raise

    def sync(self) -> None:
        """Make everything written durable; a new segment's name too.

        Raises:
            LogFailedError: It did not work, for ever.
        """
        if self._failure is not None:
            raise self._failure
        file, written, written_at = self._file, self.written, self.written_at
        if file is None or self.durable == written:
            return
        try:
            self._sync_file(file, directory=self._directory_dirty)
            self._count_durable(written, written_at)
        except BaseException as error:
            self._die(error)
            raise

    @contextmanager
    def syncing(self) -> Iterator[Callable[[], None]]:
        """Give the call that makes everything written by now durable, to be made in the block.

        The call touches the files and nothing else, so another thread may make it. Bytes that are
        written meanwhile do not count as durable at the end of the block.

        Raises:
            LogFailedError: It did not work, or a write meanwhile did not, for ever.
        """
        if self._failure is not None:
            raise self._failure
        file, written, written_at = self._file, self.written, self.written_at
        directory = self._directory_dirty
        if file is None or self.durable == written:
            yield lambda: None
            return
        try:
            self._syncing = True
            yield lambda: self._sync_file(file, directory=directory)
            self._syncing = False
        except BaseException as error:
            self._die(error)
            raise
        if self._failure is not None:
            raise self._failure
        self._count_durable(written, written_at)

    def flush(self) -> None:
        """Write, and sync where the policy is to sync always.

        Raises:
            LogFailedError: It did not work, for ever.
        """
        self.write()
        if self._syncs_always:
            self.sync()

    def roll(self) -> None:
        """Write everything and seal the active segment, if it has any records.

        The next append starts a new one; until then ``active`` is None.

        Raises:
            LogFailedError: It did not work, for ever.
        """
        self.write()
        if self._open is None or self._open.records == 0:
            return
        try:
            self._seal()
        except BaseException as error:
            self._die(error)
            raise
        self._current = None

    def read(self, segment: int, offset: int, size: int) -> bytes:
        """Read bytes that are written; any thread may call this.

        Raises:
            LogFailedError: It did not work. The writer goes on.
        """
        return self._disk.read_slice(f"{self._directory}/{segment_name(segment)}", offset, size)

    def close(self) -> None:
        """Write and sync everything under any policy, and close; a second call does nothing.

        Raises:
            LogFailedError: It did not work, or the writer failed before; it is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.write()
            self.sync()
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None
            if self._failure is None:
                self._failure = LogFailedError("the log writer is closed", path=self._directory)

    # --- inside ---------------------------------------------------------------------------------

    def _resume(self, active: SegmentInfo) -> None:
        path = f"{self._directory}/{active.name}"
        self._last_number = active.number
        self._current = self._open = resume_segment(self._disk, path, active)
        self._file = self._disk.open_append(path)
        self._sync_file(self._file, directory=True)
        self.durable_at = pack_position(active.number, active.bytes)

    def _begin_segment(self, now_us: int) -> ActiveSegment:
        segment = self._current
        if segment is not None and not segment.records:
            # left by a crash between the header and the first record
            previous = self.sealed[-1] if self.sealed else None
        else:
            number = self._last_number
            if number >= SEGMENT_NUMBER_MAX:
                raise LogFailedError(f"no number follows {number}", path=self._directory)
            previous = segment.info() if segment else self.sealed[-1] if self.sealed else None
            segment = ActiveSegment(number + 1)
        start = self._segment_start(previous, now_us)
        self.previous[segment.number] = previous.number if previous else 0
        self._current = segment
        self._last_number = segment.number
        if segment.bytes == 0:
            self._take(segment, SEGMENT_HEADER, 0, now_us)
        self._take(segment, start, 1, now_us)
        return segment

    def _take(self, segment: ActiveSegment, data: bytes, records: int, now_us: int) -> None:
        size = len(data)
        self._buffer.append(data)
        self.appended += size
        segment.bytes += size
        if records:
            # a tombstone that compaction writes again has the time of its first record
            stamp, low, high = data[:TIME_BYTES], segment.low, segment.high
            if not segment.records:
                segment.first_us = now_us
                segment.low = segment.high = stamp
            # None: a segment from before the start, whose earliest and latest times are not known
            elif low is not None and high is not None:
                if stamp < low:
                    segment.low = stamp
                elif stamp > high:
                    segment.high = stamp
            segment.records += records
            segment.last_us = now_us

    def _seal(self) -> None:
        if self._file is None or self._open is None:
            return
        assert not self._syncing, "the file is in use by another thread"
        if self.durable < self.written or self._directory_dirty:
            self._sync_file(self._file, directory=self._directory_dirty)
            self._directory_dirty = False
        self._file.close()
        self.durable = self.written
        self._settle()
        self.durable_at = pack_position(self._open.number + 1, 0)
        self.sealed.append(self._open.info())
        self._file = self._open = None

    def _count_durable(self, written: int, written_at: int) -> None:
        self._directory_dirty = False
        self.durable = written
        self._settle()
        self.durable_at = written_at

    def _sync_file(self, file: DiskFile, *, directory: bool) -> None:
        file.sync()
        if directory:
            self._disk.sync_directory(self._directory)

    def _die(self, error: BaseException) -> None:
        """Note the failure that every later call raises."""
        if isinstance(error, LogFailedError):
            self._failure = error
        else:
            # a signal handler may raise anything
            self._failure = LogFailedError(
                "writing was interrupted half-way", path=self._directory, hint="start again"
            )
