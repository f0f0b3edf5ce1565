"""Inotify of Linux by ctypes: events of the files in a directory. Source: inotify(7).

``struct inotify_event`` is an int (the watch), three unsigned ints (mask, cookie, bytes of the
name), and the name with zeros behind it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import struct
import termios
from enum import IntFlag
from typing import NamedTuple

_HEAD = struct.Struct("iIII")
_SIZE = struct.Struct("i")


class Mask(IntFlag):
    """Events, as ``linux/inotify.h`` numbers them."""

    MODIFY = 0x2
    CLOSE_WRITE = 0x8
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000


class Event(NamedTuple):
    """One event."""

    watch: int
    """-1: events were lost."""
    mask: int
    name: str
    """File in the directory; empty: the directory itself."""


class Inotify:
    """An inotify instance, which never blocks but in ``read``.

    Raises:
        OSError: The system has none (ENOSYS), or no more of them.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this system has no inotify")
        # IN_NONBLOCK and IN_CLOEXEC are these
        self._descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are events."""
        return self._descriptor

    def add_watch(self, path: str, mask: int) -> int:
        """Watch a path, and return the watch; ``OSError`` as it comes."""
        function = self._libc.inotify_add_watch
        return self._checked(function(self._descriptor, os.fsencode(path), ctypes.c_uint32(mask)))

    def remove_watch(self, watch: int) -> None:
        """End a watch; ``OSError`` as it comes."""
        self._checked(self._libc.inotify_rm_watch(self._descriptor, watch))

    def read(self, timeout_s: float = 0.0) -> list[Event]:
        """Return the events that have come, or that come within a time."""
        if timeout_s > 0:
            self._poll.poll(timeout_s * 1000)
        # all that waits, which the system bounds: a writer that goes on holds nobody here
        (size,) = _SIZE.unpack(fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(_SIZE.size)))
        return _parse(os.read(self._descriptor, size)) if size else []

    def close(self) -> None:
        """End all watches; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _checked(self, returned: int) -> int:
        if returned < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return returned


def _parse(data: bytes) -> list[Event]:
    events, position = [], 0
    while position < len(data):
        watch, mask, _, name_bytes = _HEAD.unpack_from(data, position)
        position += _HEAD.size + name_bytes
        name = data[position - name_bytes : position].partition(b"\0")[0]
        events.append(Event(watch, mask, os.fsdecode(name)))
    return events
