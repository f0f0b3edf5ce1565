"""Poller: the one task that serves all plain connections, TCP and unix; and their transport.

The module has over 600 lines, because a round and the transport of a socket change the same state.

Each round is the write path, and all of it, without a switch between tasks:

    epoll (which sockets are readable) -> receive -> session (bytes to requests; the engine
    applies them and appends records) -> one commit for all of them -> send

A round ends a turn of the event loop, unless no task has anything to do: then the next round, with
its own turn of the budget, follows without one.

The turn budget (``admission``) bounds which sessions are served in a round, and how much of each:
a session asks it before it decodes. While a sync runs in a thread, the next rounds receive and
handle, and their replies wait for the next commit.

``PolledTransport`` carries out at once the steps of nearly every request: receive, handle, wait for
the shared commit, send, and wait for a turn. If a session waits for something else, or its client
does not read, a task carries that out with the step runner of the stream transport, until the
session receives again.

Native leaves (``fastjournal._native``) receive from clients that are idle, join the shared batch
and send its replies; the methods of ``PolledTransport`` do the same, and all else.

The sockets are registered level-triggered: the system reports a socket again until all its bytes
were received. A connection that waits for something else while its client sends is unregistered
until it receives again; a client that waits for its replies never needs that.
"""

from __future__ import annotations

import errno
import logging
import os
import select
from collections import deque
from collections.abc import Callable
from enum import Enum
from socket import socket
from typing import Final

import trio

from fastjournal import _native, limits
from fastjournal.limits import TURN_WORK
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.protocol import Request
from fastjournald.admission.memory_budget import NEVER, MemoryAccount
from fastjournald.admission.turn_budget import QueuedClient
from fastjournald.group_commit.commit import GroupCommit
from fastjournald.net.outbox import Outbox
from fastjournald.net.plain_socket import PlainSocket, do_nothing
from fastjournald.net.session import Session
from fastjournald.net.session_steps import (
    CLOSE,
    COMMIT,
    FLUSH,
    PASS_ON,
    RECEIVE,
    Stage,
    Step,
    WaitTurn,
)
from fastjournald.net.shared_batch import Shared, SharedBatch
from fastjournald.net.stream_transport import STOP_SECONDS, StepRunner

LOG = logging.getLogger("fastjournald")

EVENTS_A_ROUND = 512
"""Sockets that are received from in one round: about 2 ms. Events of others stay with the system,
in the order of their arrival."""

BUFFER_BYTES = 4 * limits.RECEIVE_BYTES_MAX
"""Bytes that are received at once from idle clients, before the first of them is handled. Nearly
always it has room for all of a round."""

ALONE_PIECES = 32
"""Pieces of work, mostly batches of requests, after which a client has the daemon to itself, where
no other client has had any done since: none with TLS either, and none in a scan or a window."""

ROUNDS_A_TURN = 16
"""Rounds that the poller takes at most in one turn of the event loop."""

PAUSE_SECONDS = 0.0002
"""Longest wait for the next round of the same turn: sockets of others are not watched meanwhile."""

FD_SETSIZE = 1024
"""Descriptors that ``select`` takes; ``epoll`` and ``poll`` wait for a millisecond at least."""

_EVENTS = select.EPOLLIN | select.EPOLLRDHUP


class Poller:
    """Serves the connections that were added.

    Args:
        commit: Group commit.
        shared: Engine and budgets.
        now_us: Clock.
        next_turn: Ends a turn of the budget, and begins the next one.
        is_alone: Whether no other task runs in this turn, nor within so many seconds.
    """

    def __init__(
        self,
        commit: GroupCommit,
        shared: Shared,
        now_us: Callable[[], int],
        next_turn: Callable[[], None],
        is_alone: Callable[[float], bool],
    ) -> None:
        self._commit = commit
        self._remote = commit.remote
        self._together = SharedBatch(shared)
        self._now_us = now_us
        self._turns = shared.turns
        self._memory = shared.memory
        self._listeners = shared.engine.subscriptions.subscribers
        self._next_turn = next_turn
        self._is_alone = is_alone
        self._buffer = bytearray(BUFFER_BYTES)
        self._clients: dict[int, PolledTransport] = {}
        """Connections by descriptor."""
        self._epoll: select.epoll | None = None
        """None: the task does not run."""
        self._wake_descriptor = -1
        self._asleep = False
        """The task waits for the system: work for it must wake it."""
        self._ready: deque[PolledTransport] = deque()
        """Connections that can go on."""
        self._unsettled: list[PolledTransport] = []
        """Connections that wait for the next commit."""
        self._some_unsettled = trio.Event()
        self._settling = False
        """A commit is under way that waits for a thread, or for another task."""
        self._stops: deque[tuple[float, PolledTransport]] = deque()
        """Connections to receive no more from, each with the instant."""
        self._some_stop = trio.Event()
        self._stopping = False
        self._failed = False
        """The task ended, with the daemon, while there were clients."""

    # --- calls of connections -------------------------------------------------------------------

    def add(self, client: PolledTransport) -> None:
        """Serve a connection."""
        self._clients[client.plain.socket.fileno()] = client
        self.register(client)

    def register(self, client: PolledTransport) -> None:
        """Register a socket, to call ``receive`` when it has something; cut it if that fails."""
        if self._epoll is None:
            return
        try:
            self._epoll.register(client.plain.socket.fileno(), _EVENTS)
        except OSError as error:
            # the system watches no more sockets, for want of memory or by fs.epoll.max_user_watches
            LOG.warning(LogEvent("not-watched", error=Sentence(error.strerror)))
            client.cut()
        else:
            client.registered = True

    def remove(self, client: PolledTransport) -> None:
        """Remove a connection, before its socket is closed."""
        descriptor = client.plain.socket.fileno()
        if self._clients.pop(descriptor, None) is not None and client.registered:
            assert self._epoll is not None
            self._epoll.unregister(descriptor)
        if self._stopping:
            self._wake()

    def resume(self, client: PolledTransport) -> None:
        """Call ``begin_turn`` in the next round."""
        self._ready.append(client)
        if self._asleep:
            self._wake()

    def settle(self, client: PolledTransport) -> None:
        """Call ``settled`` when more is settled, at the latest when all is that was appended."""
        self._unsettled.append(client)
        if self._asleep and not self._settling:
            self._wake()

    def stop_receiving_at(self, instant: float, client: PolledTransport) -> None:
        """Call ``stop_receiving`` at an instant, which is not before those of earlier calls."""
        self._stops.append((instant, client))
        self._some_stop.set()

    @property
    def over(self) -> bool:
        """Whether the task has ended, or was stopped and no connection is left."""
        return self._failed or (self._stopping and not self._clients)

    def stop(self) -> None:
        """End the task when no connection is left."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            os.eventfd_write(self._wake_descriptor, 1)

    # --- the task -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until it is stopped and no connection is left.

        Raises:
            LogFailedError: The log failed; the daemon must end.
        """
        self._wake_descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = epoll = select.epoll()
        try:
            epoll.register(self._wake_descriptor, select.EPOLLIN | select.EPOLLET)
            self._register_all()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._settle_slowly)
                nursery.start_soon(self._stop_clients)
                await self._serve(epoll)
                nursery.cancel_scope.cancel()
        finally:
            self._asleep = False
            self._failed = True
            self._cut_all()
            self._epoll = None
            epoll.close()
            os.close(self._wake_descriptor)

    def _register_all(self) -> None:
        for client in list(self._clients.values()):
            self.register(client)

    def _cut_all(self) -> None:
        for client in list(self._clients.values()):
            client.cut()
        for client in self._clients.values():
            # a task serves it to its end
            client.registered = False

    async def _serve(self, epoll: select.epoll) -> None:
        descriptor = epoll.fileno()
        while not self.over:
            if self._ready or (self._unsettled and not self._settling):
                await trio.lowlevel.checkpoint()
            else:
                self._asleep = True
                await trio.lowlevel.wait_readable(descriptor)
                self._asleep = False
            self._take_round(epoll, epoll.poll(0, EVENTS_A_ROUND))
            # select takes no larger descriptors
            rounds = ROUNDS_A_TURN if descriptor < FD_SETSIZE else 1
            while (rounds := rounds - 1) and self._only_waits():
                if not select.select((descriptor,), (), (), PAUSE_SECONDS)[0]:
                    break
                self._next_turn()
                self._take_round(epoll, epoll.poll(0, EVENTS_A_ROUND))

    def _only_waits(self) -> bool:
        """Return whether nothing is to be done before something is received, in no task either."""
        if self._ready or self._unsettled or self._stopping:
            return False
        return self._is_alone(PAUSE_SECONDS)

    def _take_round(self, epoll: select.epoll, events: list[tuple[int, int]]) -> None:
        clients, ready, remote = self._clients, self._ready, self._remote
        if remote is not None:
            remote.test_lease()
        if ready:
            for _ in range(len(ready)):
                ready.popleft().begin_turn()
        asked = [clients[descriptor] for descriptor, _ in events if descriptor in clients]
        received = self._receive(asked)
        at, end = 0, len(asked)
        alone = end <= 1
        together = None if alone else self._together
        while at < end:
            if received[at] is not None:
                at = self._together.take_received(asked, received, at, self._unsettled, alone=alone)
                if at == end:
                    break
            client = asked[at]
            if not client.receive(together, received[at]):
                epoll.unregister(client.plain.socket.fileno())
                client.registered = False
            at += 1
        if self._unsettled:
            # who has joined is among them
            self._handle_together(alone=alone)
        if self._unsettled and not self._settling:
            alone = len(self._unsettled) == 1 and self._turns.in_row >= ALONE_PIECES
            if self._commit.settle_now(alone=alone):
                self.send_settled()
            else:
                self._settling = True
                self._some_unsettled.set()
        elif self._unsettled and remote is not None:
            remote.look()

    def _receive(self, asked: list[PolledTransport]) -> list[bytes | int | None]:
        """Receive from all idle clients natively; None: the client itself receives."""
        rounds = _native.rounds
        if rounds is None or (len(asked) == 1 and not asked[0].session.joins_alone()):
            return [None] * len(asked)
        received: list[bytes | int | None] = rounds.receive(
            asked, self._buffer, limits.RECEIVE_BYTES_MAX
        )
        return received

    def _handle_together(self, *, alone: bool) -> None:
        left = self._together.carry_out(self._now_us(), alone=alone)
        if left:
            for client in self._unsettled.copy():
                if client.session in left:
                    client.handle_left(alone=alone)

    def send_settled(self) -> None:
        """Send what is settled."""
        # a client with requests that came while a thread synced puts itself into the list again
        unsettled, self._unsettled = self._unsettled, []
        settled = self._commit.releasable()
        rounds = _native.rounds
        if rounds is None or self._listeners:
            for client in unsettled:
                client.settled(settled)
        else:
            for client, sent in rounds.send(unsettled, settled, self._memory):
                if sent is None:
                    client.settled(settled)
                else:
                    client.sent(settled, sent)

    async def _settle_slowly(self) -> None:
        """Carry out commits that the poller's task must not wait for."""
        commit = self._commit
        while True:
            await self._some_unsettled.wait()
            await commit.wait_settled(commit.writer.appended)
            self.send_settled()
            if not self._unsettled:
                self._settling = False
                self._some_unsettled = trio.Event()

    async def _stop_clients(self) -> None:
        while True:
            while self._stops:
                instant, client = self._stops[0]
                await trio.sleep_until(instant)
                self._stops.popleft()
                client.stop_receiving()
            self._some_stop = trio.Event()
            await self._some_stop.wait()


class _PolledState(Enum):
    LISTENING = "listening"
    """Receives when the socket has something."""
    SETTLING = "settling"
    """Carries out its step when all is settled that was appended so far."""
    PASSING = "passing"
    """Yields to other clients."""
    WAITING = "waiting"
    """Waits for its turn."""
    RELEASED = "released"
    """Was woken for its turn, and asks the turn budget again."""
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
    """Transport of one client's plain connection.

    Args:
        steps: Session, socket, and the waits.
        plain: The connected socket.
        poller: Calls it when there is something to do.
    """

    __slots__ = (
        "__weakref__",
        "_descriptor",
        "_evict",
        "_expected",
        "_life",
        "_now_us",
        "_poller",
        "_receive_until",
        "_resumed",
        "_socket",
        "_state",
        "_step",
        "_steps",
        "_turn",
        "_unsettled",
        "_writer",
        "on_end",
        "plain",
        "registered",
        "session",
    )

    def __init__(self, steps: StepRunner, plain: PlainSocket, poller: Poller) -> None:
        self.session: Session = steps.session
        self.plain = plain
        self.registered = False
        """Whether the socket is registered. The poller notes it."""
        self._socket = plain.socket
        # a socket of a class of its own, in a test, receives and sends by its methods
        self._descriptor = plain.socket.fileno() if type(plain.socket) is socket else -1
        """Descriptor, for rounds that receive and send natively."""
        self._steps = steps
        self._writer = steps.runtime.writer
        self._now_us = steps.runtime.clock.now_us
        self._evict = steps.evict
        self._poller = poller
        self._state = _LISTENING
        self._step: Step = RECEIVE
        """Step to carry out after SETTLING."""
        self._resumed = False
        """It is in the poller's queue of connections that can go on."""
        self._unsettled = False
        """It is in the poller's queue for the next commit."""
        self._turn: QueuedClient | None = None
        self._expected = TURN_WORK
        """Work of the turn for which it waits, as far as that is known."""
        self._life = trio.CancelScope()
        """Cancels the task that carries out its steps."""
        self._receive_until = NEVER
        self.on_end: Callable[[], object] = do_nothing
        """Called when the connection has ended."""

    def begin(self) -> None:
        """Serve the client, from the first byte on."""
        self._poller.add(self)
        self._drive(self.session.next_step(self._now_us()))

    # --- calls of the poller --------------------------------------------------------------------

    def receive(self, together: SharedBatch | None, data: bytes | int | None = None) -> bool:
        """Receive and carry out the steps that follow, if it listens.

        Args:
            together: Takes the request, if it can be handled with those of other clients; None:
                no other client has sent any.
            data: What a round has received, or the number of its error.

        Returns:
            Whether its socket may stay registered.
        """
        if self._state is not _LISTENING:
            assert data is None or self._state is _ENDED, "it was received, and nobody takes it"
            return self._state is _ENDED
        if data is None:
            try:
                data = self._socket.recv(limits.RECEIVE_BYTES_MAX)
            except BlockingIOError:
                return True
            except OSError as error:
                data = error.errno or errno.EIO
        if isinstance(data, int):
            self._lose()
            return True
        session = self.session
        session.receive_data(data)
        if together is not None and session.join(together):
            self._settle(COMMIT)
        else:
            self._drive(session.next_step(self._now_us()))
        return True

    def handle_left(self, *, alone: bool) -> None:
        """Handle the request that the shared batch has taken and left."""
        self.session.leave(alone=alone)
        self._advance()

    def begin_turn(self) -> None:
        """Begin a turn, if the turn budget admits it: it asked for this call by ``resume``."""
        self._resumed = False
        if self._state is not _ENDED:
            self._take_turn(waited=self._state is _RELEASED)

    def settled(self, settled: int) -> None:
        """Send what is settled, and carry out the step that waited for the commit."""
        self._unsettled = False
        if self._state is _SETTLING:
            self._drive(self._step)
        elif self._state is not _ENDED:
            try:
                if not self._send_now(settled):
                    self._steps.wake()
            except trio.BrokenResourceError:
                self._lose()

    def sent(self, settled: int, sent: int) -> None:
        """Carry on where a round has sent less than the reply.

        Args:
            settled: Bytes of the log that are settled.
            sent: So many bytes, or minus the number of an error.
        """
        data = self.session.data_to_send(settled, self.has_hung_up)
        if sent < 0:
            self._steps.is_cut_off = True
            self._lose()
        else:
            self._steps.rest = memoryview(data)[sent:]
            self._begin_task(COMMIT)

    def stop_receiving(self) -> None:
        """Take no more from the client, if that is what the session waits for."""
        if self._state is _LISTENING:
            self.session.stop_receiving()
            self._advance()

    # --- steps ----------------------------------------------------------------------------------

    def _advance(self) -> None:
        self._drive(self.session.next_step(self._now_us()))

    def _drive(self, step: Step) -> None:
        """Carry out steps, up to one that has to wait."""
        session = self.session
        try:
            while True:
                if step is COMMIT:
                    settled = self._writer.settled
                    if settled < session.mark:
                        self._settle(step)
                        return
                    if session.room.granted:
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
                    if self.registered and self._receive_until is NEVER:
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
        """Carry out a rarer step; return False if it has to wait."""
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
        """Send what is settled; return False if a task has to send the rest.

        Raises:
            BrokenResourceError: The client is lost.
        """
        steps, session = self._steps, self.session
        if steps.sending or steps.rest:
            return False
        if steps.is_cut_off:
            raise trio.BrokenResourceError
        while data := session.data_to_send(settled, steps.has_hung_up):
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                steps.is_cut_off = True
                raise trio.BrokenResourceError from error
            if sent < len(data):
                steps.rest = memoryview(data)[sent:]
                return False
            if not session.data_sent():
                return True
        if session.has_unsent:
            # their commit mark is after what is settled
            self._wait_settled()
        return True

    def _listen(self) -> None:
        self._state = _LISTENING
        if self._receive_until is not NEVER and trio.current_time() >= self._receive_until:
            self.stop_receiving()
        elif not self.registered:
            self._poller.register(self)

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
        turns = self._steps.runtime.turns
        if turns.admits(self.session.share, self._expected, waited=waited):
            self._advance()
        else:
            self._wait_turn()

    def _wait_turn(self) -> None:
        self._state = _WAITING
        queue_up = self._steps.services.queue_up
        self._turn = queue_up(self.session.share, self._release, self._expected)

    def _leave_queue(self) -> None:
        if self._turn is not None:
            self._turn.share, self._turn.wake = None, do_nothing
            self._turn = None

    def _release(self) -> None:
        self._state = _RELEASED
        self._resume()

    # --- steps of a task ------------------------------------------------------------------------

    def _begin_task(self, step: Step) -> None:
        self._state = _BUSY
        self._life = trio.CancelScope()
        self._steps.nursery.start_soon(self._run_task, step)

    async def _run_task(self, step: Step) -> None:
        """Carry out steps until the session listens to the client, or to its end."""
        steps, listens = self._steps, False
        try:
            with self._life:
                try:
                    while step is not RECEIVE and step is not CLOSE:
                        await steps.carry_out(step)
                        step = self.session.next_step(self._now_us())
                    if step is CLOSE:
                        await steps.close()
                    # it may have been cut after the last wait
                    listens = step is RECEIVE and not self._life.cancel_called
                except trio.BrokenResourceError:
                    LOG.debug(LogEvent("client-lost"))
        finally:
            if not listens:
                self._end()
        if listens:
            self._listen()

    def _lose(self) -> None:
        LOG.debug(LogEvent("client-lost"))
        # a task that carries out its steps closes it
        self.cut()

    def _end(self) -> None:
        """Close the socket, and clean up."""
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
        """Send notifications and replies to requests that waited."""
        if self.session.has_notifications():
            self._steps.wake()
        elif self.session.has_unsent:
            self._wait_settled()

    def stop(self) -> None:
        """Stop with the daemon: answer requests that are on their way, then close."""
        self._receive_until = trio.current_time() + STOP_SECONDS
        self._poller.stop_receiving_at(self._receive_until, self)

    def abandon(self, sentence: str, code: str) -> None:
        """End the wait for the rest of a request: send the client an error, and close."""
        self.session.abandon(sentence, code)
        self.stop_receiving()

    def refuse_request(self) -> None:
        """Send the client an error: there is no room for the rest of its request; and close."""
        self.session.refuse_request()
        self.stop_receiving()

    def cut(self) -> None:
        """Close at once: messages that the client has not taken are lost."""
        if self._state is _BUSY:
            self._life.cancel()
        elif self._state is not _ENDED:
            self._end()

    def has_hung_up(self) -> bool:
        """Whether the client sends nothing more."""
        return self._steps.has_hung_up()


if _native.rounds is not None:
    _native.rounds.bind_rounds(
        Request,
        (PolledTransport, Session, Outbox, MemoryAccount),
        (
            *(_LISTENING, _SETTLING, COMMIT, Stage.IDLE, Stage.LEFT, Stage.SHARED, Stage.ANSWERED),
            NEVER,
        ),
    )
