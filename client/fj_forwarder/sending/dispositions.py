"""Dispositions: the effect of a reply on the record that was sent; the table of docs/spool.md."""

from __future__ import annotations

from enum import Enum
from typing import Final

from fastjournal.protocol.constants import Flag, Function

OVERWRITE: Final = int(Flag.OVERWRITE)

SKEW_PATIENCE_US: Final = 3_600_000_000
"""So long a record refused as clock-skew is kept: clocks are set right within an hour, or never."""


class Disposition(Enum):
    """Action for a record after a reply."""

    DONE = "done"
    """Erased: what it asked for is so, or newer work stands for it."""
    DEAD = "dead"
    """To dead/, then erased: no daemon will ever take it."""
    LATER = "later"
    """Kept; it alone is tried again after a pause."""
    SKEWED = "skewed"
    """As LATER for an hour, then DEAD."""
    HOLD = "hold"
    """Kept; the daemon takes nothing at the moment, so all wait."""
    SUSPECT = "suspect"
    """Kept; the daemon ended a connection on which it alone had no reply. Tried alone, rarely."""
    PASSED = "passed"
    """Kept, not sent: passed over in search of records at which connections do not end."""


_BY_CODE: Final = {
    "": Disposition.DONE,
    "stale": Disposition.DONE,
    "too-large": Disposition.DEAD,
    "type-mismatch": Disposition.DEAD,
    "unknown-function": Disposition.DEAD,
    "overflow": Disposition.DEAD,
    "lease-lost": Disposition.DEAD,
    "not-owner": Disposition.DEAD,
    "not-found": Disposition.DEAD,
    "exists": Disposition.DEAD,
    "clock-skew": Disposition.SKEWED,
    "locked": Disposition.LATER,
    "worked-on": Disposition.LATER,
    "forbidden": Disposition.LATER,
    "read-only": Disposition.HOLD,
    "not-persisted": Disposition.HOLD,
    "busy": Disposition.HOLD,
    "shutting-down": Disposition.HOLD,
    "auth-required": Disposition.HOLD,
    "auth-failed": Disposition.HOLD,
    "unsupported-version": Disposition.HOLD,
}


CLOSING: Final = frozenset(
    {
        "bad-request",
        "too-large",
        "unsupported-version",
        "busy",
        "shutting-down",
        "auth-required",
        "auth-failed",
    }
)
"""After these a daemon may close the connection: for what the reply says, and for no fault of what
was sent behind."""


def disposition_of(code: str, function: int, flags: int) -> Disposition:
    """Return what the error code ``code`` (empty: success) means for a request.

    A code that this version does not know keeps the record, and lets the others pass.
    """
    found = _BY_CODE.get(code)
    if code == "exists" and function == Function.SET and not flags & OVERWRITE:
        return Disposition.DONE
    if code == "not-found" and function == Function.DELETE:
        return Disposition.DONE  # the tombstone is left all the same
    if found is not None:
        return found
    if code.startswith("auth-"):
        return Disposition.HOLD
    return Disposition.DEAD if code.startswith("bad-") else Disposition.LATER
