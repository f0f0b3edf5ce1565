"""Local log of a node: makes a log directory what the remote log says, keeps surplus aside.

Rules S1 and S3 of docs/remote-log.md on a real directory. ``LocalLog`` carries out the local steps
of a reader: a sealed segment with the listed number, bytes and checksum stays, others are fetched
or removed, and the bytes of chunks are written behind them. While sealed segments change, nobody
else reads the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import google_crc32c

from fastjournal.cmdlog.format.layout import (
    SEGMENT_HEADER,
    TIME_BYTES,
    segment_name,
    unpack_position,
)
from fastjournal.cmdlog.format.records import decode_time
from fastjournal.cmdlog.locks import list_segments, lock_read
from fastjournal.cmdlog.recovery.loss_report import format_time
from fastjournal.cmdlog.recovery.repair import keep_aside, write_file
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.disk import Disk, DiskFile, DiskLock
from fastjournal.loglines import LogEvent
from fastjournal.remote.directory import (
    REMOTE_FILE,
    DirectoryCheck,
    Fit,
    RemoteFile,
    Surplus,
    decode_remote_file,
    encode_remote_file,
)
from fastjournal.remote.objects import Checkpoint, Chunk, ChunkId, SegmentRef
from fastjournal.remote.reader import Append, Fetch, Restart
from fastjournal.remote.restore import PIECE_BYTES, fetch_segment
from fastjournal.remote.store import Request

CHUNK_BYTES = 8 << 20
"""Bytes of a chunk at most, where a batch is not larger."""

LOG = logging.getLogger("fastjournal.remote")


class LocalLog:
    """Log directory of a node.

    Args:
        disk: Disk of the directory.
        directory: The caller holds its append lock.
        request: Carries out a request of the store.
    """

    def __init__(self, disk: Disk, directory: str, request: Callable[[Request], object]) -> None:
        self.check = DirectoryCheck()
        self.base: tuple[ChunkId, Checkpoint] | None = None
        """Checkpoint with which the reader began."""
        self._disk = disk
        self._directory = directory
        self._request = request
        self._known: dict[int, SegmentRef] = {}
        """Segments whose bytes were compared with their checksum."""
        self._file: DiskFile | None = None
        """The segment that is written to."""
        self._readers: DiskLock | None = None
        """Held while segments change that others may read."""

    def answer(self, request: Any) -> object:
        """Carry out a request, or a local step, of a reader.

        Raises:
            LogFailedError: The disk failed, perhaps for want of room; the reader must begin anew.
            LogLockedError: Another process reads the segments that would change; likewise.
            RemoteLogError: As of the requests.
        """
        match request:
            case Restart(behind, checkpoint):
                self._restart(checkpoint)
                self.base = behind, checkpoint
                return None
            case Fetch(epoch, segment):
                return self._has(segment) or self._fetch(epoch, segment)
            case Append(chunk):
                return self._append(chunk)
            case _:
                return self._request(request)

    def sync(self) -> None:
        """Make everything durable that was taken, and let others read it."""
        self._close()
        self._disk.sync_directory(self._directory)
        if self._readers is not None:
            self._readers.close()
            self._readers = None

    def surplus(self) -> list[Surplus]:
        """Return the local bytes that the store has not."""
        return self.check.surplus(self._sizes())

    def surplus_behind(self, position: int) -> list[Surplus]:
        """Return the local bytes behind a position."""
        segment, offset = unpack_position(position)
        sizes = self._sizes()
        return [
            Surplus(number, offset if number == segment else 0)
            for number, size in sizes.items()
            if number > segment or (number == segment and size > offset)
        ]

    def set_aside(self, surplus: Iterable[Surplus], folder: str) -> None:
        """Cut local bytes off, keep them, and tell what they are.

        Args:
            surplus: The bytes of each segment from an offset on.
            folder: Directory beside the log for whole segments; empty: the bytes alone stay in
                files beside their segments.
        """
        for number, offset in surplus:
            path = self._path(number)
            data = self._disk.read(path)
            if folder:
                self._disk.mkdir(folder, like=self._directory)
                kept = keep_aside(self._disk, f"{folder}/{segment_name(number)}", data, like=path)
                self._disk.sync_directory(folder)
            else:
                kept = keep_aside(self._disk, f"{path}.surplus", data[offset:], like=path)
            LOG.warning(
                LogEvent(
                    "surplus", segment=number, offset=offset, kept=kept, **_facts(data, offset)
                )
            )
            self._cut(number, data[:offset])

    def pieces(self, position: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield segment, offset and bytes of all that is behind a position, as chunks have them."""
        segment, start = unpack_position(position)
        for number, size in self._sizes().items():
            offset = start if number == segment else 0
            if number < segment or size <= offset:
                continue
            data = self._disk.read_slice(self._path(number), offset, size - offset)
            for piece in split_batches(data, CHUNK_BYTES):
                yield number, offset, piece
                offset += len(piece)

    def _path(self, number: int) -> str:
        return f"{self._directory}/{segment_name(number)}"

    def _sizes(self) -> dict[int, int]:
        numbers = list_segments(self._disk, self._directory)
        return {number: self._disk.size(self._path(number)) for number in numbers}

    def _restart(self, checkpoint: Checkpoint) -> None:
        self._close()
        self.check.restart(checkpoint.segments)
        listed = {segment.number: segment for segment in checkpoint.segments}
        for number in list_segments(self._disk, self._directory):
            segment = listed.get(number)
            if number <= max(listed, default=0) and not (segment and self._has(segment)):
                self._remove(number)

    def _has(self, segment: SegmentRef) -> bool:
        if self._known.get(segment.number) == segment:
            return True
        path = self._path(segment.number)
        if not self._disk.exists(path) or self._disk.size(path) != segment.bytes:
            return False
        crc = 0
        for offset in range(0, segment.bytes, PIECE_BYTES):
            crc = google_crc32c.extend(crc, self._disk.read_slice(path, offset, PIECE_BYTES))
        if crc == segment.crc32c:
            self._known[segment.number] = segment
        return crc == segment.crc32c

    def _exclude_readers(self) -> None:
        if self._readers is None:
            self._readers = lock_read(self._disk, self._directory, exclusive=True)

    def _fetch(self, epoch: int, segment: SegmentRef) -> bool:
        self._exclude_readers()
        pieces = fetch_segment(self._request, epoch, segment)
        if pieces is None:
            return False
        file = self._disk.create(self._path(segment.number))
        try:
            for piece in pieces:
                file.write(piece)
            file.sync()
        finally:
            file.close()
        self._known[segment.number] = segment
        return True

    def _append(self, chunk: Chunk) -> bool:
        path, local = self._path(chunk.segment), b""
        if self._disk.exists(path):
            local = self._disk.read_slice(path, chunk.offset, len(chunk.payload))
        fit = self.check.fit(chunk, local)
        if fit is Fit.WRITE:
            if not chunk.payload.startswith(local):
                self.set_aside([Surplus(chunk.segment, chunk.offset)], "")
                local = b""
            self._write(chunk.segment, chunk.payload[len(local) :])
        return fit is not Fit.HOLE

    def _write(self, number: int, data: bytes) -> None:
        path = self._path(number)
        if self._file is None or self._file.path != path:
            self._close()
            exists = self._disk.exists(path)
            self._file = self._disk.open_append(path) if exists else self._disk.create(path)
        self._known.pop(number, None)
        self._file.write(data)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.sync()
            finally:
                file.close()

    def _cut(self, number: int, data: bytes) -> None:
        """Replace a segment by its first bytes. Its file may be linked: a copy takes its place."""
        self._close()
        path = self._path(number)
        if not data:
            self._remove(number)
            return
        self._exclude_readers()
        self._known.pop(number, None)
        if self._disk.exists(f"{path}.rw"):
            self._disk.unlink(f"{path}.rw")
        write_file(self._disk, f"{path}.rw", data, like=path)
        self._disk.rename(f"{path}.rw", path)
        self._disk.sync_directory(self._directory)

    def _remove(self, number: int) -> None:
        self._exclude_readers()
        self._known.pop(number, None)
        self._disk.unlink(self._path(number))


def split_batches(data: bytes, size_max: int) -> Iterator[bytes]:
    """Yield bytes of a segment in pieces that end with whole batches.

    The records of a batch have one time.

    Args:
        data: From the start of a record, or of the segment, to the end of a record.
        size_max: Bytes of a piece at most, where no batch is larger.
    """
    if len(data) <= size_max:
        yield data
        return
    shift = 0 if data.startswith(SEGMENT_HEADER) else len(SEGMENT_HEADER)
    whole = SEGMENT_HEADER[:shift] + data
    begin = end = shift
    time = b""
    for start, _, _ in scan_segment(whole).spans():
        stamp = whole[start : start + TIME_BYTES]
        if stamp != time:
            if start - begin > size_max and end > begin:
                yield whole[begin:end]
                begin = end
            # a segment without a record would be taken for one that a crash has begun
            time, end = stamp, start if start > len(SEGMENT_HEADER) else begin
    if len(whole) - begin > size_max and end > begin:
        yield whole[begin:end]
        begin = end
    yield whole[begin:]


def _facts(data: bytes, offset: int) -> dict[str, object]:
    """Return bytes, records, first and last time of the end of a segment."""
    starts = [start for start, _, _ in scan_segment(data).spans() if start >= offset]
    times = [decode_time(data[start : start + TIME_BYTES]) for start in starts]
    known = [time for time in times if time is not None]
    facts: dict[str, object] = {"bytes": len(data) - offset, "records": len(starts)}
    if known:
        facts |= {"first": format_time(min(known)), "last": format_time(max(known))}
    return facts


def read_remote_file(disk: Disk, directory: str) -> RemoteFile | None:
    """Return the contents of ``remote.json``; None: there is none.

    Raises:
        LogCorruptError: It is damaged.
        LogFailedError: It cannot be read.
    """
    path = f"{directory}/{REMOTE_FILE}"
    return decode_remote_file(disk.read(path), path) if disk.exists(path) else None


def write_remote_file(disk: Disk, directory: str, log: str, epoch: int) -> None:
    """Write ``remote.json``, durably.

    Args:
        disk: Disk of the directory.
        directory: Log directory; the caller holds its append lock.
        log: UUID of the log.
        epoch: The last epoch that this directory's daemon created; -1: none, or one whose end
            stands in the store.

    Raises:
        LogFailedError: It cannot be written.
    """
    path = f"{directory}/{REMOTE_FILE}"
    if disk.exists(f"{path}.new"):
        disk.unlink(f"{path}.new")
    file = disk.create(f"{path}.new")
    try:
        file.write(encode_remote_file(log, epoch))
        file.sync()
    finally:
        file.close()
    disk.rename(f"{path}.new", path)
    disk.sync_directory(directory)
