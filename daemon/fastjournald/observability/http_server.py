"""HTTP server: hypercorn on trio serves the pages of --http, within the daemon's bounds.

hypercorn and h11 do the protocol, the ASGI application (``http_app``) the pages. Here are the
bounds that hypercorn has no options for: the number of connections, also of one address, the bytes
of a head, no HTTP/2 and no WebSocket, and an end that no client delays. Nothing that a client does
reaches the rest of the daemon.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed
from hypercorn.logging import Logger
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import UnexpectedMessageError

from fastjournal import limits
from fastjournal.printable import safe_text
from fastjournald.admission.memory_budget import EvictionQueue
from fastjournald.observability.bounded_stream import BoundedStream
from fastjournald.observability.http_app import Page, answer

_HEAD_END = re.compile(rb"\n\r?\n")

_PRINTABLE_MIN = 0x21
"""First byte of a request line at least, for h11: below it, it refuses at once what it has."""

LOG = logging.getLogger("fastjournald")


class HttpServer:
    """Serves pages.

    Args:
        pages: By path.
        origin_of: Returns the address that shares what each address may have.
        connections_max: At once; for one more, one that asked longest ago is closed.
    """

    def __init__(
        self,
        pages: Mapping[str, Page],
        origin_of: Callable[[trio.SocketStream], str],
        *,
        connections_max: int = limits.HTTP_CONNECTIONS_MAX,
    ) -> None:
        self._pages = pages
        self._clients: EvictionQueue[BoundedStream] = EvictionQueue()
        """All of them; those that asked longest ago come first."""
        self._origin_of = origin_of
        self._connections_max = connections_max
        self._config = _config()
        self._context = WorkerContext(None)

    @property
    def connections(self) -> int:
        """Number of connections, with those that linger: each has a descriptor."""
        return len(self._clients)

    async def run(self, listeners: list[trio.SocketListener]) -> None:
        """Serve all clients until cancelled; then end at once, whatever clients wait for."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._abort_at_end)
            await trio.serve_listeners(self.serve, listeners)

    async def _abort_at_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            while (client := self._clients.pop()) is not None:
                client.abort()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one client until it goes, is too slow, or sends what is not HTTP; then close."""
        clients = self._clients
        origin = self._origin_of(stream)
        if len(clients) >= self._connections_max and (oldest := clients.pop()) is not None:
            LOG.debug("event=http-made-room connections=%d", self._connections_max)
            oldest.abort()
        client = BoundedStream(stream)
        clients.add(origin, client)

        def on_request() -> None:
            if clients.discard(origin, client):
                clients.add(origin, client)

        app = ASGIWrapper(partial(answer, self._pages, client, on_request))
        # its annotation names the stream of a TLS connection, which it takes this for no more
        connection = _Http1Server(
            app, self._config, self._context, ConnectionState({}), cast(Any, client)
        )
        try:
            await self._serve(client, connection)
        finally:
            clients.discard(origin, client)

    async def _serve(self, client: BoundedStream, connection: _Http1Server) -> None:
        try:
            with client.scope:
                await connection.run()
        except* (h11.ProtocolError, UnexpectedMessageError) as group:
            # a state that hypercorn does not foresee costs one connection, and not the daemon
            error = _first_of(group)
            LOG.error(
                "event=http-failed error=%s reason=%r", type(error).__name__, safe_text(str(error))
            )
        finally:
            connection.break_cycles()
            await client.linger()


class _Http1Server(TCPServer):
    """Connection of hypercorn that speaks HTTP/1 only."""

    async def _read_data(self) -> None:
        made: ProtocolWrapper = self.protocol
        made.protocol = _Http1Protocol(
            made.app,
            made.config,
            made.context,
            made.task_group,
            made.state,
            made.ssl,
            made.client,
            made.server,
            made.send,
        )
        await super()._read_data()
        # hypercorn would keep a client that has gone for the rest of its idle time
        await self.idle_task.stop()

    def break_cycles(self) -> None:
        """Clear references between the parts: old garbage is collected once an hour."""
        made: ProtocolWrapper | None = getattr(self, "protocol", None)
        if made is not None:
            vars(made.protocol).clear()
            vars(made).clear()
        vars(self).clear()


class _BoundedHeads(h11.Connection):
    """HTTP/1 with one bound of heads: h11 bounds only heads whose end has not come so far."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: The client sent no HTTP, or a head that is too large.
        """
        if self.their_state is h11.IDLE:
            came, _ = self.trailing_data
            bound = limits.HTTP_HEAD_BYTES_MAX
            if (
                len(came) > bound
                and came[0] >= _PRINTABLE_MIN
                and not _HEAD_END.search(came, 0, bound)
            ):
                raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        return super().next_event()


class _Http1Protocol(H11Protocol):
    """HTTP/1 that offers nothing else.

    HTTP/2 would let one read of a client cost hundreds of milliseconds (streams that are reset),
    and nobody here needs a WebSocket. RFC 9110 lets a server ignore ``Upgrade``.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        bytes_max = self.config.h11_max_incomplete_size
        self.connection = _BoundedHeads(h11.SERVER, max_incomplete_event_size=bytes_max)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Stay with HTTP/1, whatever the client offers."""

    async def _create_stream(self, request: h11.Request) -> None:
        if request.method != request.method.upper():
            # h11 takes hEAD for a method of its own, hypercorn for HEAD: they differ on the body
            await self._send_error_response(HTTPStatus.BAD_REQUEST)
            await self.send(Closed())
            return
        headers = [pair for pair in request.headers if pair[0] != b"upgrade"]
        await super()._create_stream(
            h11.Request(
                method=request.method,
                target=request.target,
                headers=headers,
                http_version=request.http_version,
            )
        )


class _ServerLog(Logger):
    """Log of hypercorn, in events of one line."""

    async def exception(self, message: str, *_args: Any, **_kwargs: Any) -> None:
        """Log that a page failed; its client got 500."""
        LOG.error("event=http-page-failed reason=%r", message, exc_info=True)


def _first_of(error: BaseException) -> BaseException:
    return _first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _config() -> Config:
    config = Config()
    config.logger_class = _ServerLog
    config.errorlog = LOG
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.HTTP_HEAD_BYTES_MAX
    # from the connect, or the last answer, to the end of the next head
    config.keep_alive_timeout = limits.HTTP_SECONDS_MAX
    return config
