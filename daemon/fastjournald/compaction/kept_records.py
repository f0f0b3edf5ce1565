"""The records that compaction keeps of one segment. Pure."""

from __future__ import annotations

from array import array

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER


class KeptRecords:
    """What stays of a segment."""

    def __init__(self) -> None:
        self.parts = [SEGMENT_HEADER]
        """Header and records."""
        self.size = len(SEGMENT_HEADER)
        """Bytes of all of them."""
        self.entries = array("Q")
        """Of each entry's record: start, body and end in the old segment, and start in this."""
        self.others: list[bytes] = []
        """The records that are no entry's."""
