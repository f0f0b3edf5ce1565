"""Kept records: what compaction leaves of one segment. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER

_FIELDS = 4


class KeptEntry(NamedTuple):
    """Offsets of the record of an entry."""

    start: int
    body: int
    end: int
    """In the segment as it was."""
    start_after: int
    """In the segment as it will be."""


class KeptRecords:
    """Header and records that stay of a segment, put together one by one.

    Attributes:
        parts: Header and records.
        size: Bytes of all of them.
        others: The records that are no entry's.
    """

    def __init__(self) -> None:
        self.parts = [SEGMENT_HEADER]
        self.size = len(SEGMENT_HEADER)
        self.others: list[bytes] = []
        self._entries = array("Q")
        """The fields of each ``KeptEntry``, one behind the other."""

    @property
    def has_entries(self) -> bool:
        """Whether one of the records is an entry's."""
        return self.entry_count > 0

    @property
    def entry_count(self) -> int:
        """How many of the records are entries'."""
        return len(self._entries) // _FIELDS

    @property
    def moved_bytes(self) -> int:
        """Bytes of those that a move appends: the first record tells of the segment before only."""
        return self.size - sum(map(len, self.parts[:2]))

    def entries(self) -> Iterator[KeptEntry]:
        """Yield the places of the records of entries."""
        for at in range(0, len(self._entries), _FIELDS):
            yield KeptEntry(*self._entries[at : at + _FIELDS])

    def add_entry(self, start: int, body: int, end: int, record: bytes) -> None:
        """Add the record of an entry, and from where it comes."""
        self._entries.extend((start, body, end, self.size))
        self.parts.append(record)
        self.size += len(record)

    def add(self, records: list[bytes]) -> None:
        """Add records that are no entry's."""
        self.others += records
        self.parts += records
        self.size += sum(map(len, records))
