"""Cleaning of an archive behind a stream: segments whose batch is committed are unlinked.

Spark's file sources call this ``cleanSource``. It is off unless asked for, because another reader
of the archive may need the segments still.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.fs

from fastjournal.cmdlog.archive_format import archived_segment
from fastjournal.spark.files import resolve, translating
from fastjournal.spark.paths import list_directory


def unlink_read(directory: str, number: int, size: int) -> None:
    """Unlink what a stream has read of an archive.

    A longer version of the last segment, which came meanwhile, stays.

    Args:
        directory: The archive.
        number: Number of the last segment that was read.
        size: Bytes of it that were read.

    Raises:
        LogFailedError: Something could not be removed; the next commit tries again.
    """
    files, path = resolve(directory)
    for info in list_directory(directory):
        found = archived_segment(str(info.base_name))
        if found is None or (found.number, info.size) > (number, size):
            continue
        place = f"{path}/{info.base_name}"
        with translating("remove", place):
            # the daemon drops files beyond its bound at any time
            if files.get_file_info(place).type == pa.fs.FileType.File:
                files.delete_file(place)
