"""Verdicts: the effect of a reply on the record that was sent; the table of docs/spool.md."""

from __future__ import annotations

from enum import Enum
from typing import Final

from fastjournal.protocol.constants import Flag, Function

OVERWRITE: Final = int(Flag.OVERWRITE)

SKEW_PATIENCE_US: Final = 3_600_000_000
"""So long a record refused as clock-skew is kept: clocks are set right within an hour, or never."""


class Verdict(Enum):
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
    "": Verdict.DONE,
    "stale": Verdict.DONE,
    "too-large": Verdict.DEAD,
    "type-mismatch": Verdict.DEAD,
    "unknown-function": Verdict.DEAD,
    "overflow": Verdict.DEAD,
    "lease-lost": Verdict.DEAD,
    "not-owner": Verdict.DEAD,
    "not-found": Verdict.DEAD,
    "exists": Verdict.DEAD,
    "clock-skew": Verdict.SKEWED,
    "locked": Verdict.LATER,
    "worked-on": Verdict.LATER,
    "forbidden": Verdict.LATER,
    "read-only": Verdict.HOLD,
    "not-persisted": Verdict.HOLD,
    "busy": Verdict.HOLD,
    "shutting-down": Verdict.HOLD,
    "auth-required": Verdict.HOLD,
    "auth-failed": Verdict.HOLD,
    "unsupported-version": Verdict.HOLD,
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


def verdict(code: str, function: int, flags: int) -> Verdict:
    """Return what the error code ``code`` (empty: success) means for a request.

    A code that this version does not know keeps the record, and lets the others pass.
    """
    found = _BY_CODE.get(code)
    if code == "exists" and function == Function.SET and not flags & OVERWRITE:
        return Verdict.DONE
    if code == "not-found" and function == Function.DELETE:
        return Verdict.DONE  # the tombstone is left all the same
    if found is not None:
        return found
    if code.startswith("auth-"):
        return Verdict.HOLD
    return Verdict.DEAD if code.startswith("bad-") else Verdict.LATER
