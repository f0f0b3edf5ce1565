"""Cleaning one sealed segment of the log: what is dead in it leaves the disk.

A generator does it, and says what it needs from whoever drives it (``replace_segment``), the
daemon or a test that crashes at every point.

The order is what makes it safe. What has to stand elsewhere is appended first; all of it, and every
removal that was believed, is durable before the segment is replaced or unlinked, by one rename or
unlink, and only when a durable record says so. Where somebody reads the log nothing is written at
all, or what was written counts the next time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from fastjournal.cmdlog.format.envelope import unpack_completion
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import (
    Lease,
    Pause,
    SegmentRemoved,
    SegmentRewritten,
    SegmentStart,
    Tombstone,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.format.segments import SegmentInfo, pack_position
from fastjournal.cmdlog.read_value import Whereabouts, read_value, value_in
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.limits import (
    LOOK_AGAIN_US,
    RESTATED_ENTRIES_MAX,
    SIFTED_RECORDS_MAX,
)
from fastjournald.compaction.kept_records import KeptRecords
from fastjournald.compaction.policy import TINY, awaited_most
from fastjournald.compaction.replace_segment import (
    DURABLE,
    NOW,
    TURN,
    Blocking,
    Cleaning,
    Files,
    Signal,
)
from fastjournald.compaction.segment_filter import Sifting
from fastjournald.tables.value_cache import Cold
from fastjournald.wal.segment_usage import Look

if TYPE_CHECKING:
    from fastjournal.cmdlog.writer import LogWriter
    from fastjournald.engine.store import Store
    from fastjournald.tables.entry import Entry

OUTCOMES = ("removed", "moved", "rewritten", "left", "failed")
"""Ends of the compaction of a segment; ``failed``: it is damaged, or is being read, or there is no
room."""

LEFT_MAX = 0.75
"""Of its bytes that stay: a segment of which more stays is left as it is."""

READ_LOOK = Look(0)
READ = "somebody reads the log"


def clean_segment(
    store: Store, writer: LogWriter, disk: Disk, directory: str, info: SegmentInfo, now: int
) -> Cleaning:
    """Clean one sealed segment.

    Args:
        store: Whose log it is.
        writer: Of the log.
        disk: Where it is.
        directory: Of the log.
        info: The segment.
        now: The present instant.

    Raises:
        LogFailedError: A segment could not be replaced or unlinked: the daemon must end.
    """
    usage = store.journal.usage
    files = Files(store.journal, writer, disk, directory)
    try:
        try:
            yield from files.probe()
        except LogFailedError as error:
            return f"not read: {error}"
        if info.number in usage.moved:
            yield from files.remove(info)
            return "removed"
        return (yield from _clean(store, files, info, now))
    except LogLockedError:
        usage.looks[info.number] = READ_LOOK
        return READ


def _clean(store: Store, files: Files, info: SegmentInfo, now: int) -> Cleaning:
    journal, writer = store.journal, files.writer
    usage = journal.usage
    # until it is known better
    usage.looks[info.number] = Look(now + LOOK_AGAIN_US, failed=True)
    cleaned_in = writer.next_number
    present = frozenset(segment.number for segment in writer.sealed)
    awaited = awaited_most(store, writer, present, now) == info.number
    try:
        data = yield Blocking(partial(files.disk.read, files.path(info)))
    except LogFailedError as error:
        return f"not read: {error}"
    sifting = Sifting(store, info.number, data, present, cleaned_in)
    try:
        while not sifting.done:
            sifting.step(now)
            now = yield TURN
    except LogCorruptError as error:
        return f"damaged at offset {error.offset}: {error.message}"
    try:
        now = yield from _restate(store, files, sifting.restate, now)
        now = yield from _restate(store, files, journal.records.unsaid(), now)
    except (LogFailedError, LogCorruptError) as error:
        return f"not read: {error}"
    for _ in sifting.assemble(now):
        now = yield TURN
    dead_in = writer.next_number
    left = sifting.left
    usage.looks[info.number] = Look(
        _again_at(sifting, now),
        usage.live[info.number],
        tuple(sifting.waits),
        appended=writer.appended,
        pauses=tuple(sifting.pauses),
        stuck=sifting.stuck,
    )
    tiny = left.size < TINY * writer.segment_bytes_max or info.number in usage.merging
    if tiny and not sifting.stuck:
        _tell_renamed(store, sifting, now)
        yield from _move(store, writer, sifting, left, now)
        usage.moved.add(info.number)
        yield from files.remove(info)
        return "moved" if left.entries else "removed"
    if sifting.all_stays:
        # there is nothing in it that could return
        usage.was_cleaned(info.number, cleaned_in, emptied=not left.entries, dead_in=dead_in)
        return "left"
    if left.size > LEFT_MAX * info.bytes and not awaited:
        return "left"
    try:
        replaced = yield Blocking(partial(files.write_beside, info, left))
    except LogFailedError as error:
        return f"not rewritten: {error}"
    with closing((yield from files.lock(info))):
        now = yield NOW
        if writer.active is None:
            # else the first record of the active segment says it
            journal.newest_token(now)
        _tell_renamed(store, sifting, now)
        journal.segment_rewritten(info.number, replaced.bytes, replaced.crc32c, now, done=False)
        # what is dropped here is removed, or stands elsewhere, in records that no crash takes back
        yield DURABLE
        # values that are on disk only are found all the time, by old positions and by new ones
        usage.replacing(info.number, data)
        try:
            yield Blocking(partial(files.replace, info), exclusive=True)
        except BaseException:
            usage.has_replaced(info.number)
            raise
        writer.sealed[writer.sealed.index(info)] = replaced
        usage.was_cleaned(info.number, cleaned_in, emptied=not left.entries, dead_in=dead_in)
        usage.tells(info.number, sifting.tells)
        if info.number in usage.paused_until:
            usage.paused_until[info.number] = sifting.paused_until
    try:
        yield from _reposition(store, sifting, left, info.number)
    finally:
        usage.has_replaced(info.number)
    now = yield NOW
    journal.segment_rewritten(info.number, replaced.bytes, replaced.crc32c, now, done=True)
    return "rewritten"


def _tell_renamed(store: Store, sifting: Sifting, now: int) -> None:
    """Tell the tombstones of former keys anew: the records that left them go."""
    for key in sifting.renamed:
        _tell_tombstone(store, key, now)


def _again_at(sifting: Sifting, now: int) -> int:
    """Return when another look is of use: at the mean of what ends by itself."""
    total, number = sifting.expiries
    return max(total // number, now + 1) if number else now + LOOK_AGAIN_US


def _restate(
    store: Store, files: Files, job_ids: Iterable[bytes], now: int
) -> Generator[Signal | Blocking, Any, int]:
    """Append entries anew that are live and still carried by these jobs; return the present."""
    amended = store.journal.records.amended
    for number, job_id in enumerate(job_ids, 1):
        entry = amended.get(job_id)
        if entry is not None and isinstance(entry.value, Cold):
            place = Whereabouts(entry.position, entry.record_bytes, job_id)
            value = yield Blocking(partial(read_value, files.disk, files.directory, place))
            store.warm_up(entry, job_id, value, first_to_leave=True)
            # it may have gone meanwhile
            entry = amended.get(job_id)
        if entry is not None:
            _restate_entry(store, entry, now)
        if number % RESTATED_ENTRIES_MAX == 0:
            yield DURABLE
            now = yield TURN
    return now


def _move(
    store: Store, writer: LogWriter, sifting: Sifting, left: KeptRecords, now: int
) -> Generator[Signal, Any, int]:
    """Append what is left anew, at the end of the log; return the present."""
    journal = store.journal
    entries = left.entries
    for at in range(0, len(entries), 4):
        start, body, end = entries[at : at + 3]
        entry = sifting.entry_at(start, body, end)
        if entry is not None:
            if isinstance(entry.value, Cold):
                value = value_in(sifting.data[start:end], entry.job_id)
                store.warm_up(entry, entry.job_id, value, first_to_leave=True)
            _restate_entry(store, entry, now)
        if at % (4 * RESTATED_ENTRIES_MAX) == 0:
            yield DURABLE
            now = yield TURN
    for number, data in enumerate(left.others):
        record = decode_record(data)[0]
        if record.command in (Command.START_ATTEMPT, Command.FAIL):
            pass  # with its entry
        elif record.command > Command.SCHEDULE:
            _tell_tombstone(store, unpack_completion(record.result).key, now)
        else:
            operation = unpack_operation(record.payload)
            if isinstance(operation, SegmentRemoved):
                journal.segment_removed(operation.number, now)
            elif isinstance(operation, Tombstone):
                _tell_tombstone(store, operation.key, now)
            elif isinstance(operation, Pause):
                until = store.pauses.until(operation.domain)
                journal.paused(operation.domain, until, now)
            else:
                assert isinstance(operation, SegmentStart | SegmentRewritten | Lease)
        if number % RESTATED_ENTRIES_MAX == 0:
            yield DURABLE
            now = yield TURN
    for info in writer.sealed:
        # as it is now: what was told of it before, told again, would hold if a crash cuts this
        if info.number in sifting.tells:
            journal.segment_rewritten(info.number, info.bytes, info.crc32c, now, done=True)
    return now


def _restate_entry(store: Store, entry: Entry, now: int) -> None:
    taken: tuple[int, ...] | None = None
    if entry.job_id in store.journal.records.displaced:
        further = (entry.uri, *(entry.links or ()))
        taken = tuple(
            number
            for number, key in enumerate(further)
            if key is not None and store.find(key) is not entry
        )
    store.journal.copied_forward(entry, now, taken)
    store.renew(entry)


def _tell_tombstone(store: Store, key: bytes, now: int) -> None:
    found = store.tombstones.find(key, now)
    if found is not None:
        timestamp, learnt = found
        store.journal.tombstone(key, timestamp, now, learnt=learnt)


def _reposition(
    store: Store, sifting: Sifting, left: KeptRecords, number: int
) -> Generator[Signal, Any, None]:
    """Tell the entries where their records are by now."""
    entries = left.entries
    for at in range(0, len(entries), 4):
        entry = sifting.entry_at(*entries[at : at + 3])
        if entry is not None:
            entry.move_record(pack_position(number, entries[at + 3]))
            store.renew(entry)
        if at % (4 * SIFTED_RECORDS_MAX) == 0:
            yield TURN
