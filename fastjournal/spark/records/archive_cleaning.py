"""Cleaning of an archive behind a stream: segments whose batch is committed are unlinked.

Spark's file sources call this ``cleanSource``. It is off unless asked for, because another reader
of the archive may need the segments still.

A stream unlinks the names that it has read, and none else: a file with another checksum is of a
restored log, or was put back behind the stream, and nobody has read it. Damaged segments stay as
``<name>.damaged``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import google_crc32c
import msgspec
import pyarrow.fs

from fastjournal.cmdlog.archive_format import STATE_NAME, ArchivedSegment, archived_segment
from fastjournal.spark.query.paths import list_directory
from fastjournal.spark.storage.files import LogDirectory, read_file, resolve, translating


class ReadSegments(msgspec.Struct):
    """Names of archived segments that a stream has gone past, and that are still there."""

    read: list[str] = msgspec.field(default_factory=list)
    damaged: list[str] = msgspec.field(default_factory=list)

    def carried(self, there: Collection[str]) -> ReadSegments:
        """Return those that are still there."""
        return ReadSegments(
            [name for name in self.read if name in there],
            [name for name in self.damaged if name in there],
        )

    def knows(self, segment: ArchivedSegment) -> bool:
        """Return whether a version of a segment was read, or another one of it was damaged."""
        numbers = {name.partition("-")[0] for name in self.damaged}
        return segment.name in self.read or segment.name.partition("-")[0] in numbers


def versions_in(data: bytes, number: int, archived: Mapping[ArchivedSegment, int]) -> list[str]:
    """Return names of the versions of a segment that its contents begin with, shortest first.

    Args:
        data: Bytes of the segment that were read.
        number: Its number.
        archived: Files of the archive, and their sizes in bytes.
    """
    versions = sorted((size, one) for one, size in archived.items() if one.number == number)
    return [
        one.name
        for size, one in versions
        if size <= len(data) and google_crc32c.value(data[:size]) == one.crc32c
    ]


def check_read(directory: str, names: Collection[str], *, checksums: bool) -> ReadSegments:
    """Return what is left of segments that a stream has read, with their shorter versions.

    Args:
        directory: The archive.
        names: Names of the segments.
        checksums: The reader went on behind damage, so that each file has to be checked.

    Raises:
        LogFailedError: A segment cannot be read.
    """
    log = LogDirectory(directory)
    versions = [one.number for one in log.archived]
    found = ReadSegments()
    for one in sorted(log.archived):
        if one.name not in names:
            continue
        if not checksums and versions.count(one.number) == 1:
            found.read.append(one.name)
            continue
        data = read_file(log.files, f"{log.path}/{one.name}")
        if google_crc32c.value(data) == one.crc32c:
            found.read += versions_in(data, one.number, log.archived)
        else:
            found.damaged.append(one.name)
    return found


def clean_archive(directory: str, done: ReadSegments) -> None:
    """Unlink the segments that a stream has read, and rename damaged ones.

    One segment stays where nothing else would show that the directory is an archive.

    Args:
        directory: The archive.
        done: Names; those that are gone are left out, for the daemon drops files at any time.

    Raises:
        LogFailedError: Something could not be removed. The query ends; the first commit after its
            restart tries again.
    """
    files, path = resolve(directory)
    there = {str(info.base_name) for info in list_directory(directory)}
    done = done.carried(there)
    names = set(done.read) | set(done.damaged)
    left = {name for name in there if archived_segment(name)} - names
    if STATE_NAME not in there and not left and names:
        names.remove(max(names))
    for name in names.intersection(done.damaged):
        _rename(files, f"{path}/{name}", f"{path}/{name}.damaged")
    for name in names.difference(done.damaged):
        place = f"{path}/{name}"
        with translating("remove", place):
            if _is_file(files, place):
                files.delete_file(place)


def _rename(files: pyarrow.fs.FileSystem, old: str, new: str) -> None:
    with translating("rename", old):
        if _is_file(files, old):
            files.move(old, new)


def _is_file(files: pyarrow.fs.FileSystem, path: str) -> bool:
    return bool(files.get_file_info(path).type == pyarrow.fs.FileType.File)
