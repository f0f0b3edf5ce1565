"""Inotify watch of a spool: wakes a program when records are appended."""

from __future__ import annotations

import errno
import math
import os
import time
from typing import Any, Self

from fastjournal.spool.slots import parse_slot_name, spool_failed
from fastjournal.times import Duration, duration_s


class SpoolWatch:
    """Watch that wakes when a record is appended to a spool: ``with watch(directory) as changes``.

    ``wait`` waits; with an event loop of others poll ``fileno()``, and call ``wait(0)`` when it is
    readable. A wake says that there may be something new, and never what: one can stand for many
    records, and what the forwarder erases wakes too.

    Args:
        directory: The spool; it has to be there.

    Raises:
        SpoolFailedError: There is no such directory, or the system has no more watches.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.fspath(directory)
        import inotify_simple  # noqa: PLC0415 - loads ctypes, which producers do not need

        self._flags = flags = inotify_simple.flags
        mask = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.CLOSE_WRITE | flags.ONLYDIR
        inotify: Any = None
        try:
            inotify = inotify_simple.INotify(nonblocking=True)
            inotify.add_watch(self.directory, mask)
        except OSError as error:
            if inotify is not None:
                inotify.close()
            raise spool_failed("watch", self.directory, error) from error
        self._inotify = inotify

    def fileno(self) -> int:
        """Return a descriptor that is readable when something may have been appended."""
        descriptor: int = self._inotify.fileno()
        return descriptor

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until something may have been appended; return whether it was.

        Args:
            timeout: Time to wait; 0: not at all; None: without end.

        Raises:
            SpoolFailedError: The directory was deleted.
        """
        end_s = math.inf
        if timeout is not None:
            end_s = time.monotonic() + duration_s("timeout", timeout)
        while True:
            left_s = max(end_s - time.monotonic(), 0.0)
            events = list(self._inotify.read(None if left_s == math.inf else left_s * 1000))
            if any(event.mask & self._flags.IGNORED for event in events):
                gone = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
                raise spool_failed("watch", self.directory, gone)
            if any(self._may_be_new(event) for event in events):
                return True
            if not events and time.monotonic() >= end_s:
                return False

    def _may_be_new(self, event: Any) -> bool:
        """Whether an event is about a slot, or says that some were lost."""
        overflow = bool(event.mask & self._flags.Q_OVERFLOW)
        return overflow or parse_slot_name(event.name) is not None

    def close(self) -> None:
        """End the watch."""
        self._inotify.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watch(directory: str | os.PathLike[str]) -> SpoolWatch:
    """Return a watch of a spool, which wakes when records are appended.

    Raises:
        SpoolFailedError: There is no such directory, or the system has no more watches.
    """
    return SpoolWatch(directory)
