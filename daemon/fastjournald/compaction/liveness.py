"""Whether a record of a sealed segment still matters: the rules of cleaning, one by one. Pure.

- the record of an entry stays while the entry is live and carried by it;
- a record about a live entry that is not its own record (a lease, a release, another value, a
  further key, a burial) goes, for the entry is *restated*: appended anew as it stands. So entries
  that change often do not fill the log with their changes. What another program wrote is restated
  too. What was restated with a lease or burial that stands stays, or it would be copied for ever;
- a completion stays while its tombstone stands; and any record that removes a job stays while the
  job's own record may be on the disk elsewhere, or the job would return. A completion that stays
  for that only becomes a plain removal, so that its tombstone does not return either; so does the
  first change of such a job that goes; the end of a lease stays where workq might see two begin;
- an operation that undoes an earlier one (a deletion without trace, the end of a pause) stays while
  that may be on the disk; what is in force stays; heads of groups go, for the group was whole;
- the first record, and the removal of a segment that another one names, stay; so does the newest
  record that tells size and checksum of a segment that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.cmdlog.format.envelope import (
    MAGIC,
    Completion,
    is_ours,
    unpack_completion,
    unpack_envelope,
)
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    JOB_TAIL_BYTES,
    SHORT_BODY_AT,
    SHORT_MAX,
    TIME_BYTES,
    Command,
)
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Erasure,
    Lease,
    Pause,
    Rename,
    SegmentRemoved,
    SegmentRewritten,
    SegmentStart,
    Tombstone,
    unpack_operation,
)
from fastjournal.cmdlog.format.partial_decode import (
    entry_key,
    is_operation,
    job_id_at,
    payload_offset,
    result_at,
)
from fastjournal.cmdlog.format.records import decode_body, decode_time, encode_simple
from fastjournal.cmdlog.recovery.replay_state import pause_name
from fastjournal.limits import SIFTED_WAITS_MAX

if TYPE_CHECKING:
    from fastjournald.engine.store import Store
    from fastjournald.tables.entry import Entry

SCHEDULE = Command.SCHEDULE.value
_COMPLETE = Command.COMPLETE.value
_TIMEOUT = Command.TIMEOUT_ATTEMPT.value
_FAIL = Command.FAIL.value
REMOVALS = (Command.DELETE.value, Command.EXPIRE.value)


class Judging:
    """What becomes of the records of one sealed segment, as each is looked at.

    Args:
        store: What the daemon knows.
        number: Of the segment.
        data: The segment.
        present: Numbers of all sealed segments on the disk.
        active: That of the segment that is appended to.

    Attributes:
        restate: Job id to live entries that have to be appended anew.
        renamed: Keys that entries had before: the records that left tombstones there go.
        stuck: Whether something is kept that cannot be moved to the end of the log.
        waits: Some of the segments with records of jobs that are removed here.
        pauses: Some of the domains of which a pause ends here that began before.
        tells: Segments of which a record that stays tells size and checksum.
        paused_until: ``pause_name`` to the last end of a pause that a record names that stays.
        expiries: Sum and number of the instants at which what is kept ends by itself.
    """

    def __init__(
        self, store: Store, number: int, data: bytes, present: frozenset[int], active: int
    ) -> None:
        self.number = number
        self.data = data
        self.restate: dict[bytes, Entry] = {}
        self.renamed: list[bytes] = []
        self.stuck = False
        self.waits: set[int] = set()
        self.pauses: set[bytes] = set()
        self.tells: set[int] = set()
        self.paused_until: dict[bytes, int] = {}
        self.expiries = [0, 0]
        self._store = store
        self._present = present
        # nothing else is cleaned meanwhile, so both stay as they are
        self._overrides = store.journal.usage.overrides(number, present)
        self._past: set[int | None] = {number}
        """Segments in which no record can be of a job that this one removes and that may return."""
        self._blocking: set[int] = set()
        """Segments in which one may be."""
        self._restated_at = 0
        """Offset of an attempt that stays because its lease does."""
        self._named = present | {active}
        self._ended: set[bytes] = set()
        """Jobs that are removed here instead of changed."""
        self._replaced: dict[int, list[bytes]] = {}
        """Offset of records in whose place others stand."""

    def _stays(self, start: int, body: int, end: int, now: int) -> bool:
        data = self.data
        command = data[body]
        job_id = job_id_at(data, body)
        if command <= SCHEDULE:
            if is_operation(data, body):
                at = payload_offset(data, body)
                if data.startswith(MAGIC, at):
                    return self._operation_stays(data[at : end - JOB_TAIL_BYTES], start, end, now)
            key = entry_key(data, start, body, end - CRC_BYTES)
            if key is None:
                self._restate(job_id)
                return False
            entry = self._live(job_id, key)
            if entry is None:
                return self._overrides and self._forgets(start, body, end, key, now)
            if entry.expires:
                self._expires(entry.expires)
            return True
        if command in REMOVALS:
            return self._may_return(job_id)
        if command == _COMPLETE:
            return self._completion_stays(job_id, start, body, end, now)
        if start == self._restated_at or (command == _FAIL and self._is_restated(start)):
            return True
        return self._change_stays(job_id, start, command)

    def _forgets(self, start: int, body: int, end: int, key: bytes, now: int) -> bool:
        """Whether something has to say, in the place of an entry, that a tombstone is gone."""
        if not self._undoes(start, now):
            return False
        dead = unpack_envelope(decode_body(self.data, start, body, end - CRC_BYTES).payload)
        if not dead.erases or self._stands(key, dead.timestamp, now):
            return False
        self._forget_instead(start, key)
        return True

    def _forget_instead(self, start: int, key: bytes) -> None:
        """Something erased a tombstone, perhaps, and is gone without leaving one."""
        time = decode_time(self.data[start : start + TIME_BYTES]) or 0
        self.stuck = True
        record = self._store.journal.erasure_record(key, time)
        self._replaced.setdefault(start, []).append(record)

    def _stands(self, key: bytes, erased_by: int, now: int) -> bool:
        """Whether what stands under a key tells of a tombstone erased by a write of this time."""
        entry = self._store.find(key)
        if entry is not None and entry.persistent and entry.key == key:
            # or it came when the tombstone was gone from memory
            return entry.job_id in self._store.journal.records.erasers
        tombstone = self._store.tombstones.find(key, now)
        # an earlier one is what superseded work leaves: of two, replay takes the later timestamp
        return tombstone is not None and tombstone[0] >= erased_by

    def _undoes(self, start: int, now: int) -> bool:
        """Whether a tombstone from before this record may be on the disk, and not over."""
        learnt = decode_time(self.data[start : start + TIME_BYTES]) or 0
        return self._overrides and learnt + self._store.tombstones.ttl_us > now

    def _live(self, job_id: bytes, key: bytes) -> Entry | None:
        """Return the entry that this record carries; None: it carries none any more."""
        entry = self._store.find(key)
        if entry is not None and entry.job_id == job_id:
            return entry
        # renamed
        return self._store.journal.records.amended.get(job_id)

    def _restate(self, job_id: bytes) -> None:
        entry = self._store.journal.records.amended.get(job_id)
        if entry is not None:
            self.restate[job_id] = entry

    def _may_return(self, job_id: bytes) -> bool:
        # a removal must stay where it is: what is behind it may use the key
        usage = self._store.journal.usage
        number = usage.segment_of(job_id)
        if number in self._past:
            return False
        if number in self._blocking:
            return True
        waits = usage.may_return(job_id, self.number, self._present)
        if waits is None:
            if number is not None:
                self._past.add(number)
            return False
        if number is not None:
            self._blocking.add(number)
        self.stuck = True
        if len(self.waits) < SIFTED_WAITS_MAX:
            self.waits.add(waits)
        return True

    def _completion_stays(self, job_id: bytes, start: int, body: int, end: int, now: int) -> bool:
        result = result_at(self.data, body, end)
        record = unpack_completion(result) if is_ours(result) else None
        returns = self._may_return(job_id)
        if record is not None and self._tombstone_stands(record, start, now):
            return True
        if returns:
            self._remove_instead(start, job_id)
        return returns

    def _remove_instead(self, start: int, job_id: bytes) -> None:
        record = encode_simple(Command.DELETE, self.data[start : start + TIME_BYTES], job_id)
        self._replaced.setdefault(start, []).append(record)

    def _tombstone_stands(self, found: Completion | Tombstone, start: int, now: int) -> bool:
        tombstones = self._store.tombstones
        tombstone = tombstones.find(found.key, now)
        if tombstone is None:
            return False
        timestamp, learnt = tombstone
        time = decode_time(self.data[start : start + TIME_BYTES])
        # where two were laid, the timestamp may be the earlier's and the instant the later's
        if found.timestamp != timestamp and time != learnt:
            return False
        self._expires(tombstones.lasts_until(learnt, now))
        return True

    def _operation_stays(self, payload: bytes, start: int, end: int, now: int) -> bool:
        operation = unpack_operation(payload)
        usage = self._store.journal.usage
        if isinstance(operation, SegmentStart):
            return True
        if isinstance(operation, SegmentRemoved):
            named = usage.is_named(operation.number, self._named)
            return named or operation.number in usage.told_in
        if isinstance(operation, SegmentRewritten):
            if operation.number not in self._present or not operation.done:
                return False
            if not usage.is_told(operation.number, self.number):
                return False
            self.tells.add(operation.number)
            return True
        if isinstance(operation, Lease):
            return operation.again and self._is_restated(end, operation.token)
        if isinstance(operation, Batch):
            return False
        if isinstance(operation, Tombstone):
            return self._tombstone_stands(operation, start, now)
        if isinstance(operation, Erasure):
            undoes = self._undoes(start, now)
            self.stuck |= undoes
            return undoes
        if isinstance(operation, Pause):
            until = self._store.pauses.until(operation.domain)
            in_force = now < until == operation.until
            if in_force:
                self._expires(until)
            elif not usage.pauses_before(self.number, operation.domain, now):
                return False
            else:
                self.stuck = True
                if len(self.pauses) < SIFTED_WAITS_MAX:
                    self.pauses.add(operation.domain)
            name = pause_name(operation.domain)
            self.paused_until[name] = max(self.paused_until.get(name, 0), operation.until)
            return True
        if isinstance(operation, Rename):
            self._past.discard(usage.may_still_hold(operation.job_id))
        stays = self._change_stays(operation.job_id, start)
        if isinstance(operation, Rename):
            self.renamed.append(operation.old)
            key, timestamp = operation.key, operation.timestamp
            if self._undoes(start, now) and not self._stands(key, timestamp, now):
                self._forget_instead(start, key)
                return True
        return stays

    def _is_restated(self, at: int, token: int = 0) -> bool:
        """Whether the attempt or burial at this offset is told with its entry, in this segment."""
        # of a simple record; a failure with a reason of 110 bytes or more is copied once more
        job_id = job_id_at(self.data, at + SHORT_BODY_AT)
        entry = self._store.journal.records.amended.get(job_id)
        if entry is None or entry.token != token or entry.extra.starts != bool(token):
            return False
        if not token and (entry.reason is None or self.data[at + TIME_BYTES] > SHORT_MAX):
            return False
        if self._store.journal.usage.segment_of(job_id) != self.number:
            return False
        self._restated_at = at
        return True

    def _change_stays(self, job_id: bytes, start: int, command: int = 0) -> bool:
        self._restate(job_id)
        if job_id in self._ended:
            return False
        if not self._may_return(job_id):
            # workq does not start again what it has not seen end
            usage = self._store.journal.usage
            ends = command == _TIMEOUT and usage.may_stand(job_id, self.number, self._present)
            self.stuck |= ends
            return ends
        # The job's own record must not be in the way, under another key, of what is behind this;
        # nor must workq see its attempts in part.
        self._ended.add(job_id)
        self._remove_instead(start, job_id)
        return True

    def _expires(self, instant: int) -> None:
        self.expiries[0] += instant
        self.expiries[1] += 1
