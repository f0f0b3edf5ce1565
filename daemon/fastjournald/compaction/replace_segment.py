"""Replacing and removing sealed segments on the disk, so that no crash leaves it in doubt.

The read lock comes first, then the record that tells what a segment will be, or that it will go. It
is durable before the file changes, and ``cmdlog.recovery.segment_chain`` knows both states. So
nothing is written again and again while somebody reads the log.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.layout import TIME_BYTES
from fastjournal.cmdlog.format.records import decode_bounds, decode_time, outer_stamps
from fastjournal.cmdlog.format.segments import SegmentInfo
from fastjournal.cmdlog.locks import lock_read
from fastjournal.disk import Disk, DiskLock
from fastjournal.errors import LogFailedError, LogLockedError
from fastjournal.limits import WRITTEN_BYTES_MAX
from fastjournald.compaction.steps import DURABLE, NOW, Blocking, CompactionWish

if TYPE_CHECKING:
    from fastjournal.cmdlog.writer import LogWriter
    from fastjournald.compaction.kept_records import KeptRecords
    from fastjournald.wal.journal import Journal


class SegmentFiles:
    """The segments of a log, as compaction changes them.

    Args:
        journal: Journal that records each change of them.
        writer: Writer of the log.
        disk: Where it is.
        directory: Directory of the log.
    """

    def __init__(self, journal: Journal, writer: LogWriter, disk: Disk, directory: str) -> None:
        self.writer = writer
        self.disk = disk
        self.directory = directory
        self._journal = journal
        self._lock = Blocking(partial(lock_read, disk, directory, exclusive=True))

    def path(self, info: SegmentInfo) -> str:
        """Return where a segment is."""
        return f"{self.directory}/{info.name}"

    # --- steps of a compaction --------------------------------------------------------------------

    def probe(self) -> Generator[Blocking, Any, None]:
        """Look whether anybody reads the log.

        Raises:
            LogLockedError: Somebody does.
        """
        lock: DiskLock = yield self._lock
        lock.close()

    def lock(self, info: SegmentInfo) -> Generator[Blocking, Any, DiskLock]:
        """Keep others from reading the log, and return the lock; else nothing stays beside.

        Raises:
            LogLockedError: Somebody reads the log.
        """
        try:
            lock: DiskLock = yield self._lock
        except LogLockedError:
            yield Blocking(partial(self.drop_beside, info))
            raise
        return lock

    def remove(self, info: SegmentInfo) -> Generator[CompactionWish | Blocking, Any, None]:
        """Remove a segment, of which nothing matters any more.

        Raises:
            LogLockedError: Somebody reads the log; nothing was written.
            LogFailedError: It could not be removed: the daemon must end.
        """
        journal, usage = self._journal, self._journal.usage
        lock: DiskLock = yield self._lock
        with closing(lock):
            now = yield NOW
            before = usage.previous.get(info.number)
            for other in self.writer.sealed:
                # its first record may be all that tells of the one before it
                if other.number != before:
                    continue
                if not usage.seals_in.get(before, set()) - {info.number}:
                    journal.log.segment_rewritten(before, other.bytes, other.crc32c, now, done=True)
            journal.log.segment_removed(info.number, now)
            yield DURABLE
            yield Blocking(partial(self._unlink, info), exclusive=True)
            self.writer.sealed.remove(info)
            usage.remove_segment(info.number)

    # --- outside of the event loop ----------------------------------------------------------------

    def write_beside(self, info: SegmentInfo, kept: KeptRecords) -> SegmentInfo:
        """Write what is kept of a segment beside it; return what is known of that.

        Raises:
            LogFailedError: There is no room for it; nothing stays beside.
        """
        self.drop_beside(info)
        try:
            crc = _write_pieces(self.disk, self.path(info), kept.parts)
        except LogFailedError:
            self.drop_beside(info)
            raise
        stamps = outer_stamps(part[:TIME_BYTES] for part in kept.parts[1:])
        min_us, max_us = decode_bounds(*stamps)
        return msgspec.structs.replace(
            info,
            bytes=kept.size,
            crc32c=crc,
            records=len(kept.parts) - 1,
            first_us=decode_time(kept.parts[1][:TIME_BYTES]),
            last_us=decode_time(kept.parts[-1][:TIME_BYTES]),
            min_us=min_us,
            max_us=max_us,
        )

    def drop_beside(self, info: SegmentInfo) -> None:
        """Delete what was written beside a segment, if the disk lets it: a restart does it else."""
        beside = f"{self.path(info)}.rw"
        with suppress(LogFailedError):
            if self.disk.exists(beside):
                self.disk.unlink(beside)

    def replace(self, info: SegmentInfo) -> None:
        """Put what was written beside a segment in its place; the lock is held.

        Raises:
            LogFailedError: Nobody knows which of the two it is: the daemon must end.
        """
        path = self.path(info)
        self.disk.rename(f"{path}.rw", path)
        self.disk.sync_directory(self.directory)

    def _unlink(self, info: SegmentInfo) -> None:
        self.disk.unlink(self.path(info))
        self.disk.sync_directory(self.directory)


def _write_pieces(disk: Disk, path: str, parts: list[bytes]) -> int:
    """Create a file of all of it beside a segment, synced, and return its CRC-32C."""
    crc = size = begin = 0
    with closing(disk.create(f"{path}.rw", like=path)) as file:
        for number, part in enumerate(parts, 1):
            size += len(part)
            if size >= WRITTEN_BYTES_MAX or number == len(parts):
                piece = b"".join(parts[begin:number])
                file.write(piece)
                # a sync of all of it at once would hold up those of the log
                file.sync()
                crc = google_crc32c.extend(crc, piece)
                size, begin = 0, number
    return crc
