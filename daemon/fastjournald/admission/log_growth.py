"""Log growth: the requests that append records without end, and their bytes. Pure.

While the log is far too large, these wait: ``compaction.backpressure``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastjournal.protocol import Flag, Function, Request
from fastjournal.protocol.declaration import LogEffect

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
