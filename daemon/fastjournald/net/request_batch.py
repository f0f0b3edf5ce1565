"""Batch of requests: those that came together, and how far they have been carried out. Pure.

The way of a batch, each line a step that the transport carries out (``net.session_steps``):

    handle ... handle        the engine applies requests and appends their records
    COMMIT                   the records get durable, then the replies leave

In between it may wait, with what is left: for a scan, a snapshot, values from the disk, room in the
log, others' turns, or because a token was wrong. The state is the method that goes on afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import TypeAlias

import msgspec

from fastjournal import limits
from fastjournal.protocol import SUCCESS_BYTES, Function, Request
from fastjournald.admission.log_growth import LogRoom, WriterQueue, bytes_of
from fastjournald.admission.memory_budget import MemoryAccount, MemoryBudget
from fastjournald.admission.turn_budget import Share, TurnBudget
from fastjournald.engine.context import Context
from fastjournald.engine.engine import BULK_HANDLERS, Engine, Missing, Scan
from fastjournald.engine.prefetch import missing_soon
from fastjournald.engine.undelivered import DeliveredJobs, DeliveringReply
from fastjournald.histogram import Latencies
from fastjournald.net.outbox import Log, Outbox
from fastjournald.net.session_steps import (
    COMMIT,
    PASS_ON,
    PENALTY,
    ReadValues,
    RunScan,
    Step,
    TakeSnapshot,
    WaitRoom,
)
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Unreadable


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Engine, log, budgets and counters."""

    engine: Engine
    log: Log
    memory: MemoryBudget
    turns: TurnBudget
    backpressure: WriterQueue
    connections_closed: Counter[str]
    protocol_errors: Counter[str]
    latencies: Latencies
    after_requests: Callable[[int], None]
    """Called when requests have set signals, or have made the log grow by much."""
    wake_tasks: Callable[[], None]
    release_undelivered: Callable[[list[DeliveredJobs]], None]


class ValueReads:
    """Reads for one request after the other.

    Args:
        context: Context of the engine.
    """

    __slots__ = ("_context", "_had", "unreadable")

    def __init__(self, context: Context) -> None:
        self.unreadable: dict[bytes, str] = {}
        """Reads that failed."""
        self._context = context
        self._had: dict[Entry, None] = {}
        """Entries whose values were read."""

    def step(self, missing: Missing, ahead: list[Request]) -> ReadValues:
        """Return the step that reads what is missing, and what the requests ahead will need."""
        place = missing.entries[0].state
        # but for what others took meanwhile
        self._had = {entry: None for entry in self._had if entry.state == place}
        in_vain = any(entry in self._had for entry in missing.entries)
        soon = missing_soon(self._context, missing, ahead)
        return ReadValues(soon, self._had if in_vain else ())

    def note(self, missing: Missing) -> None:
        """Note which of the values are in memory now."""
        for entry in missing.entries:
            if isinstance(entry.value, bytes):
                self._had[entry] = None

    def clear(self) -> None:
        """End the reads of a request: it was carried out."""
        self.unreadable, self._had = {}, {}


_QUIT = int(Function.QUIT)
_SNAPSHOT = int(Function.SNAPSHOT)
_AUTH = int(Function.AUTH)

_State: TypeAlias = "Callable[[RequestBatch, Hashable, int], Step | None]"


class RequestBatch:
    """Requests of one client, one batch after the other.

    Args:
        shared: Engine, log and budgets.
        outbox: Gets the replies.
        account: Counts what the requests hold.
        share: Account of the client's turns.
    """

    def __init__(
        self, shared: Shared, outbox: Outbox, account: MemoryAccount, share: Share
    ) -> None:
        self.mark = 0
        """Bytes of the log that have to be settled before the replies may leave."""
        self.arrived = 0.0
        """Begin of the turn in which the requests were received. The session notes it."""
        self.unknown = shared.engine.context.grants is not None
        """AUTH has not succeeded so far, and has to."""
        self.quit = False
        """The client has ended the connection, or has shown too many wrong tokens."""
        self._shared = shared
        self._engine = shared.engine
        self._signals = shared.engine.signals
        self._outbox = outbox
        self._account = account
        self._share = share
        self._next: _State | None = None
        """None: all was carried out."""
        self._requests: list[Request] = []
        self._at = 0
        """Number of the request that is next."""
        self._bulk_from = 0
        """Number of the request from which on a bulk may be tried."""
        self._bulk_misses = 0
        """Bulks since the last that was of use."""
        self._bytes = 0
        """Bytes of the requests in memory."""
        self._held = 0
        """Those that are counted, because some of the requests wait."""
        self._replies: list[bytes] = []
        """Replies that are not in the outbox so far."""
        self._deliveries: list[DeliveredJobs] = []
        """Work that they deliver."""
        self._reply_room = 0
        """Bytes of replies until they have to be sent."""
        self._latencies = shared.latencies
        self._function = 0
        """Function of the requests that were answered last, for their latency."""
        self._answered = 0
        """Number of them."""
        self._answered_before: list[tuple[int, int]] = []
        """Functions and numbers of those before them, since the last commit."""
        self._room = LogRoom(shared.backpressure, account, shared.engine.store.find)
        self._then: _State = RequestBatch._handle
        """State behind the wait for room in the log."""
        self._refusal = b""
        """Answer to a wrong token, which takes its time."""
        self._longer: Missing | Scan | None = None
        """Reason why the next request takes longer."""
        self._reads = ValueReads(shared.engine.context)
        """Values that are read for it."""

    def begin(self, session: Hashable, requests: list[Request], size: int, now: int) -> Step | None:
        """Carry out requests; return what has to be waited for.

        Args:
            session: Key of the session in the engine.
            requests: At least one.
            size: Their bytes.
            now: The present.
        """
        self._requests = requests
        self._at = self._bulk_from = self._bulk_misses = 0
        self._bytes = size + len(requests) * limits.REQUEST_OBJECT_BYTES
        self._reply_room = limits.REPLIES_BYTES_MAX
        if self._shared.backpressure.closed and self._room.lacks(requests):
            return self._wait_room(size, RequestBatch._handle)
        return self._handle(session, now)

    def next_step(self, session: Hashable, now: int) -> Step | None:
        """Go on when the last step was carried out; None: the batch is done."""
        return None if self._next is None else self._next(self, session, now)

    def take_reply(self, reply: bytes) -> None:
        """Take the reply for which RunScan or TakeSnapshot waited."""
        self._replies.append(reply)
        if isinstance(reply, DeliveringReply):
            self._deliveries.append(reply.jobs)

    def values_read(self, unreadable: Unreadable) -> None:
        """Take note that the values of ReadValues were read, but for those that could not be."""
        self._reads.unreadable.update(unreadable)

    def committed(self) -> None:
        """Let other writers go on: what was carried out so far is in the log."""
        if self._room.granted:
            self._room.leave(self._requests[self._at :])

    def close(self) -> None:
        """Let other writers go on: the connection has ended."""
        if self._room.granted:
            self._room.leave()

    # --- in the order of a request's way --------------------------------------------------------

    def _handle(self, session: Hashable, now: int) -> Step | None:
        """Carry out the requests that are left, until one of them has to wait for something."""
        engine, requests, replies = self._engine, self._requests, self._replies
        handle, store = engine.handle, engine.store
        if self._shared.memory.scarce:
            self._reply_room = min(self._reply_room, limits.SCARCE_BYTES)
        work_over = self._share.began + self._shared.turns.slice_work
        at, end = self._at, len(requests)
        while at < end:
            request = requests[at]
            function = request.function
            if (
                self._bulk_from <= at < end - 1
                and requests[at + 1].function == function
                and function in BULK_HANDLERS
                and (done := self._handle_bulk(session, at, work_over, now))
            ):
                at += done
                if function != self._function:
                    self._count_function(function)
                self._answered += done
            else:
                at += 1
                if function == _SNAPSHOT:
                    self._at = at
                    return self._commit(now, RequestBatch._take_snapshot)
                reply = handle(session, request, now)
                if reply is None:
                    # it waits for work
                    continue
                if type(reply) is not bytes:
                    if isinstance(reply, DeliveringReply):
                        self._deliveries.append(reply.jobs)
                    elif not isinstance(reply, bytes):
                        self._at = at - 1
                        self._longer = reply
                        return self._commit(now, RequestBatch._begin_longer)
                replies.append(reply)
                if function != self._function:
                    self._count_function(function)
                self._answered += 1
                self._reply_room -= len(reply)
                if function == _QUIT:
                    self.quit = True
                    break
                if function == _AUTH and self._is_refused(session):
                    self._at = at
                    self._refusal = replies.pop()
                    return self._commit(now, RequestBatch._penalise)
            if self._reply_room < 0 or store.work > work_over:
                self._at = at
                return self._pause(session, now)
        return self._commit(now, None)

    def _handle_bulk(self, session: Hashable, at: int, work_over: int, now: int) -> int:
        """Carry out requests from ``at`` on that are alike together, if any; return how many.

        A bulk of none or one is dearer than a request alone. So the next one is tried twice as far
        away each time: a window of SETs that move entries, not one of which is new, tries few.
        """
        work = max(work_over - self._engine.store.work, 0)
        # the last one may begin as long as there is room and work left for a part of it
        number = 1 + min(work // limits.REQUEST_WORK, self._reply_room // SUCCESS_BYTES)
        replies = self._engine.handle_bulk(session, self._requests, now, at, at + number)
        self._replies += replies
        self._reply_room -= SUCCESS_BYTES * len(replies)
        if len(replies) > 1:
            self._bulk_misses = 0
        else:
            self._bulk_misses += 1
            self._bulk_from = at + (1 << self._bulk_misses)
        return len(replies)

    def _pause(self, session: Hashable, now: int) -> Step:
        """Send the replies, where they are many, or let others have their turn."""
        if self._reply_room < 0:
            return self._commit(now, RequestBatch._go_on)
        if self._shared.backpressure.closed and not self._room.granted:
            return self._commit(now, RequestBatch._wait_and_pass_on)
        return self._pass_on(session, now)

    def _pass_on(self, _session: Hashable, now: int) -> Step:
        self._put_replies(now)
        self._hold_requests()
        self._next = RequestBatch._handle_rest
        return PASS_ON

    def _handle_rest(self, session: Hashable, now: int) -> Step | None:
        """Go on behind a wait in which the log may have become far too large."""
        if self._lacks_room():
            return self._commit(now, RequestBatch._go_on)
        return self._handle(session, now)

    def _wait_and_pass_on(self, session: Hashable, now: int) -> Step:
        return self._wait_rest(RequestBatch._pass_on) or self._pass_on(session, now)

    def _go_on(self, session: Hashable, now: int) -> Step | None:
        """Go on with the requests that are left, when there is room in the log for them."""
        return self._wait_rest(RequestBatch._resume) or self._resume(session, now)

    def _resume(self, session: Hashable, now: int) -> Step | None:
        self._share.began = self._engine.store.work
        self._reply_room = limits.REPLIES_BYTES_MAX
        return self._handle(session, now)

    def _count_function(self, function: int) -> None:
        """Count answers to requests of this function from here on."""
        if self._answered:
            self._answered_before.append((self._function, self._answered))
        self._function, self._answered = function, 0

    # --- replies --------------------------------------------------------------------------------

    def _put_replies(self, now: int) -> None:
        shared = self._shared
        shared.turns.charge(self._share)
        if self._replies:
            # they leave together, and with those that follow before the commit
            self._outbox.put(b"".join(self._replies), self._deliveries)
            self._replies.clear()
            if self._deliveries:
                self._deliveries = []
        if self._signals.bits or shared.log.appended >= shared.backpressure.look_at:
            shared.after_requests(now)

    def _commit(self, now: int, then: _State | None) -> Step:
        """Wait until all that was appended is durable, send the replies, and go on; None: end."""
        if then is None:
            # not held any more while the last replies are on their way
            self._requests = []
            if self._held:
                self._account.hold(-self._held)
                self._held = 0
        else:
            self._hold_requests()
        self._put_replies(now)
        self.mark = mark = self._shared.log.appended
        if self._answered:
            answered = self._latencies.answered
            if self._answered_before:
                answered.extend((mark, self.arrived, *each) for each in self._answered_before)
                self._answered_before.clear()
            answered.append((mark, self.arrived, self._function, self._answered))
            self._answered = 0
        self._next = then
        return COMMIT

    # --- requests that take longer --------------------------------------------------------------

    def _take_snapshot(self, _session: Hashable, _now: int) -> Step:
        self._count_function(_SNAPSHOT)
        self._answered = 1
        self._next = RequestBatch._go_on
        return TakeSnapshot(self._requests[self._at - 1])

    def _begin_longer(self, session: Hashable, now: int) -> Step | None:
        return self._wait_rest(RequestBatch._take_longer) or self._take_longer(session, now)

    def _take_longer(self, _session: Hashable, _now: int) -> Step:
        """Wait for a scan, or for values, together with those that the requests ahead will need."""
        longer = self._longer
        if isinstance(longer, Scan):
            self._next = RequestBatch._end_longer
            self._count_function(longer.request.function)
            self._answered = 1
            return RunScan(longer)
        assert longer is not None
        self._next = RequestBatch._ask_again
        ahead = self._requests[self._at + 1 : self._at + limits.READ_AHEAD]
        return self._reads.step(longer, ahead)

    def _ask_again(self, session: Hashable, now: int) -> Step | None:
        """Carry out a request whose values were read."""
        assert isinstance(self._longer, Missing)
        self._reads.note(self._longer)
        request = self._requests[self._at]
        reply = self._engine.handle(session, request, now, self._reads.unreadable)
        if isinstance(reply, Missing | Scan):
            self._longer = reply
            return self._take_longer(session, now)
        if reply is not None:
            self.take_reply(reply)
            self._count_function(request.function)
            self._answered = 1
        return self._end_longer(session, now)

    def _end_longer(self, session: Hashable, now: int) -> Step | None:
        self._longer = None
        self._reads.clear()
        self._at += 1
        self._share.began = self._engine.store.work
        # all replies before this one have left
        self._reply_room -= sum(map(len, self._replies))
        if self._reply_room < 0:
            return self._pause(session, now)
        return self._handle_rest(session, now)

    def _hold_requests(self) -> None:
        """Count the requests: some of them wait while others have their turn."""
        if not self._held:
            self._held = self._bytes
            self._account.hold(self._held)

    # --- waits ----------------------------------------------------------------------------------

    def _wait_rest(self, then: _State) -> Step | None:
        """Wait with the requests that are left while the log is far too large; None: it is not."""
        if not self._lacks_room():
            return None
        return self._wait_room(bytes_of(self._requests[self._at :]), then)

    def _lacks_room(self) -> bool:
        """Whether requests are left that have to wait while the log is far too large."""
        closed = self._shared.backpressure.closed
        return closed and self._room.lacks(self._requests[self._at :])

    def _wait_room(self, size: int, then: _State) -> Step:
        """Wait, holding what was decoded."""
        self._room.ask(size, len(self._requests) - self._at)
        self._then = then
        self._next = RequestBatch._enter
        return WaitRoom(size)

    def _enter(self, session: Hashable, now: int) -> Step | None:
        self._room.enter()
        return self._then(self, session, now)

    def _is_refused(self, session: Hashable) -> bool:
        """Whether a client has shown a wrong token just now."""
        grants = self._engine.context.grants
        if grants is None:
            return False
        self.unknown = session not in grants.sessions
        return self.unknown

    def _penalise(self, session: Hashable, _now: int) -> Step:
        """Delay the answer, so that tokens cannot be guessed fast."""
        self.quit = self._engine.context.auth_failures[session] >= limits.AUTH_FAILURES_MAX
        self._next = RequestBatch._refuse
        return PENALTY

    def _refuse(self, session: Hashable, now: int) -> Step | None:
        self._replies.append(self._refusal)
        return self._commit(now, None) if self.quit else self._go_on(session, now)
