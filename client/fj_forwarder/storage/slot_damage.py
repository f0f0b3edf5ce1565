"""Damage of a slot file: why it goes to dead/, and the blank that is written over it then.

Killed between the two, it is found and put aside again, under the same name.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.format import CRC_BYTES, RECORD_BYTES_MAX, RECORD_OVERHEAD, blank_ends
from fj_forwarder.storage.slot_content import SlotOverwrittenError

if TYPE_CHECKING:
    from fastjournal.spool.reading.slot_window import Piece
    from fj_forwarder.storage.slot_content import SlotContent

log = logging.getLogger("fj_forwarder")

SENTENCES: Final = {
    "torn": "a torn write",
    "damaged": "bytes that are no whole record",
    "zeros": "a run of zero bytes, of which no copy is kept",
}
"""Why damage is in dead/, by its code."""


def damage_code(piece: Piece, *, is_torn: bool) -> str:
    """Return the code of a piece of damage.

    Args:
        piece: The damage.
        is_torn: No write to it is under way any more.
    """
    return "zeros" if piece.is_zeros else "torn" if is_torn else "damaged"


def can_be_blanked(piece: Piece) -> bool:
    """Whether a piece of damage has the length of a record; else it is found at each start."""
    return RECORD_OVERHEAD <= piece.end - piece.offset <= RECORD_BYTES_MAX


def blank_damage(descriptor: int, path: str, piece: Piece, content: SlotContent) -> None:
    """Make damage that was put aside an erased record.

    Args:
        descriptor: The slot.
        path: Its path.
        piece: The damage.
        content: Compares the bytes with those that were read.

    Raises:
        SlotOverwrittenError: Another content is there by now.
    """
    # Zero bytes: with the damage as its frame it would have a CRC that fits, and if the power
    # took back the first byte alone, it would be a pending record, and be sent.
    size = piece.end - piece.offset
    head, crc = blank_ends(size)
    blank = head if piece.is_zeros else head + bytes(size - RECORD_OVERHEAD) + crc
    try:
        if not content.check_bytes(descriptor, piece.offset, piece.data):
            return  # what is left of it is found at the next start
        os.pwrite(descriptor, blank, piece.offset)
        if piece.is_zeros:
            os.pwrite(descriptor, crc, piece.end - CRC_BYTES)
    except SlotOverwrittenError:
        raise
    except (OSError, SpoolFailedError) as error:
        # Not raised: what was read with it would never be sent. After a restart it is found
        # and put aside under the same name.
        log.warning("%s: damage at offset %d was not erased: %s", path, piece.offset, error)
