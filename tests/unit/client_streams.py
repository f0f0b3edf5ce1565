"""Pairs of a client's stream and the daemon's, for each transport: watched, and in lockstep.

A sender in lockstep blocks until the other end reads. For the transport of a task each the streams
are in memory; for the poller, which needs descriptors, they are a pair of unix sockets.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, cast

import trio
import trio.testing

from fastjournald.net.plain_socket import PlainSocket

Watch = Callable[[bytes], None]
"""Called with the bytes that are about to be sent to a client."""

PIECE_BYTES = 65_536
"""Bytes that a sender in lockstep sends for each read of the other end."""


def _nobody(_data: bytes) -> None:
    pass


class WatchedStream(trio.abc.HalfCloseableStream):
    """A stream in memory that tells what is about to be sent."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, watch: Watch) -> None:
        self._stream = stream
        self._watch = watch

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._watch(bytes(data))
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Gate:
    """Open while the client reads, for one piece."""

    def __init__(self) -> None:
        self.opened = trio.Event()

    def shut(self) -> None:
        self.opened = trio.Event()


class WatchedSocket(socket.socket):
    """A socket that tells what it sends, and that can send in lockstep."""

    watch: Watch
    gate: Gate | None = None

    def send(self, data: Any, flags: int = 0) -> int:
        if self.gate is not None:
            if not self.gate.opened.is_set():
                raise BlockingIOError
            self.gate.shut()
            data = data[:PIECE_BYTES]
        sent = super().send(data, flags)
        self.watch(bytes(data[:sent]))
        return sent


class LockstepSocket(PlainSocket):
    """The stream of such a socket: who waits for it waits for the client's next read."""

    def __init__(self, plain: WatchedSocket, gate: Gate) -> None:
        super().__init__(plain)
        self._gate = gate

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        left = memoryview(data)
        while left:
            await self._gate.opened.wait()
            if self.socket.fileno() < 0:
                raise trio.ClosedResourceError
            await super().send_all(left[:PIECE_BYTES])
            left = left[PIECE_BYTES:]

    def close(self) -> None:
        super().close()
        self._gate.opened.set()


class ReadingStream(trio.abc.HalfCloseableStream):
    """The client's end of a socket whose other end sends in lockstep."""

    def __init__(self, stream: trio.SocketStream, gate: Gate) -> None:
        self._stream = stream
        self._gate = gate

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        self._gate.opened.set()
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


def stream_pair(
    *, sockets: bool, lockstep: bool, watch: Watch | None
) -> tuple[trio.abc.HalfCloseableStream, trio.abc.HalfCloseableStream]:
    """Return the client's end, and the daemon's."""
    if sockets:
        client, accepted = socket.socketpair()
        plain = WatchedSocket(fileno=accepted.detach())
        plain.watch = watch or _nobody
        client.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
        if not lockstep:
            return stream, PlainSocket(plain)
        plain.gate = gate = Gate()
        return ReadingStream(stream, gate), LockstepSocket(plain, gate)
    pair: tuple[Any, Any] = (
        trio.testing.lockstep_stream_pair() if lockstep else trio.testing.memory_stream_pair()
    )
    return pair[0], pair[1] if watch is None else WatchedStream(pair[1], watch)


def as_socket_stream(stream: trio.abc.HalfCloseableStream) -> trio.SocketStream:
    """Return it as what clients of a server over loopback have."""
    return cast(trio.SocketStream, stream)
