"""History of a remote log: its segments as they were written, up to a checkpoint.

The log behind the chunk of a checkpoint is sealed segments, whole. Compaction has rewritten some of
those that the checkpoint lists. But the first record of each segment says size and checksum that
the one before it had when it was sealed, and the checkpoint lists the last one as it was sealed. So
``plan_history`` goes back from the last one, and knows of each segment what it has to be:

- an object ``segments/<epoch>/<number>-<crc32c>-<bytes>.log`` of that very name is the segment;
- else its chunks are, in the order of their ids over epochs: of an epoch those before the seal that
  the next epoch names.

The checksum of the whole is compared in any case. A segment whose chunks were deleted before they
were taken is a gap with the reason ``collected``; with a hole in its chunks it is ``missing``; with
other bytes than it was sealed with, ``damaged``.

Where chunks are in segments is found by bisection over their headers: positions never fall.

A plan is made of requests to a store (``fastjournal.remote.store``), and is pure. Executors read
the segments, each on its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import google_crc32c

from fastjournal.cmdlog.archive import MISSING
from fastjournal.cmdlog.format.layout import SEGMENT_NUMBER_MAX
from fastjournal.errors import RemoteLogCorruptError
from fastjournal.remote.file_store import FileStore
from fastjournal.remote.objects import (
    HEADER_BYTES,
    SEGMENTS,
    Checkpoint,
    ChunkId,
    Epoch,
    SegmentRef,
    chunk_id,
    chunk_name,
    decode_chunk,
    decode_epoch,
    decode_header,
    epoch_name,
    require_nonce,
    segment_ref,
)
from fastjournal.remote.open_store import open_store
from fastjournal.remote.store import Get, GetRange, List, ObjectStore, Steps, perform, run
from fastjournal.spark.history.coverage import MissingSegments
from fastjournal.spark.records.stream_segments import HEAD_BYTES, NOTHING, Sealed, sealed_before
from fastjournal.spark.storage.files import pyarrow_uri, resolve
from fastjournal.spark.storage.remote_checkpoints import PrefixFiles, naming, read_format

COLLECTED = "collected"
"""Reason of a gap: the chunks were deleted before they were taken."""
DAMAGED = "damaged"
UNUSED = "unused"
"""Reason of no gap: the next segment says that another one was before it."""
LIST_PAGE = 100_000
"""Chunks that are listed at once."""
PIECE_BYTES = 8 << 20
"""Bytes of a segment that one request reads."""
READS_AT_ONCE = 16
"""Chunks that are read at once: a request takes long beside its bytes."""

TIMEOUT_S = 30.0
"""Of a request to a store, for up to 8 MiB."""
REPEATS = 3
"""Of a request that failed, by the library."""


class RemoteSegment(NamedTuple):
    """A segment as it was sealed, and the objects that it is read from."""

    number: int
    bytes: int
    crc32c: int
    name: str = ""
    """Object that is the whole segment; empty: its chunks are."""
    chunks: tuple[ChunkId, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    """Those of the chunks."""


class HistoryPlan(NamedTuple):
    """Segments of a remote log up to a checkpoint, as far as the store has them."""

    segments: list[RemoteSegment]
    """Ascending."""
    gaps: list[MissingSegments]
    """Those between or behind the segments, whose objects are not there."""
    last: int
    """Number of the last segment behind the checkpoint's chunk; 0: there is none."""


class ObjectGoneError(RemoteLogCorruptError):
    """An object that was listed is not there: the plan has to be made anew."""


# --- plan -----------------------------------------------------------------------------------------


class ChunkIndex:
    """Chunks with bytes behind one chunk and up to another, by place.

    Args:
        after: The chunk before the first one; None: from the first on.
        until: The last chunk.
        log: UUID of the log.
    """

    def __init__(self, after: ChunkId | None, until: ChunkId, log: str) -> None:
        self.epochs: dict[int, Epoch] = {}
        self._after, self._until, self._log = after, until, log
        self._epochs, self._numbers, self._sizes = array("Q"), array("Q"), array("Q")
        self._segments: dict[int, int] = {}
        """Segments of chunks whose header was read, by place."""
        self._is_read = False

    def _read(self) -> Steps[None]:
        """List the chunks."""
        self._is_read = True
        after = "" if self._after is None else chunk_name(self._after)
        while listed := (yield List("log", after, LIST_PAGE)):
            after = listed[-1].name
            for name, size in listed:
                chunk = chunk_id(name)
                if chunk is None or chunk > self._until:
                    continue
                if size > HEADER_BYTES and (yield from self._counts(chunk)):
                    self._epochs.append(chunk.epoch)
                    self._numbers.append(chunk.number)
                    self._sizes.append(size - HEADER_BYTES)
            if after > chunk_name(self._until):
                return

    def _counts(self, chunk: ChunkId) -> Steps[bool]:
        """Return whether a chunk is before the seal that the next epoch names."""
        for epoch in (chunk.epoch, chunk.epoch + 1):
            if epoch not in self.epochs and epoch <= self._until.epoch:
                self.epochs[epoch] = yield from _epoch(epoch, self._log)
        following = self.epochs.get(chunk.epoch + 1)
        return following is None or chunk.number < following.sealed_at

    def id(self, place: int) -> ChunkId:
        """Return the chunk at a place."""
        return ChunkId(self._epochs[place], self._numbers[place])

    def size(self, first: int, stop: int) -> int:
        """Return the bytes of the log in chunks side by side."""
        return sum(self._sizes[first:stop])

    def find(self, number: int) -> Steps[int]:
        """Return the place of the first chunk of a segment, or of one behind it.

        Raises:
            ObjectGoneError: A chunk was deleted meanwhile.
            RemoteLogCorruptError: An epoch is missing or damaged.
        """
        if not self._is_read:
            yield from self._read()
        low, high = 0, len(self._numbers)
        while low < high:
            middle = (low + high) // 2
            if (yield from self.segment_at(middle)) < number:
                low = middle + 1
            else:
                high = middle
        return low

    def segment_at(self, place: int) -> Steps[int]:
        """Return the segment of a chunk; one with a damaged header counts to the next one."""
        for at in range(place, len(self._numbers)):
            if at not in self._segments:
                header = yield from _must_get(self.id(at), 0, HEADER_BYTES)
                try:
                    self._segments[at] = decode_header(self.id(at), header).segment
                except RemoteLogCorruptError:
                    continue
            return self._segments[at]
        return SEGMENT_NUMBER_MAX + 1


def plan_history(
    log: str,
    behind: ChunkId,
    checkpoint: Checkpoint,
    *,
    after: ChunkId | None = None,
    last: int = 0,
    known: Collection[int] = (),
) -> Steps[HistoryPlan]:
    """Return the segments up to a checkpoint that were not taken.

    Args:
        log: UUID of the log.
        behind: Behind which chunk the checkpoint is.
        checkpoint: The checkpoint; its segments need not be there.
        after: The chunk up to which all was taken; None: nothing was.
        last: Number of the last segment up to there; 0: there was none.
        known: Numbers of further segments that were taken.

    Raises:
        RemoteLogCorruptError: An epoch is missing or damaged.
        ObjectGoneError: A chunk was deleted meanwhile: plan anew.
    """
    if not checkpoint.segments:
        return HistoryPlan([], [], 0)
    walk = _Walk(ChunkIndex(after, behind, log), last)
    yield from walk.list_objects()
    yield from walk.go(Sealed(*checkpoint.segments[-1]))
    found, gaps = walk.found[::-1], walk.gaps[::-1]
    if not last:
        # the history begins with the first segment that there is
        first = min([*(one.number for one in found), *known], default=None)
        gaps = [gap for gap in gaps if first is not None and gap.last > first]
    return HistoryPlan(found, gaps, checkpoint.segments[-1].number)


class _Walk:
    """Walk back over the segments of a log, from the last one.

    Args:
        chunks: The chunks; they are listed when the first segment is no object of its own.
        last: Number of the segment before the first one.
    """

    def __init__(self, chunks: ChunkIndex, last: int) -> None:
        self.found: list[RemoteSegment] = []
        """Descending, as are the gaps."""
        self.gaps: list[MissingSegments] = []
        self._chunks = chunks
        self._last = last
        self._objects: dict[SegmentRef, str] = {}

    def list_objects(self) -> Steps[None]:
        """List the segments that are objects of their own."""
        for name, size in (yield List(SEGMENTS)):
            found = segment_ref(name)
            if found is not None and found[1].bytes == size:
                self._objects[found[1]] = name

    def go(self, told: Sealed) -> Steps[None]:
        """Go back.

        Args:
            told: The last segment, as it was sealed.
        """
        number = told.number
        while number > self._last:
            own = told if told.number == number and told.bytes else None
            head, reason = yield from self._take(number, own)
            if reason:
                self._add_gap(number, number, reason)
            told = NOTHING if head is None else sealed_before(head)
            before = told.number
            if before:
                self._add_gap(max(before, self._last) + 1, number - 1, UNUSED)
            elif number > self._last + 1:
                before = yield from self._number_before(number)
                self._add_gap(before + 1, number - 1, reason or COLLECTED)
            number = before

    def _take(self, number: int, own: Sealed | None) -> Steps[tuple[bytes | None, str]]:
        """Add a segment, if it is there.

        Args:
            number: Its number.
            own: What it was when it was sealed; None: nobody says so.

        Returns:
            Its first bytes, if they are there, and the reason of a gap.
        """
        if own is not None:
            name = self._objects.get(SegmentRef(number, own.bytes, own.crc32c))
            if name is not None:
                head = yield GetRange(name, 0, min(HEAD_BYTES, own.bytes))
                if head is None:
                    raise ObjectGoneError("the segment was listed, and is not there", path=name)
                self.found.append(RemoteSegment(number, own.bytes, own.crc32c, name))
                return head, ""
        chunks = self._chunks
        first, stop = (yield from chunks.find(number)), (yield from chunks.find(number + 1))
        if first == stop:
            return None, MISSING if first else COLLECTED
        data = yield from _must_get(chunks.id(first), 0, HEADER_BYTES + HEAD_BYTES)
        try:
            offset = decode_header(chunks.id(first), data).offset
        except RemoteLogCorruptError:
            return None, DAMAGED
        if offset:
            return None, MISSING if first else COLLECTED
        head, place = data[HEADER_BYTES:], first + 1
        while len(head) < HEAD_BYTES and place < stop:
            more = yield from _must_get(chunks.id(place), HEADER_BYTES, HEAD_BYTES)
            head, place = head + more, place + 1
        if own is None or chunks.size(first, stop) != own.bytes:
            return head, MISSING
        ids = tuple(chunks.id(place) for place in range(first, stop))
        epochs = tuple(chunks.epochs[epoch] for epoch in sorted({one.epoch for one in ids}))
        self.found.append(RemoteSegment(number, own.bytes, own.crc32c, "", ids, epochs))
        return head, ""

    def _number_before(self, number: int) -> Steps[int]:
        """Return the number of the last segment before one that has chunks; else the last taken."""
        place = yield from self._chunks.find(number)
        if not place:
            return self._last
        return (yield from self._chunks.segment_at(place - 1))

    def _add_gap(self, first: int, last: int, reason: str) -> None:
        if first > last:
            return
        gap = self.gaps[-1] if self.gaps else None
        if gap is not None and (gap.first, gap.reason) == (last + 1, reason):
            self.gaps[-1] = gap._replace(first=first)
        else:
            self.gaps.append(MissingSegments(first, last, None, None, reason))


def _epoch(number: int, log: str) -> Steps[Epoch]:
    content = yield Get(epoch_name(number))
    if content is None:
        raise RemoteLogCorruptError(
            "the epoch is missing",
            path=epoch_name(number),
            hint="somebody deleted parts of the remote log",
        )
    return decode_epoch(number, content, log)


def _must_get(chunk: ChunkId, start: int, length: int) -> Steps[bytes]:
    data: bytes | None = yield GetRange(chunk_name(chunk), start, length)
    if data is None:
        raise ObjectGoneError("the chunk was listed, and is not there", path=chunk_name(chunk))
    return data


def plan_in(store: ObjectStore, steps: Callable[[], Steps[HistoryPlan]]) -> HistoryPlan:
    """Carry out a plan; begin anew where the primary's collector deletes what it reads.

    Args:
        store: The store.
        steps: Returns the plan.

    Raises:
        RemoteLogError: An object is damaged, or missing twice; or the store does not answer.
    """
    gone: str | None = None
    while True:
        try:
            return run(steps(), lambda request: perform(store, request))
        except ObjectGoneError as error:
            if error.path == gone:
                raise RemoteLogCorruptError(error.message, path=error.path) from error
            gone = error.path


def open_remote(url: str) -> ObjectStore:
    """Return the store of a remote log, which is there.

    Args:
        url: Its URL, or a path.

    Raises:
        RemoteLogCorruptError: A directory holds no remote log.
        StoreRefusedError: The URL is none of a store.
    """
    if "://" not in url or url.startswith("file:"):
        files, path = resolve(url)
        with naming(path):
            read_format(PrefixFiles(files, path))  # the store would make the directory
        return FileStore(path)
    return open_store(pyarrow_uri(url), timeout_seconds=TIMEOUT_S, repeats=REPEATS)


# --- segments -------------------------------------------------------------------------------------


def read_segment(store: ObjectStore, segment: RemoteSegment) -> bytes:
    """Return a segment as it was sealed.

    Args:
        store: The store.
        segment: From a plan.

    Raises:
        ObjectGoneError: An object is not there any more.
        RemoteLogCorruptError: An object is damaged, or the whole is another one.
        ForeignRemoteLogError: A chunk is of another writer than its epoch.
        StoreUnavailableError: The store does not answer.
    """
    data = b"".join(_pieces(store, segment) if segment.name else _payloads(store, segment))
    crc32c = google_crc32c.value(data)
    if (len(data), crc32c) != (segment.bytes, segment.crc32c):
        raise RemoteLogCorruptError(
            f"segment {segment.number} has {len(data)} bytes with checksum {crc32c:08x}; it was "
            f"sealed with {segment.bytes} and {segment.crc32c:08x}",
            path=segment.name or chunk_name(segment.chunks[0]),
        )
    return data


def _pieces(store: ObjectStore, segment: RemoteSegment) -> Iterator[bytes]:
    for offset in range(0, segment.bytes, PIECE_BYTES):
        piece = store.get_range(segment.name, offset, PIECE_BYTES)
        if piece is None:
            raise ObjectGoneError("the segment was listed, and is not there", path=segment.name)
        yield piece
        if len(piece) < min(PIECE_BYTES, segment.bytes - offset):
            return  # it is cut


def _payloads(store: ObjectStore, segment: RemoteSegment) -> Iterator[bytes]:
    epochs = {one.epoch: one for one in segment.epochs}
    with ThreadPoolExecutor(READS_AT_ONCE) as threads:
        found = threads.map(store.get, map(chunk_name, segment.chunks))
        for chunk, data in zip(segment.chunks, found, strict=True):
            if data is None:
                raise ObjectGoneError(
                    "the chunk was listed, and is not there", path=chunk_name(chunk)
                )
            decoded = decode_chunk(chunk, data)
            require_nonce(decoded, epochs[chunk.epoch])
            yield decoded.payload
