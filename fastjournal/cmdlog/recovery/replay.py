"""Replay: the live state that the records of a log, in their order, leave.

Pure, and the loop that determines the duration of a start: the common records of fastjournald are
decoded in it, all others one at a time (``cmdlog.recovery.record_replay``). The rules are those of
the live daemon (docs/protocol.md) and of docs/cmdlog.md. If records contradict each other:

- An add or schedule whose key has an entry with a larger timestamp, or whose URI has one, is void.
  An older or equally old entry under its key is replaced.
- Deletes and completions of removed jobs have no effect, but a completion's tombstone counts.
- A timeout-attempt written at or after the lease's end means that the lease expired (attempts one
  higher), one written earlier that the lease was released.
- A start-attempt outside a lease group leases the job for its ttr from the record's time.
- The tokens of a lease group hold for the existing start-attempts: if damage took some of them, the
  others are leased all the same.

A removal whose replacement is lost in damage is not applied, see ``cmdlog.recovery.removals``.

A group whose last records are missing at the end of the log was never answered: replay stops at its
head and reports that. A valid record whose contents cannot be decoded is damage.

Adjacent entries in the log (``cmdlog.recovery.entry_blocks``) become live together, with the same
result as replaying their records one by one. Nearly always nothing in a block collides with live
entries: then it is placed by a few calls outside of the interpreter's loop. Otherwise each entry is
placed by itself, by the rules of ``ReplayState.place``.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_

import msgspec

from fastjournal.cmdlog.format.endings import DUE_BYTES
from fastjournal.cmdlog.format.envelope import MAGIC, MAGIC_BYTES, Completion, Envelope
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    FIELDS_AT,
    JOB_ID_AT,
    JOB_TAIL_BYTES,
    RESULT_BESIDES_BYTES,
    RUN_BYTES,
    SHORT_FIELD_AT,
    SHORT_MAX,
    SIMPLE_TAIL_BYTES,
    TIME_BYTES,
    Command,
)
from fastjournal.cmdlog.format.operation_records import Batch, End, Lease, unpack_operation
from fastjournal.cmdlog.format.records import OPERATION_HEAD, instant_at, skip_head
from fastjournal.cmdlog.recovery.entry_blocks import EntryBlock
from fastjournal.cmdlog.recovery.record_replay import RecordReplay
from fastjournal.cmdlog.recovery.removals import doubtful_behind
from fastjournal.cmdlog.recovery.replay_state import ReplayedTombstone, ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry, replayed_entry
from fastjournal.cmdlog.recovery.scan import CorruptRegion, RecordRun
from fastjournal.errors import LogCorruptError

_decode_entry = msgspec.msgpack.Decoder(Envelope).decode
_decode_completion = msgspec.msgpack.Decoder(Completion).decode
_SCHEDULE = Command.SCHEDULE.value
_COMPLETE = Command.COMPLETE.value
_START_ATTEMPT = Command.START_ATTEMPT.value
_OPERATION_NAME_BYTES = OPERATION_HEAD[0]


class Replay:
    """Replays segments, in ascending order, into a ``ReplayState``.

    Attributes:
        state: Live state so far.
        damage: Records of the current segment that are valid but cannot be understood.
        cut: Offset of the head of the unfinished group at which the last segment ends, else None.
        records: Replay of records of the current segment, one call each.
    """

    def __init__(self, state: ReplayState | None = None) -> None:
        self.state = ReplayState() if state is None else state
        self.damage: list[CorruptRegion] = []
        self.cut: int | None = None
        self.records = RecordReplay(self.state)
        self._removals = self.records.removals
        self._replayed: RecordRun | None = None

    @property
    def unapplied(self) -> list[CorruptRegion]:
        """Removals in the current segment whose replacement is lost, by the offset of each."""
        return self._removals.unapplied

    @property
    def pardoned(self) -> set[int]:
        """Positions of unapplied removals that a later record confirms."""
        return self._removals.pardoned

    def start_segment(
        self, number: int, data: bytes, doubtful: dict[int, int] | None = None
    ) -> None:
        """Go on with the segment of that number and these bytes.

        Args:
            number: Number of the segment.
            data: The segment.
            doubtful: From ``doubtful_removals``, where it has damage.
        """
        self.damage = []
        self.records.start_segment(number, data, doubtful)

    def apply(
        self, data: bytes, position: int, *, ours: bool, token: int | None = None, doubt: int = 0
    ) -> None:
        """Replay one record alone, taken out of its segment and its group.

        Args:
            data: The record.
            position: In its log.
            ours: Whether fastjournald wrote its segment.
            token: Token of the lease, of a start-attempt in a lease group; else None.
            doubt: Why it may be that this removal is not applied; 0: it is.

        Raises:
            LogCorruptError: It cannot be understood.
        """
        self.records.apply_alone(data, position, ours=ours, token=token, doubt=doubt)

    def replay(self, run: RecordRun, first: int = 0, stop: int | None = None, *, last: bool) -> int:
        """Replay records ``first`` to about ``stop`` of a run of the current segment.

        Args:
            run: From ``scan_segment``.
            first: Index to start at: 0, or what the last call returned.
            stop: Index to stop at, or a group later; None: the end of the run.
            last: Whether this is the last run of the log: it may end in an unfinished group.

        Returns:
            The index to go on with; the length of the run when it is done, or when ``cut`` is set.
        """
        index = self.replay_stretch(run, first, len(run) if stop is None else stop, last=last)
        if self.cut is None:
            self.state.drop_tombstones()
        return index

    def replay_stretch(self, run: RecordRun, first: int, stop: int, *, last: bool) -> int:
        """Replay some records, and leave too many tombstones where they are; see ``replay``.

        One loop, not stages: see docs/performance.md for the records a second that it replays, and
        tests/bench/bench_start.py; a call for each record takes a quarter of them.
        """
        records = self.records
        removals = self._removals
        state = self.state
        data = records.data
        base = records.base
        bodies = run.bodies
        ends = run.ends
        count = len(ends)
        stop = min(stop, count)
        jobs = state.jobs
        keys = state.keys
        tombstones = state.tombstones
        orphans = state.orphans
        job_id_at, fields_at, short_field_at = JOB_ID_AT, FIELDS_AT, SHORT_FIELD_AT
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
            if command <= _SCHEDULE:
                name = data[body + fields_at]
                head = skip_head(data, body + short_field_at + name) if name <= SHORT_MAX else None
                at = head.end() if head is not None else 0
                if not at or not data.startswith(MAGIC, at):
                    self._apply(start, body, end)
                elif name == _OPERATION_NAME_BYTES and data.startswith(
                    OPERATION_HEAD, body + fields_at
                ):
                    index = self._replay_operation(run, index, start, at, last=last)
                    if self.cut is not None:
                        state.records += index - first
                        return count
                    end = run.offset(index + 1)
                else:
                    try:
                        entry = _decode_entry(data[at + MAGIC_BYTES : end - JOB_TAIL_BYTES])
                    except (msgspec.MsgspecError, ValueError) as error:
                        self._damaged(start, end, f"an entry cannot be read: {error}")
                        index += 1
                        continue
                    job_id = data[body + job_id_at : body + fields_at]
                    if job_id[:RUN_BYTES] != records.run:
                        records.begin_run(job_id)
                    job = replayed_entry(entry, job_id, base | start, end - start)
                    key = job.key
                    uri = job.uri
                    if (
                        key in keys
                        or (uri is not None and (uri in keys or entry.superseded))
                        or entry.links
                        or job_id in jobs
                    ):
                        state.place(job, instant_at(data, start))
                    else:
                        jobs[job_id] = keys[key] = job
                        if uri is not None:
                            keys[uri] = job
                        if key in tombstones:
                            del tombstones[key]
                    arrival = entry.arrival
                    if arrival > state.arrival:  # noqa: PLR1730 - max() takes three times as long
                        state.arrival = arrival
            elif removals.doubtful and records.is_unapplied(start, body, end):
                pass
            elif command == _COMPLETE:
                found = jobs.get(data[body + job_id_at : body + fields_at])
                if (
                    data.startswith(MAGIC, body + short_field_at)
                    and data[body + fields_at] == end - body - RESULT_BESIDES_BYTES
                ):
                    try:
                        done = _decode_completion(
                            data[body + short_field_at + MAGIC_BYTES : end - CRC_BYTES]
                        )
                    except (msgspec.MsgspecError, ValueError) as error:
                        self._damaged(start, end, f"a completion cannot be read: {error}")
                        index += 1
                        continue
                    if found is not None:
                        state.remove(found)
                    else:
                        state.note_serial(done.facts)
                        if orphans:
                            state.settle(data[body + job_id_at : body + fields_at])
                    stamp = data[start : start + TIME_BYTES]
                    if stamp != stamp_before:
                        stamp_before = stamp
                        time = instant_at(data, start)
                    if done.timestamp is None:
                        index += 1
                        continue
                    key = done.key
                    if removals.standing:
                        removals.pardon(key, done.timestamp, done.facts)
                    if key in keys or key in tombstones:
                        state.leave_tombstone(key, done.timestamp, time)
                    else:
                        tombstones[key] = ReplayedTombstone(done.timestamp, time)
                else:
                    self._apply(start, body, end)
            else:
                self._apply(start, body, end)
            index += 1
        state.records += index - first
        return index

    def _apply(self, start: int, body: int, end: int) -> None:
        try:
            self.records.apply(start, body, end)
        except LogCorruptError as error:
            self._damaged(start, end, error.message)

    def _damaged(self, start: int, end: int, reason: str) -> None:
        self.damage.append(CorruptRegion(start, end, reason))
        assert self._replayed is not None
        removals = self._removals
        removals.doubtful |= doubtful_behind(self.records.data, self._replayed, end)

    # --- operations and groups ------------------------------------------------------------------

    def _replay_operation(
        self, run: RecordRun, index: int, start: int, at: int, *, last: bool
    ) -> int:
        """Apply the operation whose payload is at ``at``; return the index of its last record."""
        end = run.ends[index]
        try:
            operation = unpack_operation(self.records.data[at : end - JOB_TAIL_BYTES])
        except (msgspec.MsgspecError, ValueError) as error:
            self._damaged(start, end, f"an operation cannot be read: {error}")
            return index
        if isinstance(operation, Lease):
            return self._replay_lease(run, index, operation, last=last)
        if isinstance(operation, Batch | End) and operation.following >= len(run) - index:
            self._unfinished(run.offset(index), last=last)
            if self.cut is not None:
                return index
        if not isinstance(operation, Batch):
            self.records.apply_operation(operation, start, end)
        return index

    def _replay_lease(self, run: RecordRun, head: int, lease: Lease, *, last: bool) -> int:
        data = self.records.data
        state = self.state
        jobs = state.jobs
        superseded = state.superseded
        bodies = run.bodies
        ends = run.ends
        following = max(0, lease.following)
        missing = following >= len(bodies) - head
        if missing and all(data[body] == _START_ATTEMPT for body in bodies[head + 1 :]):
            self._unfinished(run.offset(head), last=last)
            if self.cut is not None:
                return head
        time = instant_at(data, run.offset(head))
        since = lease.since or time
        began = state.began_ahead
        notes_begin = time > began.present_us or bool(began.leases)
        if not lease.again:
            state.last_token = lease.token
        stop = min(len(bodies), head + 1 + following)
        for index in range(head + 1, stop):
            body = bodies[index]
            if data[body] != _START_ATTEMPT or ends[index] - body != SIMPLE_TAIL_BYTES:
                self._unfinished(run.offset(head), last=False)
                return index - 1
            job = jobs.get(data[body + JOB_ID_AT : body + FIELDS_AT])
            if job is None:
                # compaction or damage has taken it away
                at = (index - head - 1) * DUE_BYTES
                state.note_serial(lease.facts[at : at + DUE_BYTES])
                continue
            if not lease.again:
                state.note_delivery(job.key, time)
            if superseded or notes_begin or job.more.lease_end:
                state.lease(job, lease.token, time)
            else:
                job.token = lease.token
                job.starts += 1
            job.lease_start = since
            if lease.attempts or job.more.lease_attempts_max:
                job.own().lease_attempts_max = lease.attempts
        return stop - 1

    def _unfinished(self, offset: int, *, last: bool) -> None:
        if last:
            self.cut = offset
        else:
            self.state.odd["a group that is not all there"] += 1


class BlockReplay:
    """Replays a run of records; those in blocks together.

    Args:
        replay: Replay at the segment of the run.
        run: From ``scan_segment``.
        blocks: Blocks of the run, in ascending order.
    """

    def __init__(self, replay: Replay, run: RecordRun, blocks: Iterator[EntryBlock]) -> None:
        self._replay = replay
        self._run = run
        self._blocks = blocks
        self._block = next(blocks, None)

    def replay(self, first: int, stop: int, *, last: bool) -> int:
        """Replay records ``first`` to about ``stop``; see ``Replay.replay``."""
        replay = self._replay
        run = self._run
        stop = min(stop, len(run))
        index = first
        while index < stop:
            block = self._block
            begin = stop if block is None else min(block.first, stop)
            if index < begin:
                index = replay.replay_stretch(run, index, begin, last=last)
                if replay.cut is not None:
                    return index
                continue
            assert block is not None
            # no group of records reaches into a block: its members are no entries
            assert index == block.first, (index, block.first)
            self._place(block, stop - index)
            index += min(len(block.jobs), stop - index)
            if index == block.first + len(block.jobs):
                self._block = next(self._blocks, None)
            else:
                self._block = EntryBlock(index, block.arrival, block.jobs[index - block.first :])
        replay.state.drop_tombstones()
        return index

    def _place(self, block: EntryBlock, number_max: int) -> None:
        """Make the first entries of a block live, at most so many."""
        records, state = self._replay.records, self._replay.state
        jobs = block.jobs[:number_max]
        if jobs[0].job_id[:RUN_BYTES] != records.run:
            records.begin_run(jobs[0].job_id)
        if not _place_together(state, jobs):
            for index, job in enumerate(jobs, block.first):
                self._place_one(job, index)
        state.arrival = max(state.arrival, block.arrival)
        state.records += len(jobs)

    def _place_one(self, job: ReplayedEntry, index: int) -> None:
        state = self._replay.state
        jobs, keys, key, uri = state.jobs, state.keys, job.key, job.uri
        if key in keys or (uri is not None and uri in keys) or job.job_id in jobs:
            state.place(job, instant_at(self._replay.records.data, self._run.offset(index)))
            return
        jobs[job.job_id] = keys[key] = job
        if uri is not None:
            keys[uri] = job
        state.tombstones.pop(key, None)


def _place_together(state: ReplayState, jobs: list[ReplayedEntry]) -> bool:
    """Make entries live, and return True; False: some meet others, and nothing has changed."""
    ids = [job.job_id for job in jobs]
    primary = [job.key for job in jobs]
    with_uri = [job for job in jobs if job.uri is not None]
    further = [job.uri for job in with_uri if job.uri is not None]
    live, keys, tombstones = state.jobs, state.keys, state.tombstones
    if (
        all(map(is_, map(live.setdefault, ids, jobs), jobs))
        and all(map(is_, map(keys.setdefault, primary, jobs), jobs))
        and all(map(is_, map(keys.setdefault, further, with_uri), with_uri))
    ):
        if tombstones and not tombstones.keys().isdisjoint(primary):
            for key in primary:
                tombstones.pop(key, None)
        return True
    for job in reversed(jobs):
        if live.get(job.job_id) is job:
            del live[job.job_id]
        for taken in (job.key, job.uri):
            if taken is not None and keys.get(taken) is job:
                del keys[taken]
    return False
