"""Encoders: messages that they refuse, and fields that they decide for their caller."""

from __future__ import annotations

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
    decode_reply,
    decode_request,
    encode_error,
    encode_reply,
    encode_request,
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


@pytest.mark.rule("Request, client to daemon: flags")
def test_flags_that_follow_from_the_fields_are_not_taken_over() -> None:
    claimed = Flag.KEY16 | Flag.TIMEOUT | Flag.TTL | Flag.COUNT | 0b110
    assert decode_request(encode_request(Request(0, flags=claimed))).flags == 0
    reply = Reply(flags=claimed | Flag.CURSOR | Flag.META | Flag.OVERWRITE | Flag.DATA)
    assert decode_reply(encode_reply(reply)).flags == 0


@pytest.mark.rule("Flags of a request: 12 (PERSIST)")
def test_sender_sets_bit_9_for_bit_12() -> None:
    data = encode_request(Request(2, flags=Flag.PERSIST_ALIAS, key=b"k", value_type=0))
    assert data[8:10] == bytes.fromhex("0202")


@pytest.mark.rule("Request, client to daemon: second key size, second key")
def test_second_key_sets_the_query() -> None:
    data = encode_request(Request(2, key=b"k", second_key=b"u", value_type=0))
    assert data[8:10] == bytes.fromhex("0082")


@pytest.mark.rule("Request, client to daemon: count")
def test_range_without_a_count_sends_none_as_zero() -> None:
    request = Request(Function.GET, 1, RANGE, 2, b"a", second_key=b"b")
    data = encode_request(request)
    assert data.hex(" ") == (
        "46 4a 00 01 00 03 00 01 00 80 00 00 00 00 00 00 00 02 00 00 01 61 01 62"
    )
    assert decode_request(data).count == 0


@pytest.mark.rule("Reply, daemon to client: second key size, second key")
def test_second_keys_are_sent_with_their_flag_only() -> None:
    pairs = [Pair(b"k", second_key=b"u" * 300)]
    assert decode_reply(encode_reply(Reply(pairs=pairs))).pairs == [Pair(b"k")]
    assert decode_reply(encode_reply(Reply(flags=Flag.TWO_KEYS, pairs=pairs))).pairs == pairs


def test_enumeration_members_and_plain_integers_mean_the_same() -> None:
    named = Request(Function.SET, 1, Flag.PERSIST | Flag.OVERWRITE, 2, b"k", value_type=0)
    plain = Request(2, 1, 0x220, 2, b"k", value_type=0)
    assert encode_request(named) == encode_request(plain)


@pytest.mark.rule("Reply, daemon to client: error size, error")
def test_error_is_escaped_and_cut_rather_than_refused() -> None:
    assert decode_reply(encode_error(1, 2, "bad-key \u00e9")).error == "bad-key \\xe9"
    long = "bad-key " + "x" * 70_000
    for data in (encode_error(1, 2, long), encode_reply(Reply(1, timestamp=2, error=long))):
        assert decode_reply(data).error == long[:1024]


def test_code_of_an_error_is_its_first_word() -> None:
    assert Reply().code == ""
    assert Reply(error="stale").code == "stale"
    assert Reply(error="stale there is a newer one").code == "stale"
