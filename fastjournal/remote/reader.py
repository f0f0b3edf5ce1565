"""Log reader and takeover: follow the remote log to its end, seal the epoch, begin the next one.

A restore, a standby and a taker read the same way (rules T1, T2, G2, S3 of docs/remote-log.md): the
newest checkpoint, then the chunks behind it. The collector of the primary deletes objects
meanwhile. So a missing object proves nothing by itself: a listing that begins afterwards decides
whether the log ends there, or the reader begins anew with the newest checkpoint.

The rules yield store requests and the local steps below, which the caller carries out in a
directory. ``SilenceWatch`` says when a standby takes over; a wrong guess costs a failover, and
never data.
"""

from __future__ import annotations

from typing import NamedTuple

from fastjournal.cmdlog.format.layout import pack_position
from fastjournal.errors import RemoteLogCorruptError
from fastjournal.remote.objects import (
    CHECKPOINTS,
    FORMAT_NAME,
    HEADER_BYTES,
    Checkpoint,
    Chunk,
    ChunkId,
    ChunkKind,
    Epoch,
    SegmentRef,
    checkpoint_id,
    checkpoint_name,
    checkpoint_stem,
    chunk_id,
    chunk_name,
    chunks_of,
    decode_checkpoint,
    decode_chunk,
    decode_epoch,
    decode_format,
    decode_header,
    encode_chunk,
    encode_json,
    epoch_name,
    require_nonce,
)
from fastjournal.remote.store import Create, Get, GetRange, List, Steps

STORED_LOOK = 1000
"""Chunks of one listing of ``stored_end``, from the end of an epoch back."""


class Restart(NamedTuple):
    """Local step: what was read before does not count; the checkpoint is the log. No answer."""

    behind: ChunkId
    checkpoint: Checkpoint


class Fetch(NamedTuple):
    """Local step: have this segment of the checkpoint. Answer: whether its object is there."""

    epoch: int
    segment: SegmentRef


class Append(NamedTuple):
    """Local step: have the bytes of a chunk. Answer: whether all bytes before them are there."""

    chunk: Chunk


class LogReader:
    """Reads the remote log from its newest checkpoint on.

    Args:
        log: UUID of the log; None: any.
        until_us: Read no chunk and no checkpoint of a later time, in microseconds since the Unix
            epoch; None: all.
    """

    def __init__(self, log: str | None = None, *, until_us: int | None = None) -> None:
        self.base: ChunkId | None = None
        """The checkpoint with which it began; None: it has to begin."""
        self.epoch: Epoch | None = None
        """The epoch that it reads."""
        self.number = 0
        """Number of the chunk that comes next."""
        self.sealed = False
        """Whether that is a seal, and no later epoch is known."""
        self.sealed_by_writer = False
        """Whether that seal is of the epoch's own writer, which has ended in good order (T3). Of
        another one: a taker is about to create the next epoch."""
        self.time_us = 0
        """Time of the last chunk or checkpoint, in microseconds since the Unix epoch."""
        self.end = 0
        """Position in the command log behind all that was read."""
        self.past_until = False
        """Whether the next chunk is of a later time than wanted."""
        self.adopted = 0
        """Number of the checkpoint of epoch 0 that counts."""
        self._log = log
        self._until_us = until_us
        self._hole: tuple[ChunkId, ChunkId] | None = None
        """Checkpoint and chunk at which it last began anew."""

    @property
    def here(self) -> ChunkId:
        """The chunk that comes next."""
        assert self.epoch is not None
        return ChunkId(self.epoch.epoch, self.number)

    def advance(self) -> Steps[int]:
        """Read on until a chunk is missing or the newest epoch is sealed; return the new chunks.

        Raises:
            RemoteLogCorruptError: An object is damaged, there is no checkpoint whose objects are
                all there, or the same chunk is missing again behind the same checkpoint.
            ForeignRemoteLogError: An object is of another log, or of another writer.
        """
        self.sealed = False
        chunks = 0
        while True:
            if self.base is None:
                yield from self._begin()
            assert self.epoch is not None
            data = yield Get(chunk_name(self.here))
            if data is None:
                return chunks
            chunk = decode_chunk(self.here, data)
            if chunk.is_seal:
                self.sealed_by_writer = chunk.nonce == self.epoch.nonce
                if (yield from self._next_epoch()):
                    return chunks
            elif self._until_us is not None and chunk.time_us > self._until_us:
                self.past_until = True
                return chunks
            else:
                chunks += yield from self._take(chunk)

    def confirm(self) -> Steps[bool]:
        """Return whether the log ends here; else ``advance`` begins anew (G2).

        The listings begin after the missing chunk or the seal was met. A checkpoint at or behind
        it, or a later chunk of the epoch, proves that a collector has made the hole, or that the
        seal is one that a slow taker wrote into such a hole.
        """
        name = chunk_name(self.here)
        # of epoch 0 only the checkpoint counts with which the reader began
        stem = checkpoint_stem(max(self.here, ChunkId(1, 0)))
        later = yield List(CHECKPOINTS, stem, 1)
        if not later:
            later = yield List(chunks_of(self.here.epoch), name, 1)
        if not later:
            return True
        if self.sealed or (yield GetRange(name, 0, 1)) is None:
            self._restart()
        return False  # else the chunk was written after it was missing

    def _restart(self) -> None:
        assert self.base is not None
        hole = (self.base, self.here)
        if hole == self._hole:
            raise RemoteLogCorruptError(
                "the chunk is missing, and later objects are there",
                path=chunk_name(self.here),
                hint="somebody deleted parts of the remote log: restore from an older checkpoint",
            )
        self._hole = hole
        self.base = None

    def _begin(self) -> Steps[None]:
        """Read the newest checkpoint whose objects are all there (T1).

        The collector may delete the objects of all that were listed: then there are newer ones.
        """
        content = yield Get(FORMAT_NAME)
        if content is None:
            raise RemoteLogCorruptError("the prefix holds no remote log", path=FORMAT_NAME)
        self.adopted = decode_format(content, self._log).checkpoint
        newest = ""
        while listed := (yield List(CHECKPOINTS, newest)):
            newest = listed[-1].name
            for name, _ in reversed(listed):
                behind = checkpoint_id(name)
                if behind is not None and (yield from self._load(behind)):
                    return
        raise RemoteLogCorruptError(
            "there is no checkpoint whose segments are all there",
            path=CHECKPOINTS,
            hint="somebody deleted parts of the remote log, or it was never that old",
        )

    def _load(self, behind: ChunkId) -> Steps[bool]:
        if behind.epoch == 0 and behind.number != self.adopted:
            return False
        content = yield Get(checkpoint_name(behind))
        if content is None:
            return False
        checkpoint = decode_checkpoint(behind, content)
        if self._until_us is not None and checkpoint.time_us > self._until_us:
            return False
        epoch = yield from self._read_epoch(behind.epoch)
        if epoch is None:
            raise RemoteLogCorruptError("the epoch is missing", path=epoch_name(behind.epoch))
        yield Restart(behind, checkpoint)
        for segment in checkpoint.segments:
            if not (yield Fetch(behind.epoch, segment)):
                return False
        self.base, self.epoch, self.number = behind, epoch, behind.number + 1
        self.time_us = checkpoint.time_us
        self.end = checkpoint.segments[-1].end if checkpoint.segments else 0
        return True

    def _next_epoch(self) -> Steps[bool]:
        """Go on behind a seal; return whether it is the end as far as is known."""
        assert self.epoch is not None
        following = yield from self._read_epoch(self.epoch.epoch + 1)
        if following is None:
            self.sealed = True
            return True
        if following.sealed_at != self.number:
            self._restart()  # a slow taker wrote this seal into a hole
        else:
            self.epoch, self.number = following, 0
        return False

    def _read_epoch(self, number: int) -> Steps[Epoch | None]:
        content = yield Get(epoch_name(number))
        return None if content is None else decode_epoch(number, content, self._log)

    def _take(self, chunk: Chunk) -> Steps[int]:
        assert self.epoch is not None
        require_nonce(chunk, self.epoch)
        if chunk.payload:
            if not (yield Append(chunk)):
                self._restart()
                return 0
            self.end = chunk.end
        self.number += 1
        self.time_us = max(self.time_us, chunk.time_us)
        return 1


def read_to_end(reader: LogReader) -> Steps[int]:
    """Read up to an end that a listing has confirmed, or up to ``until``; return the new chunks.

    Raises:
        RemoteLogCorruptError: As ``LogReader.advance``.
        ForeignRemoteLogError: As ``LogReader.advance``.
    """
    chunks = 0
    while True:
        chunks += yield from reader.advance()
        if reader.past_until or (yield from reader.confirm()):
            return chunks


class Candidate(NamedTuple):
    """A node that wants to be the writer of the next epoch."""

    node: str
    nonce: bytes
    """16 random bytes, made for this takeover and kept in memory only (W1)."""
    addresses: tuple[str, ...] = ()
    build: str = ""


def take_over(reader: LogReader, candidate: Candidate, now_us: int) -> Steps[Epoch | None]:
    """Seal the newest epoch and create the next one (T1, T2).

    Whatever data is met where the seal should be is taken, and the seal tried behind it. Where the
    next epoch is met, another node was faster.

    Args:
        reader: The log; all that it yields is read and kept.
        candidate: The node.
        now_us: In microseconds since the Unix epoch.

    Returns:
        The new epoch. None: another node was faster; go on as a standby of it.

    Raises:
        RemoteLogCorruptError: As ``LogReader.advance``.
        ForeignRemoteLogError: As ``LogReader.advance``.
    """
    begun = reader.epoch
    while True:
        yield from reader.advance()
        if begun is not None and reader.epoch != begun:
            return None  # it has a writer: its epoch is not to be sealed for the end of another
        begun = reader.epoch
        if not reader.sealed:
            yield Create(chunk_name(reader.here), _seal(reader, candidate.nonce, now_us))
        elif (yield from reader.confirm()):
            break
    assert reader.epoch is not None
    epoch = Epoch(
        epoch=reader.epoch.epoch + 1,
        log=reader.epoch.log,
        node=candidate.node,
        nonce=candidate.nonce,
        sealed_at=reader.number,
        addresses=candidate.addresses,
        build=candidate.build,
    )
    return epoch if (yield from create_epoch(epoch)) else None


def create_epoch(epoch: Epoch) -> Steps[bool]:
    """Create the object of an epoch; return whether the epoch is of this nonce."""
    name = epoch_name(epoch.epoch)
    while not (yield Create(name, encode_json(epoch))):
        content = yield Get(name)
        if content is not None:
            return decode_epoch(epoch.epoch, content, epoch.log).nonce == epoch.nonce
    return True


def _seal(reader: LogReader, nonce: bytes, now_us: int) -> bytes:
    time_us = max(now_us, reader.time_us)
    return encode_chunk(Chunk(reader.here, ChunkKind.SEAL, nonce, time_us))


def stored_end(log: str, epoch: int) -> Steps[int | None]:
    """Return the position behind all that the store has of an epoch that is over, and before it.

    Args:
        log: UUID of the log.
        epoch: There is a later one.

    Returns:
        The position; None: nobody knows it any more, as the collector has deleted its chunks.
    """
    content = yield Get(epoch_name(epoch + 1))
    if content is None:
        raise RemoteLogCorruptError("the epoch is missing", path=epoch_name(epoch + 1))
    end = at = ChunkId(epoch, decode_epoch(epoch + 1, content, log).sealed_at)
    while True:
        first = max(0, at.number - STORED_LOOK)
        after = chunk_name(ChunkId(at.epoch, first - 1)) if first else ""
        listed = yield List(chunks_of(at.epoch), after, at.number - first)
        found = ((chunk_id(name), size) for name, size in listed)
        sizes = {each: size for each, size in found if each is not None and each < at}
        last = max((each for each in sizes if sizes[each] > HEADER_BYTES), default=at)
        if last != at:
            header = yield GetRange(chunk_name(last), 0, HEADER_BYTES)
            if header is None:
                return None  # the collector is there by now
            chunk = decode_header(last, header)
            return pack_position(chunk.segment, chunk.offset + sizes[last] - HEADER_BYTES)
        if first and len(sizes) == at.number - first:
            at = ChunkId(at.epoch, first)
        elif first == 0 and len(sizes) == at.number and at.epoch:
            content = yield Get(epoch_name(at.epoch))
            at = ChunkId(at.epoch - 1, decode_epoch(at.epoch, content, log).sealed_at)
        else:
            break
    listed = yield List(CHECKPOINTS)
    ids = (checkpoint_id(name) for name, _ in listed)
    before = [each for each in ids if each is not None and each < end and (each.epoch or each < at)]
    content = (yield Get(checkpoint_name(max(before)))) if before else None
    if content is None:
        return None
    segments = decode_checkpoint(max(before), content).segments
    return segments[-1].end if segments else 0


class SilenceWatch:
    """Says when a standby takes over (S3). Pure: times are arguments, of CLOCK_BOOTTIME.

    Args:
        takeover_after_us: Silence of the primary after which it does.
        pause_us_max: Distance of two reads from which on the standby itself was paused.
    """

    def __init__(self, takeover_after_us: int, pause_us_max: int) -> None:
        self._takeover_after_us = takeover_after_us
        self._pause_us_max = pause_us_max
        self._quiet_since_us: int | None = None
        self._last_us: int | None = None

    def read(self, began_us: int, ended_us: int, *, chunks: int) -> bool:
        """Count a successful read up to the end of the log; return whether to take over.

        Args:
            began_us: When it began.
            ended_us: When it ended.
            chunks: New chunks that it met.
        """
        paused = self._last_us is None or ended_us - self._last_us > self._pause_us_max
        self._last_us = ended_us
        if chunks or paused or self._quiet_since_us is None:
            self._quiet_since_us = ended_us
            return False
        return began_us - self._quiet_since_us >= self._takeover_after_us

    def fail(self) -> None:
        """Count a read that failed: the silence begins anew."""
        self._quiet_since_us = None
