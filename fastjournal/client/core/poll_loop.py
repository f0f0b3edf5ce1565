"""Poll loop of a worker: how long each NEXT waits, and when to ask again. Without IO."""

from __future__ import annotations

from random import Random

import msgspec

from fastjournal.client.core.calls import Call
from fastjournal.client.core.failures import NOT_NOW, TLS_FAILED
from fastjournal.client.core.results import Jobs
from fastjournal.client.core.retry_policy import Backoff, Reconnect
from fastjournal.client.core.worker_options import WorkerOptions
from fastjournal.errors import CannotConnectError, FastjournalError, RefusedError
from fastjournal.limits import JOBS_WAIT_BESIDE_WORK_US_MIN, JOBS_WAIT_US_MAX


class PollLoop:
    """One search for work, from the first NEXT to the one that gives some, or the last.

    Args:
        options: Options of the worker.
        plan: How long to go on asking a daemon that is away; None: not.
        rng: Draws the pauses.
        now_s: By any clock that does not jump.
        was_answered: A daemon has answered this worker before, so that somebody who mends its
            certificate rescues something.
        beside_work: Jobs run meanwhile, so that a very short wait would only make traffic.
    """

    def __init__(
        self,
        options: WorkerOptions,
        plan: Reconnect | None,
        rng: Random,
        now_s: float,
        *,
        was_answered: bool = False,
        beside_work: bool = False,
    ) -> None:
        self._options = options
        self._plan = plan
        self._refused_plan = plan
        if plan is not None and options.patience_s is not None:
            self._refused_plan = msgspec.structs.replace(plan, patience=options.patience_s)
        self._rng = rng
        self._was_answered = was_answered
        self._away: Backoff | None = None
        self._refused: Backoff | None = None
        self._end_s: float | None = None
        wait_us = options.wait_us
        self._waits_without_end = options.waits_without_end
        if wait_us is not None:
            least_us = JOBS_WAIT_BESIDE_WORK_US_MIN if beside_work else 0
            self._end_s = now_s + max(wait_us, least_us) / 1e6

    def call(self, now_s: float, count: int, *, at_once: bool = False) -> Call[Jobs]:
        """Return the next NEXT, for at most ``count`` jobs; it waits for a bounded time.

        Args:
            now_s: By the clock of the search.
            count: Jobs, at most.
            at_once: It does not wait.
        """
        wait_us: int | None = JOBS_WAIT_US_MAX
        if at_once or self._options.returns_at_once:
            wait_us = None
        elif self._end_s is not None:
            left_us = max(round((self._end_s - now_s) * 1e6), 0)
            wait_us = min(left_us, JOBS_WAIT_US_MAX)
        return self._options.next_call(wait_us, count)

    def is_over(self, now_s: float) -> bool:
        """Whether to stop asking, after a NEXT that gave nothing."""
        if self._options.returns_at_once:
            return True
        return self._end_s is not None and now_s >= self._end_s

    def answered(self) -> None:
        """Note that the daemon is well: a failure after this begins with short pauses."""
        self._away = self._refused = None
        self._was_answered = True

    def failed(self, error: FastjournalError, now_s: float) -> float:
        """Return the seconds after which to ask again.

        Raises:
            FastjournalError: The error, where asking again has no sense, or was done long enough.
        """
        pause_s: float | None = None
        if isinstance(error, RefusedError) and error.code in NOT_NOW:
            pause_s = self._pause_refused_s(error, now_s)
        elif isinstance(error, CannotConnectError) and self._asks_again(error):
            if self._away is None and self._plan is not None:
                self._away = Backoff(self._plan, self._rng, now_s)
            pause_s = None if self._away is None else self._away.pause_s(now_s)
        if pause_s is None:
            raise error
        return pause_s

    def _asks_again(self, error: CannotConnectError) -> bool:
        # A lost NEXT may have leased entries; they are due again when their lease ends.
        return error.maybe_done or (self._was_answered and error.code == TLS_FAILED)

    def _pause_refused_s(self, error: RefusedError, now_s: float) -> float | None:
        plan = self._refused_plan
        if plan is None:
            return None
        if self._refused is None:
            self._refused = Backoff(plan, self._rng, now_s)
        pause_s = self._refused.pause_s(now_s)
        if pause_s is None and error.code == "read-only" and self._waits_without_end:
            # The daemon is there, and delivers work again when its disk has room.
            self._refused = Backoff(plan, self._rng, now_s)
            pause_s = self._refused.pause_s(now_s)
        return pause_s
