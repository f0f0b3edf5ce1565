"""Replay: what the records of a log, in their order, leave live.

Pure, and the loop that decides how long a start takes: the common records of our own are decoded
right in it, everything else in functions below. The rules are those of the live daemon
(docs/protocol.md) and of docs/cmdlog.md; where records contradict each other:

- An add or schedule whose key holds an entry with a larger timestamp, or whose URI leads to one,
  is void. An older or equally old entry under its key is replaced.
- Deletes and completions of jobs that are gone do nothing, but a completion's tombstone counts.
- A timeout-attempt written at or after the lease's end means that the lease ran out (attempts one
  higher), one written earlier that the entry was given back.
- A start-attempt outside a lease group leases the job for its ttr from the record's time.
- The tokens of a lease group hold for the start-attempts that are there: where damage took some
  of them, the others are leased all the same.

A removal whose replacement is lost in damage is not applied, see ``cmdlog.recovery.removals``.

A group whose last records are missing at the end of the log was never answered: replay stops at its
head and says so. A record that is valid but whose contents cannot be understood is damage.
"""

from __future__ import annotations

import struct

import msgspec

from fastjournal.cmdlog.format.envelope import (
    MAGIC,
    Batch,
    Completion,
    Envelope,
    Failure,
    Lease,
    Operation,
    Pause,
    Rename,
    SegmentRemoved,
    SegmentRewritten,
    SegmentStart,
    unpack_failure,
    unpack_operation,
)
from fastjournal.cmdlog.format.partial_decode import OPERATION_HEAD, skip_head
from fastjournal.cmdlog.format.records import (
    CRC_BYTES,
    RUN_BYTES,
    TIME_BYTES,
    UNIX_SECONDS,
    Command,
    decode_payload,
    decode_uvarint,
)
from fastjournal.cmdlog.format.segments import OFFSET_BITS
from fastjournal.cmdlog.recovery import workq_jobs as foreign
from fastjournal.cmdlog.recovery.operations import apply_operation
from fastjournal.cmdlog.recovery.removals import NOT_APPLIED, doubtful_behind, stands
from fastjournal.cmdlog.recovery.replay_state import LogState, Tomb, pause_name
from fastjournal.cmdlog.recovery.replayed_entry import live_job
from fastjournal.cmdlog.recovery.scan import Damage, Run
from fastjournal.errors import LogCorruptError
from fastjournal.limits import INSTANT_MAX, LEASE_US_DEFAULT

_JOB_TAIL = 2 * TIME_BYTES + CRC_BYTES
_SIMPLE_BYTES = 17 + CRC_BYTES
_seconds_at = struct.Struct(">qi").unpack_from
_decode_entry = msgspec.msgpack.Decoder(Envelope).decode
_decode_completion = msgspec.msgpack.Decoder(Completion).decode


class Replay:
    """Replays segments, in ascending order, into a ``LogState``.

    Attributes:
        state: What is live so far.
        damage: Records of the current segment that are valid but cannot be understood.
        unapplied: Removals in it whose replacement is lost, by the offset of each.
        pardoned: Segment and offset of such ones of which a later record says that they are right.
        cut: Offset of the head of the unfinished group at which the last segment ends, else None.
    """

    def __init__(self, state: LogState | None = None) -> None:
        self.state = LogState() if state is None else state
        self.damage: list[Damage] = []
        self.unapplied: list[Damage] = []
        self.pardoned: set[tuple[int, int]] = set()
        self.cut: int | None = None
        self._standing: dict[bytes, tuple[int, int]] = {}
        """Job ids to segment and offset of the removal that was not applied."""
        self._doubtful: dict[int, int] = {}
        self._replayed: Run | None = None
        self._unnamed = -1
        """Offset behind the operation that renames a job that is not there."""
        self._segment = 0
        self._data = b""
        self._ours = False
        self._run = b""
        """What the ids of a run of the daemon begin with: that of the newest entry."""

    def start_segment(
        self, number: int, data: bytes, doubtful: dict[int, int] | None = None
    ) -> None:
        """Go on with the segment of that number and these bytes.

        Args:
            number: Of the segment.
            data: The segment.
            doubtful: From ``doubtful_removals``, where it has damage.
        """
        self._segment = number
        self._data = data
        self._ours = False
        self._run = b""
        self.damage = []
        self.unapplied = []
        self._unnamed = -1
        self._doubtful = {} if doubtful is None else doubtful

    def replay(self, run: Run, first: int = 0, stop: int | None = None, *, last: bool) -> int:
        """Replay records ``first`` to about ``stop`` of a run of the current segment.

        Args:
            run: From ``scan_segment``.
            first: Index to start at: 0, or what the last call returned.
            stop: Index to stop at, or a group later; None: the end of the run.
            last: Whether this is the last run of the log: it may end in an unfinished group.

        Returns:
            The index to go on with; the length of the run when it is done, or when ``cut`` is set.
        """
        state = self.state
        data = self._data
        bodies = run.bodies
        ends = run.ends
        count = len(ends)
        stop = count if stop is None else min(stop, count)
        jobs = state.jobs
        keys = state.keys
        tombstones = state.tombstones
        orphans = state.orphans
        base = self._segment << OFFSET_BITS
        index = first
        end = run.offset(first)
        stamp_before = b""
        time = 0
        self._replayed = run
        while index < stop:
            start = end
            body = bodies[index]
            end = ends[index]
            command = data[body]
            if command <= 2:
                name = data[body + 17]
                head = skip_head(data, body + 18 + name) if name < 0x80 else None
                at = head.end() if head is not None else 0
                if not at or not data.startswith(MAGIC, at):
                    self._replay_other(start, body, end)
                elif name == 5 and data.startswith(OPERATION_HEAD, body + 17):
                    index = self._replay_operation(run, index, start, at, last=last)
                    if self.cut is not None:
                        state.records += index - first
                        return count
                    end = run.offset(index + 1)
                else:
                    try:
                        entry = _decode_entry(data[at + 3 : end - _JOB_TAIL])
                    except (msgspec.MsgspecError, ValueError) as error:
                        self._damaged(start, end, f"an entry cannot be read: {error}")
                        index += 1
                        continue
                    job_id = data[body + 1 : body + 17]
                    if job_id[:RUN_BYTES] != self._run:
                        self._run = job_id[:RUN_BYTES]
                        state.begins.append((job_id, self._segment))
                    job = live_job(entry, job_id, base | start, end - start)
                    key = job.key
                    uri = job.uri
                    if (
                        key in keys
                        or (uri is not None and (uri in keys or entry.superseded))
                        or entry.links
                        or job_id in jobs
                    ):
                        state.place(job, _time_us(data, start))
                    else:
                        jobs[job_id] = keys[key] = job
                        if uri is not None:
                            keys[uri] = job
                        if key in tombstones:
                            del tombstones[key]
                    arrival = entry.arrival
                    if arrival > state.arrival:  # noqa: PLR1730 - max() takes three times as long
                        state.arrival = arrival
            elif self._doubtful and self._is_unapplied(start, body, end):
                pass
            elif command == 3:
                found = jobs.get(data[body + 1 : body + 17])
                if data.startswith(MAGIC, body + 18) and data[body + 17] == end - body - 22:
                    try:
                        done = _decode_completion(data[body + 21 : end - CRC_BYTES])
                    except (msgspec.MsgspecError, ValueError) as error:
                        self._damaged(start, end, f"a completion cannot be read: {error}")
                        index += 1
                        continue
                    if found is not None:
                        state.remove(found)
                    elif orphans:
                        state.settle(data[body + 1 : body + 17])
                    stamp = data[start + 1 : start + 13]
                    if stamp != stamp_before:
                        stamp_before = stamp
                        time = _time_us(data, start)
                    key = done.key
                    if self._standing:
                        self._pardon(key, done.timestamp)
                    if key in keys or key in tombstones:
                        state.leave_tombstone(key, done.timestamp, time)
                    else:
                        tombstones[key] = Tomb(done.timestamp, time)
                else:
                    self._replay_other(start, body, end)
            else:
                self._replay_other(start, body, end)
            index += 1
        state.records += index - first
        state.drop_tombstones()
        return index

    # --- removals whose replacement is lost -----------------------------------------------------

    def _is_unapplied(self, start: int, body: int, end: int) -> bool:
        """Leave a removal out whose replacement is lost; return whether it was."""
        kind = self._doubtful.get(start)
        if kind is None:
            return False
        data = self._data
        job_id = data[body + 1 : body + 17]
        job = self.state.jobs.get(job_id)
        if job is None:
            ours = data.startswith(MAGIC, body + 18)
        else:
            ours = self._ours or not job.more.foreign
        if not ours:
            # by workq itself; a segment of ours may have lost the record that says so
            return False
        time = _time_us(data, start)
        if not stands(kind, job, data[body], time, unnamed=start == self._unnamed):
            return False
        told = NOT_APPLIED if job is None else f"{NOT_APPLIED}, so that stands: key {job.key!r}"
        self.unapplied.append(Damage(start, end, told))
        self._standing[job_id] = self._segment, start
        return True

    def _pardon(self, key: bytes, timestamp: int) -> None:
        """What stands under a key because its removal was not applied goes by a later one."""
        job = self.state.keys.get(key)
        if job is not None and job.key == key and job.timestamp <= timestamp:
            removal = self._standing.pop(job.job_id, None)
            if removal is not None:
                self.pardoned.add(removal)
                self.state.remove(job)

    # --- records that are not worth a place in the loop -----------------------------------------

    def _replay_other(self, start: int, body: int, end: int) -> None:
        data = self._data
        command = data[body]
        try:
            if command <= Command.SCHEDULE:
                self._replay_job(start, body, end)
            elif command <= Command.FAIL:
                length, at = decode_uvarint(data, body + 17, end - CRC_BYTES)
                if at + length != end - CRC_BYTES:
                    raise LogCorruptError(f"a result of {length} bytes does not fit its record")
                self._replay_result(start, body, data[at : at + length])
            elif command > Command.TIMEOUT_ATTEMPT:
                raise LogCorruptError(f"command {command} is unknown")
            elif end - body != _SIMPLE_BYTES:
                raise LogCorruptError("bytes follow the last field")
            else:
                self._replay_simple(start, body)
        except LogCorruptError as error:
            self._damaged(start, end, error.message)
        except (msgspec.MsgspecError, ValueError) as error:
            self._damaged(start, end, f"its contents cannot be read: {error}")

    def _replay_job(self, start: int, body: int, end: int) -> None:
        record = decode_payload(self._data, start, body, end - CRC_BYTES)
        position = self._segment << OFFSET_BITS | start
        if not record.payload.startswith(MAGIC):
            foreign.insert(self.state, foreign.live_job(record, position, end - start))
            return
        # ours, with a name of 128 bytes or more
        entry = _decode_entry(record.payload[len(MAGIC) :])
        job = live_job(entry, record.job_id, position, end - start)
        if job.job_id[:RUN_BYTES] != self._run:
            self._run = job.job_id[:RUN_BYTES]
            self.state.begins.append((job.job_id, self._segment))
        self.state.place(job, _time_us(self._data, start))
        self.state.arrival = max(self.state.arrival, entry.arrival)

    def _replay_result(self, start: int, body: int, result: bytes) -> None:
        data = self._data
        state = self.state
        job_id = data[body + 1 : body + 17]
        time = _time_us(data, start)
        job = state.jobs.get(job_id)
        ours = result.startswith(MAGIC)
        if data[body] == Command.COMPLETE and ours:
            done = _decode_completion(result[len(MAGIC) :])
            if job is not None:
                state.remove(job)
            state.settle(job_id)
            self._pardon(done.key, done.timestamp)
            state.leave_tombstone(done.key, done.timestamp, time)
            return
        failure = unpack_failure(result) if ours else Failure(foreign.REASON_FAILED)
        if job is None:
            self._wait_for_add(job_id, data[body], time)
        elif job.more.foreign and not self._ours:
            foreign.apply(state, job, data[body], time)
        elif data[body] == Command.COMPLETE:
            state.remove(job)
        elif job.superseded:
            state.drop_superseded(job, time)
        else:
            more = job.own()
            if 0 < job.token <= time:
                more.attempts += 1
            job.token = 0
            more.reason = failure.reason
            more.amended = True

    def _replay_simple(self, start: int, body: int) -> None:
        data = self._data
        state = self.state
        command = data[body]
        job_id = data[body + 1 : body + 17]
        job = state.jobs.get(job_id)
        if job is None:
            if command in (Command.DELETE, Command.EXPIRE):
                state.settle(job_id)
            self._wait_for_add(job_id, command, _time_us(data, start))
        elif command in (Command.DELETE, Command.EXPIRE):
            state.remove(job)
        elif job.more.foreign and not self._ours:
            foreign.apply(state, job, command, _time_us(data, start))
        elif command == Command.START_ATTEMPT:
            time = _time_us(data, start)
            state.lease(job, time + (job.more.ttr_us or LEASE_US_DEFAULT), time)
        elif job.token:
            time = _time_us(data, start)
            if job.superseded:
                state.drop_superseded(job, time)
                return
            more = job.own()
            if time >= job.token:
                more.attempts += 1
            more.first_due = max(job.not_before, min(time, job.token))
            job.token = 0
        elif not self._ours:
            # in ours cleaning keeps the end of a lease for workq, where the lease itself may go
            state.odd["a timeout of a job that is not leased"] += 1

    def _wait_for_add(self, job_id: bytes, command: int, time: int) -> None:
        # In our own segments the add is always first: cleaning has taken it away.
        if not self._ours:
            foreign.wait_for_add(self.state, job_id, command, time)

    # --- operations -----------------------------------------------------------------------------

    def _replay_operation(self, run: Run, index: int, start: int, at: int, *, last: bool) -> int:
        """Apply the operation whose payload is at ``at``; return the index of its last record."""
        end = run.ends[index]
        try:
            operation = unpack_operation(self._data[at : end - _JOB_TAIL])
        except (msgspec.MsgspecError, ValueError) as error:
            self._damaged(start, end, f"an operation cannot be read: {error}")
            return index
        if isinstance(operation, Lease):
            return self._replay_lease(run, index, operation, last=last)
        if isinstance(operation, Batch):
            if operation.following >= len(run) - index:
                self._unfinished(run.offset(index), last=last)
        else:
            if isinstance(operation, Rename) and operation.job_id not in self.state.jobs:
                self._unnamed = end
            self._apply(operation, start)
        return index

    def _replay_lease(self, run: Run, head: int, lease: Lease, *, last: bool) -> int:
        data = self._data
        state = self.state
        jobs = state.jobs
        superseded = state.superseded
        bodies = run.bodies
        ends = run.ends
        following = max(0, lease.following)
        missing = following >= len(bodies) - head
        if missing and all(data[body] == Command.START_ATTEMPT for body in bodies[head + 1 :]):
            self._unfinished(run.offset(head), last=last)
            if self.cut is not None:
                return head
        if not lease.again:
            state.last_token = lease.token
        stop = min(len(bodies), head + 1 + following)
        for index in range(head + 1, stop):
            body = bodies[index]
            if data[body] != Command.START_ATTEMPT or ends[index] - body != _SIMPLE_BYTES:
                self._unfinished(run.offset(head), last=False)
                return index - 1
            job = jobs.get(data[body + 1 : body + 17])
            if job is None:
                # cleaning has taken it away
                continue
            if superseded:
                state.lease(job, lease.token, _time_us(data, run.offset(head)))
            else:
                job.token = lease.token
                job.starts += 1
        return stop - 1

    def _unfinished(self, offset: int, *, last: bool) -> None:
        if last:
            self.cut = offset
        else:
            self.state.odd["a group that is not all there"] += 1

    def _apply(self, operation: Operation, start: int) -> None:
        state = self.state
        if isinstance(operation, SegmentStart):
            self._ours = True
            state.chain.take(self._segment, operation)
            state.last_token = operation.last_token or state.last_token
        elif isinstance(operation, SegmentRewritten | SegmentRemoved):
            state.chain.take(self._segment, operation)
        else:
            if isinstance(operation, Pause):
                paused = state.paused_until.setdefault(self._segment, {})
                name = pause_name(operation.domain)
                paused[name] = max(paused.get(name, 0), operation.until)
            apply_operation(state, operation, _time_us(self._data, start))

    def _damaged(self, start: int, end: int, reason: str) -> None:
        self.damage.append(Damage(start, end, reason))
        assert self._replayed is not None
        self._doubtful = self._doubtful | doubtful_behind(self._data, self._replayed, end)


def _time_us(data: bytes, start: int) -> int:
    """Return the time of the record at ``start`` as an instant; 0 where it has none."""
    seconds, nanoseconds = _seconds_at(data, start + 1)
    us = int((seconds - UNIX_SECONDS) * 1_000_000 + nanoseconds // 1000)
    return min(max(us, 0), INSTANT_MAX)
