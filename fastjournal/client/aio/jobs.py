"""Jobs with trio: leases are extended by tasks of the client while the bodies run.

A loop over ``client.jobs()`` cannot see an exception of its body; Python drops the iterator then.
So where that happens in the middle of a job (``JobLoop.__del__``) the client releases the job. A
block (``async with jobs`` or ``async with job``) sees what happens, and is exact.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import zip_longest
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio

from fastjournal.client.core import calls
from fastjournal.client.core.backoff import Reconnect
from fastjournal.client.core.calls import Call
from fastjournal.client.core.jobs import LEASE_IS_OVER, Asking, HeldJob, Terms, lost_job
from fastjournal.client.core.results import Entry
from fastjournal.errors import FastjournalError, LeaseLostError, RefusedError
from fastjournal.limits import CLIENT_LAST_WORDS_S

if TYPE_CHECKING:
    from fastjournal.client.aio.client import Client


class Job(HeldJob):
    """A leased entry; its lease is extended until the work on it ends.

    As a block (``async with job``) it is completed at the end, released on an exception, and the
    block is cancelled where the lease is lost, which raises LeaseLostError.
    """

    def __init__(self, entry: Entry, crew: Crew) -> None:
        super().__init__(entry, crew.terms.retry_delay_us)
        self.lost = trio.Event()
        """Set when the lease is lost: the work is no longer yours, so the body better ends."""
        self._crew = crew
        self._mutex = trio.Lock()
        self._keeper = trio.CancelScope()
        self._body = trio.CancelScope()
        self._lease_ends = trio.current_time() + crew.terms.lease_us / 1e6
        self._block: contextlib.AbstractAsyncContextManager[None] | None = None

    # --- the end --------------------------------------------------------------------------------

    async def complete(self) -> None:
        """The work is done: the entry goes.

        Raises:
            LeaseLostError: The lease was lost before, so somebody else may have done it too.
            CannotConnectError: The daemon stayed away.
        """
        try:
            await self._end(self._completion)
        except RefusedError as error:
            if error.code in LEASE_IS_OVER:
                raise lost_job(error) from error
            raise

    async def release(self, *, delay_us: int | None = None) -> None:
        """Give the entry back, due again in ``delay_us`` microseconds (None: as before).

        Raises:
            LeaseLostError: The lease was lost before.
            CannotConnectError: The daemon stayed away.
        """
        await self._end(lambda: self._giving_back(delay_us))

    async def bury(self, reason: str = "") -> None:
        """Set the entry aside: nobody gets it until it is kicked.

        Raises:
            LeaseLostError: The lease was lost before.
            CannotConnectError: The daemon stayed away.
        """
        await self._end(lambda: calls.bury(self.key, self.token, reason=reason))

    async def _end(self, last: Callable[[], Call[Any]]) -> None:
        """End the extension of the lease, then tell the daemon, also in a cancelled task."""
        if self.finished:
            raise RuntimeError("this job has ended already")
        last()  # a bad argument ends nothing
        try:
            await self._tell(last)
        except trio.Cancelled:
            # The caller has made up its mind; so the daemon is told as well as can be done now.
            with trio.move_on_after(CLIENT_LAST_WORDS_S, shield=True):
                with contextlib.suppress(FastjournalError):
                    await self._tell(last)
            raise

    async def _tell(self, last: Callable[[], Call[Any]]) -> None:
        self.finished = True
        # An extension that is under way is seen through: its reply has the token.
        async with self._mutex:
            self._keeper.cancel()
            await self._crew.client.call(last())

    async def _try_to_release(self, delay_us: int | None) -> None:
        with contextlib.suppress(FastjournalError):
            await self._tell(lambda: self._giving_back(delay_us))

    # --- as a block -----------------------------------------------------------------------------

    async def __aenter__(self) -> Job:
        self._block = self._as_block()
        await self._block.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._block is not None, "left without having been entered"
        block, self._block = self._block, None
        return await block.__aexit__(kind, error, traceback)

    @contextlib.asynccontextmanager
    async def _as_block(self) -> AsyncIterator[None]:
        with self._body:
            try:
                yield
            except BaseException as error:
                await _let_go([self], failed=isinstance(error, Exception))
                raise
        if self._body.cancelled_caught:
            raise LeaseLostError("the lease was lost while the work was done")
        if not self.finished:
            await self.complete()

    # --- meanwhile ------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Extend the lease until the work ends, or the lease is lost."""
        with self._keeper:
            while True:
                await trio.sleep(self._crew.extension_s())
                # One that is under way is seen through: its reply has the token.
                async with self._mutex:
                    if self.finished:
                        return
                    if not await self._extend():
                        break
            self.lost.set()
            self._body.cancel()

    async def _extend(self) -> bool:
        """Extend the lease; whether it goes on."""
        asked_at, lease_us = trio.current_time(), self._crew.terms.lease_us
        with trio.move_on_at(self._lease_ends):
            try:
                token = await self._crew.client.touch(self.key, self.token, ttl_us=lease_us)
            except RefusedError as error:
                return error.code not in LEASE_IS_OVER and asked_at < self._lease_ends
            except FastjournalError:
                return trio.current_time() < self._lease_ends
            assert token is not None, "an extended lease has a token"
            self.token = token
            self._lease_ends = asked_at + lease_us / 1e6
            return True
        return False


async def _let_go(jobs: Sequence[Job], *, failed: bool) -> None:
    """Release jobs as well as can be done now, all at once and also in a cancelled task.

    What cannot be released in a few seconds comes back when its lease ends.

    Args:
        jobs: Those that have ended already are left alone.
        failed: The body of the first one ran, and did not succeed.
    """
    delays = [job._delay_after_failure_us() if failed else None for job in jobs[:1]]
    with trio.move_on_after(CLIENT_LAST_WORDS_S, shield=True):
        async with trio.open_nursery() as nursery:
            for job, delay_us in zip_longest(jobs, delays):
                if not job.finished:
                    nursery.start_soon(job._try_to_release, delay_us)
    for job in jobs:
        job.finished = True
        job._keeper.cancel()


class Crew:
    """What a loop holds; it outlives the loop by the time that giving back takes."""

    def __init__(self, client: Client, terms: Terms, plan: Reconnect | None, rng: Random) -> None:
        self.client = client
        self.terms = terms
        self.held: deque[Job] = deque()
        """The job whose body runs, if any, and those behind it."""
        self._plan = plan
        self._rng = rng

    def extension_s(self) -> float:
        """Return the seconds until the next extension: not those of all jobs at once."""
        return self.terms.extension_s * self._rng.uniform(0.8, 1.0)

    async def find(self) -> bool:
        """Lease jobs; whether there are some."""
        asking = Asking(self.terms, self._plan, self._rng, trio.current_time())
        while not self.held:
            try:
                found = await self.client.call(asking.call(trio.current_time()))
            except FastjournalError as error:
                await trio.sleep(asking.failed(error, trio.current_time()))
                continue
            asking.answered()
            for entry in found:
                job = Job(entry, self)
                self.held.append(job)
                self.client.start_soon(job.keep)
            if not found.pairs and asking.is_over(trio.current_time()):
                return False
        return True

    async def let_go(self, failed: bool) -> None:
        """Give back everything; ``failed`` says it of the first, whose body ran."""
        held = list(self.held)
        self.held.clear()
        await _let_go(held, failed=failed)

    def abandon(self) -> None:
        """Have everything given back by a task of the client."""
        self.client.start_soon(self._let_go_after_failure)

    async def _let_go_after_failure(self) -> None:
        await self.let_go(True)
        self.client.crews.discard(self)


class JobLoop:
    """Jobs one after the other; see ``Client.jobs``."""

    def __init__(self, client: Client, terms: Terms, plan: Reconnect | None, rng: Random) -> None:
        self._crew = Crew(client, terms, plan, rng)
        self._trio: trio.lowlevel.TrioToken | None = None

    def __aiter__(self) -> JobLoop:
        return self

    async def __anext__(self) -> Job:
        crew = self._crew
        if self._trio is None:
            self._trio = trio.lowlevel.current_trio_token()
            crew.client.crews.add(crew)
        if crew.held:
            job = crew.held[0]
            if job.finished:
                await trio.lowlevel.checkpoint()
            else:
                await job.complete()
            crew.held.popleft()
        while crew.held and crew.held[0].lost.is_set():
            crew.held.popleft()  # behind the others: somebody else has it
        if not await crew.find():
            crew.client.crews.discard(crew)
            self._trio = None
            raise StopAsyncIteration
        return crew.held[0]

    async def __aenter__(self) -> JobLoop:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._crew.let_go(isinstance(error, Exception))
        self._crew.client.crews.discard(self._crew)
        self._trio = None

    def __del__(self) -> None:
        if self._trio is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._trio.run_sync_soon(self._crew.abandon)
