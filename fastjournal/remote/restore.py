"""Restore and verification of a remote log: a directory that a daemon starts on, to any instant.

A restore reads the newest checkpoint, or the newest before an instant, and the chunks behind it, to
an end that a listing has confirmed. It writes ``<directory>.partial``, and gives that its name when
it is whole. The list of the checkpoint and the checksums of the chunks check each byte (S2).
The log's own records about its segments do not count: compaction may have recorded, in a later
chunk, that it has replaced or removed one. So the restore records the segments as they are.

Nothing in the store is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.cmdlog.locks import lock_append
from fastjournal.cmdlog.recovery.inspect_log import inspect_log
from fastjournal.cmdlog.recovery.repair import repair_segments
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.disk import Disk, DiskFile
from fastjournal.errors import LogFailedError, RemoteLogCorruptError
from fastjournal.remote.directory import DirectoryCheck, Fit
from fastjournal.remote.objects import (
    Chunk,
    ChunkId,
    SegmentRef,
    chunk_id,
    chunk_name,
    segment_object,
)
from fastjournal.remote.reader import Append, Fetch, LogReader, Restart, read_to_end
from fastjournal.remote.store import Get, GetRange, ObjectStore, Request, Wait, repeating, run

PIECE_BYTES = 4 << 20
"""Bytes of a segment that one request reads: its time-out is for the whole request."""

CHUNKS_AHEAD = 16
"""Chunks that are read ahead: a request takes long beside its bytes. 128 MiB at the most."""

OnProgress = Callable[[int], None]


class ReadAhead:
    """Reads the next chunks while one is used, in threads. Chunks never change.

    A chunk that was missing then is asked for again: it may have been written meanwhile.

    Args:
        answer: Carries out a request.
        threads: Where.
    """

    def __init__(self, answer: Callable[[Request], object], threads: ThreadPoolExecutor) -> None:
        self._answer = answer
        self._threads = threads
        self._ahead: dict[ChunkId, Future[object]] = {}

    def __call__(self, request: Request) -> object:
        """Carry out a request."""
        chunk = chunk_id(request.name) if isinstance(request, Get) else None
        if chunk is None:
            return self._answer(request)
        reading = self._ahead.pop(chunk, None)
        found = None if reading is None else reading.result()
        if found is None:
            found = self._answer(request)
        if found is not None:
            self._read_behind(chunk)
        return found

    def _read_behind(self, chunk: ChunkId) -> None:
        epoch, number = chunk
        wanted = {ChunkId(epoch, number + step) for step in range(1, CHUNKS_AHEAD + 1)}
        for passed in self._ahead.keys() - wanted:
            self._ahead.pop(passed).cancel()
        for each in sorted(wanted - self._ahead.keys()):
            self._ahead[each] = self._threads.submit(self._answer, Get(chunk_name(each)))


class RemoteContents(msgspec.Struct):
    """What a remote log brings."""

    log: str
    """UUID of the log."""
    epoch: int
    node: str
    """Node that wrote the epoch."""
    checkpoint: str
    """Epoch and number of the chunk of the checkpoint that was read."""
    segments: int = 0
    """Segments of the checkpoint."""
    chunks: int = 0
    """Chunks with bytes behind it."""
    bytes: int = 0
    time_us: int = 0
    """Time of the last chunk, in microseconds since the Unix epoch."""
    records: int | None = None
    """Records of the restored log; None: it was only verified."""


class _Checked:
    """Reads everything, checks it, and keeps nothing."""

    def __init__(self, request: Callable[[Request], object], on_progress: OnProgress) -> None:
        self.segments = 0
        """Segments of the checkpoint."""
        self.bytes = 0
        self.chunks = 0
        self._request = request
        self._check = DirectoryCheck()
        self._on_progress = on_progress

    def answer(self, request: Any) -> object:
        """Carry out a request of the reader."""
        match request:
            case Restart(_, checkpoint):
                self.bytes = self.chunks = 0
                self.segments = len(checkpoint.segments)
                self._check.restart(checkpoint.segments)
                self.clear()
                return None
            case Fetch(epoch, segment):
                return self._fetch(epoch, segment)
            case Append(chunk):
                if self._check.fit(chunk, b"") is Fit.HOLE:
                    return False
                self.chunks += 1
                self._count(len(chunk.payload))
                self.append(chunk)
                return True
            case _:
                return self._request(request)

    def clear(self) -> None:
        """Forget what was read before."""

    def segment(self, segment: SegmentRef, pieces: Iterator[bytes]) -> None:
        """Take a segment of the checkpoint."""
        for _ in pieces:
            pass

    def append(self, chunk: Chunk) -> None:
        """Take the bytes of a chunk."""

    def _count(self, size: int) -> None:
        self.bytes += size
        self._on_progress(self.bytes)

    def _fetch(self, epoch: int, segment: SegmentRef) -> bool:
        pieces = fetch_segment(self._request, epoch, segment)
        if pieces is None:
            return False
        self.segment(segment, self._counted(pieces))
        return True

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._count(len(piece))
            yield piece


def fetch_segment(
    request: Callable[[Request], object], epoch: int, segment: SegmentRef
) -> Iterator[bytes] | None:
    """Return the pieces of a segment, which are checked as they are read; None: it is not there.

    Raises:
        RemoteLogCorruptError: While they are read: it is not what its name says.
    """
    name = segment_object(epoch, segment)
    first = request(GetRange(name, 0, PIECE_BYTES))
    if first is None:
        return None
    assert isinstance(first, bytes)
    return _pieces(request, name, segment, first)


def _pieces(
    request: Callable[[Request], object], name: str, segment: SegmentRef, piece: bytes
) -> Iterator[bytes]:
    offset, crc = 0, 0
    while piece:
        offset, crc = offset + len(piece), google_crc32c.extend(crc, piece)
        yield piece
        if offset >= segment.bytes:
            break
        found = request(GetRange(name, offset, PIECE_BYTES))
        piece = found if isinstance(found, bytes) else b""
    if (offset, crc) != (segment.bytes, segment.crc32c):
        raise RemoteLogCorruptError(
            f"it has {offset} bytes with checksum {crc:08x}, and not what its name says",
            path=name,
            hint="restore from another checkpoint: --until",
        )


class _Written(_Checked):
    """Writes everything into a directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        request: Callable[[Request], object],
        on_progress: OnProgress,
    ) -> None:
        super().__init__(request, on_progress)
        self._disk = disk
        self._directory = directory
        self._file: DiskFile | None = None

    def clear(self) -> None:
        """Remove what was written before."""
        self.close()
        for name in self._disk.listdir(self._directory):
            if name.endswith(".log"):
                self._disk.unlink(f"{self._directory}/{name}")

    def segment(self, segment: SegmentRef, pieces: Iterator[bytes]) -> None:
        """Write a segment of the checkpoint."""
        self._open(segment.number)
        assert self._file is not None
        for piece in pieces:
            self._file.write(piece)

    def append(self, chunk: Chunk) -> None:
        """Write the bytes of a chunk."""
        self._open(chunk.segment)
        assert self._file is not None
        self._file.write(chunk.payload)

    def _open(self, number: int) -> None:
        path = f"{self._directory}/{segment_name(number)}"
        if self._file is None or self._file.path != path:
            self.close()
            exists = self._disk.exists(path)
            self._file = self._disk.open_append(path) if exists else self._disk.create(path)

    def close(self) -> None:
        """Sync and close the last file."""
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None


def verify_remote(
    store: ObjectStore,
    *,
    wait: Wait,
    until_us: int | None = None,
    on_progress: OnProgress = lambda _: None,
) -> RemoteContents:
    """Read and check all that a restore would read; return what it would bring.

    Args:
        store: The store.
        wait: Waits before a repeat of a failed request; it raises the error to give up.
        until_us: As of ``restore_remote``.
        on_progress: Gets the bytes so far.

    Raises:
        RemoteLogError: Something is damaged or missing, or the store does not answer.
    """
    with _reading(store, wait) as request:
        return _read(_Checked(request, on_progress), until_us)


def restore_remote(
    store: ObjectStore,
    disk: Disk,
    directory: str,
    *,
    wait: Wait,
    now_us: int,
    until_us: int | None = None,
    on_progress: OnProgress = lambda _: None,
) -> RemoteContents:
    """Write a remote log into a directory, on which a daemon without a remote log starts.

    Args:
        store: The store.
        disk: Disk of the directory.
        directory: It must not exist, or be empty.
        wait: Waits before a repeat of a failed request; it raises the error to give up.
        now_us: In microseconds since the Unix epoch.
        until_us: Restore the state at this instant of the writer: up to the last chunk that is not
            younger; None: all.
        on_progress: Gets the bytes so far.

    Raises:
        LogFailedError: The directory is not empty, or cannot be written; nothing has its name.
        RemoteLogError: Something is damaged or missing, or the store does not answer.
    """
    if disk.exists(directory) and disk.listdir(directory):
        raise LogFailedError(
            "the directory is not empty", path=directory, hint="restore into a new one"
        )
    partial = f"{directory}.partial"
    disk.mkdir(partial)
    lock = lock_append(disk, partial)
    try:
        with _reading(store, wait) as request:
            written = _Written(disk, partial, request, on_progress)
            written.clear()
            try:
                contents = _read(written, until_us)
            finally:
                written.close()
        contents.records = _record_segments(disk, partial, now_us)
        disk.sync_directory(partial)
        disk.rename(partial, directory)
        disk.sync_directory(os.path.dirname(directory) or ".")
    finally:
        lock.close()
    return contents


@contextmanager
def _reading(store: ObjectStore, wait: Wait) -> Iterator[Callable[[Request], object]]:
    with ThreadPoolExecutor(CHUNKS_AHEAD) as threads:
        try:
            yield ReadAhead(repeating(store, wait), threads)
        finally:
            threads.shutdown(cancel_futures=True)


def _read(target: _Checked, until_us: int | None) -> RemoteContents:
    reader = LogReader(until_us=until_us)
    run(read_to_end(reader), target.answer)
    assert reader.epoch is not None
    assert reader.base is not None
    return RemoteContents(
        log=reader.epoch.log,
        epoch=reader.epoch.epoch,
        node=reader.epoch.node,
        checkpoint=f"{reader.base.epoch}-{reader.base.number}",
        segments=target.segments,
        chunks=target.chunks,
        bytes=target.bytes,
        time_us=reader.time_us,
    )


def _record_segments(disk: Disk, directory: str, now_us: int) -> int:
    """Record the segments as they are, where the log says otherwise.

    Returns:
        The number of records of the log.

    Raises:
        RemoteLogCorruptError: The log has other damage: it was uploaded with it.
    """
    inspection = inspect_log(disk, directory, ReplayState())
    for found in inspection.corrupt:
        if found.damage:
            messages = (each.message for each in inspection.diagnostics if each.damage)
            raise RemoteLogCorruptError(
                f"the restored log is damaged: {next(messages, '')}",
                path=f"{directory}/{segment_name(found.number)}",
                hint="the log is there to be looked at: fj-cli log verify, or repair",
            )
        found.behind_loss = False
    if inspection.corrupt:
        repair_segments(disk, directory, inspection, now_us=now_us)
    return inspection.state.records
