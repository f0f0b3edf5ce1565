"""Cleaning one sealed segment of the log: what is dead in it leaves the disk.

A generator does it, and says what it needs from whoever drives it, the daemon or a test that
crashes at every point:

- ``TURN``: let others go on; it is answered with the present instant;
- ``DURABLE``: wait until everything appended so far is durable;
- ``Blocking``: call a function that touches files, outside of the event loop, and send back what it
  returns, or throw in the ``LogFailedError``, ``LogLockedError`` or ``LogCorruptError`` that it
  raises;
- ``Blocking`` with ``exclusive``: the same while nobody takes a snapshot, up to the next request of
  the generator.

The order is what makes it safe. What has to stand elsewhere is appended first; all of it, and every
removal that was believed, is durable before the segment is replaced or unlinked; a segment is
replaced by one rename, and unlinked only when a durable record says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import google_crc32c
import msgspec

from fastjournal.cmdlog.envelope import (
    Lease,
    Pause,
    SegmentRemoved,
    SegmentStart,
    Tombstone,
    unpack_completion,
    unpack_operation,
)
from fastjournal.cmdlog.locks import lock_read
from fastjournal.cmdlog.lookup import Whereabouts, read_value, value_in
from fastjournal.cmdlog.records import TIME_BYTES, Command, decode_record, decode_time
from fastjournal.cmdlog.segments import SegmentInfo, pack_position
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.limits import (
    LOOK_AGAIN_US,
    REMNANTS_MAX,
    RESTATED_ENTRIES_MAX,
    SIFTED_RECORDS_MAX,
    WRITTEN_BYTES_MAX,
)
from fastjournald.sifting import Sifting
from fastjournald.space import Left, Look
from fastjournald.values import Cold

if TYPE_CHECKING:
    from fastjournal.cmdlog.writer import LogWriter
    from fastjournald.entry import Entry
    from fastjournald.store import Store

LIVE_MAX = 0.5
"""Of its bytes that are live entries: a segment with less is worth a look."""

LEFT_MAX = 0.75
"""Of its bytes that stay: a segment of which more stays is left as it is."""

GARBAGE_MAX = 2
"""A log of more than so many times its live bytes, and two segments, is too large: it is cleaned
at once, for the usual time may be long and the load heavy."""

TURNED_OVER = 1 / 2
"""Of the bytes of a log that is too large: when so many were appended since a segment was looked
at, another look is worth what it costs."""

TINY = 1 / 8
"""Of the usual size of a segment: one of which less stays is moved to the end of the log."""


READ_LOOK = Look(0)
READ = "somebody reads the log"


class Signal(Enum):
    """What a cleaning waits for."""

    TURN = "turn"
    DURABLE = "durable"


TURN, DURABLE = Signal.TURN, Signal.DURABLE


class Blocking(msgspec.Struct, frozen=True):
    """A call that touches files."""

    call: Callable[[], Any]
    exclusive: bool = False


Cleaning: TypeAlias = Generator[Signal | Blocking, Any, str]
"""Returns what became of the segment: ``removed``, ``moved``, ``rewritten``, ``left``, or why it
could not be cleaned."""


def candidates(store: Store, writer: LogWriter, now: int) -> list[SegmentInfo]:
    """Return the sealed segments that are worth a look, oldest first. O(number of segments)."""
    space = store.journal.space
    present = frozenset(info.number for info in writer.sealed)
    awaited = _awaited(store, writer, present, now)
    bytes_now = log_bytes(writer)
    # tombstones and pauses of which nobody keeps account end before their time, too
    looked_before = -1
    if bytes_now > bytes_usual(store, writer):
        looked_before = writer.appended - round(TURNED_OVER * bytes_now)
    return [
        info
        for info in writer.sealed
        if info.number == awaited
        or (
            space.live[info.number] < LIVE_MAX * info.bytes
            and space.is_changed(info.number, now, present, looked_before)
        )
    ]


def log_bytes(writer: LogWriter) -> int:
    """Return the bytes of all segments. O(number of segments)."""
    active = writer.active
    return sum(info.bytes for info in writer.sealed) + (active.bytes if active else 0)


def bytes_usual(store: Store, writer: LogWriter) -> int:
    """Return the bytes from which on a log is too large. O(1)."""
    return GARBAGE_MAX * store.journal.live_bytes + 2 * writer.segment_bytes_max


def _awaited(store: Store, writer: LogWriter, present: frozenset[int], now: int) -> int:
    """Return the segment for which most of too many small files wait, perhaps; 0: there is none."""
    space = store.journal.space
    remnants = 0
    waits: Counter[int] = Counter()
    for info in writer.sealed:
        look = space.looks.get(info.number)
        if look is None or not look.waits or info.bytes >= TINY * writer.segment_bytes_max:
            continue
        awaited = [other for other in look.waits if space.blocks(other, info.number, present)]
        remnants += bool(awaited)
        waits.update(awaited)
    if remnants <= REMNANTS_MAX:
        return 0
    for number, _ in waits.most_common():
        look = space.looks.get(number)
        if look is None or not look.failed or look.again_at <= now:
            return number
    return 0


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
    journal = store.journal
    space = journal.space
    path = f"{directory}/{info.name}"
    # until it is known better
    space.looks[info.number] = Look(now + LOOK_AGAIN_US, failed=True)
    cleaned_in = writer.next_number
    present = frozenset(segment.number for segment in writer.sealed)
    awaited = _awaited(store, writer, present, now) == info.number
    try:
        data = yield Blocking(partial(disk.read, path))
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
        now = yield from _restate(store, disk, directory, sifting.restate, now)
        now = yield from _restate(store, disk, directory, journal.unsaid(), now)
    except (LogFailedError, LogCorruptError) as error:
        return f"not read: {error}"
    for key in sifting.renamed:
        _tell_tombstone(store, key, now)
    for _ in sifting.assemble(now):
        now = yield TURN
    dead_in = writer.next_number
    left = sifting.left
    live = space.live[info.number]
    look = Look(
        _again_at(sifting, now),
        live,
        tuple(sifting.waits),
        appended=writer.appended,
        pauses=tuple(sifting.pauses),
    )
    space.looks[info.number] = look
    if left.size < TINY * writer.segment_bytes_max and not sifting.stuck:
        now = yield from _move(store, sifting, left, now)
        journal.segment_removed(info.number, now)
        yield DURABLE
        try:
            yield Blocking(partial(_unlink, disk, directory, path), exclusive=True)
        except LogLockedError:
            space.looks[info.number] = READ_LOOK
            return READ
        writer.sealed.remove(info)
        space.forget(info.number)
        return "moved" if left.entries else "removed"
    if sifting.all_stays:
        # there is nothing in it that could return
        space.was_cleaned(info.number, cleaned_in, emptied=not left.entries, dead_in=dead_in)
        return "left"
    if left.size > LEFT_MAX * info.bytes and not awaited:
        return "left"
    if writer.active is None:
        # else the first record of the active segment says it
        journal.newest_token(now)
    # what is dropped here is removed, or stands elsewhere, in records that no crash takes back
    yield DURABLE
    try:
        replaced = yield Blocking(partial(_write_beside, disk, path, info, left))
    except LogFailedError as error:
        return f"not rewritten: {error}"
    # values that are on disk only are found all the time, by old positions and by new ones
    space.replacing(info.number, data)
    try:
        yield Blocking(partial(_replace, disk, directory, path), exclusive=True)
        writer.sealed[writer.sealed.index(info)] = replaced
        space.was_cleaned(info.number, cleaned_in, emptied=not left.entries, dead_in=dead_in)
        if info.number in space.paused_until:
            space.paused_until[info.number] = sifting.paused_until
        yield from _reposition(store, sifting, left, info.number)
    except LogLockedError:
        space.looks[info.number] = READ_LOOK
        return READ
    finally:
        space.has_replaced(info.number)
    return "rewritten"


def _again_at(sifting: Sifting, now: int) -> int:
    """Return when another look is of use: at the mean of what ends by itself."""
    total, number = sifting.expiries
    return max(total // number, now + 1) if number else now + LOOK_AGAIN_US


def _restate(
    store: Store, disk: Disk, directory: str, job_ids: Iterable[bytes], now: int
) -> Generator[Signal | Blocking, Any, int]:
    """Append entries anew that are live and still carried by these jobs; return the present."""
    amended = store.journal.amended
    for number, job_id in enumerate(job_ids, 1):
        entry = amended.get(job_id)
        if entry is not None and isinstance(entry.value, Cold):
            place = Whereabouts(entry.position, entry.record_bytes, job_id)
            value = yield Blocking(partial(read_value, disk, directory, place))
            store.warm_up(entry, job_id, value, first_to_leave=True)
            # it may have gone meanwhile
            entry = amended.get(job_id)
        if entry is not None:
            _restate_entry(store, entry, now)
        if number % RESTATED_ENTRIES_MAX == 0:
            yield DURABLE
            now = yield TURN
    return now


def _move(store: Store, sifting: Sifting, left: Left, now: int) -> Generator[Signal, Any, int]:
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
                assert isinstance(operation, SegmentStart | Lease)
        if number % RESTATED_ENTRIES_MAX == 0:
            yield DURABLE
            now = yield TURN
    return now


def _restate_entry(store: Store, entry: Entry, now: int) -> None:
    taken: tuple[bytes, ...] | None = None
    if entry.job_id in store.journal.displaced:
        taken = tuple(key for key in entry.all_keys()[1:] if store.find(key) is not entry)
    store.journal.restated(entry, now, taken)
    store.renew(entry)


def _tell_tombstone(store: Store, key: bytes, now: int) -> None:
    found = store.tombstones.find(key, now)
    if found is not None:
        timestamp, learnt = found
        store.journal.tombstone(key, timestamp, now, learnt=learnt)


def _reposition(
    store: Store, sifting: Sifting, left: Left, number: int
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


# --- files, outside of the event loop -----------------------------------------------------------


def _write_beside(disk: Disk, path: str, info: SegmentInfo, left: Left) -> SegmentInfo:
    beside = f"{path}.rw"
    if disk.exists(beside):
        disk.unlink(beside)
    try:
        crc = _write_pieces(disk, beside, left.parts)
    except LogFailedError:
        with suppress(LogFailedError):
            disk.unlink(beside)
        raise
    return msgspec.structs.replace(
        info,
        bytes=left.size,
        crc32c=crc,
        records=len(left.parts) - 1,
        first_us=decode_time(left.parts[1][:TIME_BYTES]),
        last_us=decode_time(left.parts[-1][:TIME_BYTES]),
    )


def _write_pieces(disk: Disk, path: str, parts: list[bytes]) -> int:
    """Create a file of all of it, synced, and return its CRC-32C."""
    crc = size = begin = 0
    with closing(disk.create(path)) as file:
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


def _replace(disk: Disk, directory: str, path: str) -> None:
    with closing(lock_read(disk, directory, exclusive=True)):
        disk.rename(f"{path}.rw", path)
        disk.sync_directory(directory)


def _unlink(disk: Disk, directory: str, path: str) -> None:
    with closing(lock_read(disk, directory, exclusive=True)):
        disk.unlink(path)
        disk.sync_directory(directory)
