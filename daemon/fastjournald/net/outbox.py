"""Outbox of a session: messages in order, each with its commit mark. Pure.

A message may show any change that was appended before its bytes were made. Its commit mark is the
position in the log that must be settled before it may be sent. The mark is taken when the bytes are
made: later the log has grown by changes that the message does not show. No message is sent before
its mark is settled, and all that is sent to a client goes through its outbox.

A message that delivers work carries the list of that work: if it is never sent, the client does not
know of the work, and it is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol, TypeAlias

from fastjournal.limits import REPLIES_BYTES_MAX
from fastjournald.admission.memory_budget import MemoryAccount
from fastjournald.engine.undelivered import DeliveredJobs

_Piece: TypeAlias = tuple[bytes, int, int, list[DeliveredJobs] | None, bool]
"""Messages; their commit mark; bytes of memory that they hold; the work in them; whether that work
is for NEXTs that waited. A plain tuple: each turn of a session makes one."""


class Log(Protocol):
    """The log, as far as marks are concerned."""

    @property
    def appended(self) -> int:
        """Position after the last record."""


class Outbox:
    """FIFO queue of messages. Marks only grow: a message never waits for one after it.

    Args:
        log: The log: marks are positions in it.
        account: Counts what the messages hold.
        release_undelivered: Gets the work of messages that were not sent.
    """

    __slots__ = ("_account", "_leaving", "_log", "_pushed_work", "_release_undelivered", "pieces")

    def __init__(
        self,
        log: Log,
        account: MemoryAccount,
        release_undelivered: Callable[[list[DeliveredJobs]], None],
    ) -> None:
        self.pieces: deque[_Piece] = deque()
        """Messages that are not sent completely. The session only checks whether there are any."""
        self._pushed_work = 0
        """Number of pieces with work for NEXTs that waited."""
        self._leaving = 0
        """Number of pieces, from the first on, that are being sent."""
        self._log = log
        self._account = account
        self._release_undelivered = release_undelivered

    @property
    def mark(self) -> int:
        """Appended bytes that must be settled before the first message may be sent."""
        return self.pieces[0][1]

    def put(
        self, data: bytes, deliveries: list[DeliveredJobs] | None = None, *, pushed: bool = False
    ) -> None:
        """Add messages that were made just now. O(1).

        Args:
            data: One whole message, or several.
            deliveries: Work that they deliver.
            pushed: They answer requests that waited.
        """
        pieces, mark, account = self.pieces, self._log.appended, self._account
        assert not pieces or pieces[-1][1] <= mark
        held = len(data)
        if deliveries:
            held += _popped_bytes(deliveries)
            self._pushed_work += pushed
            pieces.append((data, mark, held, deliveries, pushed))
        else:
            pieces.append((data, mark, held, None, False))
        if not account.closed:
            # as ``MemoryAccount.hold`` does it, for each reply
            budget = account.budget
            account.bytes += held
            budget.bytes += held
            if (budget.bytes > budget.bytes_max) is not budget.scarce:
                budget.look()

    def data_to_send(self, settled: int, has_hung_up: Callable[[], bool]) -> bytes:
        """Return the messages that are durable, in order, up to about a megabyte.

        Call ``data_sent`` when they are sent.

        Args:
            settled: Bytes of the log that are as safe as the sync policy asks.
            has_hung_up: Whether the client sends nothing more. It may be lost then: work for NEXTs
                that waited is released instead of sent.
        """
        assert not self._leaving, "the one before was not sent"
        if self._pushed_work and has_hung_up():
            self.withdraw(pushed_only=True)
        pieces = self.pieces
        if len(pieces) == 1:
            # nearly always
            data, mark, _, _, _ = pieces[0]
            if mark > settled:
                return b""
            self._leaving = 1
            return data
        room = REPLIES_BYTES_MAX
        for data, mark, _, _, _ in pieces:
            if mark > settled or room <= 0:
                break
            room -= len(data)
            self._leaving += 1
        return b"".join([piece[0] for piece in islice(pieces, self._leaving)])

    def data_sent(self) -> bool:
        """Remove the messages that were sent; return whether others follow."""
        total, pieces, account = 0, self.pieces, self._account
        while self._leaving:
            _, _, held, _, with_pushed_work = pieces.popleft()
            total += held
            self._pushed_work -= with_pushed_work
            self._leaving -= 1
        if not account.closed:
            # as ``MemoryAccount.hold`` does it, for each reply
            budget = account.budget
            account.bytes -= total
            budget.bytes -= total
            if (budget.bytes > budget.bytes_max) is not budget.scarce:
                budget.look()
        return bool(pieces)

    def withdraw(self, *, pushed_only: bool = False) -> None:
        """Remove the messages, and release the work in them.

        Args:
            pushed_only: Only those with work for NEXTs that waited, while nothing is being sent.
        """
        kept: deque[_Piece] = deque()
        deliveries: list[DeliveredJobs] = []
        total = 0
        for piece in self.pieces:
            _, _, held, work, with_pushed_work = piece
            if pushed_only and not with_pushed_work:
                kept.append(piece)
            else:
                deliveries += work or ()
                total += held
        self.pieces = kept
        self._pushed_work = self._leaving = 0
        self._account.hold(-total)
        if deliveries:
            self._release_undelivered(deliveries)


def _popped_bytes(deliveries: list[DeliveredJobs]) -> int:
    """Return the size of the values that are kept only because they may have to be restored."""
    return sum(len(entry.value) for token, entries in deliveries if not token for entry in entries)
