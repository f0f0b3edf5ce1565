"""Backlog of a spool: what is pending in its slots, for the status; reads no records but one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.format import (
    FILE_HEADER_BYTES,
    FRAME_HEAD_BYTES,
    HEAD_BYTES,
    frame_timestamp,
)
from fastjournal.spool.slots import SlotName, open_slot

if TYPE_CHECKING:
    from fj_forwarder.storage.slot_file import SlotFile

_SAMPLES_MAX: Final = 256
"""So many unread slots are asked for their size; those of all are taken to be like them."""


class Backlog(NamedTuple):
    """Pending records of the slots."""

    slots: int
    outstanding: int
    """Records that were read and are in memory."""
    unread_bytes: int
    oldest_slot: str | None
    oldest_pending_us: int | None


def measure_backlog(begun: Sequence[SlotFile], unread: Sequence[SlotName]) -> Backlog:
    """Return what is pending.

    Args:
        begun: Slots that were read, at least in part.
        unread: Slots that were not, oldest last.
    """
    outstanding = unread_bytes = 0
    oldest: tuple[int, str, str, int] | None = None
    for file in begun:
        outstanding += file.outstanding
        size = _size(file.path)
        unread_bytes += max(0, size - file.position)
        if (offset := _first_pending(file, size)) is not None:
            place = (file.start_s, file.name, file.path, offset)
            oldest = place if oldest is None else min(oldest, place)
    step = len(unread) // _SAMPLES_MAX + 1
    sampled = unread[::step]
    if sampled:
        unread_bytes += sum(_size(slot.path) for slot in sampled) * len(unread) // len(sampled)
        slot = unread[-1]
        place = (slot.start_s, slot.name, slot.path, FILE_HEADER_BYTES)
        oldest = place if oldest is None else min(oldest, place)
    slots = len(begun) + len(unread)
    if oldest is None:
        return Backlog(slots, outstanding, unread_bytes, None, None)
    _, name, path, offset = oldest
    return Backlog(slots, outstanding, unread_bytes, name, _timestamp(path, offset))


def _first_pending(file: SlotFile, size: int) -> int | None:
    """Return the offset of the first record of a slot of ``size`` bytes that is not done."""
    first = min(chain(file.window.records, file.delayed.starts()), default=None)
    return file.position if first is None and size > file.position else first


def _size(path: str) -> int:
    """Return the length of a file; 0 where it is gone, or hidden."""
    with contextlib.suppress(OSError):
        return os.stat(path, follow_symlinks=False).st_size
    return 0


def _timestamp(path: str, offset: int) -> int | None:
    """Return the timestamp of a record; None: it is gone, or there is none."""
    try:
        descriptor = open_slot(path, os.O_RDONLY)
    except SpoolFailedError:
        return None
    try:
        frame = os.pread(descriptor, FRAME_HEAD_BYTES, offset + HEAD_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return frame_timestamp(frame)
