"""Hole punching (fallocate): parts of a file leave the disk, where the file system can."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02
_CANNOT: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    _fallocate.restype = ctypes.c_int


def punch_hole(descriptor: int, offset: int, size: int) -> bool:
    """Make ``size`` bytes from ``offset`` a hole, which reads as zeros; the length stays.

    Returns:
        False: this system or file system cannot; nothing was changed.

    Raises:
        OSError: It failed.
    """
    if _fallocate is None:
        return False
    while _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, size) != 0:
        number = ctypes.get_errno()
        if number in _CANNOT:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True
