"""Log records that are no entry's: tombstones, pauses and limits of domains, segments. Pure.

It belongs to the journal (``wal.journal``).
"""

from __future__ import annotations

from fastjournal.cmdlog.format.operation_records import (
    Delivered,
    Erasure,
    Limit,
    Operation,
    Pause,
    SegmentRemoved,
    SegmentRewritten,
    SegmentStart,
    Tombstone,
)
from fastjournal.cmdlog.format.segments import OFFSET_BITS, SegmentInfo
from fastjournald.tables.domain_limits import DomainLimit
from fastjournald.wal.lease_journal import LeaseJournal
from fastjournald.wal.record_encoder import Append, RecordEncoder
from fastjournald.wal.segment_usage import SegmentUsage


class LogJournal:
    """Writes log records of tombstones, domains and segments.

    Args:
        append: Where the records go.
        encode: Encoder of the records.
        usage: Segment usage table.
        leases: Has the newest lease token, which each segment begins with.
    """

    def __init__(
        self, append: Append, encode: RecordEncoder, usage: SegmentUsage, leases: LeaseJournal
    ) -> None:
        self.append = append
        self._leases = leases
        self._encode = encode
        self._usage = usage

    # --- tombstones -----------------------------------------------------------------------------

    def tombstone(
        self, key: bytes, timestamp: int, now: int, *, deleted_us: int | None = None
    ) -> None:
        """A tombstone was left where no persistent entry stood, now or when ``deleted_us`` says."""
        at = now if deleted_us is None else deleted_us
        self._append_operation(Tombstone(key, timestamp), at, now)

    def tombstone_erased(self, key: bytes, now: int) -> None:
        """The tombstone under this key was removed."""
        self._append_operation(Erasure(key), now, now)

    def erasure_record(self, key: bytes, now: int) -> bytes:
        """Return the record that the tombstone under a key was removed."""
        return self._encode.operation(Erasure(key), now)

    # --- domains --------------------------------------------------------------------------------

    def paused(self, domain: bytes, until: int, now: int, *, again: bool = False) -> None:
        """A domain is paused until that instant; 0: no more. ``again``: the log says so already."""
        position = self._append_operation(Pause(domain, until, again), now, now)
        self._usage.paused(position >> OFFSET_BITS, domain, until)

    def limited(self, domain: bytes, limit: DomainLimit, now: int, *, again: bool = False) -> None:
        """A domain has these limits from now on. ``again``: the log says so already."""
        record = Limit(domain, limit.interval_us, limit.jobs, limit.lease_us, limit.attempts, again)
        position = self._append_operation(record, now, now)
        self._usage.limited(position >> OFFSET_BITS, domain)

    def delivered(self, domain: bytes, instant: int, now: int) -> None:
        """The last delivery of a domain was at that instant."""
        self._append_operation(Delivered(domain, instant), now, now)

    # --- segments -------------------------------------------------------------------------------

    def segment_start(self, previous: SegmentInfo | None, now: int) -> bytes:
        """Return the first record of a new segment; ``previous``: the one before it."""
        start = SegmentStart(
            0, self._leases.last_token, last_serial=self._encode.last_serial, bytes=0, crc32c=0
        )
        if previous is not None:
            start.previous, start.bytes = previous.number, previous.bytes
            start.crc32c = previous.crc32c
        return self._encode.operation(start, now)

    def segment_rewritten(
        self, number: int, size: int, crc32c: int, now: int, *, done: bool
    ) -> None:
        """A sealed segment is about to have this size and checksum, or has them."""
        record = SegmentRewritten(number, size, crc32c, done)
        self._usage.add_seal(number, self._append_operation(record, now, now) >> OFFSET_BITS)

    def segment_removed(self, number: int, now: int) -> None:
        """A segment is about to leave the disk, or has left it."""
        self._append_operation(SegmentRemoved(number), now, now)

    def _append_operation(self, operation: Operation, at: int, now: int) -> int:
        """Append the record of an operation of that instant; return its position."""
        return self.append(self._encode.operation(operation, at), 1, now)
