"""Which records of a sealed segment still matter, found out in slices. Pure.

Every record is looked at once, from the first to the last. The rules: ``compaction.liveness``.
What is found is taken up again at the end, by ``assemble``: an entry may have gone, or have been
restated meanwhile. That is safe as long as everything appended is durable before the segment is
replaced.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    FIELDS_AT,
    JOB_ID_AT,
    SEGMENT_HEADER,
    SHORT_FIELD_AT,
)
from fastjournal.cmdlog.format.partial_decode import (
    OPERATION_HEAD,
    entry_key,
    is_operation,
    plain_head,
)
from fastjournal.cmdlog.recovery.scan import scan_piece
from fastjournal.errors import LogCorruptError
from fastjournal.limits import SIFTED_BYTES_MAX, SIFTED_RECORDS_MAX
from fastjournald.compaction.kept_records import KeptRecords
from fastjournald.compaction.liveness import REMOVALS, SCHEDULE, Judging

if TYPE_CHECKING:
    from fastjournald.engine.store import Store
    from fastjournald.tables.entry import Entry


class Sifting(Judging):
    """The records of one sealed segment that still matter.

    Args:
        store: What the daemon knows.
        number: Of the segment.
        data: The segment.
        present: Numbers of all sealed segments on the disk.
        active: That of the segment that is appended to.

    Attributes:
        left: What ``assemble`` puts together.
    """

    def __init__(
        self, store: Store, number: int, data: bytes, present: frozenset[int], active: int
    ) -> None:
        super().__init__(store, number, data, present, active)
        self.left = KeptRecords()
        self._at = len(SEGMENT_HEADER)
        self._kept = array("Q")
        """Start, body and end of each record that stays, one behind the other."""

    @property
    def done(self) -> bool:
        """Whether every record was looked at."""
        return self._at >= len(self.data)

    @property
    def all_stays(self) -> bool:
        """Whether nothing goes, as it turns out in the end."""
        return self.left.size == len(self.data) and not self._replaced

    def step(self, now: int) -> None:
        """Look at the next records.

        Raises:
            LogCorruptError: The segment is damaged: it has to stay as it is.
        """
        data = self.data
        start = self._at
        run = scan_piece(data, start, start + SIFTED_BYTES_MAX)
        if not len(run):
            raise LogCorruptError("there is no valid record", offset=start)
        keep = self._kept.extend
        find, past, blocking = self._store.find, self._past, self._blocking
        amended = self._store.journal.records.amended
        segment_of = self._store.journal.usage.segment_of
        try:
            for body, end in zip(run.bodies, run.ends, strict=True):
                command = data[body]
                job_id = data[body + JOB_ID_AT : body + FIELDS_AT]
                # what most records are, without a call; ``_stays`` would say the same
                stays = None
                if command in REMOVALS:
                    number = segment_of(job_id)
                    if number in past:
                        stays = False
                    elif number in blocking:
                        stays = True
                elif command <= SCHEDULE and not data.startswith(OPERATION_HEAD, body + FIELDS_AT):
                    head = plain_head(data, body + SHORT_FIELD_AT + data[body + FIELDS_AT])
                    if head is not None:
                        at = head.end()
                        key = data[at : at + data[at - 1]]
                        entry = find(key)
                        if entry is None or entry.job_id != job_id:
                            stays = None if job_id in amended else False
                        elif not entry.expires:
                            stays = True
                if self._stays(start, body, end, now) if stays is None else stays:
                    keep((start, body, end))
                start = end
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            raise LogCorruptError(f"a record cannot be read: {error}", offset=start) from error
        self._at = start

    # --- what is left -----------------------------------------------------------------------------

    def assemble(self, now: int) -> Iterator[None]:
        """Put together what stays, a part at a time; in the end ``left`` is all of it."""
        data = self.data
        left = self.left
        kept = self._kept
        for at in range(0, len(kept), 3):
            start, body, end = kept[at : at + 3]
            records = self._replaced.get(start)
            if records is not None:
                left.others += records
            else:
                records = [data[start:end]]
                if data[body] > SCHEDULE or is_operation(data, body):
                    left.others += records
                elif self.entry_at(start, body, end) is None:
                    # since it was looked at
                    key = entry_key(data, start, body, end - CRC_BYTES)
                    if key is None or not self._forgets(start, body, end, key, now):
                        continue
                    records = self._replaced[start]
                    left.others += records
                else:
                    left.entries.extend((start, body, end, left.size))
            left.parts += records
            left.size += sum(map(len, records))
            if at % (3 * SIFTED_RECORDS_MAX) == 0:
                yield

    def entry_at(self, start: int, body: int, end: int) -> Entry | None:
        """Return the entry that this record carries; None: it carries none any more."""
        key = entry_key(self.data, start, body, end - CRC_BYTES)
        return None if key is None else self._live(self.data[body + 1 : body + 17], key)
