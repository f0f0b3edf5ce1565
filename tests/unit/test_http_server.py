"""The HTTP server: what it answers, and that no client can do it harm."""

from __future__ import annotations

import gc
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import h11
import pytest
import trio
import trio.testing
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypothesis import given
from hypothesis import strategies as st

from fastjournal import limits
from fastjournald.observability.http_app import PageRequest, PageResponse, answer
from fastjournald.observability.http_server import HttpServer

GET = b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n"
BODY = b"what the page says\n"


async def page(_: PageRequest) -> PageResponse:
    return PageResponse(HTTPStatus.OK, BODY)


@pytest.mark.parametrize(
    ("client", "peer"),
    [(("::1", 80), "[::1]:80"), (("127.0.0.1", 81), "127.0.0.1:81")],
    ids=["ipv6", "ipv4"],
)
async def test_http_request_names_its_peer_as_an_address_is_written(
    client: tuple[str, int], peer: str
) -> None:
    asked: list[PageRequest] = []

    async def kept(request: PageRequest) -> PageResponse:
        asked.append(request)
        return PageResponse(HTTPStatus.OK, BODY)

    async def nothing(_: object = None) -> dict[str, str]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "raw_path": b"/", "method": "GET", "client": client}
    scope |= {"query_string": b"", "headers": []}
    stream: Any = SimpleNamespace(begin_answer=lambda: None)
    given: Any = (scope, nothing, nothing)
    await answer({"/": kept}, stream, lambda: None, *given)
    assert [request.peer for request in asked] == [peer]


def socket_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a connection: real sockets, so that the system's buffers are real."""
    ours, theirs = trio.socket.socketpair()
    return trio.SocketStream(ours), trio.SocketStream(theirs)


async def converse(
    talk: Callable[[trio.SocketStream], Awaitable[None]],
    server: HttpServer | None = None,
) -> None:
    """Let a client talk to a server; the test fails if the server raises or goes on for ever."""
    ours, theirs = socket_pair()
    server = server or HttpServer({"/page": page}, lambda _: "")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, theirs)
        await talk(ours)
        await ours.aclose()


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Read until the server closes."""
    answer = b""
    # a socket that is closed with unread bytes is reset
    with suppress(trio.BrokenResourceError):
        async for data in stream:
            answer += data
    return answer


async def read_page(stream: trio.abc.ReceiveStream) -> None:
    """Read one answer, which has to be the page."""
    answer = b""
    while not answer.endswith(BODY):
        data = await stream.receive_some()
        assert data, answer
        answer += data
    assert answer.startswith(b"HTTP/1.1 200 ")


async def said(*parts: bytes, eof: bool = True) -> bytes:
    """Return all that a client reads which sends these bytes."""
    answers: list[bytes] = []

    async def talk(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            for part in parts:
                await stream.send_all(part)
                await trio.testing.wait_all_tasks_blocked()
            if eof:
                await stream.send_eof()
        answers.append(await read_all(stream))

    await converse(talk)
    return answers[0]


def parsed(data: bytes, *methods: str) -> list[tuple[int, dict[str, str], bytes]]:
    """Return status, headers and body of the answers to requests of these methods."""
    client = h11.Connection(h11.CLIENT)
    client.receive_data(data)
    client.receive_data(b"")
    answers = []
    for at, method in enumerate(methods):
        if at:
            client.start_next_cycle()
        client.send(h11.Request(method=method, target="/", headers=[("Host", "here")]))
        client.send(h11.EndOfMessage())
        response = client.next_event()
        assert isinstance(response, h11.Response)
        body = b""
        while isinstance(event := client.next_event(), h11.Data):
            body += bytes(event.data)
        assert isinstance(event, h11.EndOfMessage)
        headers = {name.decode(): value.decode() for name, value in response.headers}
        answers.append((response.status_code, headers, body))
    return answers


async def test_page_is_answered_with_its_body() -> None:
    [(status, headers, body)] = parsed(await said(GET), "GET")
    assert (status, body) == (200, BODY)
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["content-length"] == str(len(BODY))


async def test_head_is_answered_with_the_length_alone() -> None:
    answer = await said(GET.replace(b"GET", b"HEAD"))
    [(status, headers, body)] = parsed(answer, "HEAD")
    assert (status, headers["content-length"], body) == (200, str(len(BODY)), b"")
    assert answer.endswith(b"\r\n\r\n")


async def test_query_does_not_matter() -> None:
    assert (await said(GET.replace(b"/page", b"/page?a=b"))).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", [b"/", b"/pag", b"/page/", b"*", b"//page", b"/%70age"])
async def test_http_path_of_another_name_is_not_found(path: bytes) -> None:
    assert (await said(GET.replace(b"/page", path))).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "NONSENSE"])
async def test_http_method_of_another_name_is_not_allowed(method: str) -> None:
    answer = await said(GET.replace(b"GET", method.encode()))
    [(status, headers, _)] = parsed(answer, "GET" if method == "CONNECT" else method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


async def test_connection_serves_one_request_after_the_other() -> None:
    answers = parsed(await said(GET, GET.replace(b"/page", b"/none"), GET), "GET", "GET", "GET")
    assert [status for status, _, _ in answers] == [200, 404, 200]


async def test_requests_can_be_sent_before_the_answers_are_read() -> None:
    assert len(parsed(await said(GET * 3), "GET", "GET", "GET")) == 3


async def test_request_is_understood_however_it_is_cut() -> None:
    def undated(answer: bytes) -> bytes:
        return re.sub(rb"\r\ndate: [^\r]*", b"", answer)

    whole = undated(await said(GET))
    for at in range(1, len(GET)):
        cut = await said(GET[:at], GET[at:])
        assert undated(cut) == whole
    assert undated(await said(*(bytes([byte]) for byte in GET))) == whole


def get_of(size: int) -> bytes:
    """Return a request whose head has so many bytes."""
    begin = GET[:-2] + b"x: "
    return begin + b"y" * (size - len(begin) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "second"])
async def test_http_head_has_one_bound_however_it_is_cut(before: bytes) -> None:
    """A read of the server is as large as the bound: the end of a head may come with the next."""
    bound = limits.HTTP_HEAD_BYTES_MAX
    methods = ["GET"] * (len(before) // len(GET) + 1)
    for size, behind, expected in (
        (bound, b"", 200),
        (bound, GET, 200),
        (bound + 1, b"", 431),
        (bound + 1, GET, 431),
        (2 * bound, b"", 431),
    ):
        sent = before + get_of(size) + behind
        end = len(before) + size
        cuts = {1, len(before), *range(end - 6, end + 2), bound - 1, bound, bound + 1}
        for at in sorted(at for at in cuts if at <= len(sent)):
            answers = parsed(await said(sent[:at], sent[at:]), *methods)
            assert answers[-1][0] == expected, (size, at)
    for size, expected in ((bound, 200), (bound + 1, 431)):
        pieces = re.findall(rb"(?s).{1,97}", before + get_of(size))
        assert parsed(await said(*pieces), *methods)[-1][0] == expected


async def test_http_head_that_is_bad_and_too_large_gets_one_answer_however_it_is_cut() -> None:
    bad = get_of(limits.HTTP_HEAD_BYTES_MAX + 9).replace(b"\r\nx: ", b"\r\n(): ", 1)
    for at in (1, len(bad) - 4, len(bad) - 1, len(bad)):
        assert (await said(bad[:at], bad[at:])).startswith(b"HTTP/1.1 431 "), at


@pytest.mark.parametrize(
    "request_", [b"GET /page HTTP/1.0\r\n\r\n", GET[:-2] + b"Connection: close\r\n\r\n"]
)
async def test_client_that_wants_one_answer_is_closed_after_it(request_: bytes) -> None:
    # it does not close its own side: the server does
    [(status, headers, _)] = parsed(await said(request_, eof=False), "GET")
    assert (status, headers["connection"]) == (200, "close")


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /page HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000000000\r\n\r\nx",
        b"GET /page HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT /page HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
    ],
)
async def test_body_is_not_waited_for(request_: bytes) -> None:
    answer = await said(request_, eof=False)
    final = answer.partition(b"\r\n\r\n")[2] if answer.startswith(b"HTTP/1.1 100") else answer
    assert final.startswith((b"HTTP/1.1 200", b"HTTP/1.1 405"))
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1 100") <= 1
    assert answer.replace(b"HTTP/1.1 100", b"").count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"FJ\x01\x00" + bytes(40) + b"\r\n\r\n", b"400"),
        (b"GET /page HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /page HTTP/1.1\r\nHost: here\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"GET /page HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"GET /" + b"x" * limits.HTTP_HEAD_BYTES_MAX, b"431"),
        (b"GET / HTTP/1.1\r\nHost: here\r\n" + b"a: b\r\n" * 10_000, b"431"),
    ],
    ids=["TLS", "FJ", "no-host", "length", "coding", "long-target", "many-fields"],
)
async def test_http_server_answers_and_closes_on_other_protocols(
    request_: bytes, status: bytes
) -> None:
    answer = await said(request_, eof=False)
    assert answer.startswith(b"HTTP/1.1 " + status + b" "), answer[:100]
    assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize(
    "request_",
    [
        GET[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
        GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ],
    ids=["h2c", "websocket"],
)
async def test_http_upgrade_is_ignored(request_: bytes) -> None:
    answers = parsed(await said(request_ + GET), "GET", "GET")
    assert [(status, body) for status, _, body in answers] == [(200, BODY)] * 2


async def test_http2_preface_is_no_request() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    answer = await said(preface, eof=False)
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert b"\r\n\r\n\0" not in answer


async def test_bad_body_behind_head_is_answered_without_body() -> None:
    bad = b"HEAD /page HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    [(status, _, body)] = parsed(await said(bad), "HEAD")
    assert (status, body) == (400, b"")


async def test_garbage_behind_an_answered_request_is_answered_and_closed() -> None:
    answer = await said(GET.replace(b"GET", b"HEAD"), b"garbage\r\n\r\n", eof=False)
    [_, (status, headers, _)] = parsed(answer, "HEAD", "GET")
    assert (status, headers["connection"]) == (400, "close")


async def test_http_request_that_is_cut_is_a_bad_one() -> None:
    assert (await said(GET[:-5])).startswith(b"HTTP/1.1 400")


async def test_client_that_says_nothing_and_goes_gets_nothing() -> None:
    assert await said() == b""


@pytest.mark.parametrize("begun", [b"", b"GET /pa", GET + b"GET"])
async def test_slow_client_is_closed(begun: bytes, autojump_clock: trio.testing.MockClock) -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(begun)
        started = trio.current_time()
        await read_all(stream)
        assert trio.current_time() - started == pytest.approx(limits.HTTP_SECONDS_MAX)

    await converse(talk)


async def trickle(stream: trio.abc.SendStream) -> None:
    for byte in GET:
        await stream.send_all(bytes([byte]))
        await trio.sleep(1)


async def test_byte_now_and_then_does_not_help(autojump_clock: trio.testing.MockClock) -> None:
    async def talk(stream: trio.SocketStream) -> None:
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle, stream)
            await read_all(stream)
            assert trio.current_time() - started == pytest.approx(limits.HTTP_SECONDS_MAX)
            nursery.cancel_scope.cancel()

    await converse(talk)


async def test_client_that_does_not_read_is_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def large(_: PageRequest) -> PageResponse:
        return PageResponse(HTTPStatus.OK, bytes(10_000_000))

    async def talk(stream: trio.SocketStream) -> None:
        started = trio.current_time()
        await stream.send_all(GET)
        await trio.sleep(limits.HTTP_SECONDS_MAX - 1)
        assert server.connections == 1
        # it takes a little, which gives it no more time
        await stream.receive_some(100_000)
        await trio.sleep(2)
        assert server.connections == 0
        assert len(await read_all(stream)) < 10_000_000
        assert trio.current_time() - started < limits.HTTP_SECONDS_MAX + 2

    server = HttpServer({"/page": large}, lambda _: "")
    await converse(talk, server)


async def test_closing_connection_lingers_for_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(b"garbage\r\n\r\n")
        await read_all(stream)
        await trio.sleep(0.5)
        await stream.send_all(b"more")
        await trio.sleep(1)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"more")

    await converse(talk)


async def test_connection_that_asked_longest_ago_makes_room() -> None:
    server = HttpServer({"/page": page}, lambda _: "", connections_max=2)
    async with trio.open_nursery() as nursery:
        scraper, silent, newcomer = [socket_pair() for _ in range(3)]
        for _, theirs in (scraper, silent):
            nursery.start_soon(server.serve, theirs)
            await trio.testing.wait_all_tasks_blocked()
        await scraper[0].send_all(GET)
        await read_page(scraper[0])
        nursery.start_soon(server.serve, newcomer[1])
        assert await read_all(silent[0]) == b""
        await silent[0].aclose()
        for ours, _ in (scraper, newcomer):
            await ours.send_all(GET)
            await read_page(ours)
            await ours.aclose()


async def test_http_connections_that_linger_are_bounded_too() -> None:
    server = HttpServer({"/page": page}, lambda _: "", connections_max=2)
    async with trio.open_nursery() as nursery:
        pairs = [socket_pair() for _ in range(10)]
        for at, (ours, theirs) in enumerate(pairs):
            nursery.start_soon(server.serve, theirs)
            # it is answered, and stays
            await ours.send_all(
                b"garbage\r\n\r\n" if at % 2 else GET[:-2] + b"Connection: close\r\n\r\n"
            )
            assert await ours.receive_some(1)
            await trio.testing.wait_all_tasks_blocked()
        assert server.connections == 2
        assert sum(theirs.socket.fileno() >= 0 for _, theirs in pairs) == 2
        nursery.cancel_scope.cancel()
    assert server.connections == 0
    for ours, _ in pairs:
        await ours.aclose()


async def test_http_error_of_the_library_ends_its_connection_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise h11.LocalProtocolError("a state that nobody thought of")

    server = HttpServer({"/page": page}, lambda _: "")
    async with trio.open_nursery() as nursery:
        ours, theirs = socket_pair()
        nursery.start_soon(server.serve, theirs)
        await trio.testing.wait_all_tasks_blocked()
        with monkeypatch.context() as patch:
            patch.setattr(H11Protocol, "_create_stream", fail)
            await ours.send_all(GET)
            assert await read_all(ours) == b""
        await ours.aclose()
    assert server.connections == 0
    assert caplog.messages == [
        "event=http-failed error=LocalProtocolError reason='a state that nobody thought of'"
    ]


@pytest.mark.parametrize("method", [b"hEAD", b"get", b"Post"])
async def test_http_method_in_lower_case_is_a_bad_request(
    method: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await said(GET.replace(b"GET", method) + GET, eof=False)
    [(status, headers, body)] = parsed(answer, "GET")
    assert (status, headers["connection"], body) == (400, "close", b"")
    assert not caplog.messages


async def test_http_server_ends_at_once_beside_a_client_that_does_not_read() -> None:
    async def large(_: PageRequest) -> PageResponse:
        return PageResponse(HTTPStatus.OK, bytes(10_000_000))

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = HttpServer({"/page": large}, lambda _: "")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, [listener])
        stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        await stream.send_all(GET)
        await stream.receive_some(10)
        await trio.testing.wait_all_tasks_blocked()
        assert server.connections == 1
        nursery.cancel_scope.cancel()
    # a real clock: the answer had ten seconds
    assert server.connections == 0
    assert len(await read_all(stream)) < 10_000_000
    await stream.aclose()


@pytest.mark.parametrize(
    "sent", [b"", GET, GET * 3, b"garbage\r\n\r\n", GET[:-5], GET.replace(b"GET", b"POST")]
)
async def test_http_connection_that_has_ended_leaves_no_old_garbage(sent: bytes) -> None:
    server = HttpServer({"/page": page}, lambda _: "")

    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(GET)
        await read_page(stream)
        # from here on its objects are old: a collection of the young ones does not look at them
        gc.collect()
        await stream.send_all(sent)
        await stream.send_eof()
        await read_all(stream)

    gc.disable()
    try:
        await converse(talk, server)
        gc.collect(0)
        left = [one for one in gc.get_objects() if isinstance(one, H11Protocol | HTTPStream)]
        assert not left
    finally:
        gc.enable()


PIECES = [
    b"GET /page", b"HEAD ", b"CONNECT a:1", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\r\n\r\n", b"\n",
    b"Host: here\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n",
    b"0\r\n\r\n", b"Upgrade: h2c\r\n", b"Connection: Upgrade\r\n", b"Expect: 100-continue\r\n",
    GET, GET.replace(b"GET", b"HEAD"), GET.replace(b"GET", b"POST"),
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=12), st.booleans())
def test_http_server_fails_by_no_bytes(parts: list[bytes], eof: bool) -> None:
    async def run() -> bytes:
        if eof:
            return await said(*parts)
        answers: list[bytes] = []

        async def talk(stream: trio.SocketStream) -> None:
            await stream.send_all(b"".join(parts))
            answers.append(await read_all(stream))

        await converse(talk)
        return answers[0]

    answer = trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not answer or answer.startswith(b"HTTP/1.1 ")
