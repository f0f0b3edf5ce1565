"""Connections of both clients: how long silence is put up with, and what an interrupt leaves."""

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import ByteStream

from fastjournal.client.aio.transport import AsyncTransport
from fastjournal.client.core import calls
from fastjournal.client.core.address import parse_address
from fastjournal.client.core.calls import Call
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.client.core.pipeline import Pipeline
from fastjournal.client.sync.sockets import Channel
from fastjournal.client.sync.transport import SyncTransport
from fastjournal.errors import CannotConnectError
from fastjournal.protocol import Reply, ServerConnection, encode_reply

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


async def test_snapshot_that_takes_long_ends_no_connection_that_others_share(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.link.run)
        async with trio.open_nursery() as askers:
            askers.start_soon(bench.ask, calls.snapshot(keep=1))
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


async def test_answers_that_come_late_are_no_silence(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.link.run)
        nursery.start_soon(answer_late, bench)
        await poll(bench)
        assert not bench.link.multiplexer.failed
        nursery.cancel_scope.cancel()


async def answer_late(bench: Bench) -> None:
    while True:
        await bench.answer_after(SILENCE_S / 2)


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
