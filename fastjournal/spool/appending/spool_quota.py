"""Quota of a spool (spool_bytes_max): its bytes, counted without asking the disk each time.

The file in use is measured at each append, which costs one cheap call and sees the other writers.
The other slots are summed now and then: they shrink as the forwarder works, and only a writer with
another clock or slot length lets them grow. So at a change of slot the one before is added, and the
sum is renewed after every sixteenth of the limit, and before an append is refused. Two processes
that append at the same moment can pass the limit by one record each. A signal handler may come in
between at any moment: what is changed is changed by one assignment.

A sum costs as much as there are files, and a full spool may have a hundred thousand: where one took
long, appends are refused for a while without another.
"""

from __future__ import annotations

import time
from typing import Final

from fastjournal.errors import SpoolFullError
from fastjournal.spool.appending.appendfile import AppendFile
from fastjournal.spool.slots import list_slots, temporary_bytes

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
