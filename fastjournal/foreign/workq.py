"""The command log of a workq-server: read to its end, then its jobs one by one.

A job becomes the entry that a daemon makes of it which starts on the log
(``cmdlog.recovery.workq_jobs``), but for two things: whoever works on it at the end has lost it
with the server, and the attempts are counted anew. Reading the log keeps what is known of each live
job, less than a kilobyte; the values are read again, a segment at a time, when the items are asked
for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.format.segments import segment_name, unpack_position
from fastjournal.cmdlog.locks import APPEND_LOCK, lock_append
from fastjournal.cmdlog.recovery.bad_sectors import read_segment
from fastjournal.cmdlog.recovery.inspect_log import Progress, inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError
from fastjournal.foreign.formats import Format, ours, require_format
from fastjournal.foreign.items import Fault, Item, OnProgress
from fastjournal.foreign.queue_facts import OTHER_LIMITS, QueueCounts

_UNREADABLE = ("damaged", "missing", "torn", "unfinished")
"""Kinds of diagnostics; the others hold no jobs."""


class WorkqJournal:
    """The live jobs of a log.

    Attributes:
        count: How many.
        faults: Places that could not be read.
        queues: Names, with the times to run and numbers of attempts of their jobs.
        not_carried: Facts of jobs that an entry does not hold.
    """

    def __init__(self, disk: Disk, directory: str, on_progress: OnProgress | None) -> None:
        self._disk = disk
        self._directory = directory
        self._on_progress = on_progress
        self._state = ReplayState()
        self._position = -1
        inspection = inspect_log(disk, directory, self._state, self._progressed)
        if self._state.previous or any(not job.more.foreign for job in self._state.jobs.values()):
            raise ours(directory)
        self.count = len(self._state.jobs)
        self.faults = [
            Fault(diagnostic.path, diagnostic.offset, diagnostic.message, diagnostic.damage)
            for diagnostic in inspection.diagnostics
            if diagnostic.kind in _UNREADABLE
        ]
        counts, lost = QueueCounts(), Counter[str]()
        for job in self._state.jobs.values():
            bounds = filter(None, (job.more.attempts_max, job.more.fails_max))
            counts.add(job.domain or b"", job.more.ttr_us, min(bounds, default=0))
            lost["priorities_cut"] += job.more.priority_cut
            lost["attempted"] += job.more.attempts > 0
            lost["leased"] += job.token > 0
        self.queues = counts.facts()
        lost[OTHER_LIMITS] += sum(queue.others for queue in self.queues)
        self.not_carried = {name: number for name, number in lost.items() if number}

    def items(self) -> Iterator[Item]:
        """Yield the jobs in the order of their records.

        Raises:
            LogCorruptError: A record is not there any more as it was read before.
            LogFailedError: A segment cannot be read any more.
        """
        path, data, current = "", b"", -1
        for job in self._state.jobs.values():
            number, offset = unpack_position(job.position)
            if number != current:
                current = number
                path = f"{self._directory}/{segment_name(number)}"
                data, _ = read_segment(self._disk, path)
            try:
                record, _ = decode_record(data, offset)
            except LogCorruptError as error:
                raise LogCorruptError(error.message, path=path, offset=offset) from error
            if record.job_id != job.job_id:
                raise LogCorruptError("the record changed meanwhile", path=path, offset=offset)
            yield Item(
                key=job.key,
                value=record.payload,
                # the wire takes 0 for none
                timestamp=job.timestamp or 1,
                expires=job.expires,
                reason=None if job.reason is None else job.reason.decode(),
                path=path,
                offset=offset,
            )

    def _progressed(self, progress: Progress) -> None:
        """Erase the values of the jobs that came since the last call."""
        known, newest = self._position, self._position
        for job in reversed(self._state.jobs.values()):
            if job.position <= known:
                break
            newest = max(newest, job.position)
            job.value = b""
        self._position = newest
        if self._on_progress is not None:
            self._on_progress(progress.bytes_done, progress.bytes)


@contextmanager
def open_workq(
    disk: Disk, directory: str, *, on_progress: OnProgress | None = None
) -> Iterator[WorkqJournal]:
    """Read the log of a workq-server, and keep it as it is while the block runs. Writes nothing.

    Args:
        disk: Where the log is.
        directory: Directory of the log.
        on_progress: Called a few times a second while it is read.

    Raises:
        BadRequestError: There is no segment, or fastjournald wrote this log.
        LogLockedError: A server runs on it.
        LogFailedError: Something cannot be read.
    """
    require_format(disk, directory, Format.WORKQ, for_import=True)
    with ExitStack() as locks:
        # without this file no server was ever here: it is a copy
        if disk.exists(f"{directory}/{APPEND_LOCK}"):
            locks.callback(lock_append(disk, directory).close)
        yield WorkqJournal(disk, directory, on_progress)
