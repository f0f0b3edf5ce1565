"""Plain socket: the stream of a socket that the poller serves, for tasks that wait for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio


@contextmanager
def _translating() -> Iterator[None]:
    """Raise BrokenResourceError where the connection is lost."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise trio.BrokenResourceError from error


class PlainSocket(trio.abc.HalfCloseableStream):
    """A TCP or unix socket; who polls it receives and sends by ``socket`` itself.

    Args:
        plain: The accepted socket, which is taken over.
    """

    def __init__(self, plain: socket.socket) -> None:
        plain.setblocking(False)
        self.socket = plain

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it."""
        left = memoryview(data)
        while left:
            await self.wait_send_all_might_not_block()
            with suppress(BlockingIOError), _translating():
                left = left[self.socket.send(left) :]

    async def wait_send_all_might_not_block(self) -> None:
        """Return when it may be worth trying."""
        self._check_open()
        await trio.lowlevel.wait_writable(self.socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive something; empty: the client sends no more."""
        assert max_bytes is not None
        while True:
            self._check_open()
            await trio.lowlevel.wait_readable(self.socket)
            with suppress(BlockingIOError), _translating():
                return self.socket.recv(max_bytes)

    async def send_eof(self) -> None:
        """Tell the client that it has all; go on receiving."""
        await trio.lowlevel.checkpoint()
        with _translating():
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it; who waits for it gets ClosedResourceError."""
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    def _check_open(self) -> None:
        # a wait that begins only now has no descriptor, which trio does not expect
        if self.socket.fileno() < 0:
            raise trio.ClosedResourceError

    async def aclose(self) -> None:
        """Close it."""
        self.close()
        await trio.lowlevel.checkpoint()
