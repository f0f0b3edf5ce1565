"""One slot's file, open for appending: creation, the shared lock, torn writes.

Any number of processes append at once without a lock between them, for each record is one ``write``
at the end of the file (O_APPEND). The shared flock says only "somebody writes here": the forwarder
takes the exclusive one before it unlinks, so a writer that got its lock looks whether its file is
still the one with that name. The lock is never taken off, only closed: a forked child shares it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.format import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    MAGIC,
    RECORD_OVERHEAD,
    blank_ends,
)
from fastjournal.spool.slots import (
    FILE_MODE,
    TEMPORARY_SUFFIX,
    slot_name,
    spool_failed,
    sync_directory,
)


class AppendFile:
    """The file of the slot that starts at ``start_s``; created if it is not there.

    Raises:
        SpoolFailedError: It cannot be created or opened, or is of another version.
    """

    def __init__(self, directory: str, start_s: int, *, durable: bool) -> None:
        self.start_s = start_s
        self.name = slot_name(start_s)
        self.path = os.path.join(directory, self.name)
        try:
            self._descriptor = _open(directory, self.path)
            try:
                self._check_version()
                if durable:
                    sync_directory(directory)
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise spool_failed("open the slot", self.path, error) from error

    def size(self) -> int:
        """Return its length in bytes, with what others wrote."""
        return os.lseek(self._descriptor, 0, os.SEEK_END)

    def append(self, record: bytes) -> None:
        """Write a record at the end.

        Raises:
            SpoolFailedError: It could not be written whole; what was written of it is taken back
                as far as possible, and does not harm what follows.
        """
        try:
            written = os.write(self._descriptor, record)
        except OSError as error:
            raise spool_failed("write", self.path, error) from error
        if written != len(record):
            self._take_back(written)
            raise spool_failed(
                f"write more than {written} of {len(record)} bytes", self.path, _no_space()
            )

    def sync(self) -> None:
        """Make all that was written durable.

        Raises:
            SpoolFailedError: It failed; the record may be there, and may be sent.
        """
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise spool_failed("sync", self.path, error) from error

    def close(self) -> None:
        """Close it, and with it the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _check_version(self) -> None:
        header = os.pread(self._descriptor, FILE_HEADER_BYTES, 0)
        if header.startswith(MAGIC) and header != FILE_HEADER:
            raise SpoolFailedError(
                "this slot was begun by another version of fastjournal",
                path=self.path,
                hint="let its forwarder empty the spool first, or use another directory",
            )

    def _take_back(self, written: int) -> None:
        """Make the torn piece an erased record, or zero bytes where it is too short for one.

        It cannot be cut off, for others may have appended behind it. Where this fails too, a
        reader finds the next whole record by itself; it only takes longer.
        """
        offset = os.lseek(self._descriptor, 0, os.SEEK_CUR) - written
        if written >= RECORD_OVERHEAD:
            head, crc = blank_ends(written)
            blank = head + bytes(written - RECORD_OVERHEAD) + crc
        else:
            blank = bytes(written)
        with contextlib.suppress(OSError):
            # Through O_APPEND pwrite would append, so this takes a descriptor of its own.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                if os.path.sameopenfile(descriptor, self._descriptor):
                    os.pwrite(descriptor, blank, offset)
            finally:
                os.close(descriptor)


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _open(directory: str, path: str) -> int:
    """Return a descriptor with a shared lock on the file that ``path`` leads to."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            _create(directory, path)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _leads_to(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _leads_to(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _create(directory: str, path: str) -> None:
    """Put a file with a whole header there, unless somebody else was faster."""
    name = f".{os.path.basename(path)}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    temporary = os.path.join(directory, name)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            os.fchmod(descriptor, FILE_MODE)
            if os.write(descriptor, FILE_HEADER) != FILE_HEADER_BYTES:
                raise _no_space()
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
