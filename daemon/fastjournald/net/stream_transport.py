"""Stream transport: moves the bytes of one session over a trio stream, and carries out its waits.

A task for each connection, for TLS. ``StreamTransport.converse`` is all of it:

    receive_some -> session.receive_data (bytes to requests) -> session.next_step (the engine
    applies them and appends records) -> commit.wait_settled (one write and one sync for all
    sessions) -> send_all

Plain connections share one task: ``net.poller``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from fastjournal import limits
from fastjournald.net.client_transport import do_nothing
from fastjournald.net.hangup import has_hung_up
from fastjournald.net.services import Services
from fastjournald.net.session import Session
from fastjournald.net.session_steps import CLOSE, COMMIT, RECEIVE
from fastjournald.net.step_runner import LINGER_SECONDS, StepRunner
from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")

STOP_SECONDS = 0.25
"""How long a stopping daemon goes on taking requests that are on their way already."""


class StreamTransport:
    """One client's connection: its session and its stream.

    Args:
        session: Decides.
        stream: The connected socket, or TLS on it.
        runtime: Group commit and clock.
        services: Background tasks that it waits for.
        nursery: For a task that sends beside the one that receives.
    """

    def __init__(
        self,
        session: Session,
        stream: trio.abc.HalfCloseableStream,
        runtime: Runtime,
        services: Services,
        nursery: trio.Nursery,
    ) -> None:
        self.session = session
        self._stream = stream
        self._runtime = runtime
        self._nursery = nursery
        self._steps = StepRunner(session, stream, runtime, services, nursery)
        self._life = trio.CancelScope()
        self._receiving = trio.CancelScope()
        self._receive_until = math.inf
        self.on_end: Callable[[], object] = do_nothing
        """Called when the connection has ended."""

    # --- life -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Serve the client, from the first byte on."""
        self._nursery.start_soon(self.run)

    async def run(self) -> None:
        """Serve the client until it goes, quits, sends garbage, or the daemon stops.

        Raises:
            LogFailedError: The log failed; the daemon must end.
        """
        try:
            with self._life:
                try:
                    await self.converse()
                    await self._steps.close()
                except trio.BrokenResourceError:
                    LOG.debug("event=client-lost")
                finally:
                    self.session.end()
                    await trio.aclose_forcefully(self._stream)
        finally:
            self.on_end()
            # a reference cycle less: this leaves memory at once
            self.on_end = self.session.on_first_request = do_nothing

    async def converse(self) -> None:
        """Receive, let the session decide, wait until that is durable, send: again and again."""
        session, clock, steps = self.session, self._runtime.clock, self._steps
        while (step := session.next_step(clock.now_us())) is not CLOSE:
            if step is RECEIVE:
                await self._receive()
            elif step is COMMIT:
                await steps.commit()
            else:
                await steps.carry_out(step)

    async def _receive(self) -> None:
        data = None
        with trio.CancelScope(deadline=self._receive_until) as self._receiving:
            data = await self._stream.receive_some(limits.RECEIVE_BYTES_MAX)
        if data is None:
            # the daemon stops, or has waited for the rest of a request long enough
            self.session.stop_receiving()
        else:
            self.session.receive_data(data)

    async def refuse(self, *, silently: bool) -> None:
        """Close the connection, because there are too many; unless ``silently``, say so."""
        try:
            if not silently:
                with trio.move_on_after(LINGER_SECONDS):
                    self.session.refuse(self._runtime.clock.now_us())
                    await self._steps.close()
        except trio.BrokenResourceError:
            LOG.debug("event=client-lost")
        finally:
            self.session.end()
            await trio.aclose_forcefully(self._stream)

    # --- calls of others ------------------------------------------------------------------------

    def wake(self) -> None:
        """Send, beside everything else, what the client did not ask for just now."""
        self._steps.sender.wake()

    def stop(self) -> None:
        """The daemon stops: answer what is on its way, then close."""
        self._receive_until = self._receiving.deadline = trio.current_time() + STOP_SECONDS

    def abandon(self, sentence: str, code: str) -> None:
        """Wait no longer for the rest of a request: tell the client, and close."""
        self.session.abandon(sentence, code)
        self._receiving.cancel()

    def refuse_request(self) -> None:
        """Tell the client that there is no room for the rest of its request, and close."""
        self.session.refuse_request()
        self._receiving.cancel()

    def cut(self) -> None:
        """Close without a word, whatever the client has not taken."""
        self._life.cancel()

    def has_hung_up(self) -> bool:
        """Whether the client has gone, or at least sends nothing more."""
        return has_hung_up(self._stream)
