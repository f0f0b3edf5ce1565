"""Send window of a slot: its records in memory, and how many there may be.

A slot in which nothing can be erased is sent again at each start. So it has to prove that it can be
erased before more than a few of its records are on their way.
"""

from __future__ import annotations

from fastjournal.limits import FIRST_RECORDS_MAX


class SendWindow:
    """Send window of one slot."""

    __slots__ = ("may_send", "records", "refuses_erasure")

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        """Records that were returned, and are neither erased nor delayed since: offset, frame."""
        self.may_send: int | None = FIRST_RECORDS_MAX
        """Records that may be in memory; None: one was erased here, and any number may."""
        self.refuses_erasure = False
        """The last record that was to be erased could not be."""

    def allowance(self, count_max: int, *, first_max: int = FIRST_RECORDS_MAX) -> int:
        """Return how many of ``count_max`` records may be taken, to be sent.

        Args:
            count_max: At most so many.
            first_max: At most so many are in memory before one is erased.
        """
        if self.may_send is None:
            return count_max
        more = self.may_send - FIRST_RECORDS_MAX + first_max - len(self.records)
        return max(0, min(count_max, more))

    def evict(self, offset: int) -> None:
        """Drop the record at ``offset`` from memory; the caller delays it."""
        self.records.pop(offset, None)
        if self.may_send is not None:
            self.may_send += 1

    def open(self) -> None:
        """Allow any number of records: one was erased."""
        self.may_send, self.refuses_erasure = None, False

    def bar(self) -> None:
        """Allow few records: one could not be erased, and the caller delays that."""
        self.may_send, self.refuses_erasure = FIRST_RECORDS_MAX, True
