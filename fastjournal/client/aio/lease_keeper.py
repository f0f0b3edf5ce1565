"""Lease renewal (heartbeat) in a task of the client, beside the body."""

from __future__ import annotations

import anyio

from fastjournal.client.aio.connection import AsyncConnection
from fastjournal.client.core.failures import no_answer_before_lease_end
from fastjournal.client.core.held_lease import HeldLease
from fastjournal.errors import FastjournalError


class KeptLease(HeldLease):
    """Lease, or lock, that a task renews; where it is lost, the block is cancelled."""

    def _keep_by(self, connection: AsyncConnection) -> None:
        """Begin; ``keep`` is the task."""
        self.lost = anyio.Event()
        """Set when it is lost: the work is no longer yours, so the body better ends."""
        self._connection = connection
        self._mutex = anyio.Lock()
        self._renewal = anyio.CancelScope()
        self._body = anyio.CancelScope()

    async def keep(self) -> None:
        """Renew the lease until the work ends, or the lease is lost."""
        failure: FastjournalError | None = None
        with self._renewal:
            while self.loss is None:
                now_s = anyio.current_time()
                pause_s = self._renewal_pause_s(failure, now_s, self._connection.rng)
                self._note_lateness(now_s)
                self._renew_at_s = now_s + pause_s
                await anyio.sleep(pause_s)
                self._note_lateness(anyio.current_time())
                # A renewal that is under way is seen through: its reply has the token.
                async with self._mutex:
                    if self.finished or self.loss is not None:
                        break
                    failure = await self._renew(failure)
            if self.loss is not None:
                self._body.cancel()

    def _finish(self) -> None:
        self.finished = True
        self._renewal.cancel()

    async def _renew(self, failure: FastjournalError | None) -> FastjournalError | None:
        """Renew the lease; return why that failed.

        Args:
            failure: Why the one before failed.
        """
        asked_s = anyio.current_time()
        self._note_lateness(asked_s)
        failure = failure or no_answer_before_lease_end(self._connection.address)
        with anyio.CancelScope(deadline=self._lease_ends_s):
            try:
                answer = await self._connection.call(self._renewal_call(self._length_us))
            except FastjournalError as error:
                failure = error
            else:
                self._renewed(answer, asked_s=asked_s)
                return None
        now_s = anyio.current_time()
        self._late_s += max(now_s - max(asked_s, self._lease_ends_s), 0.0)  # woken late
        if self._is_over_by(failure) or self._is_over():
            self._lose(failure, now_s)
        return failure

    def _is_over(self) -> bool:
        """Whether the lease has ended, for sure."""
        return anyio.current_time() >= self._lease_ends_s

    def _lose(self, error: FastjournalError, now_s: float) -> None:
        super()._lose(error, now_s)
        self.lost.set()
