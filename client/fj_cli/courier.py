"""Requests that outlive a restart or a bad moment of the daemon: sent again, for a while."""

from __future__ import annotations

import math
from typing import TypeVar

import trio

from fastjournal.client import Call, Client
from fastjournal.client.core.failures import IN_VAIN
from fastjournal.errors import (
    CannotConnectError,
    FastjournalError,
    ProtocolError,
    RefusedError,
)

T = TypeVar("T")

LATER = ("busy", "locked", "not-persisted", "read-only", "shutting-down")
"""Refusals that mean: not now."""

_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0


class Patience:
    """Growing pauses between tries.

    Args:
        away_s: Seconds to try for where the daemon does not answer.
        refused_s: Seconds where it answers: not now.
        gave_up: Once set, nothing is tried a second time.
    """

    def __init__(self, away_s: float, refused_s: float, gave_up: trio.Event) -> None:
        now_s = trio.current_time()
        self._away_until_s = now_s + away_s
        self._refused_until_s = now_s + refused_s
        self._gave_up = gave_up
        self._pause_s = _PAUSE_S

    async def pause_after(self, error: FastjournalError) -> None:
        """Wait before the next try.

        Raises:
            CannotConnectError: The daemon stayed away for long enough, or speaks another protocol.
            RefusedError: It refused, and will do so again, or did for long enough.
        """
        if isinstance(error, RefusedError):
            until_s = self._refused_until_s if error.code in LATER else -math.inf
        elif isinstance(error, CannotConnectError | ProtocolError):
            until_s = self._away_until_s
        else:
            until_s = -math.inf
        if self._gave_up.is_set() or trio.current_time() + self._pause_s > until_s:
            raise as_unreachable(error)
        with trio.move_on_after(self._pause_s):
            await self._gave_up.wait()
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)


def as_unreachable(error: FastjournalError) -> FastjournalError:
    """Return the error; for a program, who speaks another protocol is not the daemon."""
    if isinstance(error, ProtocolError):
        return CannotConnectError(error.message, code=error.code, hint=error.hint)
    return error


class Courier:
    """Sends calls on a client again where the connection is lost or the daemon says: not now.

    Args:
        client: Does not connect again by itself; it stays the caller's.
        gave_up: Once set, nothing is sent a second time.
    """

    def __init__(self, client: Client, gave_up: trio.Event) -> None:
        self._client = client
        self._gave_up = gave_up
        self._answered = False
        """Before the first answer nothing is held, and what fails for good ends the program."""

    async def call(
        self,
        call: Call[T],
        patience_s: float,
        *,
        refused_s: float | None = None,
        done_before: str | None = None,
    ) -> T | None:
        """Return the result of a call.

        Args:
            call: Sent again with the same timestamp.
            patience_s: Seconds to try for.
            refused_s: Seconds to try for while the daemon answers: not now; None: as long.
            done_before: The refusal that a request gets when it was carried out before; where the
                reply to that was lost, it is no refusal, and the result is None.

        Raises:
            CannotConnectError: The daemon stayed away.
            RefusedError: It refused.
        """
        patience = Patience(
            patience_s, patience_s if refused_s is None else refused_s, self._gave_up
        )
        repeated = False
        while True:
            try:
                await self._client.connect()
                result = await self._client.call(call)
                self._answered = True
                return result
            except RefusedError as error:
                self._answered = True
                if repeated and error.code == done_before:
                    return None
                await patience.pause_after(error)
            except (CannotConnectError, ProtocolError) as error:
                if error.code in IN_VAIN and not self._answered:
                    raise as_unreachable(error) from error.__cause__
                repeated = repeated or error.maybe_done
                await patience.pause_after(error)
