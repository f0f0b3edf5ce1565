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
"""So many suspended slots, and unread ones, are asked for their size; those of all are taken to be
like them."""


class _Place(NamedTuple):
    """Place of a record, in the order of the slots."""

    start_s: int
    name: str
    path: str
    offset: int


class Backlog(NamedTuple):
    """Pending records of the slots."""

    slots: int
    outstanding: int
    """Records that were read and are in memory."""
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
    outstanding = unread_bytes = 0
    places: list[_Place] = []
    for file in begun:
        outstanding += file.outstanding
        unread_bytes += _measure(file, places)
    step = len(suspended) // _SAMPLES_MAX + 1
    sampled = suspended[::step]
    if sampled:
        sizes = sum(_measure(file, places) for file in sampled)
        unread_bytes += sizes * len(suspended) // len(sampled)
    waiting = (file for file in suspended if file.delayed)
    if first := min(waiting, key=_age, default=None):
        places.append(_Place(*_age(first), first.path, min(first.delayed.starts())))
    step = len(unread) // _SAMPLES_MAX + 1
    if names := unread[::step]:
        unread_bytes += sum(_size(slot.path) for slot in names) * len(unread) // len(names)
        slot = unread[-1]
        places.append(_Place(slot.start_s, slot.name, slot.path, FILE_HEADER_BYTES))
    slots = len(begun) + len(suspended) + len(unread)
    if not places:
        return Backlog(slots, outstanding, unread_bytes, None, None)
    _, name, path, offset = min(places)
    return Backlog(slots, outstanding, unread_bytes, name, _timestamp(path, offset))


def _age(file: SlotFile) -> tuple[int, str]:
    return file.start_s, file.name


def _measure(file: SlotFile, places: list[_Place]) -> int:
    """Add the first record of a slot that is not done; return the bytes that were not read."""
    size = _size(file.path)
    if (offset := _first_pending(file, size)) is not None:
        places.append(_Place(file.start_s, file.name, file.path, offset))
    return max(0, size - file.position)


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
