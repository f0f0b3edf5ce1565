"""Failed attempts of jobs: the back-off after each, and when a worker buries. Without IO.

The daemon counts the attempts: leases that ran out, and those that a worker told it of. It has a
back-off and a bound of its own, which hold where a worker says nothing else.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from fastjournal.client.core.results import EntryStats
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import REASON_BYTES_MAX
from fastjournal.times import to_timedelta_or_none

_DOUBLINGS_MAX = 62


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a failed attempt of a job: a delay, or burial by its worker or the daemon."""

    attempts: int
    """Failed attempts of the entry, this one included."""
    delay_us: int | None
    """Microseconds after which it is due again; None: the daemon's back-off, or it is buried."""
    buried: bool | None
    """It failed as often as this worker, or the daemon, lets it, and is buried. None: the daemon
    did not say, for instance because the token has no right to read."""
    reason: str
    """Sentence for whoever looks at the entry later, as the daemon keeps it."""

    @property
    def delay(self) -> timedelta | None:
        """Length of time after which it is due again; None as for ``delay_us``."""
        return to_timedelta_or_none(self.delay_us)


def exponential_backoff_us(first_us: int, longest_us: int, failures_before: int) -> int:
    """Return the delay after a failure: doubled for each earlier one, up to a bound."""
    return min(first_us << min(failures_before, _DOUBLINGS_MAX), longest_us)


def decide_retry(
    reason: str, *, failures_before: int, delay_us: int | None, attempts_max: int
) -> FailedAttempt:
    """Return the outcome of a failed attempt: another one after a delay, or burial.

    Args:
        reason: Why it failed; cut where it is longer than the daemon takes.
        failures_before: Attempts of the entry that failed before this one.
        delay_us: Microseconds of the delay where it is tried again.
        attempts_max: So many failures are enough; 0: none are.

    Raises:
        TypeError: The reason is no text.
    """
    if not isinstance(reason, str):
        raise TypeError(f"reason is str, not {type(reason).__name__}")
    attempts = failures_before + 1
    if not 0 < attempts_max <= attempts:
        return FailedAttempt(
            attempts=attempts, delay_us=delay_us, buried=False, reason=_cut(reason, "")
        )
    reason = _cut(reason or "failed", _tail(attempts))
    return FailedAttempt(attempts=attempts, delay_us=None, buried=True, reason=reason)


def learn_burial(failed: FailedAttempt, answer: EntryStats | FastjournalError) -> FailedAttempt:
    """Return the outcome of a reported failure, with a burial by the daemon.

    The entry may have changed since by another worker or an operator: only a burial with the count
    and the reason of this failure is that of this failure.

    Args:
        failed: Outcome as far as the worker decides it.
        answer: STATS of the entry afterwards, or why there is none.
    """
    if isinstance(answer, FastjournalError):
        is_gone = isinstance(answer, RefusedError) and answer.code == "not-found"
        return msgspec.structs.replace(failed, buried=False if is_gone else None)
    if (
        answer.state == "buried"
        and answer.attempts == failed.attempts
        and (answer.buried_reason or "") == failed.reason
    ):
        return msgspec.structs.replace(failed, buried=True, delay_us=None)
    return failed


def failures_at_burial(attempts: int, reason: str) -> int:
    """Return how often a buried entry has failed, with the failure for which a worker buried it.

    A burial by a worker counts no attempt: its failure stands in the reason only.

    Args:
        attempts: The daemon's count.
        reason: Why it is buried.
    """
    return attempts + 1 if reason.endswith(_tail(attempts + 1)) else attempts


def _tail(attempts: int) -> str:
    """Return the end of the reason of a burial by a worker."""
    return f" at attempt {attempts}"


def _cut(reason: str, tail: str) -> str:
    data = reason.encode("utf-8", "backslashreplace")
    return data[: REASON_BYTES_MAX - len(tail)].decode("utf-8", "ignore") + tail
