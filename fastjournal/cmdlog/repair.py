"""Taking damage out of a log, so that it can be replayed again, by workq too.

The damaged bytes are kept aside first, as ``<segment>.damaged-<offset>``. Then the segment is
written anew without them, as ``<segment>.rw``, synced, and renamed over the original. Where that
breaks a group of records, what is readable of it counts: a lease group is told its new number of
records, the head of any other group goes. A segment that is missing is noted as removed, right
behind the record that names it.
"""

from __future__ import annotations

import uuid

import msgspec

from fastjournal.cmdlog.envelope import (
    OPERATION_NAME,
    Batch,
    Lease,
    SegmentRemoved,
    pack,
    unpack_operation,
)
from fastjournal.cmdlog.locks import lock_read
from fastjournal.cmdlog.records import (
    NO_TIME,
    SEGMENT_HEADER,
    Command,
    decode_record,
    encode_head,
    encode_job,
    encode_record,
    encode_time,
)
from fastjournal.cmdlog.scan import HEADER_BYTES, Damage, scan_segment
from fastjournal.cmdlog.segments import segment_name
from fastjournal.cmdlog.survey import Fault
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError

_OPERATION_HEAD = bytes((len(OPERATION_NAME),)) + OPERATION_NAME.encode()
_OPERATION_JOB = encode_head(OPERATION_NAME.encode(), 1, 1, 0, 0, 0)
"""Expired, and so skipped, as soon as workq replays it."""


def keep_aside(disk: Disk, path: str, data: bytes) -> str:
    """Write bytes to a new file, durably but for its name; return its path.

    Args:
        disk: Where the log is.
        path: Wanted; where it exists, a number is added.
        data: What to keep.

    Raises:
        LogFailedError: It cannot be written.
    """
    number = 1
    free = path
    while disk.exists(free):
        number += 1
        free = f"{path}.{number}"
    write_file(disk, free, data)
    return free


def write_file(disk: Disk, path: str, data: bytes) -> None:
    """Create a file with these contents and sync it.

    Raises:
        LogFailedError: It cannot be written.
    """
    file = disk.create(path)
    try:
        file.write(data)
        file.sync()
    finally:
        file.close()


def repair_segments(
    disk: Disk, directory: str, faults: list[Fault], *, last: int, now_us: int
) -> dict[tuple[str, int], str]:
    """Rewrite every segment at fault.

    Args:
        disk: Where the log is.
        directory: Of the log; the caller holds its append lock.
        faults: From the survey.
        last: Number of the last segment.
        now_us: The present, for the records that are added.

    Returns:
        Where the damaged bytes are kept, by path and offset of the damage.

    Raises:
        LogLockedError: Another process reads the log.
        LogFailedError: Something cannot be written; the segments are as they were, or repaired.
    """
    kept: dict[tuple[str, int], str] = {}
    lock = lock_read(disk, directory, exclusive=True)
    try:
        for fault in faults:
            path = f"{directory}/{segment_name(fault.number)}"
            data = disk.read(path)
            for damage in fault.damage:
                lost = data[damage.offset : damage.end]
                if lost:
                    aside = f"{path}.damaged-{damage.offset}"
                    kept[path, damage.offset] = keep_aside(disk, aside, lost)
            disk.sync_directory(directory)
            rewritten = f"{path}.rw"
            if disk.exists(rewritten):
                disk.unlink(rewritten)
            write_file(disk, rewritten, repaired(data, fault, fault.number == last, now_us))
            disk.rename(rewritten, path)
            disk.sync_directory(directory)
    finally:
        lock.close()
    return kept


def repaired(data: bytes, fault: Fault, last: bool, now_us: int) -> bytes:
    """Return a segment without its damage."""
    damaged = {damage.offset for damage in fault.damage}
    spans = [
        (start, body, end)
        for start, body, end in scan_segment(data).spans()
        if start not in damaged
    ]
    edits = [(damage.offset, damage.end, b"") for damage in fault.damage]
    torn = fault.damage[-1].offset if last and fault.damage else len(data)
    inner = [damage for damage in fault.damage if damage.end < len(data) or damage.offset < torn]
    edits += _mended_groups(data, spans, inner)
    if fault.missing is not None:
        behind_start = spans[0][2]
        note = _operation(SegmentRemoved(fault.missing), now_us)
        edits.append((behind_start, behind_start, note))
    parts = [SEGMENT_HEADER]
    # a bad header is damage that starts at 0 and ends anywhere
    at = 0 if 0 in damaged else HEADER_BYTES
    for start, end, replacement in sorted(edits):
        parts += (data[at:start], replacement)
        at = end
    parts.append(data[at:])
    return b"".join(parts)


def _mended_groups(
    data: bytes, spans: list[tuple[int, int, int]], damage: list[Damage]
) -> list[tuple[int, int, bytes]]:
    """Return the edits of the heads of groups that have damage inside them."""
    edits = []
    for index, (start, body, end) in enumerate(spans):
        if data[body] != Command.ADD or not data.startswith(_OPERATION_HEAD, body + 17):
            continue
        try:
            record, _ = decode_record(data, start)
            operation = unpack_operation(record.payload)
        except (LogCorruptError, msgspec.MsgspecError, ValueError):
            continue
        if not isinstance(operation, Lease | Batch):
            continue
        members = spans[index + 1 : index + 1 + max(0, operation.following)]
        complete = len(members) == operation.following
        group_end = members[-1][2] if complete and members else len(data)
        if not any(end <= found.offset < group_end for found in damage):
            continue
        if isinstance(operation, Lease):
            starts = 0
            for _, member, _ in members:
                if data[member] != Command.START_ATTEMPT:
                    break
                starts += 1
            payload = pack(Lease(starts, operation.token))
            edits.append(
                (start, end, encode_record(msgspec.structs.replace(record, payload=payload)))
            )
        else:
            edits.append((start, end, b""))
    return edits


def _operation(operation: SegmentRemoved, now_us: int) -> bytes:
    time = encode_time(now_us)
    job_id = uuid.uuid4().bytes
    payload = pack(operation)
    return encode_job(Command.ADD, time, job_id, _OPERATION_JOB, payload, NO_TIME, time)
