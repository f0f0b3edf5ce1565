"""Object store seam: the requests that the rules make, and what every store promises about them.

The rules (``writer``, ``reader``, ``checkpoints``) are generators: they yield one request at a time
and are sent its answer. ``run`` carries them out with a store; a simulation carries out the same
requests in any order it likes. A request that fails says nothing about what the store did, so
whoever runs the rules repeats it as it is. No rule sees a failed request.

Answers, by request::

    Create     bool           True: this request created the object; False: one is said to exist
    Get        bytes | None   None: there is no such object
    GetRange   bytes | None   exactly these bytes, fewer at the end of the object
    List       list[Listed]   sorted by name
    Delete     None           there was one, or none
    Overwrite  None           the object has this content
    Copy       bool           False: there is no source

A listing sees every object whose creation ended before the listing began.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from fastjournal.errors import StoreUnavailableError


class Create(NamedTuple):
    """Create an object if it does not exist; one that exists stays."""

    name: str
    data: bytes


class Get(NamedTuple):
    """Read a whole object."""

    name: str


class GetRange(NamedTuple):
    """Read a part of an object."""

    name: str
    start: int
    length: int


class List(NamedTuple):
    """List the objects of a folder."""

    folder: str
    """Without the ``/`` at its end."""
    after: str = ""
    """Only names behind this one, which need not exist."""
    limit: int | None = None
    """The first so many names are enough; None: all."""


class Delete(NamedTuple):
    """Remove an object."""

    name: str


class Overwrite(NamedTuple):
    """Write an object, whether it exists or not."""

    name: str
    data: bytes | None
    path: str = ""
    """File whose bytes it gets, where ``data`` is None."""


class Copy(NamedTuple):
    """Copy an object within the store; one that exists at the target is overwritten."""

    source: str
    target: str


Request: TypeAlias = Create | Get | GetRange | List | Delete | Overwrite | Copy


class Listed(NamedTuple):
    """An object in a listing."""

    name: str
    bytes: int


class ObjectStore(Protocol):
    """A store below one prefix. Its calls block, and several threads may make them.

    Raises:
        StoreUnavailableError: By every call: the store may have carried it out, or may do so yet.
        StoreRefusedError: By every call: the store refuses this user, or has no such bucket.
    """

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; False: one of this name is said to exist."""

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        """Return a part of an object, or None where there is no object."""

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[Listed]:
        """Return the objects of a folder behind a name, sorted."""

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""

    def overwrite(self, name: str, data: bytes | None, path: str = "") -> None:
        """Write an object from bytes or from a file."""

    def copy(self, source: str, target: str) -> bool:
        """Copy an object; False: there is no source."""


def perform(store: ObjectStore, request: Request) -> object:
    """Carry out a request, and return its answer."""
    match request:
        case Create(name, data):
            return store.create(name, data)
        case Get(name):
            return store.get(name)
        case GetRange(name, start, length):
            return store.get_range(name, start, length)
        case List(folder, after, limit):
            return store.list(folder, after, limit)
        case Delete(name):
            store.delete(name)
        case Overwrite(name, content, path):
            store.overwrite(name, content, path)
        case Copy(source, target):
            return store.copy(source, target)
    return None


Wait: TypeAlias = Callable[[int, StoreUnavailableError], None]
"""Waits before a repeat, by its number and the error of the try before it; raises to give up."""


def repeating(store: ObjectStore, wait: Wait) -> Callable[[Request], object]:
    """Return a function for ``run`` that repeats each request until it is answered (W3).

    Args:
        store: The store.
        wait: Waits before each repeat.
    """

    def answer(request: Request) -> object:
        tries = 0
        while True:
            try:
                return perform(store, request)
            except StoreUnavailableError as error:
                tries += 1
                wait(tries, error)

    return answer


Result = TypeVar("Result")
Steps: TypeAlias = Generator[Any, Any, Result]
"""A rule: it yields requests (``Request``, a reader also its local steps), and returns a result."""


def run(steps: Steps[Result], answer: Callable[[Any], object]) -> Result:
    """Carry out a rule.

    Args:
        steps: The rule.
        answer: Carries out one request and returns its answer, after repeats where it failed.
    """
    try:
        request = next(steps)
        while True:
            request = steps.send(answer(request))
    except StopIteration as end:
        result: Result = end.value
        return result


async def run_async(steps: Steps[Result], answer: Callable[[Any], Awaitable[object]]) -> Result:
    """Carry out a rule, as ``run``, where answers are awaited."""
    given: object = None
    while True:
        try:
            request = steps.send(given)
        except StopIteration as end:
            result: Result = end.value
            return result
        given = await answer(request)


def first_names(names: Iterable[Listed], after: str, limit: int | None) -> list[Listed]:
    """Return what a listing promises of names in any order, with some too many."""
    found = sorted(listed for listed in names if listed.name > after)
    return found[:limit]
