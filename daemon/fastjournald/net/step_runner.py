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
        sender: Sends its messages.
        stream: The connected socket, or TLS on it.
        runtime: Group commit and clock.
        services: Background tasks that it waits for.
        peer: Name of the client, for the log.
    """

    def __init__(
        self,
        session: Session,
        sender: Sender,
        stream: trio.abc.HalfCloseableStream,
        runtime: Runtime,
        services: Services,
        peer: str,
    ) -> None:
        self._session = session
        self._sender = sender
        self._stream = stream
        self._runtime = runtime
        self._services = services
        self._peer = peer
        self._evict = None if runtime.engine.store.values is None else services.evict

    async def commit(self) -> None:
        """Carry out the step COMMIT."""
        session, runtime = self._session, self._runtime
        if runtime.writer.settled < session.mark:
            await runtime.commit.wait_settled(session.mark)
        session.committed()
        if self._evict is not None:
            self._evict()
        if session.outbox.pieces:
            await self._sender.send_settled()

    async def carry_out(self, step: Step) -> None:
        """Carry out a step, but for RECEIVE, COMMIT and CLOSE."""
        session, services = self._session, self._services
        match step:
            case WaitTurn(expected):
                await services.wait_turn(session.share, expected)
            case WaitRoom(size):
                await self._runtime.backpressure.wait_turn(size)
            case ReadValues(missing, earlier):
                session.values_read(await services.fetch(missing, earlier))
            case RunScan(scan):
                session.take_reply(
                    await services.run_scan(scan, self._is_lost, self._has_hung_up, session.share)
                )
            case TakeSnapshot(request):
                session.take_reply(await services.take_snapshot(session, request))
            case _ if step is PASS_ON:
                await services.pass_on(session.share)
            case _ if step is FLUSH:
                await self._sender.flush()
                self._sender.wake()
            case _ if step is MATCH:
                await services.wait_matched()
            case _ if step is PENALTY:
                LOG.info("event=auth-failed %s", self._peer)
                await trio.sleep(limits.AUTH_FAILURE_SECONDS)

    async def close(self) -> None:
        """Tell the client that no more comes, and let it read what was sent."""
        session = self._session
        while session.outbox.pieces or session.has_notifications():
            await self._sender.flush()
        session.disconnect()
        await self._sender.send_eof()
        with trio.move_on_after(LINGER_SECONDS):
            while await self._stream.receive_some(limits.RECEIVE_BYTES_MAX):
                pass

    def _is_lost(self) -> bool:
        return is_lost(self._stream)

    def _has_hung_up(self) -> bool:
        return has_hung_up(self._stream)
