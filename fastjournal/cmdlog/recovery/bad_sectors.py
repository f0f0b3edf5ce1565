"""Bad sectors: reading a segment of which the device cannot give every sector.

An unreadable sector is a corrupt region like any other: filler bytes replace it, so that no
checksum over it is right. A segment of which nothing at all can be read is left to people: all of
it may be back when the device is.
"""

from __future__ import annotations

import errno

from fastjournal.disk import Disk
from fastjournal.errors import LogFailedError

SECTOR_BYTES = 4096
"""A device gives so many bytes or none: what a page and a physical sector hold."""
_PIECE_BYTES = 1 << 20
_FILLER = b"\xfeunreadable sector "


def read_segment(disk: Disk, path: str) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the bytes of a segment, and the ranges of it that cannot be read.

    Raises:
        LogFailedError: It cannot be opened, nothing of it can be read, or it is another error than
            that of a failing device; also where all can be read when it is tried again.
    """
    try:
        return disk.read(path), []
    except LogFailedError as error:
        if not _is_of_the_device(error):
            raise
        pieces, unreadable = _read_in_pieces(disk, path)
        if not unreadable or sum(map(len, pieces)) == sum(end - at for at, end in unreadable):
            raise
        return b"".join(pieces), unreadable


def _read_in_pieces(disk: Disk, path: str) -> tuple[list[bytes], list[tuple[int, int]]]:
    size = disk.size(path)
    pieces: list[bytes] = []
    unreadable: list[tuple[int, int]] = []
    waiting = [(at, min(at + _PIECE_BYTES, size)) for at in range(0, size, _PIECE_BYTES)][::-1]
    while waiting:
        start, end = waiting.pop()
        try:
            pieces.append(disk.read_slice(path, start, end - start))
            continue
        except LogFailedError as error:
            if not _is_of_the_device(error):
                raise
        if end - start > SECTOR_BYTES:
            middle = start + (end - start + SECTOR_BYTES) // (2 * SECTOR_BYTES) * SECTOR_BYTES
            waiting += ((middle, end), (start, middle))
            continue
        pieces.append((_FILLER * (SECTOR_BYTES // len(_FILLER) + 1))[: end - start])
        if unreadable and unreadable[-1][1] == start:
            unreadable[-1] = (unreadable[-1][0], end)
        else:
            unreadable.append((start, end))
    return pieces, unreadable


def _is_of_the_device(error: LogFailedError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO
