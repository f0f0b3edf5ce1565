"""Transport for tasks: moves bytes through a stream, around a multiplexer; FIFO parking lot."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

import anyio
from anyio.abc import ByteStream

from fastjournal.client.aio.event_loop import EventLoop, LoopEvent, running_loop
from fastjournal.client.aio.streams import STREAM_ERRORS, close_stream, receive_some
from fastjournal.client.core.address import Address
from fastjournal.client.core.failures import connection_broken, connection_lost, timed_out
from fastjournal.client.core.multiplexer import InFlightRequest, Multiplexer, Tell
from fastjournal.client.core.pipeline import PipelinedRequest
from fastjournal.errors import CannotConnectError, FastjournalError
from fastjournal.limits import CLIENT_SNAPSHOT_S
from fastjournal.protocol import Request


class ParkingLot:
    """Queue of tasks that wait; first come, first served."""

    def __init__(self, loop: EventLoop) -> None:
        self._new_event = loop.new_event
        self._waiting: deque[LoopEvent] = deque()
        self.woken = 0
        """Tasks that were woken, and have not run since."""

    def __len__(self) -> int:
        return len(self._waiting)

    async def park(self) -> None:
        """Wait until this task is woken.

        Where the wait is cancelled in the moment in which it was woken, the next one is woken.
        """
        woken = self._new_event()
        self._waiting.append(woken)
        try:
            await woken.wait()
        except BaseException:  # cancelled
            if woken.is_set():
                self.woken -= 1
                self.unpark(1)
            else:
                self._waiting.remove(woken)
            raise
        self.woken -= 1

    def unpark(self, count: int) -> None:
        """Wake the first tasks."""
        count = min(count, len(self._waiting))
        for _ in range(count):
            self._waiting.popleft().set()
        self.woken += count

    def unpark_all(self) -> None:
        """Wake all tasks."""
        self.unpark(len(self._waiting))


_LAST_WORDS_S = 1.0
"""After a send failed: seconds to receive the error that the daemon sent before it closed."""

_LATE_S = 0.1
"""A timeout that comes later than this is a time in which the program did not run."""


class AsyncTransport:
    """One connection: a task that receives and a task that sends, around a multiplexer."""

    def __init__(self, stream: ByteStream, multiplexer: Multiplexer, address: Address) -> None:
        self.multiplexer = multiplexer
        self._stream = stream
        self.address = address
        self._scope = anyio.CancelScope()
        self._loop = running_loop()
        self._something_to_send = self._loop.new_event()
        self._room = ParkingLot(self._loop)
        self._settling = ParkingLot(self._loop)
        self._ignored_since = math.inf
        """When a request was abandoned for the first time since anything was received."""

    async def run(self) -> None:
        """Move bytes until the connection is over; then everything in flight has its error."""
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._send)
                    await self._receive()
                    group.cancel_scope.cancel()
        finally:
            self.end(connection_lost("the client ended"))
            await close_stream(self._stream)

    def end(self, error: FastjournalError) -> None:
        """End the connection, with this error for everything in flight."""
        self.multiplexer.fail(error)
        self._room.unpark_all()
        self._settling.unpark_all()
        self._scope.cancel()

    def start(self, request: PipelinedRequest) -> InFlightRequest:
        """Queue a request; everything that is queued in one turn of the loop goes in one send."""
        try:
            return request.start(self.multiplexer)
        finally:
            self._something_to_send.set()
            if not self._room.woken:
                self._pass_room_on()

    def subscribe(self, request: Request, tell: Tell) -> InFlightRequest:
        """Queue a request that asks for notifications."""
        pending = self.multiplexer.subscribe(request, tell)
        self._something_to_send.set()
        return pending

    def unsubscribe(self, identifier: int) -> None:
        """Queue the end of a subscription."""
        self.multiplexer.unsubscribe(identifier)
        self._something_to_send.set()

    async def wait_room(self, silence_s: float | None) -> None:
        """Return when another request may be queued at once, or the connection is over.

        First come, first served. As many tasks are woken as there is room for, so each is woken
        about once, however many wait, and those that are woken together go in one send.
        """
        multiplexer = self.multiplexer
        if self._loop.now() - self._ignored_since > sum(self._patiences(silence_s)):
            # Nobody has waited for so long: each was cancelled before.
            self.end(timed_out(self.address, silence_s))
        if multiplexer.failed or (multiplexer.has_room and not self._room):
            return
        while True:
            answered = multiplexer.answered
            with self._loop.move_on_after(sum(self._patiences(silence_s))) as patience:
                await self._room.park()
            if not patience.cancelled_caught and (multiplexer.has_room or multiplexer.failed):
                return
            if patience.cancelled_caught and multiplexer.answered == answered:
                self.end(timed_out(self.address, silence_s))
                return

    def _pass_room_on(self) -> None:
        if self._room:
            self._room.unpark(max(self.multiplexer.room - self._room.woken, 0))

    async def wait_done(self, pending: InFlightRequest, silence_s: float | None) -> None:
        """Return when the request has its reply or its error."""
        if pending.done:
            return
        done = self._loop.new_event()
        pending.notify = done.set
        for patience_s in self._patiences(silence_s):
            wait_s, late_s = patience_s, math.inf
            while late_s > _LATE_S:
                with self._loop.move_on_after(wait_s) as patience:
                    await done.wait()
                    return
                # While the program did not run, an answer may have come that nobody has read.
                late_s = self._loop.now() - patience.deadline
                wait_s = min(late_s, patience_s)
        self.end(timed_out(self.address, silence_s))

    def _patiences(self, silence_s: float | None) -> Iterator[float]:
        """Give the seconds of silence to put up with, and those more of SNAPSHOT and REMOTE."""
        yield math.inf if silence_s is None else silence_s
        if self.multiplexer.is_held_up:
            yield CLIENT_SNAPSHOT_S

    def abandon(self, pending: InFlightRequest) -> None:
        """Abandon a request: its wait is cancelled, and its leases and locks are released."""
        if pending.done:
            return
        self.multiplexer.abandon(pending)
        self._ignored_since = min(self._ignored_since, self._loop.now())
        self._something_to_send.set()

    def owe(self, requests: list[Request]) -> None:
        """Queue releases for which nobody waits."""
        self.multiplexer.owe(requests)
        self._something_to_send.set()

    async def settle(self) -> None:
        """Return when abandoned requests have released all that they got, or it has ended."""
        while not self.multiplexer.settled:
            await self._settling.park()

    async def _receive(self) -> None:
        multiplexer = self.multiplexer
        try:
            while not multiplexer.failed:
                multiplexer.receive_data(await receive_some(self._stream))
                self._ignored_since = math.inf
                self._pass_room_on()
                if multiplexer.wants_to_send:
                    self._something_to_send.set()
                elif multiplexer.settled:
                    self._settling.unpark_all()
        except STREAM_ERRORS as error:
            self.end(_lost(error))

    async def _send(self) -> None:
        try:
            while True:
                await self._something_to_send.wait()
                self._something_to_send = self._loop.new_event()
                while data := self.multiplexer.data_to_send():
                    self._pass_room_on()
                    await self._stream.send(data)
        except STREAM_ERRORS as error:
            # The receiver may still find what the daemon said before it closed.
            with anyio.move_on_after(_LAST_WORDS_S):
                await anyio.sleep_forever()
            self.end(_lost(error))


def _lost(error: Exception) -> CannotConnectError:
    cause = error if isinstance(error, OSError) else error.__cause__
    return connection_broken(
        cause if isinstance(cause, OSError) else OSError("the socket is broken")
    )
