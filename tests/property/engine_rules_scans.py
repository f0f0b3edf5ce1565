"""Rules of test_engine_model.py: GET of many keys, page by page, and LISTEN."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Request
from tests.property.engine_machine import EngineMachine
from tests.property.engine_strategies import (
    ALL_KEYS,
    SESSIONS,
    findable,
    flags,
    leases,
    settable,
)
from tests.property.subject import request

REGEX = Query.REGEX << QUERY_SHIFT
CURSOR = Query.CURSOR << QUERY_SHIFT

EXPRESSIONS = [
    *(
        b"",
        b".",
        b"^a:",
        b"^a:1:0:[xy]$",
        b"x",
        b"u|v",
        b"^[pqlm]$",
        b"^(a|b):.*x",
        b"none",
        b"\xff",
    ),
    *(b"(", b"[", b"*"),
]
edges = st.sampled_from([*ALL_KEYS, b"", b"", b"a", b"b", b"b:", b"z", b"\xff", b"k" * 4097])
counts = st.sampled_from([0, 0, 1, 2, 3, 65535])
scan_bits = flags(Flag.DATA, Flag.META, Flag.WORKED_ON)


class ScanRules(EngineMachine):
    """RANGE, REGEX, CURSOR, each to its end or only its first page."""

    def scan(self, req: Request, *, pages: int) -> None:
        self.both.scan(self.who, self.kept(req), self.now, pages=pages)

    @rule(
        first=edges,
        last=edges,
        count=counts,
        bits=scan_bits,
        timeout=leases | st.none(),
        update=st.sampled_from([False, False, True]),
        pages=st.sampled_from([1, 50]),
    )
    def get_a_range(
        self,
        first: bytes,
        last: bytes,
        count: int,
        bits: int,
        timeout: int | None,
        update: bool,
        pages: int,
    ) -> None:
        bits |= Flag.UPDATE_TIMEOUT * update
        if update and timeout:
            timeout = min(timeout + self.now, 2**64 - 1)
        req = request(Function.GET, first, uri=last, count=count, flags=bits, timeout=timeout)
        self.scan(req, pages=pages)

    @rule(
        expression=st.sampled_from(EXPRESSIONS),
        count=counts | st.none(),
        bits=scan_bits,
        timeout=st.none() | leases,
        pages=st.sampled_from([1, 50]),
    )
    def get_by_expression(
        self, expression: bytes, count: int | None, bits: int, timeout: int | None, pages: int
    ) -> None:
        bits |= REGEX
        req = request(Function.GET, expression, count=count, flags=bits, timeout=timeout)
        self.scan(req, pages=pages)

    @rule(cursor=st.sampled_from([b"", b"no cursor", b"\0" * 40]))
    def get_by_what_is_no_cursor(self, cursor: bytes) -> None:
        self.ask(request(Function.GET, cursor, flags=CURSOR))


class ListenRules(ScanRules):
    """LISTEN of SET and GET: notifications are compared after every request, see ``settle``."""

    @rule(
        key=findable,
        session=st.sampled_from(SESSIONS),
        identifier=st.integers(1, 3),
        ends=st.sampled_from([False, False, True]),
    )
    def listen_to_a_key(self, key: bytes, session: str, identifier: int, ends: bool) -> None:
        bits = 0 if ends else Flag.LISTEN
        self.ask(request(Function.GET, key, flags=bits, identifier=identifier), session)

    @rule(key=settable, identifier=st.integers(1, 3), bits=flags(Flag.OVERWRITE))
    def set_and_listen(self, key: bytes, identifier: int, bits: int) -> None:
        at, bits = self.write_time(True, 0), bits | Flag.LISTEN
        self.ask(request(Function.SET, key, b"heard", at=at, flags=bits, identifier=identifier))

    @rule(first=edges, last=edges, identifier=st.integers(1, 3), count=counts)
    def listen_to_a_range(self, first: bytes, last: bytes, identifier: int, count: int) -> None:
        req = request(
            Function.GET, first, uri=last, count=count, flags=Flag.LISTEN, identifier=identifier
        )
        self.scan(req, pages=1)

    @rule(expression=st.sampled_from(EXPRESSIONS), identifier=st.integers(1, 3))
    def listen_to_an_expression(self, expression: bytes, identifier: int) -> None:
        bits = Flag.LISTEN | REGEX
        self.scan(
            request(Function.GET, expression, flags=bits, identifier=identifier, count=2), pages=2
        )
