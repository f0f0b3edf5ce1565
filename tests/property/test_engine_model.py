"""The engine against the naive model: the same requests at the same instants, equal answers.

Few keys, URIs, domains, timestamps and durations, so that they meet all the time. The run is the
same every time; FASTJOURNAL_EXAMPLES=5000 runs more examples, with a new seed each time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
from tests.property.engine_rules_scans import ListenRules
from tests.property.engine_rules_values import ValueRules, WorkRules
from tests.property.engine_strategies import (
    DOMAINS,
    JOURNAL_KEYS,
    SESSIONS,
    ages,
    durations,
    expiries,
    findable,
    flags,
    fresh,
    job_uris,
    leases,
    optional_durations,
    picks,
    settable,
    ttls,
    uris,
    values,
)
from tests.property.model_parts import U64_MAX
from tests.property.subject import SECOND, START, request


class EngineAgainstModel(ValueRules, WorkRules, ListenRules):
    """Every rule asks both and compares."""

    @rule(
        key=settable,
        uri=uris,
        value=values,
        is_fresh=fresh,
        age=ages,
        bits=flags(Flag.OVERWRITE, Flag.PERSIST, Flag.PERSIST_ALIAS, Flag.WORKED_ON),
        expires_in=expiries,
        ttl=ttls,
    )
    def set(
        self,
        key: bytes,
        uri: bytes | None,
        value: tuple[int, bytes] | None,
        is_fresh: bool,
        age: int,
        bits: int,
        expires_in: int | None,
        ttl: int | None,
    ) -> None:
        timeout = self.now + expires_in if expires_in else expires_in
        kind, data = (0, None) if value is None else value
        at = self.write_time(is_fresh, age)
        self.ask(
            request(
                Function.SET,
                key,
                data,
                kind=kind,
                uri=uri,
                at=at,
                flags=bits,
                timeout=timeout,
                ttl=ttl,
            )
        )

    @rule(
        jobs=st.lists(st.tuples(st.sampled_from(JOURNAL_KEYS), job_uris), min_size=1, max_size=5),
        bits=flags(Flag.OVERWRITE, Flag.PERSIST),
    )
    def set_jobs(self, jobs: list[tuple[bytes, bytes | None]], bits: int) -> None:
        for key, uri in jobs:
            at = self.write_time(True, 0)
            self.ask(request(Function.SET, key, b"job", uri=uri, at=at, flags=bits))

    @rule(key=st.sampled_from(JOURNAL_KEYS), uri=job_uris, domain=st.sampled_from(DOMAINS))
    def set_a_job_and_lease_one(self, key: bytes, uri: bytes | None, domain: bytes) -> None:
        self.ask(request(Function.SET, key, b"job", uri=uri, at=self.write_time(True, 0)))
        self.ask(request(Function.NEXT, domain, timeout=5 * SECOND))

    @precondition(lambda self: self.model.entries)
    @rule(pick=picks, overwrite=st.booleans(), is_younger=st.booleans(), value=values, uri=uris)
    def set_again(
        self,
        pick: int,
        overwrite: bool,
        is_younger: bool,
        value: tuple[int, bytes] | None,
        uri: bytes | None,
    ) -> None:
        entry = self.model.entries[pick % len(self.model.entries)]
        at = entry.timestamp + is_younger
        kind, data = (0, None) if value is None else value
        bits = Flag.OVERWRITE * overwrite
        self.ask(request(Function.SET, entry.key, data, kind=kind, uri=uri, at=at, flags=bits))

    @precondition(lambda self: self.model.tombstones)
    @rule(pick=picks, is_set=st.booleans(), age=st.sampled_from([-1, 0, 1, 60 * SECOND]))
    def write_what_was_deleted(self, pick: int, is_set: bool, age: int) -> None:
        key, (timestamp, _) = list(self.model.tombstones.items())[pick % len(self.model.tombstones)]
        function = Function.SET if is_set else Function.DELETE
        self.ask(request(function, key, b"x", at=timestamp - age))

    @precondition(lambda self: self.leased())
    @rule(
        key=st.sampled_from(JOURNAL_KEYS),
        pick=picks,
        then=st.sampled_from([Function.DELETE, Function.RELEASE, Function.TOUCH, Function.SET]),
        ttl=durations,
    )
    def displace_what_is_worked_on(self, key: bytes, pick: int, then: Function, ttl: int) -> None:
        entry = self.leased()[pick % len(self.leased())]
        at = self.write_time(True, 0)
        uri, token = entry.uri or b"u", entry.token
        self.ask(request(Function.SET, key, b"new", uri=uri, at=at, flags=Flag.OVERWRITE))
        if then is Function.SET:
            bits, at = Flag.OVERWRITE, at + 1
            self.ask(request(then, entry.key, b"over", at=at, flags=bits))
        else:
            bits = Flag.WORKED_ON
            self.ask(request(then, entry.key, at=START, flags=bits, timeout=token, ttl=ttl))

    @rule()
    def ask_when(self) -> None:
        for domain in sorted(set(DOMAINS)):
            self.ask(request(Function.NEXT, domain, count=0))

    @rule(
        key=findable,
        bits=flags(Flag.DATA, Flag.META, Flag.WORKED_ON, Flag.UPDATE_TIMEOUT),
        timeout=optional_durations,
    )
    def get(self, key: bytes, bits: int, timeout: int | None) -> None:
        if timeout and bits & Flag.UPDATE_TIMEOUT:
            timeout = min(self.now + timeout, U64_MAX)
        self.ask(request(Function.GET, key, flags=bits, timeout=timeout))

    @rule(
        key=findable,
        is_fresh=fresh,
        age=ages,
        bits=flags(Flag.OVERWRITE),
        uri=st.sampled_from([None, None, b"u"]),
    )
    def delete(self, key: bytes, is_fresh: bool, age: int, bits: int, uri: bytes | None) -> None:
        at = self.write_time(is_fresh, age)
        self.ask(request(Function.DELETE, key, at=at, flags=bits, uri=uri))

    @precondition(lambda self: self.model.entries)
    @rule(pick=picks, age=st.sampled_from([-1, 0, 1]), bits=flags(Flag.OVERWRITE))
    def delete_what_is_there(self, pick: int, age: int, bits: int) -> None:
        entry = self.model.entries[pick % len(self.model.entries)]
        key = entry.uri if pick % 2 and entry.uri else entry.key
        self.ask(request(Function.DELETE, key, at=entry.timestamp - age, flags=bits))

    @rule(
        domain=st.sampled_from(DOMAINS),
        count=st.sampled_from([None, None, 0, 1, 2, 3, 3, 65535]),
        timeout=leases,
        bits=flags(Flag.DATA, Flag.META) | flags(Flag.DATA, Flag.META, Flag.OVERWRITE),
    )
    def next(self, domain: bytes, count: int | None, timeout: int | None, bits: int) -> None:
        self.ask(request(Function.NEXT, domain, count=count, timeout=timeout, flags=bits))

    @rule(
        session=st.sampled_from(SESSIONS),
        domain=st.sampled_from(DOMAINS),
        count=st.sampled_from([None, 2]),
        timeout=st.sampled_from([None, SECOND]),
        ttl=optional_durations,
        bits=flags(Flag.DATA, Flag.META, Flag.OVERWRITE),
        identifier=st.integers(1, 3),
    )
    def listen(
        self,
        session: str,
        domain: bytes,
        count: int | None,
        timeout: int | None,
        ttl: int | None,
        bits: int,
        identifier: int,
    ) -> None:
        req = request(
            Function.NEXT,
            domain,
            count=count,
            timeout=timeout,
            ttl=ttl,
            flags=bits | Flag.LISTEN,
            identifier=identifier,
        )
        self.ask(req, session)

    @rule(session=st.sampled_from(SESSIONS), identifier=st.integers(1, 3))
    def cancel(self, session: str, identifier: int) -> None:
        self.ask(request(Function.CANCEL, count=identifier, identifier=9), session)

    @rule()
    def those_who_wait_are_served(self) -> None:
        self.serve()

    @precondition(lambda self: self.leased())
    @rule(
        function=st.sampled_from([Function.DELETE, Function.RELEASE, Function.TOUCH]),
        pick=picks,
        by_uri=st.booleans(),
        ttl=optional_durations,
        age=ages,
        bits=flags(Flag.OVERWRITE),
    )
    def use_a_lease(
        self, function: Function, pick: int, by_uri: bool, ttl: int | None, age: int, bits: int
    ) -> None:
        entry = self.leased()[pick % len(self.leased())]
        key = entry.uri if by_uri and entry.uri else entry.key
        at = self.write_time(False, age)
        bits |= Flag.WORKED_ON
        self.ask(request(function, key, at=at, flags=bits, timeout=entry.token, ttl=ttl))

    @rule(
        function=st.sampled_from([Function.DELETE, Function.RELEASE, Function.TOUCH]),
        key=findable,
        pick=picks,
        ttl=optional_durations,
        bits=flags(Flag.OVERWRITE, Flag.WORKED_ON),
        with_token=st.booleans(),
    )
    def use_any_token(
        self,
        function: Function,
        key: bytes,
        pick: int,
        ttl: int | None,
        bits: int,
        with_token: bool,
    ) -> None:
        timeout = self.both.tokens[pick % len(self.both.tokens)] if with_token else None
        at = self.write_time(True, 0)
        self.ask(request(function, key, at=at, flags=bits, timeout=timeout, ttl=ttl))

    @precondition(lambda self: self.model.entries)
    @rule(pick=picks, ttl=durations)
    def touch_the_expiry(self, pick: int, ttl: int) -> None:
        entry = self.model.entries[pick % len(self.model.entries)]
        self.ask(request(Function.TOUCH, entry.key, ttl=ttl))

    @precondition(lambda self: self.model.entries)
    @rule(pick=picks, timeout=leases, bits=flags(Flag.META, Flag.WORKED_ON))
    def lease_what_is_there(self, pick: int, timeout: int | None, bits: int) -> None:
        entry = self.model.entries[pick % len(self.model.entries)]
        self.ask(request(Function.GET, entry.key, flags=bits, timeout=timeout))

    @rule(
        other=st.sampled_from(
            [
                request(Function.NOP),
                request(Function.AUTH, value=b"secret"),
                request(19_999, b"p", b"x"),
                *(request(Function.STATS, domain) for domain in DOMAINS),
            ]
        )
    )
    def others(self, other: Request) -> None:
        self.ask(other)

    @rule(session=st.sampled_from(SESSIONS), quits=st.booleans())
    def connection_ends(self, session: str, quits: bool) -> None:
        if quits:
            self.ask(request(Function.QUIT), session)
            self.serve()
        self.model.end_session(session)
        self.engine.end_session(session)


def test_page_leaves_room_for_a_cursor_with_the_key_that_it_ends_before() -> None:
    run = EngineAgainstModel()
    run.start(
        attempts_max=0,
        tombstone_ttl_us=60 * SECOND,
        tombstones_max=1000,
        tombstones_bytes_max=1_000_000,
        reply_bytes_max=500,
        postpone_us_max=0,
        interval_us_default=0,
        jobs_default=0,
        keeping="everything",
        cold=False,
    )
    for key, size in ((b"v", 143), (b"w" * 60, 144)):
        run.ask(request(Function.SET, key, b"y" * size, kind=ValueType.STRING, at=START))
    asked = run.kept(request(Function.GET, b"v", uri=b"", count=0, flags=Flag.DATA))
    page = run.engine.handle(run.who, asked, run.now)
    assert page is not None
    assert [pair.key for pair in page.pairs or ()] == [b"v"]
    run.scan(asked, pages=50)


EXAMPLES = int(os.environ.get("FASTJOURNAL_EXAMPLES", "0"))

TestEngineAgainstModel = EngineAgainstModel.TestCase
TestEngineAgainstModel.settings = settings(
    max_examples=EXAMPLES or 150,
    stateful_step_count=50,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
