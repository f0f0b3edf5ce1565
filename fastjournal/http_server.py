"""HTTP/1.1 server of the daemon and the forwarder: h11 is the protocol, trio the sockets.

h11 parses and frames. This module reads, sends and bounds: the bytes of a head and of a body, the
time for each, the time to take an answer, the number of connections, and the close. A request is
answered in whole, after its body was read in whole, so a handler is one function from a request to
a response. There is no HTTP/2 and no upgrade: RFC 9110 lets a server ignore ``Upgrade``.

Bounds are in ``fastjournal.limits``: HTTP_HEAD_BYTES_MAX; HTTP_SECONDS_MAX for each of the TLS
handshake, the head, the body and the sending of the answer; HTTP_CONNECTIONS_MAX, or another number
of the caller. The bytes of a body are bounded by its route.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

import h11
import trio

from fastjournal import limits
from fastjournal.eviction_queue import EvictionQueue
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.printable import safe_text
from fastjournal.protocol import ErrorCode, Reply, encode_reply
from fastjournal.protocol.constants import REQUEST_MAGIC
from fastjournal.sockets import linger, socket_address

LOG = logging.getLogger("fastjournal.http")

TEXT = "text/plain; charset=utf-8"

SAFE_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    # with no-referrer a browser does not name its origin, not even where it is this server
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # no script, no other origin, no frame; the style is in the page
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
        b"base-uri 'none'; frame-ancestors 'none'",
    ),
)
"""Header fields of every answer of a handler: a browser runs, loads and embeds nothing."""

LINGER_BYTES_MAX = 1024 * 1024
"""Bytes that it discards at most: to read them takes time of the event loop."""

_NO_HTTP = REQUEST_MAGIC + b"\0"
"""Begin of a request of a client of the daemon, which no request of HTTP has."""
_OTHER_PORT = encode_reply(
    Reply(
        error=f"{ErrorCode.BAD_REQUEST} this is a port of HTTP (--http): connect to an address of"
        " --listen of fastjournald, by default 127.0.0.1:9923"
    )
)
"""Ends the connection of such a client, which otherwise would try again and again."""

RECEIVE_BYTES = 16 * 1024
"""Bytes of one read: they are parsed in one turn of the event loop."""

_HEAD_END = re.compile(rb"\n\r?\n")

_PRINTABLE_MIN = 0x21
"""First byte of a request line at least; h11 refuses a smaller one at once."""


class HttpRequest(NamedTuple):
    """Request that was read in whole."""

    fields: Mapping[bytes, bytes]
    """Fields of the query, decoded; the last one of those with one name."""
    headers: Mapping[bytes, bytes]
    """By name in lower case; the last one of those with one name."""
    peer: str = ""
    """Address of the client."""
    method: str = "GET"
    path: str = "/"
    """Path as it was sent, without the query."""
    query: bytes = b""
    body: bytes = b""
    is_encrypted: bool = False
    """Whether it came by TLS."""
    is_certified: bool = False
    """Whether the client has shown a certificate of an authority that the TLS context knows."""


class HttpResponse(NamedTuple):
    """Answer to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further header fields, such as ``set-cookie``; a name may come more than once."""


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


class Route(NamedTuple):
    """Handler of a path."""

    handler: Handler
    methods: tuple[str, ...] | None = ("GET", "HEAD")
    """Others get 405; None: the handler decides. It gets HEAD too, whose body is not sent."""
    body_bytes_max: int = 0
    """Bytes of a body that the handler gets; a larger one gets 413. 0: a body is not read, and its
    connection is closed after the answer."""


class HttpServer:
    """Serves requests, within the bounds of this module.

    Args:
        find: Returns the route of a path; None: 404.
        origin_of: Returns the address whose clients share one place in the eviction queue.
        connections_max: Connections at once; for one more, one that asked longest ago is closed.
        tls: Context of a server for TLS; None: plain TCP.
    """

    def __init__(
        self,
        find: Callable[[str], Route | None],
        origin_of: Callable[[trio.SocketStream], str],
        *,
        connections_max: int = limits.HTTP_CONNECTIONS_MAX,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._find = find
        self._clients: EvictionQueue[trio.CancelScope] = EvictionQueue()
        """Scope of each connection; those that asked longest ago come first."""
        self._origin_of = origin_of
        self._connections_max = connections_max
        self.tls = tls
        """Context of connections from now on."""

    @property
    def connections(self) -> int:
        """Number of connections, with those that linger: each has a descriptor."""
        return len(self._clients)

    async def run(self, listeners: list[trio.SocketListener]) -> None:
        """Serve all clients until cancelled; then end at once, also with waiting clients."""
        await trio.serve_listeners(self.serve, listeners)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one client until it disconnects, is too slow, or violates HTTP; then close."""
        clients, origin = self._clients, self._origin_of(stream)
        if len(clients) >= self._connections_max and (oldest := clients.pop()) is not None:
            LOG.debug(LogEvent("http-made-room", connections=self._connections_max))
            oldest.cancel()
        client = trio.CancelScope()

        def on_request() -> None:
            if clients.discard(origin, client):
                clients.add(origin, client)

        clients.add(origin, client)
        try:
            with client, suppress(trio.BrokenResourceError):
                connection = _Connection(*await self._encrypted(stream), peer_of(stream))
                await connection.serve(self._find, on_request)
                await stream.send_eof()
                await linger(stream, RECEIVE_BYTES, LINGER_BYTES_MAX)
        finally:
            clients.discard(origin, client)
            await trio.aclose_forcefully(stream)

    async def _encrypted(self, stream: trio.SocketStream) -> tuple[trio.abc.Stream, bool]:
        """Return the stream of requests, and whether the client has shown a certificate."""
        if self.tls is None:
            return stream, False
        encrypted = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
        with _time_to_send():
            await encrypted.do_handshake()
        return encrypted, encrypted.getpeercert(binary_form=True) is not None


class _Connection:
    """Requests of one client, one after the other."""

    def __init__(self, stream: trio.abc.Stream, is_certified: bool, peer: str) -> None:
        self._stream = stream
        self._is_certified = is_certified
        self._peer = peer
        self._http = h11.Connection(
            h11.SERVER, max_incomplete_event_size=limits.HTTP_HEAD_BYTES_MAX
        )

    async def serve(
        self, find: Callable[[str], Route | None], on_request: Callable[[], None]
    ) -> None:
        """Answer requests until the last one.

        Raises:
            trio.BrokenResourceError: The client has disconnected, or did not read an answer in
                time.
        """
        http = self._http
        try:
            while await self._serve_one(find, on_request):
                http.start_next_cycle()
        except trio.TooSlowError:
            # the next request did not come in time
            pass
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
        except h11.LocalProtocolError as error:
            # a response that h11 does not send costs one connection, and not the program
            LOG.error(
                LogEvent(
                    "http-failed",
                    error=type(error).__name__,
                    reason=Sentence(safe_text(str(error))),
                )
            )

    async def _serve_one(
        self, find: Callable[[str], Route | None], on_request: Callable[[], None]
    ) -> bool:
        """Answer the next request; whether another one may follow."""
        http = self._http
        with trio.fail_after(limits.HTTP_SECONDS_MAX):
            head = await self._next_event()
        if not isinstance(head, h11.Request):
            return False
        on_request()
        method = head.method.decode("ascii")
        if method != method.upper():
            # h11 takes hEAD for a method whose answer has a body, and others for HEAD
            raise h11.RemoteProtocolError("the method is in lower case")
        path, _, query = head.target.partition(b"?")
        request = HttpRequest(
            query_fields(query),
            dict(head.headers),
            self._peer,
            method,
            path.decode("ascii", "replace"),
            query,
            is_encrypted=isinstance(self._stream, trio.SSLStream),
            is_certified=self._is_certified,
        )
        route = find(request.path)
        length = request.headers.get(b"content-length")
        has_body = length is not None or b"transfer-encoding" in request.headers
        if route is None:
            response = plain(HTTPStatus.NOT_FOUND)
        elif route.methods is not None and method not in route.methods:
            allowed = ", ".join(route.methods).encode()
            response = plain(HTTPStatus.METHOD_NOT_ALLOWED)._replace(headers=((b"allow", allowed),))
        else:
            if has_body and route.body_bytes_max:
                request = request._replace(body=await self._body(length, route.body_bytes_max))
                has_body = False
            response = await _response(route.handler, request)
        if http.their_state is h11.SEND_BODY:
            # the end of a request without a body, or the first part of an unread one
            http.next_event()
        await self._send(response, is_last=has_body, has_content=method != "HEAD")
        return http.our_state is h11.DONE and http.their_state is h11.DONE

    async def _next_event(self) -> h11.Event:
        """Return the next event of the client, a head with the bound that all have.

        Raises:
            h11.RemoteProtocolError: The client sent no HTTP, or a head that is too large.
        """
        http = self._http
        while True:
            # h11 bounds a head only until its end has come
            if http.their_state is h11.IDLE and _is_too_large(http.trailing_data[0]):
                raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
            event = http.next_event()
            if isinstance(event, h11.Event):
                return event
            data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            if data.startswith(_NO_HTTP) and http.their_state is h11.IDLE:
                with _time_to_send():
                    await self._stream.send_all(_OTHER_PORT)
                http.send_failed()  # nothing more is sent
                raise h11.RemoteProtocolError("a client of the daemon's own protocol")
            http.receive_data(data)

    async def _body(self, length: bytes | None, bytes_max: int) -> bytes:
        """Return the body of the request.

        Raises:
            h11.RemoteProtocolError: It is too large, or no HTTP.
        """
        too_large = h11.RemoteProtocolError("the body is too large", error_status_hint=413)
        if length is not None and int(length) > bytes_max:
            raise too_large
        body = bytearray()
        with trio.fail_after(limits.HTTP_SECONDS_MAX):
            if self._http.they_are_waiting_for_100_continue:
                going_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
                await self._stream.send_all(self._http.send(going_on) or b"")
            while isinstance(event := await self._next_event(), h11.Data):
                body += event.data
                if len(body) > bytes_max:
                    raise too_large
        return bytes(body)

    async def _send(self, response: HttpResponse, *, is_last: bool, has_content: bool) -> None:
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"content-length", b"%d" % len(response.body)),
            *SAFE_HEADERS,
            *response.headers,
        ]
        if is_last:
            headers.append((b"connection", b"close"))
        await self._send_whole(response.status, headers, response.body if has_content else b"")

    async def _refuse(self, status: int) -> None:
        """Answer what is no request, or not one that is served, without a text; then close."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            headers = [(b"content-length", b"0"), (b"connection", b"close")]
            await self._send_whole(HTTPStatus(status), headers, b"")

    async def _send_whole(
        self, status: HTTPStatus, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        headers.append((b"date", formatdate(usegmt=True).encode()))
        events: list[h11.Event] = [
            h11.Response(status_code=status.value, headers=headers, reason=status.phrase.encode()),
            h11.EndOfMessage(),
        ]
        if body:
            events.insert(1, h11.Data(data=body))
        data = b"".join(self._http.send(event) or b"" for event in events)
        with _time_to_send():
            await self._stream.send_all(data)


async def _response(handler: Handler, request: HttpRequest) -> HttpResponse:
    """Return the answer of a handler; one that fails costs one answer, and not the program."""
    try:
        return await handler(request)
    except Exception:
        LOG.exception(LogEvent("http-page-failed", path=Sentence(safe_text(request.path))))
        closes = ((b"connection", b"close"),)
        return HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, b"", headers=closes)


@contextmanager
def _time_to_send() -> Iterator[None]:
    with trio.move_on_after(limits.HTTP_SECONDS_MAX) as sending:
        yield
    if sending.cancelled_caught:
        raise trio.BrokenResourceError("the client did not take it in time")


def _is_too_large(came: bytes) -> bool:
    bound = limits.HTTP_HEAD_BYTES_MAX
    return len(came) > bound and came[0] >= _PRINTABLE_MIN and not _HEAD_END.search(came, 0, bound)


def peer_of(stream: trio.SocketStream) -> str:
    """Return the address of the client in the form of an option; empty: none, or disconnected."""
    try:
        name = stream.socket.getpeername()
    except OSError:
        return ""
    return socket_address(name) if isinstance(name, tuple) else ""


def plain(status: HTTPStatus, text: str = "") -> HttpResponse:
    """Return an answer of one line; without a text its status."""
    return HttpResponse(status, f"{text or f'{status.value} {status.phrase}'}\n".encode())


def query_fields(query: bytes) -> dict[bytes, bytes]:
    """Return the fields of a query, or of a form in a body, as bytes: they need not be UTF-8."""
    fields = {}
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        fields[_decoded(name)] = _decoded(value)
    return fields


def _decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))
