"""Items of a foreign journal, the same for every queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import msgspec

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that were read, and those that there are."""
_PROGRESS_RECORDS = 100_000
"""Records between two calls: a quarter of a second."""


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


class ForeignRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a foreign journal, for people."""

    path: str
    offset: int
    size: int
    fields: dict[str, Any]
    value: bytes | None
    """Body or item; None: the record has none."""


class QueueFacts(msgspec.Struct, frozen=True, gc=False):
    """A queue, and what holds for its work as a whole."""

    domain: bytes
    items: int
    ttr_us: tuple[int, int, int] | None = None
    """Least, median and largest time to run of its jobs; None: the format tells none."""
    attempts: int = 0
    """Largest number of attempts that its jobs have; 0: the format tells none."""
    others: int = 0
    """Jobs whose times to run or attempts differ from these largest ones."""


class ReadProgress:
    """Tells how far reading has come, not too often."""

    def __init__(self, size: int, tell: OnProgress | None) -> None:
        self._size = size
        self._tell = tell
        self._done = 0
        self._records = 0

    def add(self, size: int) -> None:
        """Count a record of so many bytes."""
        self._done += size
        self._records += 1
        if self._tell is not None and self._records % _PROGRESS_RECORDS == 0:
            self._tell(self._done, self._size)


class ForeignJournal(Protocol):
    """A foreign journal that was read to its end: what is still to be done is known."""

    @property
    def count(self) -> int:
        """How many items there are, also expired ones."""

    @property
    def faults(self) -> list[Fault]:
        """Damaged places that could not be read."""

    @property
    def queues(self) -> list[QueueFacts]:
        """Queues with items."""

    @property
    def not_carried(self) -> dict[str, int]:
        """Facts that an entry does not hold, and how many items had each."""

    def items(self) -> Iterator[Item]:
        """Yield the items in the order in which they were written, one value in memory at a time.

        Raises:
            LogError: A file can no longer be read.
        """
