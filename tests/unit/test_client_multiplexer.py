"""The multiplexer: identifiers, matching, abandoning and failing, without IO."""

from __future__ import annotations

import random

import pytest

from fastjournal.client.core import calls
from fastjournal.client.core.failures import connection_lost
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.errors import CannotConnectError, ProtocolError
from fastjournal.limits import CLIENT_IN_FLIGHT_MAX, CLIENT_UNSENT_BYTES_MAX
from fastjournal.protocol import (
    Flag,
    Function,
    Pair,
    Reply,
    Request,
    ServerConnection,
    encode_reply,
)


def received(server: ServerConnection, client: Multiplexer) -> list[Request]:
    if data := client.data_to_send():
        server.receive_data(data)
    return server.next_events()


def new() -> Multiplexer:
    return Multiplexer(reply_bytes_max=1000)


def test_replies_find_their_requests_in_any_order_and_any_pieces() -> None:
    client, rng = new(), random.Random(5)
    pendings = [client.start(Request(Function.GET, key=b"%d" % n)) for n in range(50)]
    requests = received(ServerConnection(), client)
    rng.shuffle(requests)
    stream = b"".join(
        encode_reply(Reply(request.identifier, pairs=[Pair(request.key)])) for request in requests
    )
    finished = 0
    while stream:
        cut = rng.randrange(1, 30)
        finished += client.receive_data(stream[:cut])
        stream = stream[cut:]
    assert finished == 50
    assert client.in_flight == 0
    for n, pending in enumerate(pendings):
        pairs = pending.answer().pairs
        assert pairs is not None
        assert pairs[0].key == b"%d" % n


def test_identifier_in_flight_is_not_given_again_and_zero_never() -> None:
    client = new()
    held = client.start(Request(Function.NEXT))
    seen = set()
    for _ in range(70_000):
        pending = client.start(Request(Function.NOP))
        client.data_to_send()
        seen.add(pending.request.identifier)
        client.receive_data(encode_reply(Reply(pending.request.identifier)))
        assert pending.done
    assert 0 not in seen
    assert held.request.identifier not in seen
    assert len(seen) == 65_534
    assert not held.done


def test_multiplexer_has_no_room_beyond_its_bounds_until_replies_come_or_bytes_go() -> None:
    client = new()
    for _ in range(CLIENT_IN_FLIGHT_MAX):
        assert client.has_room
        client.start(Request(Function.NOP))
        client.data_to_send()
    assert not client.has_room
    client.receive_data(encode_reply(Reply(1)))
    assert client.has_room
    client.start(Request(Function.SET, value_type=1, value=bytes(CLIENT_UNSENT_BYTES_MAX)))
    client.receive_data(encode_reply(Reply(2)))
    assert not client.has_room
    client.data_to_send()
    assert client.has_room


def test_connection_that_is_closed_without_a_word_may_be_one_for_tls() -> None:
    for heard in (b"", encode_reply(Reply(1))):
        client = new()
        pendings = [client.start(Request(Function.NOP)) for _ in range(2)]
        if heard:
            client.receive_data(heard)
        client.receive_data(b"")
        with pytest.raises(CannotConnectError) as caught:
            pendings[1].answer()
        assert caught.value.hint is not None
        assert ("TLS" in caught.value.hint) is not bool(heard)
        assert caught.value.code == "connection-lost"


def test_lost_connection_gives_everything_in_flight_its_own_error() -> None:
    client = new()
    done = client.start(Request(Function.NOP))
    lost = [client.start(Request(Function.NOP)) for _ in range(2)]
    client.receive_data(encode_reply(Reply(done.request.identifier)))
    client.receive_data(b"")
    assert done.answer().error == ""
    errors = []
    for pending in lost:
        with pytest.raises(CannotConnectError) as caught:
            pending.answer()
        assert caught.value.code == "connection-lost"
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert client.failed
    assert client.data_to_send() == b""
    with pytest.raises(CannotConnectError):
        client.start(Request(Function.NOP))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "bad-request"),
        (encode_reply(Reply(9)), "bad-request"),
        (encode_reply(Reply(1, pairs=[Pair(b"k", 1, bytes(2000))])), "too-large"),
    ],
)
def test_bytes_that_answer_no_request_end_the_connection(data: bytes, code: str) -> None:
    client = new()
    pending = client.start(Request(Function.NOP))
    client.receive_data(data)
    with pytest.raises(ProtocolError) as caught:
        pending.answer()
    assert caught.value.code == code
    assert client.failed


def test_notification_is_not_taken_for_a_reply() -> None:
    client = new()
    pending = client.start(Request(Function.GET, key=b"k"))
    note = Reply(pending.request.identifier, flags=Flag.LISTEN, pairs=[Pair(b"k")])
    assert client.receive_data(encode_reply(note)) == 0
    assert not pending.done


def test_abandoned_next_has_its_lease_released() -> None:
    client, server = new(), ServerConnection()
    call = calls.next_(count=2)
    pending = client.start(call.request, call.undo)
    received(server, client)
    client.abandon(pending)
    assert not client.wants_to_send
    client.receive_data(
        encode_reply(
            Reply(pending.request.identifier, timeout=7, pairs=[Pair(b"d:1:1:a"), Pair(b"d:1:1:b")])
        )
    )
    assert client.wants_to_send
    released = received(server, client)
    assert [(r.function, r.key, r.timeout) for r in released] == [
        (Function.RELEASE, b"d:1:1:a", 7),
        (Function.RELEASE, b"d:1:1:b", 7),
    ]
    for request in released:
        client.receive_data(encode_reply(Reply(request.identifier, error="lease-lost")))
    assert client.in_flight == 0
    assert not client.failed


def test_releases_without_room_go_out_bit_by_bit() -> None:
    client, server = new(), ServerConnection()
    client = Multiplexer(reply_bytes_max=10_000_000)
    call = calls.next_(count=20_000)
    pending = client.start(call.request, call.undo)
    client.abandon(pending)
    received(server, client)
    pairs = [Pair(b"d:1:1:%d" % n) for n in range(20_000)]
    client.receive_data(encode_reply(Reply(pending.request.identifier, timeout=7, pairs=pairs)))
    released: list[bytes] = []
    while client.wants_to_send:
        batch = received(server, client)
        assert 0 < len(batch) <= CLIENT_IN_FLIGHT_MAX
        released += [request.key for request in batch]
        client.receive_data(b"".join(encode_reply(Reply(r.identifier)) for r in batch))
    assert released == [pair.key for pair in pairs]


def test_next_that_waits_is_cancelled_when_nobody_waits_for_it() -> None:
    client, server = new(), ServerConnection()
    call = calls.next_(wait=calls.WAIT_WITHOUT_END)
    pending = client.start(call.request, call.undo)
    client.abandon(pending)
    asked, cancelled = received(server, client)
    assert (cancelled.function, cancelled.count) == (Function.CANCEL, asked.identifier)
    assert not client.settled
    client.receive_data(encode_reply(Reply(asked.identifier, pairs=[])))
    client.receive_data(encode_reply(Reply(cancelled.identifier)))
    assert client.settled
    assert (client.in_flight, client.data_to_send()) == (0, b"")


def test_work_that_was_on_its_way_when_a_next_was_cancelled_is_released() -> None:
    client, server = new(), ServerConnection()
    call = calls.next_(wait=5e-6)
    pending = client.start(call.request, call.undo)
    client.abandon(pending)
    asked, cancelled = received(server, client)
    client.receive_data(
        encode_reply(Reply(asked.identifier, timeout=7, pairs=[Pair(b"d:1:1:a")]))
        + encode_reply(Reply(cancelled.identifier, error="not-found"))
    )
    (released,) = received(server, client)
    assert (released.function, released.key, released.timeout) == (
        Function.RELEASE,
        b"d:1:1:a",
        7,
    )
    assert not client.settled
    client.receive_data(encode_reply(Reply(released.identifier)))
    assert client.settled


def test_identifier_that_is_answered_before_its_cancellation_goes_out_is_not_cancelled() -> None:
    client, server = new(), ServerConnection()
    call = calls.next_(wait=5e-6)
    pending = client.start(call.request, call.undo)
    (asked,) = received(server, client)
    client.abandon(pending)
    client.receive_data(encode_reply(Reply(asked.identifier, pairs=[])))
    assert received(server, client) == []
    assert client.settled


def test_abandoned_request_is_not_cancelled_where_it_was_answered_or_does_not_wait() -> None:
    client, server = new(), ServerConnection()
    answered, short = client.start(Request(Function.NOP)), calls.next_()
    client.receive_data(encode_reply(Reply(1)))
    client.abandon(answered)
    client.abandon(client.start(short.request, short.undo))
    assert [request.function for request in received(server, client)] == [
        Function.NOP,
        Function.NEXT,
    ]
    client.fail(connection_lost("killed"))
    assert client.settled


def test_subscription_keeps_its_identifier_until_its_cancellation_is_answered() -> None:
    client, server = new(), ServerConnection()
    told: list[Reply | None] = []
    pending = client.subscribe(Request(Function.GET, flags=Flag.LISTEN, key=b"k"), told.append)
    (asked,) = received(server, client)
    client.receive_data(encode_reply(Reply(asked.identifier, pairs=[])))
    client.unsubscribe(pending.identifier)
    client.unsubscribe(pending.identifier)
    (cancelled,) = received(server, client)
    assert (cancelled.function, cancelled.count) == (Function.CANCEL, asked.identifier)
    note = encode_reply(Reply(asked.identifier, flags=Flag.LISTEN, pairs=[Pair(b"k")]))
    client.receive_data(note)
    seen = {client.start(Request(Function.NOP)).identifier for _ in range(10)}
    assert asked.identifier not in seen
    client.receive_data(encode_reply(Reply(cancelled.identifier)))
    client._last_identifier = asked.identifier - 1
    assert client.start(Request(Function.NOP)).identifier == asked.identifier
    assert told == []
