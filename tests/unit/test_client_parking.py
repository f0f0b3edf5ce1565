"""Backpressure of the asyncio transport: a native cancel of a woken task loses no wake-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import pytest
from anyio.abc import ByteStream

from fastjournal.client.aio.event_loop import running_loop
from fastjournal.client.aio.transport import AsyncTransport, ParkingLot
from fastjournal.client.core import calls
from fastjournal.client.core.address import parse_address
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.client.core.pipeline import Pipeline
from fastjournal.protocol import Reply, ServerConnection, encode_reply

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
