"""A client that sends what a test wants, also nonsense, and a daemon that ends by itself."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastjournal.client.core.address import UnixAddress, parse_address
from fastjournal.clock import unique_timestamp
from fastjournal.protocol import ClientConnection, encode_request
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query, ValueType
from fastjournal.protocol.messages import Reply, Request
from tests.integration.daemon_process import START_S
from tests.integration.programs import installed, run_program

SILENCE_S = 60.0
"""Far longer than any answer takes, so that a loaded machine fails no test."""


def build(
    function: int,
    key: bytes = b"",
    value: bytes | None = None,
    *,
    uri: bytes | None = None,
    flags: int = 0,
    at: int | None = None,
    **fields: Any,
) -> Request:
    """Build a request of this instant with the flags that its fields need."""
    return Request(
        function=function,
        flags=flags | (Query.RANGE << QUERY_SHIFT if uri is not None else 0),
        timestamp=unique_timestamp() if at is None else at,
        key=key,
        second_key=uri,
        value_type=None if value is None else ValueType.BUFFER,
        value=value or b"",
        **fields,
    )


def set_request(key: bytes, value: bytes = b"v", **fields: Any) -> Request:
    """Build a SET that is kept on disk."""
    return build(Function.SET, key, value, flags=Flag.PERSIST, **fields)


def listen_request(domain: bytes = b"", **fields: Any) -> Request:
    """Build a NEXT that waits for work."""
    return build(Function.NEXT, domain, flags=Flag.LISTEN | Flag.DATA, **fields)


class RawClient:
    """A blocking connection without any manners.

    Args:
        address: As ``--listen`` takes it.
        receive_bytes: Size of the socket's receive buffer; None: as the system likes.
    """

    def __init__(self, address: str, *, receive_bytes: int | None = None) -> None:
        parsed = parse_address(address)
        unix = isinstance(parsed, UnixAddress)
        self.socket = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(SILENCE_S)
        try:
            self.socket.connect(
                parsed.path if isinstance(parsed, UnixAddress) else (parsed.host, parsed.port)
            )
        except OSError:
            self.socket.close()
            raise
        if not unix:
            # a request does not wait for the acknowledgement of the one before
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = ClientConnection()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *requests: Request) -> None:
        """Send requests in one piece."""
        self.socket.sendall(b"".join(encode_request(request) for request in requests))

    def end(self) -> None:
        """Send no more, but go on reading."""
        self.socket.shutdown(socket.SHUT_WR)

    def reply(self) -> Reply:
        """Return the next reply.

        Raises:
            EOFError: The daemon has closed.
        """
        while not isinstance(event := self._connection.next_event(), Reply):
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._connection.receive_data(data)
        return event

    def ask(self, *requests: Request) -> Reply:
        """Send requests and return the next reply."""
        self.send(*requests)
        return self.reply()

    def rest(self) -> list[Reply]:
        """Return all replies until the daemon closes."""
        replies = []
        while True:
            try:
                replies.append(self.reply())
            except EOFError:
                return replies


def codes(replies: Iterable[Reply]) -> list[str]:
    """Return the error codes, empty for success."""
    return [reply.code for reply in replies]


def run_to_its_end(directory: Path, *options: str) -> tuple[int, str]:
    """Run a daemon that cannot start; return its exit code and what it says."""
    done = run_program(
        [
            installed("fastjournald"),
            *("--cmdlog-path", str(directory / "log"), "--listen", "127.0.0.1:0", *options),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    return done.returncode, done.stdout + done.stderr
