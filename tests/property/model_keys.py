"""The naive model's LINK, RENAME, LOCK and UNLOCK. See model.py."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.keys import parse_journal_key
from fastjournal.protocol.messages import Reply, Request
from tests.property.model_parts import Bit, check_key, refuse, second_key_of
from tests.property.model_state import State

LOCK_US_DEFAULT = 60_000_000
LOCKS_PER_CONNECTION_MAX = 1000
LINKS_PER_ENTRY_MAX = 64
LINK_BYTES_MAX = 32_768


class Keys(State):
    """Functions that change the keys of an entry, and who may write it."""

    def do_link(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        key = second_key_of(r)
        e = self.writable(r.key, session)
        refuse("exists", self.find(key) is not None)
        others = [o for o in self.entries if o is not e and o.leased_until > self.clock]
        refuse("worked-on", any(key in [o.uri, *o.taken] for o in others))
        if key in e.taken:
            # it led here before
            e.taken.remove(key)
            return Reply()
        refuse("too-large", len(e.links) >= LINKS_PER_ENTRY_MAX)
        refuse("too-large", sum(map(len, e.links)) + len(key) > LINK_BYTES_MAX)
        e.links.append(key)
        return Reply()

    def do_rename(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        key = second_key_of(r)
        refuse("bad-key", key == r.key)
        e = self.found(r.key)
        refuse("bad-key", e.key != r.key)
        target = self.find(key)
        stone = self.tombstones.get(key)
        replaces = bool(r.flags & Bit.OVERWRITE)
        refuse("clock-skew", self.skewed(r))
        refuse("locked", self.locked(e, session))
        refuse("locked", target is not None and self.locked(target, session))
        refuse("stale", r.timestamp < e.timestamp)
        refuse("stale", replaces and target is not None and r.timestamp < target.timestamp)
        refuse("stale", stone is not None and r.timestamp <= stone[0])
        refuse("exists", target is not None and (not replaces or target.key != key))
        refuse("exists", key in e.taken)
        refuse("worked-on", target is not None and bool(target.token))
        if target is not None:
            self.entries.remove(target)
        self.tombstones.pop(key, None)
        self.lay_tombstone(r.key, r.timestamp)
        was_delayed = e.parts is not None and e.not_before > e.parts.not_before_us
        e.key, e.parts = key, parse_journal_key(key)
        if e.parts is None:
            e.not_before = 0
        else:
            e.not_before = max(e.parts.not_before_us, e.not_before if was_delayed else 0)
        e.timestamp, e.modified = r.timestamp, self.clock
        return Reply()

    def do_lock(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        renews = bool(r.flags & Bit.UPDATE_TIMEOUT)
        refuse("not-owner", renews and self.found(r.key).locked_by != session)
        e = self.writable(r.key, session)
        duration = LOCK_US_DEFAULT if r.timeout is None else r.timeout
        mine = [other for other in self.entries if other.locked_by == session]
        refuse("busy", bool(duration) and e not in mine and len(mine) >= LOCKS_PER_CONNECTION_MAX)
        self.unlock(e)
        if duration:
            e.locked_by, e.locked_until = session, self.later(duration)
        return Reply()

    def do_unlock(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        e = self.found(r.key)
        refuse("not-found", e.locked_by is None)
        refuse("not-owner", e.locked_by != session)
        self.unlock(e)
        return Reply()

    def end_locks(self, session: Hashable) -> None:
        """The session is over."""
        for e in self.entries:
            if e.locked_by == session:
                self.unlock(e)
        self.update_turns()
