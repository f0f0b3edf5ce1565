"""Changes that wait for a listener, and subscriptions in the multiplexer."""

from __future__ import annotations

import pytest

from fastjournal.client.core import calls
from fastjournal.client.core.changes import ChangeBuffer
from fastjournal.client.core.failures import connection_lost
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.client.core.results import ChangeKind
from fastjournal.errors import RefusedError
from fastjournal.limits import LISTENER_BYTES_MAX, LISTENER_KEYS_MAX
from fastjournal.protocol import (
    Flag,
    Function,
    Pair,
    Reply,
    Request,
    ServerConnection,
    encode_reply,
)

LISTEN = int(Flag.LISTEN)


def note(identifier: int, key: bytes, value: bytes = b"v", error: str = "") -> Reply:
    return Reply(identifier, flags=LISTEN, error=error, pairs=[Pair(key, 1, value)])


def taken(buffer: ChangeBuffer) -> list[tuple[str, bytes, bytes]]:
    found = []
    while (change := buffer.take()) is not None:
        found.append((str(change.kind), change.key, change.value))
    return found


def test_changes_over_the_bound_are_dropped_and_that_is_shown_first() -> None:
    buffer = ChangeBuffer(lambda: None)
    for n in range(LISTENER_KEYS_MAX + 1):
        buffer.tell(note(1, b"%d" % n))
    buffer.tell(note(1, b"last"))
    assert taken(buffer) == [("missed", b"", b""), ("set", b"last", b"v")]
    half = bytes(LISTENER_BYTES_MAX // 2)
    buffer.tell(note(1, b"a", half))
    buffer.tell(note(1, b"a", half))
    buffer.tell(note(1, b"b", half))
    assert len(taken(buffer)) == 2
    buffer.tell(note(1, b"a", half))
    buffer.tell(note(1, b"b", half + b"+"))
    assert taken(buffer) == [("missed", b"", b"")]


def test_end_of_a_subscription_is_raised_behind_the_changes_before_it() -> None:
    buffer = ChangeBuffer(lambda: None)
    buffer.tell(note(1, b"a"))
    buffer.tell(Reply(1, flags=LISTEN, error="busy it costs too much"))
    assert buffer.take().key == b"a"
    for _ in range(2):
        with pytest.raises(RefusedError, match="it costs too much") as caught:
            buffer.take()
        assert caught.value.code == "busy"


def test_end_of_the_connection_is_noted_and_a_new_one_is_told() -> None:
    buffer = ChangeBuffer(lambda: None)
    buffer.tell(note(1, b"a"))
    buffer.tell(None)
    assert buffer.lost
    assert taken(buffer) == [("set", b"a", b"v")]
    buffer.subscribed_again()
    buffer.tell(note(2, b"b"))
    assert taken(buffer) == [("missed", b"", b""), ("set", b"b", b"v")]
    assert ChangeKind.MISSED == "missed"


class Subscriber:
    """A multiplexer, what it received, and the daemon's side of it."""

    def __init__(self) -> None:
        self.client = Multiplexer(reply_bytes_max=10_000)
        self.server = ServerConnection()
        self.told: list[bytes | None] = []

    def subscribe(self) -> Request:
        request = calls.listening(prefix="a").request
        self.client.subscribe(request, self.tell)
        return request

    def tell(self, reply: Reply | None) -> None:
        self.told.append(None if reply is None or not reply.pairs else reply.pairs[0].key)

    def sent(self) -> list[Request]:
        self.server.receive_data(self.client.data_to_send())
        return self.server.next_events()

    def receive(self, *replies: Reply) -> None:
        self.client.receive_data(b"".join(encode_reply(reply) for reply in replies))


def test_notifications_reach_their_subscription_until_it_ends() -> None:
    s = Subscriber()
    request = s.subscribe()
    assert [one.identifier for one in s.sent()] == [request.identifier]
    s.receive(Reply(request.identifier), note(request.identifier, b"a1"), note(99, b"nobody's"))
    assert s.told == [b"a1"]
    s.client.unsubscribe(request.identifier)
    s.client.unsubscribe(request.identifier)
    (end,) = s.sent()
    assert (end.function, end.count) == (Function.CANCEL, request.identifier)
    s.receive(note(request.identifier, b"a2"), Reply(end.identifier))
    s.receive(note(request.identifier, b"a3"))
    assert s.told == [b"a1"]
    assert not s.client.failed
    s.client.unsubscribe(request.identifier)
    assert s.sent() == []


def test_identifier_of_a_subscription_is_not_given_again() -> None:
    s = Subscriber()
    request = s.subscribe()
    s.sent()
    s.receive(Reply(request.identifier))
    for _ in range(70_000):
        pending = s.client.start(Request(0))
        assert pending.request.identifier != request.identifier
        s.client.data_to_send()
        s.receive(Reply(pending.request.identifier))


def test_subscription_that_is_given_up_before_its_reply_ends_after_it() -> None:
    s = Subscriber()
    request = s.subscribe()
    s.client.unsubscribe(request.identifier)
    assert len(s.sent()) == 1
    s.receive(note(request.identifier, b"a1"), Reply(request.identifier))
    assert [one.flags & LISTEN for one in s.sent()] == [0]
    assert s.told == []


def test_refused_subscription_is_none() -> None:
    s = Subscriber()
    request = s.subscribe()
    s.sent()
    s.receive(Reply(request.identifier, error="busy"))
    s.client.unsubscribe(request.identifier)
    assert s.sent() == []
    s.client.fail(connection_lost("killed"))
    assert s.told == []


def test_end_of_the_connection_is_told_to_every_subscription() -> None:
    s = Subscriber()
    s.subscribe()
    s.subscribe()
    s.sent()
    s.client.receive_data(b"")
    assert s.told == [None, None]
