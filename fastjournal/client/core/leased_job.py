"""Leased jobs from delivery to completion: the rules of both clients. Sans-IO."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call, reply_readers
from fastjournal.client.core.calls.base import duration
from fastjournal.client.core.failed_attempts import (
    FailedAttempt,
    decide_retry,
)
from fastjournal.client.core.held_lease import HeldLease
from fastjournal.client.core.results import Decodable, Entry, RenewedLease, Written
from fastjournal.client.core.stats import EntryStats
from fastjournal.client.core.worker_options import WorkerOptions
from fastjournal.errors import BadRequestError, LeaseLostError, RefusedError
from fastjournal.limits import FAILED_ATTEMPTS_MAX, REASON_BYTES_MAX
from fastjournal.numeric import check_integer, exponential_backoff
from fastjournal.protocol import Meta
from fastjournal.times import Duration, to_timedelta

if TYPE_CHECKING:
    from traceback import StackSummary

_log = logging.getLogger(__name__)

LEASE_IS_OVER = ("lease-lost", "not-found")
"""Refusals after which another worker has the job, or it does not exist; after others the lease
continues."""


class BodyFailure(msgspec.Struct, frozen=True):
    """Failure of a body: it was left by an exception."""

    reason: str = ""


LEFT = BodyFailure("left by an exception or break")
"""Failure of a body whose blocking loop was dropped in the middle of a job."""

OnError: TypeAlias = Literal["continue", "raise"]
"""What ``run`` does with an exception of a job: the next job, or raise it."""

_FRAMES_MAX = 5
"""Last frames of a traceback that are kept with the reason."""


def ends_run(on_error: OnError) -> bool:
    """Whether an exception of a job ends ``run``.

    Raises:
        BadRequestError: It is neither of the two.
    """
    if on_error not in ("continue", "raise"):
        raise BadRequestError(f"on_error is 'continue' or 'raise', not {on_error!r}")
    return on_error == "raise"


def report_failure(
    job: LeasedJob, error: Exception, tell: Callable[[str, StackSummary], object] | None = None
) -> BodyFailure:
    """Log the exception of a job; return the failure, whose reason has a short traceback.

    Args:
        job: It.
        error: The exception.
        tell: Logs its text and its frames, in place of a warning with the whole traceback.
    """
    import traceback  # noqa: PLC0415 - few programs need it

    room = REASON_BYTES_MAX // 2  # the error first: it is what is looked for
    failure = failure_of(error) or LEFT
    text = failure.reason[:room].encode("utf-8", "backslashreplace").decode()
    stack = traceback.extract_tb(error.__traceback__)
    frames = stack.format()
    if tell is not None:
        tell(text, stack)
    else:
        # no exc_info: the handler would ask foreign code for the text, and that has no bound
        _log.warning("job %r failed: %s\n%s", job.key, text, "".join(frames).rstrip())
    return BodyFailure(f"{text}\n{''.join(frames[-_FRAMES_MAX:])}".rstrip())


def failure_of(error: BaseException | None) -> BodyFailure | None:
    """Return the failure that an exception of a body is; None: it is none, but an interruption."""
    if not issubclass(type(error), Exception):  # no instance check: it may ask the error itself
        return None
    name = _text_of(lambda: type(error).__name__, "exception")
    text = _text_of(lambda: str(error), "<exception str() failed>")
    return BodyFailure(f"{name}: {text}" if text else name)


def _text_of(read: Callable[[], str], otherwise: str) -> str:
    """Return a text of foreign code; where that fails, another one."""
    try:
        return str.__str__(read())  # an exact one: the methods of a subclass are foreign code too
    except BaseException:  # noqa: BLE001 - foreign code: whatever it raises, the body has failed
        return otherwise


class LeasedJob(Decodable, HeldLease):
    """A leased entry, until the work on it has ended.

    Args:
        entry: With its token and metadata.
        options: The loop's.
        now_s: When it was delivered, by a clock that does not jump.
    """

    over_codes = LEASE_IS_OVER

    def __init__(self, entry: Entry, options: WorkerOptions, now_s: float) -> None:
        HeldLease.__init__(self, options.lease_us, now_s)
        assert entry.token is not None, "not leased"
        self.entry = entry
        self.token = entry.token
        """The lease token; another one after each renewal."""
        self.was_entered = False
        """Its block was entered, so that only the end of the block completes it, not the loop."""
        self._options = options

    def __repr__(self) -> str:
        """Key and failed attempts: what a log line needs, never the token or the value."""
        meta = self.entry.meta
        attempts = "" if meta is None else f" attempts={meta.attempts}"
        ended = " ended" if self.finished else ""
        return f"<{type(self).__name__} {self.key!r}{attempts}{ended}>"

    @property
    def key(self) -> bytes:
        """The journal key."""
        return self.entry.key

    @property
    def domain(self) -> bytes:
        """Domain (queue) that it is of."""
        return self.key.partition(b":")[0]

    @property
    def uri(self) -> bytes:
        """Resource that the work is about (deduplication key); empty: none, perhaps ``unique``."""
        return self.entry.uri

    @property
    def unique(self) -> bytes | None:
        """Value that is unique within its queue; None: it has none, perhaps a URI."""
        return self.entry.unique

    @property
    def value_type(self) -> int:
        """Type of the value; see ``ValueType``."""
        return self.entry.value_type

    @property
    def value(self) -> bytes:
        """The value's bytes as they are stored."""
        return self.entry.value

    @property
    def meta(self) -> Meta:
        """The metadata, as it was when the entry was delivered."""
        assert self.entry.meta is not None, "asked for without metadata"
        return self.entry.meta

    @property
    def attempts(self) -> int:
        """Failed attempts before: expired leases, and failures reported by workers."""
        return self.meta.attempts

    # --- the lease ------------------------------------------------------------------------------

    def _renewal_call(self, length_us: int) -> Call[RenewedLease]:
        """Return the request that renews it: a TOUCH whose reply also has the rest of the lease."""
        touch = calls.touch(self.key, self.token, ttl=to_timedelta(length_us))
        return Call(touch.request, reply_readers.renewed_lease)

    def _renewed(self, answer: RenewedLease, *, asked_s: float) -> None:
        """Note what the daemon has said to a TOUCH that was sent at ``asked_s`` or later.

        Its answer came later than that, so the lease does not end earlier than noted here.
        """
        self.token = answer.token
        self._lease_ends_s = asked_s + answer.left_us / 1e6
        self._late_s = 0.0

    def _state(self) -> Call[EntryStats]:
        return calls.entry_stats(self.key)

    # --- the requests that end it ---------------------------------------------------------------

    def _completion(self) -> Call[Written]:
        return calls.delete(self.key, token=self.token)

    def _release_call(self, delay: Duration | None) -> Call[None]:
        return calls.release(self.key, self.token, delay=delay)

    def _burial(self, reason: str) -> Call[None]:
        return calls.bury(self.key, self.token, reason=reason)

    def _failed_attempt(
        self, reason: str, delay: Duration | None, attempts_max: int = 0
    ) -> FailedAttempt:
        """Return what follows from a failure."""
        delay_us = duration("delay", delay)
        if delay_us is None:
            delay_us = self._delay_after_failure_us()
        return decide_retry(
            reason,
            failures_before=self.attempts,
            delay_us=delay_us,
            attempts_max=self._options.attempts_max,
            told_max=check_integer("attempts_max", attempts_max, 0, FAILED_ATTEMPTS_MAX),
        )

    def _failure(self, failed: FailedAttempt) -> Call[None]:
        """Return the request that ends a failed attempt.

        No other place knows the requests that report a failure to the daemon.
        """
        return calls.release(
            self.key,
            self.token,
            delay=failed.delay,
            error=failed.reason,
            attempts_max=failed.told_max,
        )

    def _last_words(self, failure: BodyFailure | None) -> Callable[[], Call[None]]:
        """Return what builds the request for a job whose body was left."""
        if failure is None:
            return lambda: self._release_call(None)
        failed = self._failed_attempt(failure.reason, None)
        return lambda: self._failure(failed)

    def _delay_after_failure_us(self) -> int | None:
        """Return the delay of a job that failed; where the caller's function fails too, 0.

        The job goes back all the same, and the function's error is logged: the error that ended the
        body is the one that is raised.
        """
        options = self._options
        if callable(options.retry_delay):
            try:
                return duration("what retry_delay returned", options.retry_delay(self))
            except Exception:  # noqa: BLE001 - foreign code: whatever it raises, the job goes back
                _log.exception("retry_delay failed; job %r is due again at once", self.key)
                return 0
        delay_us = duration("retry_delay", options.retry_delay)
        if delay_us is None or options.retry_delay_us_max is None:
            return delay_us
        return exponential_backoff(delay_us, options.retry_delay_us_max, self.attempts)


class JobMethods(ABC):
    """Methods of a job of either client, which inherits their text: ``await`` them in a task."""

    @abstractmethod
    def last_error(self) -> Any:
        """Ask the daemon for the error of the last attempt that failed; None: there was none.

        A method, since this is a request: the job holds ``domain`` and ``attempts`` only. Without
        the call (and ``await`` in a task), ``if job.last_error:`` is always true; mypy reports that
        (``truthy-function``).

        Raises:
            RefusedError: ``not-found``: the entry does not exist any more.
            CannotConnectError: The daemon stayed away.
        """

    @abstractmethod
    def complete(self) -> Any:
        """Complete the job: the entry is deleted.

        Raises:
            LeaseLostError: The lease was lost before, so another worker may have done it too.
            CannotConnectError: The daemon stayed away.
            RefusedError: It accepts no end of this job, for instance ``forbidden``.
        """

    @abstractmethod
    def release(self, *, delay: Duration | None = None) -> Any:
        """Release the entry, due again after a delay (None: as before).

        Raises:
            LeaseLostError: The lease was lost before.
            CannotConnectError: The daemon stayed away.
        """

    @abstractmethod
    def fail(
        self, reason: str = "", *, delay: Duration | None = None, attempts_max: int = 0
    ) -> Any:
        """Report a failed attempt: the entry is due again after a delay, or buried after the last.

        The daemon counts the attempt, and keeps the reason as the entry's last error. It is asked
        whether it has buried the entry: by its own bound, that of the domain or that of the loop.

        Args:
            reason: For people who examine it later; bytes over 4,096 are cut.
            delay: Length of the delay; None: as ``retry_delay`` of the loop says.
            attempts_max: Failed attempts, this one included, after which it is buried, for this
                job; 0: the bounds of the loop, the domain and the daemon only.

        Raises:
            LeaseLostError: The lease was lost before.
            CannotConnectError: The daemon stayed away.
        """

    @abstractmethod
    def bury(self, reason: str = "") -> Any:
        """Make the entry a dead letter: nobody gets it until it is kicked.

        Raises:
            LeaseLostError: The lease was lost before.
            CannotConnectError: The daemon stayed away.
        """

    @abstractmethod
    def abandon(self) -> Any:
        """Release the entry if that can be done in a few seconds; raises nothing.

        Otherwise it is due again when its lease ends. A job that has ended is not changed.
        """


def lost_lease(key: bytes) -> LeaseLostError:
    """Return the error of a job whose lease was lost before its end."""
    error = LeaseLostError("the lease was lost while the work was done")
    error.key = key
    return error


def lost_job(error: RefusedError) -> LeaseLostError:
    """Return the error that the refusal of a job's end means for its caller."""
    if isinstance(error, LeaseLostError):
        return error
    lost = LeaseLostError(
        "the entry is gone: its lease ran out, and it was completed or deleted by another",
        hint="another worker may have done the work too: make it idempotent, or the lease longer",
    )
    lost.key, lost.address = error.key, error.address
    return lost
