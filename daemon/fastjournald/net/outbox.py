"""Outbox of a session: messages in order, each with the mark of the log it must wait for. Pure.

A message may show any change that was appended when its bytes were made. So its mark is taken then:
later the log has grown by changes that the message does not show, or worse, the message is gone
and another one, with a later mark, stands in its place. Nothing leaves the outbox before its mark
is settled, and nothing else reaches a client's stream.

A message that delivers work says so: until it is sent nobody knows of that work, and it can be
released.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Protocol, TypeAlias

from fastjournal.limits import REPLIES_BYTES_MAX
from fastjournald.admission.memory_budget import MemoryAccount
from fastjournald.engine.undelivered import Handout

_Piece: TypeAlias = tuple[bytes, int, int, list[Handout] | None, bool]
"""Messages; their mark; how many bytes they hold; the work in them; whether it is work for NEXTs
that waited. A plain tuple, for each turn of a session makes one."""


class Log(Protocol):
    """The log, as far as marks are concerned."""

    @property
    def appended(self) -> int:
        """Position behind the last record."""


class Outbox:
    """FIFO queue of messages; as marks only grow, what stands before one never waits longer.

    Args:
        log: Marks are positions in it.
        account: Counts what the messages hold.
    """

    __slots__ = ("_account", "_log", "leaving", "pieces", "pushed_work")

    def __init__(self, log: Log, account: MemoryAccount) -> None:
        self.pieces: deque[_Piece] = deque()
        """Not sent so far, or not wholly. Others only ask whether there are any."""
        self.pushed_work = 0
        """Pieces with work for NEXTs that waited."""
        self.leaving = 0
        """Pieces at the front that are being sent. For the only sender at a time: if there are any
        when it begins, something was begun and not sent wholly."""
        self._log = log
        self._account = account

    @property
    def mark(self) -> int:
        """Appended bytes that must be settled before the first message may leave."""
        return self.pieces[0][1]

    def put(
        self, data: bytes, handouts: list[Handout] | None = None, *, pushed: bool = False
    ) -> None:
        """Add messages that were made just now. O(1).

        Args:
            data: One whole message, or several.
            handouts: Work that they deliver.
            pushed: They answer requests that waited.
        """
        pieces, mark, account = self.pieces, self._log.appended, self._account
        assert not pieces or pieces[-1][1] <= mark
        held = len(data)
        if handouts:
            held += _popped_bytes(handouts)
            self.pushed_work += pushed
            pieces.append((data, mark, held, handouts, pushed))
        else:
            pieces.append((data, mark, held, None, False))
        if not account.closed:
            # as ``MemoryAccount.hold`` does it, for each reply
            budget = account.budget
            account.bytes += held
            budget.bytes += held
            if (budget.bytes > budget.bytes_max) is not budget.scarce:
                budget.look()

    def data_to_send(self, settled: int) -> bytes:
        """Return what may leave, about a megabyte of it; call ``data_sent`` when it is sent.

        Args:
            settled: Bytes of the log that are as safe as the sync policy asks.
        """
        assert not self.leaving, "the one before was not sent"
        pieces = self.pieces
        if len(pieces) == 1:
            # nearly always
            data, mark, _, _, _ = pieces[0]
            if mark > settled:
                return b""
            self.leaving = 1
            return data
        room = REPLIES_BYTES_MAX
        for data, mark, _, _, _ in pieces:
            if mark > settled or room <= 0:
                break
            room -= len(data)
            self.leaving += 1
        return b"".join([piece[0] for piece in islice(pieces, self.leaving)])

    def data_sent(self) -> None:
        """Take out what was begun: it is sent."""
        total, pieces, account = 0, self.pieces, self._account
        while self.leaving:
            _, _, held, _, with_pushed_work = pieces.popleft()
            total += held
            self.pushed_work -= with_pushed_work
            self.leaving -= 1
        if not account.closed:
            # as ``MemoryAccount.hold`` does it, for each reply
            budget = account.budget
            account.bytes -= total
            budget.bytes -= total
            if (budget.bytes > budget.bytes_max) is not budget.scarce:
                budget.look()

    def withdraw(self, *, pushed_only: bool) -> list[Handout]:
        """Remove the messages that deliver work, or all; return that work.

        Args:
            pushed_only: Only what has work for NEXTs that waited, while nothing is being sent.
        """
        kept: deque[_Piece] = deque()
        handouts: list[Handout] = []
        total = 0
        for piece in self.pieces:
            _, _, held, work, with_pushed_work = piece
            if pushed_only and not with_pushed_work:
                kept.append(piece)
            else:
                handouts += work or ()
                total += held
        self.pieces = kept
        self.pushed_work = self.leaving = 0
        self._account.hold(-total)
        return handouts


def _popped_bytes(handouts: list[Handout]) -> int:
    """Return the size of the values that are kept only because they may have to be restored."""
    return sum(len(entry.value) for token, entries in handouts if not token for entry in entries)
