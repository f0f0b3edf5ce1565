"""Files of tests in memory: a directory of /dev/shm, where that has room.

A disk makes, syncs and deletes small files for the multiple of the processor time. Tests of these
tiers end processes, but no machine, so they see no difference: what a power loss leaves on a disk
is the matter of the simulated disk. Tests of programs have their files on a real one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")

IN_MEMORY = {"unit", "property", "format"}
"""Tiers whose tests have their files there."""

BYTES_MIN = 2 * 1024**3
"""Room that has to be free there, and of memory: the tests of the tiers need tens of MB at once."""
FILES_MIN = 1_000_000
"""Files that it has to take: a test makes a hundred thousand."""

PREFIX = "fastjournal-tests-"


@contextmanager
def memory_directory() -> Iterator[Path | None]:
    """Give a directory in memory, deleted behind the block; None where there is no room for it."""
    if not has_room():
        yield None
        return
    held = os.open(SHARED_MEMORY, os.O_RDONLY)
    try:
        # a process that begins takes no directory of another one that begins for an old one
        fcntl.flock(held, fcntl.LOCK_EX)
        delete_left_behind()
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SHARED_MEMORY))
        lock = os.open(directory, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
    finally:
        os.close(held)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def has_room() -> bool:
    """Return whether /dev/shm takes the files of tests, and memory too."""
    try:
        free = os.statvfs(SHARED_MEMORY)
        memory = Path("/proc/meminfo").read_text()
    except OSError:
        return False
    available = next((line for line in memory.splitlines() if line.startswith("MemAvailable:")), "")
    return (
        os.access(SHARED_MEMORY, os.W_OK)
        and free.f_bavail * free.f_frsize >= BYTES_MIN
        and free.f_favail >= FILES_MIN
        and int((available.split() or ["0", "0"])[1]) * 1024 >= BYTES_MIN
    )


def delete_left_behind() -> None:
    """Delete the directories of processes that were killed: nobody holds their lock."""
    for directory in SHARED_MEMORY.glob(f"{PREFIX}*"):
        try:
            lock = os.open(directory, os.O_RDONLY)
        except OSError:
            # of another user, or deleted meanwhile
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


def _copy_without_holes(source: str, copy: str) -> str:
    """Copy a file without its holes: one of 100 GB of zeros would fill the disk."""
    with open(source, "rb") as reader, open(copy, "wb") as writer:
        size, begin, end = os.fstat(reader.fileno()).st_size, 0, 0
        os.truncate(writer.fileno(), size)
        while end < size:
            try:
                begin = os.lseek(reader.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            end = os.lseek(reader.fileno(), begin, os.SEEK_HOLE)
            for number in (reader.fileno(), writer.fileno()):
                os.lseek(number, begin, os.SEEK_SET)
            while begin < end:
                begin += os.sendfile(writer.fileno(), reader.fileno(), None, end - begin)
    return copy


def copy_directory(source: Path, copy: Path) -> None:
    """Copy the directory of a test, without pipes, sockets, and the holes of files."""
    shutil.copytree(
        source, copy, symlinks=True, ignore=special_files, copy_function=_copy_without_holes
    )


def special_files(directory: str, names: list[str]) -> list[str]:
    """Return the sockets and pipes among the names in a directory: a copy has none of them."""
    modes = {name: os.lstat(f"{directory}/{name}").st_mode for name in names}
    return [name for name, mode in modes.items() if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)]
