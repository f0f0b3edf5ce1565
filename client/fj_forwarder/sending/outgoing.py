"""Outgoing record on its way to the daemon, and the outcomes of sending it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from fastjournal.errors import ProtocolError
from fastjournal.keys import looks_like_journal_key
from fastjournal.limits import PRIORITY_MAX
from fastjournal.protocol import Function, Reply, Request, decode_request
from fastjournal.spool.appending.spool_writer import WRITES
from fj_forwarder.sending.dispositions import Disposition
from fj_forwarder.storage.stretches import Settled

if TYPE_CHECKING:
    from fj_forwarder.storage.slot_file import SlotFile


class Outgoing(msgspec.Struct, gc=False):
    """Outgoing record. ``slot`` and ``offset`` say where the caller finds it."""

    slot: SlotFile
    offset: int
    frame: bytes
    function: int
    flags: int
    timestamp: int
    """Timestamp of the request: when it was written, by the writer's clock."""
    value_bytes: int = 0
    """Length of its value, without the type byte."""
    serial: int = 0
    epoch: int = 0
    """How many pauses of all there had been when it was sent."""
    tries: int = 0
    """How often it alone was put off."""
    losses: int = 0
    """On how many connections it had no reply when they ended."""
    was_suspect: bool = False
    """It was one when it was offered."""
    holds: int = 0
    """How often it was refused with all others, since it was read."""
    skewed_us: int = 0
    """When it was first refused as clock-skew; 0: never."""


class _Limits(msgspec.Struct):
    value_bytes_max: Annotated[int, msgspec.Meta(ge=1)]


class RecordOutcome(NamedTuple):
    """Disposition on a record: what to do with it."""

    record: Outgoing
    disposition: Disposition
    error: str
    """The reply's error; empty for success."""
    due_us: int = 0
    """When to offer it again; 0: it is still here (HOLD), or never."""


class Loss(NamedTuple):
    """Loss of a connection: what becomes of its records."""

    put_off: list[RecordOutcome]
    """Records that leave the engine."""
    stay: bool
    """The daemon is well: connect to it again, at once."""


def outgoing_of(slot: SlotFile, offset: int, frame: bytes) -> Outgoing | Settled:
    """Return the record to send, or why it is a dead letter.

    Args:
        slot: The slot that has it.
        offset: Where it starts there, in bytes.
        frame: Its bytes.
    """
    try:
        request = decode_request(frame)
    except ProtocolError as error:
        return Settled(error.code, error.message)
    refusal = _refusal_of(request)
    if refusal is not None:
        return refusal
    return Outgoing(
        slot,
        offset,
        frame,
        request.function,
        request.flags,
        request.timestamp,
        len(request.value),
    )


def _refusal_of(request: Request) -> Settled | None:
    """Return the reason for which a request is not sent; None: it is sent."""
    if request.function not in WRITES:
        return Settled("bad-request", f"function {request.function} is no write")
    is_work = request.function == Function.SET and request.second_key is not None
    if is_work and looks_like_journal_key(request.key):
        # the daemon would keep it as plain data, and say that it succeeded
        key = request.key.decode(errors="backslashreplace")
        return Settled(
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
