"""Checkpoints and garbage collection of a remote log: snapshot upload, retention, adoption.

Rules C1, G1 to G3 and S4 of docs/remote-log.md. The writer of an epoch runs them, one at a time,
with ``Uploads`` of the same epoch. A checkpoint is a snapshot: sealing a segment makes the cut, all
sealed segments are linked at that instant, and the links are uploaded while compaction goes on.

A delete request may reach the store long after its sender has died. So the name of a segment holds
the epoch of its uploader, a checkpoint refers only to segments of its own epoch, and a name is
never uploaded again after its deletion was requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import google_crc32c

from fastjournal.errors import FencedError, ForeignRemoteLogError, RemoteLogCorruptError
from fastjournal.remote.objects import (
    CHECKPOINTS,
    EPOCHS,
    FORMAT,
    FORMAT_NAME,
    SEGMENTS,
    Checkpoint,
    Chunk,
    ChunkId,
    ChunkKind,
    Epoch,
    LogFormat,
    SegmentRef,
    checkpoint_id,
    checkpoint_name,
    chunk_id,
    chunk_name,
    decode_checkpoint,
    decode_epoch,
    decode_format,
    encode_checkpoint,
    encode_chunk,
    encode_json,
    epoch_name,
    live_name,
    segment_object,
    segment_ref,
    segments_of,
)
from fastjournal.remote.reader import create_epoch
from fastjournal.remote.store import Copy, Create, Delete, Get, List, Listed, Overwrite, Steps

LIST_PAGE = 1000
"""Chunks that the collector lists at once: what one request of S3 gives."""

CHECKPOINT_US_MAX = 3600 * 1_000_000
"""At least each hour there is a checkpoint."""

_DELETED_HINT = "look for a lifecycle rule of the bucket, or for somebody who emptied it"


class Uploads:
    """Segments that the writer of an epoch has uploaded, and those that it deleted.

    Args:
        epoch: The epoch.
        base: Checkpoint with which the log was read; its segments are copied within the store.
    """

    def __init__(self, epoch: int, base: tuple[ChunkId, Checkpoint] | None = None) -> None:
        self.epoch = epoch
        self.base_epoch = epoch if base is None else base[0].epoch
        self.base_segments = frozenset() if base is None else frozenset(base[1].segments)
        self.present: set[SegmentRef] = set()
        """Segments of this epoch in the store."""
        self.listed: set[SegmentRef] = set()
        """Those that a checkpoint of this epoch lists, or has listed."""
        self.deleted: set[str] = set()
        """Names whose deletion was requested in this epoch."""


def upload_checkpoint(
    behind: ChunkId,
    time_us: int,
    links: Mapping[SegmentRef, str],
    uploads: Uploads,
    *,
    live_path: str = "",
) -> Steps[Checkpoint | None]:
    """Upload a checkpoint (C1).

    Args:
        behind: The last chunk before the cut (``ChunkWriter.cut_at``).
        time_us: Time of that chunk.
        links: Paths of the segments, linked when the cut was made.
        uploads: The segments of this epoch.
        live_path: Path of its live index, which is written after it; empty: there is none.

    Returns:
        The checkpoint. None: there is one with another list, which stays; collect nothing by it.
    """
    for segment, path in sorted(links.items()):
        yield from _upload(segment, path, uploads)
    checkpoint = Checkpoint(time_us, tuple(sorted(links)))
    same = yield from _create_same(checkpoint_name(behind), encode_checkpoint(checkpoint))
    if not same:
        return None
    uploads.listed.update(links)
    if live_path:
        yield Overwrite(live_name(behind), None, live_path)
    return checkpoint


def _upload(segment: SegmentRef, path: str, uploads: Uploads) -> Steps[None]:
    if segment in uploads.present:
        return
    name = segment_object(uploads.epoch, segment)
    if name in uploads.deleted:
        raise RuntimeError(f"{name} is uploaded again after its deletion was requested")
    copied = False
    if segment in uploads.base_segments and uploads.base_epoch != uploads.epoch:
        copied = yield Copy(segment_object(uploads.base_epoch, segment), name)
    if not copied:
        yield Overwrite(name, None, path)
    uploads.present.add(segment)


def _create_same(name: str, data: bytes) -> Steps[bool]:
    """Create an object; return whether it has these bytes then."""
    while not (yield Create(name, data)):
        found: bytes | None = yield Get(name)
        if found is not None:
            return found == data
    return True


class Retention(NamedTuple):
    """How long checkpoints are kept, with what a restore to one of them or behind it needs."""

    keep_us: int
    """Age up to which all are kept, and the newest one before that."""
    newest: int = 2
    """So many are kept at any age."""


def kept_checkpoints(
    times: Mapping[ChunkId, int], now_us: int, retention: Retention
) -> set[ChunkId]:
    """Return the checkpoints that stay (G1), from the times of all."""
    ordered = sorted(times, reverse=True)
    kept = set(ordered[: retention.newest])
    for behind in ordered:
        kept.add(behind)
        if times[behind] < now_us - retention.keep_us:
            break
    return kept


class Collector:
    """Garbage collector of the writer of an epoch (G1): deletes what no kept checkpoint needs.

    It does nothing before there is a checkpoint of its own epoch. Seals and epochs stay for ever: a
    late request of a former writer must meet them.

    Args:
        epoch: The epoch, which this process created.
        uploads: The segments of this epoch.
        retention: What is kept.
    """

    def __init__(self, epoch: Epoch, uploads: Uploads, retention: Retention) -> None:
        self._epoch = epoch
        self._uploads = uploads
        self._retention = retention
        self._checkpoints: dict[ChunkId, Checkpoint] = {}
        self._ends: dict[int, int] = {}
        """Epoch to the number of its seal."""

    def collect(self, now_us: int) -> Steps[int]:
        """Delete what nobody needs; return the number of deleted objects.

        Args:
            now_us: In microseconds since the Unix epoch.
        """
        if not (yield from self._read_checkpoints()) or not self._may_collect():
            return 0
        known = self._checkpoints
        times = {behind: checkpoint.time_us for behind, checkpoint in known.items()}
        kept = kept_checkpoints(times, now_us, self._retention)
        deleted = 0
        for behind in sorted(known.keys() - kept):
            yield Delete(checkpoint_name(behind))
            yield Delete(live_name(behind))
            deleted += 1
        deleted += yield from self._delete_chunks(min(kept))
        deleted += yield from self._delete_segments(kept)
        return deleted

    def _may_collect(self) -> bool:
        """Return whether the newest checkpoint is of the own epoch."""
        known = self._checkpoints
        return bool(known) and max(known).epoch == self._epoch.epoch

    def _read_checkpoints(self) -> Steps[bool]:
        """Read all checkpoints; return False where one has gone meanwhile.

        Another writer has deleted it, perhaps a successor. Without it, its segments would seem to
        be in no checkpoint.
        """
        listed: list[Listed] = yield List(CHECKPOINTS)
        found: dict[ChunkId, Checkpoint] = {}
        for name, _ in listed:
            behind = checkpoint_id(name)
            if behind is None:
                continue
            if behind in self._checkpoints:
                found[behind] = self._checkpoints[behind]
            elif (content := (yield Get(name))) is not None:
                found[behind] = decode_checkpoint(behind, content)
            else:
                return False
        self._checkpoints = found
        return True

    def _delete_chunks(self, oldest: ChunkId) -> Steps[int]:
        """Delete the chunks up to the oldest kept checkpoint."""
        deleted, after = 0, ""
        while listed := (yield List("log", after, LIST_PAGE)):
            for name, _ in listed:
                after = name
                chunk = chunk_id(name)
                if chunk is None:
                    continue
                if chunk > oldest:
                    return deleted
                if (yield from self._is_data(chunk)):
                    yield Delete(name)
                    deleted += 1
        return deleted

    def _is_data(self, chunk: ChunkId) -> Steps[bool]:
        """Return whether a chunk before a kept checkpoint is no seal: its epoch says so."""
        if chunk.epoch == self._epoch.epoch:
            return True
        if chunk.epoch not in self._ends:
            name = epoch_name(chunk.epoch + 1)
            content = yield Get(name)
            if content is None:
                raise RemoteLogCorruptError("the epoch is missing", path=name, hint=_DELETED_HINT)
            following = decode_epoch(chunk.epoch + 1, content, self._epoch.log)
            self._ends[chunk.epoch] = following.sealed_at
        return chunk.number < self._ends[chunk.epoch]

    def _delete_segments(self, kept: Iterable[ChunkId]) -> Steps[int]:
        needed = {
            segment_object(behind.epoch, segment)
            for behind in kept
            for segment in self._checkpoints[behind].segments
        }
        deleted = 0
        listed: list[Listed] = yield List(SEGMENTS)
        for name, _ in listed:
            found = segment_ref(name)
            if found is None or name in needed or found[0] > self._epoch.epoch:
                continue
            if found[0] == self._epoch.epoch:
                if found[1] not in self._uploads.listed:
                    continue  # the next checkpoint may need it: the last one was given up
                self._uploads.deleted.add(name)
                self._uploads.present.discard(found[1])
            yield Delete(name)
            deleted += 1
        return deleted


def restore_missing(
    epoch: Epoch, checkpoint: Checkpoint, links: Mapping[SegmentRef, str], uploads: Uploads
) -> Steps[list[SegmentRef]]:
    """Look for what must be there, and upload a missing segment again (G3).

    Args:
        epoch: The own epoch.
        checkpoint: Its newest checkpoint.
        links: Paths of those of its segments that are still on this disk.
        uploads: The segments of this epoch.

    Returns:
        The segments that were missing: somebody deletes parts of the log.

    Raises:
        RemoteLogCorruptError: Something is missing that is not on this disk.
        FencedError: Another node has taken over, and deletes what it does not need.
    """
    for name in (FORMAT_NAME, epoch_name(epoch.epoch)):
        if (yield Get(name)) is None:
            raise _deleted(name)
    listed: list[Listed] = yield List(segments_of(epoch.epoch))
    there = {name for name, _ in listed}
    missing = [
        segment
        for segment in checkpoint.segments
        if segment_object(epoch.epoch, segment) not in there
    ]
    if missing and (yield Get(epoch_name(epoch.epoch + 1))) is not None:
        # the collector of the successor has deleted them
        raise FencedError("another node has taken over", path=epoch_name(epoch.epoch + 1))
    for segment in missing:
        name = segment_object(epoch.epoch, segment)
        if segment not in links or name in uploads.deleted:
            raise _deleted(name)
        yield Overwrite(name, None, links[segment])
    return missing


def _deleted(name: str) -> RemoteLogCorruptError:
    return RemoteLogCorruptError(
        "somebody deleted parts of the remote log", path=name, hint=_DELETED_HINT
    )


def adopt(epoch: Epoch, time_us: int, links: Mapping[SegmentRef, str]) -> Steps[None]:
    """Begin a remote log with the segments of a directory (S4). Each step may be repeated.

    The caller holds the directory's append lock, and its ``remote.json`` names the log. A takeover
    follows: epoch 0 has no chunks. Requests of a former try, of another state of the directory, may
    still arrive. So ``format.json`` names the checkpoint that counts, and is created once. The
    checksum of a checkpoint of epoch 0 is its number: another state has another name.

    Args:
        epoch: Epoch 0, with the UUID of the log.
        time_us: In microseconds since the Unix epoch.
        links: Paths of all segments, which are sealed.

    Raises:
        ForeignRemoteLogError: The prefix belongs to another log.
    """
    content = yield Get(FORMAT_NAME)
    if content is not None:
        decode_format(content, epoch.log)
        return
    yield from create_epoch(epoch)
    for segment, path in sorted(links.items()):
        yield Overwrite(segment_object(0, segment), None, path)
    data = encode_checkpoint(Checkpoint(time_us, tuple(sorted(links))))
    number = google_crc32c.value(data)
    while not (yield from _create_same(checkpoint_name(ChunkId(0, number)), data)):
        number += 1
    while not (yield Create(FORMAT_NAME, encode_json(LogFormat(FORMAT, epoch.log, number)))):
        content = yield Get(FORMAT_NAME)
        if content is not None:
            decode_format(content, epoch.log)
            return


def create_log(epoch: Epoch, time_us: int) -> Steps[None]:
    """Begin a remote log without entries, for a node with an empty directory.

    Args:
        epoch: Epoch 0, with a new UUID.
        time_us: In microseconds since the Unix epoch.

    Raises:
        ForeignRemoteLogError: Something is below the prefix.
    """
    if (yield Get(FORMAT_NAME)) is not None:
        raise ForeignRemoteLogError("a remote log is here already", path=FORMAT_NAME)
    for folder in (EPOCHS, SEGMENTS, CHECKPOINTS, "log"):
        found: list[Listed] = yield List(folder, "", 1)
        if found:
            raise ForeignRemoteLogError(
                "it is of a remote log that was not begun to the end",
                path=found[0].name,
                hint="start the daemon that began it, or give another prefix",
            )
    yield from adopt(epoch, time_us, {})
    adopted = decode_format((yield Get(FORMAT_NAME)), epoch.log)
    # nobody writes epoch 0: the first node need not wait for a silence
    end = ChunkId(0, adopted.checkpoint + 1)
    yield Create(chunk_name(end), encode_chunk(Chunk(end, ChunkKind.SEAL, epoch.nonce, time_us)))


def checkpoint_due(
    since_us: int, bytes_behind: int, segment_bytes_max: int, live_bytes: int
) -> bool:
    """Return whether a checkpoint is due by itself (C1).

    Args:
        since_us: Age of the last one.
        bytes_behind: Bytes of the chunks behind it.
        segment_bytes_max: Size of a segment.
        live_bytes: Bytes of live records of the log.
    """
    return since_us >= CHECKPOINT_US_MAX or bytes_behind > max(4 * segment_bytes_max, live_bytes)
