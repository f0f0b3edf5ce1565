"""Locks of blocks of tasks: a task of the client renews each while the body runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import anyio
import msgspec

from fastjournal.client.aio.connection import AsyncConnection
from fastjournal.client.aio.jobs import KeptLease
from fastjournal.client.core import calls
from fastjournal.client.core.held_lease import HeldLock
from fastjournal.errors import FastjournalError
from fastjournal.limits import CLIENT_LAST_WORDS_S
from fastjournal.times import to_timedelta


class Lock(HeldLock, KeptLease):
    """Lock of a ``locked`` block: ``lost`` is set once it is lost, and ``loss`` says why."""

    @contextlib.asynccontextmanager
    async def hold(self, *, renew: bool) -> AsyncIterator[None]:
        """Renew it while the block runs, then unlock; see ``Client.locked``."""
        if renew:
            self._connection.start_soon(self.keep)
        with self._body:
            try:
                yield
            except BaseException:  # whatever the body raises, the lock ends
                await self._end_at_once()
                raise
        if self._body.cancelled_caught:
            raise self._error() from self.loss
        try:
            await self._end()
        except anyio.get_cancelled_exc_class():
            await self._end_at_once()
            raise

    async def _end(self) -> None:
        """Stop the renewal, then unlock.

        Raises:
            LockLostError: The lock was lost before.
        """
        try:
            # A renewal that is under way is seen through: it must not come behind the UNLOCK.
            async with self._mutex:
                if self.loss is not None:
                    raise self._error() from self.loss
                self._note_lateness(anyio.current_time())
                try:
                    await self._connection.call(calls.unlock(self.key))
                except FastjournalError as error:
                    self._end_failed(error, anyio.current_time())
                    raise
        finally:
            self._finish()

    async def _end_at_once(self) -> None:
        """Unlock as well as can be done in a few seconds, also in a cancelled task."""
        with anyio.move_on_after(CLIENT_LAST_WORDS_S, shield=True):
            with contextlib.suppress(FastjournalError):
                await self._end()
        self._finish()


async def lock_for_block(connection: AsyncConnection, key: str | bytes, length_us: int) -> Lock:
    """Lock an entry for a block.

    A lock that the daemon gives to a task which was cancelled meanwhile is released.
    """
    lock = Lock(key, length_us, anyio.current_time())
    lock._keep_by(connection)
    call = calls.lock(key, timeout=to_timedelta(length_us))
    unlock = calls.unlock(key).request
    await connection.call(msgspec.structs.replace(call, undo=lambda _request, _reply: [unlock]))
    return lock
