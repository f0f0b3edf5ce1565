"""Value in one record of the log, read at its record location: for values that left memory."""

from __future__ import annotations

import msgspec

from fastjournal.cmdlog.format.envelope import Envelope
from fastjournal.cmdlog.format.layout import segment_name, unpack_position
from fastjournal.cmdlog.format.operation_records import unpack_content
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError


class Whereabouts(msgspec.Struct, frozen=True, gc=False):
    """Location of the record of an entry."""

    position: int
    """Segment and offset, see ``cmdlog.format.layout``."""
    record_bytes: int
    job_id: bytes
    """By this the record is recognised."""


def read_value(
    disk: Disk, directory: str, place: Whereabouts, replaced: bytes | None = None
) -> bytes:
    """Return the value in the record of an entry; the checksum is verified.

    Args:
        disk: Disk of the log.
        directory: Directory of the log.
        place: Position of the record.
        replaced: Former content of the segment, while positions are of that.

    Raises:
        LogFailedError: It cannot be read.
        LogCorruptError: The record is damaged, or another record is at its position.
    """
    number, offset = unpack_position(place.position)
    path = f"{directory}/{segment_name(number)}"
    end = offset + place.record_bytes
    try:
        return value_in(disk.read_slice(path, offset, place.record_bytes), place.job_id)
    except LogCorruptError as error:
        if replaced is None:
            raise LogCorruptError(error.message, path=path, offset=offset) from error
    return value_in(replaced[offset:end], place.job_id)


def read_values(
    disk: Disk, directory: str, places: list[Whereabouts], replaced: dict[int, bytes]
) -> list[bytes | LogFailedError | LogCorruptError]:
    """Return the values in some records, or why one cannot be read; see ``read_value``."""
    found: list[bytes | LogFailedError | LogCorruptError] = []
    for place in places:
        number, _ = unpack_position(place.position)
        try:
            found.append(read_value(disk, directory, place, replaced.get(number)))
        except (LogFailedError, LogCorruptError) as error:
            found.append(error)
    return found


def value_in(data: bytes, job_id: bytes) -> bytes:
    """Return the value in the bytes of an entry's record.

    Raises:
        LogCorruptError: They are damaged, or another job's.
    """
    record, end = decode_record(data)
    if end != len(data) or record.job_id != job_id:
        raise LogCorruptError("another record is there")
    content = unpack_content(record)
    if content is None:
        return record.payload
    if not isinstance(content, Envelope):
        raise LogCorruptError("the record there is no entry's")
    return content.value
