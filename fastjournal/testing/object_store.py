"""Fault-injecting object store in memory: requests outlive their sender, answers are lost.

``MemoryStore`` keeps every promise of ``fastjournal.remote.store``. ``CruelStore`` keeps no promise
that the real ones do not give, and breaks others on demand:

- a request that fails was not carried out, was carried out all the same, or is carried out later,
  during any later call of any client;
- a create may meet the object that a failed try has created;
- with ``overwrites`` or ``lists_late`` it is a store that a remote log must refuse.

Everything random is drawn from the seed. The same calls give the same store.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fastjournal.errors import StoreUnavailableError
from fastjournal.remote.store import (
    Copy,
    Create,
    Delete,
    Listed,
    Overwrite,
    Request,
    first_names,
    perform,
)

Answer = TypeVar("Answer")


class MemoryStore:
    """An object store in memory, with the interface of ``fastjournal.remote.store.ObjectStore``."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        """The objects by name."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object, if it does not exist."""
        if name in self.objects:
            return False
        self.objects[name] = data
        return True

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        return self.objects.get(name)

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        """Return a part of an object, or None."""
        data = self.objects.get(name)
        return None if data is None else data[start : start + length]

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[Listed]:
        """Return the objects of a folder behind a name, sorted."""
        names = [name for name in self.objects if name.startswith(folder + "/")]
        return first_names((Listed(name, len(self.objects[name])) for name in names), after, limit)

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        self.objects.pop(name, None)

    def overwrite(self, name: str, data: bytes | None, path: str = "") -> None:
        """Write an object from bytes or from a file."""
        self.objects[name] = Path(path).read_bytes() if data is None else data

    def copy(self, source: str, target: str) -> bool:
        """Copy an object, if there is one."""
        if source not in self.objects:
            return False
        self.objects[target] = self.objects[source]
        return True


class CruelStore:
    """A store in memory that fails at random, with the interface of ``ObjectStore``.

    Args:
        seed: Of everything random.
        failures: Share of the requests that fail.
        overwrites: Whether a create overwrites an object that exists.
        lists_late: Whether a listing misses the newest object.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        failures: float = 0.0,
        overwrites: bool = False,
        lists_late: bool = False,
    ) -> None:
        self.store = MemoryStore()
        """What is in it."""
        self.late: list[Request] = []
        """Requests that are carried out later, unless that is never."""
        self.failures = failures
        self._random = random.Random(seed)
        self._overwrites = overwrites
        self._lists_late = lists_late
        self._newest = ""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object, perhaps."""
        if self._overwrites:
            self._carry_out(Overwrite(name, data))
            return True
        self._newest = name if name not in self.store.objects else self._newest
        return bool(self._carry_out(Create(name, data)))

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        return self._read(lambda: self.store.get(name))

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        """Return a part of an object, or None."""
        return self._read(lambda: self.store.get_range(name, start, length))

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[Listed]:
        """Return the objects of a folder behind a name, sorted."""
        found = self._read(lambda: self.store.list(folder, after, limit))
        missed = self._newest if self._lists_late else ""
        return [listed for listed in found if listed.name != missed]

    def delete(self, name: str) -> None:
        """Remove an object, perhaps."""
        self._carry_out(Delete(name))

    def overwrite(self, name: str, data: bytes | None, path: str = "") -> None:
        """Write an object, perhaps."""
        self._carry_out(Overwrite(name, Path(path).read_bytes() if data is None else data))

    def copy(self, source: str, target: str) -> bool:
        """Copy an object, perhaps."""
        return bool(self._carry_out(Copy(source, target)))

    def _read(self, call: Callable[[], Answer]) -> Answer:
        self._carry_out_late()
        if self._random.random() < self.failures:
            raise StoreUnavailableError("the store does not answer")
        return call()

    def _carry_out(self, request: Request) -> object:
        self._carry_out_late()
        if self._random.random() >= self.failures:
            return perform(self.store, request)
        match self._random.randrange(3):
            case 0:
                perform(self.store, request)
            case 1:
                self.late.append(request)
        raise StoreUnavailableError("the store does not answer")

    def _carry_out_late(self) -> None:
        while self.late and self._random.random() < 0.3:
            perform(self.store, self.late.pop(self._random.randrange(len(self.late))))
