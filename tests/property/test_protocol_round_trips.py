"""Round trips of the codec: decoding returns the message, however the stream is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fastjournal.errors import BadRequestError
from fastjournal.protocol import (
    CONNECTION_CLOSED,
    NEED_DATA,
    QUERY_SHIFT,
    ClientConnection,
    Flag,
    Function,
    Meta,
    Pair,
    ProtocolError,
    Query,
    Reply,
    Request,
    ServerConnection,
    Signal,
    Value,
    decode_reply,
    decode_request,
    decode_value,
    encode_reply,
    encode_request,
    encode_value,
)

u16 = st.integers(0, 0xFFFF)
u64 = st.integers(0, 2**64 - 1)
# Short ones, and those around the widths: 255 and 256, 65,535.
texts = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda byte, size: byte * size,
        st.binary(min_size=1, max_size=1),
        st.sampled_from([253, 254, 255, 256, 257]),
    ),
)
values = st.one_of(texts, st.sampled_from([65533, 65534, 65535, 65536]).map(lambda n: b"v" * n))
PLAIN_FLAGS = (
    Flag.UPDATE_TIMEOUT,
    Flag.OVERWRITE,
    Flag.WORKED_ON,
    Flag.PERSIST,
    Flag.DATA,
    Flag.LISTEN,
    Flag.META,
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    query = draw(st.sampled_from(Query))
    flags = sum(draw(st.sets(st.sampled_from(PLAIN_FLAGS)))) | query << QUERY_SHIFT
    function = draw(st.one_of(st.sampled_from(Function).map(int), u16))
    value_type = draw(st.none() | st.integers(0, 255))
    is_range = query is Query.RANGE
    counts = u16 if is_range and function == Function.GET else st.none() | u16
    return Request(
        function,
        draw(u16),
        flags,
        draw(u64),
        draw(texts),
        draw(texts) if is_range else None,
        value_type,
        b"" if value_type is None else draw(values),
        draw(st.none() | u64),
        draw(st.none() | u64),
        draw(counts),
    )


metas = st.builds(
    Meta,
    *[u64] * 8,
    priority=st.integers(0, 255),
    state=st.integers(0, 255),
    attempts=u16,
)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    flags = sum(draw(st.sets(st.sampled_from([Flag.WORKED_ON, Flag.TWO_KEYS, Flag.LISTEN]))))
    second_keys = texts if flags & Flag.TWO_KEYS else st.just(b"")
    meta = draw(st.sampled_from([st.none(), metas]))
    pairs = st.builds(Pair, texts, st.integers(0, 255), values, second_keys, meta)
    return Reply(
        draw(u16),
        flags,
        draw(u64),
        draw(st.text(st.characters(codec="ascii"), max_size=40)),
        draw(st.none() | u64),
        draw(st.none() | u64),
        draw(st.none() | texts),
        draw(st.none() | st.lists(pairs, max_size=4)),
    )


def test_encoder_alone_adds_every_width_flag() -> None:
    assert not sum(PLAIN_FLAGS) & (Flag.KEY16 | 0b110 | Flag.TIMEOUT | Flag.TTL | Flag.COUNT)


@given(requests())
def test_request_survives_encoding_and_decoding(request: Request) -> None:
    data = encode_request(request)
    decoded = decode_request(data)
    assert encode_request(decoded) == data
    given_flags = sum(PLAIN_FLAGS) | 0b11 << QUERY_SHIFT
    assert decoded.flags & given_flags == request.flags & given_flags
    request.flags = decoded.flags
    assert decoded == request


@given(replies())
def test_reply_survives_encoding_and_decoding(reply: Reply) -> None:
    data = encode_reply(reply)
    decoded = decode_reply(data)
    assert encode_reply(decoded) == data
    given_flags = Flag.WORKED_ON | Flag.TWO_KEYS | Flag.LISTEN
    assert decoded.flags & given_flags == reply.flags & given_flags
    reply.flags = decoded.flags
    assert decoded == reply


def chunks(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """Cut ``data`` at the places given, as fractions of 1,000."""
    places = sorted({len(data) * cut // 1000 for cut in cuts} | {0, len(data)})
    for start, end in pairwise(places):
        yield data[start:end]


cut_lists = st.lists(st.integers(0, 1000), max_size=8)


@given(st.lists(requests(), max_size=5), cut_lists)
def test_stream_of_requests_may_be_cut_anywhere(messages: list[Request], cuts: list[int]) -> None:
    connection = ServerConnection()
    sent = [encode_request(message) for message in messages]
    received: list[Request] = []
    for chunk in chunks(b"".join(sent), cuts):
        connection.receive_data(chunk)
        received += connection.next_events()
    assert received == [decode_request(data) for data in sent]
    connection.receive_data(b"")
    assert connection.next_event() is CONNECTION_CLOSED


@given(st.lists(replies(), max_size=5), cut_lists)
def test_stream_of_replies_may_be_cut_anywhere(messages: list[Reply], cuts: list[int]) -> None:
    connection = ClientConnection()
    sent = [encode_reply(message) for message in messages]
    received: list[Reply] = []
    for chunk in chunks(b"".join(sent), cuts):
        connection.receive_data(chunk)
        received += connection.next_events()
    assert received == [decode_reply(data) for data in sent]
    connection.receive_data(b"")
    assert connection.next_event() is CONNECTION_CLOSED


def outcome(
    connection: ServerConnection | ClientConnection, pieces: list[bytes]
) -> tuple[list[Request | Reply], str]:
    """Feed the pieces and the end; return the messages and how it ended."""
    for piece in pieces:
        connection.receive_data(piece)
    connection.receive_data(b"")
    messages: list[Request | Reply] = []
    while True:
        try:
            event = connection.next_event()
        except ProtocolError as error:
            return messages, error.code
        if isinstance(event, Signal):
            assert event is not NEED_DATA
            return messages, "closed"
        messages.append(event)


def damaged(message: bytes, place: int, bits: int) -> bytes:
    """Flip bits of one byte of a message."""
    at = place % len(message)
    return message[:at] + bytes((message[at] ^ bits,)) + message[at + 1 :]


# Pure noise rarely gets past the magic: so also noise behind a right start, and real messages
# with one byte changed.
def noise(start: bytes, whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.binary(max_size=80),
        st.binary(max_size=80).map(start.__add__),
        st.builds(damaged, whole, st.integers(0, 200), st.integers(1, 255)),
    )


@given(st.lists(noise(b"FJ\0\1", requests().map(encode_request)), max_size=4), cut_lists)
def test_requests_decoded_from_any_bytes_or_a_protocol_error(
    parts: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(parts)
    whole = outcome(ServerConnection(value_bytes_max=50), [data] if data else [])
    cut = outcome(ServerConnection(value_bytes_max=50), list(chunks(data, cuts)))
    single = outcome(ServerConnection(value_bytes_max=50), [bytes((byte,)) for byte in data])
    assert whole == cut == single
    assert whole[1] in ("closed", "bad-request", "too-large", "unsupported-version")
    for message in whole[0]:
        assert isinstance(message, Request)
        assert len(message.value) <= 50


@given(st.lists(noise(b"JR\0\1", replies().map(encode_reply)), max_size=4), cut_lists)
def test_replies_decoded_from_any_bytes_or_a_protocol_error(
    parts: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(parts)
    whole = outcome(ClientConnection(reply_bytes_max=300), [data] if data else [])
    cut = outcome(ClientConnection(reply_bytes_max=300), list(chunks(data, cuts)))
    single = outcome(ClientConnection(reply_bytes_max=300), [bytes((byte,)) for byte in data])
    assert whole == cut == single
    assert whole[1] in ("closed", "bad-request", "too-large", "unsupported-version")


@given(
    st.one_of(
        st.none(),
        st.binary(),
        st.text(st.characters(codec="utf-8")),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.booleans(),
    )
)
def test_value_survives_encoding_and_decoding(obj: Value) -> None:
    back = decode_value(*encode_value(obj))
    assert back == obj
    assert type(back) is type(obj)


@given(st.integers(-1, 7), st.binary(max_size=10))
def test_value_decoded_from_any_data_has_its_type_or_is_bad_value(
    value_type: int, data: bytes
) -> None:
    refused: str | None = None
    try:
        obj = decode_value(value_type, data)
    except BadRequestError as error:
        refused = error.code
    else:
        assert encode_value(obj)[0] == value_type
    assert refused in (None, "bad-value")
