"""Malformed frames: each case has its code and identifier, and nothing waits for its body."""

from __future__ import annotations

import pytest

from fastjournal.protocol import (
    CONNECTION_CLOSED,
    NEED_DATA,
    ClientConnection,
    Pair,
    ProtocolError,
    Reply,
    Request,
    ServerConnection,
    encode_reply,
    encode_request,
)

T = "0006439d1c3b8000"
NOP = encode_request(Request(0, identifier=1))

# name, bytes, code, identifier: each is refused at its last byte, not earlier and not later
MALFORMED_REQUESTS = [
    ("wrong first byte", "47", "bad-request", 0),
    ("wrong second byte", "46 4b", "bad-request", 0),
    ("a reply", "46 52", "bad-request", 0),
    ("version 0", "464a 0000 0002 0a0b", "unsupported-version", 0x0A0B),
    ("version 2", "464a 0002 0002 0a0b", "unsupported-version", 0x0A0B),
    ("u8 value size 0", f"464a 0001 0002 0a0b 0002 {T} 01 6b 00", "bad-request", 0x0A0B),
    ("u16 value size 0", f"464a 0001 0002 0a0b 0004 {T} 01 6b 0000", "bad-request", 0x0A0B),
    ("u32 value size 0", f"464a 0001 0002 0a0b 0006 {T} 01 6b 00000000", "bad-request", 0x0A0B),
    ("NOP, value size 0", f"464a 0001 0000 0a0b 0002 {T} 00 00", "bad-request", 0x0A0B),
    ("unknown function, value size 0", f"464a 0001 03e7 0a0b 0002 {T} 00 00", "bad-request",
     0x0A0B),
    ("one byte over max-value, u8", f"464a 0001 0002 0a0b 0002 {T} 01 6b 66", "too-large", 0x0A0B),
    ("over, u16", f"464a 0001 0002 0a0b 0004 {T} 01 6b 0066", "too-large", 0x0A0B),
    ("over, u32", f"464a 0001 0002 0a0b 0006 {T} 01 6b 00000066", "too-large", 0x0A0B),
    ("4 GiB claimed", f"464a 0001 0002 0a0b 0006 {T} 01 6b ffffffff", "too-large", 0x0A0B),
    ("over, behind all other fields",
     f"464a 0001 0002 0a0b 608f {T} {T} {T} 0001 0001 6b 0001 75 ffffffff", "too-large", 0x0A0B),
]  # fmt: skip
VALUE_BYTES_MAX = 100


def refused_at_last_byte(
    connection: ServerConnection | ClientConnection, data: bytes
) -> tuple[str, int]:
    """Feed bytes one by one; return code and identifier of the error that the last one shows."""
    for byte in data[:-1]:
        connection.receive_data(bytes((byte,)))
        assert connection.next_event() is NEED_DATA
    connection.receive_data(data[-1:])
    with pytest.raises(ProtocolError) as caught:
        connection.next_event()
    return caught.value.code, caught.value.identifier


@pytest.mark.parametrize(("text", "code", "identifier"), [case[1:] for case in MALFORMED_REQUESTS])
def test_malformed_request_is_refused_as_soon_as_it_shows(
    text: str, code: str, identifier: int
) -> None:
    connection = ServerConnection(value_bytes_max=VALUE_BYTES_MAX)
    assert refused_at_last_byte(connection, bytes.fromhex(text)) == (code, identifier)


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_max_value_does_not_count_the_type_byte(size: int) -> None:
    connection = ServerConnection(value_bytes_max=VALUE_BYTES_MAX)
    request = Request(2, key=b"k", value_type=1, value=b"v" * size)
    connection.receive_data(encode_request(request))
    event = connection.next_event()
    assert isinstance(event, Request)
    assert event.value == request.value


def test_end_between_two_requests_is_no_error() -> None:
    connection = ServerConnection()
    connection.receive_data(NOP)
    connection.receive_data(b"")
    assert isinstance(connection.next_event(), Request)
    assert connection.next_event() is CONNECTION_CLOSED
    assert connection.next_events() == []
    connection.receive_data(b"")
    assert connection.next_event() is CONNECTION_CLOSED
    with pytest.raises(ValueError, match="after the end"):
        connection.receive_data(NOP)


MALFORMED_REPLIES = [
    ("wrong first byte", "46", "bad-request", 0),
    ("a request", "4a 4a", "bad-request", 0),
    ("version 2", "4a52 0002 0a0b", "unsupported-version", 0x0A0B),
    ("u8 value size 0", f"4a52 0001 0a0b 2002 {T} 0001 00 01 6b 00", "bad-request", 0x0A0B),
    ("u16 value size 0", f"4a52 0001 0a0b 2004 {T} 0001 00 01 6b 0000", "bad-request", 0x0A0B),
    ("u32 value size 0", f"4a52 0001 0a0b 2006 {T} 0001 00 01 6b 0000 0000", "bad-request", 0x0A0B),
    ("a value over the limit", f"4a52 0001 0a0b 2006 {T} 0001 00 01 6b ffffffff", "too-large",
     0x0A0B),
    ("the second value over the limit", f"4a52 0001 0a0b 2004 {T} 0002 00 01 6b 0001 00 01 6c ffff",
     "too-large", 0x0A0B),
    ("a key over the limit", f"4a52 0001 0a0b 2003 {T} 0001 0000 ffff", "too-large", 0x0A0B),
    ("an error over the limit", f"4a52 0001 0a0b 0001 {T} ffff", "too-large", 0x0A0B),
    ("a cursor over the limit", f"4a52 0001 0a0b 0101 {T} 0000 ffff", "too-large", 0x0A0B),
    ("more pairs than fit the limit", f"4a52 0001 0a0b 2000 {T} ffff 00", "too-large", 0x0A0B),
    ("a metadata block over the limit", f"4a52 0001 0a0b a002 {T} 0003 00", "too-large", 0x0A0B),
]  # fmt: skip
REPLY_BYTES_MAX = 200


@pytest.mark.parametrize(("text", "code", "identifier"), [case[1:] for case in MALFORMED_REPLIES])
def test_malformed_reply_is_refused_as_soon_as_it_shows(
    text: str, code: str, identifier: int
) -> None:
    connection = ClientConnection(reply_bytes_max=REPLY_BYTES_MAX)
    assert refused_at_last_byte(connection, bytes.fromhex(text)) == (code, identifier)


def test_end_between_two_pairs_is_an_error() -> None:
    data = encode_reply(Reply(7, pairs=[Pair(b"k"), Pair(b"l")]))
    connection = ClientConnection()
    connection.receive_data(data[:-4])
    assert connection.next_event() is NEED_DATA
    connection.receive_data(b"")
    with pytest.raises(ProtocolError) as caught:
        connection.next_event()
    assert (caught.value.code, caught.value.identifier) == ("bad-request", 7)
