"""Gate between forwarder and daemon: it ends the connection at a suspect, as a fault would."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import trio

STREAM_ERRORS: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
_CHUNK_BYTES: Final = 65536


class Gate:
    """Relays connections to the daemon.

    Args:
        port: Port of the daemon.
        mark: Bytes at which a connection ends.
    """

    def __init__(self, port: int, mark: bytes) -> None:
        self._port = port
        self._mark = mark
        self.is_open = False
        """Let the marked requests pass."""
        self.closed = 0
        """Connections that ended at a mark."""

    async def run(self, listeners: list[trio.SocketListener]) -> None:
        """Take connections until cancelled."""
        await trio.serve_listeners(self._relay, listeners)

    async def _relay(self, forwarder: trio.SocketStream) -> None:
        with suppress(*STREAM_ERRORS):
            daemon = await trio.open_tcp_stream("127.0.0.1", self._port)
            async with daemon, trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, forwarder, daemon, self._mark, nursery)
                nursery.start_soon(self._pump, daemon, forwarder, b"", nursery)

    async def _pump(
        self,
        source: trio.SocketStream,
        target: trio.SocketStream,
        mark: bytes,
        nursery: trio.Nursery,
    ) -> None:
        """Pass on bytes until one side is gone, or a mark comes; then end both."""
        last = b""
        with suppress(*STREAM_ERRORS):
            while data := await source.receive_some(_CHUNK_BYTES):
                if mark and not self.is_open and mark in last + data:
                    self.closed += 1
                    break
                last = data[-len(mark) :] if mark else b""
                await target.send_all(data)
        nursery.cancel_scope.cancel()
