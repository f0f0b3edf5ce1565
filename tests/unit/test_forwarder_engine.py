"""The forwarder's engine with a virtual clock: order, windows, pauses, verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from fastjournal.limits import RETRY_PAUSE_US_MAX
from fastjournal.protocol import (
    ErrorCode,
    Flag,
    Function,
    Reply,
    Request,
    ServerConnection,
    encode_request,
)
from fj_forwarder.engine import DELAYED_MAX, IN_FLIGHT_BYTES_MAX, PAUSE_US_MIN, Engine, Outgoing
from fj_forwarder.verdicts import SKEW_PATIENCE_US, Verdict, verdict

NOW = 1_795_161_600_000_000


def record(number: int, *, timestamp: int = NOW, value: bytes = b"") -> Outgoing:
    request = Request(
        Function.SET,
        identifier=0xABCD,
        flags=Flag.PERSIST,
        timestamp=timestamp,
        key=b"%d" % number,
        value_type=1,
        value=value,
    )
    frame = encode_request(request)
    slot: Any = "a slot"
    return Outgoing(slot, number, frame, request.function, request.flags, timestamp)


@dataclass
class Bench:
    """An engine, its clock, and a daemon that only reads."""

    in_flight_max: int = 4
    now: int = NOW
    seed: int = 1
    engine: Engine = field(init=False)
    server: ServerConnection = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Engine(in_flight_max=self.in_flight_max, random=Random(self.seed))
        self.server = ServerConnection()

    def offer(self, *numbers: int) -> None:
        self.engine.offer(record(number) for number in numbers)

    def sent(self) -> dict[int, int]:
        """Return what is sent: number of the record to its identifier, in the order sent."""
        frames = self.engine.take(self.now)
        if frames:
            self.server.receive_data(frames)
        return {int(r.key): r.identifier for r in self.server.next_events()}

    def reply(self, identifier: int, error: str = "", flags: int = 0) -> Verdict | None:
        outcome = self.engine.receive(Reply(identifier, flags, error=error), self.now)
        return None if outcome is None else outcome.verdict


def test_frames_go_out_in_order_with_identifiers_of_their_own_and_else_unchanged() -> None:
    bench = Bench()
    bench.offer(1, 2, 3)
    bench.server.receive_data(bench.engine.take(NOW))
    requests = bench.server.next_events()
    assert [r.identifier for r in requests] == [1, 2, 3]
    for number, request in enumerate(requests, 1):
        request.identifier = 0xABCD
        assert encode_request(request) == record(number).frame


def test_no_more_than_the_window_is_in_flight_and_a_reply_makes_room() -> None:
    bench = Bench(in_flight_max=2)
    bench.offer(1, 2, 3)
    assert list(bench.sent()) == [1, 2]
    assert bench.sent() == {}
    assert bench.engine.next_due(NOW) is None
    assert bench.reply(2) is Verdict.DONE
    assert bench.engine.next_due(NOW) == NOW
    assert bench.sent() == {3: 3}


def test_room_counts_records_and_bytes_and_comes_back() -> None:
    bench = Bench(in_flight_max=4)
    assert bench.engine.room() == (4, IN_FLIGHT_BYTES_MAX)
    big = record(1, value=bytes(IN_FLIGHT_BYTES_MAX))
    bench.engine.offer([big])
    assert bench.engine.room() == (3, 0)
    bench.engine.take(NOW)
    assert bench.engine.room() == (3, 0)
    assert bench.reply(1) is Verdict.DONE
    assert bench.engine.room() == (4, IN_FLIGHT_BYTES_MAX)


def test_identifiers_wrap_around_leave_out_0_and_those_in_flight() -> None:
    bench = Bench(in_flight_max=2)
    bench.offer(0)
    assert bench.sent() == {0: 1}
    seen = []
    for number in range(1, 65_540):
        bench.offer(number)
        (identifier,) = bench.sent().values()
        seen.append(identifier)
        assert bench.reply(identifier) is Verdict.DONE
    assert seen[:65_534] == list(range(2, 65_536))
    assert seen[65_534:] == [2, 3, 4, 5, 6]


def test_a_reply_nobody_waits_for_and_a_notification_change_nothing() -> None:
    bench = Bench()
    bench.offer(1)
    assert bench.sent() == {1: 1}
    assert bench.reply(9) is None
    assert bench.reply(1, flags=Flag.LISTEN) is None
    assert bench.engine.in_flight == 1
    assert bench.reply(1) is Verdict.DONE
    assert bench.reply(1) is None


def test_what_had_no_reply_when_the_connection_was_lost_goes_again_in_its_order() -> None:
    bench = Bench(in_flight_max=8)
    bench.offer(1, 2, 3, 4, 5)
    assert list(bench.sent()) == [1, 2, 3, 4, 5]
    bench.reply(2)
    bench.engine.lost(bench.now)
    bench.offer(6)
    assert bench.sent() == {}
    bench.now = bench.engine.paused_until
    order = []
    while sent := bench.sent():
        for number, identifier in sent.items():
            order.append(number)
            bench.reply(identifier)
    assert order == [1, 3, 4, 5, 6]


def test_after_a_pause_one_goes_ahead_and_each_success_doubles_the_window() -> None:
    bench = Bench(in_flight_max=5)
    bench.offer(*range(20))
    bench.engine.lost(bench.now)
    bench.now = bench.engine.paused_until
    sizes = []
    for _ in range(4):
        sent = bench.sent()
        sizes.append(len(sent))
        bench.reply(next(iter(sent.values())))
    assert sizes == [1, 2, 3, 2]
    assert bench.engine.in_flight == 4


@pytest.mark.parametrize(
    "code", ["read-only", "not-persisted", "busy", "shutting-down", "auth-required", "auth-failed"]
)
def test_a_daemon_that_takes_nothing_holds_all_with_growing_pauses(code: str) -> None:
    bench = Bench()
    bench.offer(1, 2)
    pauses = []
    for _ in range(15):
        for identifier in bench.sent().values():
            assert bench.reply(identifier, f"{code} a sentence") is Verdict.HOLD
        assert bench.sent() == {}
        due = bench.engine.next_due(bench.now)
        assert due is not None
        assert due == bench.engine.paused_until
        pauses.append(due - bench.now)
        bench.now = due
    for tries, pause in enumerate(pauses):
        longest = min(PAUSE_US_MIN * 2**tries, RETRY_PAUSE_US_MAX)
        assert longest / 2 <= pause <= longest
    assert len(set(pauses[9:])) > 1
    sent = bench.sent()
    assert list(sent) == [1]
    assert bench.reply(sent[1]) is Verdict.DONE
    assert list(bench.sent()) == [2]


def test_a_success_makes_the_pauses_short_again() -> None:
    bench = Bench()
    bench.offer(1, 2)
    for _ in range(10):
        bench.engine.lost(bench.now)
        bench.now = bench.engine.paused_until
    bench.reply(bench.sent()[1])
    bench.engine.lost(bench.now)
    assert bench.engine.paused_until - bench.now <= PAUSE_US_MIN


def test_many_refusals_of_one_window_are_one_pause() -> None:
    bench = Bench(in_flight_max=50)
    bench.offer(*range(50))
    for identifier in bench.sent().values():
        bench.reply(identifier, "busy")
    assert bench.engine.paused_until - bench.now <= PAUSE_US_MIN


def test_a_late_success_of_the_time_before_the_pause_does_not_end_it() -> None:
    bench = Bench()
    bench.offer(1, 2, 3)
    sent = bench.sent()
    bench.reply(sent[1], "busy")
    assert bench.reply(sent[2]) is Verdict.DONE
    assert bench.sent() == {}
    bench.now = bench.engine.paused_until
    assert bench.sent() == {}  # 3 is still in flight, and the window is one
    bench.reply(sent[3])
    assert list(bench.sent()) == [1]


def test_the_same_seed_gives_the_same_pauses_and_another_others() -> None:
    def pauses(seed: int) -> list[int]:
        bench = Bench(seed=seed)
        found = []
        for _ in range(5):
            bench.engine.lost(bench.now)
            found.append(bench.engine.paused_until - bench.now)
            bench.now = bench.engine.paused_until
        return found

    assert pauses(7) == pauses(7) != pauses(8)


def test_a_locked_record_waits_alone_and_comes_before_newer_ones() -> None:
    bench = Bench()
    bench.offer(1, 2)
    sent = bench.sent()
    assert bench.reply(sent[1], "locked") is Verdict.LATER
    assert bench.reply(sent[2]) is Verdict.DONE
    assert bench.engine.delayed == 1
    bench.offer(3)
    assert list(bench.sent()) == [3]
    due = bench.engine.next_due(bench.now)
    assert due is not None
    assert NOW + PAUSE_US_MIN // 2 <= due <= NOW + PAUSE_US_MIN
    bench.now = due
    bench.offer(4)
    assert list(bench.sent()) == [1, 4]


def test_a_delayed_record_waits_longer_each_time() -> None:
    bench = Bench()
    bench.offer(1)
    pauses = []
    for _ in range(12):
        bench.reply(bench.sent()[1], "locked")
        due = bench.engine.next_due(bench.now)
        assert due is not None
        pauses.append(due - bench.now)
        bench.now = due
    assert pauses[0] <= PAUSE_US_MIN
    assert pauses[-1] >= RETRY_PAUSE_US_MAX / 2
    assert max(pauses) <= RETRY_PAUSE_US_MAX


def test_too_many_delayed_records_stop_the_reading() -> None:
    bench = Bench(in_flight_max=8192)
    for first in range(0, DELAYED_MAX, 8192):
        bench.offer(*range(first, first + 8192))
        for identifier in bench.sent().values():
            bench.reply(identifier, "locked")
    assert bench.engine.delayed == DELAYED_MAX
    assert bench.engine.room() == (0, 0)


def test_clock_skew_is_kept_for_an_hour_and_then_dead() -> None:
    bench = Bench()
    bench.engine.offer([record(1, timestamp=NOW + 10 * SKEW_PATIENCE_US)])
    verdicts: list[Verdict | None] = []
    while bench.engine.delayed or not verdicts or verdicts[-1] is not Verdict.DEAD:
        verdicts.append(bench.reply(bench.sent()[1], "clock-skew"))
        due = bench.engine.next_due(bench.now)
        if due is not None:
            bench.now = due
    assert set(verdicts[:-1]) == {Verdict.SKEWED}
    assert SKEW_PATIENCE_US < bench.now - NOW < SKEW_PATIENCE_US + 2 * RETRY_PAUSE_US_MAX


@pytest.mark.parametrize(("age_us", "wanted"), [(0, Verdict.SKEWED), (1, Verdict.DEAD)])
def test_clock_skew_of_a_record_older_than_an_hour_is_dead_at_once(
    age_us: int, wanted: Verdict
) -> None:
    bench = Bench()
    bench.engine.offer([record(1, timestamp=NOW - SKEW_PATIENCE_US - age_us)])
    assert bench.reply(bench.sent()[1], "clock-skew") is wanted


SET, OVERWRITE = Function.SET, Flag.OVERWRITE
TABLE = [
    ("", SET, 0, Verdict.DONE),
    ("stale", SET, 0, Verdict.DONE),
    ("stale", Function.DELETE, 0, Verdict.DONE),
    ("exists", SET, 0, Verdict.DONE),
    ("exists", SET, OVERWRITE, Verdict.DEAD),
    ("exists", Function.RENAME, 0, Verdict.DEAD),
    ("exists", Function.LINK, 0, Verdict.DEAD),
    ("not-found", Function.DELETE, 0, Verdict.DONE),
    ("not-found", Function.ADD, 0, Verdict.DEAD),
    ("too-large", SET, 0, Verdict.DEAD),
    ("type-mismatch", Function.ADD, 0, Verdict.DEAD),
    ("unknown-function", 99, 0, Verdict.DEAD),
    ("overflow", Function.ADD, 0, Verdict.DEAD),
    ("lease-lost", Function.RELEASE, 0, Verdict.DEAD),
    ("not-owner", Function.UNLOCK, 0, Verdict.DEAD),
    ("bad-key", SET, 0, Verdict.DEAD),
    ("bad-value", SET, 0, Verdict.DEAD),
    ("bad-regex", SET, 0, Verdict.DEAD),
    ("bad-cursor", SET, 0, Verdict.DEAD),
    ("bad-request", SET, 0, Verdict.DEAD),
    ("bad-weather", SET, 0, Verdict.DEAD),
    ("clock-skew", SET, 0, Verdict.SKEWED),
    ("locked", SET, 0, Verdict.LATER),
    ("worked-on", Function.RENAME, 0, Verdict.LATER),
    ("forbidden", SET, 0, Verdict.LATER),
    ("a-code-of-the-future", SET, 0, Verdict.LATER),
    ("read-only", SET, 0, Verdict.HOLD),
    ("not-persisted", SET, 0, Verdict.HOLD),
    ("not-readable", Function.KICK, 0, Verdict.LATER),
    ("busy", SET, 0, Verdict.HOLD),
    ("shutting-down", SET, 0, Verdict.HOLD),
    ("auth-required", SET, 0, Verdict.HOLD),
    ("auth-failed", SET, 0, Verdict.HOLD),
    ("auth-of-the-future", SET, 0, Verdict.HOLD),
    ("unsupported-version", SET, 0, Verdict.HOLD),
]


@pytest.mark.parametrize(("code", "function", "flags", "wanted"), TABLE)
def test_each_code_has_its_verdict(code: str, function: int, flags: int, wanted: Verdict) -> None:
    assert verdict(code, function, flags) is wanted


def test_the_table_covers_every_code() -> None:
    assert set(ErrorCode) <= {code for code, *_ in TABLE}


@pytest.mark.parametrize("bad", [0, 32_768])
def test_a_window_without_room_for_identifiers_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="in_flight_max"):
        Engine(in_flight_max=bad, random=Random(0))


def test_next_due_is_never_before_now_also_for_a_delayed_record_that_is_overdue() -> None:
    bench = Bench()
    bench.offer(1)
    bench.reply(bench.sent()[1], "locked")
    for late_us in (0, 1, PAUSE_US_MIN, 10**9):
        now = NOW + PAUSE_US_MIN + late_us
        assert bench.engine.next_due(now) == now
