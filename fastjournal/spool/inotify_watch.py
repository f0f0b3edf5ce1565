"""Inotify watch of a spool: wakes a program when records are appended."""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import TYPE_CHECKING, Self

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.slots import parse_slot_name, spool_failed
from fastjournal.times import Duration, duration_s

if TYPE_CHECKING:
    from fastjournal.spool.inotify import Event

CHECK_S = 5.0
"""A wait looks so often where the path leads: not every change of that is an event."""

_OVERFLOW_WATCH = -1
"""Watch of the event that says that others were lost."""


class SpoolWatch:
    """Watch that wakes when a record is appended to a spool: ``with watch(directory) as changes``.

    ``wait`` waits; with an event loop of others poll ``fileno()``, and call ``wait(0)`` when it is
    readable. A wake-up means that there may be new records, without their names: one may be for
    many records, and the erasing of the forwarder wakes too.

    It watches the directory at the path. If the directory was renamed, deleted, replaced or
    unmounted and exists again, ``wait`` wakes, and watches the new one. Most of these wake at once;
    a parent that was renamed, a link, and a file system that was mounted over it are checked by
    ``wait`` itself, at its begin and then each 5 s.

    Args:
        directory: The spool; it has to exist.

    Raises:
        SpoolFailedError: There is no such directory, or the system has no inotify (macOS), or no
            more watches.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.fspath(directory)
        from fastjournal.spool.inotify import Inotify, Mask  # noqa: PLC0415 - loads ctypes, which producers do not need

        self._mask = Mask
        self._watch: int | None = None
        self._watched: os.stat_result | None = None
        """Directory that the watch is of; None: it may be another one by now."""
        try:
            self._inotify = Inotify()
        except OSError as error:
            raise spool_failed("watch", self.directory, error) from error
        try:
            self._follow_path()
        except SpoolFailedError:
            self._inotify.close()
            raise

    def fileno(self) -> int:
        """Return a descriptor that is readable when something may have been appended."""
        return self._inotify.fileno()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until something may have been appended; return whether it was.

        Args:
            timeout: Time to wait; 0: not at all; None: without end.

        Raises:
            SpoolFailedError: The directory is not there; a later call wakes when it is there again.
        """
        end_s = math.inf
        if timeout is not None:
            end_s = time.monotonic() + duration_s("timeout", timeout)
        mask = self._mask
        gone = mask.IGNORED | mask.MOVE_SELF | mask.DELETE_SELF | mask.UNMOUNT
        while True:
            if self._follow_path():
                return True
            left_s = min(max(end_s - time.monotonic(), 0.0), CHECK_S)
            events = self._inotify.read(left_s)
            ours = [event for event in events if event.watch in (self._watch, _OVERFLOW_WATCH)]
            if any(event.mask & gone for event in ours):
                self._watched = None
            elif any(self._may_be_new(event) for event in ours):
                return True
            elif not events and time.monotonic() >= end_s:
                return False

    def _may_be_new(self, event: Event) -> bool:
        """Whether an event is about a slot, or says that some were lost."""
        return event.watch == _OVERFLOW_WATCH or parse_slot_name(event.name) is not None

    def _follow_path(self) -> bool:
        """Watch the directory to which the path leads; return whether it was not watched so far.

        Raises:
            SpoolFailedError: It leads to none; nothing is watched then, and no event is left.
        """
        mask = self._mask
        events = mask.MODIFY | mask.CREATE | mask.MOVED_TO | mask.CLOSE_WRITE
        events |= mask.MOVE_SELF | mask.DELETE_SELF | mask.ONLYDIR
        try:
            # before it is watched: if it is replaced in between, the next look finds that
            status = os.stat(self.directory)
            if self._watched is not None and os.path.samestat(status, self._watched):
                return False
            watch = self._inotify.add_watch(self.directory, events)
        except OSError as error:
            self._end_watch()
            self._inotify.read()
            raise spool_failed("watch", self.directory, error) from error
        if watch != self._watch:
            self._end_watch()
        self._watch, self._watched = watch, status
        return True

    def _end_watch(self) -> None:
        """End the watch of a directory to which the path does not lead any more."""
        if self._watch is not None:
            with contextlib.suppress(OSError):  # it ended with the directory
                self._inotify.remove_watch(self._watch)
        self._watch = self._watched = None

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
        SpoolFailedError: There is no such directory, or the system has no inotify, or no more
            watches.
    """
    return SpoolWatch(directory)
