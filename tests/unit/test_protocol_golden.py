"""Golden vectors of every row of the protocol's tables, written by hand from docs/protocol.md.

The hexadecimal text is grouped by field: magic, version, function (requests), identifier, flags,
timestamp, then what the flags call for. Each vector is decoded whole, encoded, and received in
pieces by both kinds of connection.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fastjournal.protocol import (
    CONNECTION_CLOSED,
    NEED_DATA,
    ClientConnection,
    Meta,
    Pair,
    ProtocolError,
    Reply,
    Request,
    ServerConnection,
    decode_reply,
    decode_request,
    encode_error,
    encode_reply,
    encode_request,
    encode_success,
    encode_success_of,
)

NOW = 0x0006_439D_1C3B_8000
T = "0006439d1c3b8000"
"""An instant as it stands in the vectors."""


@dataclass(frozen=True)
class Vector:
    name: str
    text: str
    message: Request | Reply
    canonical: bool = True
    """Whether the encoder writes just these bytes; else they are another way to say the same."""

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.text)


def request(function: int, flags: int, **fields: object) -> Request:
    return Request(function, 0x0102, flags, NOW, **fields)  # by name


def reply(flags: int, **fields: object) -> Reply:
    return Reply(0x0102, flags, NOW, **fields)  # by name


REQUESTS = [
    # the fields that are always there
    Vector("empty key", f"464a 0001 0000 0102 0000 {T} 00", request(0, 0)),
    Vector("key", f"464a 0001 0004 0102 0000 {T} 03 612f62", request(4, 0, key=b"a/b")),
    Vector("largest numbers", "464a 0001 ffff ffff 0000 ffffffffffffffff 00",
        Request(0xFFFF, 0xFFFF, 0, 2**64 - 1)),
    Vector("function nobody knows", f"464a 0001 03e7 0102 0000 {T} 01 6b",
        request(999, 0, key=b"k")),
    # the optional numbers, one by one and in their order
    Vector("TIMEOUT", f"464a 0001 0003 0102 0008 {T} 0000000000000005 01 6b",
        request(3, 0x0008, key=b"k", timeout=5)),
    Vector("TTL", f"464a 0001 000e 0102 4000 {T} 0000000000000006 01 6b",
        request(14, 0x4000, key=b"k", ttl=6)),
    Vector("COUNT", f"464a 0001 000b 0102 2000 {T} 0040 00", request(11, 0x2000, count=64)),
    Vector(
        "timeout, ttl, count in this order",
        f"464a 0001 000b 0102 6008 {T} 1111111111111111 2222222222222222 3333 01 64",
        request(
            11, 0x6008, key=b"d", timeout=0x1111111111111111, ttl=0x2222222222222222, count=0x3333
        ),
    ),
    Vector("the largest optional numbers",
        f"464a 0001 000b 0102 6008 {T} {'ff' * 8} {'ff' * 8} ffff 00",
        request(11, 0x6008, timeout=2**64 - 1, ttl=2**64 - 1, count=0xFFFF)),
    # keys
    Vector("the longest key with a u8 size", f"464a 0001 0004 0102 0000 {T} ff {'6b' * 255}",
        request(4, 0, key=b"k" * 255)),
    Vector("KEY16", f"464a 0001 0004 0102 0001 {T} 0100 {'6b' * 256}",
        request(4, 0x0001, key=b"k" * 256)),
    Vector("KEY16 for a short key", f"464a 0001 0004 0102 0001 {T} 0002 6b6b",
        request(4, 0x0001, key=b"kk"), canonical=False),
    Vector("a key over the limit of keys is framed",
        f"464a 0001 0004 0102 0001 {T} ffff {'6b' * 65535}", request(4, 0x0001, key=b"k" * 65535)),
    Vector("second key", f"464a 0001 000a 0102 0080 {T} 01 61 02 6263",
        request(10, 0x0080, key=b"a", second_key=b"bc")),
    Vector("the longest keys with u8 sizes",
        f"464a 0001 000c 0102 0080 {T} ff {'6b' * 255} ff {'75' * 255}",
        request(12, 0x0080, key=b"k" * 255, second_key=b"u" * 255)),
    Vector("empty second key", f"464a 0001 0010 0102 0080 {T} 00 00",
        request(16, 0x0080, second_key=b"")),
    Vector("KEY16 widens the second key too",
        f"464a 0001 000c 0102 0081 {T} 0100 {'6b' * 256} 0001 62",
        request(12, 0x0081, key=b"k" * 256, second_key=b"b")),
    Vector("a long second key widens the first",
        f"464a 0001 000c 0102 0081 {T} 0001 61 0100 {'75' * 256}",
        request(12, 0x0081, key=b"a", second_key=b"u" * 256)),
    # values
    Vector("void value", f"464a 0001 0002 0102 0002 {T} 01 6b 01 00",
        request(2, 0x0002, key=b"k", value_type=0)),
    Vector("VALUE u8", f"464a 0001 0002 0102 0002 {T} 01 6b 03 01 6869",
        request(2, 0x0002, key=b"k", value_type=1, value=b"hi")),
    Vector("the longest value with a u8 size",
        f"464a 0001 0002 0102 0002 {T} 01 6b ff 02 {'76' * 254}",
        request(2, 0x0002, key=b"k", value_type=2, value=b"v" * 254)),
    Vector("VALUE u16", f"464a 0001 0002 0102 0004 {T} 01 6b 0100 01 {'76' * 255}",
        request(2, 0x0004, key=b"k", value_type=1, value=b"v" * 255)),
    Vector("the longest value with a u16 size",
        f"464a 0001 0002 0102 0004 {T} 01 6b ffff 01 {'76' * 65534}",
        request(2, 0x0004, key=b"k", value_type=1, value=b"v" * 65534)),
    Vector("VALUE u32", f"464a 0001 0002 0102 0006 {T} 01 6b 00010000 01 {'76' * 65535}",
        request(2, 0x0006, key=b"k", value_type=1, value=b"v" * 65535)),
    Vector("VALUE u16 for a short value", f"464a 0001 0002 0102 0004 {T} 01 6b 0002 01 76",
        request(2, 0x0004, key=b"k", value_type=1, value=b"v"), canonical=False),
    Vector("VALUE u32 for a short value", f"464a 0001 0002 0102 0006 {T} 01 6b 00000002 01 76",
        request(2, 0x0006, key=b"k", value_type=1, value=b"v"), canonical=False),
    Vector("integer", f"464a 0001 0005 0102 0002 {T} 01 6b 02 03 ff",
        request(5, 0x0002, key=b"k", value_type=3, value=b"\xff")),
    Vector("float", f"464a 0001 0005 0102 0002 {T} 01 6b 09 04 3ff0000000000000",
        request(5, 0x0002, key=b"k", value_type=4, value=b"\x3f\xf0\0\0\0\0\0\0")),
    Vector("boolean", f"464a 0001 0002 0102 0002 {T} 01 6b 02 05 01",
        request(2, 0x0002, key=b"k", value_type=5, value=b"\1")),
    Vector("a type that nobody knows is framed", f"464a 0001 0002 0102 0002 {T} 01 6b 02 ff 00",
        request(2, 0x0002, key=b"k", value_type=255, value=b"\0")),
    # the other flags
    Vector("UPDATE_TIMEOUT", f"464a 0001 0003 0102 0018 {T} {T} 01 6b",
        request(3, 0x0018, key=b"k", timeout=NOW)),
    Vector("OVERWRITE", f"464a 0001 0004 0102 0020 {T} 01 6b", request(4, 0x0020, key=b"k")),
    Vector("WORKED_ON", f"464a 0001 0004 0102 0048 {T} {T} 01 6b",
        request(4, 0x0048, key=b"k", timeout=NOW)),
    Vector("PERSIST", f"464a 0001 0004 0102 0200 {T} 01 6b", request(4, 0x0200, key=b"k")),
    Vector("bit 12 is PERSIST too", f"464a 0001 0004 0102 1000 {T} 01 6b",
        request(4, 0x0200, key=b"k"), canonical=False),
    Vector("bits 9 and 12 together", f"464a 0001 0004 0102 1200 {T} 01 6b",
        request(4, 0x0200, key=b"k"), canonical=False),
    Vector("DATA", f"464a 0001 0003 0102 0400 {T} 01 6b", request(3, 0x0400, key=b"k")),
    Vector("LISTEN", f"464a 0001 0003 0102 0800 {T} 01 6b", request(3, 0x0800, key=b"k")),
    Vector("META", f"464a 0001 0003 0102 8000 {T} 01 6b", request(3, 0x8000, key=b"k")),
    # queries
    Vector("QUERY RANGE of GET implies a count", f"464a 0001 0003 0102 0080 {T} 0007 01 61 01 62",
        request(3, 0x0080, key=b"a", second_key=b"b", count=7), canonical=False),
    Vector("QUERY RANGE of GET with COUNT has one count",
        f"464a 0001 0003 0102 2080 {T} 0007 01 61 01 62",
        request(3, 0x2080, key=b"a", second_key=b"b", count=7)),
    Vector("QUERY RANGE of another function implies no count",
        f"464a 0001 0002 0102 0082 {T} 01 61 01 62 01 00",
        request(2, 0x0082, key=b"a", second_key=b"b", value_type=0)),
    Vector("QUERY REGEX", f"464a 0001 0003 0102 2100 {T} 0007 03 5e612e",
        request(3, 0x2100, key=b"^a.", count=7)),
    Vector("QUERY CURSOR", f"464a 0001 0003 0102 0180 {T} 02 6331", request(3, 0x0180, key=b"c1")),
    # all at once: SET, PERSIST, OVERWRITE, RANGE, expiry, ttl, count, u16 keys, u32 value
    Vector(
        "everything",
        f"464a 0001 0002 0102 62af {T} {T} 0000000000000006 0001 0100 {'6b' * 256} 0001 75"
        f" 00010001 01 {'76' * 65536}",
        request(
            2,
            0x62AF,
            key=b"k" * 256,
            second_key=b"u",
            value_type=1,
            value=b"v" * 65536,
            timeout=NOW,
            ttl=6,
            count=1,
        ),
    ),
]  # fmt: skip

META_TEXT = (
    "0101010101010101 0202020202020202 0303030303030303 0404040404040404"
    "0505050505050505 0606060606060606 0707070707070707 0808080808080808 80 1f 0003"
)
META = Meta(
    timestamp_us=0x0101010101010101,
    created_us=0x0202020202020202,
    modified_us=0x0303030303030303,
    accessed_us=0x0404040404040404,
    expires_us=0x0505050505050505,
    ttl_us=0x0606060606060606,
    worked_on_until_us=0x0707070707070707,
    not_before_us=0x0808080808080808,
    priority=128,
    state=0b11111,
    attempts=3,
)

REPLIES = [
    Vector("success", f"4a52 0001 0102 0000 {T} 00", reply(0)),
    Vector("largest numbers", "4a52 0001 ffff 0000 ffffffffffffffff 00",
        Reply(0xFFFF, 0, 2**64 - 1)),
    Vector("error", f"4a52 0001 0102 0000 {T} 05 7374616c65", reply(0, error="stale")),
    Vector("error with a sentence", f"4a52 0001 0102 0000 {T} 08 62757379 206f6666",
        reply(0, error="busy off")),
    Vector("KEY16 for a long error", f"4a52 0001 0102 0001 {T} 0100 62757379 20 {'78' * 251}",
        reply(0x0001, error="busy " + "x" * 251)),
    Vector("TIMEOUT", f"4a52 0001 0102 0008 {T} 0000000000000005 00", reply(0x0008, timeout=5)),
    Vector("TTL", f"4a52 0001 0102 4000 {T} 0000000000000006 00", reply(0x4000, ttl=6)),
    Vector("COUNT 0", f"4a52 0001 0102 2000 {T} 0000 00", reply(0x2000, pairs=[])),
    Vector("timeout, ttl, count in this order",
        f"4a52 0001 0102 6008 {T} 1111111111111111 2222222222222222 0000 00",
        reply(0x6008, timeout=0x1111111111111111, ttl=0x2222222222222222, pairs=[])),
    Vector("CURSOR", f"4a52 0001 0102 0100 {T} 00 02 6331", reply(0x0100, cursor=b"c1")),
    Vector("CURSOR, empty, behind an error", f"4a52 0001 0102 0100 {T} 04 62757379 00",
        reply(0x0100, error="busy", cursor=b"")),
    Vector("KEY16 widens error, cursor and keys",
        f"4a52 0001 0102 2103 {T} 0001 0000 0100 {'63' * 256} 0001 6b 01 00",
        reply(0x2103, cursor=b"c" * 256, pairs=[Pair(b"k")])),
    Vector("one pair, its data not asked for", f"4a52 0001 0102 2002 {T} 0001 00 01 6b 01 02",
        reply(0x2002, pairs=[Pair(b"k", 2)])),
    Vector("one pair", f"4a52 0001 0102 2002 {T} 0001 00 01 6b 03 01 6869",
        reply(0x2002, pairs=[Pair(b"k", 1, b"hi")])),
    Vector("two pairs, one width: VALUE u16",
        f"4a52 0001 0102 2004 {T} 0002 00 01 61 0002 01 78 01 62 0100 01 {'76' * 255}",
        reply(0x2004, pairs=[Pair(b"a", 1, b"x"), Pair(b"b", 1, b"v" * 255)])),
    Vector("VALUE u32", f"4a52 0001 0102 2006 {T} 0001 00 01 6b 00010000 01 {'76' * 65535}",
        reply(0x2006, pairs=[Pair(b"k", 1, b"v" * 65535)])),
    Vector("the longest sizes of u8",
        f"4a52 0001 0102 2002 {T} 0001 00 ff {'6b' * 255} ff 01 {'76' * 254}",
        reply(0x2002, pairs=[Pair(b"k" * 255, 1, b"v" * 254)])),
    Vector("the longest sizes of u16",
        f"4a52 0001 0102 2005 {T} 0001 0000 ffff {'6b' * 65535} ffff 01 {'76' * 65534}",
        reply(0x2005, pairs=[Pair(b"k" * 65535, 1, b"v" * 65534)])),
    Vector("two pairs, one width: KEY16",
        f"4a52 0001 0102 2003 {T} 0002 0000 0001 61 01 00 0100 {'6b' * 256} 01 00",
        reply(0x2003, pairs=[Pair(b"a"), Pair(b"k" * 256)])),
    Vector("TWO_KEYS", f"4a52 0001 0102 2082 {T} 0002 00 01 61 02 7531 01 00 01 62 00 01 00",
        reply(0x2082, pairs=[Pair(b"a", second_key=b"u1"), Pair(b"b")])),
    Vector("KEY16 for a long second key",
        f"4a52 0001 0102 2083 {T} 0001 0000 0001 61 0100 {'75' * 256} 01 00",
        reply(0x2083, pairs=[Pair(b"a", second_key=b"u" * 256)])),
    Vector("META", f"4a52 0001 0102 a002 {T} 0001 00 01 6b 03 01 6869 {META_TEXT}",
        reply(0xA002, pairs=[Pair(b"k", 1, b"hi", meta=META)])),
    Vector("WORKED_ON: leased pairs as NEXT returns them",
        f"4a52 0001 0102 a0ca {T} {T} 0001 00 01 6b 01 75 03 01 6869 {META_TEXT}",
        reply(0xA0CA, timeout=NOW, pairs=[Pair(b"k", 1, b"hi", b"u", META)])),
    Vector("LISTEN: a notification of a change",
        f"4a52 0001 0102 a802 {T} 0001 00 01 6b 03 01 6869 {META_TEXT}",
        reply(0xA802, pairs=[Pair(b"k", 1, b"hi", meta=META)])),
    Vector("LISTEN: a notification that a key is gone",
        f"4a52 0001 0102 2802 {T} 0001 09 6e6f742d666f756e64 01 6b 01 00",
        reply(0x2802, error="not-found", pairs=[Pair(b"k")])),
    Vector("pairs without values", f"4a52 0001 0102 2000 {T} 0002 00 01 61 01 62",
        reply(0x2000, pairs=[Pair(b"a"), Pair(b"b")]), canonical=False),
    Vector("widths larger than needed", f"4a52 0001 0102 2007 {T} 0001 0000 0001 6b 00000002 01 76",
        reply(0x2007, pairs=[Pair(b"k", 1, b"v")]), canonical=False),
    Vector(
        "everything",
        f"4a52 0001 0102 e9cf {T} {T} 0000000000000006 0002 0004 62757379 0002 6331"
        f" 0100 {'6b' * 256} 0001 75 00010001 01 {'76' * 65536} {META_TEXT}"
        f" 0001 6c 0000 00000001 00 {META_TEXT}",
        reply(
            0xE9CF,
            error="busy",
            timeout=NOW,
            ttl=6,
            cursor=b"c1",
            pairs=[Pair(b"k" * 256, 1, b"v" * 65536, b"u", META), Pair(b"l", meta=META)],
        ),
    ),
]  # fmt: skip

ALL = REQUESTS + REPLIES
every_request = pytest.mark.parametrize("vector", REQUESTS, ids=lambda vector: vector.name)
every_reply = pytest.mark.parametrize("vector", REPLIES, ids=lambda vector: vector.name)
every_vector = pytest.mark.parametrize("vector", ALL, ids=lambda vector: vector.name)


def connection_for(vector: Vector) -> ServerConnection | ClientConnection:
    return ServerConnection() if isinstance(vector.message, Request) else ClientConnection()


@every_request
def test_request_is_decoded(vector: Vector) -> None:
    assert decode_request(vector.data) == vector.message


@every_request
def test_request_is_encoded(vector: Vector) -> None:
    assert isinstance(vector.message, Request)
    encoded = encode_request(vector.message)
    assert (encoded == vector.data) is vector.canonical
    assert decode_request(encoded).key == vector.message.key
    assert ClientConnection().send(vector.message) == encoded


@every_reply
def test_reply_is_decoded(vector: Vector) -> None:
    assert decode_reply(vector.data) == vector.message


@every_reply
def test_reply_is_encoded(vector: Vector) -> None:
    assert isinstance(vector.message, Reply)
    encoded = encode_reply(vector.message)
    assert (encoded == vector.data) is vector.canonical
    assert decode_reply(encoded).pairs == vector.message.pairs


def test_success_has_a_fast_way() -> None:
    counted = bytes.fromhex(f"4a52 0001 0102 4000 {T} 0000000000000003 00")
    assert encode_success_of(0x0102, NOW, 3) == counted
    assert encode_success(0x0102, NOW) == bytes.fromhex(f"4a52 0001 0102 0000 {T} 00")


def test_error_has_a_fast_way() -> None:
    short, long = "stale", "busy " + "x" * 300
    assert encode_error(0x0102, NOW, short) == encode_reply(reply(0, error=short))
    assert encode_error(0x0102, NOW, long) == encode_reply(reply(0, error=long))


def cuts(size: int) -> list[int]:
    """Every place to cut; of a long message those near its ends and some between."""
    if size <= 600:
        return list(range(size + 1))
    return [*range(100), *range(100, size - 100, size // 50), *range(size - 100, size + 1)]


@every_vector
def test_message_may_be_cut_anywhere(vector: Vector) -> None:
    data = vector.data
    for cut in cuts(len(data)):
        connection = connection_for(vector)
        if cut:
            connection.receive_data(data[:cut])
        if cut < len(data):
            assert connection.next_event() is NEED_DATA
            connection.receive_data(data[cut:])
        assert connection.next_event() == vector.message
        assert connection.next_event() is NEED_DATA


@every_vector
def test_message_may_come_byte_by_byte(vector: Vector) -> None:
    connection = connection_for(vector)
    for at, byte in enumerate(vector.data):
        assert connection.next_event() is NEED_DATA, at
        connection.receive_data(bytes((byte,)))
    assert connection.next_event() == vector.message
    connection.receive_data(b"")
    assert connection.next_event() is CONNECTION_CLOSED


@every_vector
def test_next_message_may_follow_at_once(vector: Vector) -> None:
    data = vector.data
    for extra in {1, 7, 15, len(data) // 2, len(data) - 1}:
        connection = connection_for(vector)
        connection.receive_data(data + data + data[:extra])
        assert connection.next_events() == [vector.message, vector.message]
        assert connection.next_event() is NEED_DATA
        connection.receive_data(data[extra:])
        assert connection.next_events() == [vector.message]


@every_vector
def test_message_cut_short_by_the_end_is_an_error(vector: Vector) -> None:
    data = vector.data
    for cut in cuts(len(data))[1:-1]:
        connection = connection_for(vector)
        connection.receive_data(data[:cut])
        connection.receive_data(b"")
        with pytest.raises(ProtocolError) as caught:
            connection.next_event()
        known = cut >= (8 if isinstance(vector.message, Request) else 6)
        assert caught.value.code == "bad-request"
        assert caught.value.identifier == (vector.message.identifier if known else 0)


@every_vector
def test_message_is_decoded_alone_only_if_it_is_exactly_one(vector: Vector) -> None:
    data = vector.data
    decode = decode_request if isinstance(vector.message, Request) else decode_reply
    known = vector.message.identifier
    for wrong, identifier in ((b"", 0), (data[:1], 0), (data[:-1], known), (data + data, known)):
        with pytest.raises(ProtocolError) as caught:
            decode(wrong)
        assert caught.value.code == "bad-request"
        assert caught.value.identifier == identifier
    with pytest.raises(ProtocolError):
        decode(data + b"\0")
