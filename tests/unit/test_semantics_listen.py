"""SET and GET with LISTEN: every sentence of docs/protocol.md about notifications, by example."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import sha256
from typing import Any

import pytest

from fastjournal.limits import NOTIFICATIONS_TURN_BYTES
from fastjournal.protocol import ClientConnection
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query, ValueType
from fastjournal.protocol.functions import Right
from fastjournal.protocol.messages import Reply, Request
from fastjournald.engine.authorization import Grant, Grants
from fastjournald.engine.value_memory import missing_notifications
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, SESSION, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"
LISTEN = Flag.LISTEN
ME = "listener"

Told = list[tuple[int, bytes, bytes | None]]
"""Identifier, key, and the value that stands there; None: none does."""


class Listening(Subject):
    """An engine, whose other sessions change what one listens to."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.subject = EngineSubject(rules or Rules())
        self.engine = self.subject.engine
        super().__init__(self.subject)

    def listen_to(self, key: bytes, identifier: int = 7, **fields: Any) -> Reply:
        """GET with LISTEN."""
        flags = LISTEN | fields.pop("flags", 0)
        asked = request(Function.GET, key, flags=flags, identifier=identifier, **fields)
        return self.ask(asked, session=ME)

    def match(self) -> None:
        """Match all that changed."""
        while self.engine.notifications.unmatched:
            self.engine.notifications.match()
            self.engine.check()

    def notifications(self, session: Hashable = ME) -> list[Reply]:
        """All notifications of a session now."""
        self.match()
        connection = ClientConnection()
        while self.engine.notifications.has_notifications(session):
            connection.receive_data(self.tell(session))
        return connection.next_events()

    def tell(self, session: Hashable = ME) -> bytes:
        """One piece of the notifications of a session."""
        unreadable = self.subject.fetch(missing_notifications(self.engine.context, session))
        return self.engine.notifications.pop(session, self.now, unreadable)

    def told(self, session: Hashable = ME) -> Told:
        """The same, in short."""
        told: Told = []
        for reply in self.notifications(session):
            assert reply.flags & LISTEN
            assert reply.pairs
            (pair,) = reply.pairs
            if reply.error:
                assert (reply.code, pair.value_type, pair.value) == ("not-found", 0, b"")
                assert pair.meta is None
            else:
                assert pair.meta is not None
            told.append((reply.identifier, pair.key, None if reply.error else pair.value))
        return told


@pytest.fixture
def s() -> Listening:
    return Listening()


def test_get_listens_to_the_key_that_it_finds(s: Listening) -> None:
    s.set(b"p", b"one")
    assert s.listen_to(b"p").code == ""
    assert s.told() == [], "what was before is the reply"
    s.set(b"p", b"two", at=START + 1, flags=Flag.OVERWRITE)
    s.set(b"q", b"other")
    assert s.told() == [(7, b"p", b"two")]
    assert s.told() == [], "once"


def test_repeated_set_listens_too(s: Listening) -> None:
    s.set(b"p", b"one")
    again = request(Function.SET, b"p", b"one", flags=LISTEN, identifier=3)
    assert s.ask(again, session=ME).code == ""
    s.delete(b"p", at=START + 1)
    assert s.told() == [(3, b"p", None)]


def test_notification_has_the_identifier_the_key_the_value_and_its_metadata(s: Listening) -> None:
    s.set(JOB, b"one", uri=URI, flags=Flag.PERSIST)
    s.listen_to(URI, identifier=900)
    s.later(5)
    s.set(OTHER, b"two", uri=URI, at=START + 1, kind=ValueType.STRING, flags=Flag.PERSIST)
    (told,) = s.notifications()
    assert (told.identifier, told.code, told.timestamp) == (900, "", START + 5)
    assert told.flags & LISTEN
    assert told.pairs
    (pair,) = told.pairs
    assert (pair.key, pair.value_type, pair.value) == (URI, ValueType.STRING, b"two")
    assert pair.second_key == b""
    assert pair.meta is not None
    assert (pair.meta.timestamp_us, pair.meta.modified_us) == (START + 1, START + 5)


def test_changes_that_follow_fast_are_one_with_the_last_value(s: Listening) -> None:
    s.set(b"p", b"0")
    s.listen_to(b"p")
    for number in range(1, 9):
        s.set(b"p", b"%d" % number, at=START + number, flags=Flag.OVERWRITE)
        s.match()
    assert s.told() == [(7, b"p", b"8")]


def test_leases_touches_and_repeats_are_not_told(s: Listening) -> None:
    s.set(JOB, b"0")
    s.listen_to(JOB)
    token = s.lease()
    s.ask(request(Function.TOUCH, JOB, ttl=SECOND))
    s.ask(request(Function.RELEASE, JOB, flags=Flag.WORKED_ON, timeout=token))
    s.set(JOB, b"0")
    s.get(JOB)
    assert s.told() == []


def test_quit_ends_subscriptions(s: Listening) -> None:
    s.set(b"p")
    s.listen_to(b"p")
    s.ask(request(Function.QUIT), session=ME)
    assert len(s.engine.subscriptions) == 0
    assert not s.engine.store.changes.wanted


def test_stats_tell_how_many_listen(s: Listening) -> None:
    s.set(b"p")
    s.listen_to(b"p", identifier=1)
    s.listen_to(b"p", identifier=2)
    s.listen_to(b"p", identifier=2)
    assert s.stats()["subscriptions"] == 2


def test_listen_with_too_many_subscriptions_of_a_connection_is_busy(
    s: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriber.SUBSCRIPTIONS_PER_CONNECTION_MAX", 2)
    s.set(b"p")
    for identifier in (1, 2, 2):
        assert s.listen_to(b"p", identifier=identifier).code == ""
    assert s.listen_to(b"p", identifier=3).code == "busy"
    new = request(Function.SET, b"q", b"v", flags=LISTEN, identifier=3)
    assert s.ask(new, session=ME).code == "busy"
    assert s.get(b"q").code == "not-found"
    again = request(Function.SET, b"p", b"v", flags=LISTEN, identifier=3)
    assert s.ask(again, session=ME).code == "busy"
    assert s.listen_to(b"p", identifier=3, timeout=SECOND).code == "busy"
    assert s.meta(b"p", flags=Flag.META).worked_on_until_us == 0


def test_listen_with_too_many_subscriptions_in_all_is_busy(
    s: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriber.SUBSCRIPTIONS_MAX", 2)
    s.set(b"p")
    s.listen_to(b"p", identifier=1)
    other = request(Function.GET, b"p", flags=LISTEN)
    assert s.ask(other, session=SESSION).code == ""
    assert s.listen_to(b"p", identifier=2).code == "busy"
    s.engine.end_session(SESSION)
    assert s.listen_to(b"p", identifier=2).code == ""


def test_listen_ends_for_a_subscriber_that_falls_too_far_behind(
    s: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fastjournald.engine.pubsub.subscriber.NOTIFICATIONS_BYTES_PER_CONNECTION_MAX", 2000
    )
    keys = [b"p%d" % number for number in range(20)]
    for identifier, key in enumerate(keys):
        s.set(key)
        s.listen_to(key, identifier=identifier)
    overrun: list[Hashable] = []
    for key in keys:
        s.delete(key, at=START + 1)
        while s.engine.notifications.unmatched:
            overrun += s.engine.notifications.match()[1]
    assert overrun == [ME]
    assert s.told() == []
    s.engine.check()


def test_notification_queues_are_bounded_in_sum_and_the_longest_ends(
    s: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriber.NOTIFICATIONS_BYTES_MAX", 1600)
    for number in range(9):
        s.set(b"p%d" % number)
        s.listen_to(b"p%d" % number, identifier=number)
    s.ask(request(Function.GET, b"p0", flags=LISTEN), session="other")
    overrun: list[Hashable] = []
    for number in range(9):
        s.delete(b"p%d" % number, at=START + 1)
        while s.engine.notifications.unmatched:
            overrun += s.engine.notifications.match()[1]
    assert overrun == [ME]
    assert s.told("other") == [(7, b"p0", None)]


def test_notifications_of_one_piece_are_bounded(s: Listening) -> None:
    for number in range(200):
        s.set(b"p%d" % number, bytes(1000))
        s.listen_to(b"p%d" % number, identifier=number)
        s.set(b"p%d" % number, bytes(1000), at=START + 1, flags=Flag.OVERWRITE)
    s.match()
    assert NOTIFICATIONS_TURN_BYTES <= len(s.tell()) < NOTIFICATIONS_TURN_BYTES + 2000
    assert s.engine.notifications.has_notifications(ME)
    assert len(s.told()) > 100


# --- rights -------------------------------------------------------------------------------------

ALL = Right.READ | Right.WRITE | Right.NEXT


def under_tokens(**prefixes: bytes) -> Listening:
    """An engine in which a session of each name has all rights for one prefix."""
    s = Listening()
    s.engine.replace_grants(
        Grants(
            Grant(name, sha256(name.encode()).digest(), ALL, (prefix,))
            for name, prefix in prefixes.items()
        ),
        s.now,
    )
    for name in prefixes:
        assert s.ask(auth(name), session=name).code == ""
    return s


def auth(token: str) -> Request:
    return request(Function.AUTH, value=token.encode())


def put(key: bytes, value: bytes = b"v", *, at: int = START, **fields: Any) -> Request:
    return request(Function.SET, key, value, at=at, flags=Flag.OVERWRITE, **fields)


def test_token_is_told_of_a_key_while_that_is_its_and_then_that_it_is_gone() -> None:
    s = under_tokens(all=b"", a=b"a:")
    asked = request(Function.GET, URI, flags=LISTEN)
    s.ask(put(JOB, b"0", uri=URI), session="all")
    assert s.ask(asked, session="a").code == ""
    s.ask(put(OTHER, b"1", uri=URI, at=START + 1), session="all")
    assert s.told("a") == [(7, URI, b"1")]
    s.ask(put(b"b:1:0:x", b"2", uri=URI, at=START + 2), session="all")
    assert s.told("a") == [(7, URI, None)], "not what another domain has there"
    s.ask(put(b"b:1:0:y", b"3", uri=URI, at=START + 3), session="all")
    s.ask(request(Function.DELETE, URI, at=START + 4), session="all")
    assert s.told("a") == [], "not that it changes, or goes"
    s.ask(put(JOB, b"4", uri=URI, at=START + 5), session="all")
    assert s.told("a") == [(7, URI, b"4")]
    s.ask(request(Function.DELETE, JOB, at=START + 6), session="all")
    assert s.told("a") == [(7, URI, None)]


def test_token_that_counts_no_more_ends_subscriptions() -> None:
    s = under_tokens(a=b"a:")
    s.ask(put(JOB), session="a")
    s.ask(request(Function.GET, JOB, flags=LISTEN), session="a")
    s.engine.replace_grants(Grants([]), s.now)
    assert len(s.engine.subscriptions) == 0
    s.engine.check()


# --- many keys ----------------------------------------------------------------------------------


def test_expression_listens_to_every_key_that_it_matches(s: Listening) -> None:
    assert s.listen_to(b"^a|z", flags=Query.REGEX << QUERY_SHIFT).code == ""
    for key in (b"a1", b"ba", b"bz"):
        s.set(key, key)
    assert sorted(s.told()) == [(7, b"a1", b"a1"), (7, b"bz", b"bz")]


def test_listen_to_a_range_leaves_out_what_the_token_may_not_read() -> None:
    s = under_tokens(all=b"", a=b"a:")
    everything = request(Function.GET, b"", uri=b"", count=0, flags=LISTEN)
    assert s.ask(everything, session="a").code == ""
    s.ask(put(b"b:1:0:x", uri=b"secret"), session="all")
    s.ask(put(JOB, b"1", uri=URI), session="all")
    assert sorted(s.told("a")) == [(7, JOB, b"1"), (7, URI, b"1")]
    s.ask(request(Function.DELETE, b"secret", at=START + 1), session="all")
    s.ask(request(Function.DELETE, JOB, at=START + 1), session="all")
    assert sorted(s.told("a")) == [(7, JOB, None), (7, URI, None)]


# --- functions that change values and keys ------------------------------------------------------


def listening_to_everything() -> Listening:
    s = Listening()
    s.listen_to(b"", uri=b"", count=0)
    return s


def test_add_not_and_truncate_are_told_under_all_keys() -> None:
    s = listening_to_everything()
    s.set(b"n", b"\1", kind=ValueType.INTEGER, uri=b"u")
    s.set(b"b", b"\1", kind=ValueType.BOOLEAN)
    s.set(b"t", b"text")
    s.told()
    s.ask(request(Function.ADD, b"u", b"\2", kind=ValueType.INTEGER))
    s.ask(request(Function.NOT, b"b"))
    s.ask(request(Function.TRUNCATE, b"t", b"\2", kind=ValueType.INTEGER))
    assert sorted(s.told()) == [
        (7, b"b", b"\0"),
        (7, b"n", b"\3"),
        (7, b"t", b"te"),
        (7, b"u", b"\3"),
    ]
    assert s.ask(request(Function.ADD, b"n", b"\x7f", kind=ValueType.INTEGER)).code == "overflow"
    assert s.told() == []


@pytest.mark.warm_only
def test_add_that_creates_is_told() -> None:
    s = listening_to_everything()
    s.ask(request(Function.ADD, b"n", b"\2", kind=ValueType.INTEGER, flags=Flag.OVERWRITE))
    assert s.told() == [(7, b"n", b"\2")]


def test_rename_tells_the_old_and_the_new_key_and_what_it_replaces() -> None:
    s = listening_to_everything()
    s.set(b"k", b"v", uri=b"u")
    s.set(b"target", b"old", uri=b"t")
    s.told()
    s.ask(request(Function.RENAME, b"k", uri=b"target", flags=Flag.OVERWRITE, at=START + 1))
    assert sorted(s.told()) == [(7, b"k", None), (7, b"t", None), (7, b"target", b"v")]
