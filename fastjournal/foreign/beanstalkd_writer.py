"""Writer of beanstalkd binlogs, version 7 or 5. Ids count up in the order of the work."""

from __future__ import annotations

import re
from collections import Counter

from fastjournal.foreign.beanstalkd_records import (
    BODY_BYTES_MAX,
    BODY_END,
    TTR_US_MIN,
    TUBE_BYTES_MAX,
    VERSION,
    VERSION_BYTES,
    VERSION_OLD,
    BinlogRecord,
    BinlogVersion,
    JobState,
    encode_change,
    encode_end,
    encode_job,
    encode_version,
)
from fastjournal.foreign.journal_files import JournalFiles
from fastjournal.foreign.names import FittedName, fit_name
from fastjournal.foreign.queue_names import QueueNames
from fastjournal.foreign.snapshot_entries import SnapshotEntry

FILE_BYTES = 10 * 1024 * 1024
"""beanstalkd's default of the option -s. A larger record is alone in its file."""
BODY_BYTES_DEFAULT = 65_535
"""beanstalkd's default of the option -z."""
_SPAN_US_MAX = (2**32 - 1) * 1_000_000
"""Longest delay and time to run of the put command, 136 years. The end of a lease of 250 years is
beyond beanstalkd's 64 bits of nanoseconds: it answers DEADLINE_SOON to the worker at once."""
_COUNT_MAX = 2**32 - 1
_NOT_ALLOWED = re.compile(rb"\A-|[^A-Za-z0-9+/;.$_()-]")
_EMPTY = BinlogRecord._make(0 for _ in BinlogRecord._fields)


def _fit(domain: bytes) -> FittedName:
    return fit_name(domain, _NOT_ALLOWED, TUBE_BYTES_MAX)


class BeanstalkdWriter:
    """Writes entries as jobs.

    A job that is due has its instant as the time at which it was put; attempts are timeouts.
    """

    def __init__(
        self,
        files: JournalFiles,
        now_us: int,
        not_carried: Counter[str],
        version: BinlogVersion = VERSION,
    ) -> None:
        self._version = version
        self._end = encode_end(version)
        self._files = files
        self._now_us = now_us
        self._not_carried = not_carried
        self._tubes = QueueNames(_fit, not_carried)
        self._id = 0
        self._largest = 0

    def leaves_out(self, entry: SnapshotEntry) -> str | None:
        """Return the kind of entries that are left out and that this is one of; None: it is not."""
        too_large = len(entry.value) + len(BODY_END) > BODY_BYTES_MAX
        return "values_too_large" if too_large else None

    def add(self, entry: SnapshotEntry) -> None:
        """Write an entry."""
        self._tubes.enter(entry.domain)
        self._not_carried["expiries"] += entry.expires > 0
        self._not_carried["reasons"] += bool(entry.reason)
        self._largest = max(self._largest, len(entry.value))
        self._id += 1
        self._write(self._records(entry))

    def finish(self) -> None:
        """End the journal."""
        if self._files.files == 0:
            self._begin()
        self._files.write(self._end)
        self._files.end()

    def advice(self) -> str | None:
        """Return an option that the server needs; None: there is none."""
        if self._largest + len(BODY_END) <= BODY_BYTES_DEFAULT:
            return None
        server = "beanstalkd" if self._version == VERSION else "beanstalkd 1.5 or later"
        return f"start {server} with -z {self._largest + len(BODY_END)}, or it drops large jobs"

    def _records(self, entry: SnapshotEntry) -> bytes:
        """Return the records of an entry, which stand in one file."""
        job = self._job(entry)
        if self._version == VERSION or job.state != JobState.BURIED:
            return encode_job(job, entry.value, self._version)
        # release 1.4.6 loses the rest of a file at a full record of a buried job
        ready = job._replace(state=JobState.READY, buries=0)
        buried = job._replace(body_bytes=len(entry.value) + len(BODY_END))
        return encode_job(ready, entry.value, VERSION_OLD) + encode_change(buried, VERSION_OLD)

    def _job(self, entry: SnapshotEntry) -> BinlogRecord:
        latest = self._now_us + _SPAN_US_MAX
        self._not_carried["delays_cut_to_136_years"] += entry.not_before > latest
        self._not_carried["leases_cut_to_136_years"] += entry.lease_us > _SPAN_US_MAX
        due = min(entry.not_before, latest)
        delayed = due > self._now_us
        state = JobState.DELAYED if delayed else JobState.READY
        return _EMPTY._replace(
            tube=self._tubes.name,
            id=self._id,
            pri=entry.priority,
            delay_us=due - self._now_us if delayed else 0,
            ttr_us=min(max(entry.lease_us, TTR_US_MIN), _SPAN_US_MAX),
            created_us=min(entry.timestamp, self._now_us) if delayed else due,
            deadline_us=due if delayed else 0,
            timeouts=min(entry.attempts, _COUNT_MAX),
            buries=int(entry.reason is not None),
            state=state if entry.reason is None else JobState.BURIED,
        )

    def _write(self, records: bytes) -> None:
        size = self._files.file_bytes + len(records) + len(self._end)
        if self._files.files == 0 or (size > FILE_BYTES and self._files.file_bytes > VERSION_BYTES):
            self._begin()
        self._files.write(records)

    def _begin(self) -> None:
        if self._files.files:
            self._files.write(self._end)
        self._files.begin(f"binlog.{self._files.files + 1}")
        self._files.write(encode_version(self._version))
