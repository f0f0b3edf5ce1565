"""A naive model of the engine: one list of entries, linear scans, written from docs/protocol.md.

It has the engine's interface (``handle``, ``advance``, ``serve_waiters``, ``forget``) and answers
with ``Reply`` objects. Nothing in it is fast, and nothing is kept that can be computed from the
list of entries; only the order of turns, the tombstones and the waiting NEXTs are state besides.

Where the protocol is silent, the model and the engine agree on this (docs/decisions/0080 to 0084):

1.  A URI that is the primary key of another entry: ``exists`` (after ``stale``). A SET never
    deletes a value that stands there under its own name. A URI equal to the key: ``bad-key``.
2.  A key that is another entry's URI: a SET on it is no repeat, whatever its timestamp; ``stale``
    where it is older than that entry or not newer than a tombstone, else ``exists``.
3.  A tombstone is replaced only by one with a later timestamp. The oldest is the one laid first.
    A DELETE of nothing with a token changes nothing, with OVERWRITE or without.
4.  A SET with OVERWRITE keeps its own created time, also where it takes a URI from another entry.
    Over an entry that had lost its URI to a newer one it is an entry of its own: not dropped.
5.  Instants beyond 2**64 - 1 are cut to it. A token never exceeds it.
6.  Every GET is a read, a probe too. An explicit UPDATE_TIMEOUT is not moved by the touch.
    UPDATE_TIMEOUT without a timeout is ignored. NEXT does not touch. SET, GET and NEXT set the
    accessed time.
7.  RELEASE with a ttl sets a new delay, but never before the key's timestamp; without one, a
    delay that still runs goes on. META shows this instant. RELEASE without a token: bad-request.
8.  An entry that a newer one displaced from its URI is dropped when its lease ends, with a
    tombstone, also where it would have expired by then.
9.  A domain that has due entries before and after a request, or an instant, keeps its turn.
10. Next-at is the first instant at which an entry becomes due if no request comes.
11. NEXT with LISTEN and ttl 0 does not wait. A wait whose time is over still gets work that is
    due when it is served. QUIT gives nothing out any more.
12. An entry that waits for another's lease on its URI is delayed. Worked on and buried count
    plain entries too. A domain without entries has zeros.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field

import msgspec

from fastjournal.keys import parse_journal_key
from fastjournal.protocol.constants import Flag, Function, Query, ValueType
from fastjournal.protocol.messages import Pair, Reply, Request
from tests.property.model_parts import (
    KEY_BYTES_MAX,
    U64_MAX,
    Entry,
    RefusedError,
    Rules,
    Waiter,
    check_key,
    refuse,
    reply_bytes,
    token_of,
)


@dataclass
class Model:
    """The engine, naively."""

    rules: Rules = field(default_factory=Rules)
    clock: int = 0
    entries: list[Entry] = field(default_factory=list)
    tombstones: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Primary key to (timestamp, instant at which it was laid), the oldest first."""
    turns: list[bytes] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)
    ended: list[tuple[Hashable, Reply]] = field(default_factory=list)
    arrivals: int = 0
    leases: int = 0

    # --- what can be computed from the list ------------------------------------------------------

    def find(self, key: bytes | None) -> Entry | None:
        """The entry that stands under this key, primary or URI."""
        for e in self.entries:
            if key == e.key or (key is not None and key == e.uri and e.displaced_at is None):
                return e
        return None

    def holders(self, e: Entry) -> list[Entry]:
        """Other entries that are worked on and stand for the same URI."""
        same = [o for o in self.entries if o is not e and o.uri == e.uri and o.token]
        return same if e.uri is not None else []

    def waits(self, e: Entry) -> bool:
        return e.parts is not None and not e.token and not e.buried

    def is_due(self, e: Entry) -> bool:
        return self.waits(e) and e.not_before <= self.clock and not self.holders(e)

    def due(self, domain: bytes) -> list[Entry]:
        mine = [e for e in self.entries if e.parts and e.parts.domain == domain and self.is_due(e)]
        return sorted(mine, key=Entry.order)

    def due_at(self, e: Entry) -> int | None:
        """When it becomes due if nothing else happens; None: never."""
        last = bool(self.rules.attempts_max) and e.attempts + 1 >= self.rules.attempts_max
        if e.parts is None or e.buried or (e.token and (last or e.displaced_at is not None)):
            return None
        at = max([e.not_before, e.token, *(o.token for o in self.holders(e))])
        return None if e.expires and e.expires <= at else at

    def next_at(self, domain: bytes) -> int | None:
        ats = [self.due_at(e) for e in self.entries if e.parts and domain in (b"", e.parts.domain)]
        return min((at for at in ats if at is not None), default=None)

    # --- time ------------------------------------------------------------------------------------

    def later(self, duration: int) -> int:
        return min(self.clock + duration, U64_MAX)

    def next_event(self) -> int | None:
        """The first instant at which time alone changes an entry."""
        instants = [e.token for e in self.entries if e.token]
        instants += [e.expires for e in self.entries if e.expires and not e.token]
        instants += [e.not_before for e in self.entries if e.not_before > self.clock]
        return min(instants, default=None)

    def advance(self, now: int) -> None:
        """Let everything happen that time brings up to now, one instant after the other."""
        while (at := self.next_event()) is not None and at <= now:
            self.clock = max(self.clock, at)
            for e in [e for e in self.entries if e.token and e.token <= at]:
                e.attempts = min(e.attempts + 1, 0xFFFF)
                e.buried = bool(self.rules.attempts_max) and e.attempts >= self.rules.attempts_max
                self.end_lease(e)
            for e in [e for e in self.entries if e.expires and e.expires <= at and not e.token]:
                self.entries.remove(e)
            self.update_turns()
        self.clock = now
        for key, (_, laid) in list(self.tombstones.items()):
            if laid + self.rules.tombstone_ttl_us <= now:
                del self.tombstones[key]

    def update_turns(self) -> None:
        """Domains that are no longer due leave, those that became due enter by name."""
        due = {e.parts.domain for e in self.entries if e.parts and self.is_due(e)}
        self.turns = [d for d in self.turns if d in due]
        self.turns += sorted(due - set(self.turns))

    # --- small changes ---------------------------------------------------------------------------

    def lay_tombstone(self, key: bytes, timestamp: int) -> None:
        if key in self.tombstones and timestamp <= self.tombstones[key][0]:
            return
        self.tombstones.pop(key, None)
        self.tombstones[key] = (timestamp, self.clock)
        while len(self.tombstones) > self.rules.tombstones_max:
            del self.tombstones[next(iter(self.tombstones))]

    def end_lease(self, e: Entry) -> None:
        e.token = 0
        if e.displaced_at is not None:
            self.entries.remove(e)
            self.lay_tombstone(e.key, e.displaced_at)

    def lease(self, entries: list[Entry], duration: int) -> int:
        """Lease all of them until the instant that is the token."""
        deadline = self.later(duration) // 1000 * 1000
        while True:
            token = deadline + self.leases % 1000
            token = token if token <= U64_MAX else token - 1000
            self.leases += 1
            if all(e.token_before != token for e in entries):
                break
        for e in entries:
            e.token = e.token_before = token
        return token

    # --- requests --------------------------------------------------------------------------------

    def handle(self, session: Hashable, request: Request, now: int) -> Reply | None:
        """Answer one request; None: a NEXT that waits."""
        self.advance(now)
        try:
            reply = self.answer(session, request)
        except RefusedError as refused:
            reply = Reply(error=str(refused))
        self.update_turns()
        return None if reply is None else self.stamp(reply, request)

    def stamp(self, reply: Reply, request: Request) -> Reply:
        return msgspec.structs.replace(reply, identifier=request.identifier, timestamp=self.clock)

    def answer(self, session: Hashable, r: Request) -> Reply | None:
        match r.function:
            case Function.NOP | Function.AUTH:
                return Reply()
            case Function.QUIT:
                for w in [w for w in self.waiters if w.session == session]:
                    self.waiters.remove(w)
                    self.ended.append((session, self.stamp(self.nothing(w.request), w.request)))
                return Reply()
            case Function.SET:
                return self.set(r)
            case Function.GET if r.query == Query.KEY:
                return self.get(r)
            case Function.DELETE:
                return self.delete(r)
            case Function.NEXT:
                return self.next(session, r)
            case Function.RELEASE:
                return self.release(r)
            case Function.TOUCH:
                return self.touch(r)
            case Function.STATS:
                return self.stats(r)
        raise RefusedError("unknown-function")

    def set(self, r: Request) -> Reply:
        here = self.find(r.key)
        if here is not None and here.key == r.key and here.timestamp == r.timestamp:
            return Reply()
        uri = r.second_key if r.query == Query.RANGE else None
        check_key(r.key)
        if uri is not None:
            check_key(uri)
            refuse("bad-key", uri == r.key)
        void_with_data = r.value_type == ValueType.VOID and r.value != b""
        refuse("bad-value", r.value_type is None or r.value_type > 5 or void_with_data)
        refuse("too-large", len(r.value) > self.rules.value_bytes_max)
        refuse("clock-skew", self.skewed(r))
        other = self.find(uri)
        if other is here:
            other = None
        stone = self.tombstones.get(r.key)
        refuse("stale", here is not None and r.timestamp < here.timestamp)
        refuse("stale", stone is not None and r.timestamp <= stone[0])
        refuse("stale", other is not None and r.timestamp < other.timestamp)
        refuse("exists", here is not None and (here.key != r.key or not r.flags & Flag.OVERWRITE))
        refuse("exists", other is not None and other.key == uri)
        created = self.clock
        if other is not None and other.token:
            other.displaced_at = r.timestamp
        elif other is not None:
            created = other.created
            self.entries.remove(other)
            self.lay_tombstone(other.key, r.timestamp)
        if here is None:
            here = Entry(r.key, self.arrivals, created, parse_journal_key(r.key))
            self.arrivals += 1
            self.entries.append(here)
        elif here.displaced_at is not None:
            here.uri = here.displaced_at = None
        here.uri = uri if uri is not None else here.uri
        here.value_type, here.value = r.value_type or 0, r.value
        here.timestamp, here.modified, here.accessed = r.timestamp, self.clock, self.clock
        here.ttl = r.ttl or 0
        here.expires = r.timeout or 0
        if r.timeout is None and r.ttl:
            here.expires = self.later(r.ttl)
        here.persistent = bool(r.flags & (Flag.PERSIST | Flag.PERSIST_ALIAS))
        here.not_before = here.parts.timestamp if here.parts else 0
        here.attempts, here.buried, here.token = 0, False, 0
        self.tombstones.pop(r.key, None)
        return Reply()

    def get(self, r: Request) -> Reply:
        check_key(r.key)
        e = self.find(r.key)
        update = r.timeout is not None and bool(r.flags & Flag.UPDATE_TIMEOUT)
        lease = r.timeout is not None and not update
        if e is None or (lease and e.buried):
            raise RefusedError("not-found")
        refuse("worked-on", bool(e.token) and (lease or bool(r.flags & Flag.WORKED_ON)))
        refuse("worked-on", lease and self.holders(e) != [])
        e.accessed = self.clock
        if update:
            e.expires = r.timeout or 0
        elif e.ttl and e.expires:
            e.expires = max(e.expires, self.later(e.ttl))
        token = self.lease([e], r.timeout or self.rules.lease_us_default) if lease else None
        pair = e.pair(r)
        pair.key, pair.second_key = r.key, b""
        return Reply(flags=Flag.WORKED_ON * lease, timeout=token, pairs=[pair])

    def delete(self, r: Request) -> Reply:
        check_key(r.key)
        token = token_of(r)
        e = self.find(r.key)
        if e is None:
            if token is None and r.flags & Flag.OVERWRITE:
                self.tombstones.pop(r.key, None)
            elif token is None and not self.skewed(r):
                self.lay_tombstone(r.key, r.timestamp)
            raise RefusedError("not-found")
        refuse("clock-skew", self.skewed(r))
        if token is not None:
            refuse("lease-lost", not e.token or e.token != token)
        else:
            refuse("stale", r.timestamp < e.timestamp)
        self.entries.remove(e)
        if not r.flags & Flag.OVERWRITE:
            self.lay_tombstone(e.key, max(r.timestamp, e.timestamp))
        return Reply()

    def next(self, session: Hashable, r: Request) -> Reply | None:
        refuse("bad-key", len(r.key) > KEY_BYTES_MAX)
        refuse("bad-request", r.count == 0)
        reply = self.take(r)
        if reply is None and r.flags & Flag.LISTEN and r.ttl != 0:
            deadline = None if r.ttl is None else self.later(r.ttl)
            self.waiters.append(Waiter(session, r, deadline))
            return None
        return reply or self.nothing(r)

    def nothing(self, r: Request) -> Reply:
        return Reply(timeout=self.next_at(r.key), pairs=[])

    def take(self, r: Request) -> Reply | None:
        """Lease or pop what is due for this NEXT; None: nothing."""
        pop = bool(r.flags & Flag.OVERWRITE)
        taken: list[Entry] = []
        while len(taken) < (1 if r.count is None else r.count):
            domain = r.key or (self.turns[0] if self.turns else b"")
            due = [e for e in self.due(domain) if e not in taken]
            if not due:
                break
            size = reply_bytes([e.pair(r) for e in [*taken, due[0]]], timeout=not pop)
            if taken and size > self.rules.reply_bytes_max:
                break
            taken.append(due[0])
            if not r.key:
                self.turns = self.turns[1:] + [domain] * (len(due) > 1)
        if not taken:
            return None
        for e in taken:
            e.accessed = self.clock
        token = None
        if not pop:
            token = self.lease(taken, r.timeout or self.rules.lease_us_default)
        pairs = [e.pair(r) for e in taken]
        for e in taken if pop else []:
            self.entries.remove(e)
            self.lay_tombstone(e.key, e.timestamp)
        return Reply(flags=Flag.WORKED_ON * (not pop), timeout=token, pairs=pairs)

    def serve_waiters(self, now: int) -> list[tuple[Hashable, Reply]]:
        """Give work to those who wait, first come first served; end the waits that are over."""
        self.advance(now)
        replies, self.ended = self.ended, []
        for w in list(self.waiters):
            reply = self.take(w.request)
            self.update_turns()
            if reply is None and w.deadline is not None and w.deadline <= now:
                reply = self.nothing(w.request)
            if reply is not None:
                self.waiters.remove(w)
                replies.append((w.session, self.stamp(reply, w.request)))
        return replies

    def forget(self, session: Hashable) -> None:
        """The connection has ended."""
        self.waiters = [w for w in self.waiters if w.session != session]
        self.ended = [(s, reply) for s, reply in self.ended if s != session]

    def release(self, r: Request) -> Reply:
        check_key(r.key)
        e = self.leased(r, token_of(r, needed=True))
        self.end_lease(e)
        if e.parts is not None and r.ttl is not None:
            e.not_before = max(e.parts.timestamp, self.later(r.ttl))
        return Reply()

    def touch(self, r: Request) -> Reply:
        check_key(r.key)
        token = token_of(r)
        if r.ttl is None:
            raise RefusedError("bad-request")
        if token is not None:
            return Reply(timeout=self.lease([self.leased(r, token)], r.ttl))
        e = self.find(r.key)
        if e is None:
            raise RefusedError("not-found")
        e.expires = self.later(r.ttl)
        return Reply()

    def stats(self, r: Request) -> Reply:
        mine = [e for e in self.entries if not r.key or (e.parts and e.parts.domain == r.key)]
        waiting = [e for e in mine if self.waits(e)]
        due = [e for e in waiting if self.is_due(e)]
        numbers = {
            "entries": len(mine),
            "waiting": len(waiting),
            "due": len(due),
            "delayed": len(waiting) - len(due),
            "worked_on": len([e for e in mine if e.token]),
            "buried": len([e for e in mine if e.buried]),
            "oldest_due_us": self.clock - min([e.not_before for e in due], default=self.clock),
        }
        if not r.key:
            numbers["domains"] = len({e.parts.domain for e in mine if e.parts})
        return Reply(pairs=[Pair(r.key, ValueType.STRING, json.dumps(numbers).encode())])

    # --- parts of the answers --------------------------------------------------------------------

    def skewed(self, r: Request) -> bool:
        return r.timestamp > self.clock + self.rules.clock_skew_us_max

    def leased(self, r: Request, token: int | None) -> Entry:
        e = self.find(r.key)
        if e is None:
            raise RefusedError("not-found")
        refuse("lease-lost", not e.token or e.token != token)
        return e
