"""Segment filter: finds the live records of a sealed segment, in slices; the kept records. Pure.

Each record is checked once, from the first to the last, by the rules of ``compaction.liveness``.
``assemble`` checks the kept ones again at the end: an entry may have been removed or copied forward
since. This is safe if everything appended is durable before the segment is replaced.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fastjournal.cmdlog.format.layout import CRC_BYTES, SEGMENT_HEADER
from fastjournal.cmdlog.format.records import entry_key, is_operation, job_id_at
from fastjournal.cmdlog.recovery.scan import scan_piece
from fastjournal.errors import LogCorruptError
from fastjournal.limits import FILTERED_BYTES_MAX, FILTERED_RECORDS_MAX
from fastjournald.compaction.liveness import SCHEDULE, Liveness

if TYPE_CHECKING:
    from fastjournald.tables.entry import Entry


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
        """The fields of all ``KeptEntry`` records, flattened."""

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
        """Bytes that a move appends: the first record is not copied."""
        return self.size - sum(map(len, self.parts[:2]))

    def entries(self) -> Iterator[KeptEntry]:
        """Yield the places of the records of entries."""
        for at in range(0, len(self._entries), _FIELDS):
            yield KeptEntry(*self._entries[at : at + _FIELDS])

    def add_entry(self, start: int, body: int, end: int, record: bytes) -> None:
        """Add the record of an entry, and its former offset."""
        self._entries.extend((start, body, end, self.size))
        self.parts.append(record)
        self.size += len(record)

    def add(self, records: list[bytes]) -> None:
        """Add records that are no entry's."""
        self.others += records
        self.parts += records
        self.size += sum(map(len, records))


class SegmentFilter:
    """Filters the records of one sealed segment: those that are still live stay.

    Args:
        data: The segment.
        liveness: Decides for each record, and says what else has to be done for those that go.

    Attributes:
        data: The segment.
        liveness: As given.
        kept: Records that ``assemble`` puts together.
    """

    def __init__(self, data: bytes, liveness: Liveness) -> None:
        self.data = data
        self.liveness = liveness
        self.kept = KeptRecords()
        self._at = len(SEGMENT_HEADER)
        self._spans = array("Q")
        """Start, body and end of each kept record, flattened."""

    @property
    def done(self) -> bool:
        """Whether every record was checked."""
        return self._at >= len(self.data)

    @property
    def all_stays(self) -> bool:
        """Whether no record is dropped, after the last check."""
        return self.kept.size == len(self.data) and not self.liveness.replaced

    def step(self, now: int) -> None:
        """Look at the next records.

        Raises:
            LogCorruptError: The segment is damaged: it has to stay as it is.
        """
        data = self.data
        start = self._at
        run = scan_piece(data, start, start + FILTERED_BYTES_MAX)
        if not len(run):
            raise LogCorruptError("there is no valid record", offset=start)
        keep = self._spans.extend
        stays = self.liveness.stays
        try:
            for body, end in zip(run.bodies, run.ends, strict=True):
                if stays(start, body, end, now):
                    keep((start, body, end))
                start = end
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            raise LogCorruptError(f"a record cannot be read: {error}", offset=start) from error
        self._at = start

    # --- kept records -----------------------------------------------------------------------------

    def assemble(self, now: int) -> Iterator[None]:
        """Put together what stays, a part at a time; in the end ``kept`` is all of it."""
        spans = self._spans
        for at in range(0, len(spans), 3):
            start, body, end = spans[at : at + 3]
            self._keep(start, body, end, now)
            if at % (3 * FILTERED_RECORDS_MAX) == 0:
                yield

    def _keep(self, start: int, body: int, end: int, now: int) -> None:
        data, kept = self.data, self.kept
        replaced = self.liveness.replaced
        if start not in replaced:
            if data[body] > SCHEDULE or is_operation(data, body):
                kept.add([data[start:end]])
                return
            if self.entry_at(start, body, end) is not None:
                kept.add_entry(start, body, end, data[start:end])
                return
            # since it was checked
            key = entry_key(data, start, body, end - CRC_BYTES)
            if key is None or not self.liveness.needs_erasure(start, body, end, key, now):
                return
        kept.add(replaced[start])

    def entry_at(self, start: int, body: int, end: int) -> Entry | None:
        """Return the entry that this record carries; None: it carries none any more."""
        key = entry_key(self.data, start, body, end - CRC_BYTES)
        return None if key is None else self.liveness.live_entry(job_id_at(self.data, body), key)
