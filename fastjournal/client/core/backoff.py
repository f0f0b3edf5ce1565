"""Back-off of tries to connect: growing pauses with jitter, for a while. Without IO or clock."""

from __future__ import annotations

from random import Random

import msgspec

from fastjournal.limits import CONNECT_TRY_S_MIN, INSTANT_MAX
from fastjournal.numeric import check_integer, check_seconds

_GROWTH = 2.0


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """Reconnect policy of a client after a lost connection. All in seconds.

    Raises:
        BadRequestError: A pause is not above 0, or one is infinite or NaN.
        TypeError: One is no number.
    """

    first_pause_s: float = 0.05
    """Bound of the pause before the first try; each further one is twice as long."""
    longest_pause_s: float = 5.0
    """Bound of all pauses."""
    patience_s: float = 30.0
    """After that long without a connection, or with a request that was sent again and again, the
    request fails. At least one try is made."""
    at_start: bool = False
    """Wait like this for the first connection too; else it is tried once, but for a daemon that has
    no room or is stopping."""

    def __post_init__(self) -> None:
        check_seconds("first_pause_s", self.first_pause_s, above_zero=True)
        check_seconds("longest_pause_s", self.longest_pause_s, above_zero=True)
        check_seconds("patience_s", self.patience_s)


def check_limits(
    connect_timeout_s: float, reply_timeout_s: float | None, reply_bytes_max: int
) -> None:
    """Refuse limits of a client that are no numbers of their kind.

    Raises:
        TypeError, BadRequestError: One of them is none; the message names it.
    """
    check_seconds("connect_timeout_s", connect_timeout_s, above_zero=True)
    if reply_timeout_s is not None:
        check_seconds("reply_timeout_s", reply_timeout_s, above_zero=True)
    check_integer("reply_bytes_max", reply_bytes_max, 1, INSTANT_MAX)


class Backoff:
    """The pauses of one effort to connect again.

    A pause is drawn evenly from zero to its bound, so that the clients of a daemon that restarts do
    not come back all at once.

    Args:
        plan: The bounds.
        rng: Draws the pauses.
        now_s: When the effort begins, by any clock that does not jump.
    """

    def __init__(self, plan: Reconnect, rng: Random, now_s: float) -> None:
        self._plan = plan
        self._rng = rng
        self._give_up_at_s = now_s + plan.patience_s
        self._bound_s = 0.0

    def pause_s(self, now_s: float) -> float | None:
        """Return the seconds to wait before the next try; None: no more tries."""
        if self._bound_s and now_s >= self._give_up_at_s:
            return None
        plan = self._plan
        self._bound_s = min(_GROWTH * self._bound_s or plan.first_pause_s, plan.longest_pause_s)
        pause_s = self._rng.uniform(0, self._bound_s)
        return min(pause_s, max(self._give_up_at_s - now_s, 0.0))

    def try_s(self, connect_timeout_s: float, now_s: float) -> float:
        """Return the seconds that the try after the pause may take."""
        return min(connect_timeout_s, max(self._give_up_at_s - now_s, CONNECT_TRY_S_MIN))
