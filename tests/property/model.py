"""A naive model of the engine: one list of entries, linear scans, written from docs/protocol.md.

Its parts: model_state.py (what time does), model_values.py (ADD, NOT, TRUNCATE), model_keys.py
(LINK, RENAME, LOCK), model_work.py (BURY, KICK, PAUSE), model_scans.py (GET and LISTEN).

It has the engine's interface (``handle``, ``advance``, ``serve_waiters``, ``end_session``) and
answers with ``Reply`` objects. Nothing in it is fast, and nothing is kept that can be computed from
the list of entries; only the order of turns, the tombstones and the waiting NEXTs are state
besides.

Where the protocol is silent, the model and the engine agree on this
(docs/decisions/work-scheduling.md):

1.  A URI that is the primary key of another entry: ``exists`` (after ``stale``). A SET never
    deletes a value that stands there under its own name. A URI equal to the key: ``bad-key``.
2.  A key that is another entry's URI: a SET on it is no repeat, whatever its timestamp; ``stale``
    where it is older than that entry or not newer than a tombstone, else ``exists``.
3.  A DELETE of nothing renews a tombstone that stands there, with the later of both timestamps.
    With OVERWRITE it removes it, however old the DELETE is. With a token, or from too far in the
    future, it changes nothing.
4.  A SET with OVERWRITE keeps its own created time, also where it takes a URI from another entry.
    Over an entry that had lost its URI to a newer one it is an entry of its own: not dropped.
5.  Instants beyond 2**64 - 1 are cut to it, tokens about a millisecond before it.
6.  Every GET is a read, a probe too. An explicit UPDATE_TIMEOUT is not moved by the touch.
    UPDATE_TIMEOUT without a timeout is ignored. NEXT does not touch. SET, GET and leases set the
    accessed time.
7.  RELEASE with a ttl sets a new delay, but never before the key's timestamp; without one, a
    delay that still runs goes on. META shows this instant, and it stands for the timestamp in the
    order of work. RELEASE without a token: bad-request.
8.  An entry that a newer one displaced from its URI is dropped when its lease ends, with a
    tombstone, also where it would have expired by then. The URI is not its second key any more.
9.  A domain that has due entries before and after a request, or an instant, keeps its turn.
    Late events are applied in the order leases and delays by instant, then expiry. The domain
    of a SET enters before that of an entry whose wait the SET ended. That of a deleted entry, which
    has room again, enters after that of an entry that waited for its URI.
10. Next-at is the first end of a lease or of a delay; what comes then may expire or be buried.
11. NEXT with count 0 only asks for next-at. A wait whose time is over still gets work that is due
    when it is served. QUIT gives nothing out any more. A domain with ``:`` is bad-key.
12. An entry that waits for another's lease on its URI is delayed. Worked on counts plain entries
    too; these are never buried for their attempts. A domain without entries has zeros.
13. Room in a reply is reckoned with the widest sizes: 64 bytes, 9 a pair, 68 with META.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable

import msgspec

from fastjournal.keys import parse_journal_key
from fastjournal.protocol.constants import Function, Query, ValueType
from fastjournal.protocol.messages import Pair, Reply, Request
from tests.property.model_keys import Keys
from tests.property.model_parts import (
    KEY_BYTES_MAX,
    Bit,
    Entry,
    RefusedError,
    Waiter,
    check_key,
    refuse,
    reply_bytes,
    token_of,
)
from tests.property.model_scans import Scans
from tests.property.model_state import EVERYTHING
from tests.property.model_values import Values
from tests.property.model_work import (
    REASON_BYTES_MAX,
    Work,
    check_selection,
    cycle_of,
    numbers_in,
    split_options,
)


class Model(Values, Keys, Work, Scans):
    """The engine, naively."""

    # --- requests --------------------------------------------------------------------------------

    def handle(self, session: Hashable, request: Request, now: int) -> Reply | None:
        """Answer one request; None: a NEXT that waits."""
        before = self.standing()
        self.apply_time(now)
        subscribed = self.subscriptions
        self.subscriptions = list(subscribed)
        try:
            reply = self.answer(session, request)
        except RefusedError as refused:
            reply = Reply(error=str(refused))
        is_deleted = request.function == Function.DELETE
        self.update_turns(last=request.key.partition(b":")[0] if is_deleted else b"")
        # whoever subscribes is not told what was before
        new = [s for s in self.subscriptions if s not in subscribed]
        self.note_changes(before)
        for s in new:
            s.changed = set()
        return None if reply is None else self.stamp(reply, request)

    def stamp(self, reply: Reply, request: Request) -> Reply:
        return msgspec.structs.replace(reply, identifier=request.identifier, timestamp=self.clock)

    def answer(self, session: Hashable, r: Request) -> Reply | None:
        """Do what the method does that has the name of the function."""
        handler = HANDLERS.get(r.function)
        if handler is None:
            raise RefusedError("unknown-function")
        return handler(self, session, r)

    def do_nop(self, _session: Hashable, r: Request) -> Reply:
        if not r.flags & Bit.META:
            return Reply()
        rules = self.rules
        limits = b'{"value_bytes_max":%d,"tombstone_ttl_us":%d}' % (
            rules.value_bytes_max,
            rules.tombstone_ttl_us,
        )
        return Reply(pairs=[Pair(b"", ValueType.STRING, limits)])

    def do_auth(self, _session: Hashable, _: Request) -> Reply:
        return Reply()

    def do_cancel(self, session: Hashable, r: Request) -> Reply:
        refuse("bad-request", r.count is None)
        waiting = [
            w for w in self.waiters if (w.session, w.request.identifier) == (session, r.count)
        ]
        for w in waiting:
            self.waiters.remove(w)
            self.ended.append((session, self.stamp(self.nothing(w.request), w.request)))
        heard = [s for s in self.subscriptions if (s.session, s.identifier) == (session, r.count)]
        self.subscriptions = [s for s in self.subscriptions if s not in heard]
        refuse("not-found", not waiting and not heard)
        return Reply()

    def do_quit(self, session: Hashable, _: Request) -> Reply:
        for w in [w for w in self.waiters if w.session == session]:
            self.waiters.remove(w)
            self.ended.append((session, self.stamp(self.nothing(w.request), w.request)))
        self.subscriptions = [s for s in self.subscriptions if s.session != session]
        return Reply()

    def advance(self, now: int) -> None:
        """Let everything happen that time brings up to now."""
        before = self.standing()
        self.apply_time(now)
        self.note_changes(before)

    def do_set(self, session: Hashable, r: Request) -> Reply:
        here = self.find(r.key)
        if here is not None and here.key == r.key and here.timestamp == r.timestamp:
            self.subscribe(session, r, lambda key: key == r.key)
            return Reply(ttl=0)
        uri = r.second_key if r.query == Query.RANGE else None
        check_key(r.key)
        if uri is not None:
            check_key(uri)
            refuse("bad-key", uri == r.key)
        void_with_data = r.value_type == ValueType.VOID and r.value != b""
        refuse("bad-value", r.value_type is None or r.value_type > 5 or void_with_data)
        refuse("clock-skew", self.skewed(r))
        other = self.find(uri)
        if other is here:
            other = None
        for e in (here, other):
            refuse("locked", e is not None and self.locked(e, session))
        stone = self.tombstones.get(r.key)
        refuse("stale", here is not None and r.timestamp < here.timestamp)
        refuse("stale", stone is not None and r.timestamp <= stone[0])
        refuse("stale", other is not None and r.timestamp < other.timestamp)
        refuse("exists", here is not None and (here.key != r.key or not r.flags & Bit.OVERWRITE))
        refuse("exists", other is not None and other.key == uri)
        refuse("worked-on", bool(r.flags & Bit.WORKED_ON and here is not None and here.token))
        replaced = [e for e in (here, other) if e is not None and (e is here or not e.token)]
        self.tombstones.pop(r.key, None)
        created, first_due = self.clock, 0
        if other is not None and other.token:
            assert uri is not None
            other.taken.append(uri)
            if other.displaced_at is None:
                other.displaced_at = r.timestamp
                self.displacements += 1
                other.displacement = self.displacements
        elif other is not None:
            created = other.created
            first_due = self.chain_of(other)
            self.entries.remove(other)
            self.lay_tombstone(other.key, r.timestamp)
        elif here is not None and here.uri is not None and uri in (None, here.uri):
            first_due = self.chain_of(here)
        if here is None:
            here = Entry(r.key, self.arrivals, created, parse_journal_key(r.key))
            self.arrivals += 1
            self.entries.append(here)
        elif here.displaced_at is not None:
            if here.uri in here.taken:
                here.uri = None
            here.links = [link for link in here.links if link not in here.taken]
            here.displaced_at, here.taken = None, []
        here.links = [link for link in here.links if link != uri]
        here.uri = uri if uri is not None else here.uri
        here.value_type, here.value = r.value_type or 0, r.value
        here.timestamp, here.modified, here.accessed = r.timestamp, self.clock, self.clock
        here.ttl = r.ttl or 0
        here.expires = r.timeout or 0
        if r.timeout is None and r.ttl:
            here.expires = self.later(r.ttl)
        here.persistent = bool(r.flags & (Bit.PERSIST | Bit.PERSIST_ALIAS))
        here.not_before = here.parts.not_before_us if here.parts else 0
        here.first_due = 0
        bound = self.rules.postpone_us_max
        if here.parts and first_due and bound and here.not_before - self.clock <= bound:
            here.first_due = first_due
            here.not_before = min(here.not_before, first_due + bound)
        here.attempts, here.buried, here.reason, here.token = 0, False, b"", 0
        here.attempts_max = 0
        here.error = None
        here.delayed_at = here.touched_at = 0
        here.writes += 1
        domain = here.parts.domain if here.parts and self.is_due(here) else None
        known = domain in [*self.turns, *self.pauses]
        if domain is not None and not known and self.has_room(domain):
            self.turns.append(domain)
        self.subscribe(session, r, lambda key: key == r.key)
        given_up = [
            Pair(e.key, ValueType.VOID, b"")
            for e in replaced
            if e.parts and here.parts and e.parts.domain != here.parts.domain
        ]
        return Reply(ttl=len(replaced) or None, pairs=given_up or None)

    def do_delete(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        token = token_of(r)
        e = self.find(r.key)
        if e is None:
            if token is None and not self.skewed(r):
                if r.flags & Bit.OVERWRITE:
                    self.tombstones.pop(r.key, None)
                else:
                    self.lay_tombstone(r.key, r.timestamp)
            raise RefusedError("not-found")
        refuse("clock-skew", token is None and self.skewed(r))
        refuse("locked", self.locked(e, session))
        if token is not None:
            refuse("lease-lost", not e.token or e.token != token)
        else:
            refuse("stale", r.timestamp < e.timestamp)
        self.entries.remove(e)
        if not r.flags & Bit.OVERWRITE:
            self.lay_tombstone(e.key, r.timestamp if token is None else e.timestamp)
        return Reply()

    def do_next(self, session: Hashable, r: Request) -> Reply | None:
        refuse("bad-key", len(r.key) > KEY_BYTES_MAX or b":" in r.key)
        self.options(r)
        reply = self.take(r)
        if reply is None and r.flags & Bit.LISTEN and r.count != 0:
            deadline = None if r.ttl is None else self.later(r.ttl)
            self.waiters.append(Waiter(session, r, deadline))
            return None
        return reply or self.nothing(r)

    def options(self, r: Request) -> dict[str, int]:
        """Return the options in the value of a NEXT."""
        if r.value_type is None:
            return {}
        refuse("bad-value", r.value_type != ValueType.STRING)
        selects, numbers = split_options(r.value)
        given = numbers_in(numbers, ("attempts",))
        check_selection(selects, r.key)
        return given

    def nothing(self, r: Request) -> Reply:
        return Reply(timeout=self.next_at_for(r), pairs=[])

    def take(self, r: Request) -> Reply | None:
        """Lease or pop what is due for this NEXT; None: nothing."""
        if EVERYTHING in self.pauses:
            return None
        pop = bool(r.flags & Bit.OVERWRITE)
        taken: list[Entry] = []
        lease_us = r.timeout or 0
        selected = self.selection(r)
        while len(taken) < (1 if r.count is None else r.count):
            domain = r.key or (self.turns[0] if self.turns else b"")
            if selected:
                last = taken[-1].parts.domain if taken and taken[-1].parts else None
                able = [d for d in self.cycle(r, last) if self.has_more(d, taken)]
                if not able:
                    break
                domain = able[0]
            due = [e for e in self.due(domain) if e not in taken and self.has_room(domain, taken)]
            if not due:
                break
            # one token, so one default lease, for all of a reply
            lease_us = lease_us or self.limit(domain, "lease_us")
            if not r.timeout and not pop and lease_us != self.limit(domain, "lease_us"):
                break
            size = reply_bytes([self.pair(e, r) for e in [*taken, due[0]]])
            if taken and size > self.rules.reply_bytes_max:
                break
            taken.append(due[0])
            if not r.key and not selected:
                more = len(due) > 1 and self.has_room(domain, taken)
                self.turns = self.turns[1:] + [domain] * more
        if not taken:
            return None
        if selected and not selected.get("ordered") and taken[-1].parts:
            self.cycles[cycle_of(selected)] = taken[-1].parts.domain
        domains = dict.fromkeys(e.parts.domain for e in taken if e.parts)
        # a domain that has reached its limit has its next turn after all others
        full = [domain for domain in domains if not self.has_room(domain, taken)]
        self.turns = [domain for domain in self.turns if domain not in full]
        token = None
        if not pop:
            token = self.lease(taken, lease_us)
            for e in taken:
                e.accessed = self.clock
                e.attempts_max = self.options(r).get("attempts", 0)
        self.note_delivery(taken, leased=not pop)
        pairs = [self.pair(e, r) for e in taken]
        for e in taken if pop else []:
            self.entries.remove(e)
            self.lay_tombstone(e.key, e.timestamp)
        self.turns += [domain for domain in full if self.due(domain)]
        flags = Bit.TWO_KEYS | Bit.WORKED_ON * (not pop)
        return Reply(flags=flags, timeout=token, pairs=pairs)

    def serve_waiters(self, now: int) -> list[tuple[Hashable, Reply]]:
        """Give work to those who wait, first come first served; end the waits that are over."""
        replies, self.ended = self.ended, []
        before = self.standing()
        if self.waiters:
            self.apply_time(now)
        for w in list(self.waiters):
            reply = self.take(w.request)
            self.update_turns()
            if reply is not None:
                self.waiters.remove(w)
                replies.append((w.session, self.stamp(reply, w.request)))
        over = [w for w in self.waiters if w.deadline is not None and w.deadline <= now]
        for w in sorted(over, key=lambda w: w.deadline or 0):
            self.waiters.remove(w)
            replies.append((w.session, self.stamp(self.nothing(w.request), w.request)))
        self.note_changes(before)
        return replies

    def end_session(self, session: Hashable) -> None:
        """The connection has ended."""
        self.waiters = [w for w in self.waiters if w.session != session]
        self.ended = [(s, reply) for s, reply in self.ended if s != session]
        self.subscriptions = [s for s in self.subscriptions if s.session != session]
        self.end_locks(session)

    def restart(self) -> None:
        """The daemon was killed, and has recovered its log: what is not persistent is gone."""
        self.entries = [e for e in self.entries if e.persistent]
        self.waiters, self.ended, self.subscriptions = [], [], []
        for e in self.entries:
            self.unlock(e)
            e.accessed, e.token_before, e.renews = e.modified, e.token, set()
        self.cycles = {}
        self.leases = self.leases_logged
        self.delivered_at = dict(self.delivered_at_logged)
        self.update_turns()

    def adopt_turns(self, turns: list[bytes]) -> None:
        """In which order domains take turns after a restart is not said."""
        assert sorted(turns) == sorted(self.turns)
        self.turns = turns

    def adopt_tombstones(self, timestamps: dict[bytes, int]) -> None:
        """Which tombstones of entries that are not persistent are still there is not said."""
        self.tombstones = {
            key: (timestamp, self.laid[key, timestamp]) for key, timestamp in timestamps.items()
        }

    def do_release(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        token = token_of(r, needed=True)
        refuse("bad-value", r.value_type not in (None, ValueType.STRING))
        refuse("too-large", len(r.value) > REASON_BYTES_MAX)
        e = self.leased(session, r, token)
        delay, failed, rules = r.ttl, r.value_type is not None, self.rules
        if failed and delay is None:
            delay = min(rules.retry_delay_us << min(e.attempts, 64), rules.retry_delay_us_max)
        if failed:
            e.attempts, e.error = min(e.attempts + 1, 0xFFFF), r.value
        if failed and (
            self.has_failed_enough(e) or (e.parts is not None and 0 < (r.count or 0) <= e.attempts)
        ):
            self.end_lease(e)
            e.buried, e.reason = True, r.value
            return Reply()
        if e.parts is not None and delay is not None:
            e.delayed_at = self.clock
            e.not_before = max(min(e.parts.not_before_us, e.not_before), self.later(delay))
        self.end_lease(e)
        return Reply()

    def do_touch(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        token = token_of(r)
        if r.ttl is None:
            raise RefusedError("bad-request")
        if token is not None:
            e = self.writable(r.key, session)
            is_repeat = e.token and token in e.renews
            if is_repeat and not e.moved and self.clock + r.ttl <= e.token:
                return Reply(timeout=e.token)
            if not is_repeat:
                e = self.leased(session, r, token)
            before = e.token
            new = self.lease([e], r.ttl)
            e.renews = {token, before}
            return Reply(timeout=new)
        e = self.writable(r.key, session)
        e.expires, e.touched_at = self.later(r.ttl), self.clock
        return Reply()

    def do_stats(self, _session: Hashable, r: Request) -> Reply:
        if r.flags & Bit.DATA:
            check_key(r.key)
            if r.flags & Bit.META and r.key in self.tombstones and self.find(r.key) is None:
                return Reply(pairs=[Pair(r.key, ValueType.STRING, b'{"state": "deleted"}')])
            return self.stats_of_entry(self.found(r.key), r)
        refuse("bad-key", b":" in r.key or len(r.key) > KEY_BYTES_MAX)
        mine = [e for e in self.entries if not r.key or (e.parts and e.parts.domain == r.key)]
        if r.key and r.count is not None:
            # all of them: the pages of a daemon are put together
            dead = sorted((e for e in mine if e.buried), key=Entry.order)
            found = [self.stats_of_entry(e, Request(Function.STATS, key=e.key)) for e in dead]
            return Reply(pairs=[pair for reply in found for pair in reply.pairs or ()])
        waiting = [e for e in mine if self.waits(e)]
        due = [e for e in waiting if self.is_due(e)]
        numbers = {
            "entries": len(mine),
            "waiting": len(waiting),
            "due": len(due),
            "delayed": len(waiting) - len(due),
            "worked_on": len([e for e in mine if e.token]),
            "buried": len([e for e in mine if e.buried]),
            "oldest_due_us": self.clock - min(self.due_since(due), default=self.clock),
        }
        if not r.key:
            numbers["domains"] = len({e.parts.domain for e in mine if e.parts})
            numbers["paused_until"] = self.pauses.get(EVERYTHING, 0)
        else:
            numbers["paused_until"] = self.pauses.get(r.key, 0)
            numbers["daemon_paused_until"] = self.pauses.get(EVERYTHING, 0)
            numbers["interval_us"] = self.limit(r.key, "interval_us")
            numbers["jobs_max"] = self.limit(r.key, "jobs")
            numbers["next_waiting"] = sum(self.waits_for(w.request, r.key) for w in self.waiters)
        return Reply(pairs=[Pair(r.key, ValueType.STRING, json.dumps(numbers).encode())])

    def waits_for(self, r: Request, domain: bytes) -> bool:
        """Whether work of a domain serves a NEXT."""
        wanted = self.selection(r)
        if wanted.get("prefix"):
            return domain.startswith(wanted["prefix"].encode())
        if wanted:
            return domain.decode() in wanted["domains"]
        return r.key in {b"", domain}

    def do_domains(self, session: Hashable, r: Request) -> Reply:
        prefix, count, after = r.key, r.count or 0, None
        if r.query == Query.CURSOR:
            prefix, count, after = msgspec.msgpack.decode(r.key, type=tuple[bytes, int, bytes])
        refuse("bad-key", len(prefix) > KEY_BYTES_MAX)
        held = {e.parts.domain for e in self.entries if e.parts}
        held |= self.pauses.keys() | {name for name, limit in self.limits.items() if limit}
        names = sorted(name for name in held if name != EVERYTHING and name.startswith(prefix))
        names = [name for name in names if after is None or name > after]
        shown = names[: count or None]
        if self.page_pairs is not None:
            assert bool(names) <= self.page_pairs <= len(shown)
            shown = shown[: self.page_pairs]
        found = [self.do_stats(session, Request(Function.STATS, key=name)) for name in shown]
        following = msgspec.msgpack.encode((prefix, count, shown[-1])) if shown else None
        return Reply(
            pairs=[pair for reply in found for pair in reply.pairs or ()],
            cursor=following if len(shown) < len(names) else None,
        )

    def stats_of_entry(self, e: Entry, r: Request) -> Reply:
        state = "worked on" if e.token else "buried" if e.buried else "delayed"
        if state == "delayed" and not e.parts:
            state = "plain"
        elif state == "delayed" and self.is_due(e):
            state = "ready"
        reason = e.reason.decode("utf-8", "replace") if e.buried else None
        error = None if e.error is None else e.error.decode("utf-8", "replace")
        facts = {"state": state, "attempts": e.attempts, "buried_reason": reason}
        facts |= {"last_error": error, "worked_on_until": e.token}
        if r.flags & Bit.META and e.parts:
            waits = [self.waits_for(w.request, e.parts.domain) for w in self.waiters]
            facts["domain_next_waiting"] = sum(waits)
        return Reply(pairs=[Pair(r.key, ValueType.STRING, json.dumps(facts).encode())])

    def due_since(self, due: list[Entry]) -> list[int]:
        """Since when the oldest are due; of those without an instant, the first to be worked on."""
        at_once = [e for e in due if not e.not_before]
        latest_first = sorted(at_once, key=lambda e: -e.arrival)
        firsts = {e.parts[:2]: e for e in latest_first if e.parts}  # by domain and priority
        since = [e.not_before for e in due if e.not_before]
        return since + [e.created for e in firsts.values()]


HANDLERS: dict[int, Callable[[Model, Hashable, Request], Reply | None]] = {
    int(function): getattr(Model, f"do_{function.name.lower()}")
    for function in Function
    if function.declared.by_engine
}
