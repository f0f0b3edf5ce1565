"""Log growth: the requests that grow the log, and the bytes that they wait for. Pure.

They wait while the log is far too large, see ``compaction.backpressure``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from fastjournal.limits import REQUEST_OBJECT_BYTES
from fastjournal.protocol import Flag, Function, Request
from fastjournal.protocol.functions import LogEffect
from fastjournald.admission.memory_budget import MemoryAccount

_GROWING = frozenset(f for f in Function if f.declared.log is LogEffect.GROWS)
_GROWING_BY_LEASE = frozenset(f for f in Function if f.declared.log is LogEffect.GROWS_BY_LEASE)
_GROWING_BY_VALUE = frozenset(
    f for f in Function if f.declared.log is LogEffect.SHRINKS_WITHOUT_VALUE
)


def grows(requests: Iterable[Request], find: Callable[[bytes], object]) -> bool:
    """Whether these requests make the log grow.

    Args:
        requests: They.
        find: Returns the entry under a key; None: there is none.
    """
    return any(
        request.function in _GROWING
        # a GET that leases
        or (request.timeout is not None and request.function in _GROWING_BY_LEASE)
        # a RELEASE with the error of a failed attempt
        or (request.value and request.function in _GROWING_BY_VALUE)
        or (request.function == Function.DELETE and _is_tombstone_only(request, find))
        for request in requests
    )


def _is_tombstone_only(request: Request, find: Callable[[bytes], object]) -> bool:
    """Whether a DELETE ends nothing, so that its record is bounded by no other request."""
    flags = request.flags
    return bool(
        flags & Flag.PERSIST
        and not flags & Flag.OVERWRITE
        and request.timeout is None
        and find(request.key) is None
    )


def bytes_of(requests: Iterable[Request]) -> int:
    """Return the bytes of requests, without what each of them takes in any case."""
    return sum(len(request.key) + len(request.value) for request in requests)


class WriterQueue(Protocol):
    """Backpressure: see ``compaction.backpressure``."""

    @property
    def closed(self) -> bool:
        """Whether requests that make the log grow wait for their turns."""

    @property
    def look_at(self) -> int:
        """Appended bytes at which the size of the log must be checked."""

    def turn_over(self, size: int, unused: int = 0) -> None:
        """Note that a batch of ``size`` bytes was carried out, without ``unused`` bytes of it."""


class LogRoom:
    """Room in the log for the requests of one client, while writers are slowed down.

    Args:
        queue: Backpressure.
        account: Counts what the requests hold while they wait.
        find: Returns the entry under a key; None: there is none.
    """

    __slots__ = ("_account", "_find", "_held", "_queue", "_wanted", "asked", "granted")

    def __init__(
        self, queue: WriterQueue, account: MemoryAccount, find: Callable[[bytes], object]
    ) -> None:
        self.granted = 0
        """Bytes of requests that were admitted after a wait, until ``leave``; 0: no wait."""
        self.asked = False
        """Whether the requests wait for room, until ``enter``."""
        self._queue = queue
        self._account = account
        self._find = find
        self._wanted = 0
        self._held = 0

    def lacks(self, requests: Iterable[Request]) -> bool:
        """Whether these requests have to wait for room."""
        return self._queue.closed and not self.granted and grows(requests, self._find)

    def ask(self, size: int, number: int) -> None:
        """Begin to wait for room for so many bytes of so many requests, which are held."""
        self.asked = True
        self._wanted = size
        self._held = size + number * REQUEST_OBJECT_BYTES
        self._account.hold(self._held)

    def enter(self) -> None:
        """End the wait: there is room."""
        self.asked = False
        self._account.hold(-self._held)
        self.granted = self._wanted

    def leave(self, left: Iterable[Request] = ()) -> None:
        """Give the turn to other writers; all requests were carried out, except ``left``."""
        self._queue.turn_over(self.granted, bytes_of(left))
        self.granted = 0
