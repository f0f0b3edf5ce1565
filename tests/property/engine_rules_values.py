"""Rules of test_engine_model.py: numbers and sizes, more keys, locks, and work set aside."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.functions import OF_DOMAINS
from tests.property.engine_machine import EngineMachine
from tests.property.engine_strategies import (
    DOMAINS,
    JOURNAL_KEYS,
    SESSIONS,
    ages,
    durations,
    findable,
    flags,
    fresh,
    link_keys,
    lock_durations,
    numbers,
    pause_durations,
    picks,
    reasons,
    renames,
    settable,
    sizes,
    storable,
)
from tests.property.random_sessions import LIMITS
from tests.property.subject import request

Value = tuple[int, bytes] | None
OTHERS = set(OF_DOMAINS) - {Function.NEXT, Function.PAUSE}
"""Functions of a domain that have no rule of their own."""


def with_value(value: Value, **fields: Any) -> dict[str, Any]:
    """The fields of a request that carries this value."""
    return fields if value is None else {**fields, "value": value[1], "kind": value[0]}


class ValueRules(EngineMachine):
    """ADD, NOT, TRUNCATE, LINK, RENAME, LOCK, UNLOCK."""

    @rule(key=settable, value=storable, overwrite=st.booleans(), number=numbers)
    def store_and_add(self, key: bytes, value: Value, overwrite: bool, number: Value) -> None:
        bits = Flag.OVERWRITE * overwrite
        at = self.write_time(True, 0)
        self.ask(request(Function.SET, key, **with_value(value, at=at, flags=bits)))
        self.ask(request(Function.ADD, key, **with_value(number, at=at)))

    @rule(
        key=findable, value=numbers, is_fresh=fresh, age=ages, bits=flags(Flag.OVERWRITE, Flag.META)
    )
    def add(self, key: bytes, value: Value, is_fresh: bool, age: int, bits: int) -> None:
        at = self.write_time(is_fresh, age)
        fields = with_value(value, at=at, flags=bits, ttl=1, timeout=self.now + 1)
        self.ask(request(Function.ADD, key, **fields))

    @rule(
        key=findable,
        value=storable,
        is_fresh=fresh,
        age=ages,
        bits=flags(Flag.OVERWRITE, Flag.META),
    )
    def flip(self, key: bytes, value: Value, is_fresh: bool, age: int, bits: int) -> None:
        at = self.write_time(is_fresh, age)
        self.ask(request(Function.NOT, key, **with_value(value, at=at, flags=bits)))

    @rule(key=findable, size=sizes, is_fresh=fresh, age=ages)
    def truncate(self, key: bytes, size: Value, is_fresh: bool, age: int) -> None:
        at = self.write_time(is_fresh, age)
        self.ask(request(Function.TRUNCATE, key, **with_value(size, at=at)))

    @rule(key=findable, link=link_keys)
    def link(self, key: bytes, link: bytes | None) -> None:
        self.ask(request(Function.LINK, key, uri=link))

    @precondition(lambda self: self.model.entries)
    @rule(pick=picks, link=link_keys)
    def link_what_is_there(self, pick: int, link: bytes | None) -> None:
        entry = self.model.entries[pick % len(self.model.entries)]
        self.ask(request(Function.LINK, entry.key, uri=link))

    @rule(key=findable, to=renames, is_fresh=fresh, age=ages, bits=flags(Flag.OVERWRITE))
    def rename(self, key: bytes, to: bytes | None, is_fresh: bool, age: int, bits: int) -> None:
        at = self.write_time(is_fresh, age)
        self.ask(request(Function.RENAME, key, uri=to, at=at, flags=bits))

    @precondition(lambda self: self.model.entries)
    @rule(pick=picks, to=renames, bits=flags(Flag.OVERWRITE))
    def rename_what_is_there(self, pick: int, to: bytes | None, bits: int) -> None:
        entry = self.model.entries[pick % len(self.model.entries)]
        at = self.write_time(True, 0)
        self.ask(request(Function.RENAME, entry.key, uri=to, at=at, flags=bits))

    @rule(key=findable, timeout=lock_durations, session=st.sampled_from(SESSIONS))
    def lock(self, key: bytes, timeout: int | None, session: str) -> None:
        self.ask(request(Function.LOCK, key, timeout=timeout), session)

    @precondition(lambda self: self.model.entries)
    @rule(pick=picks, timeout=lock_durations, session=st.sampled_from(SESSIONS))
    def lock_what_is_there(self, pick: int, timeout: int | None, session: str) -> None:
        entry = self.model.entries[pick % len(self.model.entries)]
        self.ask(request(Function.LOCK, entry.key, timeout=timeout), session)

    @rule(key=findable, session=st.sampled_from(SESSIONS))
    def unlock(self, key: bytes, session: str) -> None:
        self.ask(request(Function.UNLOCK, key), session)


class WorkRules(EngineMachine):
    """BURY, KICK, PAUSE, and what else is about a domain."""

    @rule(key=findable, reason=reasons, bits=flags(Flag.WORKED_ON))
    def bury(self, key: bytes, reason: bytes | None, bits: int) -> None:
        self.ask(request(Function.BURY, key, reason, flags=bits))

    @precondition(lambda self: self.model.entries)
    @rule(pick=picks, reason=reasons)
    def bury_what_is_there(self, pick: int, reason: bytes | None) -> None:
        entry = self.model.entries[pick % len(self.model.entries)]
        self.ask(request(Function.BURY, entry.uri or entry.key, reason))

    @precondition(lambda self: self.leased())
    @rule(pick=picks, reason=reasons, off=st.sampled_from([0, 0, 0, 1]))
    def bury_by_token(self, pick: int, reason: bytes | None, off: int) -> None:
        entry = self.leased()[pick % len(self.leased())]
        bits, token = Flag.WORKED_ON, entry.token + off
        self.ask(request(Function.BURY, entry.key, reason, flags=bits, timeout=token))

    @rule(key=findable, count=st.sampled_from([None, 2]))
    def kick(self, key: bytes, count: int | None) -> None:
        self.ask(request(Function.KICK, key or b"p", count=count))

    @rule(
        domain=st.sampled_from([*DOMAINS, b"a", b"b", b"a:1"]),
        count=st.sampled_from([None, 0, 1, 2, 65535]),
    )
    def kick_a_domain(self, domain: bytes, count: int | None) -> None:
        self.ask(request(Function.KICK, uri=domain, count=count))

    @rule(key=st.sampled_from(JOURNAL_KEYS), uri=st.sampled_from([None, b"u"]))
    def set_bury_and_kick(self, key: bytes, uri: bytes | None) -> None:
        self.ask(request(Function.SET, key, b"job", uri=uri, at=self.write_time(True, 0)))
        self.ask(request(Function.BURY, key, b"set aside"))
        self.ask(request(Function.KICK, uri=key[:1], count=3))

    @rule(
        domain=st.sampled_from([b"a", b"a", b"b", b"c", b"none", b"", b"a:"]), ttl=pause_durations
    )
    def pause(self, domain: bytes, ttl: int | None) -> None:
        if not domain or b":" in domain:
            ttl = ttl or 0
        self.ask(request(Function.PAUSE, domain, ttl=ttl))

    @rule(domain=st.sampled_from([b"a", b"a", b"b", b"c", b"none"]), value=st.sampled_from(LIMITS))
    def limit(self, domain: bytes, value: bytes) -> None:
        self.ask(request(Function.LIMIT, domain, value, kind=ValueType.STRING))

    @rule(
        function=st.sampled_from([Function.NEXT, *sorted(OTHERS)]),
        domain=st.sampled_from(DOMAINS),
        count=st.sampled_from([None, 0, 1, 2, 65535]),
        bits=flags(Flag.OVERWRITE, Flag.DATA, Flag.META),
    )
    def ask_about_a_domain(
        self, function: Function, domain: bytes, count: int | None, bits: int
    ) -> None:
        self.ask(request(function, domain, at=self.write_time(True, 0), count=count, flags=bits))

    @rule(uri=st.sampled_from([b"u", b"v"]), pick=picks, ahead=durations)
    def postpone(self, uri: bytes, pick: int, ahead: int) -> None:
        """The same URI again, for later."""
        instant = min(self.now + ahead, 2**63)
        for offset in range(1 + pick % 3):
            key = b"a:1:%d:late" % (instant + offset)
            self.ask(request(Function.SET, key, b"later", uri=uri, at=self.write_time(True, 0)))
