"""Sockets of clients: the stream of a plain socket, hang-up detection, the transports' interface.

Hang-up detection polls the socket without waiting: the client may have closed it while bytes that
it sent before are still unread.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import trio

from fastjournald.net.session import Session
from fastjournald.net.tls import TlsStream


def has_hung_up(stream: trio.abc.Stream) -> bool:
    """Return whether the client sends nothing more: it closed, shut down or reset its end."""
    return _poll(stream, select.POLLRDHUP)


def is_lost(stream: trio.abc.Stream) -> bool:
    """Return whether nothing reaches the client; one that only ended its requests still reads."""
    return _poll(stream, 0)


def _poll(stream: trio.abc.Stream, events: int) -> bool:
    if not isinstance(stream, trio.SocketStream | TlsStream | PlainSocket):
        return False
    descriptor = stream.socket.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    # hang-ups and errors are always reported
    poll.register(descriptor, events)
    return bool(poll.poll(0))


def do_nothing() -> None:
    """Do nothing: the callback of a connection that has ended."""


class ClientTransport(Protocol):
    """Connection of one client: it moves the bytes and carries out the steps of a session."""

    session: Session
    on_end: Callable[[], object]
    """Called when the connection has ended."""

    def __hash__(self) -> int:
        """By identity."""

    def begin(self) -> None:
        """Serve the client, from the first byte on."""

    def wake(self) -> None:
        """Send notifications and replies to requests that waited."""

    def stop(self) -> None:
        """Stop with the daemon: answer requests that are on their way, then close."""

    def abandon(self, sentence: str, code: str) -> None:
        """End the wait for the rest of a request: send the client an error, and close."""

    def refuse_request(self) -> None:
        """Send the client an error: there is no room for the rest of its request; and close."""

    def cut(self) -> None:
        """Close at once: messages that the client has not taken are lost."""

    def has_hung_up(self) -> bool:
        """Whether the client sends nothing more."""


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
    """Stream of a TCP or unix socket. The poller receives and sends by ``socket`` itself.

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
        """Close the sending side, so that the client sees the end; receiving goes on."""
        await trio.lowlevel.checkpoint()
        with _translating():
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it; tasks that wait for it get ClosedResourceError."""
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
