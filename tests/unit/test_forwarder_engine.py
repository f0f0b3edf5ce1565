"""The forwarder's engine with a virtual clock: order, windows, pauses, dispositions."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from fastjournal.limits import (
    NO_PROGRESS_US_MAX,
    REQUEST_BYTES_PER_SECOND,
    RETRY_PAUSE_US_MAX,
    SKIP_AFTER,
    SUSPECT_LOSSES,
)
from fastjournal.protocol import (
    ErrorCode,
    Flag,
    Function,
    Pair,
    Reply,
    Request,
    ServerConnection,
    encode_request,
)
from fj_forwarder.sending.delivery_engine import (
    IN_FLIGHT_BYTES_MAX,
    LARGE_VALUE_BYTES,
    PAUSE_US_MIN,
    DeliveryEngine,
)
from fj_forwarder.sending.dispositions import (
    SKEW_PATIENCE_US,
    Disposition,
    RecordOutcome,
    disposition_of,
)
from fj_forwarder.storage.slot_file import SpoolRecord

NOW = 1_795_161_600_000_000


def record(number: int, *, timestamp: int = NOW, value: bytes = b"") -> SpoolRecord:
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
    return SpoolRecord(slot, number, frame, request.function, request.flags, timestamp, len(value))


def has_to_leave(engine: DeliveryEngine, now_us: int) -> bool:
    """Whether the daemon has made no progress for so long that another is tried."""
    return engine.overdue_us(now_us, has_others=True) <= now_us


@dataclass
class Bench:
    """An engine, its clock, a daemon that only reads, and the disk where delayed records wait."""

    in_flight_max: int = 4
    offered: int = 0
    """Of how many records it has from the start: their numbers begin with 0."""
    now: int = NOW
    seed: int = 1
    engine: DeliveryEngine = field(init=False)
    server: ServerConnection = field(init=False)
    delayed: list[RecordOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = DeliveryEngine(in_flight_max=self.in_flight_max, random=Random(self.seed))
        self.server = ServerConnection()
        self.offer(*range(self.offered))

    def offer(self, *numbers: int) -> None:
        self.engine.offer(record(number) for number in numbers)

    def sent(self) -> dict[int, int]:
        """Return what is sent: number of the record to its identifier, in the order sent.

        A NOP is answered at once.
        """
        for _ in range(2):
            frames = self.engine.take(self.now)
            if frames:
                self.server.receive_data(frames)
            requests = self.server.next_events()
            if [r.function for r in requests] != [Function.NOP]:
                return {int(r.key): r.identifier for r in requests}
            assert self.engine.receive(Reply(requests[0].identifier), self.now) is None
        raise AssertionError("a second NOP")

    def reply(self, identifier: int, error: str = "", flags: int = 0) -> Disposition | None:
        outcome = self.engine.receive(Reply(identifier, flags, error=error), self.now)
        if outcome is not None and outcome.due_us:
            self.delayed.append(outcome)
        return None if outcome is None else outcome.disposition

    def lose(self) -> bool:
        """End the connection; return whether the daemon is well."""
        loss = self.engine.lost(self.now)
        self.delayed += loss.put_off
        self.server = ServerConnection()
        return loss.stay

    def lose_and_wait(self) -> None:
        """Send what may go, end the connection, and wait until the pause behind it is over."""
        self.sent()
        self.lose()
        self.now = max(self.now, self.engine.paused_until)

    def leave(self) -> None:
        """End the connection because of no progress."""
        self.delayed += self.engine.leave(self.now)
        self.server = ServerConnection()

    def left_us(self, *, has_others: bool = True) -> int:
        """Return after which time without progress the daemon is left."""
        return self.engine.overdue_us(self.now, has_others=has_others) - self.now

    def wait_delayed(self) -> list[int]:
        """Wait until all that is delayed is due, and offer it again, as it comes from the disk."""
        found, self.delayed = self.delayed, []
        self.now = max([self.now, *(outcome.due_us for outcome in found)])
        for outcome in found:
            old = outcome.record
            new = record(int(old.offset))
            new.timestamp = old.timestamp
            new.tries, new.losses, new.skewed_us = old.tries, old.losses, old.skewed_us
            self.engine.offer([new])
        return [int(outcome.record.offset) for outcome in found]


def test_frames_go_out_in_order_with_identifiers_of_their_own_and_else_unchanged() -> None:
    bench = Bench()
    bench.offer(1, 2, 3)
    bench.server.receive_data(bench.engine.take(NOW))
    requests = bench.server.next_events()
    assert [r.identifier for r in requests] == [1, 2, 3]
    for number, request in enumerate(requests, 1):
        request.identifier = 0xABCD
        assert encode_request(request) == record(number).frame


def test_window_bounds_what_is_in_flight_and_a_reply_makes_room() -> None:
    bench = Bench(in_flight_max=2)
    bench.offer(1, 2, 3)
    assert list(bench.sent()) == [1, 2]
    assert bench.sent() == {}
    assert bench.engine.next_due(NOW) is None
    assert bench.reply(2) is Disposition.DONE
    assert bench.engine.next_due(NOW) == NOW
    assert bench.sent() == {3: 3}


def test_room_counts_records_and_bytes_and_comes_back() -> None:
    bench = Bench(in_flight_max=4)
    assert bench.engine.room() == (4, IN_FLIGHT_BYTES_MAX)
    big = record(1, value=bytes(IN_FLIGHT_BYTES_MAX))
    bench.engine.offer([big])
    assert bench.engine.room() == (3, 0)
    assert bench.engine.take(NOW)
    assert bench.reply(1) is None, "the NOP"
    assert len(bench.engine.take(NOW)) > IN_FLIGHT_BYTES_MAX
    assert bench.engine.room() == (3, 0)
    assert bench.reply(2) is Disposition.DONE
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
        assert bench.reply(identifier) is Disposition.DONE
    assert seen[:65_534] == list(range(2, 65_536))
    assert seen[65_534:] == [2, 3, 4, 5, 6]


def test_reply_nobody_waits_for_and_a_notification_change_nothing() -> None:
    bench = Bench()
    bench.offer(1)
    assert bench.sent() == {1: 1}
    assert bench.reply(9) is None
    assert bench.reply(1, flags=Flag.LISTEN) is None
    assert bench.engine.in_flight == 1
    assert bench.reply(1) is Disposition.DONE
    assert bench.reply(1) is None


def test_lost_connection_sends_unanswered_records_again_in_their_order() -> None:
    bench = Bench(in_flight_max=8)
    bench.offer(1, 2, 3, 4, 5)
    assert list(bench.sent()) == [1, 2, 3, 4, 5]
    bench.reply(2)
    bench.lose()
    bench.offer(6)
    order = []
    while sent := bench.sent():
        for number, identifier in sent.items():
            order.append(number)
            bench.reply(identifier)
    assert order == [1, 3, 4, 5, 6]


def test_window_after_a_pause_is_one_and_each_success_doubles_it() -> None:
    bench = Bench(in_flight_max=5, offered=20)
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
def test_daemon_that_takes_nothing_holds_all_with_growing_pauses(code: str) -> None:
    bench = Bench()
    bench.offer(*range(1, 20))
    pauses = []
    for _ in range(15):
        for identifier in bench.sent().values():
            assert bench.reply(identifier, f"{code} a sentence") is Disposition.HOLD
        assert bench.sent() == {}
        due = bench.engine.next_due(bench.now)
        assert due is not None
        assert due == bench.engine.paused_until
        pauses.append(due - bench.now)
        bench.now = due
    for tries, pause in enumerate(pauses):
        longest = min(PAUSE_US_MIN * 2**tries, RETRY_PAUSE_US_MAX)
        is_cut = sum(pauses[: tries + 1]) == NO_PROGRESS_US_MAX  # to look for another daemon
        assert longest / 2 <= pause <= longest or is_cut
    assert len(set(pauses[9:])) > 1


def test_success_makes_the_pauses_short_again() -> None:
    bench = Bench()
    bench.offer(1, 2)
    for _ in range(10):
        bench.engine.lost(bench.now)
        bench.now = bench.engine.paused_until
    bench.reply(bench.sent()[1])
    bench.engine.lost(bench.now)
    assert bench.engine.paused_until - bench.now <= PAUSE_US_MIN


def test_pause_is_one_for_many_refusals_of_one_window() -> None:
    bench = Bench(in_flight_max=50, offered=50)
    for identifier in bench.sent().values():
        bench.reply(identifier, "busy")
    assert bench.engine.paused_until - bench.now <= PAUSE_US_MIN


def test_late_success_of_the_time_before_the_pause_does_not_end_it() -> None:
    bench = Bench()
    bench.offer(1, 2, 3)
    sent = bench.sent()
    bench.reply(sent[1], "busy")
    assert bench.reply(sent[2]) is Disposition.DONE
    assert bench.sent() == {}
    bench.now = bench.engine.paused_until
    assert bench.sent() == {}  # 3 is still in flight, and the window is one
    bench.reply(sent[3])
    assert list(bench.sent()) == [1]


def test_pauses_are_the_same_for_the_same_seed() -> None:
    def pauses(seed: int) -> list[int]:
        bench = Bench(seed=seed)
        found = []
        for _ in range(5):
            bench.engine.lost(bench.now)
            found.append(bench.engine.paused_until - bench.now)
            bench.now = bench.engine.paused_until
        return found

    assert pauses(7) == pauses(7) != pauses(8)


def test_locked_record_waits_alone_and_leaves_the_engine() -> None:
    bench = Bench()
    bench.offer(1, 2)
    sent = bench.sent()
    assert bench.reply(sent[1], "locked") is Disposition.LATER
    assert bench.reply(sent[2]) is Disposition.DONE
    assert (bench.engine.waiting, bench.engine.in_flight) == (0, 0)
    assert bench.engine.room() == (4, IN_FLIGHT_BYTES_MAX)
    bench.offer(3)
    assert list(bench.sent()) == [3]
    (outcome,) = bench.delayed
    assert NOW + PAUSE_US_MIN // 2 <= outcome.due_us <= NOW + PAUSE_US_MIN


def test_delayed_record_waits_longer_each_time() -> None:
    bench = Bench()
    bench.offer(1)
    pauses = []
    for _ in range(12):
        bench.reply(bench.sent()[1], "locked")
        before = bench.now
        assert bench.wait_delayed() == [1]
        pauses.append(bench.now - before)
    assert pauses[0] <= PAUSE_US_MIN
    assert pauses[-1] >= RETRY_PAUSE_US_MAX / 2
    assert max(pauses) <= RETRY_PAUSE_US_MAX


def test_clock_skew_is_kept_for_an_hour_and_then_dead() -> None:
    bench = Bench()
    bench.engine.offer([record(1, timestamp=NOW + 10 * SKEW_PATIENCE_US)])
    dispositions: list[Disposition | None] = []
    while not dispositions or dispositions[-1] is not Disposition.DEAD:
        dispositions.append(bench.reply(bench.sent()[1], "clock-skew"))
        bench.wait_delayed()
    assert set(dispositions[:-1]) == {Disposition.SKEWED}
    assert SKEW_PATIENCE_US < bench.now - NOW < SKEW_PATIENCE_US + 2 * RETRY_PAUSE_US_MAX


@pytest.mark.parametrize(("age_us", "wanted"), [(0, Disposition.SKEWED), (1, Disposition.DEAD)])
def test_clock_skew_of_a_record_older_than_an_hour_is_dead_at_once(
    age_us: int, wanted: Disposition
) -> None:
    bench = Bench()
    bench.engine.offer([record(1, timestamp=NOW - SKEW_PATIENCE_US - age_us)])
    assert bench.reply(bench.sent()[1], "clock-skew") is wanted


SET, OVERWRITE = Function.SET, Flag.OVERWRITE
DEAD, HOLD, LATER = Disposition.DEAD, Disposition.HOLD, Disposition.LATER
REFUSED = (
    *("too-large", "bad-key", "bad-value", "bad-regex", "bad-cursor", "bad-request"),
    "bad-weather",
)
UNAVAILABLE = (
    *("read-only", "not-persisted", "busy", "shutting-down", "auth-required", "auth-failed"),
    *("auth-of-the-future", "unsupported-version"),
)
TABLE = [
    ("", SET, 0, Disposition.DONE),
    ("stale", SET, 0, Disposition.DONE),
    ("stale", Function.DELETE, 0, Disposition.DONE),
    ("exists", SET, 0, Disposition.DONE),
    ("exists", SET, OVERWRITE, DEAD),
    ("exists", Function.RENAME, 0, DEAD),
    ("exists", Function.LINK, 0, DEAD),
    ("not-found", Function.DELETE, 0, Disposition.DONE),
    ("not-found", Function.ADD, 0, DEAD),
    ("type-mismatch", Function.ADD, 0, DEAD),
    ("unknown-function", 99, 0, DEAD),
    ("overflow", Function.ADD, 0, DEAD),
    ("lease-lost", Function.RELEASE, 0, DEAD),
    ("not-owner", Function.UNLOCK, 0, DEAD),
    *((code, SET, 0, DEAD) for code in REFUSED),
    ("clock-skew", SET, 0, Disposition.SKEWED),
    ("worked-on", Function.RENAME, 0, LATER),
    ("not-readable", Function.KICK, 0, LATER),
    *((code, SET, 0, LATER) for code in ("locked", "forbidden", "a-code-of-the-future")),
    *((code, SET, 0, HOLD) for code in UNAVAILABLE),
]


@pytest.mark.parametrize(("code", "function", "flags", "wanted"), TABLE)
def test_code_has_its_disposition(
    code: str, function: int, flags: int, wanted: Disposition
) -> None:
    assert disposition_of(code, function, flags) is wanted


def test_table_covers_every_code() -> None:
    assert set(ErrorCode) <= {code for code, *_ in TABLE}


@pytest.mark.parametrize("bad", [0, 32_768])
def test_window_without_room_for_identifiers_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="in_flight_max"):
        DeliveryEngine(in_flight_max=bad, random=Random(0))


def test_next_due_is_never_before_now_also_after_a_pause_that_is_over() -> None:
    bench = Bench()
    bench.offer(1)
    bench.reply(bench.sent()[1], "busy")
    for late_us in (0, 1, PAUSE_US_MIN, 10**9):
        now = NOW + PAUSE_US_MIN + late_us
        assert bench.engine.next_due(now) == now


# --- connections that end ------------------------------------------------------------------------


def test_nop_goes_first_after_a_loss_and_records_follow_its_reply() -> None:
    bench = Bench()
    bench.offer(1)
    bench.sent()
    assert not bench.lose()
    bench.now = bench.engine.paused_until
    bench.server.receive_data(bench.engine.take(bench.now))
    (nop,) = bench.server.next_events()
    assert (nop.function, bench.engine.in_flight) == (Function.NOP, 1)
    assert bench.engine.take(bench.now) == b""
    assert bench.engine.next_due(bench.now) is None
    assert bench.reply(nop.identifier) is None
    assert list(bench.sent()) == [1]


def test_daemon_that_answers_no_nop_is_tried_with_growing_pauses_and_nobody_is_suspected() -> None:
    bench = Bench()
    bench.offer(1, 2)
    bench.sent()
    pauses = []
    for _ in range(12):
        assert not bench.lose()
        pauses.append(bench.engine.paused_until - bench.now)
        bench.now = bench.engine.paused_until
        assert bench.engine.take(bench.now)
    assert bench.delayed == []
    assert pauses[-1] >= RETRY_PAUSE_US_MAX / 2


def test_record_that_ends_a_second_connection_alone_is_a_suspect_and_the_next_goes_at_once() -> (
    None
):
    bench = Bench()
    bench.offer(1, 2)
    bench.lose_and_wait()
    assert list(bench.sent()) == [1]
    assert bench.lose(), "the daemon is well"
    assert [(o.record.offset, o.disposition) for o in bench.delayed] == [(1, Disposition.SUSPECT)]
    assert bench.engine.next_due(bench.now) == bench.now, "no pause"
    sent = bench.sent()
    assert list(sent) == [2]
    assert bench.reply(sent[2]) is Disposition.DONE


def test_suspect_in_flight_when_the_daemon_is_left_is_a_suspect_still() -> None:
    bench = Bench()
    bench.offer(1)
    bench.lose_and_wait()
    bench.lose_and_wait()
    assert bench.wait_delayed() == [1]
    bench.offer(2)
    assert list(bench.sent()) == [1], "alone"
    bench.leave()
    assert [o.record.losses for o in bench.delayed] == [SUSPECT_LOSSES]
    assert list(bench.sent()) == [2]


def test_records_lost_twice_in_company_are_tried_alone_until_the_culprit_is_found() -> None:
    bench = Bench(in_flight_max=8, offered=8)
    poison, done = 5, []
    losses = 0
    while len(done) < 7:
        sent = bench.sent()
        assert sent or bench.now < bench.engine.paused_until
        if poison in sent:
            losses += 1
            assert losses <= 3
            bench.lose()  # nothing of this flight is answered
        for number, identifier in sent.items():
            if poison not in sent and bench.reply(identifier) is Disposition.DONE:
                done.append(number)
        bench.now = max(bench.now, bench.engine.paused_until)
    assert [o.record.offset for o in bench.delayed] == [poison]
    assert bench.wait_delayed() == [poison]
    bench.offer(9)
    assert list(bench.sent()) == [poison], "alone"
    assert bench.lose()
    assert list(bench.sent()) == [9]


def test_suspect_waits_until_what_is_in_flight_is_answered() -> None:
    bench = Bench()
    suspect = record(2)
    suspect.losses = SUSPECT_LOSSES
    bench.engine.offer([record(1), suspect, record(3)])
    sent = bench.sent()
    assert list(sent) == [1]
    bench.reply(sent[1])
    sent = bench.sent()
    assert list(sent) == [2], "alone"
    bench.reply(sent[2])
    assert list(bench.sent()) == [3]


def test_suspect_that_is_answered_is_none_any_more() -> None:
    bench = Bench()
    bench.offer(1)
    bench.lose_and_wait()
    bench.sent()
    bench.lose()
    assert bench.wait_delayed() == [1]
    assert bench.reply(bench.sent()[1], "locked") is Disposition.LATER
    assert bench.delayed[0].record.losses == 0


@pytest.mark.parametrize("code", ["too-large", "bad-request"])
def test_record_that_cannot_be_framed_costs_no_pause_and_is_laid_to_no_other(code: str) -> None:
    bench = Bench(in_flight_max=8, offered=8)
    for number in range(6):
        sent = bench.sent()
        assert number in sent
        assert bench.reply(sent[number], f"{code} a sentence") is Disposition.DEAD
        assert bench.lose(), "the daemon is well"
        assert bench.engine.next_due(bench.now) == bench.now, "no pause"
    sent = bench.sent()
    assert list(sent) == [6]
    assert bench.reply(sent[6]) is Disposition.DONE
    assert list(bench.sent()) == [7], "not alone"
    assert bench.delayed == []


def told_limit(bench: Bench, data: bytes) -> dict[int, int]:
    """Let the daemon tell its limits in its reply to the NOP; return what is sent then."""
    bench.server.receive_data(bench.engine.take(bench.now))
    (nop,) = bench.server.next_events()
    assert isinstance(nop, Request)
    assert (nop.function, nop.flags) == (Function.NOP, Flag.META)
    assert (
        bench.engine.receive(Reply(nop.identifier, pairs=[Pair(b"", 2, data)]), bench.now) is None
    )
    bench.engine.skip(bench.now)
    return bench.sent()


def test_records_over_the_limit_of_the_daemon_are_not_sent_once_it_is_known() -> None:
    bench = Bench(in_flight_max=8)
    sizes = {1: 9, 2: 3, 3: 4, 4: 8, 5: 0}
    bench.engine.offer(record(number, value=bytes(size)) for number, size in sizes.items())
    assert bench.engine.skip(bench.now) == []
    sent = bench.sent()
    assert list(sent) == list(sizes), "the limit is not known"
    assert bench.reply(sent[1], "too-large value has 9 bytes, over 3") is Disposition.DEAD
    assert bench.lose()
    bench.server.receive_data(bench.engine.take(bench.now))
    (nop,) = bench.server.next_events()
    assert isinstance(nop, Request)
    limits = Pair(b"", 2, b'{"value_bytes_max": 3, "another": 1}')
    assert bench.engine.receive(Reply(nop.identifier, pairs=[limits]), bench.now) is None
    passed = bench.engine.skip(bench.now)
    assert [(outcome.record.offset, outcome.due_us) for outcome in passed] == [
        (3, bench.now),
        (4, bench.now),
    ]
    assert [bench.engine.refusal_of(outcome.record) for outcome in passed] == [
        "too-large value has 4 bytes, over 3",
        "too-large value has 8 bytes, over 3",
    ]
    assert bench.engine.skip(bench.now) == []
    sent = bench.sent()
    assert list(sent) == [2]
    assert bench.reply(sent[2]) is Disposition.DONE
    assert list(bench.sent()) == [5]
    assert bench.engine.refusal_of(record(6, value=bytes(3))) == ""


def test_limit_is_asked_for_before_a_large_value_is_sent() -> None:
    bench = Bench(in_flight_max=8)
    size = LARGE_VALUE_BYTES
    values = {1: size, 2: size + 1, 3: 0, 4: size + 2}
    bench.engine.offer(record(number, value=bytes(bytes_)) for number, bytes_ in values.items())
    sent = bench.sent()
    assert list(sent) == [1], "records before it do not wait"
    later = told_limit(bench, b'{"value_bytes_max": %d}' % (size + 1))
    assert list(later) == [2, 3]
    for identifier in (*sent.values(), *later.values()):
        assert bench.reply(identifier) is Disposition.DONE
    assert (bench.engine.in_flight, bench.engine.waiting) == (0, 0)


def test_limit_of_a_daemon_holds_for_its_connection_only() -> None:
    bench = Bench(in_flight_max=8)
    large = record(1, value=bytes(9))
    for limit, refused in ((8, True), (9, False), (100, False), (1, True)):
        bench.offer(2)
        bench.sent()
        bench.lose()  # it starts again with another limit, or another one is connected
        assert bench.engine.refusal_of(large) == ""
        bench.now = max(bench.now, bench.engine.paused_until)
        sent = told_limit(bench, b'{"value_bytes_max": %d}' % limit)
        assert bool(bench.engine.refusal_of(large)) is refused
        assert bench.reply(sent[2]) is Disposition.DONE


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b"\xff", b'{"value_bytes_max": 0}', b'{"value_bytes_max": "9"}']
)
def test_limit_that_a_daemon_does_not_tell_is_not_known(data: bytes) -> None:
    bench = Bench()
    bench.offer(1)
    bench.lose_and_wait()
    assert list(told_limit(bench, data)) == [1]
    assert bench.engine.skip(bench.now) == []
    assert bench.engine.refusal_of(record(2, value=bytes(1_000_000_000 // 1000))) == ""


def test_suspects_one_after_the_other_make_records_be_passed_over() -> None:
    """A hundred thousand poisonous records before a good one: it is found after some twenty."""
    bench = Bench(in_flight_max=64)
    count, tried, at = 100_000, 0, 0
    while True:
        free = bench.engine.room()[0]
        passed = bench.engine.skip(bench.now)
        if passed or free:
            bench.offer(*range(at, at + free + len(passed)))
            at += free + len(passed)
            if passed:
                continue
        sent = bench.sent()
        tried += len(sent)
        if max(sent, default=0) >= count:
            break
        bench.lose()
        bench.now = max(bench.now, bench.engine.paused_until)
    assert tried < 200 + 64
    assert tried > SKIP_AFTER


def test_record_passed_over_untried_is_no_suspect_whatever_company_it_was_lost_in() -> None:
    bench = Bench(in_flight_max=16, offered=16)
    bench.lose_and_wait()
    while len(sent := bench.sent()) < 8:
        for identifier in sent.values():
            bench.reply(identifier)
    bench.lose()  # all eight for the second time: each is tried alone
    passed: list[RecordOutcome] = []
    while not passed:
        bench.sent()
        bench.lose()
        passed = bench.engine.skip(bench.now)
    assert len(bench.delayed) == SKIP_AFTER
    assert [outcome.disposition for outcome in passed] == [Disposition.PASSED]
    assert passed[0].record.offset in sent
    assert passed[0].record.losses < SUSPECT_LOSSES


def test_suspect_that_is_answered_busy_is_none_any_more() -> None:
    bench = Bench()
    bench.offer(1)
    bench.lose_and_wait()
    bench.lose_and_wait()
    assert bench.wait_delayed() == [1]
    assert bench.reply(bench.sent()[1], "busy") is Disposition.HOLD
    assert [outcome.record.losses for outcome in bench.delayed] == [0]


def test_skipping_ends_where_no_record_follows() -> None:
    bench = Bench(in_flight_max=1)
    for number in range(20):
        bench.offer(number)
        bench.engine.stop_skipping()
        for _ in range(2):
            bench.lose_and_wait()
    bench.engine.stop_skipping()
    bench.offer(100)
    assert bench.engine.skip(bench.now) == []
    assert list(bench.sent()) == [100]


# --- daemons that take nothing -------------------------------------------------------------------


def test_record_that_alone_is_busy_waits_behind_the_others() -> None:
    bench = Bench(in_flight_max=4, offered=10)
    done: list[int] = []
    for _ in range(40):
        for number, identifier in bench.sent().items():
            if bench.reply(identifier, "busy" if number == 0 else "") is Disposition.DONE:
                done.append(number)
        bench.now = max(bench.now, bench.engine.paused_until)
    assert done == list(range(1, 10))
    # Read again from disk it is tried again, and others are taken meanwhile: they do not wait.
    assert bench.wait_delayed() == [0]
    bench.offer(10, 11)
    sent = bench.sent()
    assert bench.reply(sent[10]) is Disposition.DONE
    assert bench.reply(sent[0], "busy") is Disposition.HOLD
    assert bench.engine.paused_until <= bench.now


def test_daemon_that_refuses_everything_for_30_s_is_left() -> None:
    bench = Bench(offered=100)
    while not has_to_leave(bench.engine, bench.now):
        for identifier in bench.sent().values():
            bench.reply(identifier, "read-only")
        bench.now = bench.engine.paused_until
    assert bench.now - NOW == NO_PROGRESS_US_MAX
    bench.engine.leave(bench.now)
    assert not has_to_leave(bench.engine, bench.now)
    assert len(bench.sent()) == 1, "at once, and one goes ahead"


def test_daemon_that_takes_something_is_not_left() -> None:
    bench = Bench(in_flight_max=2)
    for number in range(0, 400, 2):
        bench.offer(number, number + 1)
        sent: dict[int, int] = {}
        while len(sent) < 2:
            sent |= bench.sent()
            for number, identifier in list(sent.items()):
                if identifier:
                    bench.reply(identifier, "" if number % 2 else "busy")
                    sent[number] = 0
            bench.now = max(bench.now, bench.engine.paused_until)
        bench.now += 1_000_000
        assert not has_to_leave(bench.engine, bench.now)


# --- daemons without progress --------------------------------------------------------------------

BOTH = pytest.mark.parametrize("has_others", [False, True])


@BOTH
def test_progress_clock_runs_only_while_something_is_owed(has_others: bool) -> None:
    bench = Bench()
    for number in range(3):
        assert bench.left_us(has_others=has_others) == NO_PROGRESS_US_MAX
        bench.now += 10 * NO_PROGRESS_US_MAX
        bench.offer(number)
        sent = bench.sent()
        bench.now += NO_PROGRESS_US_MAX - 1
        assert bench.left_us(has_others=has_others) == 1
        assert bench.reply(sent[number]) is Disposition.DONE


@BOTH
def test_progress_is_one_answered_record_however_slow_the_daemon(has_others: bool) -> None:
    bench = Bench(in_flight_max=64, offered=64)
    for identifier in bench.sent().values():
        bench.now += NO_PROGRESS_US_MAX - 1
        assert bench.left_us(has_others=has_others) == 1
        bench.reply(identifier)


@BOTH
def test_daemon_that_answers_the_nop_and_swallows_records_is_left_and_no_record_is_suspect(
    has_others: bool,
) -> None:
    bench = Bench(in_flight_max=8, offered=8)
    bench.lose_and_wait()
    for _ in range(10):
        sent_us = bench.now
        assert bench.sent()  # behind a NOP that is answered
        bench.now = sent_us + NO_PROGRESS_US_MAX
        assert bench.left_us(has_others=has_others) == 0
        bench.leave()
        assert bench.delayed
        assert {outcome.disposition for outcome in bench.delayed} == {Disposition.HOLD}
        assert all(outcome.record.losses < SUSPECT_LOSSES for outcome in bench.delayed)
        bench.wait_delayed()
    assert set(bench.sent()) == set(range(8)), "none alone, none after a pause"


def test_replies_that_answer_no_record_are_no_progress() -> None:
    bench = Bench()
    bench.offer(1)
    (identifier,) = bench.sent().values()
    bench.now += NO_PROGRESS_US_MAX - 1
    bench.reply(identifier, flags=Flag.LISTEN)
    bench.reply(identifier + 1)
    assert bench.left_us(has_others=False) == bench.left_us(has_others=True) == 1


def test_record_without_a_reply_holds_up_no_other_after_the_daemon_is_left() -> None:
    bench = Bench(in_flight_max=8)
    bench.offer(0)
    bench.lose_and_wait()
    for tries in range(1, 20):
        sent = bench.sent()
        assert 0 in sent
        bench.offer(tries)
        sent |= bench.sent()
        if tries > 1:
            assert tries in sent, "it passes the one without a reply"
            bench.reply(sent[tries])
        bench.now += NO_PROGRESS_US_MAX
        assert bench.left_us(has_others=False) == 0
        bench.leave()
        bench.wait_delayed()


def test_large_frame_in_flight_extends_the_time_without_progress_as_a_slow_line_needs_it() -> None:
    bench = Bench()
    size = 15 * REQUEST_BYTES_PER_SECOND
    bench.engine.offer([record(1, value=bytes(size)), record(2)])
    sent = bench.sent()
    assert NO_PROGRESS_US_MAX + 15_000_000 <= bench.left_us() < NO_PROGRESS_US_MAX + 15_100_000
    bench.reply(sent[1])
    assert bench.left_us() < NO_PROGRESS_US_MAX + 100_000


def test_daemon_that_ends_the_connection_at_each_record_is_left_for_the_next() -> None:
    bench = Bench(in_flight_max=16, offered=SKIP_AFTER + 2)
    until_us = bench.now + NO_PROGRESS_US_MAX
    while not has_to_leave(bench.engine, bench.now):
        bench.delayed += bench.engine.skip(bench.now)
        if bench.sent():
            bench.lose()
        elif not bench.engine.waiting:
            bench.wait_delayed()
        bench.now = max(bench.now, bench.engine.paused_until) + 100_000
        assert bench.now < until_us + 100 * RETRY_PAUSE_US_MAX
    assert bench.now >= until_us
    bench.leave()
    assert bench.left_us() == NO_PROGRESS_US_MAX


def test_poison_of_few_records_alone_is_no_reason_to_leave_a_daemon() -> None:
    bench = Bench(offered=SKIP_AFTER - 1)
    for _ in range(100):
        while bench.sent():
            bench.lose()
            bench.now = max(bench.now, bench.engine.paused_until)
        assert not has_to_leave(bench.engine, bench.now + NO_PROGRESS_US_MAX - 1)
        bench.wait_delayed()
