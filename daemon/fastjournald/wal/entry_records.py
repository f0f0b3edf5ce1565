"""Live-record index of the write-ahead log: the records that carry live entries. Pure.

It keeps the facts that compaction needs of each: job id, position and length of its record, and
what other records say about it.
"""

from __future__ import annotations

from fastjournal.cmdlog.format.layout import JOB_ID_BYTES, OFFSET_BITS
from fastjournal.cmdlog.format.packed_entry import FACTS_BYTES, pack_record, unpack_record
from fastjournald.tables.entry import NOTHING, Entry
from fastjournald.wal.live_capture import SEGMENT_SHIFT, LiveCapture
from fastjournald.wal.segment_usage import SegmentUsage


class EntryRecords:
    """Index of the records that carry live entries.

    Args:
        usage: Live bytes by segment, kept in step with it.
    """

    def __init__(self, usage: SegmentUsage) -> None:
        self._usage = usage
        self._segment = -1
        """The segment with the newest record of an entry."""
        self.live_bytes = 0
        """Bytes of the records that carry live entries."""
        self.amended: dict[bytes, Entry] = {}
        """Job id to the live entry about which there may be more records than its own."""
        self.superseded: dict[bytes, int] = {}
        """Job ids of entries worked on that a persistent SET superseded, to the timestamp of that
        SET, whose record says so; 0: their own record says it."""
        self.erasers: set[bytes] = set()
        """Job ids of live entries under whose key a tombstone stood, which is gone by them."""
        self.trimmed: dict[bytes, int] = {}
        """Job id to the bytes of the value in its record that still count, where TRUNCATE changed
        it; zero bytes follow."""
        self.capture: LiveCapture | None = None
        """Takes the live entries of a snapshot that is being written; None: none is."""

    def add(self, entry: Entry, position: int, size: int, *, erases: bool) -> None:
        """Take up the record that carries an entry from now on.

        Args:
            entry: Which; it has its job id.
            position: Position of the record.
            size: Size of the record.
            erases: Whether a tombstone under its key is gone by it.
        """
        entry.facts += pack_record(position >> 8, position & 0xFF, size)
        if erases:
            self.erasers.add(entry.job_id)
        segment = position >> OFFSET_BITS
        if segment != self._segment:
            self._segment = segment
            self._usage.begins(entry.job_id, segment)
        self._usage.live[segment] += size
        self.live_bytes += size

    def add_new(self, entries: list[Entry], positions: list[int], sizes: list[int]) -> None:
        """Take up the records of one append that carry new entries, at least one."""
        segment, size = positions[0] >> OFFSET_BITS, sum(sizes)
        if segment != self._segment:
            self._segment = segment
            self._usage.begins(entries[0].job_id, segment)
        self._usage.live[segment] += size
        self.live_bytes += size
        for entry, position, size in zip(entries, positions, sizes, strict=True):
            entry.facts += pack_record(position >> 8, position & 0xFF, size)

    def remove(self, entry: Entry) -> bytes:
        """Drop the record of an entry, which is dead; return the id of its job."""
        if self.capture is not None:
            self.capture.take_gone(entry)
        position, _, size = unpack_record(entry.facts, FACTS_BYTES)
        self.live_bytes -= size
        self._usage.live[position >> SEGMENT_SHIFT] -= size
        job_id = entry.run
        if job_id is None or len(job_id) != JOB_ID_BYTES:
            job_id = entry.job_id
        if self.erasers:
            self.erasers.discard(job_id)
        if self.trimmed:
            self.trimmed.pop(job_id, None)
        if self.amended.pop(job_id, None) is not None and self.superseded:
            self.superseded.pop(job_id, None)
        return job_id

    def amend(self, entry: Entry) -> bytes:
        """Note that another record tells of an entry; return the id of its job."""
        if entry.extra is NOTHING:
            # so few entries have to be looked up in ``amended``
            entry.own_times()
        job_id = entry.job_id
        self.amended[job_id] = entry
        return job_id

    def unrecorded_superseded(self) -> list[bytes]:
        """Return the jobs that were superseded and whose own records do not say so."""
        return [job_id for job_id, timestamp in self.superseded.items() if timestamp]
