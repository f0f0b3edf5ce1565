"""Subscriptions of one session cost nobody else: work is bounded, and told where it is too much."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastjournal.limits import SUBSCRIPTIONS_PER_CONNECTION_MAX
from fastjournal.protocol import ClientConnection, Reply, Request
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournald.engine.engine import Engine, Scan
from fastjournald.engine.key_filter import KeyFilter, expression_filter, range_filter
from fastjournald.engine.pubsub.change_set import ChangeSet
from fastjournald.engine.pubsub.fan_out import LongMatch
from fastjournald.engine.pubsub.subscriptions import Subscriptions
from fastjournald.tables.signals import Signals
from tests.property.subject import START, request
from tests.unit.test_semantics_listen import Listening

HEAVY, LIGHT = "heavy", "light"


def lines_of(act: Callable[[], object]) -> int:
    """How many lines of Python an act executes: its work, on any machine."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(None)
    return lines


def asking(identifier: int, query: Query, *keys: bytes) -> Request:
    """GET a range or an expression, and listen to it."""
    if query == Query.RANGE:
        return request(
            Function.GET, keys[0], uri=keys[1], flags=Flag.LISTEN, identifier=identifier, count=1
        )
    flags = Flag.LISTEN | query << QUERY_SHIFT
    return request(Function.GET, keys[0], flags=flags, identifier=identifier)


def listen(engine: Engine, session: Hashable, identifier: int, query: Query, *keys: bytes) -> None:
    """Subscribe to a range or an expression."""
    scan = engine.handle(session, asking(identifier, query, *keys), START)
    while not isinstance(scan, bytes):
        assert isinstance(scan, Scan)
        done = engine.step(scan, START)
        scan = scan if done is None else done
    (reply,) = replies(scan)
    assert reply.code == ""


def replies(data: bytes) -> list[Reply]:
    connection = ClientConnection()
    connection.receive_data(data)
    return connection.next_events()


def change(engine: Engine, key: bytes, at: int = 0) -> None:
    asked = request(Function.SET, key, b"v", flags=Flag.OVERWRITE, at=START + at)
    engine.handle("writer", asked, START + at)


def match_all(engine: Engine, idle_us: int = 0) -> None:
    while engine.notifications.unmatched:
        engine.notifications.match(idle_us)


# --- work ---------------------------------------------------------------------------------------


def lines_for_a_change(query: Query, number: int) -> int:
    engine = Engine()
    for identifier in range(number):
        key = b"^other%05d" if query == Query.REGEX else b"other%05d"
        bounds = [key % identifier] if query == Query.REGEX else [key % identifier] * 2
        listen(engine, HEAVY, identifier, query, *bounds)
    listen(engine, LIGHT, 1, Query.RANGE, b"k", b"k")
    change(engine, b"k")
    lines = lines_of(lambda: match_all(engine))
    assert engine.notifications.has_notifications(LIGHT)
    assert not engine.notifications.has_notifications(HEAVY)
    return lines


@pytest.mark.parametrize("query", [Query.RANGE, Query.REGEX])
def test_matching_work_does_not_grow_with_ranges_that_do_not_match(query: Query) -> None:
    few, many = lines_for_a_change(query, 10), lines_for_a_change(query, 1000)
    assert many <= 4 * few


def test_expressions_without_a_prefix_are_matched_many_at_a_time() -> None:
    engine = Engine()
    for identifier in range(1000):
        listen(engine, HEAVY, identifier, Query.REGEX, b"other%d" % identifier)
    change(engine, b"k")
    assert lines_of(lambda: match_all(engine)) < 5000


def test_changes_are_noted_of_listened_keys_only_where_nobody_listens_to_ranges() -> None:
    engine = Engine()
    listened = request(Function.SET, b"k", b"v", flags=Flag.LISTEN, at=START)
    engine.handle(LIGHT, listened, START)
    many = [
        request(Function.SET, b"other%d" % at, b"v", uri=b"uri%d" % at, at=START + 1)
        for at in range(100)
    ]
    for one in many:
        engine.handle("writer", one, START + 1)
    engine.check()
    assert len(engine.store.changes) == 0
    change(engine, b"k", at=2)
    assert len(engine.store.changes) == 1
    listen(engine, HEAVY, 1, Query.RANGE, b"", b"z")
    change(engine, b"new1", at=2)
    assert len(engine.store.changes) == 2
    match_all(engine)
    assert [one.pairs[0].key for one in replies(engine.notifications.pop(LIGHT, START))] == [b"k"]
    told = replies(engine.notifications.pop(HEAVY, START))
    assert [one.pairs[0].key for one in told] == [b"new1"]
    # the range stands in the index until it is swept out
    engine.end_session(HEAVY)
    match_all(engine)
    engine.check()
    change(engine, b"new2", at=3)
    assert len(engine.store.changes) == 0


# --- nobody else waits --------------------------------------------------------------------------


def goes_until_told(engine: Engine, session: Hashable) -> int:
    goes = 0
    while not engine.notifications.has_notifications(session):
        engine.notifications.match()
        goes += 1
    return goes


def test_expressions_of_one_session_hold_up_no_notification_of_another() -> None:
    engine = Engine()
    for identifier in range(1000):
        listen(engine, HEAVY, identifier, Query.REGEX, b"[a-m]{8}%d[a-z]" % identifier)
    listen(engine, LIGHT, 1, Query.RANGE, b"last", b"last")
    for number in range(200):
        change(engine, bytes(2000) + b"%d" % number)
    change(engine, b"last")
    assert goes_until_told(engine, LIGHT) < 10


def test_sessions_with_expressions_take_turns() -> None:
    engine = Engine()
    for identifier in range(1000):
        listen(engine, HEAVY, identifier, Query.REGEX, b"[a-m]{8}%d[a-z]" % identifier)
    for number in range(200):
        change(engine, bytes(2000) + b"%d" % number)
    while len(engine.store.changes):
        engine.notifications.match()
    listen(engine, LIGHT, 1, Query.REGEX, b"las[tT]")
    change(engine, b"last")
    assert goes_until_told(engine, LIGHT) < 10


def test_long_matches_hold_up_nobody_and_sessions_take_turns_with_them() -> None:
    engine = Engine()
    engine.subscriptions.expressions.defers_long = True
    for session in (HEAVY, "other"):
        for identifier in range(20):
            form = b"[ab]{150}%d[c-z]|^k.*b$" % identifier
            listen(engine, session, identifier, Query.REGEX, form)
    listen(engine, LIGHT, 1, Query.REGEX, b"k.*c$")
    listen(engine, LIGHT, 2, Query.RANGE, b"k", b"l")
    for number in range(3):
        change(engine, b"k%d" % number + b"a" * 2000 + b"b")
    change(engine, b"k-c")
    match_all(engine)
    told = [one for one in replies(engine.notifications.pop(LIGHT, START)) if one.pairs]
    assert {(one.identifier, pair.key) for one in told for pair in one.pairs} >= {
        *((1, b"k-c"), (2, b"k-c"))
    }
    assert not engine.notifications.has_notifications(HEAVY)
    sessions = []
    while (match := engine.subscriptions.expressions.next_long()) is not None:
        sessions.append(match.subscriber.session)
        engine.subscriptions.expressions.take_long(match, match.run())
        engine.check()
        match_all(engine)
        engine.check()
    # the second shares the sets, so what the first had found
    assert sessions[0] == HEAVY
    for session in (HEAVY, "other"):
        told = []
        while engine.notifications.has_notifications(session):
            told += replies(engine.notifications.pop(session, START))
        assert len(told) == 20 * 3


def test_subscriptions_of_one_session_never_stop_reading() -> None:
    engine = Engine()
    for identifier in range(500):
        listen(engine, HEAVY, identifier, Query.REGEX, b"a.*%d" % identifier)
    for identifier in range(500, 1000):
        listen(engine, HEAVY, identifier, Query.RANGE, b"", b"z%d" % identifier)
    listen(engine, LIGHT, 1, Query.RANGE, b"", b"")
    told: set[bytes] = set()
    for number in range(30_000):
        change(engine, b"k%d" % number)
        if number % 100 == 0:
            engine.notifications.match()
            assert not engine.notifications.behind
    match_all(engine)
    while engine.notifications.has_notifications(LIGHT):
        told.update(
            pair.key
            for one in replies(engine.notifications.pop(LIGHT, START))
            for pair in one.pairs
        )
    assert len(told) == 30_000
    engine.check()


@pytest.mark.parametrize("query", [Query.RANGE, Query.REGEX])
def test_end_of_a_connection_leaves_its_ranges_to_be_swept_in_slices(query: Query) -> None:
    engine = Engine()
    for identifier in range(1000):
        bounds = [b"^k%04d.*x" % identifier] * 2
        listen(engine, HEAVY, identifier, query, *bounds)
    listen(engine, LIGHT, 1, Query.RANGE, b"", b"")
    taken = engine.subscriptions.subscriptions_bytes
    assert lines_of(lambda: engine.end_session(HEAVY)) < 1000 * 30
    engine.check()
    # it is counted until it is gone
    assert engine.subscriptions.subscriptions_bytes > taken / 10
    goes = 0
    while engine.notifications.unmatched:
        assert lines_of(engine.notifications.match) < 20_000
        engine.check()
        goes += 1
    assert goes >= 10
    assert engine.subscriptions.subscriptions_bytes < 1000
    change(engine, b"k")
    match_all(engine)
    assert engine.notifications.has_notifications(LIGHT)
    # where nobody is left, nothing is
    for identifier in range(100):
        listen(engine, HEAVY, identifier, query, b"^k%04d.*x" % identifier, b"x")
    engine.end_session(HEAVY)
    engine.end_session(LIGHT)
    assert engine.subscriptions.subscriptions_bytes == 0
    engine.check()


# --- the share of writers -----------------------------------------------------------------------

WINDOW = 32
"""SETs that a client sends before it waits for their replies: the daemon has nothing to do then."""


def listen_often(engine: Engine, session: Hashable, query: Query, *forms: bytes) -> None:
    for identifier, form in enumerate(forms):
        bounds = [b"", form] if query == Query.RANGE else [form]
        listen(engine, session, identifier, query, *bounds)


def with_expressions(engine: Engine, number: int = 1000) -> None:
    forms = (b"item%d.*[a-f]+x" % at for at in range(number))
    listen_often(engine, "expressions", Query.REGEX, *forms)


def with_expressions_that_match(engine: Engine) -> None:
    forms = (b"exam.*[0-9]%d$" % at for at in range(500))
    listen_often(engine, "expressions", Query.REGEX, *forms)


def with_ranges(engine: Engine) -> None:
    listen_often(engine, "ranges", Query.RANGE, *(b"z%d" % at for at in range(1000)))


def with_ranges_and_expressions(engine: Engine) -> None:
    with_ranges(engine)
    with_expressions(engine)


def with_few(engine: Engine) -> None:
    """Subscriptions of usual clients, which stay."""
    listen_often(engine, "range", Query.RANGE, b"z")
    with_expressions(engine, 20)
    for at in range(1000):
        key = b"other%05d" % at
        listen(engine, "ranges", at, Query.RANGE, key, key)


class Writing:
    """A client that sends windows of SETs, and subscribers that read all the time.

    Args:
        engine: It, with subscriptions.
        pause_us: Time between two windows in which the daemon has nothing to do.
        slowness: How long a unit of work takes, in microseconds.
    """

    def __init__(self, engine: Engine, pause_us: int = 0, slowness: int = 1) -> None:
        self.engine = engine
        self.ended: set[int] = set()
        self.told = 0
        self._pause_us = pause_us
        self._slowness = slowness
        self._idle_us = 0
        self._at = 0
        self._number = 0

    def window(self) -> None:
        """Send a window; time passes as work is done."""
        engine, before = self.engine, self.engine.store.work
        for _ in range(WINDOW):
            self._number += 1
            change(engine, b"example.org:128:0001790000000000:%07d" % self._number, self._at)
        match_all(engine, self._idle_us)
        for session in list(engine.subscriptions.subscribers):
            while engine.notifications.has_notifications(session):
                for reply in replies(engine.notifications.pop(session, START)):
                    self.told += bool(reply.pairs)
                    if not reply.pairs:
                        self.ended.add(reply.identifier)
        self._idle_us += self._pause_us
        self._at += (engine.store.work - before) * self._slowness + self._pause_us


COSTLY = (
    with_expressions,
    with_expressions_that_match,
    with_ranges,
    with_ranges_and_expressions,
)


def work_of_a_set(subscribe: Callable[[Engine], object], slowness: int = 1) -> tuple[int, int]:
    """Return the lines for a SET beside subscribers, and how many subscriptions are left."""
    engine = Engine()
    subscribe(engine)
    writing = Writing(engine, slowness=slowness)
    for _ in range(500):
        writing.window()
    engine.check()
    return lines_of(writing.window), len(engine.subscriptions)


@pytest.mark.rule("Publish/subscribe (LISTEN): If the subscriptions of a connection cost more")
@pytest.mark.parametrize("slowness", [1, 50])
@pytest.mark.parametrize("subscribe", COSTLY)
def test_budget_leaves_a_writer_that_waits_for_its_replies_half_of_its_rate(
    subscribe: Callable[[Engine], object], slowness: int
) -> None:
    alone, _ = work_of_a_set(lambda _: None)
    beside, left = work_of_a_set(subscribe, slowness)
    assert beside <= 2 * alone
    assert left == 0


def test_budget_leaves_the_subscriptions_of_usual_clients_beside_a_writer_at_full_speed() -> None:
    engine = Engine()
    with_few(engine)
    writing = Writing(engine)
    for _ in range(1000):
        writing.window()
    assert len(engine.subscriptions) == 1021
    assert writing.told == 1000 * WINDOW
    assert not writing.ended


@pytest.mark.parametrize("subscribe", COSTLY)
def test_budget_ends_no_subscription_where_changes_come_with_time_between_them(
    subscribe: Callable[[Engine], object],
) -> None:
    engine = Engine()
    subscribe(engine)
    writing = Writing(engine, pause_us=WINDOW * 120_000)
    before = len(engine.subscriptions)
    for _ in range(20):
        writing.window()
    assert len(engine.subscriptions) == before
    assert not writing.ended


# --- told so ------------------------------------------------------------------------------------


def ended(s: Listening, session: Hashable) -> dict[int, str]:
    """The subscriptions whose end a session is notified of."""
    s.engine.check()
    found = {}
    for reply in s.notifications(session):
        if not reply.pairs:
            assert reply.flags & Flag.LISTEN
            found[reply.identifier] = reply.code
    s.engine.check()
    return found


@pytest.mark.rule("Publish/subscribe (LISTEN): If the subscriptions of a connection cost more")
def test_expressions_that_fall_too_far_behind_end_and_this_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriptions.SEARCH_AT_ONCE_STEPS", 0)
    monkeypatch.setattr(
        "fastjournald.engine.pubsub.fan_out.SEARCH_QUEUE_BYTES_PER_CONNECTION_MAX", 2000
    )
    s = Listening()
    s.set(b"single")
    s.ask(request(Function.GET, b"single", flags=Flag.LISTEN, identifier=9), session=HEAVY)
    listen(s.engine, HEAVY, 1, Query.REGEX, b"a")
    listen(s.engine, HEAVY, 2, Query.RANGE, b"x", b"z")
    listen(s.engine, LIGHT, 1, Query.REGEX, b"^k7")
    for number in range(5):
        change(s.engine, b"k%d" % number)
    assert ended(s, HEAVY) == {}
    # one key for each that waits: others are folded
    for number in range(20):
        change(s.engine, b"k%d" % (number % 7), at=1)
    assert ended(s, HEAVY) == {}
    for number in range(20):
        change(s.engine, b"k%d" % number, at=1)
    assert ended(s, HEAVY) == {1: "busy", 2: "busy"}
    assert ended(s, LIGHT) == {}
    assert s.engine.subscriptions.too_costly == 2
    # single keys are listened to as before, and the identifiers are free
    change(s.engine, b"single", at=1)
    assert s.told(HEAVY) == [(9, b"single", b"v")]
    listen(s.engine, HEAVY, 1, Query.RANGE, b"x", b"z")
    change(s.engine, b"y", at=1)
    assert s.told(HEAVY) == [(1, b"y", b"v")]


def test_expression_queues_are_bounded_in_sum_and_the_longest_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriptions.SEARCH_AT_ONCE_STEPS", 0)
    monkeypatch.setattr("fastjournald.engine.pubsub.fan_out.SEARCH_QUEUE_BYTES_MAX", 3000)
    s = Listening()
    listen(s.engine, HEAVY, 1, Query.REGEX, b"k.*x")
    listen(s.engine, LIGHT, 1, Query.REGEX, b"^k1.x")
    for number in range(20):
        change(s.engine, b"k%d" % number)
    assert ended(s, HEAVY) == {1: "busy"}
    assert ended(s, LIGHT) == {}


def test_ranges_that_match_far_too_often_end_and_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.fan_out.MATCH_WORK_MAX", 10_000)
    s = Listening()
    for identifier in range(100):
        listen(s.engine, HEAVY, identifier, Query.RANGE, b"", b"z%d" % identifier)
    listen(s.engine, LIGHT, 1, Query.RANGE, b"", b"")
    for number in range(100):
        # with as much time in between it is not too much
        change(s.engine, b"k%d" % number)
        match_all(s.engine, idle_us=number * 10_000)
        s.engine.check()
    assert len(s.engine.subscriptions) == 101
    assert len(s.notifications(HEAVY)) == 100 * 100
    assert len(s.notifications(LIGHT)) == 100
    for number in range(200):
        # pauses alone are no excuse
        change(s.engine, b"k%d" % number, at=(number + 1) * 1_000_000)
        match_all(s.engine, idle_us=1_000_000)
    assert ended(s, HEAVY) == dict.fromkeys(range(100), "busy")
    assert len(s.notifications(LIGHT)) == 200
    assert len(s.engine.subscriptions) == 1


@pytest.mark.rule("Publish/subscribe (LISTEN): If the subscriptions of a connection cost more")
def test_single_keys_that_cost_too_much_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.fan_out.MATCH_WORK_MAX", 100)
    s = Listening()
    s.set(b"k")
    for identifier in range(200):
        s.ask(request(Function.GET, b"k", flags=Flag.LISTEN, identifier=identifier), session=HEAVY)
    s.set(b"k", at=START + 1, flags=Flag.OVERWRITE)
    assert len(ended(s, HEAVY)) == 200
    assert not s.engine.subscriptions


def test_budget_ends_only_subscriptions_that_make_too_much_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.fan_out.CHANGES_BYTES_MAX", 5000)
    monkeypatch.setattr("fastjournald.engine.pubsub.fan_out.ENDED_EACH", 10)
    monkeypatch.setattr("fastjournald.engine.notifications.MATCH_STEPS_MAX", 100)
    s = Listening()
    for identifier in range(100):
        listen(s.engine, HEAVY, identifier, Query.RANGE, b"", b"z%d" % identifier)
    listen(s.engine, LIGHT, 1, Query.RANGE, b"", b"")
    for number in range(100):
        change(s.engine, b"k%d" % number)
    assert ended(s, HEAVY) == dict.fromkeys(range(100), "busy")
    assert len(s.notifications(LIGHT)) == 100


def test_end_that_is_not_told_yet_takes_the_place_of_a_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.fan_out.MATCH_WORK_MAX", 100)
    s = Listening()
    for identifier in range(SUBSCRIPTIONS_PER_CONNECTION_MAX):
        listen(s.engine, HEAVY, identifier, Query.RANGE, b"", b"z%d" % identifier)
    change(s.engine, b"k")
    s.match()
    assert s.engine.notifications.has_notifications(HEAVY)
    assert s.engine.subscriptions.refuses(HEAVY, 5000, b"k").startswith("busy")
    # a new subscription of the same identifier is not told of the end of the one before
    s.engine.subscriptions.begin(HEAVY, 0, b"k")
    s.engine.subscriptions.end(HEAVY, 1)
    assert ended(s, HEAVY).keys() == set(range(2, SUBSCRIPTIONS_PER_CONNECTION_MAX))
    assert s.engine.subscriptions.refuses(HEAVY, 5000, b"k") == ""
    s.engine.end_session(HEAVY)
    s.engine.check()


def test_expressions_have_memory_for_each_connection_and_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fastjournald.engine.pubsub.subscriber.SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX",
        3 * 20_000,
    )
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriber.SUBSCRIPTIONS_BYTES_MAX", 115_000)
    s = Listening()

    def code_of(session: Hashable, identifier: int, expression: bytes) -> str:
        asked = asking(identifier, Query.REGEX, expression)
        return s.ask(asked, session=session).code

    assert [code_of(HEAVY, number, b"^h%d.*" % number) for number in range(4)] == [
        "",
        "",
        "",
        "busy",
    ]
    # one more of the same identifier takes the place of another
    assert code_of(HEAVY, 2, b"^h7.*") == ""
    # what others listen to as well is compiled once
    assert [code_of(LIGHT, number, b"^h%d.*" % number) for number in range(2)] == ["", ""]
    assert code_of(LIGHT, 3, b"^x.*") == ""
    assert code_of("other", 1, b"^y.*") == ""
    assert code_of("other", 2, b"^z.*") == "busy"
    s.engine.end_session(HEAVY)
    assert code_of("other", 2, b"^z.*") == ""
    s.engine.check()


# --- right --------------------------------------------------------------------------------------

SMALL_KEYS = [b"a", b"b", b"ab", b"ba", b"aab", b"bab", b"abb"]
ABOUT: list[bytes | KeyFilter] = [
    *SMALL_KEYS[:3],
    *(
        one
        for one in (
            range_filter(b"a", b"ab"),
            range_filter(b"", b""),
            range_filter(b"b", b""),
            range_filter(b"b", b"a"),
            expression_filter(b"b$"),
            expression_filter(b"^a.*b"),
            expression_filter(b"^b"),
            expression_filter(b"a.?b"),
        )
        if isinstance(one, KeyFilter)
    ),
]


def is_about(about: bytes | KeyFilter, key: bytes) -> bool:
    return about == key if isinstance(about, bytes) else about.matches(key)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 7, 500]), st.booleans(), st.integers(0, 3))
def test_matching_in_slices_tells_what_a_naive_list_tells(
    monkeypatch: pytest.MonkeyPatch, seed: int, steps_max: int, defers_long: bool, at_once: int
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriptions.SEARCH_AT_ONCE_STEPS", at_once)
    monkeypatch.setattr("fastjournald.engine.pubsub.regex_sets.LONG_MATCH_WORK", 20)
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriber.LONG_MATCHES", 1)
    chance = random.Random(seed)
    changes = ChangeSet(Signals())
    subscriptions = Subscriptions(changes)
    subscriptions.expressions.defers_long = defers_long
    running: list[LongMatch] = []
    naive: dict[tuple[int, int], tuple[bytes | KeyFilter, dict[bytes, None]]] = {}
    for _ in range(60):
        session, identifier = chance.randrange(3), chance.randrange(6)
        match chance.randrange(7):
            case 0 | 1:
                about = chance.choice(ABOUT)
                subscriptions.begin(session, identifier, about)
                naive[session, identifier] = about, {}
            case 2:
                subscriptions.end(session, identifier)
                naive.pop((session, identifier), None)
            case 3:
                if subscriptions:
                    subscriptions.match(steps_max, None, 0)
            case 4 if running:
                # meanwhile much may have happened
                found = running.pop()
                subscriptions.expressions.take_long(found, found.run())
            case 4:
                running += filter(None, [subscriptions.expressions.next_long()])
            case _:
                if subscriptions:
                    key = chance.choice(SMALL_KEYS)
                    changes.note(key, None)
                    for about, untold in naive.values():
                        if is_about(about, key):
                            untold[key] = None
        subscriptions.check()
        if chance.random() < 0.1:
            take_notifications(subscriptions, session, naive)
    while subscriptions and (subscriptions.unmatched() or subscriptions.expressions.next_long()):
        subscriptions.match(steps_max, None, 0)
        long = subscriptions.expressions.next_long()
        if long is not None:
            subscriptions.expressions.take_long(long, long.run())
    for session in range(3):
        take_notifications(subscriptions, session, naive)
    assert all(not untold for _, untold in naive.values())


def take_notifications(
    subscriptions: Subscriptions,
    session: int,
    naive: dict[tuple[int, int], tuple[bytes | KeyFilter, dict[bytes, None]]],
) -> None:
    """Take all notifications; each is of a change that was not delivered so far."""
    while (pending := subscriptions.next_notification(session)) is not None:
        identifier, key = pending
        del naive[session, identifier][1][key]


@pytest.mark.parametrize("at_once", [0, 60])
def test_pubsub_match_counts_all_steps_that_it_does(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriptions.SEARCH_AT_ONCE_STEPS", at_once)
    engine = Engine()
    listen(engine, LIGHT, 1, Query.REGEX, b"k")
    for number in range(400):
        change(engine, b"k%d" % number)
    subscriptions, changes = engine.subscriptions, engine.store.changes
    before = len(changes)
    subscriptions.match(200, None, START)
    looked_up = before - len(changes)
    queued = subscriptions.expressions.bytes
    notified = len(subscriptions.upcoming(LIGHT, before))
    assert (queued > 0) is (at_once == 0)
    # a look-up is three steps or more, a match with a notification two
    assert subscriptions.steps >= 3 * (looked_up - 1) + 2 * notified
    assert subscriptions.steps < 210
