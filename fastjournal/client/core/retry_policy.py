"""Retries and reconnection: which requests are repeated, back-off with jitter, and its end.
Sans-IO.

Idempotent requests are sent again where the connection was lost before the reply.

Such a request may have been carried out or not. It is repeated where that changes nothing that the
first time had not changed: reads, and writes that carry what makes them one (a timestamp, a token,
a wanted end state). Functions that count or take (ADD, NOT, TRUNCATE, RENAME, LINK, KICK, NEXT) are
sent once.
docs/decisions/client-library.md#0160 says why, one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastjournal.limits import (
    CLIENT_PATIENCE_FAILOVER_S,
    CLIENT_PATIENCE_S,
    CONNECT_TRY_S_MIN,
    INSTANT_MAX,
)
from fastjournal.numeric import check_integer, exponential_backoff
from fastjournal.protocol import Flag, Function, Request
from fastjournal.protocol.functions import Retry
from fastjournal.times import Duration, duration_s

if TYPE_CHECKING:
    from random import Random


_UPDATE_TIMEOUT = int(Flag.UPDATE_TIMEOUT)
_ONCE = Retry(repeat=False)

RULES: dict[int, Retry] = {int(function): function.declared.retry for function in Function}


def rule_of(request: Request) -> Retry:
    """Return how a request is treated whose reply was lost."""
    leases = request.timeout is not None and not request.flags & _UPDATE_TIMEOUT
    if request.function == Function.GET and leases:
        return _ONCE
    return RULES.get(request.function, _ONCE)


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """Reconnect policy of a client after a lost connection.

    Raises:
        BadRequestError: A pause is not above 0, or one is infinite or NaN.
        TypeError: One is no duration.
    """

    first_pause: Duration = 0.05
    """Bound of the pause before the first try; each further one is twice as long."""
    longest_pause: Duration = 5.0
    """Bound of all pauses."""
    patience: Duration | None = None
    """After that long without a connection, or with a request that was sent again and again, the
    request fails. At least one try is made. None: 30 s, and with several addresses 60 s, in which a
    standby can take over."""
    at_start: bool = False
    """Wait like this for the first connection too; else it is tried once, except for a daemon that
    has no room or is stopping."""

    def __post_init__(self) -> None:
        duration_s("first_pause", self.first_pause, above_zero=True)
        duration_s("longest_pause", self.longest_pause, above_zero=True)
        if self.patience is not None:
            duration_s("patience", self.patience)

    @property
    def patience_s(self) -> float:
        """The patience in seconds."""
        if self.patience is None:
            return CLIENT_PATIENCE_S
        return duration_s("patience", self.patience)

    def for_servers(self, number: int) -> Reconnect:
        """Return this policy for a list of so many addresses."""
        if self.patience is not None or number == 1:
            return self
        return msgspec.structs.replace(self, patience=CLIENT_PATIENCE_FAILOVER_S)


class ClientTimeouts(msgspec.Struct, frozen=True):
    """Timeouts of a client, in seconds."""

    connect_s: float
    """Time to establish a connection."""
    reply_s: float | None
    """Silence while an answer is due; None: no limit."""


def check_limits(connect: Duration, reply: Duration | None, reply_bytes_max: int) -> ClientTimeouts:
    """Return the timeouts of a client, checked together with its other limits.

    Raises:
        TypeError, BadRequestError: One of them is none; the message names it.
    """
    check_integer("reply_bytes_max", reply_bytes_max, 1, INSTANT_MAX)
    reply_s = None if reply is None else duration_s("reply_timeout", reply, above_zero=True)
    return ClientTimeouts(duration_s("connect_timeout", connect, above_zero=True), reply_s)


def jittered_pause(
    first: float, longest: float, tries_before: int, rng: Random, *, least_share: float = 0.0
) -> float:
    """Return a pause of exponential back-off with jitter, in the unit of its bounds.

    Args:
        first: Bound of the pause after the first try; each further one is twice as long.
        longest: Bound of all pauses.
        tries_before: Number of earlier pauses.
        rng: Draws the pause, evenly up to its bound.
        least_share: Part of the bound that is the shortest pause.
    """
    bound = exponential_backoff(first, longest, tries_before)
    return bound * (least_share + (1.0 - least_share) * rng.random())


class Backoff:
    """The pauses of one effort to connect again.

    A pause is drawn evenly from zero to its bound, so that the clients of a daemon that restarts do
    not come back all at once. A try is a round over all addresses.

    Args:
        plan: The bounds.
        rng: Draws the pauses.
        now_s: When the effort begins, by any clock that does not jump.
    """

    def __init__(self, plan: Reconnect, rng: Random, now_s: float) -> None:
        self._rng = rng
        self._first_s = duration_s("first_pause", plan.first_pause)
        self._longest_s = duration_s("longest_pause", plan.longest_pause)
        self._give_up_at_s = now_s + plan.patience_s
        self._tries = 0

    def pause_s(self, now_s: float) -> float | None:
        """Return the seconds to wait before the next try; None: no more tries."""
        if self._tries and now_s >= self._give_up_at_s:
            return None
        pause_s = jittered_pause(self._first_s, self._longest_s, self._tries, self._rng)
        self._tries += 1
        return min(pause_s, max(self._give_up_at_s - now_s, 0.0))

    def try_s(self, connect_timeout_s: float, now_s: float) -> float:
        """Return the seconds that the try after the pause may take."""
        return min(connect_timeout_s, max(self._give_up_at_s - now_s, CONNECT_TRY_S_MIN))
