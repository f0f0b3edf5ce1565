"""Effort to connect in place of a lost connection: when to try, and when it is over. Without IO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.client.core.backoff import Backoff, Reconnect
from fastjournal.client.core.failures import IN_VAIN, not_connected
from fastjournal.errors import FastjournalError

if TYPE_CHECKING:
    from random import Random


class ReconnectEffort:
    """Tries of one effort, which ends with a connection, a final failure or its patience.

    Args:
        plan: The pauses and the patience.
        rng: Draws the pauses.
        now_s: When the effort begins, by any clock that does not jump.
    """

    def __init__(self, plan: Reconnect, rng: Random, now_s: float) -> None:
        self._backoff = Backoff(plan, rng, now_s)
        self.failure: FastjournalError = not_connected()
        """Why the last try failed."""

    def pause_s(self, now_s: float) -> float | None:
        """Return the seconds before the next try; None: the effort has failed."""
        return None if self.failure.code in IN_VAIN else self._backoff.pause_s(now_s)

    def try_s(self, connect_timeout_s: float, now_s: float) -> float:
        """Return the seconds that the try after the pause may take."""
        return self._backoff.try_s(connect_timeout_s, now_s)

    def failed(self, error: FastjournalError) -> None:
        """Note that a try failed."""
        self.failure = error
