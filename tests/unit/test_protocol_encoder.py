"""Encoders: messages that they refuse, and fields that they decide for their caller."""

from __future__ import annotations

import math

import pytest

from fastjournal.protocol import (
    QUERY_SHIFT,
    BadRequestError,
    ClientConnection,
    Flag,
    Function,
    Meta,
    Pair,
    Query,
    Reply,
    Request,
    Value,
    ValueType,
    decode_reply,
    decode_request,
    decode_value,
    encode_error,
    encode_reply,
    encode_request,
    encode_value,
)

RANGE = Query.RANGE << QUERY_SHIFT
REGEX = Query.REGEX << QUERY_SHIFT


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (Request(-1), "function -1"),
        (Request(0x10000), "function 65536"),
        (Request(0, identifier=-1), "identifier -1"),
        (Request(0, identifier=0x10000), "identifier 65536"),
        (Request(0, flags=-1), "flags -1"),
        (Request(0, flags=0x10000), "flags 65536"),
        (Request(0, timestamp=-1), "timestamp -1"),
        (Request(0, timestamp=2**64), "timestamp 18446744073709551616"),
        (Request(0, timeout=-1), "timeout -1"),
        (Request(0, timeout=2**64), "timeout 18446744073709551616"),
        (Request(0, ttl=-1), "ttl -1"),
        (Request(0, ttl=2**64), "ttl 18446744073709551616"),
        (Request(0, count=-1), "count -1"),
        (Request(0, count=0x10000), "count 65536"),
        (Request(0, key=b"k" * 0x10000), "key size 65536"),
        (Request(0, second_key=b"k" * 0x10000), "second key size 65536"),
        (Request(0, value_type=-1), "value type -1"),
        (Request(0, value_type=256), "value type 256"),
        (Request(0, value=b"v"), "type"),
        (Request(0, flags=RANGE), "second key"),
        (Request(0, flags=REGEX, second_key=b"b"), "RANGE"),
        (Request(0, timestamp=1.5), "not an integer"),  # the point
    ],
)
def test_request_that_cannot_be_framed_is_refused(request_: Request, named: str) -> None:
    with pytest.raises(BadRequestError, match=named):
        encode_request(request_)
    with pytest.raises(BadRequestError, match=named):
        ClientConnection().send(request_)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(identifier=0x10000),
        Reply(identifier=-1),
        Reply(timestamp=2**64),
        Reply(timeout=2**64),
        Reply(ttl=-1),
        Reply(cursor=b"c" * 0x10000),
        Reply(pairs=[Pair(b"k" * 0x10000)]),
        Reply(flags=Flag.TWO_KEYS, pairs=[Pair(b"k", second_key=b"u" * 0x10000)]),
        Reply(pairs=[Pair(b"k")] * 0x10000),
        Reply(pairs=[Pair(b"k", 256)]),
        Reply(pairs=[Pair(b"k", meta=Meta(created_us=-1))]),
        Reply(pairs=[Pair(b"k", meta=Meta(priority=256))]),
        Reply(pairs=[Pair(b"k", meta=Meta(state=256))]),
        Reply(pairs=[Pair(b"k", meta=Meta(attempts=0x10000))]),
        Reply(pairs=[Pair(b"k", meta=Meta()), Pair(b"l")]),
        Reply(pairs=[Pair(b"k"), Pair(b"l", meta=Meta())]),
    ],
)
def test_reply_that_cannot_be_framed_is_refused(reply: Reply) -> None:
    with pytest.raises(BadRequestError):
        encode_reply(reply)


def test_flags_that_follow_from_the_fields_are_not_taken_over() -> None:
    claimed = Flag.KEY16 | Flag.TIMEOUT | Flag.TTL | Flag.COUNT | 0b110
    assert decode_request(encode_request(Request(0, flags=claimed))).flags == 0
    reply = Reply(flags=claimed | Flag.CURSOR | Flag.META | Flag.OVERWRITE | Flag.DATA)
    assert decode_reply(encode_reply(reply)).flags == 0


def test_sender_sets_bit_9_for_bit_12() -> None:
    data = encode_request(Request(2, flags=Flag.PERSIST_ALIAS, key=b"k", value_type=0))
    assert data[8:10] == bytes.fromhex("0202")


def test_second_key_sets_the_query() -> None:
    data = encode_request(Request(2, key=b"k", second_key=b"u", value_type=0))
    assert data[8:10] == bytes.fromhex("0082")


def test_range_without_a_count_sends_none_as_zero() -> None:
    request = Request(Function.GET, 1, RANGE, 2, b"a", second_key=b"b")
    data = encode_request(request)
    assert data.hex(" ") == (
        "46 4a 00 01 00 03 00 01 00 80 00 00 00 00 00 00 00 02 00 00 01 61 01 62"
    )
    assert decode_request(data).count == 0


def test_second_keys_are_sent_with_their_flag_only() -> None:
    pairs = [Pair(b"k", second_key=b"u" * 300)]
    assert decode_reply(encode_reply(Reply(pairs=pairs))).pairs == [Pair(b"k")]
    assert decode_reply(encode_reply(Reply(flags=Flag.TWO_KEYS, pairs=pairs))).pairs == pairs


def test_error_is_escaped_and_cut_rather_than_refused() -> None:
    assert decode_reply(encode_error(1, 2, "bad-key \u00e9")).error == "bad-key \\xe9"
    long = "bad-key " + "x" * 70_000
    for data in (encode_error(1, 2, long), encode_reply(Reply(1, timestamp=2, error=long))):
        assert decode_reply(data).error == long[:1024]


# --- protocol values ------------------------------------------------------------------------------
# Values: every type, written and read.


@pytest.mark.parametrize(
    ("obj", "value_type", "text"),
    [
        (None, ValueType.VOID, ""),
        (b"", ValueType.BUFFER, ""),
        (b"\xff\x00", ValueType.BUFFER, "ff00"),
        ("", ValueType.STRING, ""),
        ("h\u00e9", ValueType.STRING, "68c3a9"),
        (0, ValueType.INTEGER, "0000000000000000"),
        (1, ValueType.INTEGER, "0000000000000001"),
        (-1, ValueType.INTEGER, "ffffffffffffffff"),
        (2**63 - 1, ValueType.INTEGER, "7fffffffffffffff"),
        (-(2**63), ValueType.INTEGER, "8000000000000000"),
        (1.0, ValueType.FLOAT, "3ff0000000000000"),
        (-0.5, ValueType.FLOAT, "bfe0000000000000"),
        (math.inf, ValueType.FLOAT, "7ff0000000000000"),
        (False, ValueType.BOOLEAN, "00"),
        (True, ValueType.BOOLEAN, "01"),
    ],
)
def test_object_is_written_as_its_own_type(obj: Value, value_type: ValueType, text: str) -> None:
    assert encode_value(obj) == (value_type, bytes.fromhex(text))
    assert encode_value(obj, value_type) == (value_type, bytes.fromhex(text))
    back = decode_value(value_type, bytes.fromhex(text))
    assert back == obj
    assert type(back) is type(obj)


@pytest.mark.parametrize(
    ("obj", "wanted", "text"),
    [
        ("h\u00e9", ValueType.BUFFER, "68c3a9"),
        (b"h\xc3\xa9", ValueType.STRING, "68c3a9"),
        (1, ValueType.FLOAT, "3ff0000000000000"),
    ],
)
def test_value_of_some_objects_is_written_as_another_type(
    obj: Value, wanted: ValueType, text: str
) -> None:
    assert encode_value(obj, wanted) == (wanted, bytes.fromhex(text))


@pytest.mark.parametrize(
    ("obj", "wanted"),
    [
        ({1, 2}, None), ([{}], ValueType.INTEGER), ({"x": float("nan")}, None),
        ([object()], None), ("\ud800", None), ("\ud800", ValueType.BUFFER), (2**63, None),
        (-(2**63) - 1, None), (10**400, ValueType.FLOAT), (b"\xff", ValueType.STRING),
        (b"", ValueType.VOID), (None, ValueType.BUFFER), ("1", ValueType.INTEGER),
        (1.0, ValueType.INTEGER), (True, ValueType.INTEGER), (True, ValueType.FLOAT),
        (False, ValueType.FLOAT), (1, ValueType.BOOLEAN), (1, ValueType.STRING),
        (1, ValueType.VOID),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_its_type_is_refused(obj: Value, wanted: ValueType | None) -> None:
    with pytest.raises(BadRequestError) as caught:
        encode_value(obj, wanted)
    assert caught.value.code == "bad-value"


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        (0, "00"), (2, "ff"), (3, ""), (3, "000000"), (3, "00" * 9), (4, "0000"), (4, "00" * 16),
        (5, ""), (5, "02"), (5, "0001"), (6, ""), (255, "00"), (-1, ""),
    ],
)  # fmt: skip
def test_data_that_do_not_have_the_form_of_their_type_are_refused(
    value_type: int, text: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        decode_value(value_type, bytes.fromhex(text))
    assert caught.value.code == "bad-value"
