"""HTTP server: HTTP/1.1 for pages that are only read, with GET, HEAD and keep-alive, no bodies.

A request is bounded in size and time, and an answer that a client does not take is dropped; nothing
that a client does reaches the rest of the daemon. h11 does the protocol, this the sockets, and the
pages come from outside.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

import h11
import trio

from fastjournal import limits
from fastjournald.admission.eviction_queue import EvictionQueue

LOG = logging.getLogger("fastjournald")

LINGER_SECONDS = 1.0
"""How long a closing connection goes on reading and discarding: a socket that is closed with
unread data is reset, and the reset can overtake the answer."""

RECEIVE_BYTES = 16 * 1024

TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """Content of a page."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


Page: TypeAlias = Callable[[], Awaitable[Answer]]


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
        self._clients: EvictionQueue[trio.CancelScope] = EvictionQueue()
        """All of them; those that asked longest ago come first."""
        self._origin_of = origin_of
        self._connections_max = connections_max

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve one client until it goes, is too slow, or sends what is not HTTP; then close."""
        clients = self._clients
        origin = self._origin_of(stream) if isinstance(stream, trio.SocketStream) else ""
        if len(clients) >= self._connections_max and (oldest := clients.pop()) is not None:
            LOG.debug("event=http-made-room connections=%d", self._connections_max)
            oldest.cancel()
        scope = trio.CancelScope()
        clients.add(origin, scope)

        def on_request() -> None:
            if clients.discard(origin, scope):
                clients.add(origin, scope)

        try:
            with scope:
                await self._converse(stream, on_request)
        except (trio.BrokenResourceError, trio.TooSlowError) as error:
            LOG.debug("event=http-client-lost error=%r", error)
        finally:
            clients.discard(origin, scope)
            await trio.aclose_forcefully(stream)

    async def _converse(
        self, stream: trio.abc.HalfCloseableStream, on_request: Callable[[], None]
    ) -> None:
        connection = h11.Connection(
            h11.SERVER, max_incomplete_event_size=limits.HTTP_HEAD_BYTES_MAX
        )
        request = None
        try:
            while connection.our_state is h11.IDLE:
                request = None
                with trio.fail_after(limits.HTTP_SECONDS_MAX):
                    request = await _receive(connection, stream)
                if request is None:
                    return
                on_request()
                # a request with a body is answered before the body, and the last one
                alone = isinstance(connection.next_event(), h11.EndOfMessage)
                await self._answer(connection, stream, request, last=not alone)
                if connection.states == {h11.SERVER: h11.DONE, h11.CLIENT: h11.DONE}:
                    connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                status = HTTPStatus(error.error_status_hint)
                answer = Answer(status, f"{error}\n".encode())
                head = request is not None and request.method == b"HEAD"
                await _send(connection, stream, answer, last=True, head=head)
        await stream.send_eof()
        with trio.move_on_after(LINGER_SECONDS):
            while await stream.receive_some(RECEIVE_BYTES):
                pass

    async def _answer(
        self,
        connection: h11.Connection,
        stream: trio.abc.HalfCloseableStream,
        request: h11.Request,
        *,
        last: bool,
    ) -> None:
        page = self._pages.get(request.target.partition(b"?")[0].decode("ascii", "replace"))
        if page is None:
            answer = _plain(HTTPStatus.NOT_FOUND)
        elif request.method not in (b"GET", b"HEAD"):
            answer = _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            answer = await page()
        await _send(connection, stream, answer, last=last, head=request.method == b"HEAD")


async def _receive(
    connection: h11.Connection, stream: trio.abc.ReceiveStream
) -> h11.Request | None:
    """Return the next request; None: the client has gone in good order."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None


async def _send(
    connection: h11.Connection,
    stream: trio.abc.SendStream,
    answer: Answer,
    *,
    last: bool,
    head: bool,
) -> None:
    """Send an answer, for HEAD without its body.

    Raises:
        trio.TooSlowError: The client does not take it.
    """
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("Allow", "GET, HEAD"))
    if last:
        headers.append(("Connection", "close"))
    response = h11.Response(
        status_code=answer.status, headers=headers, reason=answer.status.phrase.encode()
    )
    parts = [connection.send(response)]
    if not head:
        parts.append(connection.send(h11.Data(data=answer.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    with trio.fail_after(limits.HTTP_SECONDS_MAX):
        await stream.send_all(b"".join(part for part in parts if part))


def _plain(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.value} {status.phrase}\n".encode())
