"""Golden bytes of a whole conversation: docs/protocol.md against the codec and a real daemon."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.clock import unique_timestamp
from fastjournal.protocol import (
    Flag,
    Function,
    decode_reply,
    decode_request,
    encode_request,
)
from tests.integration.daemon_process import DaemonProcess

PAGE = Path(__file__).resolve().parents[2] / "docs/protocol.md"
TIMESTAMP, TOKEN = slice(8, 16), slice(16, 24)
REQUEST_TIMESTAMP, REQUEST_TOKEN = slice(10, 18), slice(18, 26)
PATIENCE_S = 60


def conversation() -> Iterator[tuple[bytes, bytes]]:
    """Give each request of the page, and its reply."""
    found = re.search(
        r"<!-- conversation -->\n```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    assert found is not None
    text = re.sub(r"--.*\n", "", found[1])
    messages = re.findall(r"([><]) ([0-9a-f \n]+)", text)
    assert [mark for mark, _ in messages] == [">", "<"] * (len(messages) // 2)
    for (_, request), (_, reply) in zip(messages[::2], messages[1::2], strict=True):
        yield bytes.fromhex(request), bytes.fromhex(reply)


def test_protocol_conversation_of_the_page_is_what_the_codec_writes() -> None:
    functions = []
    for sent, received in conversation():
        request, reply = decode_request(sent), decode_reply(received)
        assert encode_request(request) == sent
        assert reply.identifier == request.identifier
        functions.append(Function(request.function).name)
    wanted = "SET NEXT TOUCH RELEASE NEXT DELETE DELETE QUIT"
    assert " ".join(functions) == wanted


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[socket.socket]:
    with (
        DaemonProcess(tmp_path, "--listen", f"unix:{tmp_path}/socket"),
        socket.socket(socket.AF_UNIX) as connected,
    ):
        connected.settimeout(PATIENCE_S)
        connected.connect(f"{tmp_path}/socket")
        yield connected


def test_protocol_conversation_of_the_page_is_what_a_daemon_replies(
    connection: socket.socket,
) -> None:
    """Instants apart: timestamps are of now, and tokens those that the daemon gave."""
    tokens: dict[bytes, bytes] = {}
    for sent, expected in conversation():
        request = bytearray(sent)
        request[REQUEST_TIMESTAMP] = unique_timestamp().to_bytes(8)
        if int.from_bytes(sent[8:10]) & Flag.WORKED_ON:
            request[REQUEST_TOKEN] = tokens[sent[REQUEST_TOKEN]]
        connection.sendall(request)
        received = bytearray()
        while len(received) < len(expected):
            more = connection.recv(len(expected) - len(received))
            assert more, received.hex(" ")
            received += more
        if int.from_bytes(expected[6:8]) & Flag.TIMEOUT:
            tokens[expected[TOKEN]] = bytes(received[TOKEN])
            received[TOKEN] = expected[TOKEN]
        received[TIMESTAMP] = expected[TIMESTAMP]
        assert received.hex(" ") == expected.hex(" ")
    assert len(tokens) == 3
    assert connection.recv(1) == b"", "QUIT: the daemon has closed"
