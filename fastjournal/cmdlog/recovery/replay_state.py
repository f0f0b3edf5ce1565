"""Replay state: what is live at some point of the command log."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from itertools import islice

import msgspec

from fastjournal.cmdlog.format.endings import end_of_lease, is_stale, serial_of, superseded_by
from fastjournal.cmdlog.format.operation_records import Change, Delay, Extend, Limit, Touch
from fastjournal.cmdlog.recovery.replayed_entry import BeganAhead, ReplayedEntry
from fastjournal.cmdlog.recovery.segment_chain import Chain
from fastjournal.keys import moved_not_before, split_journal_key
from fastjournal.limits import (
    INSTANT_MAX,
    INTERVALS_MAX,
    KEY_BYTES_MAX,
    PAUSE_BYTES,
    PAUSED_BYTES_MAX,
    PAUSED_DOMAINS_MAX,
    TOMBSTONE_BYTES,
    TOMBSTONE_TTL_US,
    TOMBSTONES_BYTES_MAX,
    TOMBSTONES_MAX,
)

_NAME_BYTES = 32


class ReplayedTombstone(msgspec.Struct, frozen=True, gc=False):
    """Tombstone: the rest of a deleted entry."""

    timestamp: int
    """Writes under its key with a smaller timestamp lose."""
    deleted_us: int
    """When the record that left it was written: from then on its lifetime counts."""
    operation: bool = False
    """Whether that is an operation (``tombstone``, ``rename``), and no complete."""


class Orphan(msgspec.Struct, gc=False):
    """Job whose removal is implied by another record; no record of its own says it."""

    job: ReplayedEntry
    """As it was, without its value."""
    implied: _Implied | None = None
    """Tombstone that it left."""


class _Implied(msgspec.Struct, frozen=True, gc=False):
    """A tombstone that follows from the record of another job."""

    key: bytes
    before: ReplayedTombstone | None
    laid: ReplayedTombstone


def pause_name(domain: bytes) -> bytes:
    """Return the name under which a segment keeps a pause of a domain: a long one as its digest.

    A segment may name each paused domain many times, and no bound holds for all segments.
    """
    return (
        domain if len(domain) <= _NAME_BYTES else blake2b(domain, digest_size=_NAME_BYTES).digest()
    )


class ReplayState:
    """Live state after the records so far.

    ``jobs`` maps job ids to live jobs, in the order of their records. ``keys`` maps every key to
    its job: primary keys, URIs and links; a URI that a newer entry took has that entry.
    ``tombstones`` maps primary keys to their tombstones, oldest first.

    Args:
        tombstones_max: Most tombstones; the oldest are dropped at the end of each replay.
        tombstone_ttl_us: Lifetime of a tombstone. Expired ones stay: the daemon drops them.
        tombstones_bytes_max: Bound on the memory of tombstones, as ``tombstones_max``.
        present_us: Present instant; later records are from a clock that was ahead.
    """

    def __init__(
        self,
        tombstones_max: int = TOMBSTONES_MAX,
        tombstone_ttl_us: int = TOMBSTONE_TTL_US,
        tombstones_bytes_max: int = TOMBSTONES_BYTES_MAX,
        present_us: int = INSTANT_MAX,
    ) -> None:
        self.began_ahead = BeganAhead(present_us)
        self.tombstones_max = tombstones_max
        self.tombstones_bytes_max = tombstones_bytes_max
        self.tombstone_ttl_us = tombstone_ttl_us
        self.jobs: dict[bytes, ReplayedEntry] = {}
        self.keys: dict[bytes, ReplayedEntry] = {}
        self.superseded: dict[bytes, ReplayedEntry] = {}
        """A key to the leased entry that had it before a newer one took it as its URI."""
        self.tombstones: dict[bytes, ReplayedTombstone] = {}
        self.pauses: dict[bytes, int] = {}
        """Domain to the end of its pause, which may be over."""
        self.pauses_bytes = 0
        """Bytes that these take in memory."""
        self.paused_until: dict[int, dict[bytes, int]] = {}
        """Segment number and ``pause_name`` to the last end of a pause that a record names."""
        self.limits: dict[bytes, Limit] = {}
        """Domain to the limits of its own."""
        self.limited_in: dict[int, set[bytes]] = {}
        """Segment number to the ``pause_name`` of each domain with a limit record in it."""
        self.delivered_at: dict[bytes, int] = {}
        """Domain to its last delivery in a record, the oldest record first."""
        self.last_token = 0
        """The newest lease token; its last three digits go on counting."""
        self.arrival = 0
        """The highest serial number given to any entry."""
        self.serial_told = 0
        """Highest serial number in a record about an entry whose own record is missing. It is
        greater than ``arrival`` if damage took that record, and the first record of each later
        segment."""
        self.foreign = False
        """Whether the log has records of jobs of workq's own, without an envelope."""
        self.records = 0
        """Records replayed."""
        self.odd: Counter[str] = Counter()
        """Records that live operation does not write, and their numbers; see ``replay``."""
        self.early: dict[bytes, list[tuple[int, int]]] = {}
        """Command and time of records whose job has not been added, by job id."""
        self.early_before: dict[bytes, list[tuple[int, int]]] = {}
        """Those met before ``early`` was last full; the next time they go."""
        self.chain = Chain()
        """Statements of records about the log's segments."""
        self.trimmed: dict[bytes, int] = {}
        """Job id, also of dead ones, to the bytes of the value in its record that still count, if
        a resize changed it; zero bytes follow."""
        self.begins: list[tuple[bytes, int]] = []
        """The first job of our own of each run in each segment: its id and the segment."""
        self.orphans: dict[bytes, Orphan] = {}
        """Jobs whose removal is implied by other records only: they would return if those were
        dropped."""

    @property
    def previous(self) -> dict[int, int]:
        """Segment number to the number of the segment before it, as its first record says."""
        return self.chain.previous

    @property
    def removed(self) -> set[int]:
        """Numbers of segments that compaction unlinked."""
        return self.chain.removed

    def place(self, job: ReplayedEntry, deleted_us: int) -> None:
        """Make a job live by the rules for a key or URI that may be there already.

        Args:
            job: Which.
            deleted_us: When its record was written: the time of a tombstone that it leaves.
        """
        keys = self.keys
        old = keys.get(job.key)
        timestamp = job.timestamp
        if old is not None and is_stale(timestamp, old.timestamp, None):
            self.odd["a record older than its key's entry"] += 1
            self._orphan(job)
            return
        taken = job.more.taken
        uri = None if job.uri in taken else job.uri
        other = None if uri is None else keys.get(uri)
        if other is not None and other is not old and is_stale(timestamp, None, other.timestamp):
            self.odd["a record older than its URI's entry"] += 1
            self._orphan(job)
            return
        same_id = self.jobs.get(job.job_id)
        if same_id is not None:
            if same_id is not old:
                self.odd["an id added twice"] += 1
            self.remove(same_id)
        if old is not None and old is not same_id:
            if old.key == job.key:
                self.replace(old)
            else:
                self._take_further_key(old, job.key)
                old = None
        self.tombstones.pop(job.key, None)
        if other is not None and other is not old and other is not same_id:
            if other.token and uri is not None and other.key != uri:
                other.own().superseded = superseded_by(other.superseded, timestamp)
                self.superseded[uri] = other
            else:
                self.replace(other, timestamp, deleted_us)
        self.jobs[job.job_id] = keys[job.key] = job
        if uri is not None:
            keys[uri] = job
        for key in taken:
            self.superseded[key] = job
        for link in job.links:
            if link not in taken and keys.setdefault(link, job) is not job:
                # damage took what ended the other one, or gave it this key
                job.own().links = [other for other in job.links if other != link]
                job.own().amended = True

    def lease(self, job: ReplayedEntry, token: int, time: int) -> None:
        """Lease a job: other work on its URI is over, even if the end of that was lost."""
        job.token = token
        job.lease_start = time
        if job.more.lease_end:
            job.more.lease_end = 0
        job.starts += 1
        self.note_lease(job, time)
        if job.uri in self.superseded and self.superseded[job.uri] is not job:
            dropped = self.superseded[job.uri]
            if not 0 < dropped.leased_until <= time:
                # otherwise it had ended, and the daemon had not written that yet
                self.odd["work that began before that of an older entry had ended"] += 1
            self.replace(dropped, dropped.superseded, time)

    def note_lease(self, job: ReplayedEntry, time: int) -> None:
        """Note when the lease of a job began, if that is ahead."""
        self.began_ahead.note(self.began_ahead.leases, job.job_id, time)

    def note_begin(self, change: Change, time: int) -> None:
        """Note when a duration began that a change of a job sets, if that is ahead."""
        began = self.began_ahead
        if isinstance(change, Extend):
            began.note(began.leases, change.job_id, time)
        elif isinstance(change, Delay):
            began.note(began.delays, change.job_id, time)
        elif isinstance(change, Touch):
            began.note(began.expiries, change.job_id, 0 if change.is_instant else time)

    def note_serial(self, facts: bytes) -> None:
        """Take the serial number of an entry that is not there from facts of it."""
        self.serial_told = max(self.serial_told, serial_of(facts))

    def drop_superseded(self, job: ReplayedEntry, deleted_us: int) -> None:
        """Drop a job whose URI a newer one took, as its lease is over."""
        self.remove(job)
        self.leave_tombstone(job.key, job.superseded, deleted_us)

    def end_lease(self, job: ReplayedEntry, time: int) -> None:
        """End the lease of a job at ``time``: it ran out before, or was released."""
        if job.superseded:
            self.drop_superseded(job, time)
            return
        more, end = job.own(), job.leased_until
        ended = end_of_lease(end, time, more.attempts, job.not_before)
        more.attempts = ended.attempts
        more.first_due = more.due = ended.first_due
        job.token = job.lease_start = more.lease_end = more.lease_attempts_max = 0

    def bury(self, job: ReplayedEntry, reason: bytes, time: int) -> None:
        """Make a job a dead letter, which ends its lease."""
        more = job.own()
        more.attempts = end_of_lease(job.leased_until, time, more.attempts, 0).attempts
        job.token = job.lease_start = more.lease_end = more.lease_attempts_max = 0
        more.reason = reason
        more.amended = True

    def replace(
        self, job: ReplayedEntry, timestamp: int | None = None, deleted_us: int = 0
    ) -> None:
        """Take a job away because of the record of another one; ``timestamp``: of its tombstone."""
        self.remove(job)
        orphan = self._orphan(job)
        if timestamp is not None:
            before = self.tombstones.get(job.key)
            self.leave_tombstone(job.key, timestamp, deleted_us)
            laid = self.tombstones.get(job.key)
            if laid is not None:
                orphan.implied = _Implied(job.key, before, laid)

    def _orphan(self, job: ReplayedEntry) -> Orphan:
        job.value = b""
        orphan = self.orphans[job.job_id] = Orphan(job)
        return orphan

    def settle(self, job_id: bytes) -> None:
        """Note a record of the removal of a job, which is no longer only implied."""
        orphan = self.orphans.pop(job_id, None)
        implied = None if orphan is None else orphan.implied
        if implied is not None and self.tombstones.get(implied.key) is implied.laid:
            del self.tombstones[implied.key]
            if implied.before is not None:
                self.tombstones[implied.key] = implied.before

    def remove(self, job: ReplayedEntry) -> None:
        """Take a job away from under its id and all its keys."""
        self.jobs.pop(job.job_id, None)
        keys = self.keys
        if keys.get(job.key) is job:
            del keys[job.key]
        if job.uri is not None and keys.get(job.uri) is job:
            del keys[job.uri]
        if job.superseded:
            for key in (job.uri, *job.links):
                if key is not None and self.superseded.get(key) is job:
                    del self.superseded[key]
        for link in job.more.links:
            if keys.get(link) is job:
                del keys[link]

    def _take_further_key(self, job: ReplayedEntry, key: bytes) -> None:
        """A further key of a job is the primary key of another one by now.

        Damage took what ended the job, or the record of its further key.
        """
        self.odd["a key that was a further key of another"] += 1
        del self.keys[key]
        if job.uri == key:
            job.uri = None
        if key in job.links:
            job.own().links = [link for link in job.links if link != key]
        job.own().amended = True

    def link(self, job: ReplayedEntry, key: bytes) -> None:
        """Add one more key to a job."""
        if key in self.keys:
            self.odd["a link that stood there already"] += 1
            return
        self.keys[key] = job
        if self.superseded.get(key) is job:
            del self.superseded[key]
        if key != job.uri and key not in job.links:
            job.own().links = [*job.links, key]

    def rename(
        self, job: ReplayedEntry, key: bytes, timestamp: int, deleted_us: int, before: bytes
    ) -> None:
        """Change the primary key of a job; this replaces the job that had the key.

        ``before``: its former key: compaction may have dropped the change that set it.
        """
        keys = self.keys
        target = keys.get(key)
        if target is not None:
            if target is job or is_stale(timestamp, target.timestamp, None):
                self.odd["a name that was not free"] += 1
                return
            if target.key == key:
                self.replace(target)
            else:
                self._take_further_key(target, key)
        old, due, not_before = job.key, job.due, job.not_before
        if keys.get(old) is job:
            del keys[old]
        job.not_before = moved_not_before(old, key, not_before)
        if split_journal_key(key) is not None or job.more.due:
            job.own().due = due if job.not_before == not_before else max(job.not_before, deleted_us)
        job.key = key
        job.timestamp = timestamp
        job.changed = deleted_us
        keys[key] = job
        self.tombstones.pop(key, None)
        self.leave_tombstone(before, timestamp, deleted_us, operation=True)

    def leave_tombstone(
        self, key: bytes, timestamp: int, deleted_us: int, *, operation: bool = False
    ) -> None:
        """Add a tombstone of a primary key, as the newest one.

        The later timestamp of this and of an existing one that still lasts counts.
        """
        other = self.keys.get(key)
        if other is not None and other.key == key:
            self.odd["tombstone under a live key"] += 1
            return
        before = self.tombstones.pop(key, None)
        if before is not None and before.deleted_us + self.tombstone_ttl_us > deleted_us:
            timestamp = max(timestamp, before.timestamp)
        self.tombstones[key] = ReplayedTombstone(timestamp, deleted_us, operation)

    def pause(self, domain: bytes, until: int, time: int, segment: int) -> None:
        """Note a pause in a segment; beyond the bound those over at ``time`` are dropped."""
        self.began_ahead.note(self.began_ahead.pauses, domain, time)
        paused = self.paused_until.setdefault(segment, {})
        name = pause_name(domain)
        paused[name] = max(paused.get(name, 0), until)
        if self.pauses.pop(domain, None) is not None:
            self.pauses_bytes -= PAUSE_BYTES + len(domain)
        if until:
            self.pauses[domain] = until
            self.pauses_bytes += PAUSE_BYTES + len(domain)
        too_many = len(self.pauses) > 2 * PAUSED_DOMAINS_MAX
        if too_many or self.pauses_bytes > 2 * PAUSED_BYTES_MAX:
            self.pauses = {name: end for name, end in self.pauses.items() if end > time}
            self.pauses_bytes = sum(PAUSE_BYTES + len(name) for name in self.pauses)

    def limit(self, limit: Limit, segment: int) -> None:
        """Remember the limits of a domain."""
        self.limits.pop(limit.domain, None)
        if not limit.is_default:
            self.limits[limit.domain] = limit
        self.limited_in.setdefault(segment, set()).add(pause_name(limit.domain))

    def note_delivery(self, key: bytes, time: int) -> None:
        """Take the delivery of the entry with this primary key; a plain one has no domain."""
        parts = split_journal_key(key)
        if parts is not None:
            self.delivered(parts[0], time)

    def delivered(self, name: bytes, time: int) -> None:
        """Keep the instant of a domain's last delivery; of too many, the oldest go."""
        self.delivered_at.pop(name, None)
        self.delivered_at[name] = time
        if len(self.delivered_at) > INTERVALS_MAX:
            del self.delivered_at[next(iter(self.delivered_at))]

    def drop_tombstones(self) -> None:
        """Drop the oldest tombstones of too many, or where they take too much memory. O(n)."""
        tombstones = self.tombstones
        excess = max(0, len(tombstones) - self.tombstones_max)
        at_most = len(tombstones) * (KEY_BYTES_MAX + TOMBSTONE_BYTES)
        if not excess and at_most <= self.tombstones_bytes_max:
            return
        sizes = sum(map(len, tombstones)) + TOMBSTONE_BYTES * len(tombstones)
        for number, key in enumerate(tombstones):
            if number >= excess and sizes <= self.tombstones_bytes_max:
                excess = number
                break
            sizes -= len(key) + TOMBSTONE_BYTES
        else:
            excess = len(tombstones)
        for key in list(islice(tombstones, excess)):
            del tombstones[key]
