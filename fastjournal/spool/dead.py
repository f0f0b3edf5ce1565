"""Dead letters of a spool: ``dead/`` beside the slots.

Two files for each piece: ``<slot>-<offset>-<CRC-32C>.bin`` with the raw bytes, and the same name
with ``.json`` with the reason, an object:

    slot     name of the slot's file
    offset   where the record or the damage started in it, in bytes
    bytes    length of the raw bytes
    kind     "frame": one record's frame, which the daemon or the forwarder refused
             "damage": bytes of the file that are no record
    code     an error code of the protocol, or "torn" (the end of a slot), or "damaged"
    reason   a sentence
    put_us   instant in microseconds

The name says what is in it, so putting the same piece aside again (after a kill between that and
erasing it in the slot) changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import Final, Literal

import google_crc32c
import msgspec

from fastjournal.file_sync import sync_all
from fastjournal.spool.slots import (
    DEAD_NAME,
    FILE_MODE,
    SLOT_SUFFIX,
    TEMPORARY_SUFFIX,
    set_access,
    spool_failed,
    write_directory,
)

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
RAW_SUFFIX = ".bin"
REASON_SUFFIX = ".json"
_TEMPORARY_SUFFIXES = (RAW_SUFFIX + TEMPORARY_SUFFIX, REASON_SUFFIX + TEMPORARY_SUFFIX)
_PROBE: Final = bytes(16 * 1024)
"""A usual piece with its reason takes less."""


class DeadReason(msgspec.Struct, frozen=True):
    """Reason for which a piece is in ``dead/``; see the module for the fields."""

    slot: str
    offset: int
    bytes: int
    kind: Literal["frame", "damage"]
    code: str
    reason: str
    put_us: int


class DeadPiece(msgspec.Struct, frozen=True):
    """Piece that is in ``dead/``: a dead letter."""

    name: str
    """Without suffix."""
    raw_path: str
    reason: DeadReason | None
    """None: there is no reason beside it, or it is not readable."""


class DeadDirectory:
    """Directory ``dead/`` of one spool; created when it is first needed."""

    def __init__(self, spool_directory: str | os.PathLike[str]) -> None:
        self.path = os.path.join(os.fspath(spool_directory), DEAD_NAME)

    def put(self, raw: bytes, reason: DeadReason) -> str:
        """Keep ``raw`` and its reason, durably.

        Returns:
            The name, without suffix.

        Raises:
            SpoolFailedError: It could not be written whole.
        """
        write_directory(self.path)
        slot = reason.slot.removesuffix(SLOT_SUFFIX)
        name = f"{slot}-{reason.offset:012d}-{google_crc32c.value(raw):08x}"
        sentence = msgspec.json.format(msgspec.json.encode(reason)) + b"\n"
        try:
            directory = os.open(self.path, _DIRECTORY)
            try:
                _check_room(directory, len(raw))
                _write(directory, name + RAW_SUFFIX, raw)
                _write(directory, name + REASON_SUFFIX, sentence)
                sync_all(directory)
            finally:
                os.close(directory)
        except OSError as error:
            path = os.path.join(self.path, name)
            raise spool_failed("write a dead letter", path, error) from error
        return name

    def probe(self) -> None:
        """Write a small file and remove it: where that works, only some pieces cannot be kept.

        Raises:
            SpoolFailedError: It could not be written: no piece can be kept.
        """
        write_directory(self.path)
        path = os.path.join(self.path, secrets.token_hex(8) + _TEMPORARY_SUFFIXES[0])
        try:
            descriptor = os.open(path, _NEW_FILE, FILE_MODE)
            try:
                with open(descriptor, "wb") as file:
                    file.write(_PROBE)
            finally:
                os.unlink(path)
        except OSError as error:
            raise spool_failed("write a file", path, error) from error

    def tidy(self) -> None:
        """Remove what a forwarder that was killed while it wrote left; nobody may write meanwhile.

        Raises:
            SpoolFailedError: The directory cannot be read, or a file not be removed.
        """
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if entry.name.endswith(_TEMPORARY_SUFFIXES) and entry.is_file(
                        follow_symlinks=False
                    ):
                        os.unlink(entry.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise spool_failed("tidy the directory", self.path, error) from error

    def list(self) -> list[DeadPiece]:
        """Return what is there, in the order of names.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        try:
            names = sorted(
                name.removesuffix(RAW_SUFFIX)
                for name in os.listdir(self.path)
                if name.endswith(RAW_SUFFIX)
            )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise spool_failed("read the directory", self.path, error) from error
        return [self._piece(name) for name in names]

    def count(self) -> int:
        """Return how many pieces are there.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        try:
            return sum(name.endswith(RAW_SUFFIX) for name in os.listdir(self.path))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise spool_failed("read the directory", self.path, error) from error

    def read(self, name: str) -> bytes:
        """Return the raw bytes of a piece.

        Raises:
            SpoolFailedError: They cannot be read, or are no regular file.
        """
        path = os.path.join(self.path, name + RAW_SUFFIX)
        try:
            with open(path, "rb", opener=_open_regular) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(errno.EINVAL, "it is no regular file")
                return file.read()
        except OSError as error:
            raise spool_failed("read a dead letter", path, error) from error

    def remove(self, name: str) -> None:
        """Delete a piece: the reason first, so that a kill in between leaves the bytes.

        Raises:
            SpoolFailedError: It cannot be deleted.
        """
        path = os.path.join(self.path, name)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + REASON_SUFFIX)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + RAW_SUFFIX)
        except OSError as error:
            raise spool_failed("delete a dead letter", path, error) from error

    def _piece(self, name: str) -> DeadPiece:
        path = os.path.join(self.path, name)
        reason = None
        with (
            contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError),
            open(path + REASON_SUFFIX, "rb", opener=_open_regular) as file,
        ):
            reason = msgspec.json.decode(file.read(), type=DeadReason)
        return DeadPiece(name, path + RAW_SUFFIX, reason)


def _check_room(directory: int, size: int) -> None:
    """Refuse a piece that the disk has no room for: to try it would take the rest from others."""
    status = os.fstatvfs(directory)
    blocks = status.f_bavail if os.geteuid() else status.f_bfree
    if status.f_blocks and size > blocks * status.f_frsize:  # else the file system does not say
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write(directory: int, name: str, data: bytes) -> None:
    """Write a file whole or not at all, also if the name exists."""
    temporary = name + TEMPORARY_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    descriptor = os.open(temporary, _NEW_FILE, FILE_MODE, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:
            set_access(descriptor, directory)
            file.write(data)
            file.flush()
            sync_all(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:  # on a full disk the file would keep the rest of the space
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _open_regular(path: str, flags: int) -> int:
    """Open a file for reading: no link is followed, and no FIFO waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
