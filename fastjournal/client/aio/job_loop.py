"""Job loop of tasks: leases jobs, and gives them to the body one by one or to concurrent tasks.

A loop over ``client.jobs()`` cannot see an exception of its body; Python drops the iterator then,
as at ``break``, and later, in another task. So where that happens in the middle of a job
(``JobLoop.__del__``) the client renews its lease no more, and the lease ends it: a failed attempt.
A block (``async with jobs`` or ``async with job``) and ``run`` see what happens, and are exact.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from fastjournal.client.aio.connection import AsyncConnection
from fastjournal.client.aio.event_loop import asyncio_task, running_loop
from fastjournal.client.aio.jobs import Job, release_jobs
from fastjournal.client.core.leased_job import (
    BodyFailure,
    OnError,
    ends_run,
    failure_of,
    report_failure,
)
from fastjournal.client.core.poll_loop import PollLoop
from fastjournal.client.core.worker_options import WorkerOptions
from fastjournal.errors import FastjournalError, LeaseLostError
from fastjournal.limits import INSTANT_MAX
from fastjournal.numeric import check_integer

_log = logging.getLogger(__name__)

_STALLS_MAX = 2
"""So often a job is lost because the program did not run; then that is a failed attempt."""

_STALLED_JOBS_MAX = 1000
"""Jobs that are known for that: each stalled the program for most of a lease."""


class LeasePool:
    """Leases of a loop; it outlives the loop by the time that giving back takes.

    Args:
        connection: Connection of the client.
        options: Options of the loop.
        pools: Pools of the client, which releases their leases when it ends.
    """

    def __init__(
        self, connection: AsyncConnection, options: WorkerOptions, pools: set[LeasePool]
    ) -> None:
        self.options = options
        self._connection = connection
        self._pools = pools
        self.held: deque[Job] = deque()
        """Jobs that were delivered and have not ended: of a loop, first the one whose body runs,
        then the next ones."""
        self.stopped = False
        self.dropped = False
        """Its loop was just dropped: what became of the body of the first job is not known."""
        self.on_accepted: Callable[[], object] | None = None
        """See ``JobLoop.on_accepted``."""
        self._search: anyio.CancelScope | None = None
        self._was_answered = False

    def register(self) -> None:
        """Have the client release the leases when it ends."""
        self._pools.add(self)

    def unregister(self) -> None:
        """Say that there is nothing to release."""
        self._pools.discard(self)

    def stop(self) -> None:
        """Find no more work; a search that is under way ends."""
        self.stopped = True
        if self._search is not None:
            self._search.cancel()

    async def find(self, count: int, *, beside_work: bool = False) -> list[Job]:
        """Lease up to so many jobs; return none where the wait for them is over, or at ``stop``.

        Raises:
            CannotConnectError: The daemon stayed away.
            RefusedError: It delivers no work.
        """
        polling = PollLoop(
            self.options,
            self._connection.plan,
            self._connection.rng,
            anyio.current_time(),
            was_answered=self._was_answered,
            beside_work=beside_work,
        )
        found: list[Job] = []
        with anyio.CancelScope() as self._search:
            while not (found or self.stopped):
                try:
                    at_once = self.on_accepted is not None
                    call = polling.call(anyio.current_time(), count, at_once=at_once)
                    entries = await self._connection.call(call)
                except FastjournalError as error:
                    await anyio.sleep(polling.failed(error, anyio.current_time()))
                    continue
                polling.answered()
                self._was_answered = True
                if self.on_accepted is not None:
                    self.on_accepted()
                    self.on_accepted = None
                found = [Job(entry, self._connection, self.options) for entry in entries]
                for job in found:
                    self._connection.start_soon(job.keep)
                self.held.extend(found)
                if not found and polling.is_over(anyio.current_time()):
                    break
        if found and self.stopped:
            for job in found:
                self.held.remove(job)
            await release_jobs(found, None)
            return []
        return found

    async def release_all(self, failure: BodyFailure | None) -> None:
        """Give back everything; ``failure`` is that of the first job, whose body ran."""
        held = list(self.held)
        self.held.clear()
        await release_jobs(held, failure)

    def take_all(self, *, left_by_error: bool) -> list[Job]:
        """Return what is to be released as the block of the client ends; nothing is held then.

        Without an error it is not known how the body of a loop that was just dropped was left.
        """
        if not left_by_error:
            self.leave_first()
        self.dropped = False
        held = list(self.held)
        self.held.clear()
        return held

    def leave_first(self) -> None:
        """Leave the first job of a dropped loop to its lease, unless its block is open; once."""
        was_dropped, self.dropped = self.dropped, False
        if was_dropped and self.held and not self.held[0].finished:
            job = self.held.popleft()
            if not job.was_entered:
                job.renew_no_more()
                _log.warning(
                    "a loop was left in the middle of job %r: a failed attempt when its lease ends;"
                    " use run(), or 'async with job'",
                    job.key,
                )

    def abandon(self) -> None:
        """Have the leases of the next jobs released by a task of the client."""
        self.leave_first()
        self._connection.start_soon(self._release_dropped)

    async def _release_dropped(self) -> None:
        await self.release_all(None)
        self.unregister()


class JobLoop:
    """Jobs one after the other, or side by side with ``run``; see ``Client.jobs``."""

    def __init__(
        self, connection: AsyncConnection, options: WorkerOptions, pools: set[LeasePool]
    ) -> None:
        self._pool = LeasePool(connection, options, pools)
        self._call_in_loop: Callable[[Callable[[], object]], None] | None = None
        """None before it begins, and after its end."""

    @property
    def on_accepted(self) -> Callable[[], object] | None:
        """Called once, when the daemon has accepted a NEXT; until then none of them waits."""
        return self._pool.on_accepted

    @on_accepted.setter
    def on_accepted(self, call: Callable[[], object] | None) -> None:
        self._pool.on_accepted = call

    def stop(self) -> None:
        """Take no more jobs, for good; a wait for work ends at once, and leases nothing.

        The loop ends when it asks for the next job, and releases those after the current one;
        ``run`` returns when the jobs that run have ended.
        """
        self._pool.stop()

    # --- one after the other --------------------------------------------------------------------

    def __aiter__(self) -> JobLoop:
        return self

    async def __anext__(self) -> Job:
        pool = self._pool
        self._begin()
        if pool.held:
            job = pool.held[0]
            if job.finished:
                await anyio.lowlevel.checkpoint()
            elif job.was_entered:
                await job.abandon()  # an exception came between its block and the end of it
            else:
                await job.complete()
            pool.held.popleft()
        while pool.held and pool.held[0].lost.is_set():
            pool.held.popleft()  # its lease ran out after the others: another worker has it
        if pool.stopped:
            await pool.release_all(None)
        elif not pool.held:
            await pool.find(pool.options.count)
        if not pool.held:
            self._end()
            raise StopAsyncIteration
        return pool.held[0]

    async def __aenter__(self) -> JobLoop:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await self._pool.release_all(failure_of(error))
        self._end()

    def __del__(self) -> None:
        if self._call_in_loop is not None:
            self._pool.dropped = True
            self._call_in_loop(self._pool.abandon)

    def _begin(self) -> None:
        if self._call_in_loop is None:
            self._call_in_loop = running_loop().call_soon
            self._pool.register()

    def _end(self) -> None:
        self._pool.unregister()
        self._call_in_loop = None

    # --- side by side ---------------------------------------------------------------------------

    async def run(
        self,
        work: Callable[[Job], Awaitable[object]],
        *,
        limit: int | None = None,
        on_error: OnError = "continue",
    ) -> int:
        """Work jobs off side by side, ``count`` of them at most; return how many were begun.

        ``work(job)`` runs in a task of its own, as the block ``async with job``: the job is
        completed at its end, unless ``work`` has ended it. An exception is logged, the attempt has
        failed with it and a short traceback as the reason, and the other tasks go on. Where a lease
        is lost its task is cancelled, and the others go on. Where no more work can be had, the jobs
        that run are finished before the error is raised. A cancelled attempt does not count.

        Args:
            work: Does one job.
            limit: Begin so many jobs, then return when they have ended; None: no limit.
            on_error: ``raise``: an exception of a job ends the other tasks and is raised in an
                ExceptionGroup.

        Raises:
            CannotConnectError: The daemon stays away.
            RefusedError: It delivers no work, for instance ``forbidden``.
            BadRequestError: An argument that is none of these.
        """
        if limit is not None:
            check_integer("limit", limit, 1, INSTANT_MAX)
        side_by_side = _Tasks(self._pool, work, limit, raises=ends_run(on_error))
        self._begin()
        try:
            return await side_by_side.run()
        finally:
            await self._pool.release_all(None)
            self._end()


class _Tasks:
    """Tasks of one ``run``, each with its job."""

    def __init__(
        self,
        pool: LeasePool,
        work: Callable[[Job], Awaitable[object]],
        limit: int | None,
        *,
        raises: bool,
    ) -> None:
        self._pool = pool
        self._work = work
        self._limit = limit
        self._raises = raises
        self._host: asyncio.Task[object] | None = None
        """Task that called ``run``, on asyncio."""
        self._begun = 0
        self._running = 0
        self._one_ended = anyio.Event()
        self._stalls: dict[bytes, tuple[int, str]] = {}
        """Jobs that were lost because the program did not run: how often, and the last reason."""

    async def run(self) -> int:
        """Find work and begin tasks until there is none, or enough; return how many were begun."""
        failure: FastjournalError | None = None
        self._host = asyncio_task()
        async with anyio.create_task_group() as group:
            try:
                await self._begin_tasks(group)
            except FastjournalError as error:
                failure = error  # jobs that run are finished first
        if failure is not None:
            raise failure
        return self._begun

    async def _begin_tasks(self, group: TaskGroup) -> None:
        pool = self._pool
        while not pool.stopped and self._begun != self._limit:
            self._one_ended = anyio.Event()
            if self._room() == 0:
                await self._one_ended.wait()
                continue
            found = await pool.find(self._room(), beside_work=self._running > 0)
            for job in found:
                self._begun += 1
                self._running += 1
                group.start_soon(self._run_one, job)
            at_once = pool.options.returns_at_once
            if not (found or self._running or (at_once and self._one_ended.is_set())):
                return
            if not found and at_once and not pool.stopped:
                # The end of a job may set free what waits for the same URI: it is asked again,
                # also where the job ended while the answer was under way.
                await self._one_ended.wait()

    def _room(self) -> int:
        """Return how many jobs may be begun now."""
        free = self._pool.options.count - self._running
        return free if self._limit is None else min(free, self._limit - self._begun)

    async def _run_one(self, job: Job) -> None:
        stalls, reason = self._stalls.pop(job.key, (0, ""))
        try:
            async with job:
                if stalls < _STALLS_MAX:
                    await self._work_on(job)
                else:
                    _log.warning("job %r fails, and is not begun again now: %s", job.key, reason)
                    await job.fail(reason)
                    self._note_stall(job.key, 1, reason)
        except LeaseLostError as error:
            if job.loss is None:
                raise
            level = logging.WARNING if job.is_stalled else logging.INFO
            _log.log(level, "the lease of job %r was lost: %s", job.key, error.__cause__ or error)
            if job.is_stalled:
                self._note_stall(job.key, stalls + 1, job.loss.message)
        finally:
            await release_jobs([job], None)  # unless its block has ended it
            self._running -= 1
            self._one_ended.set()
            with contextlib.suppress(ValueError):
                self._pool.held.remove(job)

    async def _work_on(self, job: Job) -> None:
        """Have one job done; where it fails, report that."""
        try:
            try:
                await self._work(job)
            except asyncio.CancelledError as error:
                if self._is_cancelled():
                    raise
                # else it would end the task group, and all other jobs, without an error
                raise RuntimeError("it awaited something that was cancelled") from error
        except Exception as error:  # foreign code: the job has failed
            if self._raises or (isinstance(error, LeaseLostError) and job.loss is not None):
                raise
            await release_jobs([job], report_failure(job, error))

    def _is_cancelled(self) -> bool:
        """Whether the task that runs now was cancelled by its lease, or with the whole loop.

        asyncio raises the same exception in a task that awaits another task, or a future, which was
        cancelled.
        """
        is_asked = anyio.get_current_task().has_pending_cancellation()
        return self._host is None or self._host.cancelling() > 0 or is_asked

    def _note_stall(self, key: bytes, stalls: int, reason: str) -> None:
        """Note that a job may stall the program, for the next time that it is delivered.

        Its lease is over, so nothing can be reported for it now, and without a report it would be
        begun for ever.
        """
        self._stalls[key] = stalls, reason
        if len(self._stalls) > _STALLED_JOBS_MAX:
            del self._stalls[next(iter(self._stalls))]
