"""Failed attempts of jobs: the back-off after each, and the last one. Without IO.

The daemon counts the attempts: leases that ran out, and those that a worker told it of. It buries
at its own bound, that of the domain, or that of the worker, which comes with the failure. Its
back-off holds where a worker says nothing else.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from fastjournal.client.core.stats import EntryStats
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import REASON_BYTES_MAX
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
    """Sentence for whoever looks at the entry later, as the daemon keeps it."""

    @property
    def delay(self) -> timedelta | None:
        """Length of time after which it is due again; None as for ``delay_us``."""
        return to_timedelta_or_none(self.delay_us)


def decide_retry(
    reason: str, *, failures_before: int, delay_us: int | None, attempts_max: int
) -> FailedAttempt:
    """Return the outcome of a failed attempt, as far as the worker knows it.

    Args:
        reason: Why it failed; cut where it is longer than the daemon takes.
        failures_before: Attempts of the entry that failed before this one.
        delay_us: Microseconds of the delay where it is tried again.
        attempts_max: The worker lets it fail so often; 0: without end.

    Raises:
        TypeError: The reason is no text.
    """
    if not isinstance(reason, str):
        raise TypeError(f"reason is str, not {type(reason).__name__}")
    attempts = failures_before + 1
    is_last = 0 < attempts_max <= attempts
    cut = reason[:REASON_BYTES_MAX].encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX]
    return FailedAttempt(
        attempts=attempts,
        delay_us=None if is_last else delay_us,
        buried=is_last,
        reason=cut.decode("utf-8", "ignore"),
    )


def learn_burial(failed: FailedAttempt, answer: EntryStats | FastjournalError) -> FailedAttempt:
    """Return the outcome of a reported failure, as the daemon tells it.

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
