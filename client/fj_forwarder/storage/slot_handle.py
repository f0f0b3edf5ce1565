"""Handle of a slot file: descriptor, exclusive lock, deletion; names the calls that fail."""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import OTHER_FILES_MAX
from fastjournal.spool.slots import leads_to, open_slot, spool_failed

if TYPE_CHECKING:
    from collections.abc import Iterator


class SlotHandle:
    """Handle of one slot file, open for reading and writing.

    Args:
        path: The file.

    Every method raises SpoolFailedError where a call of the operating system fails.
    """

    __slots__ = ("_inode", "descriptor", "path")

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.descriptor = open_slot(path, os.O_RDWR)
        """-1: it is closed."""
        try:
            with self._translating("look at"):
                self._inode = os.fstat(self.descriptor).st_ino
        except SpoolFailedError:
            os.close(self.descriptor)
            raise

    def reopen(self) -> None:
        """Open the file again."""
        descriptor = open_slot(self.path, os.O_RDWR)
        if os.fstat(descriptor).st_ino != self._inode:
            os.close(descriptor)
            raise SpoolFailedError(
                "this slot was replaced by another file",
                path=self.path,
                hint="nobody but the forwarder may delete a slot",
            )
        self.descriptor = descriptor

    def close(self) -> None:
        """Close the file."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def size(self) -> int:
        """Return the length of the file, in bytes."""
        try:
            return os.fstat(self.descriptor).st_size
        except OSError as error:
            raise spool_failed("read", self.path, error) from error

    def has_name(self) -> bool:
        """Return whether the path leads to the file still, as far as is known."""
        try:
            return leads_to(self.path, self.descriptor)
        except OSError:
            return True  # a failure is reported when it is read

    def wait_for_writes(self) -> None:
        """Return when every write that had begun is over.

        Writes to one file wait for each other in the system; so once a write of ours, which
        changes nothing, is done, those before it are too.
        """
        with self._translating("write"):
            first = os.pread(self.descriptor, 1, 0)
            os.pwrite(self.descriptor, first, 0)

    def try_lock(self) -> bool:
        """Take the exclusive lock; return False where somebody else holds one."""
        with self._translating("lock"):
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def unlock(self) -> None:
        """Release the lock."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def unlink(self) -> None:
        """Delete the file."""
        with self._translating("delete"):
            os.unlink(self.path)

    @contextmanager
    def _translating(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise spool_failed(action, self.path, error) from error


def open_slots_max(most: int) -> int:
    """Return how many slots may be open at a time: ``most``, or fewer where the limit is low.

    A half of what the limit of the process (``ulimit -n``, LimitNOFILE) leaves beside the other
    files of a forwarder, but one at least.
    """
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, (files_max - OTHER_FILES_MAX) // 2))
