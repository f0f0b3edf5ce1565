"""Append file of a slot: creation, the shared lock, torn writes, group commit.

Any number of processes append at once without a lock between them, because each record is one
``write`` at the end of the file (O_APPEND). The shared flock says only that a writer uses the file:
the forwarder takes the exclusive one before it unlinks, so a writer that got its lock checks
whether its file still has the name. The lock is never released, only closed: a forked child shares
it.

One fdatasync makes the appends of all threads durable. The first thread that needs a
sync does it. Threads that need one during the sync wait, and one of them does the next one, for
all. They are woken together and not one by the other, which would cost a thread switch for each.

A signal handler that interrupts a sync of its own thread does one itself. A handler that raises may
stop the wake-ups half way: so a thread waits for others at most ``PATIENCE_S``, and then does a
sync itself, which is always correct.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import threading
import time
from typing import Final

from fastjournal.errors import SpoolFailedError
from fastjournal.file_sync import sync_data
from fastjournal.limits import MOVED_US_MAX, SLOT_LOCK_TRIES_MAX, SLOT_SECONDS
from fastjournal.spool.format import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    MAGIC,
    RECORD_OVERHEAD,
    blank_ends,
    record_end,
)
from fastjournal.spool.slots import (
    FILE_MODE,
    TEMPORARY_SUFFIX,
    leads_to,
    link_slot,
    open_slot,
    set_access,
    slot_name,
    spool_failed,
    sync_directory,
    write_directory,
)

PATIENCE_S: Final = 2.0
"""So long a thread waits for the sync of another one: far longer than one that is well takes."""


class SharedSync:
    """Syncs of one file, shared by the threads that append to it.

    Args:
        path: Path of the file, for errors.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.appends = 0
        """Appends to the file so far."""
        self.writing = 0
        """Appends under way: their bytes may be in the file, and they have no number yet."""
        self._durable = 0
        """So many of the appends are on the disk."""
        self._failed: tuple[int, int] = (0, 0)
        """The appends after the first of these and up to the second: their sync failed."""
        self._lock = threading.RLock()
        """Held by the thread that makes a sync."""
        self._rounds = 0
        """Syncs that are over."""
        self._waiting: list[threading.Lock] = []
        """A lock of each thread that waits; to be released when a sync is over."""

    def sync(self, number: int, descriptor: int) -> None:
        """Make an append durable, and with it all that were done before.

        Args:
            number: The number of the append.
            descriptor: The file.

        Raises:
            SpoolFailedError: The sync failed; the record may be there, and may be sent.
        """
        while not self._is_durable(number):
            rounds = self._rounds
            if not self._lock.acquire(blocking=False):
                if not self._wait(rounds):
                    # success is no proof: the system reports a failure to one of two syncs, and
                    # that may have been the other one
                    self._sync(number, descriptor)
                continue
            try:
                self._sync(number, descriptor)
            finally:
                self._rounds += 1
                self._lock.release()
                self._wake()

    def _is_durable(self, number: int) -> bool:
        if self._failed[0] < number <= self._failed[1]:
            raise spool_failed("sync", self._path, OSError(errno.EIO, os.strerror(errno.EIO)))
        return number <= self._durable

    def _sync(self, number: int, descriptor: int) -> None:
        # The mark is taken before the sync: what is appended while it goes on needs another one.
        durable, appends = self._durable, self.appends
        try:
            sync_data(descriptor)
        except OSError as error:
            # The system may have dropped what it could not write, and calls it written: the
            # success of the next sync must not count for those who wait for this one, nor for
            # what was written until now, also while this one went on.
            first = min(durable, self._failed[0]) if self._failed[1] else durable
            self._failed = (first, max(self.appends + self.writing, number))
            raise spool_failed("sync", self._path, error) from error
        self._durable = max(self._durable, appends)

    def _wait(self, rounds: int) -> bool:
        """Wait until the sync under way is over; False: that takes too long.

        Args:
            rounds: The syncs that were over when one was seen to be under way.
        """
        turn = threading.Lock()
        turn.acquire()
        self._waiting.append(turn)
        # The thread that makes the sync counts it first and wakes then: it has not seen this one
        # only where the count has changed.
        return self._rounds != rounds or turn.acquire(timeout=PATIENCE_S)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            turn.release()


_LOCK_PAUSE_S: Final = 0.001


class SlotHeldError(SpoolFailedError):
    """Another program holds the exclusive lock of a slot."""


class ShortWriteError(SpoolFailedError):
    """A write of several records of which only a part fitted on the disk."""

    whole_bytes = 0
    """Bytes of the records that were written whole: they are there."""


class AppendFile:
    """Append file of one slot; created if it is not there.

    A signal handler may append to it while an append is under way in the same thread.

    Args:
        directory: The spool; created if it is not there.
        start_s: The start of the slot, in seconds.
        slot_seconds: Its length.
        durable: Make its name durable, and what was written whole of a short write.
        group: Group that shares it; None: as the directory says.
        further: Seconds by which its name is later than its start: where somebody holds the lock of
            the slot, another one takes the appends of this time.

    Raises:
        SlotHeldError: Another program holds its exclusive lock.
        SpoolFailedError: It cannot be created or opened, or is of another version.
    """

    def __init__(
        self,
        directory: str,
        start_s: int,
        slot_seconds: int = SLOT_SECONDS,
        *,
        durable: bool,
        group: int | None = None,
        further: int = 0,
    ) -> None:
        self._durable = durable
        self._begins_us = start_s * 1_000_000
        self._ends_us = (start_s + slot_seconds) * 1_000_000
        self.good_from_us = self.good_until_us = 0
        """From and before these instants it may be appended to without another look."""
        self.name = slot_name(start_s + further)
        self.path = os.path.join(directory, self.name)
        self.users: list[int] = []
        """Identifiers of the threads that are about to sync it, one for each append: it is not
        closed before they have."""
        self._shared_sync = SharedSync(self.path)
        try:
            self._descriptor = _open(directory, self.path, group)
            try:
                self._check_version()
                if durable:
                    sync_directory(directory)
            except BaseException:  # a signal handler may raise anything
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise spool_failed("open the slot", self.path, error) from error

    @property
    def size(self) -> int:
        """Its length in bytes, with what others wrote."""
        return os.lseek(self._descriptor, 0, os.SEEK_END)

    @property
    def is_deleted(self) -> bool:
        """Whether it has no name any more; else it may have another one."""
        return not os.fstat(self._descriptor).st_nlink

    def is_of(self, now_us: int) -> bool:
        """Whether an instant is within its slot."""
        return self._begins_us <= now_us < self._ends_us

    def is_in_place(self, now_us: int) -> bool:
        """Whether its path leads to it still, at an instant of its slot; then so for a while."""
        try:
            if not leads_to(self.path, self._descriptor):
                return False
        except OSError:
            pass  # as far as is known it is; the error of the write names the reason
        self.good_from_us = now_us
        self.good_until_us = min(now_us + MOVED_US_MAX, self._ends_us)
        return True

    def append(self, record: bytes) -> int:
        """Write a record, or several, at the end.

        Returns:
            The number of this append, to sync it by; 0: the file was deleted meanwhile, and the
            record with it.

        Raises:
            ShortWriteError: Not all of it could be written. Records that were written whole stay,
                because the forwarder may have taken them already; the torn piece is taken back as
                far as possible, and does not harm what follows.
            SpoolFailedError: Nothing was written.
        """
        shared_sync, descriptor = self._shared_sync, self._descriptor
        before = shared_sync.appends
        shared_sync.writing += 1
        try:
            written = os.write(descriptor, record)
            links = os.fstat(descriptor).st_nlink
            if written == len(record):
                shared_sync.appends += 1
                return shared_sync.appends if links else 0
            whole = _whole_bytes(record[:written]) if links else 0
            shared_sync.appends += bool(whole)
            number = shared_sync.appends
        except OSError as error:
            raise spool_failed("write", self.path, error) from error
        finally:
            shared_sync.writing -= 1
        if shared_sync.appends == before + bool(whole):  # else a signal handler appended after it
            self._take_back(record, whole, written)
        raise self._short_write(whole, number, written, len(record))

    def sync(self, number: int) -> None:
        """Make an append durable, and with it all that were done before: threads share one sync.

        A signal handler that interrupts a sync does its own.

        Raises:
            SpoolFailedError: It failed; the record may be there, and may be sent.
        """
        self._shared_sync.sync(number, self._descriptor)

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

    def _short_write(self, whole: int, number: int, written: int, size: int) -> ShortWriteError:
        """Return the error of a short write; its whole records are as durable as others.

        They are synced as the append ``number``: a sync that fails has to count for all appends.
        """
        failed = spool_failed(f"write more than {written} of {size} bytes", self.path, _no_space())
        error = ShortWriteError(failed.message, path=failed.path, hint=failed.hint)
        if whole and self._durable:
            try:
                self.sync(number)
            except SpoolFailedError:
                return error  # no more is known of them than after any failed sync
        error.whole_bytes = whole
        return error

    def _take_back(self, record: bytes, start: int, end: int) -> None:
        """Make the torn piece an erased record, or zero bytes if it is too short for one.

        It cannot be cut off, because others may have appended after it. If this fails too, a reader
        finds the next whole record by itself; it only takes longer.
        """
        torn = record[start:end]
        if not torn:
            return
        offset = os.lseek(self._descriptor, 0, os.SEEK_CUR) - len(torn)
        if len(torn) >= RECORD_OVERHEAD:
            head, crc = blank_ends(len(torn))
            blank = head + bytes(len(torn) - RECORD_OVERHEAD) + crc
        else:
            blank = bytes(len(torn))
        with contextlib.suppress(OSError):
            # Through O_APPEND pwrite would append, so this takes a descriptor of its own.
            descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                is_ours = os.pread(descriptor, len(torn), offset) == torn
                if is_ours and os.path.sameopenfile(descriptor, self._descriptor):
                    os.pwrite(descriptor, blank, offset)
            finally:
                os.close(descriptor)


def _whole_bytes(data: bytes) -> int:
    """Return the size of the whole records that some bytes begin with."""
    at = 0
    while (end := record_end(data, at)) > 0:
        at = end
    return at


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _open(directory: str, path: str, group: int | None) -> int:
    """Return a descriptor with a shared lock on the file at ``path``.

    It does not wait for the lock in the system, where any program could hold it for ever. A file
    that is deleted meanwhile is created again.
    """
    tries = 0
    while True:
        if not os.path.lexists(path):
            write_directory(directory, group)
            _create(directory, path, group)
        try:
            descriptor = open_slot(path, os.O_RDWR | os.O_APPEND)
        except SpoolFailedError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                continue
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if leads_to(path, descriptor):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            tries += 1
            if tries >= SLOT_LOCK_TRIES_MAX:
                raise SlotHeldError(
                    "this slot is locked by another program",
                    path=path,
                    hint="end the program that locks it (lslocks): nobody but fj-forwarder may",
                ) from error
            time.sleep(_LOCK_PAUSE_S)
            continue
        except BaseException:  # a signal handler may raise anything
            os.close(descriptor)
            raise
        os.close(descriptor)


def _create(directory: str, path: str, group: int | None) -> None:
    """Create a file with a whole header, unless another process was faster.

    A fork may come in between, in a signal handler: then two processes do the rest with one name or
    one descriptor. So the header is written in place, and an existing or missing name is no error.
    """
    name = f".{os.path.basename(path)}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    temporary = os.path.join(directory, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, FILE_MODE)
    except FileExistsError:
        return
    try:
        try:
            set_access(descriptor, directory, group)
            if os.pwrite(descriptor, FILE_HEADER, 0) != FILE_HEADER_BYTES:
                raise _no_space()
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            link_slot(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
