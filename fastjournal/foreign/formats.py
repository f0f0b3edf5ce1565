"""Formats of journals: recognised by the files of a directory."""

from __future__ import annotations

import re
from enum import StrEnum

from fastjournal.cmdlog.format.envelope import OPERATION_NAME
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, segment_name
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.locks import list_segments
from fastjournal.disk import Disk
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.foreign.journal_files import WindowedFile, find_size, list_queues
from fastjournal.foreign.kestrel_records import BrokenRecordError, RecordReader

_BINLOG = re.compile(r"binlog\.([0-9]{1,9})")
_FIRST_RECORD_BYTES = 512
"""The first record of a segment of ours takes less than 100 bytes."""


class Format(StrEnum):
    """Format of a journal."""

    FASTJOURNAL = "fastjournal"
    WORKQ = "workq"
    BEANSTALKD = "beanstalkd"
    KESTREL = "kestrel"


_HOLDS = {
    Format.FASTJOURNAL: "a log that fastjournald wrote",
    Format.WORKQ: "the command log of a workq-server",
    Format.BEANSTALKD: "the binlog of a beanstalkd",
    Format.KESTREL: "the journal of a Kestrel",
}
_ASKS_FOR = {
    Format.FASTJOURNAL: "no segment, such as 000000001.log",
    Format.WORKQ: "no segment, such as 000000001.log",
    Format.BEANSTALKD: "no binlog, such as binlog.1",
    Format.KESTREL: "no journal of a queue",
}
_NAMED_BY = {
    Format.FASTJOURNAL: "--cmdlog-path, or a snapshot",
    Format.WORKQ: "workq-server's option -cmdlog-path",
    Format.BEANSTALKD: "beanstalkd's option -b",
    Format.KESTREL: "Kestrel's queuePath",
}


def list_binlogs(disk: Disk, directory: str) -> list[int]:
    """Return the numbers of the binlogs in a directory, ascending."""
    found = (_BINLOG.fullmatch(name) for name in disk.listdir(directory))
    return sorted(int(name[1]) for name in found if name and name[1] == str(int(name[1])))


def find_format(disk: Disk, directory: str) -> Format | None:
    """Return the format of the journal in a directory; None: there is none.

    Raises:
        LogFailedError: The directory cannot be read.
    """
    segments = list_segments(disk, directory)
    if segments:
        ours = any(
            begins_as_ours(
                disk.read_slice(f"{directory}/{segment_name(number)}", 0, _FIRST_RECORD_BYTES)
            )
            for number in segments
        )
        return Format.FASTJOURNAL if ours else Format.WORKQ
    if list_binlogs(disk, directory):
        return Format.BEANSTALKD
    queues = list_queues(disk, directory)
    if any(_begins_as_kestrel(disk, path) for paths in queues.values() for path in paths):
        return Format.KESTREL
    return None


def require_format(disk: Disk, directory: str, wanted: Format, *, for_import: bool = False) -> None:
    """Check that a directory holds a journal of a format.

    Args:
        disk: Where it is.
        directory: The directory.
        wanted: The format.
        for_import: Its items go into a daemon, which starts on a log of fastjournald itself.

    Raises:
        BadRequestError: It holds another, which is named, or none.
    """
    found = find_format(disk, directory)
    if found is wanted:
        return
    if found is None and wanted is Format.KESTREL and list_queues(disk, directory):
        # every file may be the journal of a queue, and be damaged
        return
    if found is Format.FASTJOURNAL and for_import:
        raise ours(directory)
    if found is None:
        raise no_journal(directory, wanted)
    raise BadRequestError(
        f"{directory} holds {_HOLDS[found]}, and none of {wanted}", hint=f"name {found} instead"
    )


def _begins_as_kestrel(disk: Disk, path: str) -> bool:
    if not find_size(disk, path):
        return False
    file = WindowedFile(disk, path)
    try:
        return RecordReader(file).read(0).end > 0
    except BrokenRecordError:
        return False


def begins_as_ours(data: bytes) -> bool:
    """Whether a segment that begins so was written by fastjournald."""
    try:
        record, _ = decode_record(data, len(SEGMENT_HEADER))
    except LogCorruptError:
        return False
    return record.name == OPERATION_NAME


def no_journal(directory: str, wanted: Format) -> BadRequestError:
    """Return the error for a directory that holds no journal at all."""
    return BadRequestError(
        f"{directory} holds {_ASKS_FOR[wanted]}",
        hint=f"name the directory of {_NAMED_BY[wanted]}",
    )


def ours(directory: str) -> BadRequestError:
    """Return the error for a log that cannot be imported."""
    return BadRequestError(
        f"{directory} is {_HOLDS[Format.FASTJOURNAL]}",
        hint="start a daemon on a copy of it instead: fastjournald --cmdlog-path COPY",
    )
