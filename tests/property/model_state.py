"""The naive model's state, and what time does to it. See model.py."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from fastjournal.protocol.messages import Reply
from tests.property.model_parts import U64_MAX, Entry, Rules, Waiter


@dataclass
class State:
    """Entries, tombstones, turns and who waits."""

    rules: Rules = field(default_factory=Rules)
    clock: int = 0
    now: int = 0
    entries: list[Entry] = field(default_factory=list)
    tombstones: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Primary key to (timestamp, instant at which it was laid), the oldest first."""
    turns: list[bytes] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)
    ended: list[tuple[Hashable, Reply]] = field(default_factory=list)
    arrivals: int = 0
    displacements: int = 0
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
        if e.uri is None:
            return []
        others = [o for o in self.entries if o is not e and o.uri == e.uri]
        return [o for o in others if o.token > self.clock]

    def waits(self, e: Entry) -> bool:
        return e.parts is not None and not e.token and not e.buried

    def is_due(self, e: Entry) -> bool:
        return self.waits(e) and e.not_before <= self.clock and not self.holders(e)

    def due(self, domain: bytes) -> list[Entry]:
        mine = [e for e in self.entries if e.parts and e.parts.domain == domain and self.is_due(e)]
        return sorted(mine, key=Entry.order)

    def next_at(self, domain: bytes) -> int | None:
        """The first instant at which an entry of the domain comes back to its queue."""
        mine = [e for e in self.entries if e.parts and domain in (b"", e.parts.domain)]
        ats = [e.token for e in mine if e.token and e.displaced_at is None]
        for e in mine:
            if self.waits(e) and not self.is_due(e):
                ats.append(max([e.not_before, *(o.token for o in self.holders(e))]))
        return min(ats, default=None)

    # --- time ------------------------------------------------------------------------------------

    def later(self, duration: int) -> int:
        return min(self.clock + duration, U64_MAX)

    def next_event(self) -> int | None:
        """The first instant at which time alone changes an entry."""
        lives = [e.expires for e in self.entries if e.expires and not e.token]
        return min([*self.returns(), *lives], default=None)

    def returns(self) -> list[int]:
        """When leases and delays end."""
        delays = [e.not_before for e in self.entries if e.not_before > self.clock]
        return delays + [e.token for e in self.entries if e.token]

    def next_wake(self) -> int | None:
        """The first instant at which a waiting NEXT is answered if no request comes."""
        ats = [self.next_at(w.request.key) for w in self.waiters]
        ats += [w.deadline for w in self.waiters]
        return min((at for at in ats if at is not None), default=None)

    def advance(self, now: int) -> None:
        """Let everything happen that time brings up to now."""
        self.now = now
        while (at := min(self.returns(), default=now + 1)) <= now:
            self.clock = max(self.clock, at)
            over = [e for e in self.entries if e.token and e.token <= at]
            for e in sorted(over, key=lambda e: e.displacement):
                e.attempts = min(e.attempts + 1, 0xFFFF)
                if e.parts is not None and 0 < self.rules.attempts_max <= e.attempts:
                    e.buried = True
                self.end_lease(e)
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

    def update_turns(self) -> None:
        """Domains that are no longer due leave, those that became due enter by name."""
        due = {e.parts.domain for e in self.entries if e.parts and self.is_due(e)}
        self.turns = [d for d in self.turns if d in due]
        self.turns += sorted(due - set(self.turns))

    # --- small changes ---------------------------------------------------------------------------

    def lay_tombstone(self, key: bytes, timestamp: int) -> None:
        before, _ = self.tombstones.pop(key, (0, 0))
        self.tombstones[key] = (max(timestamp, before), self.now)
        while len(self.tombstones) > self.rules.tombstones_max:
            del self.tombstones[next(iter(self.tombstones))]

    def end_lease(self, e: Entry) -> None:
        e.token = 0
        if e.displaced_at is not None:
            self.entries.remove(e)
            self.lay_tombstone(e.key, e.displaced_at)
        elif 0 < e.expires <= self.now:
            self.entries.remove(e)

    def lease(self, entries: list[Entry], duration: int) -> int:
        """Lease all of them until the instant that is the token."""
        deadline = min(self.later(duration), U64_MAX - 1000) // 1000 * 1000
        while True:
            token = deadline + self.leases % 1000
            self.leases += 1
            if all(e.token_before != token for e in entries):
                break
        for e in entries:
            e.token = e.token_before = token
        return token
