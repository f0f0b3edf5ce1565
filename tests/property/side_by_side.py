"""A subject and the naive model, asked the same: replies, pages and notifications are compared."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import msgspec

from fastjournal.protocol.constants import QUERY_MASK, QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Pair, Reply, Request
from tests.functions import LISTS
from tests.property.model import Model
from tests.property.subject import EngineSubject, comparable, compared_pairs, request

CURSOR = Query.CURSOR << QUERY_SHIFT
PAGES_MAX = 1000


class Asked(Protocol):
    """Subject that answers requests: the engine, or a daemon."""

    def handle(self, session: Hashable, request: Request, now: int) -> Reply | None: ...

    def tell(self, now: int) -> list[tuple[Hashable, Reply]] | None: ...


class SideBySide:
    """Both at one instant: that of the subject's reply."""

    def __init__(self, subject: Asked, model: Model) -> None:
        self.subject = subject
        self.model = model
        self.tokens: list[int] = []
        """Tokens of all leases so far."""
        self.leases: list[tuple[int, bytes]] = []
        """The same, with the first key of each."""
        self.set_back = False
        """Whether the clock was, ever."""

    def ask(self, session: Hashable, req: Request, now: int) -> Reply | None:
        """Ask for one reply, and compare it; of a list for all its pages."""
        if req.function in LISTS:
            self.scan(session, req, now, pages=PAGES_MAX)
            return None
        got = self.subject.handle(session, req, now)
        now = now if got is None else got.timestamp
        expected = self.model.handle(session, req, now)
        assert comparable(got) == comparable(expected), f"{req} at {now}"
        self._leased(got)
        self.settle(now)
        return got

    def scan(self, session: Hashable, req: Request, now: int, *, pages: int) -> None:
        """Ask for many keys, and follow the cursors over so many pages at most."""
        expected_cursor = b""
        for page in range(pages):
            got = self.subject.handle(session, req, now)
            assert got is not None
            asked = msgspec.structs.replace(req, key=expected_cursor) if page else req
            expected = self._expected_page(session, asked, got)
            assert without_cursor(got) == without_cursor(expected), f"{req} at {got.timestamp}"
            self._leased(got)
            assert got.cursor is not None or expected.cursor is None, f"{req}: more is there"
            if got.cursor is None:
                break
            assert got.pairs, f"{req}: a cursor, and no pairs"
            expected_cursor = expected.cursor or self.model.cursor_behind(asked, got.pairs[-1].key)
            bits = req.flags & ~QUERY_MASK | CURSOR
            req = msgspec.structs.replace(
                req, key=got.cursor, second_key=None, count=None, flags=bits
            )
        self.settle(now)

    def dead_letters(self, domain: bytes, count: int, now: int) -> None:
        """Ask for all pages of the dead letters of a domain, and compare."""
        found: list[Pair] = []
        cursor: bytes | None = b""
        while cursor is not None:
            req = request(Function.STATS, domain, uri=cursor or None, count=count)
            page = self.subject.handle("one", req, now)
            assert page is not None
            assert page.pairs is not None, page.error
            assert page.pairs or not cursor, "a page without any"
            assert not count or len(page.pairs) <= count
            found += page.pairs
            cursor = page.cursor
        expected = self.model.handle("one", request(Function.STATS, domain, count=0), now)
        assert expected is not None
        assert compared_pairs(found) == compared_pairs(expected.pairs)

    def restart(self, now: int, *, has_all_tombstones: bool = False) -> None:
        """Kill the subject, and recover it; the model drops what is not persistent."""
        assert isinstance(self.subject, EngineSubject)
        self.subject.restart(now)
        self.model.restart()
        self.model.begin_anew(now)
        if self.set_back:
            self._adopt_deliveries(now)
        self.model.advance(now)
        self.subject.advance(now)
        self.model.adopt_turns(self.subject.turns())
        if has_all_tombstones and not self.set_back:
            timestamps = {key: at for key, (at, _) in self.model.tombstones.items()}
            assert self.subject.tombstones(now) == timestamps
        if self.set_back:
            self._adopt_noted(now)
            return
        self.model.adopt_tombstones(self.subject.tombstones(now))

    def step_clock(self, now: int, step_us: int) -> None:
        """Set the clock of both, which is ``now`` then."""
        assert isinstance(self.subject, EngineSubject)
        self.set_back = self.set_back or step_us < 0
        self.model.clock_stepped(now, step_us)
        self.subject.clock_stepped(now, step_us)
        if step_us < 0:
            self._adopt_noted(now)

    def _adopt_noted(self, now: int) -> None:
        """How long tombstones stand that were over, or are later than the present, is not said."""
        assert isinstance(self.subject, EngineSubject)
        noted = self.subject.engine.store.tombstones
        keys = self.subject.tombstones(now)
        self.model.tombstones = {key: noted.find(key, now) or (0, 0) for key in keys}

    def _adopt_deliveries(self, now: int) -> None:
        """An interval that was over may run again: the log has the delivery that it follows."""
        assert isinstance(self.subject, EngineSubject)
        limits = self.subject.engine.store.rules.limits
        for _, name in limits._ends:
            delivered_at = self.model.delivered_at.setdefault(name, limits.last_delivery(name))
            assert delivered_at <= now

    def _expected_page(self, session: Hashable, asked: Request, got: Reply) -> Reply:
        """Return the model's reply, with as many pairs as the page that came."""
        self.model.page_pairs = None if got.pairs is None else len(got.pairs)
        try:
            expected = self.model.handle(session, asked, got.timestamp)
        finally:
            self.model.page_pairs = None
        assert expected is not None
        return expected

    def settle(self, now: int) -> None:
        """Compare the notifications of those who listen."""
        expected = self.model.tell()
        got = self.subject.tell(now)
        if got is not None:
            told, due = sorted(map(heard, got)), sorted(map(heard, expected))
            assert told == due, f"told {told}, not {due}"

    def _leased(self, reply: Reply | None) -> None:
        if reply is not None and reply.timeout is not None and reply.flags & Flag.WORKED_ON:
            self.tokens.append(reply.timeout)
            self.leases += [(reply.timeout, pair.key) for pair in (reply.pairs or [])[:1]]


def without_cursor(reply: Reply) -> object:
    """Return the part of a page that must be equal to that of another."""
    bits = reply.flags & ~Flag.CURSOR
    return comparable(msgspec.structs.replace(reply, cursor=None, flags=bits))


def heard(told: tuple[Hashable, Reply]) -> tuple[str, ...]:
    """Return the part of a notification that must be equal to that of another."""
    session, reply = told
    assert reply.pairs is not None, f"{session} {reply}"
    assert len(reply.pairs) == 1
    assert reply.flags & Flag.LISTEN
    pair = reply.pairs[0]
    kind = int(pair.value_type)
    said = (session, reply.identifier, reply.code, pair.key, kind, pair.value, pair.meta)
    return tuple(map(repr, said))
