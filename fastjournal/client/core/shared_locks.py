"""Locks among those who share a client: the daemon sees one connection, and refuses it nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastjournal.client.core.calls.base import key_bytes
from fastjournal.errors import RefusedError


class LockClaims:
    """The keys that the ``locked`` blocks of one client hold."""

    def __init__(self) -> None:
        self._holders: dict[bytes, object] = {}

    @contextlib.contextmanager
    def hold(self, key: str | bytes) -> Iterator[None]:
        """Claim a key while the block runs; safe among threads.

        Raises:
            RefusedError: ``locked``: another block of this client holds it.
        """
        name, holder = key_bytes(key), object()
        if self._holders.setdefault(name, holder) is not holder:
            raise RefusedError(
                "another task or thread of this client holds the lock; try again later",
                code="locked",
            )
        try:
            yield
        finally:
            del self._holders[name]
