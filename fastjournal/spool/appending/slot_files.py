"""Slot files of a writer: the one in use, those of slots that are over; the quota of a spool.

A signal handler may append in the middle of an append, in the same thread: so another file is put
in use by one assignment, and a file that some append still uses is *retired*, and closed later.

The quota (spool_bytes_max) counts the bytes of the spool without asking the disk each time. The
file in use is measured at each append, which costs one cheap call and sees the other writers. The
other slots are summed sometimes: they shrink as the forwarder works, and grow only by a writer with
another clock or slot length. So at a change of slot the one before is added, and the sum is renewed
after every sixteenth of the limit, and before an append is refused. Two processes that append at
the same moment can pass the limit by one record each. A signal handler may interrupt at any moment:
every change is one assignment.

A sum takes time in proportion to the files, and a full spool may have a hundred thousand: if one
took long, appends are refused for a while without another.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import Final

from fastjournal.errors import SpoolFullError
from fastjournal.limits import FURTHER_SLOTS_MAX
from fastjournal.spool.appending.appendfile import AppendFile, SlotHeldError
from fastjournal.spool.slots import list_slots, slot_start, temporary_bytes

_NEVER = -1

_LONG_S: Final = 0.005
"""A sum that takes so much processor time is not renewed at each refusal: a thousand files."""

_PAUSE: Final = 20
"""No such sum follows another one for this many times of what that took, to refuse an append."""


class SpoolQuota:
    """Quota of one spool directory.

    Args:
        directory: The spool.
        bytes_max: Its limit. Files in dead/ do not count: they must not stop the producers. The
            hidden files of drop-ins that are not finished count.
    """

    def __init__(self, directory: str, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._look_again = max(1, bytes_max // 16)
        self._others = _NEVER
        self._holes = 0
        self._taken = 0
        self._look_from_s = 0.0
        """Before this instant a sum is not renewed because an append is to be refused."""

    def change(self, before: AppendFile) -> None:
        """Another file is used from now on: the one before is one of the others."""
        if self._others != _NEVER:
            self._others += max(0, before.size - self._holes)
            self._holes = 0

    def take(self, count: int, file: AppendFile) -> None:
        """Take ``count`` bytes for a record of ``file``.

        Raises:
            SpoolFullError: They do not fit.
            SpoolFailedError: The directory cannot be read.
        """
        if self._others == _NEVER or self._taken >= self._look_again:
            self._look(file)
        if self._others + file.size - self._holes + count > self._bytes_max:
            if time.monotonic() >= self._look_from_s:
                self._look(file)
            used = self._others + file.size - self._holes
            if used + count > self._bytes_max:
                raise SpoolFullError(
                    f"it holds {used} of {self._bytes_max} bytes: no room for {count} more",
                    path=self._directory,
                    hint="check that fj-forwarder is running and reaches the daemon",
                )
        self._taken += count

    def _look(self, file: AppendFile) -> None:
        started_s = time.thread_time()
        others, holes = temporary_bytes(self._directory), 0
        for slot in list_slots(self._directory):
            if slot.name == file.name:
                holes = slot.size - slot.allocated
            else:
                others += slot.allocated
        self._others, self._holes, self._taken = others, holes, 0
        took_s = time.thread_time() - started_s
        if took_s >= _LONG_S:
            self._look_from_s = time.monotonic() + _PAUSE * took_s


log = logging.getLogger("fastjournal.spool")


class SlotFiles:
    """Open slot files of one writer, which calls this under its lock.

    Args:
        directory: The spool.
        slot_seconds: Length of a slot.
        durable: Names of new files are durable.
        group: Number of the group that shares the spool; None: as the directory says.
        bytes_max: Quota of the spool, in bytes.
    """

    __slots__ = (
        "_bytes_max",
        "_directory",
        "_durable",
        "_group",
        "_slot_seconds",
        "current",
        "depth",
        "is_shared",
        "owner",
        "quota",
        "retired",
    )

    def __init__(
        self,
        directory: str,
        *,
        slot_seconds: int,
        durable: bool,
        group: int | None,
        bytes_max: int,
    ) -> None:
        self._directory: Final = directory
        self._slot_seconds: Final = slot_seconds
        self._durable: Final = durable
        self._group: Final = group
        self._bytes_max: Final = bytes_max
        self.current: AppendFile | None = None
        """The file in use."""
        self.retired: list[AppendFile] = []
        """Files of slots that are over, to be closed when nobody uses them any more."""
        self.quota = SpoolQuota(directory, bytes_max)
        self.depth = 0
        """Appends under way in the thread that holds the lock: a signal handler's is one more."""
        self.owner = 0
        """The thread of these appends."""
        self.is_shared = False
        """A parent process has these files open, too: a fork came within an append."""

    def find(self, now_us: int) -> AppendFile:
        """Return the file of an instant: the one in use, unless it is over or was moved.

        Raises:
            SpoolFailedError: It cannot be created or opened.
        """
        file = self.current
        if file is not None and file.is_of(now_us):
            if file.is_in_place(now_us):
                return file
            self.drop_taken_away(file)
        file = self._open_slot(slot_start(now_us, self._slot_seconds))
        self._replace(file)
        return file

    def drop_taken_away(self, file: AppendFile) -> None:
        """Retire the file in use, which somebody deleted or moved, and log that once."""
        if self.current is file:
            self._replace(None)
            self.quota = SpoolQuota(self._directory, self._bytes_max)
            log.warning(
                "%s was %s while it was written to: what was not sent of its %d bytes is %s; it is"
                " made anew",
                file.path,
                "deleted" if file.is_deleted else "moved away",
                file.size,
                "lost, but for a record that is written again" if file.is_deleted else "there",
            )

    def close_retired(self) -> None:
        """Close the files of slots that are over, except those in use.

        Raises:
            OSError: One cannot be closed; all others are.
        """
        if self.depth:
            return
        if self.is_shared:
            self.is_shared = False
            self._replace(None)
        if not self.retired:
            return
        retired, self.retired = self.retired, []
        with ExitStack() as closing:
            for file in retired:
                if file.users:
                    self.retired.append(file)
                else:
                    closing.callback(file.close)

    def close(self) -> None:
        """Close the file in use, and those of slots that are over.

        Raises:
            OSError: One cannot be measured or closed, because the program has closed its
                descriptor; all others are closed.
        """
        try:
            self._replace(None)
        finally:
            self.close_retired()

    def after_fork(self, thread: int) -> bool:
        """Forget, in the child of a fork, the appends of other threads; ``close`` is to follow.

        Closing is safe, and the parent keeps its flock: the lock belongs to the open file that both
        share, and ends when both have closed it. Only the thread that forked is here. Where it
        forked within an append (in a signal handler), that goes on in both processes: it keeps its
        file until it is over. Nothing here calls the system, so nothing fails.

        Args:
            thread: The thread that forked.

        Returns:
            Whether it forked within an append.
        """
        self.is_shared = self.depth > 0 and self.owner == thread
        if not self.is_shared:
            self.depth = 0
        for file in (*self.retired, *filter(None, (self.current,))):
            file.users = [user for user in file.users if user == thread]
        return self.is_shared

    def _open_slot(self, start_s: int) -> AppendFile:
        """Open a slot, or a further one of the same time where another program locks it."""
        further = 0
        while True:
            try:
                return AppendFile(
                    self._directory,
                    start_s,
                    self._slot_seconds,
                    durable=self._durable,
                    group=self._group,
                    further=further,
                )
            except SlotHeldError:
                further += 1
                if further > FURTHER_SLOTS_MAX:
                    raise

    def _replace(self, following: AppendFile | None) -> None:
        """Put another file in the place of the one in use, and retire that."""
        before, self.current = self.current, following
        if before is not None:
            self.retired.append(before)
            self.quota.change(before)
