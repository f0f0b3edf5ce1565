"""The state machine: what a request does, as a pure function of state, request and clock.

    session -> Engine.handle -> handler (by function) -> state: store + indexes -> journal

Nothing here awaits, reads a clock or touches a file: the order of application is the order of the
log, and the same requests at the same instants give the same state, replies and records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from fastjournal.limits import (
    ADVANCE_WORK_MAX,
    CHANGES_STOP_BYTES,
    DOMAIN_WORK,
    HANG_UP_LOOK_WORK,
    MATCH_STEPS_MAX,
    NEWS_TURN_BYTES,
    READY_DOMAINS_MAX,
    REPLIES_BYTES_MAX,
    REQUEST_WORK,
    SCAN_LEASES_MAX,
    SERVE_WORK_MAX,
    SERVED_MAX,
    WAIT_END_WORK,
)
from fastjournal.protocol import (
    ErrorCode,
    Pair,
    Reply,
    Request,
    encode_error,
    encode_reply,
    encode_success,
)
from fastjournald.engine.authorization import AUTH_REQUIRED, Grants
from fastjournald.engine.context import FUNCTIONS, UNKNOWN, Context, new_journal
from fastjournald.engine.handlers.arguments import DATA, LISTEN, META
from fastjournald.engine.handlers.get import pair_of, why_unreadable
from fastjournald.engine.handlers.table import HANDLERS, Scan, next_work, nothing_due
from fastjournald.engine.invariants import check_store
from fastjournald.engine.key_filter import LongMatches
from fastjournald.engine.prefetch import missing_news
from fastjournald.engine.pubsub.subscriptions import TOO_COSTLY
from fastjournald.engine.settings import Settings
from fastjournald.engine.undelivered import Handout, give_back
from fastjournald.tables.domain import NEVER, Domain
from fastjournald.tables.value_cache import Cold, Missing
from fastjournald.wal.journal import Journal

__all__ = ["Engine", "LongMatches", "Missing", "Scan", "Settings", "new_journal"]

Answer: TypeAlias = tuple[Hashable, bytes]


class Engine(Context):
    """The state, and what requests and time do to it.

    Args:
        settings: Bounds and defaults.
        journal: Where changes of persistent entries go; None: nowhere.
    """

    def __init__(self, settings: Settings | None = None, journal: Journal | None = None) -> None:
        super().__init__(settings, journal)
        self._now = 0
        self._parked: dict[bytes, Domain] = {}
        """By name, domains whose next work is awaited from the disk."""

    @property
    def now(self) -> int:
        """The latest instant that the engine was told: time never goes back in it."""
        return self._now

    # --- requests -------------------------------------------------------------------------------

    def handle(
        self, session: Hashable, request: Request, now: int
    ) -> bytes | Scan | Missing | None:
        """Carry out one request.

        Args:
            session: Whoever asked: stands for the connection.
            request: As decoded.
            now: The daemon's clock; earlier than the last one counts as the last one.

        Returns:
            The encoded reply (for QUIT also those of its waiting requests); None: the request
            waits for work, and ``serve_waiters`` will answer it. A GET of many keys is a scan:
            ``step`` it until that returns the reply. Where values are missing, nothing was done:
            ``Store.warm_up`` their entries and ask again, with nothing in between.
        """
        if now < self._now:
            now = self._now
        else:
            self._now = now
        store = self.store
        store.work += REQUEST_WORK
        if now >= store.wake and not store.behind:
            store.advance(now, ADVANCE_WORK_MAX)
        function = request.function
        if self.grants is not None and (why_not := self.grants.check(self.store, session, request)):
            return self._refused(request, why_not, now)
        handler = HANDLERS.get(function)
        if handler is None:
            return self._refused(request, ErrorCode.UNKNOWN_FUNCTION, now)
        self.requests[function] += 1
        outcome = handler(self, session, request, now)
        if store.values is not None and not isinstance(outcome, Missing):
            store.values.unreadable.clear()
        if isinstance(outcome, str):
            if outcome:
                self.count_error(function, outcome)
                return encode_error(request.identifier, now, outcome)
            return encode_success(request.identifier, now)
        if isinstance(outcome, Reply):
            return self.encode(outcome, request, now)
        if isinstance(outcome, Missing):
            # it is asked again
            self.requests[function] -= 1
        return outcome

    def _refused(self, request: Request, error: str, now: int) -> bytes:
        function = request.function if request.function in FUNCTIONS else UNKNOWN
        self.requests[function] += 1
        self.count_error(function, error)
        return encode_error(request.identifier, now, error)

    def may_snapshot(self, session: Hashable, request: Request, now: int) -> bytes | None:
        """Return the reply to a SNAPSHOT that the session may not take; None: it may."""
        if self.grants is not None and (why_not := self.grants.check(self.store, session, request)):
            return self._refused(request, why_not, now)
        return None

    def grant_anew(self, grants: Grants, now: int) -> tuple[list[Hashable], list[Answer]]:
        """Let other tokens count from here on.

        Returns:
            The sessions whose token counts no more, or gives something else: they are as before
            AUTH. And the replies to what these waited for.
        """
        ended = [] if self.grants is None else grants.adopt(self.grants)
        self.grants = grants
        answers = [
            self.answer(waiter, Reply(error=AUTH_REQUIRED), now)
            for session in ended
            for waiter in self.waiters.of_session(session)
        ]
        self.stop_watching()
        for session in ended:
            self.store.unlock_all(session, max(now, self._now))
            self.subscriptions.forget(session)
        return ended, answers

    def step(self, scan: Scan, now: int) -> bytes | Missing | LongMatches | None:
        """Carry on with a scan: bounded work, a millisecond or one long match.

        Args:
            scan: As ``handle`` returned it.
            now: The daemon's clock; earlier than the last one counts as the last one.

        Returns:
            The encoded reply; None: there is more to do; missing values, to be read before that;
            matches that take long, to be ``run`` before that.
        """
        now = self._now = max(now, self._now)
        store = self.store
        if now >= store.wake and not store.behind:
            store.advance(now, ADVANCE_WORK_MAX)
        outcome = scan.step(self, now)
        if store.values is not None and not isinstance(outcome, Missing):
            store.values.unreadable.clear()
        if isinstance(outcome, str):
            self.end(scan, outcome)
            return encode_error(scan.request.identifier, now, outcome)
        if isinstance(outcome, bytes) and self.handouts is not None:
            for token, entries in scan.leased:
                self.handouts.note(scan.session, token, entries)
        return outcome

    def end(self, scan: Scan, error: str) -> None:
        """A scan is answered with an error: nothing of what it asked for holds."""
        self.count_error(scan.request.function, error)
        give_back(self.store, scan.leased, SCAN_LEASES_MAX, self._now)
        if scan.request.flags & LISTEN:
            self.subscriptions.end(scan.session, scan.request.identifier)

    # --- time and waiting -----------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Apply what time has brought up to ``now``, or where that is much, a part of it."""
        self._now = max(now, self._now)
        self.store.advance(self._now, ADVANCE_WORK_MAX)

    def next_wake(self) -> int | None:
        """Return the instant at which to advance and serve again; None: only after a request."""
        if self.store.newly_ready and not self._awaits_enough():
            # more were waiting than are served in one go
            return 0
        instant = min(self.store.wake, self.waiters.first_deadline())
        return None if instant == NEVER else instant

    def serve_waiters(self, now: int) -> list[tuple[Hashable, bytes]]:
        """Hand out what is ready to those who wait for it, and answer those who waited enough.

        Where that are many, to a part of them; ``next_wake`` then tells that the rest waits. Whose
        values are on disk only is in ``awaited`` then: warm these up, clear it and serve again.
        Until then their domains are not looked at.
        """
        waiters = self.waiters
        answers: list[tuple[Hashable, bytes]] = []
        if not waiters:
            return answers
        store = self.store
        now = max(now, self._now)
        work_over = store.work + SERVE_WORK_MAX
        if now >= store.wake and not store.behind:
            self.advance(now)
        ready = store.newly_ready
        assert ready is not None
        if self._parked and not self.awaited:
            ready.extend(self._parked.values())
            self._parked.clear()
        if ready:
            if self.read_only:
                ready.clear()
            else:
                self._serve_ready(ready, now, answers, work_over)
        for waiter in waiters.overdue(now, SERVED_MAX):
            answers.append(self.answer(waiter, nothing_due(self, waiter.request), now))
        self.stop_watching()
        return answers

    def _serve_ready(
        self, ready: deque[Domain], now: int, answers: list[Answer], work_over: int
    ) -> None:
        """Answer who asked first, as long as one of the domains has something for somebody.

        Args:
            ready: The domains; those stay in it that may have something for more.
            now: The present.
            answers: Get the answers.
            work_over: With so much work done no more are answered.
        """
        store = self.store
        turns = store.turns
        room = REPLIES_BYTES_MAX
        looks = min(len(ready), READY_DOMAINS_MAX)
        store.work += DOMAIN_WORK * looks
        asked = [
            (waiter.serial, name)
            for name in {ready.popleft().name for _ in range(looks)}
            if name in turns and (waiter := self.waiters.first_for(name)) is not None
        ]
        heapify(asked)
        while asked:
            if room < 0 or len(answers) >= SERVED_MAX or store.work >= work_over:
                break
            serial, name = heappop(asked)
            waiter = self.waiters.first_for(name)
            if name not in turns or waiter is None:
                continue
            if waiter.serial == serial:
                store.work += HANG_UP_LOOK_WORK
                if self.has_hung_up(waiter.session):
                    self._end_waits(waiter.session)
                    waiter = self.waiters.first_for(name)
                    if waiter is not None:
                        heappush(asked, (waiter.serial, name))
                    continue
                reply = next_work(self, waiter.session, waiter.request, now)
                if isinstance(reply, Missing):
                    if self._awaits_enough():
                        heappush(asked, (serial, name))
                        break
                    self.awaited.update((entry.key, entry) for entry in reply.entries)
                    self._parked[name] = store.domains[name]
                    continue
                if not (reply.pairs or reply.error):
                    # the values of all that was ready cannot be read: it waits on
                    continue
                answer = self.answer(waiter, reply, now)
                answers.append(answer)
                waiter = self.waiters.first_for(name)
                room -= len(answer[1])
            if waiter is not None:
                heappush(asked, (waiter.serial, name))
        ready.extendleft(turns.named(name) for _, name in asked if name in turns)

    def _awaits_enough(self) -> bool:
        """Whether no more values should be awaited until some were read."""
        return (
            len(self.awaited) >= SERVED_MAX
            or sum(len(entry.value) for entry in self.awaited.values()) >= REPLIES_BYTES_MAX
        )

    def resume(self, now: int) -> list[tuple[Hashable, bytes]]:
        """Hand out again what stood still while the engine was read-only."""
        self.read_only = False
        if self.waiters:
            self.store.newly_ready = deque(self.store.turns)
        return self.serve_waiters(now)

    def forget(self, session: Hashable) -> None:
        """The connection is gone: nobody waits on it any more, and its locks end."""
        self.auth_failures.pop(session, None)
        if self.grants is not None:
            self.grants.sessions.pop(session, None)
        self._end_waits(session)
        if self.store.unlock_all(session, self._now):
            # whoever waits for work may get it now
            self.store.wake = min(self.store.wake, self._now)
        self.stop_watching()
        self.subscriptions.forget(session)

    def _end_waits(self, session: Hashable) -> None:
        waiting = self.waiters.of_session(session)
        self.store.work += WAIT_END_WORK * len(waiting)
        for waiter in waiting:
            self.waiters.remove(waiter)

    def give_back(self, handouts: list[Handout], number_max: int, now: int) -> list[Handout]:
        """Let work wait again whose replies were never sent: so many entries; return the rest."""
        self._now = max(now, self._now)
        return give_back(self.store, handouts, number_max, self._now)

    def shut_down(self, now: int) -> list[tuple[Hashable, bytes]]:
        """Tell all who wait that the daemon stops."""
        answers = [
            self.answer(waiter, Reply(error=ErrorCode.SHUTTING_DOWN), now)
            for waiter in self.waiters.all()
        ]
        self.stop_watching()
        return answers

    # --- notifications --------------------------------------------------------------------------

    @property
    def unmatched(self) -> int:
        """How many changed keys have to be matched with subscriptions still. O(1)."""
        return self.subscriptions.unmatched()

    @property
    def behind(self) -> bool:
        """Whether so many wait to be matched that no more should change for now. O(1).

        Subscriptions that cost too much have ended before: there was no time to match at all.
        """
        return self.store.changes.bytes > CHANGES_STOP_BYTES

    def match_changes(self) -> tuple[list[Hashable], list[Hashable]]:
        """Find out whom some of the changed keys concern; call it while there are ``unmatched``.

        Returns:
            Sessions that have news and had none before, and those that fell behind so far that
            their subscriptions ended and their connection has to.
        """
        may_know = None if self.grants is None else self._may_know
        steps = self.subscriptions.steps
        found = self.subscriptions.match(MATCH_STEPS_MAX, may_know)
        self.store.work += self.subscriptions.steps - steps
        return found

    def _may_know(self, session: Hashable, key: bytes, owner: bytes | None) -> bool:
        """Whether a session may see what stands under a key, or might see what stood there."""
        grant = None if self.grants is None else self.grants.sessions.get(session)
        if grant is None:
            return False
        if owner is not None and grant.covers_key(owner):
            return True
        entry = self.store.find(key)
        return entry is not None and grant.covers(entry)

    def has_news(self, session: Hashable) -> bool:
        """Return whether there is something to tell a session. O(1)."""
        return self.subscriptions.has_news(session)

    def tell(self, session: Hashable, now: int) -> bytes:
        """Return notifications for a session, with the state of this moment; empty: no news.

        Like a reply they may be sent once all that was appended until now is durable. It ends where
        a value is on disk only: ``missing_news`` asks for that.
        """
        notifications: list[bytes] = []
        room = NEWS_TURN_BYTES
        while room > 0 and (ended := self.subscriptions.take_ended(session)) is not None:
            data = encode_reply(Reply(ended, LISTEN, max(now, self._now), error=TOO_COSTLY))
            room -= len(data)
            notifications.append(data)
        while room > 0:
            if missing_news(self, session, 1) is not None:
                break
            news = self.subscriptions.take(session)
            if news is None:
                break
            identifier, key = news
            entry = self.store.find(key)
            reply = Reply(identifier, LISTEN, max(now, self._now))
            if entry is None or not self.may_see(session, entry):
                reply.error = ErrorCode.NOT_FOUND
                reply.pairs = [Pair(key)]
            elif isinstance(entry.value, Cold):
                reply.error = f"{ErrorCode.NOT_READABLE} {why_unreadable(self.store, entry)}"
                reply.pairs = [pair_of(self.store, entry, key, META, now)]
            else:
                reply.pairs = [pair_of(self.store, entry, key, DATA | META, now)]
            data = encode_reply(reply)
            room -= len(data)
            notifications.append(data)
        if self.store.values is not None:
            self.store.values.unreadable.clear()
        self.notifications += len(notifications)
        self.store.work += REQUEST_WORK * len(notifications)
        return b"".join(notifications)

    def check(self) -> None:
        """Assert every invariant. O(n log n), for tests."""
        check_store(self.store, self._now)
        assert self.store.wake <= self.store.next_instant()
        assert bool(self.waiters) == (self.store.newly_ready is not None)
        self.subscriptions.check()
