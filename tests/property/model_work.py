"""The naive model's BURY, KICK, PAUSE, LIMIT, PEEK and PURGE. See model.py."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from itertools import takewhile, zip_longest
from typing import Any

from fastjournal.protocol.constants import Query, ValueType
from fastjournal.protocol.messages import Reply, Request
from tests.property.model_parts import (
    KEY_BYTES_MAX,
    Bit,
    Entry,
    RefusedError,
    check_key,
    refuse,
    reply_bytes,
    token_of,
)
from tests.property.model_state import EVERYTHING, State

REASON_BYTES_MAX = 4096
KICK_ENTRIES_MAX = 250
LIMIT_NAMES = ("interval_us", "jobs", "lease_us", "attempts")
LIMIT_MAX = 2**63 - 1


def check_domain(domain: bytes) -> None:
    refuse("bad-key", not 0 < len(domain) <= KEY_BYTES_MAX or b":" in domain)


def numbers_in(value: bytes, names: Sequence[str]) -> dict[str, int]:
    """The JSON object in a value, which may have these names."""
    refuse("too-large", len(value) > 4096)
    try:
        given = json.loads(value)
    except ValueError:
        raise RefusedError("bad-value") from None
    if not isinstance(given, dict):
        raise RefusedError("bad-value")
    for name, number in given.items():
        refuse("bad-value", name not in names or type(number) is not int)
        is_limit = names is LIMIT_NAMES and name == "attempts"
        refuse("bad-value", not (-1 if is_limit else 0) <= number <= LIMIT_MAX)
    return given


SELECTS = ("domains", "ordered", "prefix")


def split_options(value: bytes) -> tuple[dict[str, Any], bytes]:
    """What a NEXT's value says about domains, and the rest of the object."""
    refuse("too-large", len(value) > 4096)
    try:
        given = json.loads(value)
    except ValueError:
        raise RefusedError("bad-value") from None
    if not isinstance(given, dict):
        raise RefusedError("bad-value")
    selects = {name: given.pop(name) for name in SELECTS if name in given}
    return selects, json.dumps(given).encode()


def check_selection(selects: dict[str, Any], key: bytes) -> None:
    names, prefix = selects.get("domains"), selects.get("prefix")
    if names is not None:
        bad = not isinstance(names, list) or not all(isinstance(name, str) for name in names)
        refuse("bad-value", bad)
    refuse("bad-value", type(selects.get("ordered", False)) is not bool)
    refuse("bad-value", prefix is not None and not isinstance(prefix, str))
    refuse("bad-request", names is not None and prefix is not None)
    if names is not None:
        refuse("bad-value", not 0 < len(names) <= 64)
        for name in names:
            check_domain(name.encode())
    if prefix is not None:
        refuse("bad-key", not 0 < len(prefix.encode()) <= 255 or ":" in prefix)
    refuse("bad-request", bool(selects.get("ordered")) and not names)
    refuse("bad-request", bool(key) and bool(names or prefix))


def cycle_of(selects: dict[str, Any]) -> str:
    return str(list(dict.fromkeys(selects.get("domains") or ())) or selects["prefix"])


class Work(State):
    """Functions that bury work (dead letters) and bring it back."""

    def do_bury(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        token = token_of(r)
        refuse("too-large", len(r.value) > REASON_BYTES_MAX)
        e = self.writable(r.key, session)
        refuse("lease-lost", token is not None and (not e.token or e.token != token))
        if e.token:
            self.end_lease(e)
        if e.buried and e.reason != r.value:
            e.delayed_at, e.touched_at = self.clock, 0
        e.buried, e.reason = True, r.value
        return Reply()

    def do_kick(self, session: Hashable, r: Request) -> Reply:
        if r.key:
            check_key(r.key)
            e = self.writable(r.key, session)
            kicked = [e] if e.buried else []
        else:
            if r.query != Query.RANGE or r.second_key is None:
                raise RefusedError("bad-request")
            check_domain(r.second_key)
            mine = [e for e in self.entries if e.parts and e.parts.domain == r.second_key]
            buried = [e for e in mine if e.buried and not self.locked(e, session)]
            count = min(1 if r.count is None else r.count, KICK_ENTRIES_MAX)
            kicked = sorted(buried, key=Entry.order)[:count]
        for e in kicked:
            e.buried, e.reason, e.attempts = False, b"", 0
            # its record is a new one
            e.delayed_at, e.touched_at = self.clock, 0
            self.start_chain(e, self.now)
        return Reply(ttl=len(kicked))

    def do_peek(self, _session: Hashable, r: Request) -> Reply:
        refuse("bad-key", len(r.key) > KEY_BYTES_MAX or b":" in r.key)
        if r.value_type is not None:
            refuse("bad-value", r.value_type != ValueType.STRING)
            selects, numbers = split_options(r.value)
            numbers_in(numbers, ("attempts",))
            check_selection(selects, r.key)
        selected = self.selection(r)
        due = sorted(filter(self.is_due, self.entries), key=Entry.order)
        domains = [r.key] if r.key else self.turns if EVERYTHING not in self.pauses else []
        if selected:
            domains = [domain for domain in self.cycle(r) if domain in domains]
        queues = [[e for e in due if e.parts and e.parts.domain == domain] for domain in domains]
        for domain, queue in zip(domains, queues, strict=True):
            queue[:] = [e for at, e in enumerate(queue) if self.has_room(domain, queue[:at])]
        by_turns = [e for turn in zip_longest(*queues) for e in turn if e is not None]
        if selected.get("ordered"):
            by_turns = [e for queue in queues for e in queue]
        if not r.timeout and not r.flags & Bit.OVERWRITE:
            # as NEXT: one token, so one default lease
            lengths = [self.limit(e.parts.domain, "lease_us") for e in by_turns if e.parts]
            same = takewhile(lambda length: length == lengths[0], lengths)
            by_turns = by_turns[: len(list(same))]
        pairs = [self.pair(e, r) for e in by_turns[: 1 if r.count is None else r.count]]
        while len(pairs) > 1 and reply_bytes(pairs) > self.rules.reply_bytes_max:
            pairs.pop()
        timeout = None if pairs else self.next_at_for(r)
        return Reply(flags=Bit.TWO_KEYS, timeout=timeout, pairs=pairs)

    def selection(self, r: Request) -> dict[str, Any]:
        """The domains or the prefix of a NEXT; empty: it has none."""
        if r.value_type is None:
            return {}
        selects, _ = split_options(r.value)
        return selects if selects.get("domains") or selects.get("prefix") else {}

    def cycle(self, r: Request, last: bytes | None = None) -> list[bytes]:
        """The domains that a NEXT selects, behind the one that was served last."""
        selects = self.selection(r)
        if not selects.get("ordered"):
            last = last or self.cycles.get(cycle_of(selects))
        if selects.get("domains"):
            names = list(dict.fromkeys(name.encode() for name in selects["domains"]))
            if selects.get("ordered") or last not in names:
                return names
            at = names.index(last) + 1
            return names[at:] + names[:at]
        known = sorted({e.parts.domain for e in self.entries if e.parts})
        names = [name for name in known if name.startswith(selects["prefix"].encode())]
        last = last or b""
        return [name for name in names if name > last] + [name for name in names if name <= last]

    def has_more(self, domain: bytes, taken: list[Entry]) -> bool:
        """Whether a NEXT that has taken these may take one more of the domain."""
        return any(e not in taken and self.has_room(domain, taken) for e in self.due(domain))

    def next_at_for(self, r: Request) -> int | None:
        names = self.selection(r).get("domains")
        ats = [self.next_at(name.encode()) for name in names or ()]
        if names:
            return min((at for at in ats if at is not None), default=None)
        return self.next_at(r.key)

    def do_pause(self, _session: Hashable, r: Request) -> Reply:
        if r.key != EVERYTHING:
            check_domain(r.key)
        if r.ttl is None:
            raise RefusedError("bad-request")
        was_paused = self.pauses.pop(r.key, None) is not None
        if r.ttl:
            self.pauses[r.key] = self.later(r.ttl)
        if r.ttl or was_paused:
            # else nothing changed: a pause that was over may stand again where a clock is set back
            self.pauses_logged[r.key] = (self.pauses.get(r.key, 0), self.clock)
        return Reply()

    def do_purge(self, session: Hashable, r: Request) -> Reply:
        check_domain(r.key)
        mine = [e for e in self.entries if e.parts and e.parts.domain == r.key and not e.token]
        ready = [e for e in mine if self.is_due(e)]
        delayed = [e for e in mine if not e.buried and not self.is_due(e)]
        buried = [e for e in mine if e.buried]
        standing = sorted(ready, key=Entry.order)
        standing += sorted(delayed, key=lambda e: (self.due_at(e), e.arrival))
        standing += sorted(buried, key=Entry.order)
        standing = [e for e in standing if not self.locked(e, session)]
        purged = standing[: min(1 if r.count is None else r.count, 250)]
        timestamp = self.clock if self.skewed(r) else r.timestamp
        for e in purged:
            self.entries.remove(e)
            if not r.flags & Bit.OVERWRITE:
                self.lay_tombstone(e.key, max(timestamp, e.timestamp))
        return Reply(ttl=len(purged))

    def due_at(self, e: Entry) -> int:
        """The instant until which an entry is delayed."""
        return max([e.not_before, e.locked_until, *(o.leased_until for o in self.holders(e))])

    def do_limit(self, _session: Hashable, r: Request) -> Reply:
        check_domain(r.key)
        refuse("bad-value", r.value_type != ValueType.STRING)
        given = numbers_in(r.value, LIMIT_NAMES)
        before = self.limits.get(r.key, {})
        after = {name: number for name, number in {**before, **given}.items() if number}
        if after == before:
            return Reply()
        self.limits[r.key] = after
        if self.waits_until(r.key):
            self.delivered_at_logged[r.key] = self.delivered_at[r.key]
        return Reply()
