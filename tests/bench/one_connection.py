"""One connection of a benchmark to ``fastjournald``: windows of SETs, and batches of jobs."""

from __future__ import annotations

import socket
import time

from fastjournal.client.core.address import parse_address
from fastjournal.protocol import ClientConnection, Flag, Function, Reply, Request, encode_request

WINDOW = 256
"""Requests that are sent before the first reply is awaited."""
BATCH = 64
"""Entries of one NEXT."""
BODY = b"x" * 100
SUCCESS_BYTES = 17
REPLACED_BYTES = 25
"""Reply to a SET that replaces an entry."""
DELETE = Function.DELETE.value
WORKED_ON = Flag.WORKED_ON.value
DIRECTORY = "/var/tmp"
"""On a disk: /tmp often is in memory, where a sync costs nothing."""


class Connection:
    """One connection to a ``fastjournald``.

    Args:
        address: Address of the daemon.
        token: Access token; empty: it needs none.
    """

    def __init__(self, address: str, token: bytes = b"") -> None:
        target = parse_address(address)
        self._socket = socket.create_connection((target.host, target.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._serial = 0
        if token:
            auth = Request(Function.AUTH.value, value_type=1, value=token)
            reply = self._answer(ClientConnection(), encode_request(auth))
            assert not reply.error, reply.error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def windows(self, count: int, window: int = WINDOW) -> list[bytes]:
        """Encode SETs, each of a resource of its own, in windows of so many."""
        now = time.time_ns() // 1000
        frames = []
        for _ in range(count):
            self._serial += 1
            number = self._serial
            frames.append(
                encode_request(
                    Request(
                        Function.SET.value,
                        number & 0xFFFF,
                        Flag.PERSIST.value,
                        now - count + number % count,
                        b"example.org:128:%016d:%d" % (now, number),
                        b"https://example.org/some/page/%d.html" % number,
                        1,
                        BODY,
                    )
                )
            )
        return [b"".join(frames[at : at + window]) for at in range(0, count, window)]

    def put(self, count: int, window: int = WINDOW, reply_bytes: int = SUCCESS_BYTES) -> float:
        """Return SETs a second; each window is answered before the next one is sent."""
        windows = self.windows(count, window)
        started = time.perf_counter()
        self.send_windows(windows, window, reply_bytes)
        return count / (time.perf_counter() - started)

    def send_windows(
        self, windows: list[bytes], window: int, reply_bytes: int = SUCCESS_BYTES
    ) -> None:
        """Send each window of so many requests when the one before is answered."""
        for frames in windows:
            self._socket.sendall(frames)
            missing = window * reply_bytes
            while missing:
                missing -= len(self._socket.recv(missing))

    def put_again(self, count: int, window: int = WINDOW) -> float:
        """Return SETs a second that move the entries of the last so many resources."""
        self._serial -= count
        return self.put(count, window, REPLACED_BYTES)

    def take(self, count: int, batch: int = BATCH) -> float:
        """Return entries leased and completed a second: one NEXT, then their DELETEs at once."""
        connection = ClientConnection()
        ask = encode_request(Request(Function.NEXT.value, 0, Flag.DATA.value, count=batch))
        done = 0
        started = time.perf_counter()
        self._socket.sendall(ask)
        while done < count:
            for reply in self._replies(connection):
                if reply.error:
                    raise RuntimeError(reply.error)
                if reply.pairs is not None:
                    done += len(reply.pairs)
                    now, token = time.time_ns() // 1000, reply.timeout
                    frames = [
                        encode_request(Request(DELETE, 1, WORKED_ON, now, pair.key, timeout=token))
                        for pair in reply.pairs
                    ]
                    frames.append(ask)
                    self._socket.sendall(b"".join(frames))
        self._drain(connection)
        return count / (time.perf_counter() - started)

    def take_singly(self, count: int) -> float:
        """Return entries leased and completed a second, each request alone: NEXT, then DELETE."""
        connection = ClientConnection()
        ask = encode_request(Request(Function.NEXT.value, 0, Flag.DATA.value, count=1))
        started = time.perf_counter()
        for _ in range(count):
            reply = self._answer(connection, ask)
            assert reply.pairs, "there is work"
            now, key, token = time.time_ns() // 1000, reply.pairs[0].key, reply.timeout
            complete = Request(DELETE, 1, WORKED_ON, now, key, timeout=token)
            reply = self._answer(connection, encode_request(complete))
            assert not reply.error, reply.error
        return count / (time.perf_counter() - started)

    def _answer(self, connection: ClientConnection, request: bytes) -> Reply:
        self._socket.sendall(request)
        while not (replies := self._replies(connection)):
            pass
        return replies[0]

    def _replies(self, connection: ClientConnection) -> list[Reply]:
        connection.receive_data(self._socket.recv(1 << 18))
        return connection.next_events()

    def _drain(self, connection: ClientConnection) -> None:
        """Wait for the reply to the last NEXT, which finds nothing."""
        while not any(reply.pairs == [] for reply in self._replies(connection)):
            pass
