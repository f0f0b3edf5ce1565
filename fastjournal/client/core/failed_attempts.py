"""Failed attempts of jobs: the back-off after each, and the last one. Without IO.

The daemon counts the attempts: leases that ran out, and those that a worker reports. It buries
at its own bound, that of the domain, or that of the worker, which comes with the failure. Its
back-off holds where a worker says nothing else.

The request that ends a job is repeated until the lease is over: the work is done then, so a daemon
that restarts or is read-only for a moment must not lose it. The lease bounds the retries: after it
the daemon would refuse the request.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random

import msgspec

from fastjournal.client.core.calls import Call
from fastjournal.client.core.failures import IN_VAIN, NOT_NOW, TLS_FAILED
from fastjournal.client.core.retry_policy import Backoff, Reconnect, rule_of
from fastjournal.client.core.stats import EntryStats
from fastjournal.errors import CannotConnectError, FastjournalError, RefusedError
from fastjournal.limits import REASON_BYTES_MAX
from fastjournal.protocol import Function
from fastjournal.times import to_timedelta_or_none


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a failed attempt of a job: a delay, or burial by the daemon."""

    attempts: int
    """Failed attempts of the entry, this one included."""
    delay_us: int | None
    """Microseconds after which it is due again; None: the daemon's back-off, or it is buried."""
    buried: bool | None
    """It failed as often as the worker, its domain or the daemon allows, and is buried. None: the
    daemon did not say, for instance because the token has no right to read."""
    reason: str
    """Sentence for people who examine the entry later, as the daemon keeps it."""
    told_max: int = 0
    """Bound on failed attempts that goes with the failure; 0: none."""

    @property
    def delay(self) -> timedelta | None:
        """Length of time after which it is due again; None as for ``delay_us``."""
        return to_timedelta_or_none(self.delay_us)


def decide_retry(
    reason: str,
    *,
    failures_before: int,
    delay_us: int | None,
    attempts_max: int,
    told_max: int = 0,
) -> FailedAttempt:
    """Return the outcome of a failed attempt, as far as the worker knows it.

    Args:
        reason: Reason of the failure; cut to the length that the daemon accepts.
        failures_before: Attempts of the entry that failed before this one.
        delay_us: Microseconds of the delay before the next attempt.
        attempts_max: The worker's bound on failed attempts; 0: no bound.
        told_max: One more, which goes with the failure; 0: none.

    Raises:
        TypeError: The reason is no text.
    """
    if not isinstance(reason, str):
        raise TypeError(f"reason is str, not {type(reason).__name__}")
    attempts = failures_before + 1
    is_last = 0 < attempts_max <= attempts or 0 < told_max <= attempts
    cut = reason[:REASON_BYTES_MAX].encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX]
    return FailedAttempt(
        attempts=attempts,
        delay_us=None if is_last else delay_us,
        buried=is_last,
        reason=cut.decode("utf-8", "ignore"),
        told_max=told_max,
    )


def learn_burial(failed: FailedAttempt, answer: EntryStats | FastjournalError) -> FailedAttempt:
    """Return the outcome of a reported failure, by the answer of the daemon.

    The entry may have changed since by another worker or an operator: only a burial with the count
    and the reason of this failure is that of this failure.

    Args:
        failed: Outcome as far as the worker knows it.
        answer: STATS of the entry afterwards, or why there is none.
    """
    if isinstance(answer, FastjournalError):
        is_gone = isinstance(answer, RefusedError) and answer.code == "not-found"
        return msgspec.structs.replace(failed, buried=False if is_gone else failed.buried or None)
    is_buried = (
        answer.state == "buried"
        and answer.attempts == failed.attempts
        and (answer.buried_reason or "") == failed.reason
    )
    delay_us = None if is_buried else failed.delay_us
    return msgspec.structs.replace(failed, buried=is_buried, delay_us=delay_us)


_FINAL = (IN_VAIN - {TLS_FAILED}) | {"not-connected"}
"""Codes of connections after which another try has no sense; the last is that of a closed client.
Somebody may mend a certificate while the lease lasts."""


class EndPolicy:
    """Decides after each failure of the request that ends a job.

    Args:
        call: The request: DELETE, RELEASE or BURY with a lease token.
        plan: The client's; None: nothing is sent again.
        rng: Draws the pauses.
        lease_ends_s: When the lease is over, by a clock that does not jump.
    """

    def __init__(
        self,
        call: Call[object],
        plan: Reconnect | None,
        rng: Random,
        *,
        lease_ends_s: float,
    ) -> None:
        self._done_codes = rule_of(call.request).done_codes
        if call.request.function == Function.BURY:
            # While the lease lasts nothing but the first BURY ends it.
            self._done_codes |= {"lease-lost"}
        self._plan = plan
        self._rng = rng
        self._lease_ends_s = lease_ends_s
        self._maybe_done = False
        self._backoff: Backoff | None = None

    def pause_s(self, error: FastjournalError, now_s: float) -> float | None:
        """Return the seconds after which to send it again; None: an earlier try has succeeded.

        Raises:
            FastjournalError: The error, where another try has no sense, or the lease is over.
        """
        self._maybe_done = self._maybe_done or error.maybe_done
        if isinstance(error, RefusedError):
            if self._maybe_done and error.code in self._done_codes:
                return None
            again = error.code in NOT_NOW
        else:
            again = isinstance(error, CannotConnectError) and error.code not in _FINAL
        left_s = self._lease_ends_s - now_s
        if not again or self._plan is None or left_s <= 0:
            raise error
        if self._backoff is None:
            plan = msgspec.structs.replace(self._plan, patience=max(left_s, 1e-6))
            self._backoff = Backoff(plan, self._rng, now_s)
        pause_s = self._backoff.pause_s(now_s)
        if pause_s is None:
            raise error
        return pause_s
