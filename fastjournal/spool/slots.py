"""Slots and drop-ins: which spool file a write goes to, names of files, which ones there are.

A slot is named after the UTC instant of its start: ``20261120T080000Z.fjs``. Names sort by time.
A *drop-in* is a whole file that some program links or renames to ``20261120T080000Z-NAME.fjs``.
NAME is printable UTF-8, and the file's name has at most ``DROP_IN_NAME_BYTES_MAX`` bytes.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import stat
import time
from datetime import datetime
from typing import NamedTuple

from fastjournal.errors import LINKS_HINT, LINKS_REFUSED, BadRequestError, SpoolFailedError
from fastjournal.file_sync import sync_all
from fastjournal.limits import DROP_IN_NAME_BYTES_MAX

SLOT_SUFFIX = ".fjs"
WAKE_NAME = "wake"
LOCK_NAME = "forwarder.lock"
DEAD_NAME = "dead"
STATUS_NAME = "status.json"
STATUS_TEMPORARY_NAME = ".status.json.tmp"
TEMPORARY_SUFFIX = ".tmp"
DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
SHARED_DIRECTORY_MODE = 0o2770
SHARED_FILE_MODE = 0o660

_FORM = "%Y%m%dT%H%M%SZ" + SLOT_SUFFIX
_NAME_CHARS = len("20261120T080000Z.fjs")
_STAMP_CHARS = len("20261120T080000Z")
_DROP_IN_CHARS_MIN = len("20261120T080000Z-n.fjs")
_OURS = frozenset({WAKE_NAME, LOCK_NAME, DEAD_NAME, STATUS_NAME, STATUS_TEMPORARY_NAME})

IGNORED_NAMES_MAX = 10_000
"""So many names of files that are nothing of a spool are kept; of more, only the number."""

_NOT_SHARED = "writers and forwarder are one user, or share a group and a directory of mode 2770"

_HINTS = {
    errno.ENOSPC: "free some space on this file system",
    errno.EDQUOT: "raise the quota of this user",
    errno.EFBIG: "raise the limit of file sizes (LimitFSIZE)",
    errno.EACCES: _NOT_SHARED,
    errno.EPERM: _NOT_SHARED,
    errno.EROFS: "mount the file system writable",
    errno.EMFILE: "raise the limit of open files (LimitNOFILE)",
    errno.ENFILE: "raise the limit of open files of this machine",
    errno.ENOENT: "check that the directory of the spool exists",
    errno.ENOTDIR: "the spool is a directory; something else has its name",
    errno.ELOOP: "no link is followed in a spool; take it away",
    errno.EIO: "the device is failing: check the system's log",
}


class SlotName(NamedTuple):
    """Slot by its name: one file of a spool."""

    start_s: int
    """Instant of its start: seconds since the Unix epoch."""
    name: str
    path: str


class Survey(NamedTuple):
    """Content of the directory of a spool."""

    slots: list[SlotName]
    """Oldest first."""
    ignored: list[str]
    """Names of what is nothing of a spool, at most IGNORED_NAMES_MAX of them."""
    ignored_count: int


class Slot(NamedTuple):
    """Slot: one file of a spool, as it was when the directory was read."""

    start_s: int
    """Instant of its start: seconds since the Unix epoch."""
    name: str
    path: str
    size: int
    """Length in bytes."""
    allocated: int
    """Bytes that it takes on the disk, as far as they count: its length without holes."""


def slot_start(now_us: int, slot_seconds: int) -> int:
    """Return the start, in seconds, of the slot of the instant ``now_us`` (microseconds)."""
    return now_us // (slot_seconds * 1_000_000) * slot_seconds


def slot_name(start_s: int) -> str:
    """Return the file name of the slot that starts at ``start_s``, in seconds."""
    return time.strftime(_FORM, time.gmtime(start_s))


def is_drop_in(name: str) -> bool:
    """Whether a slot of this file name, which ``parse_slot_name`` takes, is a drop-in."""
    return len(name) != _NAME_CHARS


def parse_slot_name(name: str) -> int | None:
    """Return the start, in seconds, of the slot with this file name; None: it names no slot."""
    if not name.endswith(SLOT_SUFFIX) or name[8:9] != "T" or name[15:16] != "Z":
        return None
    digits = name[:8] + name[9:15]
    if not (digits.isascii() and digits.isdigit()):
        return None
    if len(name) != _NAME_CHARS and not _is_drop_in_name(name):
        return None
    try:
        return int(datetime.fromisoformat(name[:16]).timestamp())
    except ValueError:
        return None


def _is_drop_in_name(name: str) -> bool:
    """Whether a name that begins as a slot's is one of a drop-in: dead/ and logs can hold it."""
    return (
        len(name) >= _DROP_IN_CHARS_MIN
        and name[_STAMP_CHARS] == "-"
        and name.isprintable()
        and len(name.encode()) <= DROP_IN_NAME_BYTES_MAX
    )


def survey(directory: str | os.PathLike[str]) -> Survey:
    """Return what is in a spool. Slots are regular files; no link is followed.

    It takes a microsecond or two a name: no file is looked at.

    Raises:
        SpoolFailedError: The directory cannot be read.
    """
    slots: list[SlotName] = []
    ignored: list[str] = []
    count = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                start = parse_slot_name(name)
                if start is not None and _is_file(entry):
                    slots.append(SlotName(start, name, entry.path))
                elif start is not None or not _is_ours(entry):
                    count += 1
                    if len(ignored) < IGNORED_NAMES_MAX:
                        ignored.append(name)
    except OSError as error:
        raise spool_failed("read the spool", directory, error) from error
    slots.sort()
    return Survey(slots, sorted(ignored), count)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether a name is a regular file; on an error the open of the file reports the reason.

    One damaged inode is no failure of the directory.
    """
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return True


def list_slots(directory: str | os.PathLike[str]) -> list[Slot]:
    """Return the slots in a spool, oldest first, with their sizes.

    One that cannot be looked at (a damaged inode) has 0 bytes: it cannot be opened either.

    Raises:
        SpoolFailedError: The directory cannot be read.
    """
    slots = []
    for start, name, path in survey(directory).slots:
        size = allocated = 0
        try:
            status = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            continue  # finished and deleted meanwhile
        except OSError:
            pass
        else:
            size = status.st_size
            # no blocks: the file system does not say
            allocated = min(size, status.st_blocks * 512 or size)
        slots.append(Slot(start, name, path, size, allocated))
    return slots


def temporary_bytes(directory: str | os.PathLike[str]) -> int:
    """Return the bytes of the hidden files of producers that are at work, or were killed.

    A file that has the name of its slot already does not count: ``list_slots`` has it.

    Raises:
        SpoolFailedError: The directory cannot be read.
    """
    total = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if _is_temporary(entry.name):
                    with contextlib.suppress(OSError):  # removed, or a damaged inode
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                            total += status.st_size
    except OSError as error:
        raise spool_failed("read the spool", directory, error) from error
    return total


def _is_ours(entry: os.DirEntry[str]) -> bool:
    if _is_temporary(entry.name):
        return _is_file(entry)
    return entry.name in _OURS


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and SLOT_SUFFIX in name and name.endswith(TEMPORARY_SUFFIX)


def open_slot(path: str, flags: int) -> int:
    """Return a descriptor of a slot, which is a regular file and no link.

    Raises:
        SpoolFailedError: It cannot be opened, or is something else.
    """
    try:
        # a FIFO would wait for its other end
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file")
    except OSError as error:
        raise spool_failed("open the slot", path, error) from error
    return descriptor


def leads_to(path: str, descriptor: int) -> bool:
    """Whether an open file has this name still; ``OSError`` as it comes."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def spool_failed(
    action: str, path: str | os.PathLike[str], error: OSError, *, hint: str | None = None
) -> SpoolFailedError:
    """Return the error for ``error``: "cannot write: No space left on device"."""
    number = error.errno or 0
    return SpoolFailedError(
        f"cannot {action}: {error.strerror or error} ({errno.errorcode.get(number, number)})",
        path=path,
        hint=hint or _HINTS.get(number),
    )


def link_slot(temporary: str, path: str) -> None:
    """Give a file that is finished its name as a slot too, unless that is taken.

    Raises:
        SpoolFailedError: The file system allows no hard links.
        OSError: Any other, as it comes.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno in LINKS_REFUSED:
            raise spool_failed("link the slot", path, error, hint=LINKS_HINT) from error
        raise


def group_id(group: str | int | None) -> int | None:
    """Return the number of a group.

    Raises:
        BadRequestError: There is none of this name.
    """
    if not isinstance(group, str):
        return group
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise BadRequestError(f"there is no group {group!r}", hint="groupadd NAME") from error


def write_directory(directory: str, group: int | None = None) -> None:
    """Create a directory of mode 0750, with its parents, unless it is there.

    Args:
        directory: Where.
        group: Group that shares it: its mode is 2770 then. In a shared directory, that is one with
            the setgid bit, a directory is shared in any case.

    Raises:
        SpoolFailedError: It cannot be created.
    """
    try:
        parent = os.path.dirname(os.path.abspath(directory))
        _make_parents(parent)
        try:
            os.mkdir(directory, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
        else:
            if group is not None:
                os.chown(directory, -1, group)
            shared = group is not None or is_shared(directory)
            os.chmod(directory, SHARED_DIRECTORY_MODE if shared else DIRECTORY_MODE)
            sync_directory(parent)
    except OSError as error:
        raise spool_failed("create the directory", directory, error) from error


def _make_parents(directory: str) -> None:
    """Create a directory with its parents, durably; ``OSError`` as it comes."""
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    _make_parents(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory)
    sync_directory(parent)


def is_shared(directory: str | int) -> bool:
    """Whether a directory has the setgid bit: all files in it belong to its group, and are shared.

    ``directory`` is a path or a descriptor; ``OSError`` as it comes.
    """
    return bool(os.stat(directory).st_mode & stat.S_ISGID)


def set_access(descriptor: int, directory: str | int, group: int | None = None) -> None:
    """Set group and mode of a new file, independent of the umask; ``OSError`` is not translated.

    Files that root creates in a directory of another user belong to that user: else a command of an
    operator would lock out the forwarder, and the writers of the same slot.
    """
    if group is not None and os.fstat(descriptor).st_gid != group:
        os.fchown(descriptor, -1, group)
    shared = group is not None or is_shared(directory)
    if not shared and os.geteuid() == 0:
        _give_to_owner_of(directory, descriptor)
    os.fchmod(descriptor, SHARED_FILE_MODE if shared else FILE_MODE)


def _give_to_owner_of(directory: str | int, descriptor: int) -> None:
    owner = os.stat(directory)
    if owner.st_uid != 0:
        with contextlib.suppress(PermissionError):  # root of a container may lack the capability
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def sync_directory(directory: str) -> None:
    """Make the names in a directory durable; ``OSError`` as it comes."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_all(descriptor)
    finally:
        os.close(descriptor)
