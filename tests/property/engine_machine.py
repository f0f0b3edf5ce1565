"""The engine and its naive model side by side: asking both, letting time pass, comparing all."""

from __future__ import annotations

import copy
from collections.abc import Hashable

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fastjournal.protocol.constants import QUERY_MASK, Flag, Function
from fastjournal.protocol.messages import Request
from tests.property.engine_strategies import ALL_KEYS, DOMAINS, SESSIONS
from tests.property.model import Model
from tests.property.model_parts import U64_MAX, Entry, Rules
from tests.property.side_by_side import SideBySide
from tests.property.subject import SECOND, START, EngineSubject, comparable, request

VOLATILE = [b"q", b"a:1:0:y", b"b:1:0:x"]
"""Keys that are never persistent where ``keeping`` is "by key"."""


class EngineMachine(RuleBasedStateMachine):
    """The engine and its model side by side, at one instant, and how time passes for both."""

    @initialize(
        attempts_max=st.sampled_from([0, 0, 1, 2]),
        tombstone_ttl_us=st.sampled_from([2 * SECOND, 60 * SECOND]),
        tombstones_max=st.sampled_from([1, 3, 1000]),
        tombstones_bytes_max=st.sampled_from([1, 700, 1_000_000]),
        reply_bytes_max=st.sampled_from([200, 500, 4 * 1024 * 1024]),
        postpone_us_max=st.sampled_from([0, SECOND, 5 * SECOND, 3600 * SECOND]),
        interval_us_default=st.sampled_from([0, 0, 0, SECOND]),
        jobs_default=st.sampled_from([0, 0, 0, 1]),
        keeping=st.sampled_from(["everything", "by key", "by flag"]),
        cold=st.booleans(),
    )
    def start(
        self,
        attempts_max: int,
        tombstone_ttl_us: int,
        tombstones_max: int,
        tombstones_bytes_max: int,
        reply_bytes_max: int,
        postpone_us_max: int,
        interval_us_default: int,
        jobs_default: int,
        keeping: str,
        cold: bool,
    ) -> None:
        rules = Rules(
            reply_bytes_max=reply_bytes_max,
            lease_us_default=5 * SECOND,
            attempts_max=attempts_max,
            tombstone_ttl_us=tombstone_ttl_us,
            tombstones_max=tombstones_max,
            tombstones_bytes_max=tombstones_bytes_max,
            clock_skew_us_max=3 * SECOND,
            postpone_us_max=postpone_us_max,
            interval_us_default=interval_us_default,
            jobs_default=jobs_default,
        )
        self.keeping = keeping
        self.who: Hashable = SESSIONS[0]
        self.model = Model(rules)
        self.engine = EngineSubject(rules, cold=cold)
        self.both = SideBySide(self.engine, self.model)
        self.both.tokens.append(START)
        self.now = START
        self.writes = 0

    # --- both at once ----------------------------------------------------------------------------

    def ask(self, req: Request, session: Hashable = None) -> None:
        self.both.ask(session or self.who, self.kept(req), self.now)

    def kept(self, req: Request) -> Request:
        """The request with the flag PERSIST as it should be."""
        kept = req.flags | Flag.PERSIST
        if self.keeping == "everything":
            return msgspec.structs.replace(req, flags=kept)
        if self.keeping == "by flag":
            return req
        if req.function == Function.SET and req.key in VOLATILE:
            # who takes the URI of a persistent entry must not be gone after a restart
            lost = req.flags & ~(Flag.PERSIST | Flag.PERSIST_ALIAS | QUERY_MASK)
            return msgspec.structs.replace(req, flags=lost, second_key=None)
        if req.key in VOLATILE:
            lost = req.flags & ~(Flag.PERSIST | Flag.PERSIST_ALIAS)
            return msgspec.structs.replace(req, flags=lost)
        return msgspec.structs.replace(req, flags=kept)

    @rule(session=st.sampled_from(SESSIONS))
    def somebody_else_asks(self, session: str) -> None:
        self.who = session

    def wake(self) -> None:
        """Advance the clock of model and engine, as the daemon's timers do."""
        self.model.advance(self.now)
        self.engine.advance(self.now)
        self.serve()

    def serve(self) -> None:
        expected = self.model.serve_waiters(self.now)
        got = self.engine.serve_waiters(self.now)
        assert [(s, comparable(r)) for s, r in got] == [(s, comparable(r)) for s, r in expected]
        self.both.settle(self.now)

    def write_time(self, is_fresh: bool, age: int) -> int:
        """A timestamp no older than any before, or one that stood there before, or the clock's."""
        self.writes += 1
        return self.now - age if not is_fresh else max(START + self.writes, self.now - SECOND)

    def leased(self) -> list[Entry]:
        return [e for e in self.model.entries if e.token]

    # --- time ------------------------------------------------------------------------------------

    @rule(us=st.sampled_from([1, 500, 1000, SECOND, SECOND, 2 * SECOND, 5 * SECOND, 70 * SECOND]))
    def time_passes(self, us: int) -> None:
        """The daemon wakes whenever something happens, and serves those who wait."""
        self.let_pass(us)

    def let_pass(self, us: int) -> None:
        end = self.now + us
        while (at := self.model.next_event()) is not None and at <= end:
            self.now = max(self.now, at)
            self.wake()
        self.now = end
        self.wake()

    @rule(us=st.sampled_from([0, 1, 500, SECOND, 2 * SECOND]))
    def time_passes_unseen(self, us: int) -> None:
        """The daemon is late, by one thing that happens at the most."""
        end = self.now + us
        preview = copy.deepcopy(self.model)
        if (first := preview.next_event()) is not None:
            preview.advance(max(first, self.now))
            if (second := preview.next_event()) is not None:
                end = min(end, max(second - 1, self.now))
        self.now = end

    @rule(seconds=st.sampled_from([2, 10, 100, -2, -2, -10, -100]))
    def clock_is_set(self, seconds: int) -> None:
        """No time passes; a step ahead brings what it ends, one after the other."""
        self.wake()
        if seconds < 0:
            self.now += seconds * SECOND
            self.both.step_clock(self.now, seconds * SECOND)
            self.wake()
        else:
            self.both.step_clock(self.now + seconds * SECOND, seconds * SECOND)
            self.let_pass(seconds * SECOND)

    @rule()
    def time_passes_to_the_next_wake(self) -> None:
        wake = self.engine.engine.next_wake()
        event = self.model.next_wake()
        if event is not None and event < U64_MAX:
            assert wake is not None
            assert wake <= max(event, self.now)
        if wake is not None and wake < START + 1000 * SECOND:
            self.now = max(self.now, wake)
            self.wake()

    @precondition(lambda self: self.keeping != "by flag")
    @rule(seconds=st.sampled_from([0, 0, 0, 2, 10, 100]))
    def restart(self, seconds: int) -> None:
        """The daemon is killed, and recovers its log; the clock may be set back meanwhile."""
        self.now -= seconds * SECOND
        self.both.set_back = self.both.set_back or seconds > 0
        # of too many, replay drops the oldest at its end, and so may keep one that live had dropped
        rules = self.model.rules
        few = rules.tombstones_max < 1000 or rules.tombstones_bytes_max < 1_000_000
        has_all = self.keeping == "everything" and not few
        self.both.restart(self.now, has_all_tombstones=has_all)
        self.serve()
        self.compare_everything()

    # --- whole states ----------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        self.who = SESSIONS[0]
        self.compare_everything()
        self.let_pass(6 * SECOND)
        self.compare_everything()
        for _ in range(len(self.model.entries) + 1):
            self.ask(request(Function.NEXT, flags=Flag.OVERWRITE | Flag.DATA | Flag.META))

    def compare_everything(self) -> None:
        with self.engine.checked_once():
            self._compare_everything()

    def _compare_everything(self) -> None:
        for key in ALL_KEYS:
            self.ask(request(Function.GET, key, flags=Flag.DATA | Flag.META))
            self.ask(request(Function.STATS, key, flags=Flag.DATA))
            self.ask(request(Function.STATS, key, flags=Flag.DATA | Flag.META))
        for domain in sorted(set(DOMAINS)):
            self.ask(request(Function.STATS, domain))
            self.ask(request(Function.NEXT, domain, count=0))
