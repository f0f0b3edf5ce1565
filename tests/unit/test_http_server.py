"""The HTTP server: what it answers, and that no client can do it harm."""

from __future__ import annotations

import gc
import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

import h11
import pytest
import trio
import trio.testing
import trustme
from hypothesis import given
from hypothesis import strategies as st

from fastjournal import limits
from fastjournal.http_server import HttpRequest, HttpResponse, HttpServer, Route

GET = b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n"
BODY = b"what the page says\n"


async def page(_: HttpRequest) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, BODY)


def serving(
    handler: Callable[[HttpRequest], Awaitable[HttpResponse]], **options: int
) -> HttpServer:
    """Return a server of one page."""
    return HttpServer({"/page": Route(handler)}.get, lambda _: "", **options)


async def large(_: HttpRequest) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, bytes(10_000_000))


async def test_http_request_names_its_peer_as_an_address_is_written() -> None:
    asked: list[HttpRequest] = []

    async def kept(request: HttpRequest) -> HttpResponse:
        asked.append(request)
        return HttpResponse(HTTPStatus.OK, BODY)

    for host, written in (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")):
        [listener] = await trio.open_tcp_listeners(0, host=host)
        async with trio.open_nursery() as nursery:
            server = serving(kept)
            nursery.start_soon(server.run, [listener])
            stream = await trio.open_tcp_stream(host, listener.socket.getsockname()[1])
            await stream.send_all(GET)
            await read_page(stream)
            port = stream.socket.getsockname()[1]
            await stream.aclose()
            nursery.cancel_scope.cancel()
        assert asked[-1].peer == f"{written}:{port}"


def socket_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a connection: real sockets, so that the system's buffers are real."""
    ours, theirs = trio.socket.socketpair()
    return trio.SocketStream(ours), trio.SocketStream(theirs)


async def converse(
    talk: Callable[[trio.SocketStream], Awaitable[None]], server: HttpServer | None = None
) -> None:
    """Let a client talk to a server; the test fails if the server raises or goes on for ever."""
    ours, theirs = socket_pair()
    server = server or serving(page)
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


async def said(*parts: bytes, eof: bool = True, server: HttpServer | None = None) -> bytes:
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

    await converse(talk, server)
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
        assert undated(await said(GET[:at], GET[at:])) == whole
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


async def test_client_that_does_not_read_is_closed(autojump_clock: trio.testing.MockClock) -> None:
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

    server = serving(large)
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
    server = serving(page, connections_max=2)
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
    server = serving(page, connections_max=2)
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


async def test_http_response_that_h11_does_not_send_ends_its_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def bad(_: HttpRequest) -> HttpResponse:
        return HttpResponse(HTTPStatus.OK, BODY, headers=((b"x", b"two\r\nlines"),))

    server = serving(bad)
    assert await said(GET, eof=False, server=server) == b""
    assert server.connections == 0
    [message] = caplog.messages
    assert message.startswith("event=http-failed error=LocalProtocolError reason=")


async def test_http_handler_that_fails_costs_one_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(_: HttpRequest) -> HttpResponse:
        raise KeyError("a fault of the page")

    server = serving(failing)
    [(status, headers, body)] = parsed(await said(GET, eof=False, server=server), "GET")
    assert (status, headers["connection"], body) == (500, "close", b"")
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        "event=http-page-failed path='/page'",
    )
    assert record.exc_info


@pytest.mark.parametrize("method", [b"hEAD", b"get", b"Post"])
async def test_http_method_in_lower_case_is_a_bad_request(
    method: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await said(GET.replace(b"GET", method) + GET, eof=False)
    [(status, headers, body)] = parsed(answer, "GET")
    assert (status, headers["connection"], body) == (400, "close", b"")
    assert not caplog.messages


async def test_http_server_ends_at_once_beside_a_client_that_does_not_read() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = serving(large)
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
    server = serving(page)

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
        left = [one for one in gc.get_objects() if isinstance(one, h11.Connection)]
        assert not left
    finally:
        gc.enable()


# --- bodies, header fields both ways, TLS ---------------------------------------------------------

BODY_MAX = 100


async def echo(request: HttpRequest) -> HttpResponse:
    cookies = ((b"set-cookie", b"a=1; HttpOnly"), (b"set-cookie", b"b=2; Secure"))
    text = b"|".join((request.method.encode(), request.headers.get(b"cookie", b""), request.body))
    return HttpResponse(HTTPStatus.OK, text, headers=cookies)


def form_server() -> HttpServer:
    route = Route(echo, ("GET", "HEAD", "POST"), body_bytes_max=BODY_MAX)
    return HttpServer({"/form": route, "/page": Route(page)}.get, lambda _: "")


def post(body: bytes, fields: bytes = b"", *, chunk: int = 0) -> bytes:
    """Return a POST; with ``chunk`` in chunks of so many bytes."""
    head = b"POST /form HTTP/1.1\r\nHost: here\r\n" + fields
    if not chunk:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    pieces = [body[at : at + chunk] for at in range(0, len(body), chunk)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


async def test_http_body_and_cookies_reach_the_handler_and_back_however_they_are_cut() -> None:
    for whole in (post(b"x=1", b"Cookie: c=3\r\n"), post(b"x=1", b"Cookie: c=3\r\n", chunk=2)):
        for at in range(1, len(whole)):
            sent = (whole[:at], whole[at:], GET)
            answer = await said(*sent, server=form_server())
            assert answer.count(b"set-cookie: a=1; HttpOnly\r\nset-cookie: b=2; Secure\r\n") == 1
            # the connection goes on behind a body that was read
            answers = parsed(answer, "POST", "GET")
            assert [body for _, _, body in answers] == [b"POST|c=3|x=1", BODY]


@pytest.mark.parametrize("chunk", [0, 1, 7, BODY_MAX])
async def test_http_body_has_the_bound_of_its_route(chunk: int) -> None:
    for size, status in ((BODY_MAX, 200), (BODY_MAX + 1, 413)):
        sent = post(b"y" * size, chunk=chunk) + GET
        answers = parsed(await said(sent, server=form_server()), "POST")
        assert answers[0][0] == status
        assert (answers[0][1].get("connection") == "close") == (status == 413)


async def test_http_body_that_is_too_long_is_refused_before_it_comes() -> None:
    for length in (b"101", b"1" * 18):
        head = b"POST /form HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\n"
        sent = head + b"Content-Length: " + length + b"\r\n\r\n"
        answer = await said(sent, eof=False, server=form_server())
        assert answer.startswith(b"HTTP/1.1 413 "), answer


async def test_http_client_that_waits_is_told_to_go_on() -> None:
    async def talk(stream: trio.SocketStream) -> None:
        whole = post(b"x=1", b"Expect: 100-continue\r\n")
        await stream.send_all(whole[:-3])
        assert await stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(whole[-3:])
        assert (await stream.receive_some()).endswith(b"\r\n\r\nPOST||x=1")

    await converse(talk, form_server())


@pytest.mark.parametrize("end", [b"", b"5\r\n"])
async def test_http_body_that_is_cut_is_a_bad_request(end: bytes) -> None:
    sent = post(b"y" * 10, chunk=10)[:-5] + end
    assert (await said(sent, server=form_server())).startswith(b"HTTP/1.1 400 ")


async def test_http_body_that_drips_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    async def talk(stream: trio.SocketStream) -> None:
        whole = post(b"y" * BODY_MAX)
        await stream.send_all(whole[:-BODY_MAX])
        started = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                for _ in range(BODY_MAX):
                    await stream.send_all(b"y")
                    await trio.sleep(0.5)

            nursery.start_soon(drip)
            assert await read_all(stream) == b""
            assert trio.current_time() - started == pytest.approx(limits.HTTP_SECONDS_MAX)
            nursery.cancel_scope.cancel()

    await converse(talk, form_server())


async def over_tls(sent: bytes) -> bytes:
    """Return what a client reads through TLS."""
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(tls)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    route = Route(echo, ("POST",), body_bytes_max=BODY_MAX)
    server = HttpServer({"/form": route}.get, lambda _: "", tls=tls)
    answers: list[bytes] = []

    async def talk(plain: trio.SocketStream) -> None:
        stream = trio.SSLStream(plain, trust, server_hostname="localhost", https_compatible=True)
        await stream.send_all(sent)
        answers.append(await read_all(stream))

    await converse(talk, server)
    return answers[0]


async def test_http_over_tls_has_the_same_answers_and_bounds() -> None:
    [(status, _, body)] = parsed(await over_tls(post(b"x", b"Connection: close\r\n")), "POST")
    assert (status, body) == (200, b"POST||x")
    assert (await over_tls(post(b"x" * 101))).startswith(b"HTTP/1.1 413 ")
    long_head = b"GET /form HTTP/1.1\r\nx: " + b"y" * limits.HTTP_HEAD_BYTES_MAX
    assert (await over_tls(long_head)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", GET])
async def test_http_client_without_a_handshake_is_closed(
    sent: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    server = HttpServer({}.get, lambda _: "", tls=tls)

    async def talk(stream: trio.SocketStream) -> None:
        started = trio.current_time()
        await stream.send_all(sent)
        assert b"HTTP" not in await read_all(stream)
        assert trio.current_time() - started <= limits.HTTP_SECONDS_MAX + 1

    await converse(talk, server)
    assert server.connections == 0


PIECES = [
    b"GET /page", b"HEAD ", b"CONNECT a:1", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\r\n\r\n", b"\n",
    b"Host: here\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n",
    b"0\r\n\r\n", b"Upgrade: h2c\r\n", b"Connection: Upgrade\r\n", b"Expect: 100-continue\r\n",
    GET, GET.replace(b"GET", b"HEAD"), GET.replace(b"GET", b"POST"),
]  # fmt: skip


PIECES += [post(b"x=1"), post(b"x=1", chunk=2), b"POST /form HTTP/1.1\r\nHost: here\r\n"]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=12), st.booleans())
def test_http_server_fails_by_no_bytes(parts: list[bytes], eof: bool) -> None:
    async def run() -> bytes:
        if eof:
            return await said(*parts, server=form_server())
        answers: list[bytes] = []

        async def talk(stream: trio.SocketStream) -> None:
            await stream.send_all(b"".join(parts))
            answers.append(await read_all(stream))

        await converse(talk, form_server())
        return answers[0]

    answer = trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not answer or answer.startswith(b"HTTP/1.1 ")
