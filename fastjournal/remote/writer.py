"""Remote log writer: one chunk at a time, stored by create-if-absent, fenced by a seal.

Rules W1 to W5, T3 and C2 of docs/remote-log.md. ``ChunkWriter`` is the writer of one epoch, which
this process created. Positions are those of the command log (``cmdlog.format.layout``). A failed
request says nothing, so whoever runs a rule repeats the request as it is. Such a repeat can meet
the chunk of an earlier try, and so does the library's own: the header that is found there decides.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fastjournal.errors import FencedError, ForeignRemoteLogError
from fastjournal.remote.objects import (
    HEADER_BYTES,
    Chunk,
    ChunkId,
    ChunkKind,
    Epoch,
    chunk_name,
    decode_header,
    encode_chunk,
)
from fastjournal.remote.store import Create, GetRange, Steps


class RemoteAck(StrEnum):
    """Acknowledgement of a change: what OK means."""

    DURABLE = "durable"
    """It is in the log and in the object store."""
    ASYNC = "async"
    """It is in the log; the object store follows."""


def commit_position(local: int, stored: int, ack: RemoteAck) -> int:
    """Return up to where changes are acknowledged (W4).

    Args:
        local: Up to where the log is as safe as the sync policy asks.
        stored: Up to where the object store has it.
        ack: The promise.
    """
    return local if ack is RemoteAck.ASYNC else min(local, stored)


def may_compact(segment_end: int, stored: int) -> bool:
    """Return whether compaction may replace or remove a sealed segment (C2): all of it is stored.

    Args:
        segment_end: Position behind the segment.
        stored: Position behind the last stored chunk.
    """
    return segment_end <= stored


class ChunkWriter:
    """Stores the chunks of one epoch, in order, with one request under way at a time (W1).

    Args:
        epoch: The epoch, which this process created.
        stored: Position in the command log behind what the epochs before have.
        time_us: Time of the last chunk, in microseconds since the Unix epoch.
    """

    def __init__(self, epoch: Epoch, stored: int, time_us: int) -> None:
        self.epoch = epoch
        self.number = 0
        """Number of the next chunk."""
        self.stored = stored
        """Position in the command log behind the last stored chunk."""
        self.time_us = time_us
        """Time of the last stored chunk."""
        self.fenced = False
        """Whether its epoch is sealed."""
        self.under_way = False
        """Whether a chunk is: a request that was given up leaves it so for ever."""
        self._cut: int | None = None
        self._cut_at: tuple[ChunkId, int] | None = None

    @property
    def last(self) -> ChunkId:
        """The last stored chunk; number -1: none in this epoch."""
        return ChunkId(self.epoch.epoch, self.number - 1)

    def cut(self, end: int) -> None:
        """Begin a checkpoint of the log up to a position, which sealing a segment has just made.

        One checkpoint at a time; a new one replaces one that was given up.
        """
        self._cut, self._cut_at = end, None
        self._note_cut()

    @property
    def cut_at(self) -> tuple[ChunkId, int] | None:
        """The last chunk before the cut, and its time; None: it is not stored yet.

        No chunk behind it has a byte from before the cut, and it has none from behind.
        """
        return self._cut_at

    def _note_cut(self) -> None:
        if self._cut is not None and self.stored >= self._cut and self.number:
            self._cut, self._cut_at = None, (self.last, self.time_us)

    def store(self, segment: int, offset: int, payload: bytes, now_us: int) -> Steps[None]:
        """Store the next chunk (W2, W3). The first one of an epoch has no bytes (T2).

        Args:
            segment: Segment of the bytes; 0: none, for a chunk without bytes.
            offset: Offset of the bytes in it.
            payload: Whole batches of records; none: a sign of life (W5).
            now_us: In microseconds since the Unix epoch.

        Raises:
            FencedError: Another node has taken over.
            ForeignRemoteLogError: Another writer uses this epoch.
        """
        if payload and not self.number:
            raise RuntimeError("the first chunk of an epoch is empty")
        chunk = self._next(ChunkKind.DATA, now_us, segment, offset, payload)
        yield from self._create(chunk)
        if payload:
            self.stored = chunk.end
        self._note_cut()

    def seal(self, now_us: int) -> Steps[None]:
        """Seal the own epoch, at an end in good order (T3): a standby need not wait.

        Raises:
            FencedError: Another node has taken over; that is as good.
            ForeignRemoteLogError: Another writer uses this epoch.
        """
        yield from self._create(self._next(ChunkKind.SEAL, now_us))
        self.fenced = True

    def _next(
        self, kind: ChunkKind, now_us: int, segment: int = 0, offset: int = 0, payload: bytes = b""
    ) -> Chunk:
        if self.fenced:
            raise FencedError("the epoch is sealed", path=chunk_name(self.last))
        if self.under_way:
            raise RuntimeError("a chunk is under way")
        self.under_way = True
        at = ChunkId(self.epoch.epoch, self.number)
        time_us = max(now_us, self.time_us)
        return Chunk(at, kind, self.epoch.nonce, time_us, segment, offset, payload)

    def _create(self, chunk: Chunk) -> Steps[None]:
        name, data = chunk_name(chunk.id), encode_chunk(chunk)
        while not (yield Create(name, data)):
            header = yield GetRange(name, 0, HEADER_BYTES)
            if header is not None and self._is_own(chunk, header, data):
                break
            # said to exist and not found: the create is repeated
        self.number += 1
        self.time_us = chunk.time_us
        self.under_way = False

    def _is_own(self, chunk: Chunk, header: bytes, data: bytes) -> bool:
        """Return True where an earlier try has stored the chunk; raise where another has (W2)."""
        if header == data[:HEADER_BYTES]:
            return True
        found = decode_header(chunk.id, header)
        if found.is_seal:
            self.fenced = True
            raise FencedError(
                "another node has taken over: the epoch is sealed", path=chunk_name(chunk.id)
            )
        raise ForeignRemoteLogError(
            f"another writer uses epoch {chunk.id.epoch}",
            path=chunk_name(chunk.id),
            hint="two logs may share this prefix, or a running machine was copied",
        )


class PrimaryLease(msgspec.Struct):
    """Says when an idle writer stores a chunk, and whether a primary may answer (W5). Pure.

    Times are of CLOCK_BOOTTIME, in microseconds. The lease counts from when the request was sent:
    no standby can have begun to wait earlier. Safety does not depend on it, only how long a primary
    that is cut off answers reads.
    """

    beat_us: int
    """Longest time between two chunks of an idle writer."""
    takeover_after_us: int
    """Silence after which a standby takes over."""
    sent_us: int = 0
    """When the last stored chunk was sent."""

    def count_stored(self, sent_us: int) -> None:
        """Count a stored chunk by when its first request was sent."""
        self.sent_us = sent_us

    def beat_due_us(self) -> int:
        """Return when an idle writer stores a chunk without bytes."""
        return self.sent_us + self.beat_us

    def may_answer(self, now_us: int) -> bool:
        """Return whether replies may leave, those to reads included."""
        return now_us - self.sent_us < self.takeover_after_us
