"""Writer of workq command logs: jobs of workq's own, with the value as payload."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

from fastjournal.cmdlog.format.layout import NO_TIME, SEGMENT_HEADER, Command
from fastjournal.cmdlog.format.records import encode_head, encode_job, encode_result, encode_time
from fastjournal.cmdlog.format.segments import segment_name
from fastjournal.cmdlog.format.workq import (
    TTL_MS_MAX,
    TTR_MS_MAX,
    is_job_id,
    make_job_id,
    workq_name,
    workq_priority,
    workq_ttl_ms,
    workq_ttr_ms,
)
from fastjournal.foreign.journal_files import JournalFiles
from fastjournal.foreign.names import FittedName
from fastjournal.foreign.queue_names import QueueNames
from fastjournal.foreign.snapshot_entries import SnapshotEntry
from fastjournal.limits import LOG_PAYLOAD_BYTES_MAX, SEGMENT_BYTES_MAX

_JOB_ID_DIGITS = 32


def _fit(domain: bytes) -> FittedName:
    name = workq_name(domain)
    return FittedName(name, name == domain)


class WorkqWriter:
    """Writes entries as add and schedule records, and a fail record for each buried one.

    workq counts the life of an added job from its creation, and orders jobs of one priority and
    scheduled time by their creation. So all are created at the export, a nanosecond after the job
    before. The instant of an entry that is due is the TIME of its record, at which workq does not
    look and from which an import takes it. A job whose entry came from workq keeps its id.
    """

    def __init__(self, files: JournalFiles, now_us: int, not_carried: Counter[str]) -> None:
        self._files = files
        self._now_us = now_us
        self._time = encode_time(now_us)
        self._jobs = 0
        self._not_carried = not_carried
        self._names = QueueNames(_fit, not_carried)
        self._ids: set[bytes] = set()

    def leaves_out(self, entry: SnapshotEntry) -> str | None:
        """Return the kind of entries that are left out and that this is one of; None: it is not."""
        return "values_too_large" if len(entry.value) > LOG_PAYLOAD_BYTES_MAX else None

    def add(self, entry: SnapshotEntry) -> None:
        """Write an entry."""
        self._names.enter(entry.domain)
        later_us, nanoseconds = divmod(self._jobs, 1000)
        self._jobs += 1
        created_us = self._now_us + later_us
        delayed = entry.not_before > self._now_us
        begins = entry.not_before if delayed else created_us
        lost = self._not_carried
        # an entry without expiry has a life of 30 days in workq
        lost["lives_cut_to_30_days"] += (
            not entry.expires or entry.expires - begins > TTL_MS_MAX * 1000
        )
        lost["leases_cut_to_a_day"] += entry.lease_us > TTR_MS_MAX * 1000
        lost["attempts"] += entry.attempts > 0
        head = encode_head(
            self._names.name,
            workq_ttr_ms(entry.lease_us),
            workq_ttl_ms(entry.expires, begins),
            workq_priority(entry.priority),
            0,
            0,
        )
        job_id = self._job_id(entry)
        record = encode_job(
            Command.SCHEDULE if delayed else Command.ADD,
            # an import takes 0 for no time
            self._time if delayed else encode_time(max(entry.not_before, 1)),
            job_id,
            head,
            entry.value,
            encode_time(entry.not_before) if delayed else NO_TIME,
            encode_time(created_us, nanoseconds),
        )
        if entry.reason is not None:
            record += encode_result(Command.FAIL, self._time, job_id, entry.reason)
        self._write(record)

    def finish(self) -> None:
        """End the journal."""
        if self._files.files == 0:
            self._begin()
        self._files.end()

    def advice(self) -> str | None:
        """Return an option that the server needs; None: there is none."""
        return None

    def _job_id(self, entry: SnapshotEntry) -> bytes:
        """Return the id that the entry had in workq, if it is free, else one made of its key."""
        job_id = b""
        if len(entry.id) == _JOB_ID_DIGITS:
            try:
                job_id = bytes.fromhex(entry.id.decode("ascii"))
            except ValueError:
                job_id = b""
        digest = entry.key
        while not is_job_id(job_id) or job_id in self._ids:
            digest = blake2b(digest, digest_size=16).digest()
            job_id = make_job_id(digest)
        self._ids.add(job_id)
        return job_id

    def _write(self, record: bytes) -> None:
        full = self._files.file_bytes + len(record) > SEGMENT_BYTES_MAX
        if self._files.files == 0 or (full and self._files.file_bytes > len(SEGMENT_HEADER)):
            self._begin()
        self._files.write(record)

    def _begin(self) -> None:
        self._files.begin(segment_name(self._files.files + 1))
        self._files.write(SEGMENT_HEADER)
