"""Items of a foreign journal, the same for every queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec


class Item(msgspec.Struct, frozen=True, gc=False):
    """Work that another queue has not done, as the entry that it becomes here.

    Reading the same journal again gives the same keys and timestamps: so importing it twice changes
    nothing the second time.
    """

    key: bytes
    """A journal key: domain, priority, the instant before which it must not start, id."""
    value: bytes
    timestamp: int
    """Instant of the write in microseconds; at least 1."""
    expires: int
    """Instant at which it vanishes; 0: never."""
    reason: str | None
    """Why it is buried; None: it waits."""
    path: str
    """The file that it stands in."""
    offset: int
    """Offset of its first byte in that file."""


class Fault(msgspec.Struct, frozen=True, gc=False):
    """A place in a journal that cannot be read."""

    path: str
    offset: int
    message: str
    damage: bool
    """Something is lost here; else it is what a killed server leaves at the end of its file."""


class Journal(Protocol):
    """A foreign journal that was read to its end: what is still to be done is known."""

    @property
    def count(self) -> int:
        """How many items there are, also expired ones."""

    @property
    def faults(self) -> list[Fault]:
        """Damaged places that could not be read."""

    def items(self) -> Iterator[Item]:
        """Yield the items in the order in which they were written, one value in memory at a time.

        Raises:
            LogError: A file can no longer be read.
        """
