"""Jobs: leased entries, from being handed out to their end. What both clients share, without IO."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import TypeAlias

import msgspec

from fastjournal.client.core import calls
from fastjournal.client.core.backoff import Backoff, Reconnect
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call
from fastjournal.client.core.calls.base import microseconds
from fastjournal.client.core.results import Entry, Jobs, Written
from fastjournal.errors import (
    CannotConnectError,
    FastjournalError,
    LeaseLostError,
    RefusedError,
)
from fastjournal.limits import INSTANT_MAX, JOB_LEASE_US_MIN, JOBS_WAIT_US_MAX
from fastjournal.numeric import check_integer
from fastjournal.protocol import Meta
from fastjournal.protocol.values import Value

_log = logging.getLogger(__name__)

NOT_NOW = ("busy", "shutting-down", "read-only")
"""Refusals of a NEXT after which a worker asks again."""

LEASE_IS_OVER = ("lease-lost", "not-found")
"""Refusals of an extension; after any other one the lease goes on as it was."""

_EXTENSIONS_PER_LEASE = 3
"""Two may fail before the lease ends."""


class HeldJob:
    """A leased entry, until its work has ended.

    Args:
        entry: With its token and metadata.
        retry_delay_us: See ``Client.jobs``.
    """

    def __init__(self, entry: Entry, retry_delay_us: RetryDelay) -> None:
        assert entry.token is not None, "not leased"
        self.entry = entry
        self.token = entry.token
        """The lease token; another one after each extension."""
        self.finished = False
        """It was completed, released or buried, or the lease is lost."""
        self._retry_delay_us = retry_delay_us

    @property
    def key(self) -> bytes:
        """The journal key."""
        return self.entry.key

    @property
    def uri(self) -> bytes:
        """What the work is about; empty where it was given none."""
        return self.entry.second_key

    @property
    def value(self) -> bytes:
        """The value's bytes as they are stored."""
        return self.entry.value

    @property
    def meta(self) -> Meta:
        """The metadata, as it was when the entry was handed out."""
        assert self.entry.meta is not None, "asked for without metadata"
        return self.entry.meta

    @property
    def attempts(self) -> int:
        """How many leases of this entry have run out before."""
        return self.meta.attempts

    def decoded(self) -> Value:
        """Return the value as the Python object that its type says.

        Raises:
            BadRequestError: The bytes are not of that type; code ``bad-value``.
        """
        return self.entry.decoded()

    def _completion(self) -> Call[Written]:
        return calls.delete(self.key, token=self.token)

    def _giving_back(self, delay_us: int | None) -> Call[None]:
        return calls.release(self.key, self.token, delay_us=delay_us)

    def _delay_after_failure_us(self) -> int | None:
        """Return the delay of a job that failed; where the caller's function fails too, none.

        The job goes back all the same, and the function's error is logged: the error that ended the
        body is the one that is raised.
        """
        delay_us = self._retry_delay_us
        if not callable(delay_us):
            return delay_us
        try:
            return microseconds("what retry_delay_us returned", delay_us(self))
        except Exception:  # noqa: BLE001 - foreign code: whatever it raises, the job goes back
            _log.exception("retry_delay_us failed; job %r is due again at once", self.key)
            return None


RetryDelay: TypeAlias = int | Callable[[HeldJob], int | None] | None


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a job loop was asked for. Times are microseconds."""

    domain: str | bytes
    count: int
    lease_us: int
    wait_us: int | None
    retry_delay_us: RetryDelay

    def __post_init__(self) -> None:
        check_integer("lease_us", self.lease_us, JOB_LEASE_US_MIN, INSTANT_MAX)
        if not callable(self.retry_delay_us):
            microseconds("retry_delay_us", self.retry_delay_us)
        self.next_call(self.wait_us)

    @property
    def extension_s(self) -> float:
        """Seconds after which a lease is extended, at the latest."""
        return self.lease_us / 1e6 / _EXTENSIONS_PER_LEASE

    def next_call(self, wait_us: int | None) -> Call[Jobs]:
        """Return the call that asks for jobs.

        Raises:
            BadRequestError: An argument that no daemon would take.
        """
        return calls.next_(
            self.domain, count=self.count, lease_us=self.lease_us, wait_us=wait_us, meta=True
        )


class Asking:
    """One search for work: how long each NEXT waits, and what follows when it fails.

    Args:
        terms: What is looked for.
        plan: How long to go on asking a daemon that hands out nothing now; None: not.
        rng: Draws the pauses.
        now_s: By any clock that does not jump.
    """

    def __init__(self, terms: Terms, plan: Reconnect | None, rng: Random, now_s: float) -> None:
        self._terms = terms
        self._plan = plan
        self._rng = rng
        self._backoff: Backoff | None = None
        self._end_s: float | None = None
        self._waits_without_end = terms.wait_us == WAIT_WITHOUT_END
        if terms.wait_us is not None and not self._waits_without_end:
            self._end_s = now_s + terms.wait_us / 1e6

    def call(self, now_s: float) -> Call[Jobs]:
        """Return the next NEXT; it waits for a bounded time."""
        wait_us: int | None = JOBS_WAIT_US_MAX
        if self._terms.wait_us is None:
            wait_us = None
        elif self._end_s is not None:
            left_us = max(round((self._end_s - now_s) * 1e6), 0)
            wait_us = min(left_us, JOBS_WAIT_US_MAX)
        return self._terms.next_call(wait_us)

    def is_over(self, now_s: float) -> bool:
        """Whether to stop asking, after a NEXT that gave nothing."""
        if self._terms.wait_us is None:
            return True
        return self._end_s is not None and now_s >= self._end_s

    def answered(self) -> None:
        """The daemon is well: a failure after this begins with short pauses."""
        self._backoff = None

    def failed(self, error: FastjournalError, now_s: float) -> float:
        """Return the seconds after which to ask again.

        Raises:
            FastjournalError: The error, where asking again has no sense, or was done long enough.
        """
        # A NEXT that was lost may have leased something; that comes back when its lease ends.
        lost = isinstance(error, CannotConnectError) and error.maybe_done
        refused = isinstance(error, RefusedError) and error.code in NOT_NOW
        if self._plan is None or not (lost or refused):
            raise error
        if self._backoff is None:
            self._backoff = Backoff(self._plan, self._rng, now_s)
        pause_s = self._backoff.pause_s(now_s)
        if pause_s is None and error.code == "read-only" and self._waits_without_end:
            # The daemon is there, and hands out work again when its disk has room.
            self._backoff = Backoff(self._plan, self._rng, now_s)
            pause_s = self._backoff.pause_s(now_s)
        if pause_s is None:
            raise error
        return pause_s


def lost_job(error: RefusedError) -> LeaseLostError:
    """Return what the refusal of a completion means."""
    if isinstance(error, LeaseLostError):
        return error
    return LeaseLostError(
        "the entry is gone: its lease ran out, and it was completed or deleted by another",
        hint="the work was done in vain, or twice",
    )
