"""Wake sources of the forwarder: the wake socket, and inotify for writers that do not ping."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Self

import inotify_simple

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.slots import STATUS_NAME, STATUS_TEMPORARY_NAME, WAKE_NAME
from fastjournal.spool.wake import bind_wake_socket

log = logging.getLogger("fj_forwarder")

_DATAGRAMS_MAX = 1024
"""At most so many are taken at once; the rest wakes again."""


_OWN_FILES = frozenset({STATUS_NAME, STATUS_TEMPORARY_NAME})


class WakeSource(NamedTuple):
    """Wake source: a descriptor that becomes readable."""

    descriptor: int
    drain: Callable[[], bool]
    """Takes off what made it readable, without waiting; whether there may be records."""
    looks_again: bool = False
    """Whether a byte announces the records of the next ``GATHER_S``, too: none comes for these."""


class WakeSources:
    """Wake sources of one spool, as far as they can be had; the rest is named in the log.

    Only the holder of forwarder.lock may have one.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, WAKE_NAME)
        self.sources: list[WakeSource] = []
        self._socket: socket.socket | None = None
        self._bound: os.stat_result | None = None
        try:
            self._socket = bind_wake_socket(directory)
        except SpoolFailedError as error:
            log.warning("no wake socket, inotify and the rescan find the records: %s", error)
        self._inotify: inotify_simple.INotify | None = None
        flags = inotify_simple.flags
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
            self._inotify.add_watch(
                directory, flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.CLOSE_WRITE
            )
        except OSError as error:
            log.warning("no inotify, records without a ping wait for the rescan: %s", error)
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None
        if self._socket is not None:
            self._bound = _status(self._path)
            looks_again = self._inotify is None
            self.sources.append(WakeSource(self._socket.fileno(), self._drain_socket, looks_again))
        if self._inotify is not None:
            self.sources.append(WakeSource(self._inotify.fileno(), self._drain_inotify))

    def close(self) -> None:
        """Close both; writers find no socket then, unless another forwarder bound its own."""
        status = _status(self._path)
        if self._bound and status and os.path.samestat(status, self._bound):
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        if self._socket is not None:
            self._socket.close()
        if self._inotify is not None:
            self._inotify.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drain_socket(self) -> bool:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            for _ in range(_DATAGRAMS_MAX):
                self._socket.recv(1)
        return True

    def _drain_inotify(self) -> bool:
        """Take the events; the status file, which the forwarder writes each second, is no news."""
        assert self._inotify is not None
        return any(event.name not in _OWN_FILES for event in self._inotify.read(timeout=0))


def _status(path: str) -> os.stat_result | None:
    """Return the status of what has this name; None: nothing has, or it is not known."""
    try:
        return os.lstat(path)
    except OSError:
        return None
