"""Log directory: which segments are in it."""

from __future__ import annotations

from fastjournal.cmdlog.format.segments import segment_number
from fastjournal.disk import Disk


def list_segments(disk: Disk, directory: str) -> list[int]:
    """Return the numbers of all segments in a log directory, ascending.

    Raises:
        LogFailedError: The directory cannot be read.
    """
    numbers = (segment_number(name) for name in disk.listdir(directory))
    return sorted(number for number in numbers if number is not None)
