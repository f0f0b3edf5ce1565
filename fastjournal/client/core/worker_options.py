"""Options of a worker's loop over jobs, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from fastjournal.client.core import calls
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call
from fastjournal.client.core.calls.base import Domains, duration
from fastjournal.client.core.results import Entry, Jobs
from fastjournal.errors import BadRequestError
from fastjournal.limits import FAILED_ATTEMPTS_MAX, JOB_LEASE_US_MIN
from fastjournal.numeric import check_integer
from fastjournal.protocol import Meta
from fastjournal.times import (
    Duration,
    duration_s,
    lease_us,
    to_timedelta,
    to_timedelta_or_none,
)


class JobToRetry(Protocol):
    """Job whose attempt has failed, as a function for ``retry_delay`` sees it."""

    @property
    def entry(self) -> Entry:
        """The entry as it was delivered, with its metadata."""

    @property
    def key(self) -> bytes:
        """The journal key."""

    @property
    def domain(self) -> bytes:
        """Domain (queue) that it is of."""

    @property
    def uri(self) -> bytes:
        """Resource that the work is about; empty if there is none."""

    @property
    def value(self) -> bytes:
        """The value's bytes as they are stored."""

    @property
    def meta(self) -> Meta:
        """The metadata, as it was when the entry was delivered."""

    @property
    def attempts(self) -> int:
        """Failed attempts before this one."""

    def decoded(self) -> Any:
        """Return the value in the type that it was set with."""


RetryDelay: TypeAlias = Duration | Callable[[JobToRetry], Duration | None] | None


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of ``jobs`` of both clients, as integers; see there."""

    domain: Domains
    ordered: bool
    prefix: str | bytes | None
    count: int
    lease_us: int
    wait_us: int | None
    """How long to wait for work; None: without end, or not at all."""
    waits_without_end: bool
    retry_delay: RetryDelay
    """Checked, but as it was given: it may be a function."""
    retry_delay_us_max: int | None
    attempts_max: int
    patience_s: float | None

    @property
    def returns_at_once(self) -> bool:
        """Whether the worker ends as soon as nothing is due."""
        return self.wait_us is None and not self.waits_without_end

    def next_call(self, wait_us: int | None, count: int) -> Call[Jobs]:
        """Return the call that asks for jobs.

        Raises:
            BadRequestError: An argument that no daemon would take.
        """
        return calls.next_(
            self.domain,
            ordered=self.ordered,
            prefix=self.prefix,
            count=count,
            lease=to_timedelta(self.lease_us),
            wait=to_timedelta_or_none(wait_us),
            meta=True,
            attempts_max=self.attempts_max,
        )


def worker_options(
    *,
    domain: Domains,
    ordered: bool = False,
    prefix: str | bytes | None = None,
    count: int,
    lease: Duration,
    wait: Duration | None,
    retry_delay: RetryDelay = None,
    retry_delay_max: Duration | None = None,
    attempts_max: int = 0,
    patience: Duration | None = None,
) -> WorkerOptions:
    """Return the arguments of ``jobs`` of both clients, checked.

    Args:
        domain: Jobs of this domain only, or of these (at most 64), which take turns; empty: of
            any.
        ordered: Of several domains, the first one that has work is served first.
        prefix: Jobs of all domains whose names begin so; they take turns.
        count: How many to lease together, 1 to 65,535.
        lease: Length of the lease, at least 1 s.
        wait: The loop ends when there was nothing for that long; None: as soon as nothing is due.
        retry_delay: A job that failed (``job.fail``, or an exception in a block) is due again after
            this delay, or the one that this function returns for the job. None: after the daemon's
            back-off. Where the function fails its error is logged, and the job is due at once.
        retry_delay_max: The delay is doubled for each earlier failure, up to this one; None: it
            stays.
        attempts_max: A job of this loop that failed that often is buried; 0: only where the
            daemon's max attempts say so. The daemon counts leases that ran out, ``job.fail`` and
            exceptions in a block.
        patience: How long to go on asking a daemon that delivers no work for now (``busy``,
            ``read-only``, ...); None: as ``reconnect`` says.

    Raises:
        TypeError, BadRequestError: An argument that no daemon would take; the message names it.
    """
    if not callable(retry_delay):
        duration("retry_delay", retry_delay)
    if retry_delay_max is not None and (retry_delay is None or callable(retry_delay)):
        raise BadRequestError("retry_delay_max needs a duration as retry_delay")
    endless = wait == WAIT_WITHOUT_END
    options = WorkerOptions(
        domain=domain,
        ordered=ordered,
        prefix=prefix,
        count=count,
        lease_us=lease_us("lease", lease, least_us=JOB_LEASE_US_MIN, zero=False),
        wait_us=None if endless else duration("wait", wait),
        waits_without_end=endless,
        retry_delay=retry_delay,
        retry_delay_us_max=duration("retry_delay_max", retry_delay_max),
        attempts_max=check_integer("attempts_max", attempts_max, 0, FAILED_ATTEMPTS_MAX),
        patience_s=None if patience is None else duration_s("patience", patience),
    )
    options.next_call(None, count)
    return options
