"""Jobs of tasks: a task of the client renews each lease (heartbeat) while the body runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any

import anyio

from fastjournal.client.aio.connection import AsyncConnection
from fastjournal.client.core.calls import Call
from fastjournal.client.core.failed_attempts import EndPolicy, FailedAttempt, learn_burial
from fastjournal.client.core.failures import no_answer_before_lease_end
from fastjournal.client.core.held_lease import HeldLease
from fastjournal.client.core.leased_job import (
    LEASE_IS_OVER,
    BodyFailure,
    JobMethods,
    LeasedJob,
    failure_of,
    lost_job,
    lost_lease,
)
from fastjournal.client.core.results import Entry
from fastjournal.client.core.stats import EntryStats
from fastjournal.client.core.worker_options import WorkerOptions
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import CLIENT_LAST_WORDS_S
from fastjournal.times import Duration


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

    def renew_no_more(self) -> None:
        """Stop the renewal, and do nothing else: the lease ends by time, unless the work does."""
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


class Job(LeasedJob, KeptLease, JobMethods):
    """A leased entry; its lease is renewed until the work on it ends.

    As a block (``async with job``) it is completed at the end, has failed on an exception, and the
    block is cancelled where the lease is lost, which raises LeaseLostError.

    ``complete``, ``release``, ``fail`` and ``bury`` end it. A daemon that is away, or says not now
    (``busy``, ``read-only``, ...), is asked again until the lease is over, where the client
    reconnects at all. An end that is refused for good ends nothing: the lease goes on.
    """

    def __init__(self, entry: Entry, connection: AsyncConnection, options: WorkerOptions) -> None:
        super().__init__(entry, options, anyio.current_time())
        self._keep_by(connection)
        self._ending = False
        self._block: contextlib.AbstractAsyncContextManager[None] | None = None

    # --- the end --------------------------------------------------------------------------------

    async def last_error(self) -> str | None:
        return (await self._connection.call(self._state())).last_error

    async def complete(self) -> None:
        try:
            await self._end(self._completion)
        except RefusedError as error:
            if error.code in LEASE_IS_OVER:
                raise lost_job(error) from self.loss or error
            raise

    async def release(self, *, delay: Duration | None = None) -> None:
        await self._end(lambda: self._release_call(delay))

    async def fail(
        self, reason: str = "", *, delay: Duration | None = None, attempts_max: int = 0
    ) -> FailedAttempt:
        failed = self._failed_attempt(reason, delay, attempts_max)
        await self._end(lambda: self._failure(failed))
        return await self._settled(failed)

    async def _settled(self, failed: FailedAttempt) -> FailedAttempt:
        """Return the outcome of a failure that the daemon has taken, which may have buried."""
        connection = self._connection
        answer: EntryStats | FastjournalError = no_answer_before_lease_end(connection.address)
        with anyio.CancelScope(deadline=self._lease_ends_s + CLIENT_LAST_WORDS_S):
            try:
                answer = await connection.call(self._state())
            except FastjournalError as error:
                answer = error
        return learn_burial(failed, answer)

    async def bury(self, reason: str = "") -> None:
        await self._end(lambda: self._burial(reason))

    async def abandon(self) -> None:
        await release_jobs([self], None)

    async def _end(self, build: Callable[[], Call[Any]]) -> None:
        """Stop the lease renewal, then report the end to the daemon, also in a cancelled task."""
        if self.finished or self._ending:
            raise RuntimeError("this job has ended already")
        build()  # a bad argument ends nothing
        if self.loss is not None:
            self._finish()
            raise lost_lease(self.key) from self.loss
        self._ending = True
        try:
            # A renewal that is under way is seen through: its reply has the token.
            async with self._mutex:
                self._note_lateness(anyio.current_time())
                await self._send_until_lease_end(build())
        except anyio.get_cancelled_exc_class():
            # The caller has decided the end of the job: send it as well as can be done now.
            await self._send_last_words(build)
            raise
        except RefusedError as error:
            self._ending = False
            if error.code in LEASE_IS_OVER or self._is_over():
                self._lose(error, anyio.current_time())
                self._finish()
            raise
        except FastjournalError as error:
            if self._is_over():
                self._lose(error, anyio.current_time())
            self._finish()
            if self.is_stalled:
                raise lost_lease(self.key) from self.loss
            raise
        self._finish()

    async def _send_until_lease_end(self, call: Call[Any]) -> None:
        connection = self._connection
        policy = EndPolicy(call, connection.plan, connection.rng, lease_ends_s=self._lease_ends_s)
        with anyio.CancelScope(deadline=self._lease_ends_s + CLIENT_LAST_WORDS_S):
            while True:
                try:
                    await connection.call(call)
                except FastjournalError as error:
                    pause_s = policy.pause_s(error, anyio.current_time())
                    if pause_s is None:
                        return
                    await anyio.sleep(pause_s)
                else:
                    return
        # A client with more patience than the lease has still waits for the daemon.
        unanswered = no_answer_before_lease_end(connection.address)
        unanswered.maybe_done = True
        raise unanswered

    async def _send_last_words(self, build: Callable[[], Call[Any]]) -> None:
        """Send the request that ends the job once, as well as can be done now."""
        with anyio.move_on_after(CLIENT_LAST_WORDS_S, shield=True):
            with contextlib.suppress(FastjournalError):
                async with self._mutex:
                    self._finish()
                    await self._connection.call(build())
        self._finish()

    # --- as a block -----------------------------------------------------------------------------

    async def __aenter__(self) -> Job:
        self.was_entered = True
        if self._renewal.cancel_called and not self.finished and self.loss is None:
            # its loop was dropped before: its block is what tells now
            self._renewal = anyio.CancelScope()
            self._connection.start_soon(self.keep)
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
            except BaseException as error:  # any error of the body ends the lease
                await release_jobs([self], failure_of(error))
                raise
        if self._body.cancelled_caught:
            raise lost_lease(self.key) from self.loss
        if not self.finished:
            try:
                await self.complete()
            except RefusedError:
                await self.abandon()
                raise

    # --- meanwhile ------------------------------------------------------------------------------

    async def confirm_lease(self) -> bool:
        """Renew the lease now, for a program that did not run for a while.

        A daemon that is away is waited for, until the lease is over. If it is lost, the block of
        the job is cancelled.

        Returns:
            Whether the job is still held.
        """
        failure: FastjournalError | None = None
        while self.loss is None:
            async with self._mutex:
                if self.finished or self.loss is not None:
                    return False
                failure = await self._renew(failure)
            if failure is None:
                return True
            now_s = anyio.current_time()
            await anyio.sleep(self._renewal_pause_s(failure, now_s, self._connection.rng))
        self._renewal.cancel()
        self._body.cancel()
        return False


async def release_jobs(jobs: Sequence[Job], failure: BodyFailure | None) -> None:
    """Release jobs as well as can be done now, all at once and also in a cancelled task.

    Jobs that cannot be released in a few seconds come back when their lease ends.

    Args:
        jobs: Those that have ended already are left alone.
        failure: How the body of the first one failed; None: it did not.
    """
    try:
        with anyio.move_on_after(CLIENT_LAST_WORDS_S, shield=True):
            async with anyio.create_task_group() as group:
                for job in jobs:
                    if not job.finished and job.loss is None:
                        build = job._last_words(failure if job is jobs[0] else None)
                        group.start_soon(job._send_last_words, build)
    finally:
        for job in jobs:  # also where retry_delay exits the program: no lease is renewed for ever
            job._finish()
