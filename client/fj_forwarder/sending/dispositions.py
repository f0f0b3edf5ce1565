"""Dispositions: which records are sent, and the effect of a reply; the table of docs/spool.md."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, NamedTuple

import msgspec

from fastjournal.errors import ProtocolError
from fastjournal.keys import looks_like_journal_key
from fastjournal.limits import PRIORITY_MAX
from fastjournal.protocol import Reply, Request, decode_request
from fastjournal.protocol.constants import ErrorCode, Flag, Function
from fastjournal.spool.appending.spool_writer import WRITES
from fj_forwarder.storage.slot_file import SpoolRecord, Verdict

OVERWRITE: Final = int(Flag.OVERWRITE)

SKEW_PATIENCE_US: Final = 3_600_000_000
"""Time for which a record refused as clock-skew is kept: clocks are set right in it, or never."""


class Disposition(Enum):
    """Action for a record after a reply."""

    DONE = "done"
    """Erased: the requested state exists, or newer work replaces it."""
    DEAD = "dead"
    """Buried in dead/, then erased: no daemon will ever take it."""
    LATER = "later"
    """Delayed; the others go on."""
    SKEWED = "skewed"
    """LATER for an hour, then DEAD."""
    HOLD = "hold"
    """Kept; the daemon refuses everything for now, so the whole delivery pauses."""
    SUSPECT = "suspect"
    """Delayed, and sent alone: the daemon ended a connection on which it alone had no reply."""
    PASSED = "passed"
    """Delayed and not sent: skipped in search of records at which connections do not end."""


_BY_CODE: Final = {str(code): Disposition[code.effect.name] for code in ErrorCode}
CLOSING: Final = frozenset(code for code in ErrorCode if code.closes)


def disposition_of(code: str, function: int, flags: int) -> Disposition:
    """Return what the error code ``code`` (empty: success) means for a request.

    A code that this version does not know delays the record, and not the others.
    """
    found = _BY_CODE.get(code)
    if not code:
        return Disposition.DONE
    if code == "exists" and function == Function.SET and not flags & OVERWRITE:
        return Disposition.DONE
    if code == "not-found" and function == Function.DELETE:
        return Disposition.DONE  # the daemon keeps the tombstone all the same
    if found is not None:
        return found
    if code.startswith("auth-"):
        return Disposition.HOLD
    return Disposition.DEAD if code.startswith("bad-") else Disposition.LATER


class RecordOutcome(NamedTuple):
    """Outcome of a record: what the caller does with it."""

    record: SpoolRecord
    disposition: Disposition
    error: str
    """The reply's error; empty for success."""
    due_us: int = 0
    """When to offer it again; 0: it is still here (HOLD), or never."""


class Loss(NamedTuple):
    """Loss of a connection: the outcome of its records."""

    put_off: list[RecordOutcome]
    """Records that leave the engine."""
    stay: bool
    """The daemon is healthy: connect to it again, at once."""


class _Limits(msgspec.Struct):
    value_bytes_max: Annotated[int, msgspec.Meta(ge=1)]


def parse_record(record: SpoolRecord) -> Verdict | None:
    """Fill in what the engine needs of the request of a record; return why it is a dead letter."""
    try:
        request = decode_request(record.frame)
    except ProtocolError as error:
        return Verdict(error.code, error.message)
    record.function, record.flags = request.function, request.flags
    record.timestamp, record.value_bytes = request.timestamp, len(request.value)
    return _refusal_of(request)


def _refusal_of(request: Request) -> Verdict | None:
    """Return the reason for which a request is not sent; None: it is sent."""
    if request.function not in WRITES:
        return Verdict("bad-request", f"function {request.function} is no write")
    is_work = request.function == Function.SET and request.second_key is not None
    if is_work and looks_like_journal_key(request.key):
        # the daemon would keep it as plain data, and say that it succeeded
        key = request.key.decode(errors="backslashreplace")
        return Verdict(
            "bad-key",
            f"{key!r} has a URI and is no journal key <domain>:<priority>:<not before>:<id>: the"
            f" priority is 0 to {PRIORITY_MAX}, a colon in the domain is %3A; no worker would get"
            " it",
        )
    return None


def value_limit(reply: Reply) -> int | None:
    """Return the largest value that a daemon takes, in bytes, by its reply to a NOP with META.

    None: the reply has no such limit.
    """
    if not reply.pairs:
        return None
    try:
        return msgspec.json.decode(reply.pairs[0].value, type=_Limits).value_bytes_max
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # the daemon itself says then what it does not take
