"""Liveness check of the records of a sealed segment: the retention rules, one by one. Pure.

- the record of an entry stays while the entry is live and carried by it;
- a record about a live entry that is not its own record (a lease, a release, another value, a
  further key, a burial) goes, for the entry is *copied forward*: appended anew as it stands. So
  entries that change often do not fill the log with their changes. A job that another program wrote
  is copied forward too. A copy with a lease or burial that stands stays, or it would be copied for
  ever;
- a completion stays while its tombstone stands; and any record that removes a job stays while the
  job's own record may be on the disk elsewhere, or the job would return (``NeededRemovals``). A
  completion that stays for that only becomes a plain removal, so that its tombstone does not return
  either; so does the first change of such a job that goes; the end of a lease stays where workq
  might see two begin;
- the last delivery of a domain stays while the interval after it runs. It has a record of its own
  before the records of leases go, which tell of it until then (``copy_deliveries``);
- an operation that undoes an earlier one (a deletion without trace, the end of a pause) stays while
  that may be on the disk; what is in force stays; heads of groups go, for the group was whole;
- the first record, and the removal of a segment that another one names, stay; so does the newest
  record of size and checksum (seal) of a segment that is there.

Removals that must stay: else a dead job whose own record is on the disk would return. Pure.

Retention of tombstones: when a record that laid or erased one still matters. Pure.
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
    """Tells which removals in one segment must stay; nothing else is compacted meanwhile.

    Args:
        usage: Segment usage table.
        number: Number of the segment.
        present: Numbers of all sealed segments on the disk.

    Attributes:
        waits: Some of the segments with records of jobs that are removed here.
        any: Whether a removal must stay.
    """

    def __init__(self, usage: SegmentUsage, number: int, present: frozenset[int]) -> None:
        self._gone_in: set[int | None] = {number}
        """Segments in which no record can be of a job that this one removes."""
        self._held_in: set[int] = set()
        """Segments in which one may be."""
        self.waits: set[int] = set()
        self.any = False
        self._usage = usage
        self._number = number
        self._present = present

    def is_needed(self, job_id: bytes) -> bool:
        """Whether the record that removes a job must stay where it is.

        It cannot be moved to the end of the log: a record behind it may use the key.
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
        """The record of a dead job may have outlived the last compaction of its segment."""
        self._gone_in.discard(self._usage.may_still_hold(job_id))


class TombstoneRetention:
    """Tells which records about tombstones matter, of those in one segment.

    Args:
        store: Entries, leases and tombstones of the daemon.
        overrides: Whether a record in the segment may undo one that is on the disk before it.
    """

    def __init__(self, store: Store, *, overrides: bool) -> None:
        self._store = store
        self._overrides = overrides

    def lasts_until(self, key: bytes, laid: int, time: int | None, now: int) -> int | None:
        """Return until when the tombstone lasts that a record laid; None: it stands no more.

        Args:
            key: Key of the tombstone.
            laid: Timestamp of the tombstone, as the record says.
            time: When the record was written.
            now: The present.
        """
        tombstones = self._store.tombstones
        tombstone = tombstones.find(key, now)
        if tombstone is None:
            return None
        timestamp, deleted_us = tombstone
        # where two were laid, the timestamp may be the earlier's and the instant the later's; a
        # clock that was set back moves that instant, and not the record
        if laid != timestamp and (time or 0) < deleted_us:
            return None
        return tombstones.lasts_until(deleted_us, now)

    def may_undo(self, time: int | None, now: int) -> bool:
        """Whether a tombstone from before ``time`` may be on the disk, and not over."""
        return self._overrides and (time or 0) + self._store.tombstones.ttl_us > now

    def repeats_erasure(self, key: bytes, erased_by: int, now: int) -> bool:
        """Whether what stands under a key tells of a tombstone erased by a write of this time."""
        entry = self._store.find(key)
        if entry is not None and entry.persistent and entry.key == key:
            # or it came when the tombstone was gone from memory
            return entry.job_id in self._store.journal.records.erasers
        tombstone = self._store.tombstones.find(key, now)
        # an earlier one is what superseded work leaves: of two, replay takes the later timestamp
        return tombstone is not None and tombstone[0] >= erased_by


SCHEDULE = Command.SCHEDULE.value
_COMPLETE = Command.COMPLETE.value
_TIMEOUT = Command.TIMEOUT_ATTEMPT.value
_FAIL = Command.FAIL.value
_PLAIN_REMOVALS = (Command.DELETE.value, Command.EXPIRE.value)
"""Commands of records that remove a job and leave no tombstone."""


class Liveness:
    """Liveness check of the records of one sealed segment, each as it is looked at.

    Args:
        store: Entries, leases and tombstones of the daemon.
        number: Number of the segment.
        data: The segment.
        present: Numbers of all sealed segments on the disk.
        active: Number of the segment that is appended to.

    Attributes:
        copy_forward: Job id to live entries that have to be appended anew.
        renamed: Keys that entries had before: the records that left tombstones there go.
        replaced: Offset of records in whose place others stand.
        removals: Those that must stay.
        pauses: Some of the domains of which a pause ends here that began before.
        seals: Segments of which a record that stays has size and checksum.
        paused_until: ``pause_name`` to the last end of a pause that a record names that stays.
        named_here: Removed segments that only this one still names.
        limited: ``pause_name`` of domains of which a limit record stays.
        expiries: Sum and number of the instants at which what is kept ends by itself.
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
        # nothing else is compacted meanwhile, so it stays as it is
        self._overrides = self._usage.overrides(number, present)
        self._tombstones = TombstoneRetention(store, overrides=self._overrides)
        self._fixed = False
        self._copied_at = 0
        """Offset of an attempt that stays because its lease does."""
        self._behind_copied = 0
        """Offset behind that."""
        self._ended: set[bytes] = set()
        """Jobs that are removed here instead of changed."""

    @property
    def fixed(self) -> bool:
        """Whether something is kept that cannot be moved to the end of the log."""
        return self._fixed or self.removals.any

    def stays(self, start: int, body: int, end: int, now: int) -> bool:
        """Whether the record at ``start`` stays, or others in its place (``replaced``).

        Args:
            start: Offset of the record.
            body: Offset of its body.
            end: Offset behind it.
            now: The present.

        Raises:
            LogCorruptError: It cannot be understood; other errors of decoding say the same.
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
        """Return the entry that a record carries; None: it carries none any more."""
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
        """Whether this is the end of a lease that stays, right behind its attempt."""
        entry = self._amended.get(moved.job_id)
        return (
            entry is not None
            and 0 < start == self._behind_copied
            and (moved.token, moved.end) == (entry.token, entry.leased_until)
        )

    # --- tombstones -----------------------------------------------------------------------------

    def needs_erasure(self, start: int, body: int, end: int, key: bytes, now: int) -> bool:
        """Whether a record has to stand, in the place of an entry, that a tombstone is erased."""
        if not self._tombstones.may_undo(self._time(start), now):
            return False
        dead = unpack_envelope(decode_body(self._data, start, body, end - CRC_BYTES).payload)
        if not dead.erases or self._tombstones.repeats_erasure(key, dead.timestamp, now):
            return False
        self._erase_instead(start, key)
        return True

    def _erase_instead(self, start: int, key: bytes) -> None:
        """The record erased a tombstone, perhaps, and is gone without leaving one."""
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
            # without the tombstone, which is over
            domain, priority = _place_of(record.key)
            left = pack(Completion(None, domain, record.facts, priority))
            data = encode_result(_COMPLETE, self._stamp(start), job_id, left)
            self.replaced.setdefault(start, []).append(data)
        return needed

    def _end_stays(self, end: End, start: int, now: int) -> bool:
        """Whether an operation stays, with the delete behind it, which stays by the same rule."""
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
        """Whether a segment on the disk names a removed one."""
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
        """Keep the newest record of a domain: a default one as long as an older one may return."""
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
            # workq does not start again what it has not seen end
            ends = command == _TIMEOUT and self._usage.may_stand(
                job_id, self._number, self._present
            )
            self._fixed |= ends
            return ends
        # The job's own record must not be in the way, under another key, of what is behind this;
        # nor must workq see its attempts in part.
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
    """Return domain and priority of a key."""
    parts = parse_journal_key(key)
    return (b"", 0) if parts is None else (parts.domain, parts.priority)
