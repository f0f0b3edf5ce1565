"""Mirror: a local copy of a key range that a subscription keeps current."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import anyio

from fastjournal.client.aio.listen import Listener
from fastjournal.client.core import calls
from fastjournal.client.core.results import Change, ChangeKind, Entry
from fastjournal.errors import CannotConnectError, FastjournalError

if TYPE_CHECKING:
    from fastjournal.client.aio.client import Client


class Mirror(Mapping[bytes, Entry]):
    """Copy of the entries under a prefix: ``async with client.mirror("color:") as copy: ...``.

    Entering the block subscribes first and reads then, so no change is missed between the two.
    From there on a task of the client keeps the copy current, over lost connections and restarts
    of the daemon: it reads all anew where it may have missed something. The mapping itself waits
    for nothing. It is behind the daemon by the way of a notification, and while ``is_current`` is
    False by more.
    """

    def __init__(self, client: Client, prefix: str | bytes) -> None:
        self._client = client
        self._scan = calls.prefix(prefix)
        self._listener = Listener(client, calls.listening(prefix=prefix))
        self._entries: dict[bytes, Entry] = {}
        self._changed = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._left = False
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
            FastjournalError: It is kept current no more, see ``failure``.
        """
        if self.failure is None:
            await self._changed.wait()
        if self.failure is not None:
            raise self.failure

    # --- keeping it current ---------------------------------------------------------------------

    async def __aenter__(self) -> Mirror:
        await self._listener.__aenter__()
        try:
            await self._read()
        except BaseException:  # cancelled too: the subscription ends
            await self._listener.__aexit__()
            raise
        self._client.start_soon(self._keep)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left = True
        self.is_current = False
        if self._scope is not None:
            self._scope.cancel()
        await self._listener.__aexit__()

    async def _keep(self) -> None:
        with anyio.CancelScope() as self._scope:
            while not self._left and self.failure is None:
                try:
                    await self._follow()
                except CannotConnectError as error:
                    self.is_current = False
                    if self._client.connection.plan is None:
                        self._end(error)
                except FastjournalError as error:
                    self._end(error)

    async def _follow(self) -> None:
        """Take over changes until the daemon stays away."""
        if not self.is_current:
            await self._read()
        async for change in self._listener:
            if change.kind is ChangeKind.MISSED:
                self.is_current = False
                await self._read()
            else:
                self._take_over(change)
            self._tell()

    async def _read(self) -> None:
        """Read all entries anew. Changes meanwhile wait in the listener."""
        entries: dict[bytes, Entry] = {}
        call = self._scan.first
        while True:
            page = await self._client.call(call)
            entries.update((entry.key, entry) for entry in page)
            if page.cursor is None:
                break
            call = self._scan.following(page.cursor)
        self._entries = entries
        self.is_current = True
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
        self.failure = error
        self._tell()

    def _tell(self) -> None:
        told, self._changed = self._changed, anyio.Event()
        told.set()
