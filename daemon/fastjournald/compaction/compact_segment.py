"""Compaction of one sealed segment of the log: dead records leave the disk.

A generator does it, and says what it needs from whoever drives it (``compaction.steps``).

The order makes it safe. Records that have to stand elsewhere are appended first; all of them, and
every removal that was believed, are durable before the segment is replaced or unlinked, by one
rename or unlink, and only when a durable record says so. While another process reads the log
nothing is written at all, or what was written counts the next time.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from fastjournal.cmdlog.format.segments import SegmentInfo, pack_position
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.limits import COMPACTION_RETRY_US, FILTERED_RECORDS_MAX
from fastjournald.compaction.copy_forward import (
    copy_deliveries,
    copy_entries,
    copy_segment,
    copy_tombstone,
)
from fastjournald.compaction.liveness import Liveness
from fastjournald.compaction.policy import MOVED_RECORD_BYTES, UNDERSIZED, awaited_most
from fastjournald.compaction.replace_segment import SegmentFiles
from fastjournald.compaction.segment_filter import SegmentFilter
from fastjournald.compaction.steps import (
    DURABLE,
    NOW,
    TURN,
    Blocking,
    Compaction,
    CompactionOutcome,
    CompactionResult,
    CompactionStoppedError,
    CompactionWish,
)
from fastjournald.wal.segment_usage import SegmentScore

if TYPE_CHECKING:
    from fastjournal.cmdlog.writer import LogWriter
    from fastjournald.engine.store import Store

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
