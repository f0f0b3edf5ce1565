"""Locks of blocks with blocking sockets: a thread renews each while the body runs."""

from __future__ import annotations

import contextlib
from types import TracebackType

from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call
from fastjournal.client.core.held_lease import HeldLock
from fastjournal.client.core.pipeline import single
from fastjournal.client.sync.connection import SyncConnection
from fastjournal.client.sync.jobs import LeaseKeeper, SyncKeptLease
from fastjournal.errors import FastjournalError
from fastjournal.times import to_timedelta


class SyncLock(HeldLock, SyncKeptLease):
    """Lock of a ``locked`` block: ``lost`` is set once it is lost, and ``loss`` says why."""

    def __init__(
        self, connection: SyncConnection, key: str | bytes, length_us: int, *, renew: bool
    ) -> None:
        super().__init__(key, length_us, connection.dialer.now_s())
        connection.call(calls.lock(key, timeout=to_timedelta(length_us)))
        self._keep_by(connection, LeaseKeeper([self]) if renew else None)

    def _exchange_renewal(self, renewal: Call[None]) -> None:
        # in the turn of this thread: the lock is that of the client's own connection
        self._connection.exchange(*single(renewal), end_s=self._lease_ends_s)

    def __enter__(self) -> SyncLock:
        if self._keeper is not None:
            self._keeper.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._end()
            return
        with contextlib.suppress(FastjournalError):
            self._end()

    def _end(self) -> None:
        """Stop the renewal, then unlock.

        Raises:
            LockLostError: The lock was lost before.
        """
        if self._keeper is not None:
            self._keeper.end()
        # A renewal that is under way is seen through: it must not come behind the UNLOCK.
        with self._mutex:
            self.finished = True
            if self.loss is not None:
                raise self._error() from self.loss
            self._note_lateness(self._now_s())
            try:
                self._connection.call(calls.unlock(self.key))
            except FastjournalError as error:
                self._end_failed(error, self._now_s())
                raise
