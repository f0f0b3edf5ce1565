"""Session: one client's connection without IO. Bytes in; waits and bytes out. Pure.

    receive_data   takes bytes of the client: requests, or parts of them
    next_step      carries out what can be carried out, and returns what to wait for
    batch          takes what came of a wait, and has the mark that the replies wait for
    data_to_send   returns what may leave, in order; data_sent: it has left

Nothing comes between handling a request and appending its records: they stand in the log in the
order in which the requests were applied. All that is sent goes through the outbox (``net.outbox``),
whose marks see to it that no reply shows anybody a change that a crash could undo.

A session is a state machine: its state is the method with which it goes on once the last step was
carried out. Nothing here waits, and nothing assumes a task for each connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fastjournal import limits
from fastjournal.errors import ProtocolError
from fastjournal.limits import BATCH_WORK, HANG_UP_WORK, JOIN_WORK, REQUEST_WORK
from fastjournal.protocol import (
    CONNECTION_CLOSED,
    ErrorCode,
    Request,
    ServerConnection,
    encode_error,
)
from fastjournald.admission.close_reason import CloseReason
from fastjournald.admission.memory_budget import NEVER, MemoryAccount
from fastjournald.admission.turn_budget import Share
from fastjournald.engine.prefetch import missing_notifications
from fastjournald.engine.undelivered import DeliveringReply
from fastjournald.net.outbox import Outbox
from fastjournald.net.request_batch import RequestBatch, Shared
from fastjournald.net.session_steps import CLOSE, FLUSH, MATCH, RECEIVE, Step, WaitTurn
from fastjournald.net.shared_batch import SharedBatch
from fastjournald.tables.value_cache import ALL_READABLE, Missing, Unreadable

_State: TypeAlias = "Callable[[Session, int], Step]"


class Session:
    """State machine of a client's connection. It is its own key in the engine.

    Args:
        shared: Engine, log and budgets.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._engine = shared.engine
        self._turns = shared.turns
        self._is_notified = shared.engine.subscriptions.has_notifications
        self._listeners = shared.engine.subscriptions.subscribers
        self._memory = memory = shared.memory
        settings = shared.engine.context.settings
        self._connection = ServerConnection(value_bytes_max=settings.value_bytes_max)
        self.account = MemoryAccount(memory)
        """All that is in memory for this connection."""
        self.share = Share()
        """Account of its turns."""
        self._outbox = outbox = Outbox(shared.log, self.account, shared.release_undelivered)
        # methods of the outbox itself: a reply takes no further call
        self.data_to_send = outbox.data_to_send
        self.data_sent = outbox.data_sent
        self.batch = RequestBatch(shared, outbox, self.account, self.share)
        """Requests that are carried out."""
        self._next: _State = Session._take_requests
        self._serving = False
        """Replies are owed: no notification comes between a request and its reply."""
        self._undecoded: bytes | bytearray = b""
        """Received, and not decoded so far because memory is scarce."""
        self._waiting: bytes | bytearray = b""
        """Received, and not decoded so far because the client waits for its turn."""
        self._taken_bytes = 0
        """Bytes of the requests that were decoded last."""
        self._single: Request | None = None
        """Request that a shared batch was asked to take."""
        self._abandoned = False
        self._ended = False
        """No further requests are taken."""
        self.peer = ""
        """Name of the client, for the log. ``Connections`` notes it."""
        self.on_first_request: Callable[[], object] | None = None
        """Called once, when it has asked for something, after AUTH where that is needed."""
        # fields for the timeouts, on the clock of the memory budget
        self.connected_since = memory.now
        self.partial_bytes = 0
        """Bytes of a request that is cut short."""
        self.partial_since = NEVER
        """When its first byte came."""
        self.receiving_since = NEVER
        """Since when nothing comes; NEVER: this is not what the session waits for."""
        self.sending_since = NEVER
        """Since when the client takes nothing; NEVER: nothing is sent. The transport notes it."""

    # --- steps ----------------------------------------------------------------------------------

    def next_step(self, now: int) -> Step:
        """Carry out what can be carried out, and return what has to be waited for.

        Args:
            now: The present. The step before was carried out.
        """
        try:
            return self._next(self, now)
        except ProtocolError as error:
            # it is kept by the connection: with a traceback that is a reference cycle
            error.__traceback__ = None
            self._shared.protocol_errors[error.code] += 1
            self.disconnect()
            self._outbox.put(encode_error(error.identifier, now, f"{error.code} {error}"))
            return self._close(now)

    def _take_requests(self, now: int) -> Step:
        """Take the requests that are whole; where there are none, listen to the client again."""
        if self._ended:
            return self._close(now)
        connection = self._connection
        requests = connection.next_events()
        if requests:
            self._serving = True
            self._engine.store.work += BATCH_WORK + len(requests)
            return self._begin_batch(requests, now)
        if connection.next_event() is CONNECTION_CLOSED:
            # from here on it gets no work
            self._engine.store.work += HANG_UP_WORK
            self.disconnect()
            return self._close(now)
        if self._outbox.pieces or self.has_notifications():
            # backpressure: no reading from a client that does not read what was pushed to it
            self._next = Session._flushed
            return FLUSH
        return self._listen(now)

    def _begin_batch(self, requests: list[Request], now: int) -> Step:
        self._next = Session._go_on
        step = self.batch.begin(self, requests, self._taken_bytes, now)
        if self.on_first_request is not None:
            self._note_first_request()
        return self._end_batch(now) if step is None else step

    # --- a request that is carried out with those of other clients -------------------------------

    def join(self, together: SharedBatch) -> bool:
        """Let a shared batch take the request that was received, if it may; whether it did.

        It carries the request out, or leaves it to the next step.
        """
        if self._next is not Session._take_requests or self._ended:
            return False
        request = self._connection.only_event()
        if request is None:
            return False
        self._serving = True
        self._single = request
        self._next = Session._begin_single
        if self.on_first_request is not None or not together.takes(self, request):
            self._engine.store.work += BATCH_WORK + 1
            return False
        self._engine.store.work += JOIN_WORK
        self._turns.charge(self.share, REQUEST_WORK)
        return True

    def _begin_single(self, now: int) -> Step:
        request, self._single = self._single, None
        assert request is not None
        return self._begin_batch([request], now)

    def leave(self) -> None:
        """Take back the request, which the shared batch has not carried out: it counts as alone."""
        store = self._engine.store
        # its client was charged with the request itself when it joined
        self.share.began = store.work + REQUEST_WORK
        store.work += BATCH_WORK + 1 - JOIN_WORK

    def answer(self, reply: bytes, mark: int) -> None:
        """Take the reply to the request that the shared batch carried out."""
        self._single = None
        self._outbox.put(reply)
        self.batch.mark = mark
        self._next = Session._answered

    def listen_again(self) -> bool:
        """Listen to the client again behind such a reply, where that is all there is to do.

        It is ``next_step`` in short; False: that is to be asked.
        """
        if (
            self._next is not Session._answered
            or self._ended
            or self._abandoned
            or self._undecoded
            or self._outbox.pieces
            or self._listeners
        ):
            return False
        self._serving = False
        self._next = Session._take_requests
        self.partial_since = self.receiving_since = self._memory.now
        return True

    def _answered(self, now: int) -> Step:
        self._serving = False
        if self._ended or self._abandoned:
            return self._take_requests(now)
        self.partial_since = self._memory.now
        if self._outbox.pieces or self._is_notified(self):
            self._next = Session._flushed
            return FLUSH
        return self._listen(now)

    def _go_on(self, now: int) -> Step:
        step = self.batch.next_step(self, now)
        if self.on_first_request is not None:
            self._note_first_request()
        return self._end_batch(now) if step is None else step

    def _end_batch(self, now: int) -> Step:
        self._serving = False
        self._ended = self._ended or self.batch.quit
        self.partial_since = self._memory.now
        return self._take_requests(now)

    def _note_first_request(self) -> None:
        """Tell that the client has asked for something, before it can read a reply."""
        if self.on_first_request is not None and not self.batch.unknown:
            self.on_first_request()
            self.on_first_request = None

    def _close(self, _now: int) -> Step:
        self._next = Session._close
        return CLOSE

    # --- bytes of the client --------------------------------------------------------------------

    def _flushed(self, now: int) -> Step:
        self.partial_since = self._memory.now
        return self._listen(now)

    def _listen(self, now: int) -> Step:
        if self._engine.notifications.behind:
            self._next = Session._receive
            return MATCH
        return self._receive(now)

    def _receive(self, now: int) -> Step:
        data = self._undecoded
        if data:
            self._undecoded = b""
            self.account.hold(-len(data))
            self.receive_data(data)
            return self._next(self, now)
        self._next = Session._take_requests
        self.receiving_since = self._memory.now
        return RECEIVE

    def receive_data(self, data: bytes | bytearray) -> None:
        """Take what was received, once for each step RECEIVE; ``b""`` is the end of the stream."""
        self.receiving_since = NEVER
        self.batch.arrived = self._shared.latencies.began
        if self._memory.scarce:
            data = self._within_ration(data)
        if not data:
            self._turns.forgo_credit(self.share)
        if self._turns.admits(self.share, len(data) // limits.READ_BYTES_A_UNIT):
            self._decode(data)
        else:
            self.account.hold(len(data))
            self._waiting = data
            self._next = Session._wait_turn

    def _wait_turn(self, _now: int) -> Step:
        """Wait until the bytes may be decoded, and what they ask for carried out."""
        self._next = Session._begin_turn
        size = len(self._waiting)
        if not size:
            return WaitTurn(HANG_UP_WORK)
        return WaitTurn(BATCH_WORK + limits.REQUEST_WORK + size // limits.READ_BYTES_A_UNIT)

    def _begin_turn(self, now: int) -> Step:
        data, self._waiting = self._waiting, b""
        self.account.hold(-len(data))
        if self._memory.scarce:
            # it may have become so while the session waited
            data = self._within_ration(data)
        self._decode(data)
        return self._take_requests(now)

    def _within_ration(self, data: bytes | bytearray) -> bytes | bytearray:
        """Return the bytes that may be decoded while memory is scarce; the others wait."""
        if len(data) <= limits.SCARCE_BYTES:
            return data
        # decoded requests take ten times as much
        rest = bytes(data[limits.SCARCE_BYTES :])
        self.account.hold(len(rest))
        self._undecoded = rest + self._undecoded
        return data[: limits.SCARCE_BYTES]

    def _decode(self, data: bytes | bytearray) -> None:
        connection = self._connection
        self._next = Session._take_requests
        before, partial = self.partial_bytes, connection.receive_data(data)
        self._taken_bytes = before + len(data) - partial
        if partial or before:
            self._engine.store.work += BATCH_WORK
            self.account.hold(partial - before)
            self.partial_bytes = partial
            if not before:
                self.partial_since = self._memory.now
            if self._memory.scarce and partial > limits.SCARCE_PARTIAL_BYTES:
                self.refuse_request()

    # --- bytes for the client -------------------------------------------------------------------

    @property
    def unknown(self) -> bool:
        """Whether AUTH has not succeeded so far, and has to."""
        return self.batch.unknown and not self._abandoned

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait to be sent, or are being sent."""
        return bool(self._outbox.pieces)

    @property
    def unsent_mark(self) -> int:
        """Bytes of the log that have to be settled before the first of them may leave."""
        return self._outbox.mark

    def deliver(self, replies: list[bytes]) -> None:
        """Let replies to requests that waited leave, once all that is appended now is settled."""
        deliveries = [reply.jobs for reply in replies if isinstance(reply, DeliveringReply)]
        self._outbox.put(b"".join(replies), deliveries, pushed=True)

    def has_notifications(self) -> bool:
        """Whether the client listens to something that has changed, and may be notified now."""
        return not self._serving and self._is_notified(self)

    def missing_notifications(self, unreadable: Unreadable = ALL_READABLE) -> Missing | None:
        """Return values to be read before the next notifications, but for reads that failed."""
        return missing_notifications(self._engine.context, self, unreadable)

    def tell(self, now: int, unreadable: Unreadable = ALL_READABLE) -> bool:
        """Put some notifications into the outbox, where nothing else is in it; whether it did.

        They tell what stands there now, and not what did when it changed.
        """
        if self._outbox.pieces or not self.has_notifications():
            return False
        data = self._engine.notifications.pop(self, now, unreadable)
        if data:
            self._outbox.put(data)
        return bool(data)

    # --- the end --------------------------------------------------------------------------------

    def stop_receiving(self) -> None:
        """Take no more from the client, while the session waits for RECEIVE."""
        self.receiving_since = NEVER
        if not self._abandoned:
            self._ended = True

    def abandon(self, sentence: str, code: str) -> None:
        """Wait no longer for the rest of a request: the next step tells the client, and closes."""
        self._connection.abandon(sentence, code)
        self._abandoned = True
        self.account.hold(-self.partial_bytes)
        self.partial_bytes = 0

    def refuse_request(self) -> None:
        """Tell the client that there is no room for the rest of its request."""
        self._shared.connections_closed[CloseReason.NO_ROOM] += 1
        self.abandon("connections hold max-inflight bytes; send it again later", "busy")

    def refuse(self, now: int) -> None:
        """Tell the client that it cannot be served: there are too many."""
        self._outbox.put(
            encode_error(0, now, f"{ErrorCode.BUSY} the daemon has max-connections clients")
        )

    def disconnect(self) -> None:
        """End all that the engine keeps for the connection; others may get what it had locked."""
        self._engine.end_session(self)
        self._shared.wake_tasks()

    def end(self) -> None:
        """Give back all that is held: the connection has ended."""
        self.disconnect()
        self._outbox.withdraw()
        self.batch.close()
        self.account.close()
        self.receiving_since = self.sending_since = NEVER
