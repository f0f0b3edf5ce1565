"""Steps of a session: the waits that a transport carries out for it, one after the other. Pure.

Nearly every request takes RECEIVE and COMMIT only.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from fastjournal.protocol import Request
from fastjournald.engine.engine import Missing, Scan
from fastjournald.tables.entry import Entry


class StepKind(Enum):
    """Kind of a step that needs no argument."""

    RECEIVE = "receive"
    """Receive bytes of the client, and hand them to ``Session.receive_data``."""
    COMMIT = "commit"
    """Wait until ``RequestBatch.mark`` is settled, call ``committed``, and send what may leave."""
    CLOSE = "close"
    """Send all that is left, close, and call ``Session.end``."""
    FLUSH = "flush"
    """Send what the client did not ask for just now, before it is listened to again."""
    MATCH = "match"
    """Wait until no longer so many changes wait to be matched that no more should come."""
    PASS_ON = "pass-on"
    """Let others have their turn, then wait for the next turn of this client."""
    PENALTY = "penalty"
    """Let the client wait that has shown a wrong token."""


RECEIVE: Final = StepKind.RECEIVE
COMMIT: Final = StepKind.COMMIT
CLOSE: Final = StepKind.CLOSE
FLUSH: Final = StepKind.FLUSH
MATCH: Final = StepKind.MATCH
PASS_ON: Final = StepKind.PASS_ON
PENALTY: Final = StepKind.PENALTY


class WaitTurn(NamedTuple):
    """Wait until the turn budget lets the client begin."""

    expected: int
    """Work that it will do, as far as that is known."""


class WaitRoom(NamedTuple):
    """Wait until backpressure has room for requests that make the log grow."""

    size: int
    """Their bytes."""


class ReadValues(NamedTuple):
    """Read values from the disk, and hand the reads that failed to ``RequestBatch.values_read``.

    Nothing may come between that and the next step.
    """

    missing: Missing
    earlier: Iterable[Entry]
    """Entries whose values were read before, and are read again where they left memory."""


class RunScan(NamedTuple):
    """Carry out a scan, and hand its reply to ``RequestBatch.take_reply``."""

    scan: Scan


class TakeSnapshot(NamedTuple):
    """Take a snapshot, and hand the reply to ``RequestBatch.take_reply``."""

    request: Request


Step: TypeAlias = StepKind | WaitTurn | WaitRoom | ReadValues | RunScan | TakeSnapshot
