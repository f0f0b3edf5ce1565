"""ASGI application: pages by path, only read, and the header fields of every answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

import trio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
    Scope,
)

from fastjournald.config.addresses import socket_address
from fastjournald.observability.bounded_stream import BoundedStream

TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

SAFE_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # no script, no other origin, no frame; the style stands in the page
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
        b"base-uri 'none'; frame-ancestors 'none'",
    ),
)
"""Header fields of every answer: a browser runs, loads and embeds nothing."""


class PageResponse(NamedTuple):
    """Content of a page."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[bytes, bytes], ...] = ()


class PageRequest(NamedTuple):
    """Request for a page."""

    fields: Mapping[bytes, bytes]
    """Fields of the query, decoded; the last one of those with one name."""
    headers: Mapping[bytes, bytes]
    """By name in lower case."""
    peer: str = ""
    """Address of the client."""


Page: TypeAlias = Callable[[PageRequest], Awaitable[PageResponse]]


async def answer(
    pages: Mapping[str, Page],
    client: BoundedStream,
    on_request: Callable[[], None],
    scope: Scope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> None:
    """Answer one request.

    Args:
        pages: By path.
        client: Told when an answer begins.
        on_request: Called at each request.
        scope: ASGI's: the request.
        receive: ASGI's: parts of the body, which nobody wants.
        send: ASGI's.
    """
    assert scope["type"] == "http", scope["type"]
    on_request()
    async with trio.open_nursery() as nursery:
        # hypercorn waits until parts are taken, also before it ends an answer
        nursery.start_soon(_discard, receive)
        content = await _content(pages, scope)
        client.begin_answer()
        await _send(send, content, last=_has_body(scope))
        nursery.cancel_scope.cancel()


async def _discard(receive: ASGIReceiveCallable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _content(pages: Mapping[str, Page], scope: HTTPScope) -> PageResponse:
    page = pages.get(scope["raw_path"].decode("ascii", "replace"))
    if page is None:
        return plain(HTTPStatus.NOT_FOUND)
    if scope["method"] not in ("GET", "HEAD"):
        return plain(HTTPStatus.METHOD_NOT_ALLOWED)._replace(headers=((b"allow", b"GET, HEAD"),))
    request = PageRequest(
        query_fields(scope["query_string"]),
        dict(scope["headers"]),
        socket_address(scope["client"] or ("", 0)),
    )
    return await page(request)


def _has_body(scope: HTTPScope) -> bool:
    """Whether a body follows, so that this is the last request of its connection."""
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


async def _send(send: ASGISendCallable, content: PageResponse, *, last: bool) -> None:
    headers = [
        (b"content-type", content.content_type.encode()),
        (b"content-length", b"%d" % len(content.body)),
        *SAFE_HEADERS,
        *content.headers,
    ]
    if last:
        headers.append((b"connection", b"close"))
    await send(
        HTTPResponseStartEvent(type="http.response.start", status=content.status, headers=headers)
    )
    await send(HTTPResponseBodyEvent(type="http.response.body", body=content.body, more_body=False))


def plain(status: HTTPStatus, text: str = "") -> PageResponse:
    """Return an answer of one line; without a text its status."""
    return PageResponse(status, f"{text or f'{status.value} {status.phrase}'}\n".encode())


def query_fields(query: bytes) -> dict[bytes, bytes]:
    """Return the fields of a query as bytes: keys need not be UTF-8."""
    fields = {}
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        fields[_decoded(name)] = _decoded(value)
    return fields


def _decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))
