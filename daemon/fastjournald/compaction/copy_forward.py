"""Copy forward: live records of a segment are appended anew, at the end of the log.

Entries are written as they stand, under fresh job ids, and the old ids are removed: no record about
them from before matters any more. So a segment can go although something in it is live.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastjournal.cmdlog.format.envelope import unpack_completion
from fastjournal.cmdlog.format.layout import Command
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
from fastjournal.cmdlog.format.records import Record, decode_record
from fastjournal.cmdlog.read_value import Whereabouts, read_value, value_in
from fastjournal.limits import COPIED_ENTRIES_MAX
from fastjournald.compaction.steps import DURABLE, TURN, Blocking, CompactionWish
from fastjournald.engine.value_memory import fill_value
from fastjournald.tables.entry import Cold

if TYPE_CHECKING:
    from fastjournald.compaction.replace_segment import SegmentFiles
    from fastjournald.compaction.segment_filter import SegmentFilter
    from fastjournald.engine.store import Store
    from fastjournald.tables.entry import Entry


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
