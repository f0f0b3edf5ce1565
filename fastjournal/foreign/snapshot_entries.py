"""Entries of a snapshot in the order of their work, as a writer of a foreign journal needs them.

The snapshot is replayed once. Large values of old segments stay on the disk and are read again one
by one, so that memory holds the entries without most of their values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from fastjournal.cmdlog.read_value import Whereabouts, read_value
from fastjournal.cmdlog.recovery.inspect_log import Progress, inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.value_budget import ValueLimit
from fastjournal.cmdlog.snapshot import read_manifest
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError
from fastjournal.foreign.items import OnProgress
from fastjournal.keys import split_journal_key
from fastjournal.limits import LEASE_US_DEFAULT
from fastjournal.protocol import ValueType

VALUES_BYTES_MAX = 64 * 1024 * 1024
"""Values in memory; those of the segment that is being replayed come on top."""
_COLD_BYTES_MIN = 64
_CHANGED_IN_PLACE = (int(ValueType.INTEGER), int(ValueType.FLOAT), int(ValueType.BOOLEAN))
"""Types whose values other records change; they have 8 bytes at most."""
_NUMBER_BYTES = 8


def value_limit() -> ValueLimit:
    """Return how much memory the values of a replay take whose entries are only read."""
    return ValueLimit(
        bytes_max=VALUES_BYTES_MAX,
        entry_bytes=0,
        value_bytes_min=_COLD_BYTES_MIN,
        types_kept=_CHANGED_IN_PLACE,
        bytes_kept=_NUMBER_BYTES,
    )


class SnapshotEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry that waits, or is buried. Times in microseconds."""

    domain: bytes
    priority: int
    not_before: int
    id: bytes
    key: bytes
    value: bytes
    timestamp: int
    expires: int
    """Instant; 0: never."""
    attempts: int
    reason: bytes | None
    """Why it is buried; None: it waits."""
    lease_us: int
    """Default lease of its domain."""
    not_carried: tuple[str, ...]
    """Facts of it that no other queue can hold, by kind."""


class SnapshotEntries:
    """The live entries of a snapshot.

    Attributes:
        read: Number of all live entries.
        left_out: Number of entries that no other queue has, by kind.
        not_carried: Number of limited and of paused domains.

    Args:
        disk: Where the snapshot is.
        snapshot: Its directory.
        now_us: The present: what has expired by then is left out.
        on_progress: Called a few times a second.

    Raises:
        LogCorruptError: It is damaged, or no snapshot.
        LogFailedError: It cannot be read.
    """

    def __init__(
        self, disk: Disk, snapshot: str, now_us: int, on_progress: OnProgress | None = None
    ) -> None:
        read_manifest(disk, snapshot)
        self._disk = disk
        self._snapshot = snapshot
        self._state = ReplayState()

        def tell(progress: Progress) -> None:
            if on_progress is not None:
                on_progress(progress.bytes_done, progress.bytes)

        found = inspect_log(disk, snapshot, self._state, tell, value_limit()).diagnostics
        if found:
            raise LogCorruptError(
                found[0].message,
                path=found[0].path,
                offset=found[0].offset,
                hint="take another snapshot",
            )
        self.read = len(self._state.jobs)
        self.left_out: Counter[str] = Counter()
        self.not_carried: Counter[str] = Counter()
        self._jobs = [job for job in self._state.jobs.values() if self._is_work(job, now_us)]
        self._jobs.sort(key=_order)
        self.not_carried["limited_domains"] += len(self._state.limits)
        self.not_carried["paused_domains"] += sum(
            end > now_us for end in self._state.pauses.values()
        )

    def __iter__(self) -> Iterator[SnapshotEntry]:
        """Yield the entries by domain, and of each in the order in which NEXT leases them.

        Raises:
            LogCorruptError: A record is damaged.
            LogFailedError: The snapshot cannot be read any more.
        """
        limits = self._state.limits
        for job in self._jobs:
            parts = split_journal_key(job.key)
            assert parts is not None
            domain, priority, _, rest = parts
            limit = limits.get(domain)
            yield SnapshotEntry(
                domain=domain,
                priority=priority,
                not_before=job.not_before,
                id=rest,
                key=job.key,
                value=self._value(job),
                timestamp=job.timestamp,
                expires=job.expires,
                attempts=job.attempts,
                reason=job.reason,
                lease_us=(limit.lease_us if limit else 0) or LEASE_US_DEFAULT,
                not_carried=_not_carried(job),
            )

    def _is_work(self, job: ReplayedEntry, now_us: int) -> bool:
        if split_journal_key(job.key) is None:
            self.left_out["plain_entries"] += 1
        elif 0 < job.expires <= now_us:
            self.left_out["expired"] += 1
        elif job.superseded:
            self.left_out["superseded"] += 1
        else:
            return True
        return False

    def _value(self, job: ReplayedEntry) -> bytes:
        size = job.more.cold_bytes
        if not size:
            return job.value
        place = Whereabouts(job.position, job.record_bytes, job.job_id)
        value = read_value(self._disk, self._snapshot, place)
        kept = self._state.trimmed.get(job.job_id, len(value))
        return value[:kept].ljust(size, b"\0")


def _not_carried(job: ReplayedEntry) -> tuple[str, ...]:
    facts = {
        "uris": job.uri is not None,
        "further_keys": bool(job.links),
        "value_types": job.value_type != ValueType.BUFFER,
        "leases": job.token > 0,
        "lives_moved_by_reads": job.ttl > 0,
    }
    return tuple(kind for kind, is_there in facts.items() if is_there)


def _order(job: ReplayedEntry) -> tuple[bytes, int, int, int]:
    parts = split_journal_key(job.key)
    assert parts is not None
    return parts[0], parts[1], job.not_before, job.arrival
