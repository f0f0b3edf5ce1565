"""Checkpoints of a remote log, as snapshots that are read where they are.

A directory, or a prefix of a store, is a remote log if it holds ``format.json`` and neither
segments nor a manifest. Its newest checkpoint is the snapshot. The path of another checkpoint
(``PREFIX/checkpoints/<epoch>-<number>.json``) names that one. Its segments are objects under their
own names, and its live index is ``live/<epoch>-<number>``.

Executors read them through pyarrow, as they read every snapshot. What needs listings from a name on
(the chunks, ``history.remote_history``) reads through the store of ``fastjournal.remote``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.fs

from fastjournal.errors import (
    LogCorruptError,
    LogFailedError,
    RemoteLogCorruptError,
    RemoteLogError,
)
from fastjournal.remote.objects import (
    CHECKPOINTS,
    EPOCHS,
    FORMAT_NAME,
    Checkpoint,
    ChunkId,
    LogFormat,
    SegmentRef,
    checkpoint_id,
    checkpoint_name,
    decode_checkpoint,
    decode_format,
    live_name,
    segment_object,
    segments_of,
)
from fastjournal.remote.store import Listed, first_names

_DELETED = "somebody deleted parts of the remote log"
_COLLECTED = "the primary deletes checkpoints that are older than its --remote-keep"


class ReadableStore(Protocol):
    """An object store, as far as a reader of checkpoints needs one."""

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""

    def list(self, folder: str) -> list[Listed]:
        """Return the objects of a folder, sorted."""


class RemoteSnapshot(NamedTuple):
    """A checkpoint as a snapshot."""

    log: str
    """UUID of the log."""
    behind: ChunkId
    checkpoint: Checkpoint
    live_bytes: int | None
    """Size of its live index; None: there is none."""

    def segment_path(self, prefix: str, segment: SegmentRef) -> str:
        """Return the path of one of its segments."""
        return f"{prefix}/{segment_object(self.behind.epoch, segment)}"


class PrefixFiles:
    """Objects below a prefix of a file system of pyarrow, with the interface of ``ReadableStore``.

    Args:
        files: The file system.
        prefix: Path of the remote log there.
    """

    def __init__(self, files: Any, prefix: str) -> None:
        self._files = files
        self._prefix = prefix

    def get(self, name: str) -> bytes | None:
        """Return an object, or None.

        Raises:
            LogFailedError: It cannot be read.
        """
        path = f"{self._prefix}/{name}"
        try:
            with self._files.open_input_file(path) as file:
                data: bytes = file.read()
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            raise LogFailedError(f"cannot read: {error}", path=path) from error
        return data

    def list(self, folder: str) -> list[Listed]:
        """Return the objects of a folder, sorted.

        Raises:
            LogFailedError: It cannot be listed.
        """
        path = f"{self._prefix}/{folder}"
        selector = pa.fs.FileSelector(path, allow_not_found=True)
        try:
            found = self._files.get_file_info(selector)
        except (OSError, pa.ArrowException) as error:
            raise LogFailedError(f"cannot list: {error}", path=path) from error
        names = (Listed(f"{folder}/{one.base_name}", one.size) for one in found if one.is_file)
        return first_names(names, "", None)


def split_checkpoint(path: str) -> tuple[str, ChunkId | None]:
    """Return the prefix and the checkpoint that a path or URI names; None: it is no checkpoint.

    Options of a URI stay with the prefix.
    """
    place, mark, options = path.partition("?") if "://" in path else (path, "", "")
    prefix, slash, last = place.rpartition(f"/{CHECKPOINTS}/")
    behind = checkpoint_id(f"{CHECKPOINTS}/{last}") if slash else None
    return (path, None) if behind is None else (f"{prefix}{mark}{options}", behind)


@contextmanager
def naming(prefix: str) -> Iterator[None]:
    """Name the whole path of an object in the errors of the block."""
    try:
        yield
    except RemoteLogError as error:
        if error.path is not None and not error.path.startswith(prefix):
            error.path = f"{prefix}/{error.path}"
        raise


def read_format(store: ReadableStore) -> LogFormat:
    """Return what ``format.json`` says.

    Raises:
        RemoteLogCorruptError: It is missing, damaged or of another version.
    """
    content = store.get(FORMAT_NAME)
    if content is None:
        begun = store.list(EPOCHS)  # a bucket that is not there is an error only now
        raise RemoteLogCorruptError(
            "the object is missing: its first start there has not ended, or somebody deleted it"
            if begun
            else "the prefix holds no remote log: there is no such object",
            path=FORMAT_NAME,
            hint="name the --remote-log of the daemon",
        )
    return decode_format(content, None)


def list_checkpoints(store: ReadableStore, adopted: int) -> list[ChunkId]:
    """Return the checkpoints that count, ascending.

    Args:
        store: The store.
        adopted: Number of the one of epoch 0, as ``format.json`` says it.
    """
    found = (checkpoint_id(name) for name, _ in store.list(CHECKPOINTS))
    return [one for one in found if one is not None and (one.epoch or one.number == adopted)]


def read_checkpoint(store: ReadableStore, behind: ChunkId) -> Checkpoint | None:
    """Return a checkpoint; None: it is not there.

    Raises:
        RemoteLogCorruptError: It is damaged, of another version, or a segment is not there, or has
            another size.
    """
    content = store.get(checkpoint_name(behind))
    if content is None:
        return None
    checkpoint = decode_checkpoint(behind, content)
    sizes = dict(store.list(segments_of(behind.epoch)))
    for segment in checkpoint.segments:
        name = segment_object(behind.epoch, segment)
        if sizes.get(name) == segment.bytes:
            continue
        if name in sizes:
            raise RemoteLogCorruptError(
                f"it has {sizes[name]} bytes, and not those that its name says", path=name
            )
        if store.get(checkpoint_name(behind)) is None:
            return None  # the primary's collector has deleted both
        raise RemoteLogCorruptError(
            f"{checkpoint_name(behind)} lists this segment, and it is not there",
            path=name,
            hint=_DELETED,
        )
    return checkpoint


def find_snapshot(store: ReadableStore, wanted: ChunkId | None = None) -> RemoteSnapshot:
    """Return the newest checkpoint, or the wanted one.

    An older one is never taken for it: that is another state.

    Args:
        store: The store.
        wanted: Behind which chunk it is; None: the newest.

    Raises:
        RemoteLogCorruptError: There is none, or an object is missing, damaged or of another
            version.
    """
    while True:
        if wanted is None:
            log, behind, _ = newest_checkpoint(store)
        else:
            log, behind = read_format(store).log, wanted
        checkpoint = read_checkpoint(store, behind)
        if checkpoint is not None:
            return RemoteSnapshot(log, behind, checkpoint, _live_bytes(store, behind))
        if wanted is not None:
            raise RemoteLogCorruptError(
                "the checkpoint is not there", path=checkpoint_name(wanted), hint=_COLLECTED
            )


def newest_checkpoint(store: ReadableStore) -> tuple[str, ChunkId, Checkpoint]:
    """Return the UUID of a log, and its newest checkpoint, whose segments may not be there.

    Raises:
        RemoteLogCorruptError: There is none, or an object is damaged or of another version.
    """
    adopted = read_format(store)
    while True:
        listed = list_checkpoints(store, adopted.checkpoint)
        if not listed:
            raise RemoteLogCorruptError("there is no checkpoint", path=CHECKPOINTS, hint=_DELETED)
        content = store.get(checkpoint_name(listed[-1]))
        if content is not None:  # else there is a newer one
            return adopted.log, listed[-1], decode_checkpoint(listed[-1], content)


def _live_bytes(store: ReadableStore, behind: ChunkId) -> int | None:
    name = live_name(behind)
    folder = name.partition("/")[0]
    return next((size for found, size in store.list(folder) if found == name), None)


def check_live(index_segments: object, checkpoint: Checkpoint, path: str) -> None:
    """Check that a live index is of the segments of a checkpoint.

    Raises:
        LogCorruptError: It is of others.
    """
    told = [(one.number, one.bytes, one.crc32c) for one in checkpoint.segments]
    if index_segments != told:
        raise LogCorruptError(
            "the live index is of other segments than those that the checkpoint lists",
            path=path,
            hint="remove the object: readers replay the checkpoint without it",
        )
