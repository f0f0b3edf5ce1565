"""The connections: what they take, what a cut stream costs, and that nothing is shared."""

from __future__ import annotations

from collections import deque
from typing import assert_type

import pytest

from fastjournal.protocol import (
    CONNECTION_CLOSED,
    NEED_DATA,
    ClientConnection,
    Flag,
    Meta,
    Pair,
    ProtocolError,
    Reply,
    Request,
    ServerConnection,
    encode_reply,
    encode_request,
)
from fastjournal.protocol.replies import ReplyReader
from fastjournal.protocol.requests import RequestReader

SET = Request(2, 7, Flag.PERSIST, 1, b"key", b"uri", 1, b"value", 2, 3, 4)


class CountingRequests(RequestReader):
    """Counts the bytes that it is shown."""

    __slots__ = ("looks", "shown")

    def __init__(self) -> None:
        super().__init__(10_000_000)
        self.looks = self.shown = 0

    def read(self, data: bytes, ready: deque[Request]) -> tuple[int, int]:
        self.looks += 1
        self.shown += len(data)
        return super().read(data, ready)


class CountingReplies(ReplyReader):
    """Counts the bytes that it is shown."""

    __slots__ = ("looks", "shown")

    def __init__(self) -> None:
        super().__init__(10_000_000)
        self.looks = self.shown = 0

    def read(self, data: bytes, ready: deque[Reply]) -> tuple[int, int]:
        self.looks += 1
        self.shown += len(data)
        return super().read(data, ready)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_large_request_in_small_pieces_is_looked_at_a_few_times(step: int) -> None:
    connection = ServerConnection()
    connection._reader = reader = CountingRequests()
    request = Request(2, 1, 0, 2, b"k" * 300, b"u" * 300, 1, b"v" * 1_000_000, 3, 4, 5)
    data = encode_request(request)
    for start in range(0, len(data), step):
        connection.receive_data(data[start : start + step])
    event = connection.next_event()
    assert isinstance(event, Request)
    assert event.value == request.value
    assert reader.looks <= 40
    assert reader.shown <= 1.1 * len(data)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_reply_of_many_pairs_in_small_pieces_costs_a_few_looks_a_pair(step: int) -> None:
    connection = ClientConnection()
    connection._reader = reader = CountingReplies()
    pairs = [Pair(b"k" * 20, 1, b"v" * 50, b"u" * 20, Meta(created_us=n)) for n in range(2000)]
    data = encode_reply(Reply(1, Flag.TWO_KEYS, 2, pairs=pairs))
    for start in range(0, len(data), step):
        connection.receive_data(data[start : start + step])
    event = connection.next_event()
    assert isinstance(event, Reply)
    assert event.pairs == pairs
    assert reader.looks <= 8 * len(pairs)
    assert reader.shown <= 3 * len(data)


def test_requests_in_one_piece_are_looked_at_once() -> None:
    connection = ServerConnection()
    connection._reader = reader = CountingRequests()
    connection.receive_data(encode_request(SET) * 1000)
    assert len(connection.next_events()) == 1000
    assert reader.looks == 1


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("step", [5, 1000])
def test_keys_and_values_are_bytes_of_any_kind_of_bytes(
    kind: type[bytes | bytearray | memoryview], step: int
) -> None:
    data = encode_request(SET)
    connection = ServerConnection()
    for start in range(0, len(data), step):
        connection.receive_data(kind(data[start : start + step]))
    event = connection.next_event()
    assert isinstance(event, Request)
    assert {type(event.key), type(event.second_key), type(event.value)} == {bytes}


def test_receive_data_returns_the_unfinished_bytes() -> None:
    frame = encode_request(SET)
    server = ServerConnection()
    for data, unfinished in [(frame[:9], 9), (frame[9:-1], len(frame) - 1), (frame[-1:], 0)]:
        assert server.receive_data(data) == unfinished
    assert server.receive_data(frame + frame[:3]) == 3
    assert server.receive_data(b"") == 0
    broken = ServerConnection()
    assert broken.receive_data(b"no message, but long enough to be one") == 0
    assert broken.receive_data(frame) == 0


def test_received_bytes_may_be_overwritten_at_once() -> None:
    data = bytearray(encode_request(SET))
    connection = ServerConnection()
    connection.receive_data(data)
    data[:] = bytes(len(data))
    event = connection.next_event()
    assert isinstance(event, Request)
    assert event.key == b"key"


def test_events_one_by_one_and_all_at_once_may_be_mixed() -> None:
    connection = ServerConnection()
    requests = [Request(0, identifier=n) for n in range(5)]
    connection.receive_data(b"".join(map(encode_request, requests[:3])))
    assert connection.next_event() == requests[0]
    connection.receive_data(b"".join(map(encode_request, requests[3:])))
    assert connection.next_events() == requests[1:]
    assert connection.next_events() == []
    assert connection.next_event() is NEED_DATA


def test_request_goes_from_a_client_to_a_server_and_its_reply_back() -> None:
    client, server = ClientConnection(), ServerConnection()
    server.receive_data(client.send(SET))
    request = server.next_event()
    assert isinstance(request, Request)
    reply = Reply(request.identifier, 0, 5, "stale")
    client.receive_data(encode_reply(reply))
    assert client.next_event() == reply


def test_signal_is_ruled_out_by_its_name() -> None:
    connection = ServerConnection()
    event = connection.next_event()
    assert event is NEED_DATA
    connection.receive_data(encode_request(SET))
    event = connection.next_event()
    assert event is not NEED_DATA
    assert event is not CONNECTION_CLOSED
    assert_type(event, Request)


def test_connections_share_nothing() -> None:
    first, second = ServerConnection(), ServerConnection()
    first.receive_data(b"X")
    second.receive_data(encode_request(SET)[:10])
    with pytest.raises(ProtocolError):
        first.next_event()
    assert second.next_event() is NEED_DATA
    second.receive_data(encode_request(SET)[10:])
    assert isinstance(second.next_event(), Request)
