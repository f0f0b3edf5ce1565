"""The multiplexer: identifiers, matching, abandoning and failing, without IO."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import ByteStream

from fastjournal.client.aio.event_loop import running_loop
from fastjournal.client.aio.transport import AsyncTransport, ParkingLot
from fastjournal.client.core import calls
from fastjournal.client.core.address import parse_address
from fastjournal.client.core.calls import Call
from fastjournal.client.core.failures import connection_lost
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.client.core.pipeline import Pipeline
from fastjournal.client.sync.sockets import Channel
from fastjournal.client.sync.transport import SyncTransport
from fastjournal.errors import CannotConnectError, ProtocolError
from fastjournal.limits import CLIENT_IN_FLIGHT_MAX, CLIENT_UNSENT_BYTES_MAX
from fastjournal.protocol import (
    Flag,
    Function,
    Pair,
    Reply,
    Request,
    ServerConnection,
    encode_reply,
)


def received(server: ServerConnection, client: Multiplexer) -> list[Request]:
    if data := client.data_to_send():
        server.receive_data(data)
    return server.next_events()


def new() -> Multiplexer:
    return Multiplexer(reply_bytes_max=1000)


def test_identifier_in_flight_is_not_given_again_and_zero_never() -> None:
    client = new()
    held = client.start(Request(Function.NEXT))
    seen = set()
    for _ in range(70_000):
        pending = client.start(Request(Function.NOP))
        client.data_to_send()
        seen.add(pending.request.identifier)
        client.receive_data(encode_reply(Reply(pending.request.identifier)))
        assert pending.done
    assert 0 not in seen
    assert held.request.identifier not in seen
    assert len(seen) == 65_534
    assert not held.done


def test_multiplexer_has_no_room_beyond_its_bounds_until_replies_come_or_bytes_go() -> None:
    client = new()
    for _ in range(CLIENT_IN_FLIGHT_MAX):
        assert client.has_room
        client.start(Request(Function.NOP))
        client.data_to_send()
    assert not client.has_room
    client.receive_data(encode_reply(Reply(1)))
    # not as many as there are bytes for: that would be more requests than may be in flight
    assert client.room == 1
    client.start(Request(Function.SET, value_type=1, value=bytes(CLIENT_UNSENT_BYTES_MAX)))
    client.receive_data(encode_reply(Reply(2)))
    assert not client.has_room
    client.data_to_send()
    assert client.has_room


def test_connection_that_is_closed_without_a_word_may_be_one_for_tls() -> None:
    for heard in (b"", encode_reply(Reply(1))):
        client = new()
        pendings = [client.start(Request(Function.NOP)) for _ in range(2)]
        if heard:
            client.receive_data(heard)
        client.receive_data(b"")
        with pytest.raises(CannotConnectError) as caught:
            pendings[1].answer()
        assert caught.value.hint is not None
        assert ("TLS" in caught.value.hint) is not bool(heard)
        assert caught.value.code == "connection-lost"


def test_lost_connection_gives_everything_in_flight_its_own_error() -> None:
    client = new()
    done = client.start(Request(Function.NOP))
    lost = [client.start(Request(Function.NOP)) for _ in range(2)]
    client.receive_data(encode_reply(Reply(done.request.identifier)))
    client.receive_data(b"")
    assert done.answer().error == ""
    errors = []
    for pending in lost:
        with pytest.raises(CannotConnectError) as caught:
            pending.answer()
        assert caught.value.code == "connection-lost"
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert client.failed
    assert client.data_to_send() == b""
    with pytest.raises(CannotConnectError):
        client.start(Request(Function.NOP))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "bad-request"),
        (encode_reply(Reply(9)), "bad-request"),
        (encode_reply(Reply(1, pairs=[Pair(b"k", 1, bytes(2000))])), "too-large"),
    ],
)
def test_bytes_that_answer_no_request_end_the_connection(data: bytes, code: str) -> None:
    client = new()
    pending = client.start(Request(Function.NOP))
    client.receive_data(data)
    with pytest.raises(ProtocolError) as caught:
        pending.answer()
    assert caught.value.code == code
    assert client.failed


def test_next_that_waits_is_cancelled_when_nobody_waits_for_it() -> None:
    client, server = new(), ServerConnection()
    call = calls.next_(wait=calls.WAIT_WITHOUT_END)
    pending = client.start(call.request, call.undo)
    client.abandon(pending)
    asked, cancelled = received(server, client)
    assert (cancelled.function, cancelled.count) == (Function.CANCEL, asked.identifier)
    assert not client.settled
    client.receive_data(encode_reply(Reply(asked.identifier, pairs=[])))
    client.receive_data(encode_reply(Reply(cancelled.identifier)))
    assert client.settled
    assert (client.in_flight, client.data_to_send()) == (0, b"")


def test_work_that_was_on_its_way_when_a_next_was_cancelled_is_released() -> None:
    client, server = new(), ServerConnection()
    call = calls.next_(wait=5e-6)
    pending = client.start(call.request, call.undo)
    client.abandon(pending)
    asked, cancelled = received(server, client)
    client.receive_data(
        encode_reply(Reply(asked.identifier, timeout=7, pairs=[Pair(b"d:1:1:a")]))
        + encode_reply(Reply(cancelled.identifier, error="not-found"))
    )
    (released,) = received(server, client)
    assert (released.function, released.key, released.timeout) == (Function.RELEASE, b"d:1:1:a", 7)
    assert not client.settled
    client.receive_data(encode_reply(Reply(released.identifier)))
    assert client.settled


def test_identifier_that_is_answered_before_its_cancellation_goes_out_is_not_cancelled() -> None:
    client, server = new(), ServerConnection()
    call = calls.next_(wait=5e-6)
    pending = client.start(call.request, call.undo)
    (asked,) = received(server, client)
    client.abandon(pending)
    client.receive_data(encode_reply(Reply(asked.identifier, pairs=[])))
    assert received(server, client) == []
    assert client.settled


def test_abandoned_request_is_not_cancelled_where_it_was_answered_or_does_not_wait() -> None:
    client, server = new(), ServerConnection()
    answered, short = client.start(Request(Function.NOP)), calls.next_()
    client.receive_data(encode_reply(Reply(1)))
    client.abandon(answered)
    client.abandon(client.start(short.request, short.undo))
    assert [request.function for request in received(server, client)] == [
        Function.NOP,
        Function.NEXT,
    ]
    client.fail(connection_lost("killed"))
    assert client.settled


def test_subscription_keeps_its_identifier_until_its_cancellation_is_answered() -> None:
    client, server = new(), ServerConnection()
    told: list[Reply | None] = []
    pending = client.subscribe(Request(Function.GET, flags=Flag.LISTEN, key=b"k"), told.append)
    (asked,) = received(server, client)
    client.receive_data(encode_reply(Reply(asked.identifier, pairs=[])))
    client.unsubscribe(pending.identifier)
    client.unsubscribe(pending.identifier)
    (cancelled,) = received(server, client)
    assert (cancelled.function, cancelled.count) == (Function.CANCEL, asked.identifier)
    note = encode_reply(Reply(asked.identifier, flags=Flag.LISTEN, pairs=[Pair(b"k")]))
    client.receive_data(note)
    seen = {client.start(Request(Function.NOP)).identifier for _ in range(10)}
    assert asked.identifier not in seen
    client.receive_data(encode_reply(Reply(cancelled.identifier)))
    client._last_identifier = asked.identifier - 1
    assert client.start(Request(Function.NOP)).identifier == asked.identifier
    assert told == []


# --- silence and interrupts -----------------------------------------------------------------------
# Connections of both clients: how long silence is put up with, and what an interrupt leaves.


SILENCE_S = 60.0


class MemoryStream(ByteStream):
    """A stream of trio's tests, as those of anyio are used."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if data := await self._stream.receive_some(max_bytes):
            return bytes(data)
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        await self._stream.send_all(item)

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self._stream.aclose()


class Bench:
    """A link, and the other end of its connection."""

    def __init__(self) -> None:
        ours, self.theirs = trio.testing.memory_stream_pair()
        address = parse_address("127.0.0.1:1")
        self.link = AsyncTransport(MemoryStream(ours), Multiplexer(reply_bytes_max=10**6), address)

    async def ask(self, call: Call[object]) -> None:
        """Send a request as a client does, and wait for its reply."""
        batch = Pipeline([(call.request, call.undo)], None)
        silence_s = batch.silence_s(SILENCE_S)
        await self.link.wait_room(silence_s)
        pending = self.link.start(batch.requests[0])
        try:
            await self.link.wait_done(pending, silence_s)
        finally:
            self.link.abandon(pending)
        pending.answer()

    async def answer_after(self, seconds: float) -> None:
        """Take all requests, and answer them in order after so long."""
        await trio.sleep(seconds)
        connection = ServerConnection()
        connection.receive_data(await self.theirs.receive_some(65536))
        for request in connection.next_events():
            await self.theirs.send_all(encode_reply(Reply(request.identifier)))


@pytest.fixture
async def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    "call", [calls.snapshot(keep=1), calls.remote_checkpoint()], ids=["SNAPSHOT", "REMOTE"]
)
async def test_snapshot_that_takes_long_ends_no_connection_that_others_share(
    bench: Bench, autojump_clock: trio.testing.MockClock, call: Call[str]
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.link.run)
        async with trio.open_nursery() as askers:
            askers.start_soon(bench.ask, call)
            await trio.testing.wait_all_tasks_blocked()
            askers.start_soon(bench.ask, calls.nop())
            askers.start_soon(bench.answer_after, 1800)
        assert trio.current_time() >= 1800
        assert not bench.link.multiplexer.failed
        nursery.cancel_scope.cancel()


async def test_snapshot_is_not_waited_for_without_end(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    async def ask(call: Call[object]) -> None:
        with pytest.raises(CannotConnectError) as caught:
            await bench.ask(call)
        assert caught.value.code == "timed-out"

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.link.run)
        async with trio.open_nursery() as askers:
            askers.start_soon(ask, calls.snapshot())
            await trio.testing.wait_all_tasks_blocked()
            askers.start_soon(ask, calls.nop())
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(3600 + SILENCE_S, abs=2)


async def test_silence_ends_a_connection_on_which_no_snapshot_is_taken(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.link.run)
        with pytest.raises(CannotConnectError):
            await bench.ask(calls.nop())
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(SILENCE_S, abs=2)


async def poll(bench: Bench) -> None:
    """Ask again and again, each time for a tenth of the time after which silence is an end."""
    for _ in range(30):
        with trio.move_on_after(SILENCE_S / 10):
            await bench.ask(calls.nop())


async def test_silence_is_noticed_by_requests_that_are_cancelled_before(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.link.run)
        with pytest.raises(CannotConnectError) as caught:
            await poll(bench)
        assert caught.value.code == "timed-out"
        assert trio.current_time() >= SILENCE_S
        nursery.cancel_scope.cancel()


class StopNowError(Exception):
    """Exception that the signal handler raises."""


class InterruptedChannel(Channel):
    """Sends everything, and a signal handler raises right behind that."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: memoryview) -> int:
        self.sent.append(bytes(data))
        raise StopNowError

    def wait(self, *, to_send: bool, timeout_s: float | None) -> bool:
        return to_send

    def receive(self) -> bytes | None:
        return None


def test_bytes_that_may_have_been_sent_when_a_signal_came_are_not_sent_again() -> None:
    channel = InterruptedChannel()
    link = SyncTransport(channel, Multiplexer(reply_bytes_max=1000), parse_address("127.0.0.1:1"))
    link.multiplexer.start(calls.nop().request)
    with pytest.raises(StopNowError):
        link.turn(0)
    link.settle([calls.release("k", 7).request], 1, lambda: 0)
    assert len(channel.sent) == 1
    assert link.multiplexer.failed


# --- backpressure of asyncio ----------------------------------------------------------------------
# Backpressure of the asyncio transport: a native cancel of a woken task loses no wake-up.


PATIENCE_S = 20


class DaemonStream(ByteStream):
    """Stream to a daemon that answers what it has when the test says so."""

    def __init__(self) -> None:
        self._daemon = ServerConnection()
        self._replies: list[Reply] = []
        self._answers: asyncio.Queue[Callable[[], object]] = asyncio.Queue()

    async def send(self, item: bytes) -> None:
        self._daemon.receive_data(item)
        self._replies += [Reply(request.identifier) for request in self._daemon.next_events()]

    def answer(self, before: Callable[[], object] = lambda: None) -> None:
        """Answer all requests; ``before`` is called in the turn that takes the replies."""
        self._answers.put_nowait(before)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        before = await self._answers.get()
        before()
        replies, self._replies = self._replies, []
        return b"".join(encode_reply(reply) for reply in replies)

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass


async def ask(transport: AsyncTransport) -> None:
    call = calls.nop()
    pipeline = Pipeline([(call.request, call.undo)], None)
    await transport.wait_room(None)
    pending = transport.start(pipeline.requests[0])
    await transport.wait_done(pending, None)
    pending.answer()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_backpressure_wakes_the_next_request_after_a_woken_one_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournal.client.core.multiplexer.CLIENT_IN_FLIGHT_MAX", 1)

    async def main() -> None:
        stream = DaemonStream()
        address = parse_address("127.0.0.1:1")
        transport = AsyncTransport(stream, Multiplexer(reply_bytes_max=1000), address)
        running = asyncio.create_task(transport.run())
        first, cancelled = asyncio.create_task(ask(transport)), asyncio.create_task(ask(transport))
        await turns()
        stream.answer(before=cancelled.cancel)  # the reply wakes it in the same turn
        await first
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        later = [asyncio.create_task(ask(transport)) for _ in range(3)]
        with anyio.fail_after(PATIENCE_S):
            for task in later:
                await turns()
                stream.answer()
                await task
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


@pytest.mark.parametrize("others", [0, 1])
def test_parking_lot_passes_on_the_wake_up_of_a_cancelled_task(others: int) -> None:
    async def main() -> None:
        lot = ParkingLot(running_loop())
        first, *behind = (asyncio.create_task(lot.park()) for _ in range(1 + others))
        await turns()
        lot.unpark(1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        for task in behind:
            await asyncio.wait_for(task, PATIENCE_S)
        assert (len(lot), lot.woken) == (0, 0)

    asyncio.run(main())
