"""Requests that outlive a restart of the daemon: connect and send again, for a while."""

from __future__ import annotations

import contextlib
from typing import TypeVar

import trio

from fastjournal.client import Call, Client
from fastjournal.errors import CannotConnectError, RefusedError

T = TypeVar("T")

_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0


class Courier:
    """Sends calls on a client, and connects it again where the connection is lost.

    Args:
        client: Is connected, and stays the caller's.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.gave_up = trio.Event()
        """Once set, a lost connection is not mended any more."""

    async def call(
        self, call: Call[T], patience_s: float, *, done_before: str | None = None
    ) -> T | None:
        """Return the result of a call.

        Args:
            call: Sent again with the same timestamp.
            patience_s: Seconds to try for, after the connection was lost.
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
                raise
            except CannotConnectError:
                repeated = True
                if self.gave_up.is_set() or trio.current_time() + pause_s > give_up_at:
                    raise
            with trio.move_on_after(pause_s):
                await self.gave_up.wait()
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            with contextlib.suppress(CannotConnectError):
                await self._client.connect()
