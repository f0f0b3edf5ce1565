"""Taken records: read from their slots in one go, up to a count and a size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fastjournal.spool.reading.slot_window import Piece
    from fj_forwarder.storage.slot_file import SlotFile
    from fj_forwarder.storage.stretches import Stretch


class TakenRecord(NamedTuple):
    """Pending record, its slot, and the stretch that it waited in, if it did."""

    slot: SlotFile
    piece: Piece
    stretch: Stretch | None = None


class TakenRecords:
    """Records taken in one go, and how many records and bytes more there is room for."""

    def __init__(self, count: int, size: int) -> None:
        self.records: list[TakenRecord] = []
        self.count = count
        self.size = size

    @property
    def has_room(self) -> bool:
        """Whether more may be taken."""
        return self.count > 0 and self.size > 0

    def add(self, file: SlotFile, pieces: list[Piece], stretch: Stretch | None = None) -> None:
        """Take the records of a slot."""
        self.count -= len(pieces)
        self.size -= sum(len(piece.data) for piece in pieces)
        self.records += [TakenRecord(file, piece, stretch) for piece in pieces]
