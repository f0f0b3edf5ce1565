"""Status file of a forwarder: ``status.json`` in the spool, rewritten each second by a rename.

A JSON object with the fields of ``ForwarderStatus``. Instants and durations end in ``_us``. Readers
ignore members that they do not know: a later release may add some.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Final

import msgspec

from fastjournal.errors import SpoolFailedError
from fastjournal.printable import safe_text
from fastjournal.spool.slots import (
    FILE_MODE,
    STATUS_NAME,
    STATUS_TEMPORARY_NAME,
    set_access,
    spool_failed,
)

FRESH_US: Final = 5_000_000
"""A status that is older was not written by a forwarder that works now."""

NAMES_SHOWN: Final = 20
"""Most names of files, slots and suspects in a status; the counts are of all."""

_BYTES_MAX: Final = 1024 * 1024
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Suspect(msgspec.Struct, frozen=True):
    """Records at which the daemon ends the connection, tried alone and rarely."""

    slot: str
    offset: int
    tries: int


class Delayed(msgspec.Struct, frozen=True):
    """Records that wait for their next try."""

    slot: str
    offset: int
    code: str
    """The error code of the daemon's last answer; empty: there was none, or there are several."""
    tries: int
    due_us: int


class ForwarderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a forwarder at an instant."""

    pid: int
    started_us: int
    written_us: int
    """Instant of this status."""
    servers: list[str]
    """Addresses, in the order of the command line."""
    server: str | None
    """Address of the daemon to which it is connected; None: it is not."""
    connected_us: int | None
    """Instant of the connection."""
    done: int
    """Records that were answered and erased since the start."""
    done_per_second: float
    """The same in the last 10 s."""
    replaced: int = 0
    """Entries that these replaced: waiting ones of their URI, or of their key."""
    replaced_elsewhere: int = 0
    """Those of them that were jobs of another queue: of a URI one job waits, over all queues."""
    pending: int
    """Records that were read and are not done; those of ``delayed`` are in it."""
    unread_bytes: int
    """Bytes of slots that were not read so far; in a backlog of many slots an estimate."""
    slots: int
    """Files in the spool, with drop-ins."""
    oldest_slot: str | None
    """The first slot with pending records; None: nothing is pending."""
    oldest_pending_us: int | None
    """Timestamp of the first pending record of that slot."""
    in_flight: int
    """Requests that wait for a reply."""
    delayed: int
    """Positions of records that wait for their next try, without suspects."""
    delayed_records: list[Delayed]
    """The first of them."""
    suspect: int
    """Positions of suspects."""
    suspects: list[Suspect]
    """The first of them."""
    dead: int
    """Pieces in dead/."""
    buried: int
    """Pieces that went to dead/ since the start."""
    ignored: int
    """Files that are nothing of a spool."""
    ignored_names: list[str]
    left_out: int
    """Slots that cannot be opened or read."""
    left_out_names: list[str]
    last_error: str | None
    """The last warning or error of the log."""
    last_error_us: int | None

    def is_fresh(self, now_us: int) -> bool:
        """Whether a running forwarder has written this: a clock may be slightly behind."""
        return abs(now_us - self.written_us) <= FRESH_US


def write_forwarder_status(directory: str, status: ForwarderStatus) -> None:
    """Replace the status file; a reader sees the old one or this one.

    Raises:
        SpoolFailedError: It cannot be written.
    """
    path = os.path.join(directory, STATUS_NAME)
    temporary = os.path.join(directory, STATUS_TEMPORARY_NAME)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        descriptor = os.open(temporary, _WRITE, FILE_MODE)
        try:
            with open(descriptor, "wb") as file:
                set_access(descriptor, directory)
                file.write(msgspec.json.format(msgspec.json.encode(status)) + b"\n")
            os.rename(temporary, path)
        except BaseException:  # a part of the file is of no use
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise spool_failed("write the status file", path, error) from error


def read_forwarder_status(directory: str | os.PathLike[str]) -> ForwarderStatus | None:
    """Return the status that a forwarder wrote last; None: there is no such file.

    Raises:
        SpoolFailedError: It cannot be read, or is no status file.
    """
    path = os.path.join(directory, STATUS_NAME)
    try:
        descriptor = os.open(path, _READ)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SpoolFailedError("the status file is no regular file", path=path)
            data = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise spool_failed("read the status file", path, error) from error
    try:
        return msgspec.json.decode(data, type=ForwarderStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SpoolFailedError(
            f"not a status file: {safe_text(str(error))}",
            path=path,
            hint="a forwarder of this release writes it anew within a second",
        ) from error
