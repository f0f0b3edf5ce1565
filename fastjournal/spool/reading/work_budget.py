"""Work budget: bound on the work that damage and dead letters may cause in one turn."""

from __future__ import annotations

import math
from typing import Final

PIECE_UNITS: Final = 200
"""Work of a piece that is read: a slot may have erased records by the million."""

OPENING_UNITS: Final = 16 * 1024
"""Work of a slot that is opened in vain: it gives no record."""


class WorkBudget:
    """Budget of work: units that are left, about one for each byte that is searched.

    Args:
        units: How many there are.
    """

    __slots__ = ("_units", "left")

    def __init__(self, units: float = math.inf) -> None:
        self._units = self.left = units

    @property
    def is_spent(self) -> bool:
        """Whether the rest has to wait."""
        return self.left <= 0

    def spend(self, units: float) -> None:
        """Note work that was done."""
        self.left -= units

    def refill(self) -> None:
        """Begin anew."""
        self.left = self._units
