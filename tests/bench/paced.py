"""Sends requests that were encoded beforehand at a steady rate, and times the replies.

Cheap, so that the daemon has the processor: a window of requests is one ``send``, its replies are
counted by the flag that tells their lengths, and one thread waits for all connections. The latency
of a request counts from the instant at which its window was to be sent, so who is behind does not
look fast.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
import urllib.request
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from fastjournal.client.core.address import UnixAddress, parse_address
from fastjournal.protocol import Flag, Reply, Request
from tests.integration.raw_client import RawClient

SUCCESS_BYTES = 17
REPLACED_BYTES = 25
"""Reply to a SET that replaced an entry: it has a ttl."""
_TTL_FLAG = int(Flag.TTL) >> 8
_FLAGS_AT = 6
SOCKET_BYTES = 1 << 20
_RECEIVE_BYTES = 1 << 18


class Figure(NamedTuple):
    """Some requests of one window, whose replies came together."""

    seconds: float
    """From when they were due."""
    number: int
    due: float
    """By ``time.perf_counter``."""


class Latencies(msgspec.Struct):
    """How long requests took."""

    figures: list[Figure]
    requests_per_second: float

    def at(self, share: float) -> float:
        """Return the latency in milliseconds that this share of all requests did not exceed."""
        ordered = sorted(self.figures)
        wanted = share * sum(figure.number for figure in ordered)
        for figure in ordered:
            wanted -= figure.number
            if wanted <= 0:
                return figure.seconds * 1000
        return 0.0


class _Connection:
    def __init__(self, address: str) -> None:
        parsed = parse_address(address)
        assert not isinstance(parsed, UnixAddress)
        self.socket = socket.socket()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self.socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
        self.socket.connect((parsed.host, parsed.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unsent = b""
        self.awaited: deque[list[float]] = deque()
        """For each window: when it was due, and the number of its replies still to come."""
        self.received = b""
        """Begin of a reply."""

    def send(self, window: bytes = b"") -> None:
        """Send as much as the system takes."""
        data = self.unsent + window
        try:
            self.unsent = data[self.socket.send(data) :]
        except BlockingIOError:
            self.unsent = data


class Paced:
    """Some connections to a daemon, over which windows of requests are sent by the clock.

    Args:
        address: Address of the daemon.
        connections: How many; the windows go to them in turn.
    """

    def __init__(self, address: str, connections: int) -> None:
        self._connections = [_Connection(address) for _ in range(connections)]

    def run(
        self,
        windows: Sequence[bytes],
        size: int,
        rate: float,
        seconds: float,
    ) -> Latencies:
        """Send windows, as long as there are some, and wait for all replies.

        Args:
            windows: Each some whole requests, whose replies are plain successes.
            size: Requests in each.
            rate: Requests a second; 0: as fast as the daemon answers, two windows a connection.
            seconds: How long.
        """
        connections = self._connections
        poll = select.epoll()
        by_file = {}
        for connection in connections:
            by_file[connection.socket.fileno()] = connection
            poll.register(connection.socket, select.EPOLLIN)
        figures: list[Figure] = []
        now = started = time.perf_counter()
        sent = answered = 0
        step = size / rate if rate else 0.0
        while True:
            while now < started + seconds and sent < len(windows):
                connection = connections[sent % len(connections)]
                due = started + sent * step if rate else now
                if due > now or (not rate and len(connection.awaited) >= 2):
                    break
                connection.awaited.append([due, size])
                connection.send(windows[sent])
                poll.modify(connection.socket, self._wanted(connection))
                sent += 1
                now = time.perf_counter()
            over = now >= started + seconds or sent == len(windows)
            if over and answered == sent * size:
                break
            wait = 1.0 if over or not rate else max(0.0, started + sent * step - now)
            for file, events in poll.poll(wait):
                connection = by_file[file]
                if events & select.EPOLLOUT:
                    connection.send()
                    poll.modify(connection.socket, self._wanted(connection))
                if events & ~select.EPOLLOUT:
                    answered += self._receive(connection, figures)
            now = time.perf_counter()
        poll.close()
        return Latencies(figures, answered / (now - started))

    @staticmethod
    def _wanted(connection: _Connection) -> int:
        return select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0)

    @staticmethod
    def _receive(connection: _Connection, figures: list[Figure]) -> int:
        try:
            data = connection.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            raise ConnectionError("the daemon has closed the connection")
        now = time.perf_counter()
        awaited = connection.awaited
        data = connection.received + data
        at = answered = 0
        # a reply counts when its last byte is here
        while at + SUCCESS_BYTES <= len(data):
            end = at + (REPLACED_BYTES if data[at + _FLAGS_AT] & _TTL_FLAG else SUCCESS_BYTES)
            if end > len(data):
                break
            if data[end - 1]:
                raise ValueError(f"replies that are no plain successes: {data[at : at + 200]!r}")
            at = end
            answered += 1
        connection.received = data[at:]
        left = answered
        while left:
            due, missing = awaited[0]
            number = min(left, int(missing))
            left -= number
            figures.append(Figure(now - due, number, due))
            if number == missing:
                awaited.popleft()
            else:
                awaited[0][1] = missing - number
        return answered

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.socket.close()


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bucket_counts(http: str, histogram: str) -> dict[float, int]:
    """Return the numbers of a histogram of a daemon's ``/metrics``, by upper bound."""
    with urllib.request.urlopen(f"http://{http}/metrics") as reply:
        text = reply.read().decode()
    found = re.findall(rf'{histogram}_bucket\{{le="([^"]+)"\}} (\S+)', text)
    return {float(bound): int(float(number)) for bound, number in found}


def ask_all(client: RawClient, *requests: Request) -> list[Reply]:
    """Send requests in one piece and return their replies."""
    client.send(*requests)
    return [client.reply() for _ in requests]
