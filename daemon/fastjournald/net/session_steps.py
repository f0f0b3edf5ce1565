"""Stages and steps of a session. Pure.

A step is a wait that a transport carries out for a session, one at a time; nearly every request
takes RECEIVE and COMMIT only. A stage is what the session does after the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

from fastjournal.protocol import Request
from fastjournald.engine.context import Context
from fastjournald.engine.engine import Missing, Scan
from fastjournald.engine.value_memory import missing_soon
from fastjournald.tables.entry import Entry


class Stage(IntEnum):
    """Stage of a session: the work of ``next_step`` after the last step was carried out.

    An integer: a plain enumeration hashes in Python code, for each request.
    """

    READ = 0
    """Take the requests that were decoded. If there are none: flush, or listen."""
    IDLE = 1
    """As READ, where no request was received in part, and the first one of the client is noted. The
    session waits for RECEIVE."""
    FLUSHED = 2
    """Listen to the client: all messages were sent."""
    MATCHED = 3
    """Receive: changes were matched with subscriptions."""
    QUEUED = 4
    """Wait for a turn: bytes were received when no turn was left."""
    ADMITTED = 5
    """Decode these bytes, and read: the turn of the client has come."""
    LEFT = 6
    """Handle the request that a shared batch was asked to take, as a batch of one."""
    HANDLE = 7
    """Begin a slice after other clients had their turn. Commit first if the log lacks room."""
    RESUME = 8
    """Begin a slice after a commit, as soon as the log has room for the rest of the batch."""
    YIELD = 9
    """Yield to other clients, as soon as the log has room for the rest of the batch."""
    LONGER = 10
    """Run a scan or read values, as soon as the log has room for the rest of the batch."""
    VALUES_READ = 11
    """Handle the request again: its values were read."""
    SCANNED = 12
    """Handle the rest of the batch: the scan has replied."""
    BY_SERVER = 13
    """Have the server carry out a request: the replies before it were sent."""
    REFUSED = 14
    """Delay the reply to a failed AUTH."""
    DELAYED = 15
    """Send that reply, and resume."""
    ANSWERED = 16
    """End the turn: all replies of the batch are durable."""
    SHARED = 17
    """As ANSWERED, after the one request that a shared batch handled: IDLE follows."""
    CLOSED = 18
    """Close: nothing is handled any more."""


class StepKind(Enum):
    """Kind of a step that needs no argument."""

    RECEIVE = "receive"
    """Receive bytes of the client, and hand them to ``Session.receive_data``."""
    COMMIT = "commit"
    """Wait until ``Session.mark`` is settled, call ``committed``, and send what is durable."""
    CLOSE = "close"
    """Send all messages, close, and call ``Session.end``."""
    FLUSH = "flush"
    """Send notifications and replies to requests that waited, before the next RECEIVE."""
    MATCH = "match"
    """Wait while the queue of unmatched changes is full (backpressure)."""
    PASS_ON = "pass-on"
    """Yield to other clients, then wait for the next turn of this client."""
    PENALTY = "penalty"
    """Delay after a failed AUTH."""


RECEIVE: Final = StepKind.RECEIVE
COMMIT: Final = StepKind.COMMIT
CLOSE: Final = StepKind.CLOSE
FLUSH: Final = StepKind.FLUSH
MATCH: Final = StepKind.MATCH
PASS_ON: Final = StepKind.PASS_ON
PENALTY: Final = StepKind.PENALTY


class WaitTurn(NamedTuple):
    """Wait until the turn budget admits the client."""

    expected: int
    """Work that it will do, as far as that is known."""


class WaitRoom(NamedTuple):
    """Wait until backpressure has room for requests that make the log grow."""

    size: int
    """Their bytes."""


class ReadValues(NamedTuple):
    """Read values from the disk, and hand the reads that failed to ``Session.values_read``.

    Nothing may come between that and the next step.
    """

    missing: Missing
    earlier: Iterable[Entry]
    """Entries whose values were read before. Values that were evicted since are read again."""


class RunScan(NamedTuple):
    """Run a scan, and hand its reply to ``Session.take_reply``."""

    scan: Scan


class AskServer(NamedTuple):
    """Have the server carry out a request, and hand the reply to ``Session.take_reply``."""

    request: Request


Step: TypeAlias = StepKind | WaitTurn | WaitRoom | ReadValues | RunScan | AskServer


class ValueReads:
    """Reads for one request after the other.

    Args:
        context: Context of the engine.
    """

    __slots__ = ("_context", "_had", "unreadable")

    def __init__(self, context: Context) -> None:
        self.unreadable: dict[bytes, str] = {}
        """Reads that failed."""
        self._context = context
        self._had: dict[Entry, None] = {}
        """Entries whose values were read."""

    def step(self, missing: Missing, ahead: list[Request]) -> ReadValues:
        """Return the step that reads the missing values, and those that the next requests need."""
        place = missing.entries[0].state
        # others may have taken some of them meanwhile
        self._had = {entry: None for entry in self._had if entry.state == place}
        in_vain = any(entry in self._had for entry in missing.entries)
        soon = missing_soon(self._context, missing, ahead)
        return ReadValues(soon, self._had if in_vain else ())

    def note(self, missing: Missing) -> None:
        """Note which of the values are in memory now."""
        for entry in missing.entries:
            if isinstance(entry.value, bytes):
                self._had[entry] = None

    def clear(self) -> None:
        """End the reads of a request: it was handled."""
        self.unreadable, self._had = {}, {}
