"""Options of a worker's loop over jobs, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call
from fastjournal.client.core.calls.base import microseconds
from fastjournal.client.core.results import Jobs
from fastjournal.errors import BadRequestError
from fastjournal.limits import INSTANT_MAX, JOB_LEASE_US_MIN
from fastjournal.numeric import check_integer, check_seconds

if TYPE_CHECKING:
    from fastjournal.client.core.jobs import LeasedJob

RetryDelay: TypeAlias = int | Callable[["LeasedJob"], int | None] | None

_RENEWALS_PER_LEASE = 3
"""Two may fail before the lease ends."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of ``jobs`` of both clients; see there. Names end in their units."""

    domain: str | bytes
    count: int
    lease_us: int
    wait_us: int | None
    retry_delay_us: RetryDelay = None
    retry_delay_us_max: int | None = None
    attempts_max: int = 0
    patience_s: float | None = None

    def __post_init__(self) -> None:
        check_integer("lease_us", self.lease_us, JOB_LEASE_US_MIN, INSTANT_MAX)
        if not callable(self.retry_delay_us):
            microseconds("retry_delay_us", self.retry_delay_us)
        microseconds("retry_delay_us_max", self.retry_delay_us_max)
        no_number = self.retry_delay_us is None or callable(self.retry_delay_us)
        if self.retry_delay_us_max is not None and no_number:
            raise BadRequestError("retry_delay_us_max needs a number as retry_delay_us")
        check_integer("attempts_max", self.attempts_max, 0, INSTANT_MAX)
        if self.patience_s is not None:
            check_seconds("patience_s", self.patience_s)
        self.next_call(self.wait_us, self.count)

    @property
    def renewal_s(self) -> float:
        """Seconds after which a lease is renewed, at the latest."""
        return self.lease_us / 1e6 / _RENEWALS_PER_LEASE

    def next_call(self, wait_us: int | None, count: int) -> Call[Jobs]:
        """Return the call that asks for jobs.

        Raises:
            BadRequestError: An argument that no daemon would take.
        """
        return calls.next_(
            self.domain, count=count, lease_us=self.lease_us, wait_us=wait_us, meta=True
        )
