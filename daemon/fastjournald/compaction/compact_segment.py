"""Compaction of one sealed segment of the log: dead records leave the disk.

A generator does it, and asks its driver for each step.

The order makes it safe. Records that have to stand elsewhere are appended first; all of them, and
every removal that was believed, are durable before the segment is replaced or unlinked, by one
rename or unlink, and only when a durable record says so. While another process reads the log
nothing is written at all, or what was written counts the next time.

The driver, which is the daemon or a test that crashes at every point, answers these steps:

- ``TURN``: let others go on; it is answered with the present instant;
- ``NOW``: answer with the present instant at once;
- ``DURABLE``: wait until everything appended so far is durable;
- ``Blocking``: call a function that touches files, outside of the event loop, and send back what it
  returns, or throw in the ``LogFailedError``, ``LogLockedError`` or ``LogCorruptError`` that it
  raises;
- ``Blocking`` with ``exclusive``: the same while nobody begins a snapshot, up to the next request
  of the generator, or where a segment is replaced, until all entries know of that.

A driver that ends early, because the daemon stops, throws in ``CompactionStoppedError`` instead of
an answer. A crash throws in nothing.

A sealed segment is replaced or removed so that no crash leaves its state in doubt. The read lock
comes first, then the record that says what the segment will be, or that it will be removed. This is
durable before the file changes, and ``cmdlog.recovery.segment_chain`` knows both states. So nothing
is written again and again while somebody reads the log.

Copy forward: live records of a segment are appended to the end of the log. Entries are written as
they are, under fresh job ids, and the old ids are removed: no record about
them from before matters any more. So a segment can go although something in it is live.
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
    """A wish of a compaction that is no call."""

    TURN = "turn"
    NOW = "now"
    DURABLE = "durable"


TURN, NOW, DURABLE = CompactionWish.TURN, CompactionWish.NOW, CompactionWish.DURABLE


class CompactionStoppedError(Exception):
    """The daemon stops: the compaction has to leave nothing half done on the disk."""


class Blocking(msgspec.Struct, frozen=True):
    """A call that touches files."""

    call: Callable[[], Any]
    exclusive: bool = False


class CompactionOutcome(StrEnum):
    """End of the compaction of a segment."""

    REMOVED = "removed"
    """Nothing in it mattered any more."""
    MOVED = "moved"
    """The rest of it was appended anew, and it was removed."""
    REWRITTEN = "rewritten"
    LEFT = "left"
    """Too little of it is dead."""
    FAILED = "failed"
    """It is damaged, or is being read, or there is no room."""


class CompactionResult(NamedTuple):
    """Outcome of a compaction, and the reason of a failure."""

    outcome: CompactionOutcome
    reason: str = ""

    def __str__(self) -> str:
        return self.reason or self.outcome.value


Compaction: TypeAlias = Generator[CompactionWish | Blocking, Any, CompactionResult]


class SegmentFiles:
    """The segments of a log, as compaction changes them.

    Args:
        journal: Journal that records each change of them.
        writer: Writer of the log.
        disk: Where it is.
        directory: Directory of the log.
    """

    def __init__(self, journal: Journal, writer: LogWriter, disk: Disk, directory: str) -> None:
        self.writer = writer
        self.disk = disk
        self.directory = directory
        self._journal = journal
        self._lock = Blocking(partial(lock_read, disk, directory, exclusive=True))

    def path(self, info: SegmentInfo) -> str:
        """Return where a segment is."""
        return f"{self.directory}/{info.name}"

    # --- steps of a compaction --------------------------------------------------------------------

    def probe(self) -> Generator[Blocking, Any, None]:
        """Look whether anybody reads the log.

        Raises:
            LogLockedError: Somebody does.
        """
        lock: DiskLock = yield self._lock
        lock.close()

    def lock(self, info: SegmentInfo) -> Generator[Blocking, Any, DiskLock]:
        """Keep others from reading the log, and return the lock; else nothing stays beside.

        Raises:
            LogLockedError: Somebody reads the log.
        """
        try:
            lock: DiskLock = yield self._lock
        except LogLockedError:
            yield Blocking(partial(self.drop_beside, info))
            raise
        return lock

    def remove(self, info: SegmentInfo) -> Generator[CompactionWish | Blocking, Any, None]:
        """Remove a segment, of which nothing matters any more.

        Raises:
            LogLockedError: Somebody reads the log; nothing was written.
            LogFailedError: It could not be removed: the daemon must end.
        """
        journal, usage = self._journal, self._journal.usage
        lock: DiskLock = yield self._lock
        with closing(lock):
            now = yield NOW
            before = usage.previous.get(info.number)
            for other in self.writer.sealed:
                # its first record may be all that tells of the one before it
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
        """Write what is kept of a segment beside it; return what is known of that.

        Raises:
            LogFailedError: There is no room for it; nothing stays beside.
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
        """Delete what was written beside a segment, if the disk lets it: a restart does it else."""
        beside = f"{self.path(info)}.rw"
        with suppress(LogFailedError):
            if self.disk.exists(beside):
                self.disk.unlink(beside)

    def replace(self, info: SegmentInfo) -> None:
        """Put what was written beside a segment in its place; the lock is held.

        Raises:
            LogFailedError: Nobody knows which of the two it is: the daemon must end.
        """
        path = self.path(info)
        self.disk.rename(f"{path}.rw", path)
        self.disk.sync_directory(self.directory)

    def _unlink(self, info: SegmentInfo) -> None:
        self.disk.unlink(self.path(info))
        self.disk.sync_directory(self.directory)


def _write_pieces(disk: Disk, path: str, parts: list[bytes]) -> int:
    """Create a file of all of it beside a segment, synced, and return its CRC-32C."""
    crc = size = begin = 0
    with closing(disk.create(f"{path}.rw", like=path)) as file:
        for number, part in enumerate(parts, 1):
            size += len(part)
            if size >= WRITTEN_BYTES_MAX or number == len(parts):
                piece = b"".join(parts[begin:number])
                file.write(piece)
                # a sync of all of it at once would hold up those of the log
                file.sync()
                crc = google_crc32c.extend(crc, piece)
                size, begin = 0, number
    return crc


def copy_entries(
    store: Store, files: SegmentFiles, job_ids: Iterable[bytes], now: int
) -> Generator[CompactionWish | Blocking, Any, int]:
    """Copy entries forward that are live and still carried by these jobs; return the present.

    Raises:
        LogFailedError: A value that is on disk only cannot be read.
        LogCorruptError: So it is.
    """
    amended = store.journal.records.amended
    for number, job_id in enumerate(job_ids, 1):
        entry = amended.get(job_id)
        if entry is not None and isinstance(entry.value, Cold):
            place = Whereabouts(entry.position, entry.record_bytes, job_id)
            value = yield Blocking(partial(read_value, files.disk, files.directory, place))
            fill_value(store, entry, job_id, value, first_to_leave=True)
            # it may have gone meanwhile
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
    """Copy forward all that is kept of a segment; return the present."""
    for number, kept in enumerate(segment.kept.entries()):
        entry = segment.entry_at(kept.start, kept.body, kept.end)
        if entry is not None:
            if isinstance(entry.value, Cold):
                value = value_in(segment.data[kept.start : kept.end], entry.job_id)
                fill_value(store, entry, entry.job_id, value, first_to_leave=True)
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
        # as it is now: its earlier facts, repeated, would hold if a crash cuts this
        if info.number in segment.liveness.seals:
            store.journal.log.segment_rewritten(
                info.number, info.bytes, info.crc32c, now, done=True
            )
    return now


def copy_deliveries(store: Store, now: int) -> Generator[CompactionWish, Any, int]:
    """Write the last deliveries of domains whose intervals run; return the present.

    A lease record proves one only while the record of its job stands too, wherever that is. So this
    comes before a segment is replaced or removed, for all that only leases prove.
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
    """Tell a tombstone anew, if it stands."""
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
    """Tell anew what a record that is no entry's says, in a segment that is about to go."""
    if record.command in (Command.START_ATTEMPT, Command.FAIL):
        # with its entry
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
        # told by the segment that is appended to, in the end, or with its entry
        assert isinstance(operation, SegmentStart | SegmentRewritten | Lease | Extend)


KEPT_MAX = 0.75
"""Share of its bytes: a segment of which more stays is left as it is."""

READ_SCORE = SegmentScore(0)
READ = "somebody reads the log"
AWAITS_ARCHIVE = "its link in the archive is not durable"

_Steps: TypeAlias = Generator[CompactionWish | Blocking, Any, int]
"""A stage; it returns the present."""


class _CompactionFailedError(Exception):
    """The segment has to stay as it is."""


def compact_segment(
    store: Store, writer: LogWriter, disk: Disk, directory: str, info: SegmentInfo, now: int
) -> Compaction:
    """Compact one sealed segment.

    Args:
        store: Store whose log it is.
        writer: Writer of the log.
        disk: Where it is.
        directory: Directory of the log.
        info: The segment.
        now: The present instant.

    Raises:
        LogFailedError: A segment could not be replaced or unlinked: the daemon must end.
        CompactionStoppedError: The driver has thrown it in; no file is left beside the segment.
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
    """The stages of one compaction: filter, copy forward, assemble; then move, leave or rewrite."""

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
        # until it is known better
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
            # there is nothing in it that could return
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
        """Append entries anew of which other records than their own tell."""
        store, files = self._store, self._files
        copied = self._segment.liveness.copy_forward
        try:
            now = yield from copy_entries(store, files, copied, now)
            superseded = self._journal.records.unrecorded_superseded()
            return (yield from copy_entries(store, files, superseded, now))
        except (LogFailedError, LogCorruptError) as error:
            raise _CompactionFailedError(f"not read: {error}") from error

    def _set_score(self, now: int) -> None:
        """Note what was found, so that the segment is not looked at again in vain."""
        number = self._info.number
        liveness = self._segment.liveness
        total, count = liveness.expiries
        # at the mean of what ends by itself
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
        """Append all that is kept anew, and remove the segment."""
        self._copy_former_tombstones(now)
        now = yield from copy_segment(self._store, self._files, self._segment, now)
        yield from copy_deliveries(self._store, now)
        self._usage.moved.add(self._info.number)
        yield from self._files.remove(self._info)

    def _rewrite(self) -> Generator[CompactionWish | Blocking, Any, None]:
        """Replace the segment by what is kept of it."""
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
        """Put what was written beside the segment in its place."""
        info, usage, journal = self._info, self._usage, self._journal
        size, crc32c = replaced.bytes, replaced.crc32c
        with closing((yield from self._files.lock(info))):
            now = yield NOW
            if self._writer.active is None:
                # else the first record of the active segment says it
                journal.leases.newest_token(now)
            self._copy_former_tombstones(now)
            journal.log.segment_rewritten(info.number, size, crc32c, now, done=False)
            # records dropped here are removed, or stand elsewhere, in records that no crash takes
            # back
            yield DURABLE
            # values that are on disk only are found all the time, by old and by new positions
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
        """Tell the tombstones of former keys anew: the records that left them go."""
        for key in self._segment.liveness.renamed:
            copy_tombstone(self._store, key, now)

    def _move_gains(self) -> bool:
        """Whether a move to the end of the log appends clearly less than is in the segment.

        Else the same few records would be moved each time that a snapshot seals them: those of
        other segments, which stay as long as these; and small entries, each with a removal.
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
        """The segment on the disk is another one by now."""
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
        """Tell the entries where their records are by now."""
        segment = self._segment
        for number, kept in enumerate(segment.kept.entries()):
            entry = segment.entry_at(kept.start, kept.body, kept.end)
            if entry is not None:
                self._store.before_change(entry)
                with self._store.scheduler.facts_change(entry):
                    entry.move_record(pack_position(self._info.number, kept.start_after))
            if number % FILTERED_RECORDS_MAX == 0:
                yield TURN
