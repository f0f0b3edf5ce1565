"""Scan queue: a bounded number of places, for which the scans of all clients take turns.

A connection has one scan at a time, so turns of scans are turns of connections. Scans that begin
and scans that go on get every other place: whoever asks for little is soon done, and nobody who
asks for much waits for ever. A client that has ended its requests may have gone, and nothing tells
that apart from one that still reads: its scan gets a place where no other scan wants it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio


class _QueuedScan:
    """Scan in the queue."""

    __slots__ = ("granted", "has_ended", "left")

    def __init__(self, has_ended: Callable[[], bool]) -> None:
        self.has_ended = has_ended
        self.granted = trio.Event()
        self.left = False


class ScanQueue:
    """Places, and the queue of scans that want one.

    Args:
        places: Number of the places.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._beginning: deque[_QueuedScan] = deque()
        self._going_on: deque[_QueuedScan] = deque()
        self._ended: deque[_QueuedScan] = deque()
        """Scans of clients that have ended their requests."""
        self._prefers_beginning = True
        """Whether the next place is for a scan that begins."""

    @property
    def is_awaited(self) -> bool:
        """Whether a scan wants a place of one that has one."""
        return bool(self._beginning or self._going_on)

    async def enter(self, has_ended: Callable[[], bool], *, begins: bool) -> None:
        """Take a place, until ``leave`` is called.

        Args:
            has_ended: Whether the client of the scan has ended its requests.
            begins: Whether the scan had no place before.
        """
        client = _QueuedScan(has_ended)
        (self._beginning if begins else self._going_on).append(client)
        self._grant()
        try:
            await client.granted.wait()
        except trio.Cancelled:
            client.left = True
            if client.granted.is_set():
                self.leave()
            raise

    def leave(self) -> None:
        """Let the next scan have the place."""
        self._free += 1
        self._grant()

    def _grant(self) -> None:
        while self._free and (client := self._next()) is not None:
            self._free -= 1
            client.granted.set()

    def _next(self) -> _QueuedScan | None:
        """Take the next scan out of the queue, and return it; None: there is none."""
        while self.is_awaited:
            queues = (self._beginning, self._going_on)
            queue = queues[not self._prefers_beginning] or queues[self._prefers_beginning]
            client = queue.popleft()
            if client.left:
                continue
            if client.has_ended():
                self._ended.append(client)
                continue
            self._prefers_beginning = queue is not self._beginning
            return client
        while self._ended:
            client = self._ended.popleft()
            if not client.left:
                return client
        return None


class Place:
    """Place of one scan, which it may leave and take again.

    Args:
        queue: Queue of the scans.
        has_ended: Whether the client of the scan has ended its requests.
    """

    def __init__(self, queue: ScanQueue, has_ended: Callable[[], bool]) -> None:
        self._queue = queue
        self.has_ended = has_ended
        self._is_held = False
        self._begins = True

    async def enter(self) -> None:
        """Take it, unless that was done."""
        if not self._is_held:
            await self._queue.enter(self.has_ended, begins=self._begins)
            self._is_held, self._begins = True, False

    def leave(self) -> None:
        """Let another scan have it, unless that was done."""
        if self._is_held:
            self._is_held = False
            self._queue.leave()
