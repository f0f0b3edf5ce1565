"""Objects of a remote log: names, chunk header, contents of the JSON objects.

All names are below the prefix of the log. An epoch has 10 digits, a chunk number 12, the number of
a segment 9; so names sort as their numbers do::

    format.json                                   the log is adopted: ``LogFormat``; written last
    epochs/<epoch>.json                           the writer of the epoch: ``Epoch``
    log/<epoch>/<number>                          a chunk, or the seal of the epoch
    segments/<epoch>/<number>-<crc32c>-<bytes>.log    a whole sealed segment
    checkpoints/<epoch>-<number>.json             the segments behind that chunk: ``Checkpoint``
    live/<epoch>-<number>                         live index of that checkpoint
    probe/<nonce>                                 test of the store

Chunk: a header of 70 bytes, then bytes of one segment, perhaps none. A seal has a header only. All
numbers are big endian::

    4s   magic, "FJRC"
    u8   version, 1
    u8   kind: 1 data, 2 seal
    u64  epoch
    u64  number of the chunk, dense from 0 in each epoch
    16s  nonce of the writer
    u64  time of the writer in microseconds since the Unix epoch, never lower than before
    u32  number of the segment
    u64  offset of the bytes in it
    u32  length of the bytes
    u32  CRC-32C of the bytes
    u32  CRC-32C of the header before this field

The epoch and the number in a header are those of the object's name.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.layout import SEGMENT_NUMBER_MAX, pack_position
from fastjournal.errors import ForeignRemoteLogError, RemoteLogCorruptError

FORMAT: Final = 1
FORMAT_NAME: Final = "format.json"
EPOCHS: Final = "epochs"
SEGMENTS: Final = "segments"
CHECKPOINTS: Final = "checkpoints"
LIVE: Final = "live"
PROBES: Final = "probe"
NONCE_BYTES: Final = 16

_MAGIC = b"FJRC"
_VERSION = 1
_HEADER = struct.Struct(">4sBBQQ16sQIQIII")
HEADER_BYTES: Final = _HEADER.size
_CRC = struct.Struct(">I")
_CRC_AT = HEADER_BYTES - _CRC.size

_EPOCH_NAME = re.compile(r"epochs/([0-9]{10})\.json")
_CHUNK_NAME = re.compile(r"log/([0-9]{10})/([0-9]{12})")
_SEGMENT_NAME = re.compile(r"segments/([0-9]{10})/([0-9]{9})-([0-9a-f]{8})-([1-9][0-9]*)\.log")
_CHECKPOINT_NAME = re.compile(r"checkpoints/([0-9]{10})-([0-9]{12})\.json")


class ChunkId(NamedTuple):
    """Place of a chunk in the remote log; chunk ids sort in the order of writing."""

    epoch: int
    number: int


class ChunkKind(IntEnum):
    """Kind of a chunk."""

    DATA = 1
    SEAL = 2
    """The end of its epoch: its writer stores nothing more."""


class Chunk(msgspec.Struct, frozen=True):
    """One chunk. A seal has no segment and no bytes."""

    id: ChunkId
    kind: ChunkKind
    nonce: bytes
    time_us: int
    """Time of the writer, in microseconds since the Unix epoch."""
    segment: int = 0
    """Number of the segment; 0: the writer has none yet."""
    offset: int = 0
    """Offset of the bytes in the segment."""
    payload: bytes = b""

    @property
    def end(self) -> int:
        """Position in the command log behind the bytes."""
        return pack_position(self.segment, self.offset + len(self.payload))

    @property
    def is_seal(self) -> bool:
        """Whether it is the seal of its epoch."""
        return self.kind is ChunkKind.SEAL


class SegmentRef(NamedTuple):
    """A sealed segment, as it was when a checkpoint linked it."""

    number: int
    bytes: int
    crc32c: int
    """CRC-32C of the whole file."""

    @property
    def file_name(self) -> str:
        """Last part of its name in the store, and its text in a checkpoint."""
        return f"{self.number:09d}-{self.crc32c:08x}-{self.bytes}.log"

    @property
    def end(self) -> int:
        """Position in the command log behind it."""
        return pack_position(self.number, self.bytes)


class LogFormat(msgspec.Struct, frozen=True):
    """Contents of ``format.json``: the log is adopted."""

    format: int
    log: str
    """UUID of the log."""
    checkpoint: int
    """Number of the one checkpoint of epoch 0 that counts: a former try to adopt the directory may
    have left others, and their requests may still arrive."""


class Epoch(msgspec.Struct, frozen=True):
    """Contents of ``epochs/<epoch>.json``: who writes the epoch."""

    epoch: int
    log: str
    """UUID of the log."""
    node: str
    """Name of the node, for people."""
    nonce: bytes
    """16 random bytes of the writer's memory, in every chunk of the epoch."""
    sealed_at: int
    """Number of the chunk that is the seal of the epoch before; in epoch 0: -1."""
    addresses: tuple[str, ...] = ()
    """Addresses for clients."""
    build: str = ""


class Checkpoint(msgspec.Struct, frozen=True):
    """Contents of a checkpoint: the log behind a chunk is these sealed segments and nothing else.

    They are objects of the checkpoint's epoch.
    """

    time_us: int
    """When it was taken, in microseconds since the Unix epoch."""
    segments: tuple[SegmentRef, ...]
    """Ascending."""


class _CheckpointFile(msgspec.Struct, frozen=True):
    format: int
    time_us: int
    segments: list[str]


# --- names --------------------------------------------------------------------------------------


def chunks_of(epoch: int) -> str:
    """Return the folder of the chunks of an epoch."""
    return f"log/{epoch:010d}"


def chunk_name(chunk: ChunkId) -> str:
    """Return the name of a chunk."""
    return f"log/{chunk.epoch:010d}/{chunk.number:012d}"


def chunk_id(name: str) -> ChunkId | None:
    """Return which chunk an object is; None: it is none."""
    match = _CHUNK_NAME.fullmatch(name)
    return ChunkId(int(match[1]), int(match[2])) if match else None


def epoch_name(epoch: int) -> str:
    """Return the name of the object of an epoch."""
    return f"{EPOCHS}/{epoch:010d}.json"


def epoch_number(name: str) -> int | None:
    """Return which epoch an object is; None: it is none."""
    match = _EPOCH_NAME.fullmatch(name)
    return int(match[1]) if match else None


def checkpoint_stem(behind: ChunkId) -> str:
    """Return the name of a checkpoint without its end; it sorts right before the whole name."""
    return f"{CHECKPOINTS}/{behind.epoch:010d}-{behind.number:012d}"


def checkpoint_name(behind: ChunkId) -> str:
    """Return the name of the checkpoint behind a chunk."""
    return f"{checkpoint_stem(behind)}.json"


def checkpoint_id(name: str) -> ChunkId | None:
    """Return behind which chunk a checkpoint is; None: the object is no checkpoint."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return ChunkId(int(match[1]), int(match[2])) if match else None


def live_name(behind: ChunkId) -> str:
    """Return the name of the live index of a checkpoint."""
    return f"{LIVE}/{behind.epoch:010d}-{behind.number:012d}"


def segments_of(epoch: int) -> str:
    """Return the folder of the segments of an epoch."""
    return f"{SEGMENTS}/{epoch:010d}"


def segment_object(epoch: int, ref: SegmentRef) -> str:
    """Return the name of a sealed segment of an epoch."""
    return f"{SEGMENTS}/{epoch:010d}/{ref.file_name}"


def segment_ref(name: str) -> tuple[int, SegmentRef] | None:
    """Return epoch and description of a sealed segment; None: the object is none."""
    match = _SEGMENT_NAME.fullmatch(name)
    if match is None:
        return None
    return int(match[1]), SegmentRef(int(match[2]), int(match[4]), int(match[3], 16))


# --- chunks -------------------------------------------------------------------------------------


def encode_chunk(chunk: Chunk) -> bytes:
    """Return the bytes of a chunk."""
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        chunk.kind,
        chunk.id.epoch,
        chunk.id.number,
        chunk.nonce,
        chunk.time_us,
        chunk.segment,
        chunk.offset,
        len(chunk.payload),
        google_crc32c.value(chunk.payload),
        0,
    )[:_CRC_AT]
    return b"".join((header, _CRC.pack(google_crc32c.value(header)), chunk.payload))


def decode_chunk(chunk: ChunkId, data: bytes) -> Chunk:
    """Return a chunk.

    Args:
        chunk: Which one the name of the object says.
        data: The whole object.

    Raises:
        RemoteLogCorruptError: It is cut, damaged, of another version or in another place.
    """
    name = chunk_name(chunk)
    found, length, crc = _unpack(chunk, data)
    payload = data[HEADER_BYTES:]
    if len(payload) != length:
        raise _damaged(name, f"it has {len(payload)} bytes of the log, its header says {length}")
    if google_crc32c.value(payload) != crc:
        raise _damaged(name, "the checksum of its bytes is wrong", HEADER_BYTES)
    return msgspec.structs.replace(found, payload=payload)


def decode_header(chunk: ChunkId, data: bytes) -> Chunk:
    """Return a chunk without its bytes, from its header; raises as ``decode_chunk``."""
    return _unpack(chunk, data)[0]


def _unpack(chunk: ChunkId, data: bytes) -> tuple[Chunk, int, int]:
    """Return a chunk without its bytes, their length and their checksum."""
    name = chunk_name(chunk)
    if len(data) < HEADER_BYTES:
        raise _damaged(name, f"it is cut: {len(data)} bytes are no header of a chunk")
    magic, version, kind, epoch, number, nonce, time_us, *rest = _HEADER.unpack_from(data)
    segment, offset, length, payload_crc, header_crc = rest
    if magic != _MAGIC:
        raise _damaged(name, "it is no chunk: it begins with other bytes than FJRC")
    if version != _VERSION:
        raise RemoteLogCorruptError(
            f"it has version {version}, this release reads {_VERSION}",
            path=name,
            hint="read it with the release that wrote it",
        )
    if google_crc32c.value(data[:_CRC_AT]) != header_crc:
        raise _damaged(name, "the checksum of its header is wrong", _CRC_AT)
    found = ChunkId(epoch, number)
    if found != chunk:
        raise _damaged(name, f"it is a copy of another chunk, {chunk_name(found)}")
    if kind not in (ChunkKind.DATA, ChunkKind.SEAL):
        raise _damaged(name, f"a chunk of kind {kind} is not known")
    if segment > SEGMENT_NUMBER_MAX or (length and not segment):
        raise _damaged(name, f"{segment} is no number of a segment")
    if kind == ChunkKind.SEAL and length:
        raise _damaged(name, "a seal has bytes of the log")
    header = Chunk(chunk, ChunkKind(kind), nonce, time_us, segment, offset)
    return header, length, payload_crc


def require_nonce(chunk: Chunk, epoch: Epoch) -> None:
    """Raise ``ForeignRemoteLogError`` where a data chunk is not of its epoch's writer.

    Any node may write a seal.
    """
    if not chunk.is_seal and chunk.nonce != epoch.nonce:
        raise ForeignRemoteLogError(
            f"another writer than that of epoch {epoch.epoch}, {epoch.node}, has written it",
            path=chunk_name(chunk.id),
            hint="two logs may share this prefix, or a running machine was copied",
        )


# --- JSON objects -------------------------------------------------------------------------------

Contents = TypeVar("Contents")


def encode_json(contents: LogFormat | Epoch) -> bytes:
    """Return the bytes of ``format.json`` or of an epoch."""
    return msgspec.json.encode(contents)


def decode_format(data: bytes, log: str | None) -> LogFormat:
    """Return the contents of ``format.json``.

    Args:
        data: The object.
        log: UUID that it has to have; None: any.

    Raises:
        RemoteLogCorruptError: It is damaged, or of another version.
        ForeignRemoteLogError: It is of another log.
    """
    found = _decode_json(FORMAT_NAME, data, LogFormat)
    if found.format != FORMAT:
        raise RemoteLogCorruptError(
            f"it has format {found.format}, this release reads {FORMAT}",
            path=FORMAT_NAME,
            hint="read it with the release that wrote it",
        )
    require_log(FORMAT_NAME, found.log, log)
    return found


def decode_epoch(number: int, data: bytes, log: str | None) -> Epoch:
    """Return the contents of the object of an epoch.

    Raises:
        RemoteLogCorruptError: It is damaged.
        ForeignRemoteLogError: It is of another log.
    """
    name = epoch_name(number)
    found = _decode_json(name, data, Epoch)
    require_log(name, found.log, log)
    if found.epoch != number:
        raise _damaged(name, f"it is a copy of epoch {found.epoch}")
    if len(found.nonce) != NONCE_BYTES or (found.sealed_at < 0) != (number == 0):
        raise _damaged(name, "it has no nonce of 16 bytes, or no number of a seal")
    return found


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint."""
    files = [ref.file_name for ref in checkpoint.segments]
    return msgspec.json.encode(_CheckpointFile(FORMAT, checkpoint.time_us, files))


def decode_checkpoint(behind: ChunkId, data: bytes) -> Checkpoint:
    """Return the contents of a checkpoint.

    Raises:
        RemoteLogCorruptError: It is damaged, or of another version.
    """
    name = checkpoint_name(behind)
    found = _decode_json(name, data, _CheckpointFile)
    if found.format != FORMAT:
        raise _damaged(name, f"it has format {found.format}, this release reads {FORMAT}")
    refs: list[SegmentRef] = []
    for file in found.segments:
        parsed = segment_ref(f"{segments_of(behind.epoch)}/{file}")
        if parsed is None or (refs and parsed[1].number <= refs[-1].number):
            raise _damaged(name, f"{file!r} is no segment behind the one before it")
        refs.append(parsed[1])
    return Checkpoint(found.time_us, tuple(refs))


def require_log(name: str, found: str, log: str | None) -> None:
    """Raise ``ForeignRemoteLogError`` where an object is of another log than ``log``."""
    if log is not None and found != log:
        raise ForeignRemoteLogError(
            f"it belongs to the log {found}, and not to {log}",
            path=name,
            hint="give each log a prefix of its own",
        )


def _decode_json(name: str, data: bytes, contents: type[Contents]) -> Contents:
    try:
        return msgspec.json.decode(data, type=contents)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(name, f"it cannot be read: {error}") from error


def _damaged(name: str, message: str, offset: int | None = None) -> RemoteLogCorruptError:
    return RemoteLogCorruptError(message, path=name, offset=offset)
