"""Wake socket of a spool: one byte makes the forwarder look at once.

A datagram socket in the spool's directory, bound by the forwarder. Where nobody listens nothing
happens: the forwarder finds the record by itself when it comes back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator

from fastjournal.spool.slots import WAKE_NAME, spool_failed

_ADDRESS_BYTES_MAX = 107
"""sun_path holds 108 bytes, the last of them zero."""

_DESCRIPTORS = "/proc/self/fd"

_PAUSE_S = 0.1
"""After a failed try the next one comes no sooner: a missing forwarder must cost nothing."""

GATHER_S = 0.001
"""One byte wakes for all records of so long a time; the forwarder looks again after it."""


class Waker:
    """Waker: the writer's end of the socket. Not thread-safe: its owner holds a lock."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._socket: socket.socket | None = None
        self._next_s = 0.0
        """Instant of the next byte, or of the next try to connect."""

    def wake(self) -> None:
        """Wake the forwarder if there is one, after a record is written; never waits or fails."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        opened = self._socket  # a signal handler may change it at any moment
        if opened is None:
            self._next_s = now_s + _PAUSE_S
            opened = self._socket = self._connect()
            if opened is None:
                return
        self._next_s = now_s + GATHER_S
        try:
            opened.send(b"\x01")
        except BlockingIOError:
            pass  # enough bytes wait there already
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the socket; a later wake opens it again."""
        opened, self._socket = self._socket, None
        self._next_s = 0.0
        if opened is not None:
            opened.close()

    def _connect(self) -> socket.socket | None:
        try:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            return None
        try:
            opened.setblocking(False)
            with _address(self._directory, WAKE_NAME) as address:
                opened.connect(address)
        except OSError:
            opened.close()
            return None
        return opened


def bind_wake_socket(directory: str) -> socket.socket:
    """Return the forwarder's end, non-blocking. Only the holder of forwarder.lock may call this.

    Raises:
        SpoolFailedError: It cannot be bound; what is no socket and has its name is left alone.
    """
    path = os.path.join(directory, WAKE_NAME)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bound.setblocking(False)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise FileExistsError(errno.EEXIST, "this is no socket, and is left alone")
            os.unlink(path)
        with _address(directory, WAKE_NAME) as address:
            bound.bind(address)
        os.chmod(path, 0o660)
    except OSError as error:
        bound.close()
        raise spool_failed("bind the wake socket", path, error) from error
    return bound


@contextlib.contextmanager
def _address(directory: str, name: str) -> Iterator[str]:
    """Give an address of a socket that fits, however long the directory's path is.

    Without /proc (macOS) a path that is too long raises OSError, where it is used.
    """
    path = os.path.join(directory, name)
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX or not os.path.isdir(_DESCRIPTORS):
        yield path
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_DESCRIPTORS}/{descriptor}/{name}"
    finally:
        os.close(descriptor)
