"""Polled transport: drives the session of a plain connection for the poller, which serves them all.

The poller's task does at once the steps that nearly every request takes: receive, handle, wait for
the commit that all share, send, and wait for a turn. Where a session waits for something else, or
its client takes no more, a task carries that out for as long as it lasts, with the means of the
stream transport, until the session listens to the client again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from enum import Enum
from typing import Final

import trio

from fastjournal import limits
from fastjournal.limits import TURN_WORK
from fastjournald.admission.turn_budget import QueuedClient
from fastjournald.net.plain_socket import PlainSocket, do_nothing, has_hung_up
from fastjournald.net.poller import Poller
from fastjournald.net.session import Session
from fastjournald.net.session_steps import CLOSE, COMMIT, FLUSH, PASS_ON, RECEIVE, Step, WaitTurn
from fastjournald.net.shared_batch import SharedBatch
from fastjournald.net.stream_transport import STOP_SECONDS, Services, StepRunner
from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")


class _PolledState(Enum):
    LISTENING = "listening"
    """Receives when something has come."""
    SETTLING = "settling"
    """Goes on with its step when all is settled that was appended so far."""
    PASSING = "passing"
    """Lets others have their turn."""
    WAITING = "waiting"
    """Waits for its turn."""
    RELEASED = "released"
    """Its turn has come, perhaps."""
    BUSY = "busy"
    """A task carries out its steps."""
    ENDED = "ended"


# the attributes of an enumeration are looked up slowly
_LISTENING: Final = _PolledState.LISTENING
_SETTLING: Final = _PolledState.SETTLING
_PASSING: Final = _PolledState.PASSING
_WAITING: Final = _PolledState.WAITING
_RELEASED: Final = _PolledState.RELEASED
_BUSY: Final = _PolledState.BUSY
_ENDED: Final = _PolledState.ENDED


class PolledTransport:
    """One client's connection: its session and its socket.

    Args:
        session: Decides.
        plain: The connected socket.
        runtime: Group commit and clock.
        services: Background tasks that it waits for.
        nursery: For tasks that carry out what takes longer.
        poller: Calls it when there is something to do.
    """

    def __init__(
        self,
        session: Session,
        plain: PlainSocket,
        runtime: Runtime,
        services: Services,
        nursery: trio.Nursery,
        poller: Poller,
    ) -> None:
        self.session = session
        self.plain = plain
        self.heard = False
        self._socket = plain.socket
        self._runtime = runtime
        self._writer = runtime.writer
        self._now_us = runtime.clock.now_us
        self._services = services
        self._nursery = nursery
        self._poller = poller
        self._steps = steps = StepRunner(session, plain, runtime, services, nursery)
        self._sender = steps.sender
        self._evict = None if runtime.engine.store.values is None else services.evict
        self._state = _LISTENING
        self._step: Step = RECEIVE
        """While SETTLING: what it goes on with."""
        self._resumed = False
        """Stands in the poller's queue of those that can go on."""
        self._unsettled = False
        """Stands in the poller's queue for the next commit."""
        self._turn: QueuedClient | None = None
        self._expected = TURN_WORK
        """Work that it will do in the turn for which it waits, as far as that is known."""
        self._life = trio.CancelScope()
        """Cuts the task that carries out its steps."""
        self._receive_until = math.inf
        self.on_end: Callable[[], object] = do_nothing
        """Called when the connection has ended."""

    def begin(self) -> None:
        """Serve the client, from the first byte on."""
        self._poller.add(self)
        self._drive(self._next_step())

    # --- calls of the poller --------------------------------------------------------------------

    def receive(self, together: SharedBatch | None) -> bool:
        """Receive and go on, if it listens; return whether it did.

        Args:
            together: Takes the request, where it may be carried out with those of other clients.
        """
        if self._state is not _LISTENING:
            return False
        try:
            data = self._socket.recv(limits.RECEIVE_BYTES_MAX)
        except BlockingIOError:
            return True
        except OSError:
            self._lose()
            return True
        session = self.session
        session.receive_data(data)
        if together is not None and session.join(together):
            self._state = _SETTLING
            self._step = COMMIT
            if not self._unsettled:
                self._unsettled = True
                self._poller.settle(self)
        else:
            self._drive(self._next_step())
        return True

    def carry_on(self) -> None:
        """Go on with the request, which the shared batch has not carried out."""
        self.session.leave()
        self._drive(self._next_step())

    def go_on(self) -> None:
        """Begin a turn, if the turn budget lets it."""
        self._resumed = False
        if self._state is not _ENDED:
            self._take_turn(waited=self._state is _RELEASED)

    def settled(self, settled: int) -> None:
        """Send what is settled by now, and go on where the session waited for that."""
        self._unsettled = False
        if self._state is _SETTLING:
            self._drive(self._step)
        elif self._state is not _ENDED:
            try:
                if not self._send_now(settled):
                    self._sender.wake()
            except trio.BrokenResourceError:
                self._lose()

    def stop_receiving(self) -> None:
        """Take no more from the client, if that is what the session waits for."""
        if self._state is _LISTENING:
            self.session.stop_receiving()
            self._drive(self._next_step())

    # --- one thing after the other --------------------------------------------------------------

    def _next_step(self) -> Step:
        return self.session.next_step(self._now_us())

    def _drive(self, step: Step) -> None:
        """Carry out steps until one of them has to be waited for."""
        session = self.session
        try:
            while True:
                if step is COMMIT:
                    settled = self._writer.settled
                    if settled < session.mark:
                        self._settle(step)
                        return
                    session.committed()
                    if self._evict is not None:
                        self._evict()
                    if not self._send_now(settled):
                        self._begin_task(step)
                        return
                    if session.listen_again():
                        step = RECEIVE
                        continue
                elif step is RECEIVE:
                    if self.heard and self._receive_until == math.inf:
                        self._state = _LISTENING
                    else:
                        self._listen()
                    return
                elif not self._carry_out(step):
                    return
                step = session.next_step(self._now_us())
        except trio.BrokenResourceError:
            self._lose()

    def _carry_out(self, step: Step) -> bool:
        """Carry out a rarer step; return False if it has to be waited for."""
        session = self.session
        if isinstance(step, WaitTurn):
            self._expected = step.expected
            self._wait_turn()
            return False
        if step is PASS_ON:
            self._expected = TURN_WORK
            self._state = _PASSING
            self._resume()
            return False
        if (
            step is FLUSH
            and not session.has_notifications()
            and self._send_now(self._writer.settled)
        ):
            if not session.has_unsent:
                return True
            self._settle(step)
        else:
            self._begin_task(step)
        return False

    def _send_now(self, settled: int) -> bool:
        """Send what is settled; return False where it takes a task to go on.

        Raises:
            BrokenResourceError: The client is gone.
        """
        sender, session = self._sender, self.session
        if sender.busy or sender.rest:
            return False
        if sender.is_cut_off:
            raise trio.BrokenResourceError
        while data := session.data_to_send(settled, self.has_hung_up):
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                sender.is_cut_off = True
                raise trio.BrokenResourceError from error
            if sent < len(data):
                sender.rest = memoryview(data)[sent:]
                return False
            if not session.data_sent():
                return True
        if session.has_unsent:
            # appended behind what is settled, and not asked for just now
            self._wait_settled()
        return True

    def _listen(self) -> None:
        self._state = _LISTENING
        if self._receive_until < math.inf and trio.current_time() >= self._receive_until:
            self.stop_receiving()
        elif not self.heard:
            self._poller.hear(self)

    def _resume(self) -> None:
        if not self._resumed:
            self._resumed = True
            self._poller.resume(self)

    # --- the commit -----------------------------------------------------------------------------

    def _settle(self, step: Step) -> None:
        self._state = _SETTLING
        self._step = step
        self._wait_settled()

    def _wait_settled(self) -> None:
        if not self._unsettled:
            self._unsettled = True
            self._poller.settle(self)

    # --- turns ----------------------------------------------------------------------------------

    def _take_turn(self, *, waited: bool) -> None:
        self._leave_queue()
        if self._runtime.turns.admits(self.session.share, self._expected, waited=waited):
            self._drive(self._next_step())
        else:
            self._wait_turn()

    def _wait_turn(self) -> None:
        self._state = _WAITING
        self._turn = self._services.queue_up(self.session.share, self._release, self._expected)

    def _leave_queue(self) -> None:
        if self._turn is not None:
            self._turn.share, self._turn.wake = None, do_nothing
            self._turn = None

    def _release(self) -> None:
        self._state = _RELEASED
        self._resume()

    # --- what takes longer ----------------------------------------------------------------------

    def _begin_task(self, step: Step) -> None:
        self._state = _BUSY
        self._life = trio.CancelScope()
        self._nursery.start_soon(self._carry_on, step)

    async def _carry_on(self, step: Step) -> None:
        """Carry out steps until the session listens to the client, or to the end."""
        steps, listens = self._steps, False
        try:
            with self._life:
                try:
                    while step is not RECEIVE and step is not CLOSE:
                        await (steps.commit() if step is COMMIT else steps.carry_out(step))
                        step = self._next_step()
                    if step is CLOSE:
                        await steps.close()
                    # it may have been cut behind the last wait
                    listens = step is RECEIVE and not self._life.cancel_called
                except trio.BrokenResourceError:
                    LOG.debug("event=client-lost")
        finally:
            if not listens:
                self._end()
        if listens:
            self._listen()

    def _lose(self) -> None:
        LOG.debug("event=client-lost")
        # while a task carries out its steps, it ends with that task
        self.cut()

    def _end(self) -> None:
        """Close the socket; nobody calls any more."""
        self._state = _ENDED
        self._leave_queue()
        self._poller.remove(self)
        self.session.end()
        self.plain.close()
        self.on_end()
        # a reference cycle less: this leaves memory at once
        self.on_end = self.session.on_first_request = do_nothing

    # --- calls of others ------------------------------------------------------------------------

    def wake(self) -> None:
        """Send, beside everything else, what the client did not ask for just now."""
        if self.session.has_notifications():
            self._sender.wake()
        elif self.session.has_unsent:
            self._wait_settled()

    def stop(self) -> None:
        """The daemon stops: answer what is on its way, then close."""
        self._receive_until = trio.current_time() + STOP_SECONDS
        self._poller.stop_receiving_at(self._receive_until, self)

    def abandon(self, sentence: str, code: str) -> None:
        """Wait no longer for the rest of a request: tell the client, and close."""
        self.session.abandon(sentence, code)
        self.stop_receiving()

    def refuse_request(self) -> None:
        """Tell the client that there is no room for the rest of its request, and close."""
        self.session.refuse_request()
        self.stop_receiving()

    def cut(self) -> None:
        """Close without a word, whatever the client has not taken."""
        if self._state is _BUSY:
            self._life.cancel()
        elif self._state is not _ENDED:
            self._end()

    def has_hung_up(self) -> bool:
        """Whether the client has gone, or at least sends nothing more."""
        return has_hung_up(self.plain)
