"""Engine: the state machine, a pure function of state, request and clock; notifications.

    session -> Engine.handle -> handler (by function) -> context: store + tables -> journal

Nothing here awaits, reads a clock or accesses a file. The order of application is the order of the
log, and the same requests at the same instants give the same state, replies and records.

Notifications of LISTEN are matches of changes with subscriptions. A notification carries the value
at the time when it is built, not at the time of the change. Like a reply, it may be sent once
everything appended until then is durable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from fastjournal.cmdlog.recovery.replayed_entry import BeganAhead
from fastjournal.limits import (
    ADVANCE_WORK_MAX,
    CHANGES_STOP_BYTES,
    MATCH_STEPS_MAX,
    NOTIFICATIONS_TURN_BYTES,
    PAUSE_RESERVE_BYTES,
    REQUEST_WORK,
    SCAN_LEASES_MAX,
    SERVE_WORK_MAX,
)
from fastjournal.protocol import (
    ErrorCode,
    Pair,
    Reply,
    Request,
    encode_error,
    encode_reply,
    encode_reply_to,
    encode_success,
    encode_success_of,
    encode_successes,
)
from fastjournald.engine.authorization import AUTH_REQUIRED, Grant, Grants
from fastjournald.engine.context import (
    DATA,
    LISTEN,
    META,
    READ_ONLY,
    Context,
    Settings,
    new_journal,
)
from fastjournald.engine.deadlines import ClockSteps, Deadlines, MovedEnds
from fastjournald.engine.dispatcher import Answer, Dispatcher
from fastjournald.engine.handlers.scan.scan import Scan
from fastjournald.engine.handlers.table import BULK_HANDLERS, HANDLERS, VALUE_HANDLERS
from fastjournald.engine.invariants import check_store
from fastjournald.engine.key_filter import LongMatches
from fastjournald.engine.pubsub.subscriptions import TOO_COSTLY
from fastjournald.engine.undelivered import DeliveredJobs, release_undelivered
from fastjournald.engine.value_memory import missing_notifications
from fastjournald.tables.domain import NEVER
from fastjournald.tables.entry import Cold, Entry
from fastjournald.tables.signals import TIMER
from fastjournald.tables.value_cache import ALL_READABLE, Missing, Unreadable
from fastjournald.wal.journal import Journal


class Notifications:
    """Maker of notifications.

    Args:
        context: Subscriptions, entries and rights.
    """

    def __init__(self, context: Context) -> None:
        self.sent = 0
        """Notifications made so far."""
        self._context = context
        self._store = context.store
        self._subscriptions = context.subscriptions

    @property
    def unmatched(self) -> int:
        """How many changed keys have to be matched with subscriptions still. O(1)."""
        return self._subscriptions.unmatched()

    @property
    def behind(self) -> bool:
        """Whether so many wait to be matched that no more should change for now. O(1).

        Subscriptions that cost too much have ended before: there was no time to match at all.
        """
        return self._store.changes.bytes > CHANGES_STOP_BYTES

    def match(self, idle_us: int = 0) -> tuple[list[Hashable], list[Hashable]]:
        """Match some of the changed keys with subscriptions; call it while there are ``unmatched``.

        Args:
            idle_us: Microseconds for which the daemon had nothing to do so far.

        Returns:
            Sessions that have notifications and had none before, and slow consumers: their
            subscriptions have ended, and their connection has to.
        """
        may_know = None if self._context.grants is None else self._may_know
        steps = self._subscriptions.steps
        spare_us = idle_us + self._store.work - steps - REQUEST_WORK * self.sent
        found = self._subscriptions.match(MATCH_STEPS_MAX, may_know, spare_us)
        self._store.work += self._subscriptions.steps - steps
        return found

    def _may_know(self, session: Hashable, key: bytes, owner: bytes | None) -> bool:
        """Whether a session may see the current or the former entry of a key."""
        grants = self._context.grants
        grant = None if grants is None else grants.sessions.get(session)
        if grant is None:
            return False
        if owner is not None and grant.covers_key(owner):
            return True
        entry = self._store.find(key)
        return entry is not None and grant.covers(entry)

    def has_notifications(self, session: Hashable) -> bool:
        """Return whether a session has pending notifications. O(1)."""
        return self._subscriptions.has_notifications(session)

    def pop(self, session: Hashable, now: int, unreadable: Unreadable = ALL_READABLE) -> bytes:
        """Return notifications for a session, a turn's worth; empty: there are none.

        It ends where a value is on disk only: ``missing_notifications`` asks for that. Where the
        read of it has failed, and so it is ``unreadable``, the notification says so.
        """
        context, subscriptions = self._context, self._subscriptions
        now = max(now, context.now)
        notifications: list[bytes] = []
        room = NOTIFICATIONS_TURN_BYTES
        evicts = self._store.values is not None
        while room > 0 and (ended := subscriptions.next_ended(session)) is not None:
            data = encode_reply(Reply(ended, LISTEN, now, error=TOO_COSTLY))
            room -= len(data)
            notifications.append(data)
        while room > 0:
            if evicts and missing_notifications(context, session, unreadable, 1) is not None:
                break
            pending = subscriptions.next_notification(session)
            if pending is None:
                break
            data = encode_reply(self._notification(session, *pending, now, unreadable))
            room -= len(data)
            notifications.append(data)
        self.sent += len(notifications)
        self._store.work += REQUEST_WORK * len(notifications)
        return b"".join(notifications)

    def _notification(
        self, session: Hashable, identifier: int, key: bytes, now: int, unreadable: Unreadable
    ) -> Reply:
        """Return the notification of the current value of a key."""
        store = self._store
        entry = store.find(key)
        reply = Reply(identifier, LISTEN, now)
        if entry is None or not self._context.may_see(session, entry):
            reply.error = ErrorCode.NOT_FOUND
            reply.pairs = [Pair(key)]
        elif isinstance(entry.value, Cold):
            reply.error = f"{ErrorCode.NOT_READABLE} {unreadable[entry.job_id]}"
            reply.pairs = [store.pair(entry, key, META, now)]
        else:
            reply.pairs = [store.pair(entry, key, DATA | META, now)]
        return reply


__all__ = ["BULK_HANDLERS", "Engine", "LongMatches", "Missing", "Scan", "Settings", "new_journal"]


class Engine:
    """The state machine: carries out requests and deadlines.

    Args:
        settings: Bounds and defaults.
        journal: Write-ahead log of the changes of persistent entries; None: there is no log.
    """

    def __init__(self, settings: Settings | None = None, journal: Journal | None = None) -> None:
        self.context = context = Context(settings, journal)
        """State that handlers read and change."""
        self.store = context.store
        self.journal = context.journal
        self.signals = context.store.signals
        self.waiters = context.waiters
        self.subscriptions = context.subscriptions
        self.counters = context.counters
        self.deadlines = Deadlines(context.store, context.jobs)
        self._clock_steps = ClockSteps(context.store, context.jobs, context.waiters)
        self.dispatcher = Dispatcher(context)
        self.notifications = Notifications(context)
        self._requests = context.counters.requests

    @property
    def now(self) -> int:
        """Latest instant passed to the engine; only ``clock_stepped`` decreases it."""
        return self.context.now

    # --- requests -------------------------------------------------------------------------------

    def handle(
        self,
        session: Hashable,
        request: Request,
        now: int,
        unreadable: Unreadable = ALL_READABLE,
    ) -> bytes | Scan | Missing | None:
        """Carry out one request.

        Args:
            session: Key of the session, one per connection.
            request: The decoded request.
            now: The daemon's clock; an instant before the last one counts as the last one.
            unreadable: On a retry after missing values: the reads that failed.

        Returns:
            The encoded reply (for QUIT with those of its waiting requests), or a
            ``DeliveringReply`` if it delivers work. None: the request waits for work, and
            ``serve_waiters`` answers it. A GET of many keys is a ``Scan``: call ``step`` until that
            returns the reply. ``Missing``: values are only on disk, and nothing was done, except
            that NEXT may have buried entries whose values cannot be read. Call ``fill_value`` for
            the entries and repeat the request at once, with the reads that failed.
        """
        context, store, signals = self.context, self.store, self.signals
        if now != context.now:
            now = self._tick(now)
        store.work += REQUEST_WORK
        if now >= signals.deadline and not self.deadlines.behind:
            self.deadlines.advance(now, ADVANCE_WORK_MAX)
        function = request.function
        if context.grants is not None and (
            why_not := context.grants.check(store, session, request)
        ):
            return self._refused(request, why_not)
        try:
            handler = HANDLERS[function]
        except KeyError:
            return self._refused(request, ErrorCode.UNKNOWN_FUNCTION)
        self._requests[function] += 1
        if unreadable:
            outcome = VALUE_HANDLERS[function](context, session, request, now, unreadable)
        else:
            outcome = handler(context, session, request, now)
        if isinstance(outcome, str):
            if outcome:
                self.counters.count_error(function, outcome)
                return encode_error(request.identifier, now, outcome)
            return encode_success(request.identifier, now)
        if isinstance(outcome, bytes):
            return outcome
        if isinstance(outcome, Reply):
            return encode_reply_to(request.identifier, outcome, now)
        if isinstance(outcome, Missing):
            # the request is repeated
            self._requests[function] -= 1
        return outcome

    def handle_bulk(
        self,
        session: Hashable,
        requests: list[Request],
        now: int,
        start: int = 0,
        stop: int | None = None,
    ) -> list[bytes]:
        """Carry out the first requests of a session as a bulk, if that is cheaper.

        Requests after the first one that is not carried out are not examined: the cost is small,
        even if many requests wait.

        Args:
            session: As for ``handle``. Its rights are checked once, for the first request.
            requests: Decoded requests, the first ones of one function.
            now: As for ``handle``.
            start: Index of the first.
            stop: Index after the last that may be carried out; None: all.

        Returns:
            The encoded replies of the requests that were carried out; may be empty.
        """
        context = self.context
        function = requests[start].function
        if function not in BULK_HANDLERS:
            return []
        grant = None
        if context.grants is not None:
            grant = context.grants.of_run(session, requests[start])
            if grant is None:
                return []
        end = len(requests) if stop is None else min(stop, len(requests))
        number = self._carry_out_bulk(function, requests, start, end, grant, now)
        return self._successes(requests, start, number)

    def handle_together(
        self, requests: list[Request], grant: Grant | None, now: int, start: int
    ) -> list[bytes]:
        """Carry out requests of several sessions as a bulk; ``handle_bulk`` does it for one.

        Args:
            requests: Decoded requests, all of one function with a bulk handler.
            grant: Grant of all these sessions, which covers each request; None: no authorization.
            now: As for ``handle``.
            start: Index of the first.
        """
        function = requests[start].function
        number = self._carry_out_bulk(function, requests, start, len(requests), grant, now)
        return self._successes(requests, start, number)

    def _successes(self, requests: list[Request], start: int, number: int) -> list[bytes]:
        """Return the replies to the requests of a bulk."""
        done = requests[start : start + number]
        replies = encode_successes(done, self.now)
        replacing = self.context.replacing
        if replacing:
            for place in replacing:
                replies[place] = encode_success_of(done[place].identifier, self.now, 1)
            replacing.clear()
        return replies

    def _carry_out_bulk(
        self,
        function: int,
        requests: list[Request],
        start: int,
        stop: int,
        grant: Grant | None,
        now: int,
    ) -> int:
        """Pass requests to a bulk handler; return how many it carried out."""
        now = self._tick(now)
        self._advance_if_due(now)
        if grant is not None and grant.covers_everything:
            grant = None
        number = BULK_HANDLERS[function](self.context, requests, start, stop, now, grant)
        self.store.work += REQUEST_WORK * number
        self._requests[function] += number
        return number

    def _refused(self, request: Request, error: str) -> bytes:
        self.counters.count_refused(request.function, error)
        return encode_error(request.identifier, self.now, error)

    def refusal(
        self, session: Hashable, request: Request, now: int, *, takes_space: bool = True
    ) -> bytes | None:
        """Return the error reply to a request that the server may not carry out; None: it may.

        Args:
            session: The asker.
            request: The request.
            now: The daemon's clock.
            takes_space: What it asks for takes space or inodes of the disk.
        """
        self._tick(now)
        grants = self.context.grants
        if grants is not None and (why_not := grants.check(self.store, session, request)):
            return self._refused(request, why_not)
        if takes_space and self.context.read_only:
            return self._refused(request, READ_ONLY)
        return None

    def step(
        self, scan: Scan, now: int, unreadable: Unreadable = ALL_READABLE
    ) -> bytes | Missing | LongMatches | None:
        """Continue a scan: bounded work, a millisecond or one long match.

        Args:
            scan: The result of ``handle``.
            now: The daemon's clock; an instant before the last one counts as the last one.
            unreadable: After a step with missing values: the reads that failed.

        Returns:
            The encoded reply, or a ``DeliveringReply`` if it leases. None: call again. ``Missing``:
            values to read before the next call. ``LongMatches``: matches to ``run`` before it.
        """
        now = self._tick(now)
        self._advance_if_due(now)
        outcome = scan.step(self.context, now, unreadable)
        if isinstance(outcome, str):
            self.end(scan, outcome)
            return encode_error(scan.request.identifier, now, outcome)
        return outcome

    def end(self, scan: Scan, error: str) -> None:
        """End a scan with an error reply, and undo its subscription."""
        self.counters.count_error(scan.request.function, error)
        release_undelivered(self.context.jobs, scan.leased, SCAN_LEASES_MAX, self.now)
        if scan.request.flags & LISTEN:
            self.subscriptions.end(scan.session, scan.request.identifier)

    def release_undelivered(
        self, deliveries: list[DeliveredJobs], number_max: int, now: int
    ) -> list[DeliveredJobs]:
        """Release the leases of unsent replies, at most ``number_max`` entries; return the rest."""
        return release_undelivered(self.context.jobs, deliveries, number_max, self._tick(now))

    # --- sessions -------------------------------------------------------------------------------

    def expects(self, session: Hashable) -> bool:
        """Return whether the connection still gets replies or notifications. O(1)."""
        return (
            self.waiters.count_of(session) > 0
            or self.subscriptions.has(session)
            or self.store.locks.count_of(session) > 0
        )

    def end_session(self, session: Hashable) -> None:
        """Clean up a closed connection: cancel its waiting NEXTs, release its locks."""
        context, store = self.context, self.store
        context.auth_failures.pop(session, None)
        context.client_names.pop(session, None)
        if context.grants is not None:
            context.grants.sessions.pop(session, None)
        self.dispatcher.end_waits(session)
        store.leases.end_session(session)
        if store.unlock_all(session, self.now):
            # waiting NEXTs may get the unlocked entries
            self.signals.wake_at(self.now)
        store.work += self.subscriptions.end_all(session)

    def replace_grants(self, grants: Grants, now: int) -> tuple[list[Hashable], list[Answer]]:
        """Replace the access tokens.

        Returns:
            The sessions whose token is no longer valid, or has other rights: they must authenticate
            again. And the replies to their waiting requests.
        """
        now = self._tick(now)
        context = self.context
        ended = [] if context.grants is None else grants.adopt(context.grants)
        context.grants = grants
        answers: list[Answer] = []
        for session in ended:
            waiting = self.waiters.of_session(session)
            answers += self.dispatcher.refuse(waiting, AUTH_REQUIRED, now)
            self.store.unlock_all(session, now)
            self.subscriptions.end_all(session)
        return ended, answers

    # --- time and waiting -----------------------------------------------------------------------

    def _tick(self, now: int) -> int:
        """Store the instant; return the one that counts."""
        context = self.context
        if now <= context.now:
            return context.now
        context.now = now
        return now

    def _advance_if_due(self, now: int) -> None:
        if now >= self.signals.deadline and not self.deadlines.behind:
            self.deadlines.advance(now, ADVANCE_WORK_MAX)

    def advance(self, now: int) -> None:
        """Apply deadlines up to ``now``, or a part of them if there are many."""
        self.deadlines.advance(self._tick(now), ADVANCE_WORK_MAX)

    def clock_stepped(self, now: int, step_us: int) -> MovedEnds:
        """Handle a clock step or a suspend of the machine: durations keep their length.

        Call it before passing an instant after the step: otherwise leases end too early. O(n), for
        leases or, if the clock was set back, for entries.

        Args:
            now: The daemon's clock after the step, in microseconds since the Unix epoch.
            step_us: Size of the step relative to a monotonic clock; negative: back.

        Returns:
            Number of durations whose end was moved.
        """
        context = self.context
        if step_us < 0:
            context.newest_us = max(context.newest_us, context.now)
            context.now = now
        return self._moved(self._clock_steps.step(max(now, context.now), step_us))

    def begin_anew(
        self, began: BeganAhead, written: Iterable[tuple[Entry, int]], now: int, newest_us: int
    ) -> MovedEnds:
        """Begin durations now that began in the future by the log (the clock was ahead).

        Args:
            began: From replay.
            written: Entries with a delay of RELEASE in their own record, and its time.
            now: The daemon's clock.
            newest_us: Instant of the newest record of the log, if it is in the future; else 0.

        Returns:
            Number of durations whose end was moved.
        """
        self.context.newest_us = newest_us
        return self._moved(self._clock_steps.begin_anew(began, written, self._tick(now)))

    def _moved(self, ends: MovedEnds) -> MovedEnds:
        self.context.ends_moved += ends.total()
        self.signals.deadline = self.deadlines.next_instant()
        self.signals.bits |= TIMER
        self.deadlines.behind = False
        return ends

    def next_wake(self) -> int | None:
        """Return the instant at which to advance and serve again; None: only after a request."""
        if self.dispatcher.has_more:
            # more waited than one pass serves
            return 0
        instant = min(self.signals.deadline, self.waiters.first_deadline())
        return None if instant == NEVER else instant

    def serve_waiters(self, now: int, unreadable: Unreadable = ALL_READABLE) -> list[Answer]:
        """Deliver ready entries to waiting NEXTs, and answer those whose wait has ended.

        If there are many, a part of them; ``next_wake`` then is due at once. Entries with evicted
        values are in ``dispatcher.awaited`` then, see there; ``unreadable`` has the failed reads.
        """
        if not self.waiters:
            return []
        now = self._tick(now)
        work_over = self.store.work + SERVE_WORK_MAX
        self._advance_if_due(now)
        return self.dispatcher.serve(now, work_over, unreadable)

    def resume(self, now: int) -> list[Answer]:
        """Deliver again after the engine was read-only."""
        self.context.read_only = False
        self.context.pause_room = PAUSE_RESERVE_BYTES
        self.store.scheduler.round_robin.serve_again()
        return self.serve_waiters(now)

    def shut_down(self, now: int) -> list[Answer]:
        """Answer all waiting requests, because the daemon stops; no request waits from now on."""
        self.context.stopping = True
        return self.dispatcher.shut_down(now)

    def check(self) -> None:
        """Assert every invariant. O(n log n), for tests."""
        check_store(self.store, self.now)
        assert self.signals.deadline <= self.deadlines.next_instant()
        newly_ready = self.store.scheduler.round_robin.newly_ready
        assert bool(self.waiters) == newly_ready.wanted
        assert newly_ready.wanted or not newly_ready.domains
        self.subscriptions.check()
