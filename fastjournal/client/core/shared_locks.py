"""Locks of ``locked`` blocks: among those who share a client, and from LOCK to UNLOCK. Sans-IO.

The daemon sees one connection, and refuses nothing to those who share it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call
from fastjournal.client.core.calls.base import duration, key_bytes
from fastjournal.client.core.held_lease import HeldLease
from fastjournal.errors import CannotConnectError, FastjournalError, LockLostError, RefusedError
from fastjournal.limits import JOB_LEASE_US_MIN, LOCK_US_DEFAULT
from fastjournal.times import Duration, lease_us, to_timedelta


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


class HeldLock(HeldLease):
    """Lock of one block, until the block ends or the lock is lost.

    Args:
        key: Key of the entry.
        length_us: Length of the lock in microseconds.
        now_s: When it was asked for, by a clock that does not jump.
    """

    kind = "lock"
    over_codes = ("not-owner", "not-found")

    def __init__(self, key: str | bytes, length_us: int, now_s: float) -> None:
        super().__init__(length_us, now_s)
        self.key = key_bytes(key)

    def _renewal_call(self, length_us: int) -> Call[None]:
        return calls.lock(self.key, timeout=to_timedelta(length_us), renew=True)

    def _renewed(self, answer: None, *, asked_s: float) -> None:
        self._lease_ends_s = asked_s + self._length_us / 1e6
        self._late_s = 0.0

    def _is_over_by(self, error: FastjournalError) -> bool:
        # a lock ends with its connection, which is over after all errors but refusals
        return isinstance(error, CannotConnectError) or super()._is_over_by(error)

    def _error(self) -> LockLostError:
        """Return the error of a block whose lock was lost before its end."""
        error = LockLostError(
            "the lock was lost while the block ran, so another may have had the entry",
            hint="check what the block wrote; a block that takes long needs renew=True or a longer"
            " timeout",
        )
        error.key = self.key
        return error

    def _end_failed(self, error: FastjournalError, now_s: float) -> None:
        """Take the failure of the UNLOCK.

        Raises:
            LockLostError: The failure means that the lock was lost before.
        """
        if self._is_over_by(error):
            self._lose(error, now_s)
            raise self._error() from self.loss


def lock_length_us(timeout: Duration | None, *, renew: bool) -> int:
    """Return the length of the lock of a block in microseconds.

    Raises:
        TypeError, BadRequestError: It is none, or too short to be renewed.
    """
    if renew and timeout is not None:
        return lease_us("timeout", timeout, least_us=JOB_LEASE_US_MIN, zero=False)
    length_us = duration("timeout", timeout)
    return LOCK_US_DEFAULT if length_us is None else length_us
