"""The naive model's state, and what time does to it. See model.py."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from fastjournal.limits import TOMBSTONE_BYTES
from fastjournal.protocol.messages import Pair, Reply, Request
from tests.property.model_parts import U64_MAX, Bit, Entry, RefusedError, Rules, Waiter, refuse

LIMIT_DEFAULTS = {
    "interval_us": "interval_us_default",
    "jobs": "jobs_default",
    "lease_us": "lease_us_default",
    "attempts": "attempts_max",
}
"""Limit of a domain to the rule that holds where the domain has none of its own."""


EVERYTHING = b""
"""Key of a PAUSE of all domains; also that pause's place among those of the domains."""


def moved(instant: int, step_us: int) -> int:
    """An instant moved by so much: it stays one, and is not 0."""
    return min(max(instant + step_us, 1), U64_MAX)


@dataclass
class State:
    """Entries, tombstones, turns, pauses and who waits."""

    rules: Rules = field(default_factory=Rules)
    clock: int = 0
    now: int = 0
    entries: list[Entry] = field(default_factory=list)
    tombstones: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Primary key to (timestamp, instant at which it was laid), the oldest first."""
    laid: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """Key and timestamp of every tombstone so far, and when it was laid last."""
    turns: list[bytes] = field(default_factory=list)
    cycles: dict[str, bytes] = field(default_factory=dict)
    """Which domain was served last, for each list of domains and each prefix."""
    pauses: dict[bytes, int] = field(default_factory=dict)
    """Domain to the instant at which its pause ends."""
    pauses_logged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Domain to the end in the newest record of its pause, which may be over, and its time."""
    limits: dict[bytes, dict[str, int]] = field(default_factory=dict)
    """Domain to what LIMIT has set."""
    delivered_at: dict[bytes, int] = field(default_factory=dict)
    """Domain to the instant of its last hand-out."""
    delivered_at_logged: dict[bytes, int] = field(default_factory=dict)
    """The same as far as a restart knows it."""
    waiters: list[Waiter] = field(default_factory=list)
    ended: list[tuple[Hashable, Reply]] = field(default_factory=list)
    arrivals: int = 0
    displacements: int = 0
    leases: int = 0
    leases_logged: int = 0
    """Value of ``leases`` after the last lease of a persistent entry."""

    # --- what can be computed from the list ------------------------------------------------------

    def find(self, key: bytes | None) -> Entry | None:
        """The entry that stands under this key, primary, URI or link."""
        for e in self.entries:
            if key in e.all_keys():
                return e
        return None

    def found(self, key: bytes) -> Entry:
        e = self.find(key)
        if e is None:
            raise RefusedError("not-found")
        return e

    def holders(self, e: Entry) -> list[Entry]:
        """Other entries that are worked on and stand for the same URI."""
        if e.uri is None:
            return []
        others = [o for o in self.entries if o is not e and e.uri in [o.uri, *o.taken]]
        return [o for o in others if o.leased_until > self.clock]

    def waits(self, e: Entry) -> bool:
        return e.parts is not None and not e.token and not e.buried

    def is_due(self, e: Entry) -> bool:
        if e.not_before > self.clock or e.locked_by is not None or not self.waits(e):
            return False
        return e.uri is None or not self.holders(e)

    def due(self, domain: bytes) -> list[Entry]:
        """Return the entries of a domain that NEXT may lease, in the order of work."""
        if domain in self.pauses or not self.has_room(domain):
            return []
        mine = [e for e in self.entries if e.parts and e.parts.domain == domain and self.is_due(e)]
        return sorted(mine, key=Entry.order)

    # --- limits ----------------------------------------------------------------------------------

    def limit(self, domain: bytes, name: str) -> int:
        """Return the limit of a domain: its own, else the default; 0: no limit."""
        own = self.limits[domain].get(name, 0) if domain in self.limits else 0
        return own or getattr(self.rules, LIMIT_DEFAULTS[name])

    def worked_on_in(self, domain: bytes) -> list[Entry]:
        return [e for e in self.entries if e.token and e.parts and e.parts.domain == domain]

    def has_room(self, domain: bytes, taken: Sequence[Entry] = ()) -> bool:
        """Whether one more entry may be delivered, besides those taken for the same reply."""
        mine = [e for e in taken if e.parts and e.parts.domain == domain]
        jobs = self.limit(domain, "jobs")
        if jobs and len(self.worked_on_in(domain)) + len(mine) >= jobs:
            return False
        return not self.limit(domain, "interval_us") or not (mine or self.waits_until(domain))

    def waits_until(self, domain: bytes) -> int:
        """When the interval after the last hand-out is over; 0: it is."""
        last = self.delivered_at.get(domain)
        interval = 0 if last is None else self.limit(domain, "interval_us")
        end = min(last + interval, U64_MAX) if last is not None and interval else 0
        return end if end > self.clock else 0

    def room_at(self, domain: bytes) -> int:
        """When one more may be delivered, where nobody ends a lease before its time."""
        full = 0
        jobs = self.limit(domain, "jobs")
        if jobs and len(self.worked_on_in(domain)) >= jobs:
            full = min(e.leased_until for e in self.worked_on_in(domain))
        return max(full, self.waits_until(domain))

    def note_delivery(self, entries: list[Entry], *, leased: bool) -> None:
        """These entries were delivered.

        A restart knows it by the record of a persistent lease, and where an interval runs.
        """
        for e in entries:
            if e.parts is not None:
                self.delivered_at[e.parts.domain] = self.clock
                if (leased and e.persistent) or self.waits_until(e.parts.domain):
                    self.delivered_at_logged[e.parts.domain] = self.clock

    # --- when something comes --------------------------------------------------------------------

    def next_at(self, domain: bytes) -> int | None:
        """The first instant at which an entry of the domain may be delivered."""
        ats = []
        for e in self.entries:
            if e.parts is None or domain not in (b"", e.parts.domain):
                continue
            pauses = [self.pauses.get(name, 0) for name in (EVERYTHING, e.parts.domain)]
            apart = max(*pauses, self.room_at(e.parts.domain))
            if e.token and e.displaced_at is None:
                ats.append(max(e.leased_until, apart))
            elif self.waits(e) and not self.is_due(e):
                work = [o.leased_until for o in self.holders(e)]
                ats.append(max([e.not_before, e.locked_until, apart, *work]))
            elif self.waits(e) and apart:
                ats.append(apart)
        return min(ats, default=None)

    # --- time ------------------------------------------------------------------------------------

    def later(self, duration: int) -> int:
        return min(self.clock + duration, U64_MAX)

    def next_event(self) -> int | None:
        """The first instant at which time alone changes an entry."""
        lives = [e.expires for e in self.entries if e.expires and not e.token]
        return min([*self.returns(), *lives], default=None)

    def returns(self) -> list[int]:
        """When leases, delays, locks, pauses and intervals end."""
        ends = list(self.pauses.values())
        ends += [end for domain in self.delivered_at if (end := self.waits_until(domain))]
        for e in self.entries:
            if e.not_before > self.clock:
                ends.append(e.not_before)
            if e.token:
                ends.append(e.leased_until)
            if e.locked_by is not None:
                ends.append(e.locked_until)
        return ends

    def next_wake(self) -> int | None:
        """The first instant at which a waiting NEXT is answered if no request comes."""
        ats = [self.next_at(w.request.key) for w in self.waiters]
        ats += [w.deadline for w in self.waiters]
        return min((at for at in ats if at is not None), default=None)

    def apply_time(self, now: int) -> None:
        """Let everything happen that time brings up to now."""
        self.now = now
        while (at := min(self.returns(), default=now + 1)) <= now:
            self.clock = max(self.clock, at)
            self.pauses = {domain: end for domain, end in self.pauses.items() if end > at}
            for e in self.entries:
                if e.locked_until <= at:
                    self.unlock(e)
            over = [e for e in self.entries if e.token and e.leased_until <= at]
            # what stands in no domain ends behind what happens in domains at the same instant
            outside = [e for e in over if e.parts is None or e.displaced_at is not None]
            for e in over:
                if e not in outside:
                    self.run_out(e)
            self.update_turns()
            for e in sorted(outside, key=lambda e: e.displacement):
                self.run_out(e)
            self.update_turns()
        self.clock = now
        self.expire()
        self.update_turns()
        for key, (_, laid) in list(self.tombstones.items()):
            if laid + self.rules.tombstone_ttl_us <= now:
                del self.tombstones[key]

    def expire(self) -> None:
        for e in [e for e in self.entries if 0 < e.expires <= self.now and not e.token]:
            self.entries.remove(e)

    def update_turns(self, last: bytes = b"") -> None:
        """Domains that are no longer due leave, those that became due enter by name, one last."""
        standing: set[bytes] = set()
        due: set[bytes] = set()
        for e in self.entries:
            if e.parts is not None:
                domain = e.parts.domain
                standing.add(domain)
                if domain not in due and self.is_due(e):
                    due.add(domain)
        for domain in self.delivered_at.keys() - standing:
            if not self.waits_until(domain):
                del self.delivered_at[domain]
        due = {domain for domain in due if domain not in self.pauses and self.has_room(domain)}
        self.turns = [d for d in self.turns if d in due]
        entering = due.difference(self.turns)
        self.turns += sorted(entering, key=lambda domain: (domain == last, domain))

    # --- steps of the clock ----------------------------------------------------------------------

    def clock_stepped(self, now: int, step_us: int) -> None:
        """Move the ends of durations with the clock; those of instants stay."""
        for e in self.entries:
            if e.token:
                e.moved, e.leased_at = moved(e.leased_until, step_us) - e.token, now
            if e.locked_by is not None:
                e.locked_until = moved(e.locked_until, step_us)
        for w in self.waiters:
            w.deadline = None if w.deadline is None else moved(w.deadline, step_us)
        for name, at in self.delivered_at.items():
            if step_us < 0 or self.waits_until(name):
                self.delivered_at[name] = moved(at, step_us)
        if step_us > 0:
            return
        self.now = self.clock = now
        self.pauses = {name: moved(end, step_us) for name, end in self.pauses.items()}
        self.pauses_logged |= {name: (end, now) for name, end in self.pauses.items()}
        for e in self.entries:
            if e.parts is not None and e.not_before > max(now, e.parts.not_before_us):
                e.not_before = max(e.parts.not_before_us, e.not_before + step_us)
                e.delayed_at = now
            began = e.expires - e.ttl
            if e.ttl and began > now and began in (e.accessed, e.modified):
                e.expires, e.touched_at = e.expires + step_us, now
        self.tombstones = {
            key: (timestamp, min(laid, now)) for key, (timestamp, laid) in self.tombstones.items()
        }
        self.update_turns()

    def begin_anew(self, now: int) -> None:
        """At a start, let durations begin now that began by a clock that was ahead."""
        self.now = self.clock = now
        ahead = now + 1_000_000
        for e in self.entries:
            if e.token and e.leased_at > ahead:
                until = moved(now, e.leased_until - e.leased_at)
                e.moved, e.leased_at = until - e.token, now
            elif e.token and e.moved and e.leased_until <= now:
                # whether its worker would have renewed it, nobody knows
                self.end_lease(e)
            if e.parts is not None and e.delayed_at > ahead:
                delayed = now + e.not_before - e.delayed_at
                if e.not_before > max(now, e.parts.not_before_us):
                    e.not_before, e.delayed_at = max(e.parts.not_before_us, delayed), now
            if e.touched_at > ahead and e.expires > e.touched_at:
                e.expires, e.touched_at = now + e.expires - e.touched_at, now
            elif e.ttl and e.modified > ahead and e.expires == e.modified + e.ttl:
                e.expires, e.touched_at = now + e.ttl, now
        for name, (end, at) in self.pauses_logged.items():
            if at > ahead and end:
                self.pauses_logged[name] = (moved(now, end - at), now)
        self.pauses = {name: end for name, (end, _) in self.pauses_logged.items() if end > now}
        self.delivered_at = {name: min(at, now) for name, at in self.delivered_at.items()}

    # --- small changes ---------------------------------------------------------------------------

    def lay_tombstone(self, key: bytes, timestamp: int) -> None:
        before, _ = self.tombstones.pop(key, (0, 0))
        self.tombstones[key] = (max(timestamp, before), self.now)
        self.laid[key, max(timestamp, before)] = self.laid[key, timestamp] = self.now
        while len(self.tombstones) > self.rules.tombstones_max or (
            sum(TOMBSTONE_BYTES + len(key) for key in self.tombstones)
            > self.rules.tombstones_bytes_max
        ):
            del self.tombstones[next(iter(self.tombstones))]

    def run_out(self, e: Entry) -> None:
        """End a lease that has lasted for its time."""
        earlier, ended = e.attempts, e.leased_until
        e.attempts = min(e.attempts + 1, 0xFFFF)
        is_last = self.has_failed_enough(e)
        if earlier and e.parts is not None and not is_last:
            delay = min(
                self.rules.retry_delay_us << min(earlier, 64), self.rules.retry_delay_us_max
            )
            if ended + delay > e.not_before and delay:
                e.not_before, e.delayed_at = min(ended + delay, U64_MAX), self.now
        self.end_lease(e)
        if is_last:
            e.buried, e.reason = True, b"attempts reached max-attempts"

    def has_failed_enough(self, e: Entry) -> bool:
        """Whether a bound of its domain or of its lease is reached, as its attempt has failed."""
        bounds = (self.limit(e.parts.domain, "attempts"), e.attempts_max) if e.parts else ()
        return any(0 < most <= e.attempts for most in bounds)

    def end_lease(self, e: Entry) -> None:
        until, e.token, e.attempts_max = e.leased_until, 0, 0
        if e.displaced_at is not None:
            self.entries.remove(e)
            self.lay_tombstone(e.key, e.displaced_at)
        elif 0 < e.expires <= self.now:
            self.entries.remove(e)
        else:
            self.start_chain(e, min(self.now, until))

    def start_chain(self, e: Entry, at: int) -> None:
        """Work on it has ended, or it was kicked: it may be postponed from here on."""
        e.first_due = max(e.not_before, at)

    def chain_of(self, e: Entry) -> int:
        """When the work that a SET takes over from this entry was first due; 0: it takes none."""
        return (e.first_due or max(e.not_before, e.created)) if self.waits(e) else 0

    def lease(self, entries: list[Entry], duration: int) -> int:
        """Lease all of them until the instant that is the token."""
        # a saturated end leaves room for the milliseconds that a search may go through
        last = U64_MAX // 1000 - 1 - 2 * len(entries) // 1000
        millisecond = min(-(-(self.clock + duration) // 1000), last)
        taken = {e.token_before for e in entries}
        tried = 0
        while True:
            token = (millisecond + max(tried - 1, 0) // 1000) * 1000 + self.leases % 1000
            self.leases += 1
            tried += 1
            if token not in taken:
                break
        for e in entries:
            e.token = e.token_before = token
            e.moved, e.leased_at = 0, self.clock
            e.renews = set()
        if any(e.persistent for e in entries):
            self.leases_logged = self.leases
        return token

    def locked(self, e: Entry, session: Hashable) -> bool:
        """Another session has locked it."""
        return e.locked_by is not None and e.locked_by != session

    def unlock(self, e: Entry) -> None:
        e.locked_by, e.locked_until = None, 0

    # --- parts of the answers --------------------------------------------------------------------

    def pair(self, e: Entry, r: Request, key: bytes | None = None) -> Pair:
        """The pair of a reply under this key, with the entry's other key."""
        other = b"" if e.uri is None or e.uri in e.taken else e.uri
        paused = e.parts is not None and e.parts.domain in self.pauses
        return Pair(
            key or e.key,
            e.value_type,
            e.value if r.flags & Bit.DATA else b"",
            e.key if key not in (None, e.key) else other,
            e.meta(paused=paused) if r.flags & Bit.META else None,
        )

    def skewed(self, r: Request) -> bool:
        return r.timestamp > self.clock + self.rules.clock_skew_us_max

    def writable(self, key: bytes, session: Hashable) -> Entry:
        """The entry under the key, where there is one that this session may change."""
        e = self.found(key)
        refuse("locked", self.locked(e, session))
        return e

    def leased(self, session: Hashable, r: Request, token: int | None) -> Entry:
        e = self.writable(r.key, session)
        refuse("lease-lost", not e.token or e.token != token)
        return e
