"""Outgoing record on its way to the daemon, and the outcomes of sending it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fj_forwarder.sending.dispositions import Disposition

if TYPE_CHECKING:
    from fj_forwarder.storage.slot_file import SlotFile


class Outgoing(msgspec.Struct, gc=False):
    """One record on its way. ``slot`` and ``offset`` say where the caller finds it."""

    slot: SlotFile
    offset: int
    frame: bytes
    function: int
    flags: int
    timestamp: int
    """Timestamp of the request: when it was written, by the writer's clock."""
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


class RecordOutcome(NamedTuple):
    """Disposition on a record: what to do with it."""

    record: Outgoing
    disposition: Disposition
    error: str
    """The reply's error; empty for success."""
    due_us: int = 0
    """When to offer it again; 0: it is still here (HOLD), or never."""


class Loss(NamedTuple):
    """Meaning of the end of a connection."""

    put_off: list[RecordOutcome]
    """Records that leave the engine."""
    stay: bool
    """The daemon is well: connect to it again, at once."""
