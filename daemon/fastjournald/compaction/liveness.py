"""Liveness check of compaction: which records of a sealed segment must be kept. Pure.

Retention rules:

- The record of an entry is kept while the entry is live and this record carries it.
- Another record about a live entry (lease, release, new value, further key, burial) is dropped:
  the entry is *copied forward*, appended with its current state. So entries that change often do
  not fill the log. A job that another program wrote is copied forward too. A copy with a current
  lease or burial is kept: otherwise it is copied again and again.
- A completion is kept while its tombstone lasts. Any record that removes a job is kept while the
  job's own record may be on disk in another segment: otherwise the job returns
  (``NeededRemovals``). A completion kept only for that reason becomes a plain removal, so that its
  tombstone does not return; so does the first dropped change of such a job. The end of a lease is
  kept where workq could see two leases begin.
- The last delivery of a domain is kept while its interval runs. It gets a record of its own before
  the lease records that prove it are dropped (``copy_deliveries``).
- An operation that undoes an earlier one (a deletion without tombstone, the end of a pause) is kept
  while the earlier one may be on disk. Operations in force are kept. Heads of groups are dropped:
  the group was complete.
- The first record is kept, and the removal of a segment that another one names. The newest record
  of size and checksum (seal) of an existing segment is kept.

``NeededRemovals`` has the rule of removals, ``TombstoneRetention`` the rule of records that left or
erased a tombstone, and ``Liveness`` all rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fastjournal.cmdlog.format.envelope import (
    MAGIC,
    Completion,
    is_ours,
    pack,
    unpack_completion,
    unpack_envelope,
)
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    JOB_TAIL_BYTES,
    RECORD_BYTES_MIN,
    TIME_BYTES,
    Command,
)
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Delivered,
    End,
    Erasure,
    Extend,
    Lease,
    Limit,
    Operation,
    Pause,
    Rename,
    SegmentOperation,
    SegmentRemoved,
    SegmentStart,
    Tombstone,
    encode_operation,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import (
    body_offset,
    decode_body,
    decode_time,
    encode_result,
    encode_simple,
    entry_key,
    is_operation,
    job_id_at,
    payload_offset,
    result_at,
)
from fastjournal.cmdlog.recovery.replay_state import pause_name
from fastjournal.keys import parse_journal_key
from fastjournal.limits import AWAITED_SEGMENTS_MAX
from fastjournald.tables.domain_limits import UNLIMITED, DomainLimit
from fastjournald.tables.entry import Entry
from fastjournald.wal.segment_usage import SegmentUsage

if TYPE_CHECKING:
    from fastjournald.engine.store import Store


class NeededRemovals:
    """Removal records in one segment that must be kept; no other compaction runs meanwhile.

    Args:
        usage: Segment usage table.
        number: Number of the segment.
        present: Numbers of all sealed segments on disk.

    Attributes:
        waits: Some of the segments with records of jobs that are removed here.
        any: Whether a removal must be kept.
    """

    def __init__(self, usage: SegmentUsage, number: int, present: frozenset[int]) -> None:
        self._gone_in: set[int | None] = {number}
        """Segments that cannot have a record of a job removed here."""
        self._held_in: set[int] = set()
        """Segments that may have one."""
        self.waits: set[int] = set()
        self.any = False
        self._usage = usage
        self._number = number
        self._present = present

    def is_needed(self, job_id: bytes) -> bool:
        """Whether the record that removes a job must be kept at its position.

        It cannot be moved to the end of the log: a later record may use the key.
        """
        number = self._usage.segment_of(job_id)
        if number in self._gone_in:
            return False
        if number in self._held_in:
            return True
        waits = self._usage.may_return(job_id, self._number, self._present)
        if waits is None:
            if number is not None:
                self._gone_in.add(number)
            return False
        if number is not None:
            self._held_in.add(number)
        self.any = True
        if len(self.waits) < AWAITED_SEGMENTS_MAX:
            self.waits.add(waits)
        return True

    def may_hold(self, job_id: bytes) -> None:
        """Note that a dead job's record may have survived the last compaction of its segment."""
        self._gone_in.discard(self._usage.may_still_hold(job_id))


class TombstoneRetention:
    """Records about tombstones in one segment that must be kept.

    Args:
        store: Entries, leases and tombstones of the daemon.
        overrides: Whether a record in the segment may undo an earlier one that is on disk.
    """

    def __init__(self, store: Store, *, overrides: bool) -> None:
        self._store = store
        self._overrides = overrides

    def lasts_until(self, key: bytes, laid: int, time: int | None, now: int) -> int | None:
        """Return the end of the tombstone that a record left; None: it ended or was replaced.

        Args:
            key: Key of the tombstone.
            laid: Timestamp of the tombstone in the record.
            time: Time of the record.
            now: Present instant.
        """
        tombstones = self._store.tombstones
        tombstone = tombstones.find(key, now)
        if tombstone is None:
            return None
        timestamp, deleted_us = tombstone
        # of two tombstones, the timestamp may be the earlier one's and the instant the later one's;
        # a clock that was set back changes that instant, and not the record
        if laid != timestamp and (time or 0) < deleted_us:
            return None
        return tombstones.lasts_until(deleted_us, now)

    def may_undo(self, time: int | None, now: int) -> bool:
        """Whether a tombstone left before ``time`` may be on disk, and still last."""
        return self._overrides and (time or 0) + self._store.tombstones.ttl_us > now

    def repeats_erasure(self, key: bytes, erased_by: int, now: int) -> bool:
        """Whether the current entry or tombstone of a key also erases the tombstone, in replay."""
        entry = self._store.find(key)
        if entry is not None and entry.persistent and entry.key == key:
            # or it was set after the tombstone had left memory
            return entry.job_id in self._store.journal.records.erasers
        tombstone = self._store.tombstones.find(key, now)
        # superseded work leaves an earlier one: of two tombstones, replay takes the later timestamp
        return tombstone is not None and tombstone[0] >= erased_by


SCHEDULE = Command.SCHEDULE.value
_COMPLETE = Command.COMPLETE.value
_TIMEOUT = Command.TIMEOUT_ATTEMPT.value
_FAIL = Command.FAIL.value
_PLAIN_REMOVALS = (Command.DELETE.value, Command.EXPIRE.value)
"""Commands of records that remove a job and leave no tombstone."""


class Liveness:
    """Liveness check of the records of one sealed segment, in their order.

    Args:
        store: Entries, leases and tombstones of the daemon.
        number: Number of the segment.
        data: The segment.
        present: Numbers of all sealed segments on disk.
        active: Number of the active segment.

    Attributes:
        copy_forward: Job id to live entries that must be copied forward.
        renamed: Former keys of entries, whose tombstones were left by dropped records.
        replaced: Offset of a record to the records that replace it.
        removals: Removals that must be kept.
        pauses: Some of the domains with the end of an earlier pause in this segment.
        seals: Segments whose size and checksum are in a kept record.
        paused_until: ``pause_name`` to the latest end of a pause in a kept record.
        named_here: Removed segments that only this one still names.
        limited: ``pause_name`` of domains with a kept limit record.
        expiries: Sum and number of the instants at which kept records become dead by time.
    """

    def __init__(
        self, store: Store, number: int, data: bytes, present: frozenset[int], active: int
    ) -> None:
        self.copy_forward: dict[bytes, Entry] = {}
        self.renamed: list[bytes] = []
        self.replaced: dict[int, list[bytes]] = {}
        self.removals = NeededRemovals(store.journal.usage, number, present)
        self.pauses: set[bytes] = set()
        self.seals: set[int] = set()
        self.paused_until: dict[bytes, int] = {}
        self.limited: set[bytes] = set()
        self.named_here: set[int] = set()
        self.expiries = [0, 0]
        self._store = store
        self._number = number
        self._data = data
        self._amended = store.journal.records.amended
        self._usage = store.journal.usage
        self._present = present
        self._named = present | {active}
        # constant: no other compaction runs meanwhile
        self._overrides = self._usage.overrides(number, present)
        self._tombstones = TombstoneRetention(store, overrides=self._overrides)
        self._fixed = False
        self._copied_at = 0
        """Offset of an attempt that is kept because of its lease."""
        self._behind_copied = 0
        """Offset after that attempt."""
        self._ended: set[bytes] = set()
        """Jobs whose change was replaced by a removal."""

    @property
    def fixed(self) -> bool:
        """Whether a kept record cannot be moved to the end of the log."""
        return self._fixed or self.removals.any

    def stays(self, start: int, body: int, end: int, now: int) -> bool:
        """Whether the record at ``start`` is kept, or replaced (``replaced``).

        Args:
            start: Offset of the record.
            body: Offset of its body.
            end: Offset after it.
            now: Present instant.

        Raises:
            LogCorruptError: The record cannot be decoded; other decoding errors mean the same.
        """
        data = self._data
        command = data[body]
        job_id = job_id_at(data, body)
        if command <= SCHEDULE:
            if is_operation(data, body):
                at = payload_offset(data, body)
                if data.startswith(MAGIC, at):
                    operation = unpack_operation(data[at : end - JOB_TAIL_BYTES])
                    return self._operation_stays(operation, start, end, now)
            return self._entry_stays(job_id, start, body, end, now)
        if command in _PLAIN_REMOVALS:
            return self.removals.is_needed(job_id)
        if command == _COMPLETE:
            return self._completion_stays(job_id, start, body, end, now)
        if start == self._copied_at or (command == _FAIL and self._is_copied(start)):
            self._behind_copied = end
            return True
        return self._change_stays(job_id, start, command)

    # --- entries --------------------------------------------------------------------------------

    def live_entry(self, job_id: bytes, key: bytes) -> Entry | None:
        """Return the entry that a record carries; None: none any more."""
        entry = self._store.find(key)
        if entry is not None and entry.job_id == job_id:
            return entry
        # renamed
        return self._amended.get(job_id)

    def _entry_stays(self, job_id: bytes, start: int, body: int, end: int, now: int) -> bool:
        key = entry_key(self._data, start, body, end - CRC_BYTES)
        if key is None:
            self._copy_forward(job_id)
            return False
        entry = self.live_entry(job_id, key)
        if entry is None:
            return self._overrides and self.needs_erasure(start, body, end, key, now)
        if entry.expires:
            self._expires(entry.expires)
        return True

    def _copy_forward(self, job_id: bytes) -> None:
        entry = self._amended.get(job_id)
        if entry is not None:
            self.copy_forward[job_id] = entry

    def _is_copied(self, at: int, token: int = 0) -> bool:
        """Whether the attempt or burial at this offset was copied together with its entry."""
        if at + RECORD_BYTES_MIN > len(self._data):
            return False
        job_id = job_id_at(self._data, body_offset(self._data, at))
        entry = self._amended.get(job_id)
        if entry is None or entry.token != token or entry.extra.starts != bool(token):
            return False
        if not token and entry.reason is None:
            return False
        if self._usage.segment_of(job_id) != self._number:
            return False
        self._copied_at = at
        return True

    def _is_copied_end(self, moved: Extend, start: int) -> bool:
        """Whether this record has the end of a kept lease, directly after its attempt."""
        entry = self._amended.get(moved.job_id)
        return (
            entry is not None
            and 0 < start == self._behind_copied
            and (moved.token, moved.end) == (entry.token, entry.leased_until)
        )

    # --- tombstones -----------------------------------------------------------------------------

    def needs_erasure(self, start: int, body: int, end: int, key: bytes, now: int) -> bool:
        """Whether the record of a dead entry must be replaced by the erasure of a tombstone."""
        if not self._tombstones.may_undo(self._time(start), now):
            return False
        dead = unpack_envelope(decode_body(self._data, start, body, end - CRC_BYTES).payload)
        if not dead.erases or self._tombstones.repeats_erasure(key, dead.timestamp, now):
            return False
        self._erase_instead(start, key)
        return True

    def _erase_instead(self, start: int, key: bytes) -> None:
        """Replace a record, which may have erased a tombstone, by the erasure alone."""
        self._fixed = True
        record = self._store.journal.log.erasure_record(key, self._time(start) or 0)
        self.replaced.setdefault(start, []).append(record)

    def _completion_stays(self, job_id: bytes, start: int, body: int, end: int, now: int) -> bool:
        result = result_at(self._data, body, end)
        record = unpack_completion(result) if is_ours(result) else None
        needed = self.removals.is_needed(job_id)
        if record is None or record.timestamp is None:
            return needed
        if self._tombstone_stays(record.key, record.timestamp, start, now):
            return True
        if needed:
            # without the tombstone, which has ended
            domain, priority = _place_of(record.key)
            left = pack(Completion(None, domain, record.facts, priority))
            data = encode_result(_COMPLETE, self._stamp(start), job_id, left)
            self.replaced.setdefault(start, []).append(data)
        return needed

    def _end_stays(self, end: End, start: int, now: int) -> bool:
        """Whether an operation is kept; the delete record after it follows the same rule."""
        if not end.removes:
            return self._change_stays(end.job_id, start)
        needed = self.removals.is_needed(end.job_id)
        if end.timestamp is None:
            return needed
        stands = self._tombstone_stays(end.key, end.timestamp, start, now)
        if stands == needed:
            return needed
        if needed:
            domain, priority = _place_of(end.key)
            left: Operation = replace(end, timestamp=None, key=domain, priority=priority)
        else:
            left = Tombstone(end.key, end.timestamp)
        job_id = job_id_at(self._data, body_offset(self._data, start))
        data = encode_operation(left, self._stamp(start), job_id)
        self.replaced.setdefault(start, []).append(data)
        return True

    def _tombstone_stays(self, key: bytes, timestamp: int, start: int, now: int) -> bool:
        until = self._tombstones.lasts_until(key, timestamp, self._time(start), now)
        if until is None:
            return False
        self._expires(until)
        return True

    # --- operations -----------------------------------------------------------------------------

    def _operation_stays(self, operation: Operation, start: int, end: int, now: int) -> bool:
        if isinstance(operation, SegmentOperation):
            return self._segment_stays(operation)
        if isinstance(operation, Lease):
            return operation.again and self._is_copied(end, operation.token)
        if isinstance(operation, Batch):
            return False
        if isinstance(operation, End):
            return self._end_stays(operation, start, now)
        if isinstance(operation, Tombstone):
            return self._tombstone_stays(operation.key, operation.timestamp, start, now)
        if isinstance(operation, Erasure):
            undoes = self._tombstones.may_undo(self._time(start), now)
            self._fixed |= undoes
            return undoes
        if isinstance(operation, Pause):
            return self._pause_stays(operation, now)
        if isinstance(operation, Limit):
            return self._limit_stays(operation)
        if isinstance(operation, Delivered):
            return self._delivery_stays(operation, now)
        if isinstance(operation, Rename):
            return self._rename_stays(operation, start, now)
        if isinstance(operation, Extend) and self._is_copied_end(operation, start):
            return True
        return self._change_stays(operation.job_id, start)

    def _segment_stays(self, operation: SegmentOperation) -> bool:
        if isinstance(operation, SegmentStart):
            return True
        number = operation.number
        if isinstance(operation, SegmentRemoved):
            return self._names_removed(number)
        if number not in self._present or not operation.done:
            return False
        if not self._usage.is_newest_seal(number, self._number):
            return False
        self.seals.add(number)
        return True

    def _names_removed(self, number: int) -> bool:
        """Whether a segment on disk names a removed one."""
        usage, own = self._usage, self._number
        if usage.is_named(number, self._named - {own}) or usage.seals_in.get(number, set()) - {own}:
            return True
        if usage.previous.get(own) != number and number not in usage.seals_in:
            return False
        self.named_here.add(number)
        return True

    def _pause_stays(self, pause: Pause, now: int) -> bool:
        until = self._store.rules.pauses.until(pause.domain)
        if now < until == pause.until:
            self._expires(until)
        elif not self._usage.pauses_before(self._number, pause.domain, now):
            return False
        else:
            self._fixed = True
            if len(self.pauses) < AWAITED_SEGMENTS_MAX:
                self.pauses.add(pause.domain)
        name = pause_name(pause.domain)
        self.paused_until[name] = max(self.paused_until.get(name, 0), pause.until)
        return True

    def _limit_stays(self, limit: Limit) -> bool:
        """Keep the newest record of a domain; a default one while an older record may return."""
        before, behind = self._usage.limits_around(self._number, limit.domain)
        own = self._store.rules.limits.own(limit.domain)
        if limit.is_default:
            stays = own == UNLIMITED and before
        else:
            stays = own == DomainLimit.from_record(limit)
        if stays and not behind:
            self.limited.add(pause_name(limit.domain))
            return True
        return False

    def _delivery_stays(self, delivered: Delivered, now: int) -> bool:
        """Keep the last delivery of a domain while the interval after it runs."""
        limits = self._store.rules.limits
        until = limits.waits_until(delivered.domain)
        if until <= now or limits.last_delivery(delivered.domain) != delivered.instant:
            return False
        self._expires(until)
        return True

    def _rename_stays(self, rename: Rename, start: int, now: int) -> bool:
        self.removals.may_hold(rename.job_id)
        stays = self._change_stays(rename.job_id, start)
        self.renamed.append(rename.old)
        tombstones = self._tombstones
        if tombstones.may_undo(self._time(start), now) and not tombstones.repeats_erasure(
            rename.key, rename.timestamp, now
        ):
            self._erase_instead(start, rename.key)
            return True
        return stays

    def _change_stays(self, job_id: bytes, start: int, command: int = 0) -> bool:
        self._copy_forward(job_id)
        if job_id in self._ended:
            return False
        if not self.removals.is_needed(job_id):
            # workq does not start an attempt before it has seen the end of the last one
            ends = command == _TIMEOUT and self._usage.may_stand(
                job_id, self._number, self._present
            )
            self._fixed |= ends
            return ends
        # With a removal, the job's own record, under another key, does not block later records, and
        # workq does not see only a part of its attempts.
        self._ended.add(job_id)
        removal = encode_simple(Command.EXPIRE, self._stamp(start), job_id)
        self.replaced.setdefault(start, []).append(removal)
        return True

    # --- parts ----------------------------------------------------------------------------------

    def _stamp(self, start: int) -> bytes:
        return self._data[start : start + TIME_BYTES]

    def _time(self, start: int) -> int | None:
        return decode_time(self._stamp(start))

    def _expires(self, instant: int) -> None:
        self.expiries[0] += instant
        self.expiries[1] += 1


def _place_of(key: bytes) -> tuple[bytes, int]:
    """Return domain and priority in a key."""
    parts = parse_journal_key(key)
    return (b"", 0) if parts is None else (parts.domain, parts.priority)
