"""The naive model's GET of many keys, and its subscriptions. See model.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import msgspec

from fastjournal.protocol.constants import Query, ValueType
from fastjournal.protocol.messages import Pair, Reply, Request
from tests.property.model_parts import (
    KEY_BYTES_MAX,
    Bit,
    Entry,
    RefusedError,
    check_key,
    refuse,
    reply_bytes,
)
from tests.property.model_state import State

PAIRS_MAX = 65_535
LEASED_PAIRS_MAX = 1000
WITH_ALL = Request(0, flags=Bit.DATA | Bit.META)


class Scan(msgspec.Struct, array_like=True, frozen=True):
    """Query of a GET of many keys; as msgpack it is the model's cursor."""

    query: int
    first: bytes
    last: bytes
    count: int
    after: bytes | None = None
    """The last key that was returned."""

    def wants(self, key: bytes) -> bool:
        if self.after is not None and key <= self.after:
            return False
        if self.query == Query.REGEX:
            return re.search(self.first, key) is not None
        return self.first <= key and (not self.last or key <= self.last)


CURSOR_START = b"model:"


def scan_of(r: Request) -> Scan:
    """Return the query of a request."""
    if r.query == Query.CURSOR:
        refuse("bad-cursor", not r.key.startswith(CURSOR_START))
        try:
            return msgspec.msgpack.decode(r.key[len(CURSOR_START) :], type=Scan)
        except msgspec.DecodeError:
            raise RefusedError("bad-cursor") from None
    second = r.second_key or b""
    if r.query == Query.REGEX:
        try:
            re.compile(r.key)
        except re.error:
            raise RefusedError("bad-regex") from None
    refuse("bad-key", len(r.key) > KEY_BYTES_MAX or len(second) > KEY_BYTES_MAX)
    return Scan(r.query, r.key, second, r.count or 0)


@dataclass
class Subscription:
    """Whom to tell about the keys that match."""

    session: Hashable
    identifier: int
    wants: Callable[[bytes], bool]
    changed: set[bytes] = field(default_factory=set)


@dataclass
class Scans(State):
    """GET in all its forms, and LISTEN."""

    subscriptions: list[Subscription] = field(default_factory=list)
    page_pairs: int | None = None
    """How many pairs the next page has; None: as many as fit."""
    page_ends: bool = True
    """Nothing is left behind the last page."""

    # --- one key ---------------------------------------------------------------------------------

    def do_get(self, session: Hashable, r: Request) -> Reply:
        if not r.flags & Bit.LISTEN:
            self.unsubscribe(session, r)
        if r.query != Query.KEY:
            return self.scan(session, r)
        check_key(r.key)
        e = self.found(r.key)
        update = r.timeout is not None and bool(r.flags & Bit.UPDATE_TIMEOUT)
        lease = r.timeout is not None and not update
        refuse("not-found", lease and e.buried)
        refuse("locked", (lease or update) and self.locked(e, session))
        refuse("worked-on", bool(e.token) and (lease or bool(r.flags & Bit.WORKED_ON)))
        refuse("worked-on", lease and self.holders(e) != [])
        refuse("busy", lease and e.parts is not None and not self.has_room(e.parts.domain))
        self.read(e, r)
        token = None
        if lease:
            domain = e.parts.domain if e.parts else b""
            token = self.lease([e], r.timeout or self.limit(domain, "lease_us"))
            self.note_delivery([e], leased=True)
        self.subscribe(session, r, lambda key: key == r.key)
        return Reply(flags=Bit.WORKED_ON * lease, timeout=token, pairs=[self.pair(e, r, r.key)])

    def read(self, e: Entry, r: Request) -> None:
        e.accessed = self.clock
        if r.timeout is not None and r.flags & Bit.UPDATE_TIMEOUT:
            e.touched_at = e.touched_at if e.expires == r.timeout else 0
            e.expires = r.timeout
        elif e.ttl and e.expires < self.later(e.ttl) and e.expires:
            e.expires, e.touched_at = self.later(e.ttl), self.clock

    # --- many keys -------------------------------------------------------------------------------

    def scan(self, session: Hashable, r: Request) -> Reply:
        wanted = scan_of(r)
        found = self.scanned(session, r, wanted)
        lease = r.timeout is not None and not r.flags & Bit.UPDATE_TIMEOUT
        limit = min(wanted.count or PAIRS_MAX, LEASED_PAIRS_MAX if lease else PAIRS_MAX)
        page = found[:limit]
        if self.page_pairs is not None:
            assert self.page_pairs <= len(page), "more pairs than there are, or than were asked for"
            assert self.page_pairs or not page, "nothing of what is there"
            shorter, page = page, page[: self.page_pairs]
            self.assert_full(r, page, shorter)
        else:
            while len(page) > 1 and self.bytes_of(r, page) > self.rules.reply_bytes_max:
                page.pop()
        for _, e in page:
            self.read(e, r)
        token = None
        if lease and page:
            leased = [e for _, e in page]
            token = self.lease(leased, r.timeout or self.rules.lease_us_default)
            self.note_delivery(leased, leased=True)
        pairs = [self.pair(e, r, key) for key, e in page]
        self.page_ends = len(page) == len(found)
        self.subscribe(session, r, wanted.wants)
        return Reply(
            flags=Bit.TWO_KEYS | Bit.WORKED_ON * (token is not None),
            timeout=token,
            cursor=None if self.page_ends else self.cursor(wanted, page[-1][0]),
            pairs=pairs,
        )

    def scanned(self, session: Hashable, r: Request, wanted: Scan) -> list[tuple[bytes, Entry]]:
        """All keys that are wanted, with their entries, in byte order."""
        found = sorted((key, e.arrival, e) for e in self.entries for key in e.all_keys())
        lease = r.timeout is not None and not r.flags & Bit.UPDATE_TIMEOUT
        update = r.timeout is not None and not lease
        kept: list[tuple[bytes, Entry]] = []
        for key, _, e in found:
            left_out = bool(e.token) and (lease or bool(r.flags & Bit.WORKED_ON))
            left_out |= lease and (e.buried or self.holders(e) != [])
            left_out |= (lease or update) and self.locked(e, session)
            # leased once, under the first of its keys
            left_out |= lease and any(other is e for _, other in kept)
            leased = [other for _, other in kept]
            left_out |= lease and e.parts is not None and not self.has_room(e.parts.domain, leased)
            if wanted.wants(key) and not left_out:
                kept.append((key, e))
        return kept

    def bytes_of(self, r: Request, page: list[tuple[bytes, Entry]]) -> int:
        return reply_bytes([self.pair(e, r, key) for key, e in page])

    def assert_full(
        self, r: Request, page: list[tuple[bytes, Entry]], more: list[tuple[bytes, Entry]]
    ) -> None:
        """A page has as much as fits: at most max-reply bytes, and no less than that allows."""
        if len(page) > 1:
            data = self.bytes_of(r, page) - 64 - 9 * len(page)
            assert data <= self.rules.reply_bytes_max, "over max-reply"
        if len(page) < len(more):
            with_one_more = self.bytes_of(r, more[: len(page) + 1])
            # it would end behind that one
            last, _ = more[len(page)]
            room_for_cursor = 64 + 2 * len(r.key) + len(r.second_key or b"") + len(last)
            assert with_one_more + room_for_cursor > self.rules.reply_bytes_max, "not full"

    def cursor(self, wanted: Scan, after: bytes) -> bytes:
        return CURSOR_START + msgspec.msgpack.encode(msgspec.structs.replace(wanted, after=after))

    def cursor_behind(self, r: Request, after: bytes) -> bytes:
        """A cursor where the model needs none."""
        return self.cursor(scan_of(r), after)

    # --- subscriptions ---------------------------------------------------------------------------

    def subscribe(self, session: Hashable, r: Request, wants: Callable[[bytes], bool]) -> None:
        if r.flags & Bit.LISTEN:
            self.unsubscribe(session, r)
            self.subscriptions.append(Subscription(session, r.identifier, wants))

    def unsubscribe(self, session: Hashable, r: Request) -> None:
        mine = (session, r.identifier)
        self.subscriptions = [s for s in self.subscriptions if (s.session, s.identifier) != mine]

    def standing(self) -> dict[bytes, tuple[int, int]]:
        """Return the state of the entry under each key; empty where nobody listens."""
        if not self.subscriptions:
            return {}
        return {key: (e.arrival, e.writes) for e in self.entries for key in e.all_keys()}

    def note_changes(self, before: dict[bytes, tuple[int, int]]) -> None:
        if not self.subscriptions:
            return
        after = self.standing()
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        for s in self.subscriptions:
            s.changed |= {key for key in changed if s.wants(key)}

    def tell(self) -> list[tuple[Hashable, Reply]]:
        """Notifications, with the state of this moment."""
        told: list[tuple[Hashable, Reply]] = []
        for s in self.subscriptions:
            for key in sorted(s.changed):
                e = self.find(key)
                told.append(
                    (
                        s.session,
                        Reply(
                            identifier=s.identifier,
                            flags=Bit.LISTEN,
                            timestamp=self.clock,
                            error="" if e else "not-found",
                            pairs=[self.pair(e, WITH_ALL, key) if e else Pair(key, ValueType.VOID)],
                        ),
                    )
                )
            s.changed = set()
        return told
