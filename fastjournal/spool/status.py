"""Status of a spool: slots, pending and erased records, damage, dead pieces, the forwarder."""

from __future__ import annotations

import fcntl
import os

import msgspec

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.dead import DeadDirectory
from fastjournal.spool.format import frame_timestamp
from fastjournal.spool.reading.slot_reader import SlotReader
from fastjournal.spool.reading.slot_window import PieceKind
from fastjournal.spool.slots import LOCK_NAME, Slot, list_slots, spool_failed, survey

_PIECES = 4096
"""Where a frame has its timestamp."""


class SlotStatus(msgspec.Struct, frozen=True):
    """Status of one slot."""

    name: str
    start_s: int
    """Instant of its start, in seconds."""
    size: int
    allocated: int
    """Bytes on the disk: its length without holes."""
    pending: int
    pending_bytes: int
    """Bytes of the pending frames."""
    erased: int
    """Erased records; a run whose space was released counts as one."""
    damaged_bytes: int
    """Bytes that are no record and were not put aside yet."""
    waiting_bytes: int
    """Bytes at the end that are no whole record yet."""
    oldest_pending_us: int | None
    """Instant of the oldest pending write."""


class UnreadableSlot(msgspec.Struct, frozen=True):
    """Slot that cannot be read."""

    name: str
    path: str
    error: str
    """Why, in a sentence."""


class SpoolStatus(msgspec.Struct, frozen=True):
    """Status of a whole spool."""

    directory: str
    slots: list[SlotStatus]
    """Oldest first."""
    dead: int
    """Pieces in dead/."""
    forwarder_running: bool
    ignored: list[str] = []
    """Names of what lies there and is nothing of a spool, at most IGNORED_NAMES_MAX of them."""
    ignored_count: int = 0
    """How many there are."""
    unreadable: list[UnreadableSlot] = []
    """Slots that cannot be read, oldest first; they are not in ``slots``."""

    @property
    def pending(self) -> int:
        """Records that wait to be sent."""
        return sum(slot.pending for slot in self.slots)

    @property
    def oldest_pending_us(self) -> int | None:
        """Instant of the oldest pending write; None: nothing is pending."""
        return min(
            (slot.oldest_pending_us for slot in self.slots if slot.oldest_pending_us is not None),
            default=None,
        )


def spool_status(directory: str | os.PathLike[str], *, strict: bool = True) -> SpoolStatus:
    """Return what is in a spool; reads all of its slots, changes nothing.

    Args:
        directory: The spool.
        strict: Raise the error of the first slot that cannot be read; False: name such slots in
            ``unreadable``, and read the others.

    Raises:
        SpoolFailedError: It, or with ``strict`` one of its slots, cannot be read.
    """
    slots: list[SlotStatus] = []
    unreadable: list[UnreadableSlot] = []
    for slot in list_slots(directory):
        try:
            slots.append(_slot_status(slot))
        except SpoolFailedError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                continue  # sent and deleted since the directory was read
            if strict:
                raise
            unreadable.append(UnreadableSlot(slot.name, slot.path, _sentence(error)))
    found = survey(directory)
    return SpoolStatus(
        os.fspath(directory),
        slots,
        DeadDirectory(directory).count(),
        is_forwarder_running(directory),
        found.ignored,
        found.ignored_count,
        unreadable,
    )


def _sentence(error: SpoolFailedError) -> str:
    return error.message if error.hint is None else f"{error.message} ({error.hint})"


def is_forwarder_running(directory: str | os.PathLike[str]) -> bool:
    """Whether a forwarder holds the lock of this spool.

    Raises:
        SpoolFailedError: The lock's file cannot be opened.
    """
    path = os.path.join(directory, LOCK_NAME)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)  # a FIFO of this name is not waited for
    except FileNotFoundError:
        return False
    except OSError as error:
        raise spool_failed("open", path, error) from error
    try:
        # Shared, so that two who ask at once do not take each other for a forwarder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _slot_status(slot: Slot) -> SlotStatus:
    counts = dict.fromkeys(PieceKind, 0)
    sizes = dict.fromkeys(PieceKind, 0)
    oldest: int | None = None
    with SlotReader(slot.path) as reader:
        while pieces := reader.read(_PIECES):
            for piece in pieces:
                counts[piece.kind] += 1
                is_damage = piece.kind is PieceKind.DAMAGE
                sizes[piece.kind] += piece.end - piece.offset if is_damage else len(piece.data)
                if piece.kind is PieceKind.PENDING:
                    stamp = frame_timestamp(piece.data)
                    if stamp is not None:
                        oldest = stamp if oldest is None else min(oldest, stamp)
        waiting = reader.waiting_bytes
    return SlotStatus(
        slot.name,
        slot.start_s,
        slot.size,
        slot.allocated,
        counts[PieceKind.PENDING],
        sizes[PieceKind.PENDING],
        counts[PieceKind.ERASED],
        sizes[PieceKind.DAMAGE],
        waiting,
        oldest,
    )
