"""Requests that outlive a restart or a bad moment of the daemon: sent again, for a while."""

from __future__ import annotations

import contextlib
from typing import TypeVar

import trio

from fastjournal.client import Call, Client
from fastjournal.errors import CannotConnectError, RefusedError

T = TypeVar("T")

_LATER = ("busy", "locked", "not-persisted", "read-only", "shutting-down")
"""Refusals that mean: not now."""

_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0


class Courier:
    """Sends calls on a client again where the connection is lost or the daemon says: not now.

    Args:
        client: Is connected, and stays the caller's.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.gave_up = trio.Event()
        """Once set, nothing is sent a second time."""

    async def call(
        self, call: Call[T], patience_s: float, *, done_before: str | None = None
    ) -> T | None:
        """Return the result of a call.

        Args:
            call: Sent again with the same timestamp.
            patience_s: Seconds to try for.
            done_before: The refusal that a request gets when it was carried out before; where the
                reply to that was lost, it is no refusal, and the result is None.

        Raises:
            CannotConnectError: The daemon stayed away.
            RefusedError: It refused.
        """
        pause_s, give_up_at, repeated = _PAUSE_S, trio.current_time() + patience_s, False
        while True:
            try:
                return await self._client.call(call)
            except RefusedError as error:
                if repeated and error.code == done_before:
                    return None
                if error.code not in _LATER or self._is_enough(pause_s, give_up_at):
                    raise
            except CannotConnectError:
                repeated = True
                if self._is_enough(pause_s, give_up_at):
                    raise
            with trio.move_on_after(pause_s):
                await self.gave_up.wait()
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            with contextlib.suppress(CannotConnectError):
                await self._client.connect()

    def _is_enough(self, pause_s: float, give_up_at: float) -> bool:
        return self.gave_up.is_set() or trio.current_time() + pause_s > give_up_at
