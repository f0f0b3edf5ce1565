"""Directory rules of a node: make a log directory what the remote log says, judge local surplus.

Rules S1, S3 and S4 of docs/remote-log.md, and ``remote.json``, by which a directory knows its log::

    {"format": "fastjournal-remote", "version": 1, "log": UUID, "epoch": the last one it wrote in}

It has no position: each start compares the directory with the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from fastjournal.cmdlog.format.layout import pack_position, unpack_position
from fastjournal.remote.objects import Chunk, SegmentRef
from fastjournal.remote.writer import RemoteAck
from fastjournal.versioned_json import decode_versioned

REMOTE_FILE = "remote.json"
REMOTE_FORMAT = "fastjournal-remote"
REMOTE_VERSION = 1


class RemoteFile(msgspec.Struct, frozen=True):
    """Contents of ``remote.json``."""

    format: str
    version: int
    log: str
    """UUID of the log."""
    epoch: int
    """The last epoch that this directory's daemon created."""


def encode_remote_file(log: str, epoch: int) -> bytes:
    """Return the bytes of ``remote.json``."""
    return msgspec.json.encode(RemoteFile(REMOTE_FORMAT, REMOTE_VERSION, log, epoch)) + b"\n"


def decode_remote_file(data: bytes, path: str) -> RemoteFile:
    """Return the contents of ``remote.json``.

    Raises:
        LogCorruptError: It is damaged, or of another version.
    """
    return decode_versioned(
        data, RemoteFile, format_name=REMOTE_FORMAT, version=REMOTE_VERSION, path=path
    )


def takes_over_at_once(directory_epoch: int | None, newest_epoch: int) -> bool:
    """Return whether a node takes over without waiting for a silence.

    It holds the append lock of a directory whose daemon created the newest epoch. So that daemon
    has ended: it held this lock.

    Args:
        directory_epoch: Of ``remote.json``; None: there is none.
        newest_epoch: The newest epoch of the store.
    """
    return directory_epoch == newest_epoch


class SurplusUse(Enum):
    """What becomes of local bytes that the store has not."""

    CUT = "cut"
    """Keep them aside and cut them: no client was told OK."""
    STORE = "store"
    """They are the first chunks of the next epoch of this node."""
    DIVERGED = "diverged"
    """Keep them in a directory of their own, until a person removes it."""


def judge_surplus(ack: RemoteAck, directory_epoch: int | None, newest_epoch: int) -> SurplusUse:
    """Return what becomes of local bytes that the store has not (S1)."""
    if ack is RemoteAck.DURABLE:
        return SurplusUse.CUT
    return SurplusUse.STORE if directory_epoch == newest_epoch else SurplusUse.DIVERGED


class Fit(Enum):
    """How a chunk fits into its segment on this disk."""

    PRESENT = "present"
    """Its bytes are there."""
    WRITE = "write"
    """Cut the segment at the chunk's offset, keep the rest aside, write the bytes."""
    HOLE = "hole"
    """Bytes before it are missing: begin anew with a checkpoint."""


class Surplus(NamedTuple):
    """Bytes of a local segment that the store has not."""

    segment: int
    offset: int


class DirectoryCheck:
    """Compares a directory with the store while a reader reads it (S1). Pure.

    What it confirms is in the store. Everything else in the directory is surplus.
    """

    def __init__(self) -> None:
        self.confirmed: dict[int, int] = {}
        """Segment number to its first bytes that are those of the store."""
        self.end = 0
        """Position behind the last confirmed byte."""

    def restart(self, segments: Iterable[SegmentRef]) -> None:
        """Begin with the segments of a checkpoint; they are then fetched, or there already."""
        self.confirmed = {segment.number: segment.bytes for segment in segments}
        self.end = max((segment.end for segment in segments), default=0)

    def fit(self, chunk: Chunk, local: bytes) -> Fit:
        """Return how a chunk fits.

        Args:
            chunk: The next chunk, with bytes.
            local: Bytes of its segment on this disk at the chunk's place, fewer at its end.
        """
        start = pack_position(chunk.segment, chunk.offset)
        if chunk.offset != self.confirmed.get(chunk.segment, 0) or start < self.end:
            return Fit.HOLE
        self.confirmed[chunk.segment] = chunk.offset + len(chunk.payload)
        self.end = chunk.end
        return Fit.PRESENT if local == chunk.payload else Fit.WRITE

    def surplus(self, local: Mapping[int, int]) -> list[Surplus]:
        """Return the local bytes that the store has not, ascending.

        Args:
            local: Bytes of each segment on this disk.
        """
        return [
            Surplus(number, self.confirmed.get(number, 0))
            for number, size in sorted(local.items())
            if size > self.confirmed.get(number, 0)
        ]

    def continues(self, surplus: Iterable[Surplus]) -> bool:
        """Return whether surplus goes on where the store ends, so that it may be stored next."""
        segment, offset = unpack_position(self.end)
        return all(found.segment > segment or found == (segment, offset) for found in surplus)
