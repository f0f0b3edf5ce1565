"""Lock of a directory: flock on this machine, claims in an object store.

An object store has no lock, and not every one puts an object only where none is. So each process
puts a claim under a name of its own, and lists the claims behind that. Where it finds another one
it removes its own and gives way. Two that come at once may both give way; never do both go on,
because the listing of the later one has the claim of the earlier one (stores list what was put).

A claim is put again while its process lives. One that is older than ``CLAIM_S``, by the store's own
clock, belongs to a process that is gone; one of this machine is looked up among its processes. A
process that was suspended for longer, alone or with its machine, may have lost its claim: ``check``
tells it before a commit.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Collection
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Annotated, Any, Self

import msgspec
import pyarrow as pa
import pyarrow.fs

from fastjournal.errors import LogFailedError, LogLockedError
from fastjournal.spark.storage.files import translating
from fastjournal.spark.storage.table_files import StoreFiles

CLAIMS = "_locks"
"""Directory of the claims."""
CLAIM_S = 600
"""Seconds after which a claim that was not put again belongs to nobody."""
_RENEWALS = 6
"""How often a claim is put again in that time."""


_PROCESS_MAX = 2**22
"""Largest number of a process that Linux gives."""


class Claim(msgspec.Struct, frozen=True):
    """Process that works in a directory."""

    boot: str
    """Identifier of the boot of its machine, and of the namespace of its processes."""
    process: Annotated[int, msgspec.Meta(ge=1, le=_PROCESS_MAX)]
    started: str
    """When it was started, in ticks behind the boot."""

    @classmethod
    def of_process(cls) -> Self:
        """Return the claim of this process."""
        process = os.getpid()
        return cls(_boot(), process, _started(process) or "")

    @property
    def is_dead(self) -> bool:
        """Whether the process is one of this machine, and has ended."""
        if self.boot != _boot():
            return False
        started = _started(self.process)
        if started is not None:
            return started != self.started
        # a mount of /proc may hide processes of other users (hidepid, ProtectProc=invisible)
        return not _process_lives(self.process)


class StoreLock:
    """Lock of a directory in an object store; see the module.

    Args:
        files: File system of pyarrow.
        directory: The directory.
        claim: The process that locks it; None: this one.
        held: Names of claims that do not count: those of this run, which may reach one directory
            by two URIs.

    Raises:
        LogLockedError: Another process works there.
        LogFailedError: The store could not be read or written.
    """

    def __init__(
        self,
        files: Any,
        directory: str,
        claim: Claim | None = None,
        *,
        held: Collection[str] = (),
    ) -> None:
        self._files = files
        self._objects = StoreFiles(files)
        self._claims = f"{directory}/{CLAIMS}"
        self.name = f"{uuid.uuid4()}.json"
        """Name of its claim."""
        self._path = f"{self._claims}/{self.name}"
        self._data = msgspec.json.encode(Claim.of_process() if claim is None else claim)
        self._put_s = 0.0
        self._over = threading.Event()
        with ExitStack() as stack:
            stack.callback(self._objects.delete, self._path)
            self._put()
            self._give_way(directory, held)
            stack.pop_all()
        self._renewal = threading.Thread(target=self._renew, daemon=True)
        self._renewal.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the directory."""
        self._over.set()
        self._renewal.join()
        self._objects.delete(self._path)

    def check(self) -> None:
        """Check that the lock holds.

        Raises:
            LogLockedError: The process was suspended, or the store out of reach, for too long.
            LogFailedError: The store could not be read.
        """
        if self._age_s() > CLAIM_S / 2 or not self._is_there(self._path):
            raise LogLockedError(
                "the lock was lost: this process was suspended, or the store out of reach",
                path=self._path,
                hint="run it again",
            )

    def _give_way(self, directory: str, held: Collection[str]) -> None:
        """Remove claims of processes that are gone; raise where another one lives."""
        selector = pa.fs.FileSelector(self._claims)
        with translating("list", self._claims):
            infos = {info.path: info for info in self._files.get_file_info(selector)}
        if self._path not in infos:
            raise LogFailedError("the store does not list what was put there", path=self._path)
        now = infos[self._path].mtime
        for path, info in infos.items():
            if path == self._path or info.base_name in held or not info.is_file:
                continue
            if (now - info.mtime).total_seconds() > CLAIM_S or self._is_dead(path):
                self._objects.delete(path)
                continue
            raise LogLockedError(
                "another fj-nightly works here",
                path=directory,
                hint=f"wait until it has ended; one that was killed on another machine counts for "
                f"{CLAIM_S} seconds, or remove {path}",
            )

    def _is_dead(self, path: str) -> bool:
        try:
            data = self._objects.read(path)
        except LogFailedError:
            if self._is_there(path):
                raise
            # its process has ended since the listing
            return True
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(data, type=Claim).is_dead
        return False

    def _put(self) -> None:
        began = _now_s()
        self._objects.put(self._path, self._data)
        self._put_s = began

    def _renew(self) -> None:
        while not self._over.wait(CLAIM_S / _RENEWALS):
            # a store out of reach: the next time, and ``check`` tells if that is too late
            with suppress(LogFailedError):
                if self._age_s() > CLAIM_S / 2 or not self._is_there(self._path):
                    return
                self._put()

    def _age_s(self) -> float:
        return _now_s() - self._put_s

    def _is_there(self, path: str) -> bool:
        with translating("read", path):
            return bool(self._files.get_file_info(path).type == pa.fs.FileType.File)


def _now_s() -> float:
    """Return seconds since the boot; unlike the monotonic clock, suspended ones too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _started(process: int) -> str | None:
    """Return when a process was started; None: there is none of this number, or it is hidden."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # the name of the program, in brackets, may have any characters
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _process_lives(process: int) -> bool:
    """Whether there is a process of this number, also one that /proc does not show."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
