"""All inputs that coverage-guided fuzzing found keep to the promises of the codec."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from fastjournal.protocol import (
    ClientConnection,
    ProtocolError,
    Reply,
    Request,
    ServerConnection,
    Signal,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)

KEPT = Path(__file__).parent / "data" / "fuzz"
KINDS = ("requests", "replies")
VALUE_BYTES_MAX = 300
REPLY_BYTES_MAX = 2000
ALLOWED_BYTES = 200_000
"""Memory that decoding may take for each of these inputs, whatever their size fields claim."""

Outcome = tuple[list[Request | Reply], str]


def connection_of(kind: str) -> ServerConnection | ClientConnection:
    if kind == "requests":
        return ServerConnection(value_bytes_max=VALUE_BYTES_MAX)
    return ClientConnection(reply_bytes_max=REPLY_BYTES_MAX)


def decode(kind: str, pieces: Iterable[bytes]) -> Outcome:
    """Feed the pieces and the end; return the messages, and how it ended."""
    connection = connection_of(kind)
    for piece in pieces:
        connection.receive_data(piece)
    connection.receive_data(b"")
    messages: list[Request | Reply] = []
    while True:
        try:
            event = connection.next_event()
        except ProtocolError as error:
            # the identifier of a wrong magic is known only where it came in the same piece
            return messages, error.code
        if isinstance(event, Signal):
            assert event is Signal.CONNECTION_CLOSED
            return messages, "closed"
        messages.append(event)


def check(kind: str, data: bytes) -> None:
    """Hold the codec to its promises on these bytes.

    Raises:
        AssertionError: A promise is broken; any other exception breaks one too.
    """
    whole = decode(kind, [data] if data else [])
    assert decode(kind, [data[at : at + 1] for at in range(len(data))]) == whole
    for at in range(1, len(data), max(1, len(data) // 16)):
        assert decode(kind, [data[:at], data[at:]]) == whole
    if kind == "requests":
        # no byte counts for two of them, and none is made up: the encoder takes the smallest widths
        assert sum(len(encode_request(message)) for message in whole[0]) <= len(data)
    for message in whole[0]:
        if isinstance(message, Request):
            assert len(message.value) <= VALUE_BYTES_MAX
            again = decode_request(encode_request(message))
            # only the widths may differ, and those are no fields
            assert encode_request(again) == encode_request(message)
        else:
            assert encode_reply(decode_reply(encode_reply(message))) == encode_reply(message)


def check_memory(kind: str, data: bytes) -> None:
    """Decode under a tracer: claims of the input must not be allocated."""
    tracemalloc.start()
    try:
        decode(kind, [data] if data else [])
        assert tracemalloc.get_traced_memory()[1] < ALLOWED_BYTES
    finally:
        tracemalloc.stop()


FOUND = [
    pytest.param(kind, path.read_bytes(), id=f"{kind}-{path.stem}")
    for kind in KINDS
    for path in sorted((KEPT / kind).glob("*.bin"))
]


@pytest.mark.parametrize(("kind", "data"), FOUND)
def test_found_input_is_decoded_or_refused(kind: str, data: bytes) -> None:
    check(kind, data)
    check_memory(kind, data)


def test_found_inputs_are_there() -> None:
    assert len(FOUND) > 30
