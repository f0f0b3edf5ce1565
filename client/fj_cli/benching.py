"""Load generator of ``fj-cli bench``: SET, NEXT and DELETE of jobs in a domain of its own.

All that it writes is deleted at the end, also after a signal, and leaves no tombstones.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec
import trio

from fastjournal.client import Client
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.keys import build_journal_key

T = TypeVar("T")

_CLEAN_S = 30.0
"""How long the end waits for the daemon to delete what is left."""

_CLEAN_AGAIN_S = 0.2
"""Pause between two tries of that."""

_PASSING = ("busy", "read-only", "rate-limited")
"""Refusals that may end while it waits."""

_LEASE_S = 60
"""A run that is killed leaves no entry leased for longer."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Load to generate."""

    connections: int
    jobs: int
    """Jobs of all connections together."""
    value_bytes: int
    persist: bool


class RequestTimes:
    """Durations of the requests of one function, in microseconds."""

    def __init__(self) -> None:
        self._us: list[int] = []

    def __len__(self) -> int:
        return len(self._us)

    async def measure(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request, and note how long the reply took."""
        began = time.perf_counter_ns()
        reply = await request()
        self._us.append((time.perf_counter_ns() - began) // 1000)
        return reply

    def quantile(self, share: float) -> int:
        """Return the duration that so large a share of the requests did not exceed."""
        ordered = sorted(self._us)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Bench:
    """One run against a daemon.

    Args:
        load: Load to generate.
        new_client: Returns a client of the daemon that is not connected.
    """

    def __init__(self, load: Load, new_client: Callable[[], Client]) -> None:
        self._load = load
        self._new_client = new_client
        self.domain = f"bench-{secrets.token_hex(4)}"
        self._left: set[bytes] = set()
        """Keys that may be there."""
        self._number = 0
        self.times = {"set": RequestTimes(), "next": RequestTimes(), "delete": RequestTimes()}
        self.seconds = 0.0
        self._failure: FastjournalError | None = None
        self.signal: int | None = None
        """Signal that ended the run before its time."""
        self.may_be_left = False
        """The daemon may not have deleted all entries."""

    async def run(self) -> None:
        """Generate the load, and clean up.

        Raises:
            FastjournalError: The daemon is not there, or refuses something.
        """
        try:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stop_at_signal, signals, nursery.cancel_scope)
                    await self._generate()
                    nursery.cancel_scope.cancel()
        finally:
            if self._left:
                self.may_be_left = True
                with trio.move_on_after(_CLEAN_S, shield=True):
                    await self._clean()
        if self._failure is not None:
            raise self._failure

    async def _stop_at_signal(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async for number in signals:
            self.signal = number
            scope.cancel()
            return

    async def _generate(self) -> None:
        began = time.perf_counter()
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(self._load.connections):
                    nursery.start_soon(self._connection, nursery.cancel_scope)
        finally:
            self.seconds = time.perf_counter() - began

    async def _connection(self, scope: trio.CancelScope) -> None:
        try:
            async with self._new_client() as client:
                while self._number < self._load.jobs:
                    self._number += 1
                    await self._job(client, self._number)
        except FastjournalError as error:
            self._failure = self._failure or error
            scope.cancel()

    async def _job(self, client: Client, number: int) -> None:
        """Set a job, lease one (this, or that of another connection), and complete that."""
        load = self._load
        key = build_journal_key(self.domain, str(number))
        value = secrets.token_bytes(load.value_bytes)
        self._left.add(key)
        try:
            await self.times["set"].measure(lambda: client.set(key, value, persist=load.persist))
        except RefusedError as error:
            if error.code != "not-persisted":  # which says nothing of the memory
                self._left.discard(key)
            raise
        jobs = await self.times["next"].measure(lambda: client.next(self.domain, lease=_LEASE_S))
        for job in jobs:
            complete = partial(client.delete, job.key, token=jobs.token, overwrite=True)
            await self.times["delete"].measure(complete)
            self._left.discard(job.key)

    async def _clean(self) -> None:
        """Delete what is left, until the daemon has none of it: a last SET may be on its way.

        PURGE would leave what is leased.
        """
        try:
            async with self._new_client() as client:
                while True:
                    refusal = await self._delete_left(client)
                    if not (await client.domain_stats(self.domain)).entries:
                        self.may_be_left = False
                        return
                    if refusal is not None:
                        self._failure = self._failure or refusal
                        if refusal.code not in _PASSING:
                            return
                    await trio.sleep(_CLEAN_AGAIN_S)
        except FastjournalError as error:
            self._failure = self._failure or error

    async def _delete_left(self, client: Client) -> RefusedError | None:
        """Delete each key that may be there; return a refusal, if there was one."""
        for key in self._left:
            try:
                await client.delete(key, overwrite=True)
            except RefusedError as error:
                if error.code != "not-found":
                    return error
        return None
