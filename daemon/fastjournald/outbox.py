"""Outbox of a session: messages in order, each with the mark of the log it must wait for. Pure.

A message may show any change that was appended when its bytes were made. So its mark is taken then:
later the log has grown by what the message does not show, or worse, the message has been forgotten
and another one, with a later mark, stands in its place. Nothing leaves the outbox before its mark
is settled, and nothing else reaches a client's stream.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from fastjournal.limits import REPLIES_BYTES_MAX


class Outbox:
    """First in, first out; as marks only grow, what stands before a message never waits longer."""

    __slots__ = ("_leaving", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._leaving = 0
        """Pieces at the front that are being sent."""

    def __bool__(self) -> bool:
        """Whether anything was not sent so far, or not wholly."""
        return bool(self._pieces)

    @property
    def failed(self) -> bool:
        """Whether something was begun and not sent wholly. For the only sender at a time."""
        return self._leaving > 0

    @property
    def mark(self) -> int:
        """Appended bytes that must be settled before the first message may leave."""
        return self._pieces[0][1]

    def put(self, data: bytes, mark: int) -> None:
        """Add messages that were made just now. O(1).

        Args:
            data: One whole message, or several.
            mark: Bytes that have been appended to the log.
        """
        assert not self._pieces or self._pieces[-1][1] <= mark
        self._pieces.append((data, mark))

    def begin(self, settled: int) -> bytes:
        """Return what may leave, about a megabyte of it; call ``done`` when it is sent.

        Args:
            settled: Bytes of the log that are as safe as the sync policy asks.
        """
        assert not self._leaving, "the one before was not sent"
        room = REPLIES_BYTES_MAX
        for data, mark in self._pieces:
            if mark > settled or room <= 0:
                break
            room -= len(data)
            self._leaving += 1
        if self._leaving == 1:
            return self._pieces[0][0]
        return b"".join(data for data, _ in islice(self._pieces, self._leaving))

    def done(self) -> None:
        """What was begun is sent."""
        for _ in range(self._leaving):
            self._pieces.popleft()
        self._leaving = 0
