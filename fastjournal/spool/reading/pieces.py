"""Piece of a slot: a record, an erased record, or damage."""

from __future__ import annotations

from enum import Enum

import msgspec


class PieceKind(Enum):
    """Kind of a piece of a slot."""

    PENDING = "pending"
    ERASED = "erased"
    DAMAGE = "damage"


class Piece(msgspec.Struct, gc=False, frozen=True):
    """Piece of a slot: its bytes ``offset`` to ``end``."""

    kind: PieceKind
    offset: int
    end: int
    data: bytes
    """The frame of a pending record, the raw bytes of damage; empty for an erased record, and for
    a run of zero bytes."""

    @property
    def is_zeros(self) -> bool:
        """Whether this is damage of nothing but zero bytes, and without a copy of them."""
        return self.kind is PieceKind.DAMAGE and not self.data
