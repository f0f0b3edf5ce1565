"""Place of poisons in the spool soak: how they get there, and what the forwarder makes of them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from fastjournal.clock import unique_timestamp
from fastjournal.keys import build_journal_key
from fastjournal.protocol import Flag, Function, Request, ValueType, encode_request
from fastjournal.spool.format import FILE_HEADER, encode_record
from fastjournal.spool.slots import SLOT_SUFFIX, slot_name, slot_start
from tests.soak.spool_writer import DOMAIN, SLOT_SECONDS


class Trace(msgspec.Struct, kw_only=True):
    """Effects of one poison, with which the end of a run is compared."""

    jobs: list[str] = []
    """Names of jobs that have to be handed out while all of the others wait."""
    late: list[bytes] = []
    """Frames that wait until the cause is cured, and are delivered then."""
    never: list[bytes] = []
    """Frames that still wait at the end."""
    suspects: list[bytes] = []
    """Frames of ``late`` at which the connection ends."""
    dead: dict[bytes, str] = {}
    """Frames that go to dead/, and their codes."""
    damage: list[bytes] = []
    """Bytes that go to dead/ as damage."""
    left_out: list[str] = []
    """Names of slots that cannot be opened or read."""
    ignored: list[str] = []
    """Names of files that are nothing of a spool."""
    empty: list[str] = []
    """Names of files that are logged and deleted."""
    gone: list[str] = []
    """Names of files that are deleted without a word."""
    untouched: list[str] = []
    """Paths, in the spool, of files that stay as they are; so do all ``ignored`` ones."""
    cures: list[Callable[[], None]] = []
    """Steps that end the cause."""


Access = Callable[[Path], None]
"""Changes mode or owner of a file."""


def _keep(_: Path) -> None:
    """Leave mode and owner as they are."""


class NoSlotError(Exception):
    """There is no slot to append to at this moment, or the disk is full: try again."""


class Place:
    """Spool in which poison is put, as programs of other languages would, and careless people.

    Args:
        directory: The spool.
        random: Random numbers for all choices.
    """

    def __init__(self, directory: Path, random: Random) -> None:
        self.directory = directory
        self.random = random
        self._number = 0

    def name(self, kind: str = "poison") -> str:
        """Return a name that no other has."""
        self._number += 1
        return f"{kind}.{self._number}"

    def job(self, kind: str = "poison", *, ahead_us: int = 0) -> tuple[str, bytes]:
        """Return the name of a good job, and its frame."""
        name, now = self.name(kind), unique_timestamp()
        key = build_journal_key(DOMAIN, name, not_before_us=now)
        request = set_request(key, value=name.encode(), timestamp=now + ahead_us)
        return name, encode_request(request)

    def jobs(self) -> tuple[list[str], list[bytes]]:
        """Return the names of some good jobs, and their records."""
        made = [self.job() for _ in range(self.random.randint(1, 4))]
        return [name for name, _ in made], [encode_record(frame) for _, frame in made]

    def append(self, data: bytes) -> None:
        """Append bytes to the slot of this instant."""
        start_s = slot_start(time.time_ns() // 1000, SLOT_SECONDS)
        try:
            path = self.directory / slot_name(start_s)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        except OSError as error:
            raise NoSlotError from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            is_there = os.fstat(descriptor).st_nlink > 0
            if not is_there or os.write(descriptor, data) != len(data):
                raise NoSlotError
        except OSError as error:
            raise NoSlotError from error
        finally:
            os.close(descriptor)

    def record(self, frame: bytes) -> None:
        """Put a record into the slot of this instant, or into a drop-in."""
        if self.random.random() < 0.5:
            self.append(encode_record(frame))
        else:
            self.drop_in(FILE_HEADER + encode_record(frame))

    def drop_in(
        self, data: bytes, *, at_s: float | None = None, label: str = "", access: Access = _keep
    ) -> Path:
        """Make a drop-in of these bytes, under a name of its own; return its path."""
        stamp = slot_name(int(time.time() if at_s is None else at_s)).removesuffix(SLOT_SUFFIX)
        return self.file(f"{stamp}-{label or self.name()}{SLOT_SUFFIX}", data, access)

    def old_slot(self, data: bytes) -> Path:
        """Make a slot of the past of these bytes; return its path."""
        return self.file(slot_name(self.random.randrange(10**9) * SLOT_SECONDS // 2), data)

    def file(self, name: str, data: bytes, access: Access = _keep) -> Path:
        """Make a file that is whole when it appears, and belongs to the owner of the spool.

        ``access`` changes mode and owner before it appears.
        """
        path, temporary = self.directory / name, self.directory / f".{self.name()}.fjs.tmp"
        owner = self.directory.stat()
        try:
            try:
                temporary.write_bytes(data)
                os.chown(temporary, owner.st_uid, owner.st_gid)
                access(temporary)
                os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise NoSlotError from error
        return path


def set_request(
    key: bytes,
    *,
    value: bytes = b"poison",
    value_type: int | None = ValueType.BUFFER,
    second_key: bytes | None = None,
    timestamp: int = 0,
) -> Request:
    """Return a SET of an entry that is persistent."""
    flags, timestamp = int(Flag.PERSIST), timestamp or unique_timestamp()
    return Request(Function.SET, 0, flags, timestamp, key, second_key, value_type, value)
