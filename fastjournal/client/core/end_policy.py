"""Retry policy of the request that ends a job: repeated until the lease is over. Without IO.

The work is done then, so a daemon that restarts or is read-only for a moment shall not cost it. The
lease bounds the retries: after it the daemon would refuse the request.
"""

from __future__ import annotations

from random import Random

import msgspec

from fastjournal.client.core.backoff import Backoff, Reconnect
from fastjournal.client.core.calls import Call
from fastjournal.client.core.failures import IN_VAIN, NOT_NOW, TLS_FAILED
from fastjournal.client.core.retry_policy import rule_of
from fastjournal.errors import CannotConnectError, FastjournalError, RefusedError
from fastjournal.protocol import Function

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
