"""Leases of jobs, and locks: given by the daemon for a time, renewed by its client. Sans-IO.

The daemon sees one connection, so locks of ``locked`` blocks are also kept among those who share a
client.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call
from fastjournal.client.core.calls.base import duration, key_bytes
from fastjournal.client.core.failures import STALLED, program_stalled
from fastjournal.errors import CannotConnectError, FastjournalError, LockLostError, RefusedError
from fastjournal.limits import JOB_LEASE_US_MIN, LEASE_RENEWAL_PAUSE_S_MIN, LOCK_US_DEFAULT
from fastjournal.times import Duration, lease_us, to_timedelta

if TYPE_CHECKING:
    from random import Random


_RENEWALS_PER_LEASE = 3
"""Two may fail before it ends."""


class HeldLease(ABC):
    """Lease of a job, or a lock, until it has ended or is lost.

    Args:
        length_us: Its length, which a renewal gives again, in microseconds.
        now_s: When it was asked for or delivered, by a clock that does not jump.
    """

    kind: ClassVar[str] = "lease"
    over_codes: ClassVar[tuple[str, ...]]
    """Refusals after which another client has it, or it does not exist; after others it
    continues."""

    def __init__(self, length_us: int, now_s: float) -> None:
        self.finished = False
        """Its holder has ended it, or it is lost."""
        self.loss: FastjournalError | None = None
        """Why it was lost: the daemon's refusal, or that it was away for too long."""
        self._length_us = length_us
        self._renewal_s = length_us / 1e6 / _RENEWALS_PER_LEASE
        self._lease_ends_s = now_s + length_us / 1e6
        self._renew_at_s = now_s + self._renewal_s
        """When the next renewal is to begin; none while one is under way."""
        self._late_s = 0.0
        """Seconds by which renewals were late since the last answered one."""

    @abstractmethod
    def _renewal_call(self, length_us: int) -> Call[Any]:
        """Return the request that renews it."""

    @abstractmethod
    def _renewed(self, answer: Any, *, asked_s: float) -> None:
        """Note the result of a renewal that was sent at ``asked_s`` or later."""

    def _is_over_by(self, error: FastjournalError) -> bool:
        """Whether a renewal that failed so means that it is lost."""
        return isinstance(error, RefusedError) and error.code in self.over_codes

    def _note_lateness(self, now_s: float) -> None:
        """Note how late a renewal begins, or the end of the job: the program did not run."""
        self._late_s = self._stalled_s(now_s)
        self._renew_at_s = math.inf

    def _stalled_s(self, now_s: float) -> float:
        """Return for how many seconds, at least, the program did not run since it last renewed."""
        return self._late_s + max(now_s - self._renew_at_s, 0.0)

    def _renewal_pause_s(
        self, failure: FastjournalError | None, now_s: float, rng: Random
    ) -> float:
        """Return the seconds until the next renewal: shorter after one that failed.

        A renewal gives the length that the loop asked for: so it comes early where the body has
        asked for less since, and does not shorten what it has asked for beyond that.
        """
        left_s = self._lease_ends_s - now_s
        if failure is None:
            beyond_s = max(left_s - self._length_us / 1e6, 0.0)
            pause_s = min(self._renewal_s, max(left_s - beyond_s, 0.0) / 3)
            return beyond_s + pause_s * rng.uniform(0.8, 1.0)  # not all jobs at once
        return min(max(left_s / 3, LEASE_RENEWAL_PAUSE_S_MIN), max(left_s, 0.0))

    def _lose(self, error: FastjournalError, now_s: float) -> None:
        """Note that somebody else may have the entry, and why.

        Args:
            error: Failure of the request that met it.
            now_s: By the clock of the job.
        """
        stalled_s = self._stalled_s(now_s)
        says_nothing = error.code in ("lease-lost", "not-owner", "timed-out")
        if says_nothing and stalled_s > self._renewal_s / 2:
            error = program_stalled(stalled_s, self.kind)
        self.loss = error

    @property
    def is_stalled(self) -> bool:
        """Whether the lease was lost because the program itself did not run."""
        return self.loss is not None and self.loss.code == STALLED


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
