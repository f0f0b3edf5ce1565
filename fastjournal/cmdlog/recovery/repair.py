"""Repair: removes damage from a log, so that it can be replayed again, by workq too.

The damaged bytes are kept first, as ``<segment>.damaged-<offset>``; if the device cannot read them,
the file itself is kept, as ``<segment>.unreadable``. Then the segment is written without them as
``<segment>.rw``, synced, and renamed over the original. The last segment comes first, because its
end has the future facts of the others (``cmdlog.recovery.segment_chain``). If a group of records
loses some, the readable ones count: a lease group gets its new number of records, the head of any
other group is dropped. A missing segment is recorded as removed, after all records about it. If a
timeout-attempt is lost, so that workq would refuse the next start-attempt of that job, one is
written in the place of the damage.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.envelope import pack
from fastjournal.cmdlog.format.layout import (
    NO_TIME,
    RECORD_BYTES_MIN,
    SEGMENT_HEADER,
    SEGMENT_NUMBER_MAX,
    TIME_BYTES,
    Command,
    segment_name,
)
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    End,
    Lease,
    SegmentRemoved,
    SegmentRewritten,
    encode_operation,
    unpack_content,
)
from fastjournal.cmdlog.format.records import (
    Record,
    decode_record,
    encode_record,
    encode_simple,
    encode_time,
    is_operation,
    job_id_at,
)
from fastjournal.cmdlog.locks import lock_read
from fastjournal.cmdlog.recovery.inspect_log import CorruptSegment, LogInspection
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.scan import HEADER_BYTES, CorruptRegion, scan_segment
from fastjournal.cmdlog.recovery.segment_reader import read_segment
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError

_Idle: TypeAlias = dict[tuple[int, int], list[bytes]]
"""Ids of jobs whose lease ended inside damage, by segment and offset; 0: before the segment."""


def keep_aside(disk: Disk, path: str, data: bytes, *, like: str) -> str:
    """Write bytes to a new file, durably except its name; return its path.

    Args:
        disk: Disk of the log.
        path: Wanted path; if it exists, a number is added.
        data: Bytes to keep.
        like: The file of the bytes: the new file has the same access rights.

    Raises:
        LogFailedError: It cannot be written.
    """
    free = _free_name(disk, path)
    write_file(disk, free, data, like=like)
    return free


def _free_name(disk: Disk, path: str) -> str:
    number = 1
    free = path
    while disk.exists(free):
        number += 1
        free = f"{path}.{number}"
    return free


def write_file(disk: Disk, path: str, data: bytes, *, like: str) -> None:
    """Create a file with these contents, and with owner and mode of another, and sync it.

    Raises:
        LogFailedError: It cannot be written; nothing is left of it.
    """
    file = disk.create(path, like=like)
    try:
        try:
            file.write(data)
            file.sync()
        finally:
            file.close()
    except BaseException:
        # also where the operator interrupts it: half of it would be taken for all
        _drop(disk, path)
        raise


def repair_segments(
    disk: Disk, directory: str, inspection: LogInspection, *, now_us: int
) -> dict[tuple[str, int], str]:
    """Rewrite every segment at segment.

    Args:
        disk: Where the log is.
        directory: Directory of the log; the caller holds its append lock.
        inspection: With the corrupt.
        now_us: The present, for the notes that are added.

    Returns:
        Where the damaged bytes are kept, by path and offset of the damage.

    Raises:
        LogLockedError: Another process reads the log.
        LogFailedError: Something cannot be written; the segments are as they were, or repaired.
    """
    kept: dict[tuple[str, int], str] = {}
    written: list[str] = []
    lock = lock_read(disk, directory, exclusive=True)
    try:
        idle = _lost_timeouts(disk, directory, inspection)
        last = inspection.segments[-1].number
        last_path = f"{directory}/{segment_name(last)}"
        end: bytes | None = None
        chain_records: list[SegmentRewritten | SegmentRemoved] = []
        for segment in inspection.corrupt:
            if segment.chain_record is not None:
                chain_records.append(segment.chain_record)
            path = f"{directory}/{segment_name(segment.number)}"
            if not disk.exists(path):
                continue
            data, unreadable = read_segment(disk, path)
            original = ""
            if unreadable:
                # some other time, or with other tools, more of it may be read
                original = _free_name(disk, f"{path}.unreadable")
                disk.link(path, original)
            for damage in segment.damage:
                lost = data[damage.offset : damage.end]
                if any(damage.offset < end and start < damage.end for start, end in unreadable):
                    kept[path, damage.offset] = original
                elif lost:
                    aside = f"{path}.damaged-{damage.offset}"
                    kept[path, damage.offset] = keep_aside(disk, aside, lost, like=path)
            disk.sync_directory(directory)
            whole = _repaired(data, segment, idle, last=segment.number == last, now_us=now_us)
            if segment.number == last:
                end = whole
            elif whole != data:
                written.append(path)
                _write_beside(disk, path, whole)
                crc = google_crc32c.value(whole)
                chain_records.append(SegmentRewritten(segment.number, len(whole), crc, done=False))
        if chain_records:
            end = _with_chain_records(
                last, disk.read(last_path) if end is None else end, chain_records, now_us
            )
        if end is not None:
            written.insert(0, last_path)
            _write_beside(disk, last_path, end)
        for path in written:
            disk.rename(f"{path}.rw", path)
            disk.sync_directory(directory)
    except BaseException:
        # as the start after a crash would: the segments are as they were, or repaired
        for path in written:
            _drop(disk, f"{path}.rw")
        raise
    finally:
        lock.close()
    return kept


def _drop(disk: Disk, path: str) -> None:
    """Delete a half-written file, if the disk allows it."""
    with suppress(LogFailedError):
        if disk.exists(path):
            disk.unlink(path)


def _write_beside(disk: Disk, path: str, data: bytes) -> None:
    beside = f"{path}.rw"
    if disk.exists(beside):
        disk.unlink(beside)
    write_file(disk, beside, data, like=path)


def _with_chain_records(
    number: int, data: bytes, chain_records: list[SegmentRewritten | SegmentRemoved], now_us: int
) -> bytes:
    """Return the last segment with these operations before its torn tail or unfinished group."""
    scan = scan_segment(data)
    replay = Replay()
    replay.start_segment(number, data)
    for run in scan.runs:
        replay.replay(run, last=run is scan.runs[-1])
    at = scan.usable_bytes if replay.cut is None else replay.cut
    return (
        data[:at]
        + b"".join(_encode_chain_record(each, now_us) for each in chain_records)
        + data[at:]
    )


def _repaired(
    data: bytes, segment: CorruptSegment, idle: _Idle, *, last: bool, now_us: int
) -> bytes:
    """Return a segment without its damage."""
    damaged = {damage.offset for damage in segment.damage}
    spans = _spans_left(data, segment)
    edits = []
    time = NO_TIME
    before = iter([*spans, (len(data), 0, 0)])
    start = next(before)[0]
    for damage in segment.damage:
        while start < damage.offset:
            time = data[start : start + TIME_BYTES]
            start = next(before)[0]
        ended = _timeouts(idle.get((segment.number, damage.offset), ()), time)
        edits.append((damage.offset, damage.end, ended))
    torn = segment.damage[-1].offset if last and segment.damage else len(data)
    inner = [damage for damage in segment.damage if damage.end < len(data) or damage.offset < torn]
    ended_at = {edit[0] for edit in edits if edit[2]}
    edits += _mended_groups(data, spans, inner, ended_at)
    if spans and segment.behind_loss:
        start, _, behind = spans[0]
        ended = _timeouts(idle.get((segment.number, 0), ()), data[start : start + TIME_BYTES])
        edits.append((behind, behind, ended))
    parts = [SEGMENT_HEADER]
    # a bad header is damage that starts at 0 and ends anywhere
    at = 0 if 0 in damaged else HEADER_BYTES
    for start, end, replacement in sorted(edits):
        parts += (data[at:start], replacement)
        at = end
    parts.append(data[at:])
    return b"".join(parts)


def _spans_left(data: bytes, segment: CorruptSegment) -> list[tuple[int, int, int]]:
    """Return the places of the valid records of a segment that do not lie in its damage."""
    places = scan_segment(data).spans()
    return [
        span
        for span in places
        if not any(damage.offset <= span[0] < damage.end for damage in segment.damage)
    ]


def _timeouts(job_ids: Iterable[bytes], time: bytes) -> bytes:
    return b"".join(encode_simple(Command.TIMEOUT_ATTEMPT, time, job_id) for job_id in job_ids)


def _lost_timeouts(disk: Disk, directory: str, inspection: LogInspection) -> _Idle:
    """Return the jobs whose lease must have ended inside damage: the next one begins after it.

    In workq's own segments, which are not in order, before the first of ours, that is unknown.
    """
    ours = min(inspection.state.previous, default=SEGMENT_NUMBER_MAX + 1)
    gaps = {
        (segment.number, offset)
        for segment in inspection.corrupt
        if segment.number >= ours
        for offset in [
            *(damage.offset for damage in segment.damage),
            *((0,) if segment.behind_loss else ()),
        ]
    }
    corrupt = {segment.number: segment for segment in inspection.corrupt}
    idle: _Idle = {}
    leased: set[bytes] = set()
    doubtful: dict[bytes, tuple[int, int]] = {}
    for number in (segment.number for segment in inspection.segments):
        data, _ = read_segment(disk, f"{directory}/{segment_name(number)}")
        inside = sorted((gap for gap in gaps if gap[0] == number), reverse=True)
        for start, body, _ in _spans_left(data, corrupt.get(number, CorruptSegment(number, []))):
            while inside and inside[-1][1] <= start:
                doubtful |= dict.fromkeys(leased, inside.pop())
            command = data[body]
            job_id = job_id_at(data, body)
            if command == Command.START_ATTEMPT:
                gap = doubtful.pop(job_id, None)
                if gap is not None:
                    idle.setdefault(gap, []).append(job_id)
                leased.add(job_id)
            elif command > Command.SCHEDULE:
                doubtful.pop(job_id, None)
                leased.discard(job_id)
        while inside:
            # no record is after it in its segment
            doubtful |= dict.fromkeys(leased, inside.pop())
    return idle


def _mended_groups(
    data: bytes, spans: list[tuple[int, int, int]], damage: list[CorruptRegion], ended: set[int]
) -> list[tuple[int, int, bytes]]:
    """Return the edits of the heads of groups that have damage inside them."""
    edits = []
    for index, (start, body, end) in enumerate(spans):
        if data[body] != Command.ADD or not is_operation(data, body):
            continue
        try:
            record, _ = decode_record(data, start)
            operation = unpack_content(record)
        except LogCorruptError:
            continue
        if not isinstance(operation, Lease | Batch | End):
            continue
        members = spans[index + 1 : index + 1 + max(0, operation.following)]
        complete = len(members) == operation.following
        group_end = members[-1][2] if complete and members else len(data)
        if not any(end <= found.offset < group_end for found in damage):
            continue
        if isinstance(operation, Lease):
            starts = _starts_left(data, end, members, operation.following, ended)
            edits.append((start, end, _with_following(record, operation, starts)))
        elif isinstance(operation, End):
            # the operation counts: the record after it is for workq
            edits.append((start, end, _with_following(record, operation, 0)))
        else:
            edits.append((start, end, b""))
    return edits


def _with_following(record: Record, operation: Lease | End, following: int) -> bytes:
    """Return the record of the head of a group of another number of records."""
    payload = pack(msgspec.structs.replace(operation, following=following))
    return encode_record(msgspec.structs.replace(record, payload=payload))


def _starts_left(
    data: bytes, at: int, members: list[tuple[int, int, int]], following: int, ended: set[int]
) -> int:
    """Return how many start-attempts are left of a lease group whose head ends at ``at``.

    After damage only those count that must be of this group: the damage has the length of a number
    of start-attempts, and no lease ended in it.
    """
    left = 0
    missing = 0
    for start, body, end in members:
        lost, odd_bytes = divmod(start - at, RECORD_BYTES_MIN)
        if odd_bytes or (lost and at in ended) or data[body] != Command.START_ATTEMPT:
            break
        missing += lost
        if left + missing >= following:
            break
        left += 1
        at = end
    return left


def _encode_chain_record(record: SegmentRewritten | SegmentRemoved, now_us: int) -> bytes:
    return encode_operation(record, encode_time(now_us), uuid.uuid4().bytes)
