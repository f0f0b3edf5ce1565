"""Native codec: the leaves in C return what their functions in Python return, for any bytes."""

from __future__ import annotations

import gc
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal import _native
from fastjournal.errors import BadRequestError
from fastjournal.limits import ERROR_SENTENCE_BYTES_MAX
from fastjournal.protocol import (
    Flag,
    Function,
    Meta,
    Pair,
    ProtocolError,
    Reply,
    Request,
    encode_reply,
    encode_reply_to,
    encode_request,
    encode_successes,
)
from fastjournal.protocol.requests import RequestReader
from tests.property.fuzzing import without_leaves

pytestmark = pytest.mark.skipif(_native.leaves is None, reason="no native leaves are built")

LIMIT = 40
"""Largest value of a request here, in bytes."""
NUMBERS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 255, 256, 1023, 1024, 2**30, 2**32 - 1, 2**32, 2**63, 2**64 - 1]),
)
KEYS = st.one_of(st.binary(max_size=20), st.sampled_from([b"k" * 255, b"k" * 256]))
VALUE_SIZES = st.sampled_from([0, 1, 2, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 2, 255, 65535])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A request with any flags and the fields that they ask for; its value may be refused."""
    flags = draw(st.integers(0, 0xFFFF))
    function = draw(st.sampled_from([Function.GET, Function.SET, 0, 0xFFFF]))
    made = struct.pack(">2sHHHHQ", b"FJ", 1, function, draw(NUMBERS) & 0xFFFF, flags, draw(NUMBERS))
    is_range = flags >> 7 & 3 == 1
    for flag in (Flag.TIMEOUT, Flag.TTL):
        if flags & flag:
            made += struct.pack(">Q", draw(NUMBERS))
    if flags & Flag.COUNT or (function == Function.GET and is_range):
        made += struct.pack(">H", draw(NUMBERS) & 0xFFFF)
    for _ in range(1 + is_range):
        key = draw(KEYS)
        made += struct.pack(">H", len(key)) if flags & Flag.KEY16 else bytes([len(key) & 0xFF])
        made += key if flags & Flag.KEY16 else key[: len(key) & 0xFF]
    width = flags >> 1 & 3
    if width:
        size = min(draw(VALUE_SIZES), 255 if width == 1 else 65535)
        made += size.to_bytes((0, 1, 2, 4)[width]) + draw(st.binary(min_size=1, max_size=1)) * size
    return made


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Some requests; a few bytes of them are others, or are missing."""
    made = bytearray(b"".join(draw(st.lists(frames(), min_size=1, max_size=4))))
    for at in draw(st.lists(st.integers(0, len(made) - 1), max_size=3)):
        made[at] = draw(st.integers(0, 255))
    return bytes(made[: draw(st.one_of(st.none(), st.integers(0, len(made))))])


Outcome = tuple[list[Request], object]


def read(data: bytes, limit: int = LIMIT) -> Outcome:
    """Return the requests that a reader returns, with its result or its error."""
    ready = deque[Request]()
    result: object
    try:
        result = RequestReader(limit).read(data, ready)
    except ProtocolError as error:
        result = (str(error), error.code, error.identifier)
    return list(ready), result


def read_in_python(data: bytes, limit: int = LIMIT) -> Outcome:
    with without_leaves():
        return read(data, limit)


def types_of(requests: list[Request]) -> Iterator[type]:
    for request in requests:
        yield from (type(getattr(request, name)) for name in request.__struct_fields__)


@given(streams())
def test_native_reader_returns_the_requests_and_errors_of_python(data: bytes) -> None:
    requests, result = read_in_python(data)
    assert read(data) == (requests, result)
    assert list(types_of(read(data)[0])) == list(types_of(requests))


@given(st.lists(frames(), min_size=1, max_size=2))
def test_native_reader_stops_at_each_cut_where_python_stops(parts: list[bytes]) -> None:
    data = b"".join(parts)[:400]
    for end in range(len(data) + 1):
        assert read(data[:end]) == read_in_python(data[:end])


@given(st.lists(frames(), min_size=1, max_size=3))
def test_native_reader_takes_whole_requests_itself(parts: list[bytes]) -> None:
    assert _native.leaves is not None
    data = b"".join(parts)
    requests, _ = read_in_python(data, 65535)
    ready = deque[Request]()
    used = _native.leaves.read_requests(data, 65536, ready)
    assert list(ready) == requests
    assert read_in_python(data[:used], 65535) == (requests, (used, 0))


def test_native_reader_reads_all_flags_as_python_does() -> None:
    tail = bytes(range(1, 60))
    for flags in range(0x10000):
        # a GET of a range has a count without its flag
        for function in (Function.SET, Function.GET)[: 1 + (flags >> 7 & 3 == 1)]:
            data = struct.pack(">2sHHHHQ", b"FJ", 1, function, 7, flags, 9) + tail
            assert read(data) == read_in_python(data), hex(flags)


@pytest.mark.parametrize("limit", [0, 1, 253, 254, 255, 65533, 65534, 65535, 2**32 - 2, 2**32 - 1])
def test_native_reader_takes_values_up_to_the_limit(limit: int) -> None:
    for width, most in ((1, 0xFF), (2, 0xFFFF), (3, 0x1FFFF)):
        head = struct.pack(">2sHHHHQ", b"FJ", 1, Function.SET, 7, width << 1, 9) + b"\1k"
        for size in {0, 1, 2, limit, limit + 1, limit + 2} & set(range(most + 1)):
            data = head + size.to_bytes((0, 1, 2, 4)[width]) + b"v" * size
            found = read(data, limit)
            assert found == read_in_python(data, limit)
            assert bool(found[0]) is (0 < size <= limit + 1)


@pytest.mark.parametrize("limit", [-1, -2, 2**64 - 2, 2**64 - 1, 2**64, 2**70])
def test_native_reader_leaves_limits_that_do_not_fit_to_python(limit: int) -> None:
    for request in (Request(1), Request(1, value_type=1, value=b"v")):
        data = encode_request(request)
        assert read(data, limit) == read_in_python(data, limit)


def test_native_reader_leaves_other_buffers_to_python() -> None:
    data = encode_request(Request(Function.SET, key=b"key"))
    for other in (bytearray(data), memoryview(data)):
        assert read(other) == read_in_python(other)  # type: ignore[arg-type]


def steady(call: Callable[[], object], shared: tuple[object, ...]) -> None:
    """Call it often: neither references to what it shares nor memory may grow."""
    call()
    gc.collect()
    counts = [sys.getrefcount(each) for each in shared]
    blocks = sys.getallocatedblocks()
    for _ in range(20_000):
        call()
    assert [sys.getrefcount(each) for each in shared] == pytest.approx(counts, abs=50)
    assert sys.getallocatedblocks() == pytest.approx(blocks, abs=500)


def test_native_reader_keeps_reference_counts() -> None:
    whole = encode_request(Request(2, 300, 512, 2**50, b"k", b"u", 1, b"v", 2**40, 2**41, 2**10))
    bare = encode_request(Request(Function.NOP))
    data = whole + bare + whole[:-1]
    steady(lambda: read(data), (None, b"", Request, 0, 300, 512))


# --- replies ------------------------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, 3, 253, 254, 255, 256, 1000, 65533, 65534, 65535, 65536])
TEXTS = st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), SIZES)
PLAIN = st.one_of(st.binary(max_size=20), TEXTS)
"""Bytes of a few sizes, mostly those beside the widths of size fields."""


def mostly(plain: st.SearchStrategy[Any], *odd: object) -> st.SearchStrategy[Any]:
    """Return a strategy of which one of 16 is for Python: of another type, or too large."""
    return st.integers(0, 15).flatmap(lambda n: plain if n else st.sampled_from(odd))


U64 = mostly(NUMBERS, -1, 2**64, 2**80, "text", None, True, 1.5)
U16 = mostly(st.integers(0, 65535), -1, 65536, 2**64, Function.GET)
U8 = mostly(st.integers(0, 255), -1, 256, None, Flag.KEY16)
BYTES = mostly(PLAIN, bytearray(b"other"), memoryview(b"view"), None, "text")
METAS = st.builds(Meta, *[U64] * 8, U8, U8, U16)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    """A reply; in some of them something does not fit, or has another type than it should."""
    with_meta = draw(st.booleans())
    metas = mostly(METAS, None) if with_meta else mostly(st.none(), Meta(), "text")
    pairs = st.lists(st.builds(Pair, BYTES, U8, BYTES, BYTES, metas), max_size=4)
    return Reply(
        draw(U16),
        draw(mostly(st.integers(0, 0x1FFFF), Flag.TWO_KEYS, -1, 2**64 + 128)),
        draw(U64),
        draw(
            st.one_of(
                st.sampled_from(["", "not-found nothing there", "e" * 255, "e" * 256]),
                st.text(max_size=5),
                st.sampled_from(["e" * (ERROR_SENTENCE_BYTES_MAX + n) for n in (-1, 0, 1)]),
                st.text("\xe4\u20ac", min_size=200, max_size=300),
            )
        ),
        draw(st.none() | U64),
        draw(st.none() | U64),
        draw(st.none() | BYTES),
        draw(st.none() | mostly(pairs, (), [None], ["pair"])),
    )


def encoded(encode: Callable[..., object], *arguments: object) -> object:
    """Return what it returns, or what it raises."""
    try:
        return encode(*arguments)
    except (BadRequestError, AttributeError, TypeError, ValueError, struct.error) as error:
        return type(error), str(error)


def encoded_in_python(encode: Callable[..., object], *arguments: object) -> object:
    with without_leaves():
        return encoded(encode, *arguments)


@given(replies())
def test_native_encoder_of_replies_returns_the_bytes_and_errors_of_python(reply: Reply) -> None:
    wanted = encoded_in_python(encode_reply, reply)
    found = encoded(encode_reply, reply)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize("meta", [None, Meta(*range(2**60, 2**60 + 8), 255, 31, 65535)])
def test_native_encoder_takes_plain_replies_itself(meta: Meta | None) -> None:
    assert _native.leaves is not None
    pair = Pair(b"key", 1, b"value", b"uri", meta)
    for reply in (
        *(Reply(), Reply(65535, 0xFFFF, 2**64 - 1), Reply(error="not-found"), Reply(pairs=[])),
        Reply(1, Flag.TWO_KEYS | Flag.WORKED_ON.value, 2, "", 3, 4, b"cursor", [pair] * 64),
        Reply(1, Flag.TWO_KEYS.value, pairs=[pair, Pair(b"", meta=meta)]),
    ):
        reply.flags = int(reply.flags)
        assert _native.leaves.encode_reply(reply) == encoded_in_python(encode_reply, reply)


@pytest.mark.parametrize("number", [0, 1, 255, 256, 65535, 65536])
def test_native_encoder_counts_as_many_pairs_as_python(number: int) -> None:
    reply = Reply(1, Flag.TWO_KEYS.value, 2, pairs=[Pair(b"k", 1, b"v")] * number)
    assert encoded(encode_reply, reply) == encoded_in_python(encode_reply, reply)


@pytest.mark.parametrize("size", [253, 254, 255, 256, 65533, 65534, 65535, 65536])
@pytest.mark.parametrize("field", ["key", "second_key", "value", "error", "cursor"])
def test_native_encoder_widens_sizes_as_python_does(field: str, size: int) -> None:
    for flags in (0, Flag.TWO_KEYS.value):
        pair, reply = Pair(b"k"), Reply(flags=flags)
        filled = b"x" * size
        if field in ("error", "cursor"):
            setattr(reply, field, filled.decode() if field == "error" else filled)
        else:
            setattr(pair, field, filled)
        reply.pairs = [Pair(b"first"), pair]
        assert encoded(encode_reply, reply) == encoded_in_python(encode_reply, reply)


def test_native_encoder_leaves_fields_that_were_deleted_to_python() -> None:
    for message in (Reply(pairs=[Pair(b"k", meta=Meta())]), Pair(b"k", meta=Meta()), Meta()):
        for name in message.__struct_fields__:
            reply, pair, meta = Reply(flags=128, pairs=[]), Pair(b"k"), Meta()
            pair.meta, reply.pairs = meta, [pair]
            delattr({Reply: reply, Pair: pair, Meta: meta}[type(message)], name)
            assert encoded(encode_reply, reply) == encoded_in_python(encode_reply, reply)


def test_native_encoder_of_successes_takes_requests_itself() -> None:
    assert _native.leaves is not None
    requests = [Request(2, identifier) for identifier in (0, 1, 255, 256, 65535)]
    wanted = encoded_in_python(encode_successes, requests, 2**64 - 1)
    assert _native.leaves.encode_successes(requests, 2**64 - 1) == wanted


@given(st.lists(mostly(st.builds(Request, st.just(2), U16), Reply(3)), max_size=5), U64)
def test_native_encoder_of_successes_returns_what_python_returns(
    requests: list[Any], timestamp: int
) -> None:
    wanted = encoded_in_python(encode_successes, requests, timestamp)
    assert encoded(encode_successes, requests, timestamp) == wanted


def test_native_encoders_keep_reference_counts() -> None:
    meta = Meta(2**60)
    pair = Pair(b"k", 1, b"v", b"u", meta)
    whole = Reply(1, 128, 2, "", 3, 4, b"cursor", [pair] * 3)
    refused = Reply(1, 128, 2, "", 3, 4, b"cursor", [pair, Pair(b"k", meta=Meta(-1))])
    requests = [Request(2, 2**16 - 1), Request(2, 0)]

    def call() -> None:
        encode_reply_to(1, whole, 2)
        encoded(encode_reply, refused)
        encode_successes(requests, 2**60)
        encoded(encode_successes, [*requests, Request(2, -1)], 2**60)

    steady(call, (None, b"", Reply, Pair, Meta, pair, meta, b"cursor", *requests))
