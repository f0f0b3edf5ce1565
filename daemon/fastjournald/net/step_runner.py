"""Step runner: carries out the steps of a session that wait for something, over any transport."""

from __future__ import annotations

import logging

import trio

from fastjournal import limits
from fastjournald.net.hangup import has_hung_up, is_lost
from fastjournald.net.sender import Sender
from fastjournald.net.services import Services
from fastjournald.net.session import Session
from fastjournald.net.session_steps import (
    FLUSH,
    MATCH,
    PASS_ON,
    PENALTY,
    ReadValues,
    RunScan,
    Step,
    TakeSnapshot,
    WaitRoom,
    WaitTurn,
)
from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")

LINGER_SECONDS = 1.0
"""How long a closing connection goes on reading and discarding: a socket that is closed with
unread data is reset, and the reset can overtake the last replies."""


class StepRunner:
    """Waits for what one session waits for.

    Args:
        session: Decides.
        stream: The connected socket, or TLS on it.
        runtime: Group commit and clock.
        services: Background tasks that it waits for.
        nursery: For a task that sends beside the one that carries out the steps.
    """

    def __init__(
        self,
        session: Session,
        stream: trio.abc.HalfCloseableStream,
        runtime: Runtime,
        services: Services,
        nursery: trio.Nursery,
    ) -> None:
        self.sender = Sender(session, stream, runtime, services, nursery)
        """Sends the messages of the session."""
        self._session = session
        self._stream = stream
        self._runtime = runtime
        self._services = services
        self._evict = None if runtime.engine.store.values is None else services.evict

    async def commit(self) -> None:
        """Carry out the step COMMIT."""
        batch, runtime = self._session.batch, self._runtime
        if runtime.writer.settled < batch.mark:
            await runtime.commit.wait_settled(batch.mark)
        batch.committed()
        if self._evict is not None:
            self._evict()
        await self.sender.send_settled()

    async def carry_out(self, step: Step) -> None:
        """Carry out a step, but for RECEIVE, COMMIT and CLOSE."""
        session, services = self._session, self._services
        match step:
            case WaitTurn(expected):
                await services.wait_turn(session.share, expected)
            case WaitRoom(size):
                await self._runtime.backpressure.wait_turn(size)
            case ReadValues(missing, earlier):
                session.batch.values_read(await services.fetch(missing, earlier))
            case RunScan(scan):
                session.batch.take_reply(
                    await services.run_scan(scan, self._is_lost, self._has_hung_up, session.share)
                )
            case TakeSnapshot(request):
                session.batch.take_reply(await services.take_snapshot(session, request))
            case _ if step is PASS_ON:
                await services.pass_on(session.share)
            case _ if step is FLUSH:
                await self.sender.flush()
                self.sender.wake()
            case _ if step is MATCH:
                await services.wait_matched()
            case _ if step is PENALTY:
                LOG.info("event=auth-failed %s", session.peer)
                await trio.sleep(limits.AUTH_FAILURE_SECONDS)

    async def close(self) -> None:
        """Tell the client that no more comes, and let it read what was sent."""
        session = self._session
        while session.has_unsent or session.has_notifications():
            await self.sender.flush()
        session.disconnect()
        await self.sender.send_eof()
        with trio.move_on_after(LINGER_SECONDS):
            while await self._stream.receive_some(limits.RECEIVE_BYTES_MAX):
                pass

    def _is_lost(self) -> bool:
        return is_lost(self._stream)

    def _has_hung_up(self) -> bool:
        return has_hung_up(self._stream)
