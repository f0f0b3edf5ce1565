"""Session: one client's connection as a state machine without IO. Pure: bytes in, waits, bytes out.

The way of a request:

    receive_data   decodes bytes to requests, if the turn budget admits the client
    next_step      has the engine apply the requests, which appends their records to the log, and
                   returns the step that a transport carries out: nearly always COMMIT
    data_to_send   returns the replies that are durable, in order; ``data_sent``: they were sent
    listen_again   ends the turn

Nothing is awaited between handling a request and appending its records: the log has them in the
order in which the requests were applied. All messages go through the outbox (``net.outbox``), whose
commit marks keep back a reply until the changes that it shows are durable.

Between two steps the session is in a ``Stage`` (``net.session_steps``), and the table ``ADVANCE``
has the method for each stage.
Requests that were received together are a batch. They are handled one after the other until one of
them has to wait, or the slice of the client is used up; the others are handled after that step.

The module is long because connection and batch are one state machine: every stage is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fastjournal import limits
from fastjournal.errors import ProtocolError
from fastjournal.limits import BATCH_WORK, HANG_UP_WORK, JOIN_WORK, REQUEST_WORK
from fastjournal.protocol import (
    CONNECTION_CLOSED,
    SUCCESS_BYTES_MAX,
    ErrorCode,
    Function,
    Request,
    ServerConnection,
    encode_error,
)
from fastjournal.protocol.functions import BY_SERVER, BY_SERVER_FIRST
from fastjournald.admission.log_growth import LogRoom, bytes_of
from fastjournald.admission.memory_budget import NEVER, CloseReason, MemoryAccount
from fastjournald.admission.turn_budget import Share
from fastjournald.engine.engine import BULK_HANDLERS, Missing, Scan
from fastjournald.engine.undelivered import DeliveredJobs, DeliveringReply
from fastjournald.engine.value_memory import missing_notifications
from fastjournald.net.outbox import Outbox
from fastjournald.net.session_steps import (
    CLOSE,
    COMMIT,
    FLUSH,
    MATCH,
    PASS_ON,
    PENALTY,
    RECEIVE,
    AskServer,
    RunScan,
    Stage,
    Step,
    ValueReads,
    WaitRoom,
    WaitTurn,
)
from fastjournald.net.shared_batch import Shared, SharedBatch
from fastjournald.tables.value_cache import ALL_READABLE, Unreadable

_QUIT = int(Function.QUIT)
_AUTH = int(Function.AUTH)


# the attributes of an enumeration are looked up slowly
_READ: Final = Stage.READ
_HANDLE: Final = Stage.HANDLE
_ANSWERED: Final = Stage.ANSWERED
_SHARED: Final = Stage.SHARED
_IDLE: Final = Stage.IDLE

_REPLIES_OWED = frozenset(range(Stage.LEFT, Stage.CLOSED))
"""Stages of a batch: no notification is sent between a request and its reply."""

ALONE_MISSES_MAX = 6
"""Misses from which on the distance to the next bulk of one grows no more: 64 requests."""


class Session:
    """State machine of a client's connection. It is its own key in the engine.

    Args:
        shared: Engine, log and budgets.
    """

    __slots__ = (
        "__weakref__",
        "_abandoned",
        "_alone_misses",
        "_alone_skips",
        "_answered",
        "_answered_before",
        "_arrived",
        "_at",
        "_batch_bytes",
        "_bulk_from",
        "_bulk_misses",
        "_connection",
        "_deliveries",
        "_ended",
        "_engine",
        "_function",
        "_held",
        "_is_notified",
        "_left",
        "_listeners",
        "_longer",
        "_memory",
        "_outbox",
        "_reads",
        "_refusal",
        "_replies",
        "_reply_room",
        "_requests",
        "_shared",
        "_stage",
        "_turns",
        "_undecoded",
        "_unknown",
        "_waiting",
        "account",
        "connected_since",
        "data_sent",
        "data_to_send",
        "mark",
        "on_first_request",
        "partial_bytes",
        "partial_since",
        "peer",
        "receiving_since",
        "room",
        "sending_since",
        "share",
    )

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._engine = engine = shared.engine
        self._turns = shared.turns
        self._is_notified = engine.subscriptions.has_notifications
        self._listeners = engine.subscriptions.subscribers
        self._memory = memory = shared.memory
        settings = engine.context.settings
        self._connection = ServerConnection(value_bytes_max=settings.value_bytes_max)
        self.account = MemoryAccount(memory)
        """All memory that is held for this connection."""
        self.share = Share()
        """Account of its turns."""
        self._outbox = outbox = Outbox(shared.log, self.account, shared.release_undelivered)
        # methods of the outbox itself: a reply takes no further call
        self.data_to_send = outbox.data_to_send
        self.data_sent = outbox.data_sent
        self.room = LogRoom(shared.backpressure, self.account, engine.store.find)
        """Room in the log while writers are slowed down."""
        self.peer: Mapping[str, object] = {}
        """Address of the client, as fields of the log. ``Connections`` notes it."""
        self.on_first_request: Callable[[], object] | None = None
        """Called once, when the client has sent a request, after AUTH where that is needed."""
        self._stage = _READ
        self._unknown = engine.context.grants is not None
        """AUTH has not succeeded so far, and has to."""
        self._ended = False
        """No further requests are taken."""
        self._abandoned = False
        """The rest of a request is not waited for."""
        # bytes received, and not decoded so far
        self._waiting: bytes | bytearray = b""
        """Bytes that wait for the client's turn."""
        self._undecoded: bytes | bytearray = b""
        """Bytes that wait because memory is scarce, after those."""
        # the batch
        self.mark = 0
        """Commit mark: bytes of the log that must be settled before the replies may be sent."""
        self._requests: list[Request] = []
        self._at = 0
        """Index of the next request."""
        self._left: Request | None = None
        """Request that a shared batch was asked to take."""
        self._arrived = 0.0
        """Begin of the turn in which the requests were received."""
        self._batch_bytes = 0
        """Bytes of the requests: as received; once decoded, with those of their objects."""
        self._held = 0
        """Bytes of the batch that the memory budget counts, while some of its requests wait."""
        self._alone_misses = 0
        """Bulks of one request that handled none, since the last that did."""
        self._alone_skips = 0
        """Requests that are handled without such a bulk."""
        self._bulk_from = 0
        """Index of the request from which on a bulk may be tried."""
        self._bulk_misses = 0
        """Bulks since the last that was of use."""
        self._longer: Missing | Scan | None = None
        """Scan or values that the next request waits for."""
        self._reads = ValueReads(engine.context)
        """Values that are read for it."""
        # the replies
        self._replies: list[bytes] = []
        """Replies that are not in the outbox so far."""
        self._deliveries: list[DeliveredJobs] = []
        """Work in them."""
        self._reply_room = 0
        """Bytes of replies that may follow before a commit."""
        self._refusal = b""
        """Reply to a failed AUTH, which is delayed."""
        self._function = 0
        """Function of the requests that were answered last, for their latency."""
        self._answered = 0
        """Number of them."""
        self._answered_before: list[tuple[int, int]] = []
        """Functions and numbers of those before them, since the last commit."""
        # fields for the timeouts, on the clock of the memory budget
        self.connected_since = memory.now
        self.partial_bytes = 0
        """Bytes of a request that is cut short."""
        self.partial_since = NEVER
        """Instant of its first byte."""
        self.receiving_since = NEVER
        """Begin of the wait for bytes; NEVER: the session does not wait for any."""
        self.sending_since = NEVER
        """Begin of the wait for the client to take bytes; NEVER: none are being sent. The transport
        notes it."""

    # --- steps ----------------------------------------------------------------------------------

    def next_step(self, now: int) -> Step:
        """Advance to the next stage, and return the step to carry out.

        Args:
            now: The present. The step before was carried out.
        """
        try:
            return ADVANCE[self._stage](self, now)
        except ProtocolError as error:
            # it is kept by the connection: with a traceback that is a reference cycle
            error.__traceback__ = None
            self._shared.protocol_errors[error.code] += 1
            self.disconnect()
            self._outbox.put(encode_error(error.identifier, now, f"{error.code} {error}"))
            return self._close(now)

    # --- bytes of the client --------------------------------------------------------------------

    def receive_data(self, data: bytes | bytearray) -> None:
        """Take what was received, once for each step RECEIVE; ``b""`` is the end of the stream."""
        self.receiving_since = NEVER
        self._arrived = self._shared.latencies.began
        if self._memory.scarce:
            data = self._within_ration(data)
        if not data:
            self._turns.forgo_credit(self.share)
        if self._turns.admits(self.share, len(data) // limits.READ_BYTES_A_UNIT):
            self._decode(data)
        else:
            self.account.hold(len(data))
            self._waiting = data
            self._stage = Stage.QUEUED

    def _wait_turn(self, _now: int) -> Step:
        self._stage = Stage.ADMITTED
        size = len(self._waiting)
        if not size:
            return WaitTurn(HANG_UP_WORK)
        return WaitTurn(BATCH_WORK + REQUEST_WORK + size // limits.READ_BYTES_A_UNIT)

    def _begin_turn(self, now: int) -> Step:
        data, self._waiting = self._waiting, b""
        self.account.hold(-len(data))
        if self._memory.scarce:
            # it may have become so while the session waited
            data = self._within_ration(data)
        self._decode(data)
        return self._read(now)

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
        self._stage = _READ
        before, partial = self.partial_bytes, self._connection.receive_data(data)
        self._batch_bytes = before + len(data) - partial
        if partial or before:
            self._engine.store.work += BATCH_WORK
            self.account.hold(partial - before)
            self.partial_bytes = partial
            if not before:
                self.partial_since = self._memory.now
            if self._memory.scarce and partial > limits.SCARCE_PARTIAL_BYTES:
                self.refuse_request()

    def _read(self, now: int) -> Step:
        """Begin a batch of the requests that are whole; without any, flush or listen."""
        self._stage = _READ
        if self._ended:
            return self._close(now)
        connection = self._connection
        requests = connection.next_events()
        if requests:
            self._engine.store.work += BATCH_WORK + len(requests)
            return self._begin_batch(requests, now)
        if connection.over and connection.next_event() is CONNECTION_CLOSED:
            # from here on it gets no work
            self._engine.store.work += HANG_UP_WORK
            self.disconnect()
            return self._close(now)
        if self._outbox.pieces or self.has_notifications():
            # backpressure: no reading from a client that does not read what was pushed to it
            self._stage = Stage.FLUSHED
            return FLUSH
        return self._listen(now)

    def _flushed(self, now: int) -> Step:
        self.partial_since = self._memory.now
        return self._listen(now)

    def _listen(self, now: int) -> Step:
        if self._engine.notifications.behind:
            self._stage = Stage.MATCHED
            return MATCH
        return self._receive(now)

    def _receive(self, now: int) -> Step:
        data = self._undecoded
        if data:
            self._undecoded = b""
            self.account.hold(-len(data))
            self.receive_data(data)
            return ADVANCE[self._stage](self, now)
        self._stage = _READ if self.partial_bytes or self.on_first_request is not None else _IDLE
        self.receiving_since = self._memory.now
        return RECEIVE

    # --- a request of a shared batch ------------------------------------------------------------

    def join(self, together: SharedBatch) -> bool:
        """Offer the request that was received to a shared batch; return whether it took it.

        The shared batch calls ``answer``, or the transport calls ``leave`` and ``next_step``.
        """
        if self._stage is not _READ or self._ended:
            return False
        request = self._connection.only_event()
        if request is None:
            return False
        self._left = request
        self._stage = Stage.LEFT
        if self.on_first_request is not None or not together.takes(self, request):
            self._engine.store.work += BATCH_WORK + 1
            return False
        self._count_join()
        return True

    def offer(self, together: SharedBatch, request: Request, size: int, alone: bool) -> bool:
        """Offer a request that was decoded natively to a shared batch; return whether it took it.

        It stands for ``receive_data`` and ``join`` where the session is in the stage IDLE. Where it
        refuses, nothing has changed that these would not change again.

        Args:
            together: The shared batch.
            request: All that was received.
            size: Its bytes.
            alone: The client is alone in the round: ``count_alone`` or ``leave`` counts the work.
        """
        if not self._turns.admits(self.share, size // limits.READ_BYTES_A_UNIT):
            return False
        if not together.takes(self, request):
            return False
        if not alone:
            self._count_join()
        return True

    def _count_join(self) -> None:
        self._engine.store.work += JOIN_WORK
        self._turns.charge(self.share, REQUEST_WORK)

    def joins_alone(self) -> bool:
        """Whether a bulk of one is worth a try: each miss doubles the requests without one."""
        if self._alone_skips:
            self._alone_skips -= 1
            return False
        return True

    def leave(self, *, alone: bool = False) -> None:
        """Take back the request, which the shared batch has not handled: it is a batch of one.

        Args:
            alone: Nothing was counted when it joined: the client is alone in the round.
        """
        store = self._engine.store
        if alone:
            store.work += BATCH_WORK + 1
            self._alone_misses = min(self._alone_misses + 1, ALONE_MISSES_MAX)
            self._alone_skips = 1 << self._alone_misses
            return
        # its client was charged with the request itself when it joined
        self._turns.begin_slice(self.share, REQUEST_WORK)
        store.work += BATCH_WORK + 1 - JOIN_WORK

    def count_alone(self) -> None:
        """Count the work of the request, whose client is alone: as much as without a batch."""
        self._engine.store.work += BATCH_WORK + 1
        self._turns.charge(self.share)
        self._alone_misses = 0

    def answer(self, reply: bytes, mark: int) -> None:
        """Take the reply to the request that the shared batch handled."""
        self._left = None
        self._outbox.put(reply)
        self.mark = mark
        self._stage = _ANSWERED if self.partial_bytes or self._abandoned else _SHARED

    def _handle_left(self, now: int) -> Step:
        request, self._left = self._left, None
        assert request is not None
        return self._begin_batch([request], now)

    # --- the batch: handle the requests ---------------------------------------------------------

    def _begin_batch(self, requests: list[Request], now: int) -> Step:
        self._stage = _HANDLE
        self._requests = requests
        self._at = self._bulk_from = self._bulk_misses = 0
        self._reply_room = limits.REPLIES_BYTES_MAX
        size = self._batch_bytes
        self._batch_bytes = size + len(requests) * limits.REQUEST_OBJECT_BYTES
        if self.on_first_request is not None:
            self._note_first_request()
        if self._shared.backpressure.closed and self.room.lacks(requests):
            return self._ask_room(size, Stage.RESUME)
        return self._handle(now)

    def _note_first_request(self) -> None:
        """Note that the client has sent a request, before it can read a reply."""
        if self.on_first_request is not None and not self._unknown:
            self.on_first_request()
            self.on_first_request = None

    def _handle(self, now: int) -> Step:
        """Handle the requests that are left, until one of them has to wait for something."""
        engine, requests, replies = self._engine, self._requests, self._replies
        handle, store = engine.handle, engine.store
        if self._memory.scarce:
            self._reply_room = min(self._reply_room, limits.SCARCE_BYTES)
        work_over = self.share.slice_over
        at, end = self._at, len(requests)
        while at < end:
            request = requests[at]
            function = request.function
            if (
                self._bulk_from <= at < end - 1
                and requests[at + 1].function == function
                and function in BULK_HANDLERS
                and (done := self._handle_bulk(at, work_over, now))
            ):
                at += done
                if function != self._function:
                    self._count_function(function)
                self._answered += done
            else:
                at += 1
                if function >= BY_SERVER_FIRST and function in BY_SERVER:
                    self._at = at
                    return self._commit(now, Stage.BY_SERVER)
                reply = handle(self, request, now)
                if reply is None:
                    # a NEXT that waits for work
                    continue
                if type(reply) is not bytes:
                    if isinstance(reply, DeliveringReply):
                        self._deliveries.append(reply.jobs)
                    elif not isinstance(reply, bytes):
                        self._at = at - 1
                        self._longer = reply
                        return self._leave_for_longer(now)
                replies.append(reply)
                if function != self._function:
                    self._count_function(function)
                self._answered += 1
                self._reply_room -= len(reply)
                if function == _QUIT:
                    self._ended = True
                    break
                if function == _AUTH and self._is_refused():
                    self._at = at
                    self._refusal = replies.pop()
                    return self._commit(now, Stage.REFUSED)
            if self._reply_room < 0 or store.work > work_over:
                self._at = at
                return self._pause(now)
        return self._commit(now, _ANSWERED)

    def _handle_bulk(self, at: int, work_over: int, now: int) -> int:
        """Handle requests from ``at`` on that are alike together, if any; return how many.

        A bulk of none or one, a miss, costs more than a request alone. After each miss the distance
        to the next bulk doubles, so a batch that no bulk fits has few of them.
        """
        work = max(work_over - self._engine.store.work, 0)
        # the last one may begin as long as there is room and work left for a part of it
        number = 1 + min(work // REQUEST_WORK, self._reply_room // SUCCESS_BYTES_MAX)
        replies = self._engine.handle_bulk(self, self._requests, now, at, at + number)
        self._replies += replies
        self._reply_room -= SUCCESS_BYTES_MAX * len(replies)
        if len(replies) > 1:
            self._bulk_misses = 0
        else:
            self._bulk_misses += 1
            self._bulk_from = at + (1 << self._bulk_misses)
        return len(replies)

    def _count_function(self, function: int) -> None:
        """Count answers to requests of this function from here on."""
        if self._answered:
            self._answered_before.append((self._function, self._answered))
        self._function, self._answered = function, 0

    def _is_refused(self) -> bool:
        """Whether the client has just failed an AUTH."""
        grants = self._engine.context.grants
        if grants is None:
            return False
        self._unknown = self not in grants.sessions
        return self._unknown

    # --- the batch: pauses between slices --------------------------------------------------------

    def _pause(self, now: int) -> Step:
        """Commit if the replies are many or writers are slowed down; else yield at once."""
        if self._reply_room < 0:
            return self._commit(now, Stage.RESUME)
        if self._shared.backpressure.closed and not self.room.granted:
            return self._commit(now, Stage.YIELD)
        return self._pass_on(now)

    def _pass_on(self, now: int) -> Step:
        self._put_replies(now)
        self._hold_requests()
        self._stage = Stage.HANDLE
        return PASS_ON

    def _yield(self, now: int) -> Step:
        return self._wait_room() or self._pass_on(now)

    def _handle_rest(self, now: int) -> Step:
        if self._lacks_room():
            return self._commit(now, Stage.RESUME)
        return self._handle(now)

    def _resume(self, now: int) -> Step:
        if (step := self._wait_room()) is not None:
            return step
        self._turns.begin_slice(self.share)
        self._reply_room = limits.REPLIES_BYTES_MAX
        return self._handle(now)

    def _lacks_room(self) -> bool:
        """Whether requests are left that have to wait while the log is far too large."""
        closed = self._shared.backpressure.closed
        return closed and self.room.lacks(self._requests[self._at :])

    def _wait_room(self) -> Step | None:
        """Return the wait for room in the log, in this stage; None: it is over, or not needed."""
        if self.room.asked:
            self.room.enter()
            return None
        if not self._lacks_room():
            return None
        return self._ask_room(bytes_of(self._requests[self._at :]), self._stage)

    def _ask_room(self, size: int, then: Stage) -> Step:
        """Wait for room in the log for the requests that are left, which are held meanwhile."""
        self.room.ask(size, len(self._requests) - self._at)
        self._stage = then
        return WaitRoom(size)

    # --- the batch: requests that take longer ----------------------------------------------------

    def _leave_for_longer(self, now: int) -> Step:
        """Send the replies so far, as the next one takes longer; without any, wait for no sync."""
        if self._answered or self._answered_before or self._outbox.pieces or self.room.granted:
            return self._commit(now, Stage.LONGER)
        self._hold_requests()
        self._put_replies(now)
        self._stage = Stage.LONGER
        return self._begin_longer(now)

    def _begin_longer(self, now: int) -> Step:
        return self._wait_room() or self._take_longer(now)

    def _take_longer(self, _now: int) -> Step:
        """Run a scan, or read values: those of the request and of the requests that follow it."""
        longer = self._longer
        if isinstance(longer, Scan):
            self._stage = Stage.SCANNED
            self._count_function(longer.request.function)
            self._answered = 1
            return RunScan(longer)
        assert longer is not None
        self._stage = Stage.VALUES_READ
        ahead = self._requests[self._at + 1 : self._at + limits.READ_AHEAD]
        return self._reads.step(longer, ahead)

    def _handle_again(self, now: int) -> Step:
        """Handle a request whose values were read; perhaps it needs others now."""
        assert isinstance(self._longer, Missing)
        self._reads.note(self._longer)
        request = self._requests[self._at]
        reply = self._engine.handle(self, request, now, self._reads.unreadable)
        if isinstance(reply, Missing | Scan):
            self._longer = reply
            return self._take_longer(now)
        if reply is not None:
            self.take_reply(reply)
            self._count_function(request.function)
            self._answered = 1
        return self._end_longer(now)

    def _end_longer(self, now: int) -> Step:
        self._longer = None
        self._reads.clear()
        self._at += 1
        self._turns.begin_slice(self.share)
        # all replies before this one were sent
        self._reply_room -= sum(map(len, self._replies))
        if self._reply_room < 0:
            return self._pause(now)
        return self._handle_rest(now)

    def take_reply(self, reply: bytes) -> None:
        """Take the reply for which RunScan or AskServer waited."""
        self._replies.append(reply)
        if isinstance(reply, DeliveringReply):
            self._deliveries.append(reply.jobs)

    def values_read(self, unreadable: Unreadable) -> None:
        """Take note that the values of ReadValues were read, and of the reads that failed."""
        self._reads.unreadable.update(unreadable)

    def _ask_server(self, _now: int) -> Step:
        request = self._requests[self._at - 1]
        self._count_function(request.function)
        self._answered = 1
        self._stage = Stage.RESUME
        return AskServer(request)

    def _penalise(self, _now: int) -> Step:
        """Delay the reply, so that tokens cannot be guessed fast."""
        failures = self._engine.context.auth_failures[self]
        self._ended = failures >= limits.AUTH_FAILURES_MAX
        self._stage = Stage.DELAYED
        return PENALTY

    def _refuse(self, now: int) -> Step:
        self._replies.append(self._refusal)
        if self._ended:
            return self._commit(now, _ANSWERED)
        self._stage = Stage.RESUME
        return self._resume(now)

    # --- the batch: replies, commit, end of the turn ----------------------------------------------

    def _put_replies(self, now: int) -> None:
        """Put the replies into the outbox: their commit mark is the end of the log as it is now."""
        shared = self._shared
        shared.turns.charge(self.share)
        if self.on_first_request is not None:
            self._note_first_request()
        if self._replies:
            # they leave together, and with those that follow before the commit
            self._outbox.put(b"".join(self._replies), self._deliveries)
            self._replies.clear()
            if self._deliveries:
                self._deliveries = []
        if self._engine.signals.bits or shared.log.appended >= shared.backpressure.look_at:
            shared.after_requests(now)

    def _commit(self, now: int, then: Stage) -> Step:
        """Wait until all that was appended is durable, and the replies are sent."""
        if then is _ANSWERED:
            # not held any more while the last replies are on their way
            self._requests = []
            if self._held:
                self.account.hold(-self._held)
                self._held = 0
        else:
            self._hold_requests()
        self._put_replies(now)
        self.mark = mark = self._shared.log.appended
        if self._answered:
            answered = self._shared.latencies.answered
            if self._answered_before:
                answered.extend((mark, self._arrived, *each) for each in self._answered_before)
                self._answered_before.clear()
            answered.append((mark, self._arrived, self._function, self._answered))
            self._answered = 0
        self._stage = then
        return COMMIT

    def committed(self) -> None:
        """End the turn at the log, if writers are slowed down: the replies so far are durable."""
        if self.room.granted:
            self.room.leave(self._requests[self._at :])

    def _hold_requests(self) -> None:
        """Count the requests: some of them wait while other clients have their turns."""
        if not self._held:
            self._held = self._batch_bytes
            self.account.hold(self._held)

    def listen_again(self) -> bool:
        """End the turn after the replies were sent, if nothing but RECEIVE can follow.

        It is ``next_step`` without the instant and the call: nearly every request ends here.
        False: ``next_step`` ends the turn.
        """
        if (
            (self._stage is not _SHARED and self._stage is not _ANSWERED)
            or self._ended
            or self._connection.over
            or self._undecoded
            or self._outbox.pieces
            or self._listeners
        ):
            return False
        self._stage = _READ if self.partial_bytes or self.on_first_request is not None else _IDLE
        self.partial_since = self.receiving_since = self._memory.now
        return True

    def _end_turn(self, now: int) -> Step:
        if self.listen_again():
            return RECEIVE
        self.partial_since = self._memory.now
        return self._read(now)

    # --- messages for the client ----------------------------------------------------------------

    @property
    def unknown(self) -> bool:
        """Whether AUTH has not succeeded so far, and has to."""
        return self._unknown and not self._abandoned

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait to be sent, or are being sent."""
        return bool(self._outbox.pieces)

    @property
    def unsent_mark(self) -> int:
        """Bytes of the log that must be settled before the first of them may be sent."""
        return self._outbox.mark

    def deliver(self, replies: list[bytes]) -> None:
        """Send replies to requests that waited, once all that is appended now is settled."""
        deliveries = [reply.jobs for reply in replies if isinstance(reply, DeliveringReply)]
        self._outbox.put(b"".join(replies), deliveries, pushed=True)

    def has_notifications(self) -> bool:
        """Whether the client has subscribed to a change, and may be notified now."""
        return self._stage not in _REPLIES_OWED and self._is_notified(self)

    def missing_notifications(self, unreadable: Unreadable = ALL_READABLE) -> Missing | None:
        """Return values to be read before the next notifications, except reads that failed."""
        return missing_notifications(self._engine.context, self, unreadable)

    def tell(self, now: int, unreadable: Unreadable = ALL_READABLE) -> bool:
        """Put some notifications into the outbox, if it is empty; return whether it did.

        Notifications carry the current value, not the value at the time of the change.
        """
        if self._outbox.pieces or not self.has_notifications():
            return False
        data = self._engine.notifications.pop(self, now, unreadable)
        if data:
            self._outbox.put(data)
        return bool(data)

    # --- the end --------------------------------------------------------------------------------

    def _close(self, _now: int) -> Step:
        self._stage = Stage.CLOSED
        return CLOSE

    def stop_receiving(self) -> None:
        """Take no more from the client, while the session waits for RECEIVE."""
        self.receiving_since = NEVER
        if not self._abandoned:
            self._ended = True

    def abandon(self, sentence: str, code: str) -> None:
        """End the wait for the rest of a request: the next step sends an error, and closes."""
        self._connection.abandon(sentence, code)
        self._abandoned = True
        if self._stage is _SHARED:
            self._stage = _ANSWERED
        self.account.hold(-self.partial_bytes)
        self.partial_bytes = 0

    def refuse_request(self) -> None:
        """Send the client an error: there is no room for the rest of its request."""
        self._shared.connections_closed[CloseReason.NO_ROOM] += 1
        self.abandon("connections hold max-inflight bytes; send it again later", "busy")

    def refuse(self, now: int) -> None:
        """Send the client an error: there are too many clients."""
        self._outbox.put(
            encode_error(0, now, f"{ErrorCode.BUSY} the daemon has max-connections clients")
        )

    def disconnect(self) -> None:
        """Clean up in the engine: cancel waiting NEXTs, release locks, end subscriptions."""
        self._engine.end_session(self)
        self._shared.wake_tasks()

    def end(self) -> None:
        """Clean up after a closed connection: release undelivered work, memory, and room."""
        self.disconnect()
        self._outbox.withdraw()
        if self.room.granted:
            self.room.leave()
        self.account.close()
        self.receiving_since = self.sending_since = NEVER


ADVANCE: dict[int, Callable[[Session, int], Step]] = {
    Stage.READ: Session._read,
    Stage.IDLE: Session._read,
    Stage.FLUSHED: Session._flushed,
    Stage.MATCHED: Session._receive,
    Stage.QUEUED: Session._wait_turn,
    Stage.ADMITTED: Session._begin_turn,
    Stage.LEFT: Session._handle_left,
    Stage.HANDLE: Session._handle_rest,
    Stage.RESUME: Session._resume,
    Stage.YIELD: Session._yield,
    Stage.LONGER: Session._begin_longer,
    Stage.VALUES_READ: Session._handle_again,
    Stage.SCANNED: Session._end_longer,
    Stage.BY_SERVER: Session._ask_server,
    Stage.REFUSED: Session._penalise,
    Stage.DELAYED: Session._refuse,
    Stage.ANSWERED: Session._end_turn,
    Stage.SHARED: Session._end_turn,
    Stage.CLOSED: Session._close,
}
"""Method that advances from each stage."""
