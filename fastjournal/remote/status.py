"""Status of a remote log as its store shows it: who writes, and how much a restore reads."""

from __future__ import annotations

import msgspec

from fastjournal.errors import RemoteLogCorruptError
from fastjournal.remote.objects import (
    CHECKPOINTS,
    EPOCHS,
    FORMAT_NAME,
    HEADER_BYTES,
    ChunkId,
    checkpoint_id,
    checkpoint_name,
    chunk_id,
    chunk_name,
    decode_checkpoint,
    decode_epoch,
    decode_format,
    decode_header,
    epoch_name,
    epoch_number,
)
from fastjournal.remote.store import Get, GetRange, List, Listed, Steps


class RemoteStatus(msgspec.Struct):
    """What the store shows of a remote log. Times are in microseconds since the Unix epoch."""

    log: str
    """UUID of the log."""
    epoch: int
    node: str
    """Writer of the newest epoch."""
    addresses: tuple[str, ...]
    """Its addresses for clients."""
    build: str
    sealed: bool
    """Whether its epoch is sealed: nobody writes."""
    written_us: int
    """Time of the last chunk."""
    checkpoint: str
    """Epoch and number of the chunk of the newest checkpoint."""
    checkpoint_us: int
    segments: int
    """Segments of the checkpoint."""
    segment_bytes: int
    chunks: int
    """Chunks behind the checkpoint, those without bytes and seals included."""
    chunk_bytes: int
    """Bytes of the log in them."""


def read_status() -> Steps[RemoteStatus]:
    """Return the status; what the writer does meanwhile may show in a part of it.

    Raises:
        RemoteLogCorruptError: There is no remote log, or an object is damaged or missing.
    """
    content = yield Get(FORMAT_NAME)
    if content is None:
        raise RemoteLogCorruptError("the prefix holds no remote log", path=FORMAT_NAME)
    adopted = decode_format(content, None)
    epochs: list[Listed] = yield List(EPOCHS)
    numbers = [number for name, _ in epochs if (number := epoch_number(name)) is not None]
    newest = max(numbers, default=0)
    epoch = decode_epoch(newest, (yield from _must_get(epoch_name(newest))), adopted.log)
    listed: list[Listed] = yield List(CHECKPOINTS)
    found = [behind for name, _ in listed if (behind := checkpoint_id(name)) is not None]
    first = ChunkId(0, adopted.checkpoint)
    behind = max((each for each in found if each.epoch), default=first)
    checkpoint = decode_checkpoint(behind, (yield from _must_get(checkpoint_name(behind))))
    chunks: list[Listed] = yield List("log", chunk_name(behind))
    ids = [chunk for name, _ in chunks if (chunk := chunk_id(name)) is not None]
    last = max(ids, default=behind)
    written_us, sealed = yield from _end(last, checkpoint.time_us)
    return RemoteStatus(
        log=adopted.log,
        epoch=epoch.epoch,
        node=epoch.node,
        addresses=epoch.addresses,
        build=epoch.build,
        sealed=sealed and last.epoch == epoch.epoch,
        written_us=written_us,
        checkpoint=f"{behind.epoch}-{behind.number}",
        checkpoint_us=checkpoint.time_us,
        segments=len(checkpoint.segments),
        segment_bytes=sum(segment.bytes for segment in checkpoint.segments),
        chunks=len(chunks),
        chunk_bytes=sum(size - HEADER_BYTES for _, size in chunks),
    )


def _must_get(name: str) -> Steps[bytes]:
    content: bytes | None = yield Get(name)
    if content is None:
        raise RemoteLogCorruptError("it was listed, and is missing", path=name)
    return content


def _end(last: ChunkId, time_us: int) -> Steps[tuple[int, bool]]:
    """Return time and kind of the last chunk; the checkpoint's time where it was collected."""
    header: bytes | None = yield GetRange(chunk_name(last), 0, HEADER_BYTES)
    if header is None:
        return time_us, False
    chunk = decode_header(last, header)
    return chunk.time_us, chunk.is_seal
