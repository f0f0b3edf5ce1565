"""Backlog of a spool: what is pending in its slots, for the status; reads no records but one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
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
"""Suspended slots, and unread ones, whose size is asked for; the others are taken to be alike."""


class Backlog(NamedTuple):
    """Pending records of the slots."""

    slots: int
    outstanding: int
    """Records that are in memory."""
    unread_bytes: int
    oldest_slot: str | None
    oldest_pending_us: int | None


def measure_backlog(
    begun: Sequence[SlotFile], suspended: Sequence[SlotFile], unread: Sequence[SlotName]
) -> Backlog:
    """Return what is pending.

    Args:
        begun: Slots that are open, few.
        suspended: Slots that were read and closed.
        unread: Slots that were not begun, oldest last.
    """
    places: list[tuple[int, str, str, int]] = []
    """Start, name and path of a slot, and the offset of its first record that is not done."""

    def add(file: SlotFile) -> int:
        size = _size(file.path)
        first = min(chain(file.records, (retry.start for retry in file.delayed)), default=None)
        if first is None and size > file.position:
            first = file.position
        if first is not None:
            places.append((file.start_s, file.name, file.path, first))
        return max(0, size - file.position)

    unread_bytes = sum(map(add, begun))
    sampled = suspended[:: len(suspended) // _SAMPLES_MAX + 1]
    if sampled:
        unread_bytes += sum(map(add, sampled)) * len(suspended) // len(sampled)
        waiting = [file for file in suspended if file.delayed]
        if waiting:
            add(min(waiting, key=attrgetter("start_s", "name")))
    names = unread[:: len(unread) // _SAMPLES_MAX + 1]
    if names:
        unread_bytes += sum(_size(slot.path) for slot in names) * len(unread) // len(names)
        slot = unread[-1]
        places.append((slot.start_s, slot.name, slot.path, FILE_HEADER_BYTES))
    slots = len(begun) + len(suspended) + len(unread)
    outstanding = sum(len(file.records) for file in begun)
    if not places:
        return Backlog(slots, outstanding, unread_bytes, None, None)
    _, name, path, offset = min(places)
    return Backlog(slots, outstanding, unread_bytes, name, _timestamp(path, offset))


def _size(path: str) -> int:
    """Return the length of a file; 0 where it is deleted, or hidden."""
    with contextlib.suppress(OSError):
        return os.stat(path, follow_symlinks=False).st_size
    return 0


def _timestamp(path: str, offset: int) -> int | None:
    """Return the timestamp of a record; None: it is deleted, or there is none."""
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
