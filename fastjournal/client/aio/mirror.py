"""Mirror: a local copy of a key range that a subscription keeps current."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import anyio

from fastjournal.client.aio.connection import AsyncConnection
from fastjournal.client.aio.listen import Listener
from fastjournal.client.core import calls
from fastjournal.client.core.failures import IN_VAIN, NOT_NOW, mirror_left
from fastjournal.client.core.results import Change, ChangeKind, Entry
from fastjournal.client.core.retry_policy import Backoff, Reconnect
from fastjournal.errors import CannotConnectError, FastjournalError, RefusedError


class Mirror(Mapping[bytes, Entry]):
    """Copy of the entries under a prefix: ``async with client.mirror("color:") as copy: ...``.

    Entering the block subscribes first and reads then, so no change is missed between the two. From
    there on a task of the client keeps the copy current, over lost connections and restarts of the
    daemon: it reads all again if it may have missed something. It subscribes again, with the pauses
    of ``reconnect``, if the daemon refuses it for now (``busy``, for instance). The mapping itself
    waits for nothing. It lags behind the daemon by the delay of a notification, and while
    ``is_current`` is False by more. Each entry has its metadata.
    """

    def __init__(self, connection: AsyncConnection, prefix: str | bytes) -> None:
        self._connection = connection
        self._scan = calls.prefix(prefix, meta=True)
        self._prefix = prefix
        self._listener: Listener | None = None
        """None: the daemon has ended the subscription."""
        self._entries: dict[bytes, Entry] = {}
        self._changed = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._backoff: Backoff | None = None
        """Pauses since the copy was current."""
        self.is_current = False
        """No change is missing that the daemon has notified of; False while it is away."""
        self.failure: FastjournalError | None = None
        """Why the copy is kept current no more; None: it is."""

    # --- as a mapping ---------------------------------------------------------------------------

    def __getitem__(self, key: bytes) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    async def changed(self) -> None:
        """Wait until the copy changes.

        Raises:
            FastjournalError: It is kept current no more, see ``failure``; outside of the block too.
        """
        if self.failure is None:
            await self._changed.wait()
        if self.failure is not None:
            raise self.failure

    # --- keeping it current ---------------------------------------------------------------------

    async def __aenter__(self) -> Mirror:
        await self._subscribe()
        try:
            await self._read()
        except BaseException:  # cancelled too: the subscription ends
            await self._unsubscribe()
            raise
        self._connection.start_soon(self._keep)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end(mirror_left())
        if self._scope is not None:
            self._scope.cancel()
        await self._unsubscribe()

    async def _keep(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                while self.failure is None:
                    try:
                        await self._follow()
                    except FastjournalError as error:
                        await self._recover(error)
        finally:
            self._end(mirror_left())

    async def _follow(self) -> None:
        """Take over changes until the daemon stays away, or refuses them."""
        listener = self._listener or await self._subscribe()
        if not self.is_current:
            await self._read()
        async for change in listener:
            if change.kind is ChangeKind.MISSED:
                self.is_current = False
                await self._read()
            else:
                self._take_over(change)
            self._tell()

    async def _recover(self, error: FastjournalError) -> None:
        """Pause before the next attempt, or end where that has no sense."""
        self.is_current = False
        plan = self._connection.plan
        again = error.code in NOT_NOW
        if isinstance(error, RefusedError):
            await self._unsubscribe()
        else:
            again = isinstance(error, CannotConnectError) and error.code not in IN_VAIN
        if plan is None or not again:
            self._end(error)
            return
        await anyio.sleep(self._pause_s(plan))

    def _pause_s(self, plan: Reconnect) -> float:
        pause_s = None
        while pause_s is None:
            if self._backoff is None:
                self._backoff = Backoff(plan, self._connection.rng, anyio.current_time())
            pause_s = self._backoff.pause_s(anyio.current_time())
            if pause_s is None:  # its patience is over, the copy's is not
                self._backoff = None
        return pause_s

    async def _subscribe(self) -> Listener:
        listener = Listener(self._connection, calls.listening(prefix=self._prefix))
        self._listener = await listener.__aenter__()
        return listener

    async def _unsubscribe(self) -> None:
        if self._listener is not None:
            await self._listener.__aexit__()
            self._listener = None

    async def _read(self) -> None:
        """Read all entries again. Changes meanwhile wait in the listener."""
        entries: dict[bytes, Entry] = {}
        call = self._scan.first
        while True:
            page = await self._connection.call(call)
            entries.update((entry.key, entry) for entry in page)
            if page.cursor is None:
                break
            call = self._scan.following(page.cursor)
        self._entries = entries
        self.is_current = self.failure is None
        self._backoff = None
        self._tell()

    def _take_over(self, change: Change) -> None:
        if change.kind is ChangeKind.SET:
            self._entries[change.key] = Entry(
                change.key, value_type=change.value_type, value=change.value, meta=change.meta
            )
        else:
            self._entries.pop(change.key, None)

    def _end(self, error: FastjournalError) -> None:
        self.is_current = False
        self.failure = self.failure or error
        self._tell()

    def _tell(self) -> None:
        told, self._changed = self._changed, anyio.Event()
        told.set()
