"""Subscriptions of one session cost nobody else: work is bounded, and told where it is too much."""

from __future__ import annotations

import random
from collections.abc import Hashable

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


# --- nobody else waits --------------------------------------------------------------------------


def goes_until_told(engine: Engine, session: Hashable) -> int:
    goes = 0
    while not engine.notifications.has_notifications(session):
        engine.notifications.match()
        goes += 1
    return goes


def listen_to_many(engine: Engine) -> None:
    for identifier in range(1000):
        listen(engine, HEAVY, identifier, Query.REGEX, b"[a-m]{8}%d[a-z]" % identifier)


def change_many(engine: Engine) -> None:
    for number in range(200):
        change(engine, bytes(2000) + b"%d" % number)


def test_expressions_of_one_session_hold_up_no_notification_of_another() -> None:
    engine = Engine()
    listen_to_many(engine)
    listen(engine, LIGHT, 1, Query.RANGE, b"last", b"last")
    change_many(engine)
    change(engine, b"last")
    assert goes_until_told(engine, LIGHT) < 10


def test_sessions_with_expressions_take_turns() -> None:
    engine = Engine()
    listen_to_many(engine)
    change_many(engine)
    while len(engine.store.changes):
        engine.notifications.match()
    listen(engine, LIGHT, 1, Query.REGEX, b"las[tT]")
    change(engine, b"last")
    assert goes_until_told(engine, LIGHT) < 10


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
    monkeypatch.setattr("fastjournald.engine.engine.MATCH_STEPS_MAX", 100)
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
        "fastjournald.engine.pubsub.subscriber.SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX", 3 * 20_000
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
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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
