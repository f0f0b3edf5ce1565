"""Compaction of one sealed segment of the log: dead records are removed from disk.

The module has over 600 lines, because the steps, their order and the states that a crash leaves are
one protocol.

Compaction is a generator that requests each step from its driver. The driver is the daemon, or a
test that crashes at every point. It answers these steps:

- ``TURN``: let other tasks run; the answer is the present instant;
- ``NOW``: answer with the present instant at once;
- ``DURABLE``: wait until everything appended so far is durable;
- ``Blocking``: call a function that accesses files, outside of the event loop, and send back its
  result, or throw the ``LogFailedError``, ``LogLockedError`` or ``LogCorruptError`` that it raises
  into the generator;
- ``Blocking`` with ``exclusive``: the same, and no snapshot begins before the next request of the
  generator; where a segment is replaced, before all entries have their new positions.

A driver that ends early, because the daemon stops, throws ``CompactionStoppedError`` into the
generator. A crash throws nothing.

No crash leaves the state of a segment in doubt. The order of steps is: copy forward, take the read
lock, log the new state of the segment (rewritten or removed), wait until the log is durable,
replace or unlink the file. ``cmdlog.recovery.segment_chain`` accepts the state before and after.
While another process reads the log, a compaction writes nothing, or its writes count the next time:
it does not write the same records again and again.

Live records of a segment are copied forward: they are appended to the end of the log. Entries are
written in their current state, under new job ids, and the old ids are removed: older records about
these entries are obsolete. So a segment with live records can be removed.

The module has over 600 lines, because copy forward, rewrite and removal of a segment share one
order of steps and its state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from enum import Enum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.envelope import unpack_completion
from fastjournal.cmdlog.format.layout import TIME_BYTES, Command, SegmentInfo, pack_position
from fastjournal.cmdlog.format.operation_records import (
    Delivered,
    Extend,
    Lease,
    Limit,
    Operation,
    Pause,
    SegmentRemoved,
    SegmentRewritten,
    SegmentStart,
    Tombstone,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import (
    Record,
    decode_bounds,
    decode_record,
    decode_time,
    outer_stamps,
)
from fastjournal.cmdlog.locks import lock_read
from fastjournal.cmdlog.read_value import Whereabouts, read_value, value_in
from fastjournal.disk import Disk, DiskLock
from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.limits import (
    COMPACTION_RETRY_US,
    COPIED_ENTRIES_MAX,
    FILTERED_RECORDS_MAX,
    WRITTEN_BYTES_MAX,
)
from fastjournald.compaction.liveness import Liveness
from fastjournald.compaction.policy import MOVED_RECORD_BYTES, UNDERSIZED, awaited_most
from fastjournald.compaction.segment_filter import SegmentFilter
from fastjournald.engine.value_memory import fill_value
from fastjournald.tables.entry import Cold
from fastjournald.wal.segment_usage import SegmentScore

if TYPE_CHECKING:
    from fastjournal.cmdlog.writer import LogWriter
    from fastjournald.compaction.segment_filter import KeptRecords
    from fastjournald.engine.store import Store
    from fastjournald.tables.entry import Entry
    from fastjournald.wal.journal import Journal


class CompactionWish(Enum):
    """Request of a compaction to its driver that is not a call."""

    TURN = "turn"
    NOW = "now"
    DURABLE = "durable"


TURN, NOW, DURABLE = CompactionWish.TURN, CompactionWish.NOW, CompactionWish.DURABLE


class CompactionStoppedError(Exception):
    """The daemon stops: the compaction must leave no half-written file."""


class Blocking(msgspec.Struct, frozen=True):
    """A call that accesses files."""

    call: Callable[[], Any]
    exclusive: bool = False


class CompactionOutcome(StrEnum):
    """End of the compaction of a segment."""

    REMOVED = "removed"
    """All its records were dead."""
    MOVED = "moved"
    """Its live records were appended to the log, and it was removed."""
    REWRITTEN = "rewritten"
    LEFT = "left"
    """Unchanged: too few of its bytes are dead."""
    FAILED = "failed"
    """It is damaged, or another process reads the log, or the disk is full."""


class CompactionResult(NamedTuple):
    """Outcome of a compaction, and the reason of a failure."""

    outcome: CompactionOutcome
    reason: str = ""

    def __str__(self) -> str:
        return self.reason or self.outcome.value


Compaction: TypeAlias = Generator[CompactionWish | Blocking, Any, CompactionResult]


class SegmentFiles:
    """Segment files of a log: lock, rewrite, replace and remove.

    Args:
        journal: Journal that records each change of a segment.
        writer: Writer of the log.
        disk: Disk of the log.
        directory: Directory of the log.
    """

    def __init__(self, journal: Journal, writer: LogWriter, disk: Disk, directory: str) -> None:
        self.writer = writer
        self.disk = disk
        self.directory = directory
        self._journal = journal
        self._lock = Blocking(partial(lock_read, disk, directory, exclusive=True))

    def path(self, info: SegmentInfo) -> str:
        """Return the path of a segment."""
        return f"{self.directory}/{info.name}"

    # --- steps of a compaction --------------------------------------------------------------------

    def probe(self) -> Generator[Blocking, Any, None]:
        """Check that no other process reads the log.

        Raises:
            LogLockedError: Another process reads the log.
        """
        lock: DiskLock = yield self._lock
        lock.close()

    def lock(self, info: SegmentInfo) -> Generator[Blocking, Any, DiskLock]:
        """Take and return the read lock; on failure delete the file beside the segment.

        Raises:
            LogLockedError: Another process reads the log.
        """
        try:
            lock: DiskLock = yield self._lock
        except LogLockedError:
            yield Blocking(partial(self.drop_beside, info))
            raise
        return lock

    def remove(self, info: SegmentInfo) -> Generator[CompactionWish | Blocking, Any, None]:
        """Remove a segment without live records.

        Raises:
            LogLockedError: Another process reads the log; nothing was written.
            LogFailedError: It could not be removed: the daemon must end.
        """
        journal, usage = self._journal, self._journal.usage
        lock: DiskLock = yield self._lock
        with closing(lock):
            now = yield NOW
            before = usage.previous.get(info.number)
            for other in self.writer.sealed:
                # the first record of this segment may be the only seal of the one before it
                if other.number != before:
                    continue
                if not usage.seals_in.get(before, set()) - {info.number}:
                    journal.log.segment_rewritten(before, other.bytes, other.crc32c, now, done=True)
            journal.log.segment_removed(info.number, now)
            yield DURABLE
            yield Blocking(partial(self._unlink, info), exclusive=True)
            self.writer.sealed.remove(info)
            usage.remove_segment(info.number)

    # --- outside of the event loop ----------------------------------------------------------------

    def write_beside(self, info: SegmentInfo, kept: KeptRecords) -> SegmentInfo:
        """Write the kept records to a file beside the segment; return its facts.

        Raises:
            LogFailedError: The disk is full; the file was deleted.
        """
        self.drop_beside(info)
        try:
            crc = _write_pieces(self.disk, self.path(info), kept.parts)
        except LogFailedError:
            self.drop_beside(info)
            raise
        stamps = outer_stamps(part[:TIME_BYTES] for part in kept.parts[1:])
        min_us, max_us = decode_bounds(*stamps)
        return msgspec.structs.replace(
            info,
            bytes=kept.size,
            crc32c=crc,
            records=len(kept.parts) - 1,
            first_us=decode_time(kept.parts[1][:TIME_BYTES]),
            last_us=decode_time(kept.parts[-1][:TIME_BYTES]),
            min_us=min_us,
            max_us=max_us,
        )

    def drop_beside(self, info: SegmentInfo) -> None:
        """Delete the file beside a segment, if the disk allows it; otherwise a restart does."""
        beside = f"{self.path(info)}.rw"
        with suppress(LogFailedError):
            if self.disk.exists(beside):
                self.disk.unlink(beside)

    def replace(self, info: SegmentInfo) -> None:
        """Replace a segment by the file beside it; the lock is held.

        Raises:
            LogFailedError: It is unknown which file is in place: the daemon must end.
        """
        path = self.path(info)
        self.disk.rename(f"{path}.rw", path)
        self.disk.sync_directory(self.directory)

    def _unlink(self, info: SegmentInfo) -> None:
        self.disk.unlink(self.path(info))
        self.disk.sync_directory(self.directory)


def _write_pieces(disk: Disk, path: str, parts: list[bytes]) -> int:
    """Create and sync the file beside a segment; return its CRC-32C."""
    crc = size = begin = 0
    with closing(disk.create(f"{path}.rw", like=path)) as file:
        for number, part in enumerate(parts, 1):
            size += len(part)
            if size >= WRITTEN_BYTES_MAX or number == len(parts):
                piece = b"".join(parts[begin:number])
                file.write(piece)
                # one sync of the whole file would delay the syncs of the log
                file.sync()
                crc = google_crc32c.extend(crc, piece)
                size, begin = 0, number
    return crc


def copy_entries(
    store: Store, files: SegmentFiles, job_ids: Iterable[bytes], now: int
) -> Generator[CompactionWish | Blocking, Any, int]:
    """Copy forward the live entries that these jobs still carry; return the present instant.

    Raises:
        LogFailedError: A value that is only on disk cannot be read.
        LogCorruptError: The record of such a value is damaged.
    """
    amended = store.journal.records.amended
    for number, job_id in enumerate(job_ids, 1):
        entry = amended.get(job_id)
        if entry is not None and isinstance(entry.value, Cold):
            place = Whereabouts(entry.position, entry.record_bytes, job_id)
            value = yield Blocking(partial(read_value, files.disk, files.directory, place))
            fill_value(store, entry, job_id, value, evict_first=True)
            # it may have been removed during the read
            entry = amended.get(job_id)
        if entry is not None:
            _copy_entry(store, entry, now)
        if number % COPIED_ENTRIES_MAX == 0:
            yield DURABLE
            now = yield TURN
    return now


def copy_segment(
    store: Store, files: SegmentFiles, segment: SegmentFilter, now: int
) -> Generator[CompactionWish, Any, int]:
    """Copy forward all kept records of a segment; return the present instant."""
    for number, kept in enumerate(segment.kept.entries()):
        entry = segment.entry_at(kept.start, kept.body, kept.end)
        if entry is not None:
            if isinstance(entry.value, Cold):
                value = value_in(segment.data[kept.start : kept.end], entry.job_id)
                fill_value(store, entry, entry.job_id, value, evict_first=True)
            _copy_entry(store, entry, now)
        if number % COPIED_ENTRIES_MAX == 0:
            yield DURABLE
            now = yield TURN
    for number, data in enumerate(segment.kept.others):
        _copy_record(store, decode_record(data)[0], segment.liveness.named_here, now)
        if number % COPIED_ENTRIES_MAX == 0:
            yield DURABLE
            now = yield TURN
    for info in files.writer.sealed:
        # current size and checksum: a copy of older ones would hold after a crash here
        if info.number in segment.liveness.seals:
            store.journal.log.segment_rewritten(
                info.number, info.bytes, info.crc32c, now, done=True
            )
    return now


def copy_deliveries(store: Store, now: int) -> Generator[CompactionWish, Any, int]:
    """Log the last deliveries of domains whose intervals run; return the present instant.

    A lease record proves a delivery only while the record of its job exists in any segment. So this
    runs before a segment is replaced or removed, for all deliveries that only leases prove.
    """
    limits = store.rules.limits
    for number, name in enumerate(list(limits.unlogged), 1):
        if name in limits.unlogged:
            del limits.unlogged[name]
            if limits.waits_until(name) > now:
                store.journal.log.delivered(name, limits.last_delivery(name), now)
        if number % COPIED_ENTRIES_MAX == 0:
            yield DURABLE
            now = yield TURN
    return now


def copy_tombstone(store: Store, key: bytes, now: int) -> None:
    """Log a tombstone again, if it still lasts."""
    found = store.tombstones.find(key, now)
    if found is not None:
        timestamp, deleted_us = found
        store.journal.log.tombstone(key, timestamp, now, deleted_us=deleted_us)
        store.tombstones.recorded_again(key)


def _copy_entry(store: Store, entry: Entry, now: int) -> None:
    taken: tuple[int, ...] | None = None
    if entry.job_id in store.journal.records.superseded:
        further = (entry.uri, *(entry.links or ()))
        taken = tuple(
            number
            for number, key in enumerate(further)
            if key is not None and store.find(key) is not entry
        )
    with store.scheduler.facts_change(entry):
        store.journal.copied_forward(entry, now, taken)


def _copy_record(store: Store, record: Record, named_here: set[int], now: int) -> None:
    """Copy forward a record that is not of an entry, from a segment that is about to be removed."""
    if record.command in (Command.START_ATTEMPT, Command.FAIL):
        # copied with its entry
        return
    if record.command > Command.SCHEDULE:
        copy_tombstone(store, unpack_completion(record.result).key, now)
    else:
        _copy_operation(store, unpack_operation(record.payload), named_here, now)


def _copy_operation(store: Store, operation: Operation, named_here: set[int], now: int) -> None:
    if isinstance(operation, SegmentRemoved):
        if operation.number not in named_here:
            store.journal.log.segment_removed(operation.number, now)
    elif isinstance(operation, Tombstone):
        copy_tombstone(store, operation.key, now)
    elif isinstance(operation, Limit):
        limit = store.rules.limits.own(operation.domain)
        store.journal.log.limited(operation.domain, limit, now, again=True)
    elif isinstance(operation, Delivered):
        limits = store.rules.limits
        if limits.waits_until(operation.domain) > now:
            delivered_at = limits.last_delivery(operation.domain)
            store.journal.log.delivered(operation.domain, delivered_at, now)
    elif isinstance(operation, Pause):
        until = store.rules.pauses.until(operation.domain)
        store.journal.log.paused(operation.domain, until, now, again=True)
    else:
        # the active segment has these in the end, or they were copied with their entry
        assert isinstance(operation, SegmentStart | SegmentRewritten | Lease | Extend)


KEPT_MAX = 0.75
"""Share of its bytes: a segment with more kept bytes stays unchanged."""

READ_SCORE = SegmentScore(0)
READ = "somebody reads the log"
AWAITS_ARCHIVE = "its link in the archive is not durable"

_Steps: TypeAlias = Generator[CompactionWish | Blocking, Any, int]
"""A stage; it returns the present instant."""


class _CompactionFailedError(Exception):
    """The segment must stay unchanged."""


def compact_segment(
    store: Store, writer: LogWriter, disk: Disk, directory: str, info: SegmentInfo, now: int
) -> Compaction:
    """Compact one sealed segment.

    Args:
        store: Store of the log.
        writer: Writer of the log.
        disk: Disk of the log.
        directory: Directory of the log.
        info: The segment.
        now: Present instant.

    Raises:
        LogFailedError: A segment could not be replaced or unlinked: the daemon must end.
        CompactionStoppedError: Thrown by the driver; no file is left beside the segment.
    """
    usage = store.journal.usage
    if usage.awaits_archive(info.number):
        return CompactionResult(CompactionOutcome.FAILED, AWAITS_ARCHIVE)
    files = SegmentFiles(store.journal, writer, disk, directory)
    try:
        try:
            yield from files.probe()
        except LogFailedError as error:
            return CompactionResult(CompactionOutcome.FAILED, f"not read: {error}")
        if info.number in usage.moved:
            yield from files.remove(info)
            return CompactionResult(CompactionOutcome.REMOVED)
        return (yield from _SegmentCompaction(store, files, info).run(now))
    except LogLockedError:
        usage.scores[info.number] = READ_SCORE
        return CompactionResult(CompactionOutcome.FAILED, READ)
    except _CompactionFailedError as error:
        return CompactionResult(CompactionOutcome.FAILED, str(error))


class _SegmentCompaction:
    """Stages of one compaction: filter, copy forward, assemble; then move, keep or rewrite."""

    def __init__(self, store: Store, files: SegmentFiles, info: SegmentInfo) -> None:
        self._store = store
        self._journal = store.journal
        self._usage = store.journal.usage
        self._files = files
        self._writer = files.writer
        self._info = info
        self._compacted_in = self._writer.next_number
        self._present = frozenset(segment.number for segment in self._writer.sealed)

    def run(self, now: int) -> Compaction:
        info, usage, writer = self._info, self._usage, self._writer
        # until the result is known
        usage.scores[info.number] = SegmentScore(now + COMPACTION_RETRY_US, failed=True)
        awaited = awaited_most(self._store, writer, self._present, now) == info.number
        now = yield from self._filter(now)
        now = yield from self._copy_changed_entries(now)
        for _ in self._segment.assemble(now):
            now = yield TURN
        self._dead_in = writer.next_number
        self._set_score(now)
        kept = self._segment.kept
        undersized = kept.size < UNDERSIZED * writer.segment_bytes_max
        moves = info.number in usage.merging or (undersized and (awaited or self._move_gains()))
        if moves and not self._segment.liveness.fixed:
            yield from self._move(now)
            return CompactionResult(
                CompactionOutcome.MOVED if kept.has_entries else CompactionOutcome.REMOVED
            )
        if self._segment.all_stays:
            # no dead record in it that could return
            self._was_compacted()
            return CompactionResult(CompactionOutcome.LEFT)
        if kept.size > KEPT_MAX * info.bytes and not awaited:
            return CompactionResult(CompactionOutcome.LEFT)
        yield from copy_deliveries(self._store, now)
        yield from self._rewrite()
        return CompactionResult(CompactionOutcome.REWRITTEN)

    # --- stages ---------------------------------------------------------------------------------

    def _filter(self, now: int) -> _Steps:
        """Read the segment, and check the liveness of each of its records."""
        files, info = self._files, self._info
        try:
            data = yield Blocking(partial(files.disk.read, files.path(info)))
        except LogFailedError as error:
            raise _CompactionFailedError(f"not read: {error}") from error
        store = self._store
        liveness = Liveness(store, info.number, data, self._present, self._compacted_in)
        self._segment = SegmentFilter(data, liveness)
        try:
            while not self._segment.done:
                self._segment.step(now)
                now = yield TURN
        except LogCorruptError as error:
            raise _CompactionFailedError(
                f"damaged at offset {error.offset}: {error.message}"
            ) from error
        return now

    def _copy_changed_entries(self, now: int) -> _Steps:
        """Copy forward entries that have other records besides their own."""
        store, files = self._store, self._files
        copied = self._segment.liveness.copy_forward
        try:
            now = yield from copy_entries(store, files, copied, now)
            superseded = self._journal.records.unrecorded_superseded()
            return (yield from copy_entries(store, files, superseded, now))
        except (LogFailedError, LogCorruptError) as error:
            raise _CompactionFailedError(f"not read: {error}") from error

    def _set_score(self, now: int) -> None:
        """Store the score, so that the segment is not filtered again in vain."""
        number = self._info.number
        liveness = self._segment.liveness
        total, count = liveness.expiries
        # at the mean expiry of its kept records
        again_at = max(total // count, now + 1) if count else now + COMPACTION_RETRY_US
        self._usage.scores[number] = SegmentScore(
            again_at,
            self._usage.live[number],
            tuple(liveness.removals.waits),
            appended=self._writer.appended,
            pauses=tuple(liveness.pauses),
            fixed=liveness.fixed,
        )

    def _move(self, now: int) -> Generator[CompactionWish | Blocking, Any, None]:
        """Copy forward all kept records, and remove the segment."""
        self._copy_former_tombstones(now)
        now = yield from copy_segment(self._store, self._files, self._segment, now)
        yield from copy_deliveries(self._store, now)
        self._usage.moved.add(self._info.number)
        yield from self._files.remove(self._info)

    def _rewrite(self) -> Generator[CompactionWish | Blocking, Any, None]:
        """Replace the segment by a file of its kept records."""
        files, info = self._files, self._info
        try:
            try:
                replaced = yield Blocking(partial(files.write_beside, info, self._segment.kept))
            except LogFailedError as error:
                raise _CompactionFailedError(f"not rewritten: {error}") from error
            yield from self._replace(replaced)
        except CompactionStoppedError:
            files.drop_beside(info)
            raise

    def _replace(self, replaced: SegmentInfo) -> Generator[CompactionWish | Blocking, Any, None]:
        """Replace the segment by the file that was written beside it."""
        info, usage, journal = self._info, self._usage, self._journal
        size, crc32c = replaced.bytes, replaced.crc32c
        with closing((yield from self._files.lock(info))):
            now = yield NOW
            if self._writer.active is None:
                # otherwise the first record of the active segment has it
                journal.leases.newest_token(now)
            self._copy_former_tombstones(now)
            journal.log.segment_rewritten(info.number, size, crc32c, now, done=False)
            # dropped records are now removed by, or copied to, durable records
            yield DURABLE
            # evicted values are found at old and at new positions during the replacement
            usage.replacing(info.number, self._segment.data)
            try:
                yield Blocking(partial(self._files.replace, info), exclusive=True)
            except BaseException:  # also where the daemon stops: the old positions hold
                usage.has_replaced(info.number)
                raise
            self._take_over(replaced)
        try:
            yield from self._move_positions()
        finally:
            usage.has_replaced(info.number)
        journal.log.segment_rewritten(info.number, size, crc32c, (yield NOW), done=True)

    # --- parts ----------------------------------------------------------------------------------

    def _copy_former_tombstones(self, now: int) -> None:
        """Log the tombstones of former keys again: the records that left them are dropped."""
        for key in self._segment.liveness.renamed:
            copy_tombstone(self._store, key, now)

    def _move_gains(self) -> bool:
        """Whether a move to the end of the log appends clearly less than it frees.

        Otherwise the same few records are moved after each snapshot: those that other segments keep
        alive, and small entries, each with a removal.
        """
        kept = self._segment.kept
        freed = self._info.bytes - kept.size
        appended = kept.moved_bytes + MOVED_RECORD_BYTES * kept.entry_count
        return appended <= KEPT_MAX * (kept.moved_bytes + freed)

    def _was_compacted(self) -> None:
        emptied = not self._segment.kept.has_entries
        self._usage.was_compacted(
            self._info.number, self._compacted_in, emptied=emptied, dead_in=self._dead_in
        )

    def _take_over(self, replaced: SegmentInfo) -> None:
        """Update the tables after the segment was replaced on disk."""
        usage, liveness = self._usage, self._segment.liveness
        sealed = self._writer.sealed
        sealed[sealed.index(self._info)] = replaced
        self._was_compacted()
        usage.keep_seals(replaced.number, liveness.seals)
        if replaced.number in usage.limited_in:
            usage.limited_in[replaced.number] = liveness.limited
        if replaced.number in usage.paused_until:
            usage.paused_until[replaced.number] = liveness.paused_until

    def _move_positions(self) -> Generator[CompactionWish, Any, None]:
        """Update the record positions of the entries."""
        segment = self._segment
        for number, kept in enumerate(segment.kept.entries()):
            entry = segment.entry_at(kept.start, kept.body, kept.end)
            if entry is not None:
                self._store.before_change(entry)
                with self._store.scheduler.facts_change(entry):
                    entry.move_record(pack_position(self._info.number, kept.start_after))
            if number % FILTERED_RECORDS_MAX == 0:
                yield TURN
