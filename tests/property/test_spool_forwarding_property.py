"""The forwarder's engine against any daemon: each record is answered for once, none forgotten."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fastjournal.protocol import Function, Reply, Request, ServerConnection, encode_request
from fj_forwarder.engine import Engine, Outgoing
from fj_forwarder.verdicts import Verdict

IN_FLIGHT_MAX = 4
FINAL = (Verdict.DONE, Verdict.DEAD)


class Forwarding(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(in_flight_max=IN_FLIGHT_MAX, random=Random(0))
        self.now = 1_795_161_600_000_000
        self.offered: set[int] = set()
        self.settled: set[int] = set()
        self.at_daemon: dict[int, int] = {}
        """Identifier to the number of the record that it was sent for."""

    @rule(count=st.integers(1, 6))
    def offer(self, count: int) -> None:
        for _ in range(count):
            number = len(self.offered)
            self.offered.add(number)
            request = Request(Function.SET, timestamp=self.now, key=b"%d" % number, value_type=1)
            slot: Any = None
            frame = encode_request(request)
            self.engine.offer([Outgoing(slot, number, frame, Function.SET, 0, self.now)])

    @rule()
    def take(self) -> None:
        frames = self.engine.take(self.now)
        if not frames:
            return
        server = ServerConnection()
        server.receive_data(frames)
        for request in server.next_events():
            number = int(request.key)
            assert number not in self.settled
            assert number not in self.at_daemon.values()
            assert request.identifier not in self.at_daemon
            self.at_daemon[request.identifier] = number

    @rule(
        data=st.data(),
        error=st.sampled_from(
            ["", "stale", "bad-key", "busy", "read-only", "locked", "clock-skew", "what"]
        ),
    )
    def reply(self, data: st.DataObject, error: str) -> None:
        if self.at_daemon:
            self.answer(data.draw(st.sampled_from(sorted(self.at_daemon))), error)

    @rule()
    def lose_the_connection(self) -> None:
        self.engine.lost(self.now)
        self.at_daemon.clear()

    @rule(us=st.integers(0, 40_000_000))
    def let_time_pass(self, us: int) -> None:
        self.now += us

    def answer(self, identifier: int, error: str) -> None:
        number = self.at_daemon.pop(identifier)
        outcome = self.engine.receive(Reply(identifier, error=error), self.now)
        assert outcome is not None
        assert outcome.record.offset == number
        if outcome.verdict in FINAL:
            self.settled.add(number)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        engine = self.engine
        assert engine.in_flight == len(self.at_daemon) <= IN_FLIGHT_MAX
        kept = engine.in_flight + engine.waiting + engine.delayed
        assert kept == len(self.offered) - len(self.settled)
        if kept > engine.in_flight and not engine.in_flight:
            assert engine.next_due(self.now) is not None

    def teardown(self) -> None:
        """A daemon that takes everything gets everything, in bounded time."""
        for _ in range(20 + 4 * len(self.offered)):
            due = self.engine.next_due(self.now)
            if due is not None:
                self.now = max(self.now, due)
            self.take()
            for identifier in list(self.at_daemon):
                self.answer(identifier, "")
        assert self.settled == self.offered
        assert self.engine.room()[0] == IN_FLIGHT_MAX


TestForwarding = Forwarding.TestCase
