"""Job loop with blocking sockets: leases jobs, and gives them to the body one by one.

A loop cannot see an exception of its body. If the iterator is dropped in the middle of a job, the
attempt has failed; a block (``with jobs`` or ``with job``) and ``run`` are exact.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from collections.abc import Callable
from weakref import WeakSet

from fastjournal.client.core.leased_job import (
    LEFT,
    BodyFailure,
    OnError,
    ends_run,
    failure_of,
    report_failure,
)
from fastjournal.client.core.poll_loop import PollLoop
from fastjournal.client.core.worker_options import WorkerOptions
from fastjournal.client.sync.connection import SyncConnection
from fastjournal.client.sync.jobs import LeaseKeeper, SyncJob, release_jobs, releases_of
from fastjournal.client.sync.sockets import Stopped, StopSignal
from fastjournal.errors import FastjournalError, LeaseLostError
from fastjournal.limits import INSTANT_MAX
from fastjournal.numeric import check_integer

_log = logging.getLogger(__name__)


class SyncJobLoop:
    """Jobs one after the other; see ``SyncClient.jobs``."""

    def __init__(self, connection: SyncConnection, options: WorkerOptions, *, renew: bool) -> None:
        self._connection = connection
        self._options = options
        self._dialer = connection.dialer
        self._held: deque[SyncJob] = deque()
        self._keeper = LeaseKeeper(self._held) if renew else None
        self._was_answered = False
        self._stop = StopSignal()
        _loops.add(self)
        _connections.add(connection)

    def stop(self) -> None:
        """Take no more jobs, for good; a wait for work ends, and leases nothing.

        The loop ends when it asks for the next job, and releases those after the current one. A
        signal handler, or another thread, may call this. A running attempt to connect, or the
        request of another thread that shares the client, is finished first.
        """
        self._stop.set()

    def __iter__(self) -> SyncJobLoop:
        return self

    def __next__(self) -> SyncJob:
        if self._held:
            job = self._held[0]
            if job.was_entered:
                job.abandon()  # unless its block has ended it: an exception came in between
            elif not job.finished:
                job.complete()
            self._held.popleft()
        now_s = self._dialer.now_s
        while self._held and self._held[0].is_over(now_s()):
            self._held.popleft()  # its lease ran out after the others: another worker has it
        if not self._held and not self._stop.is_set:
            self._find()
        if self._stop.is_set:
            self._release_all(None)
        if not self._held:
            self._end_renewal()
            raise StopIteration
        return self._held[0]

    def run(
        self,
        work: Callable[[SyncJob], object],
        *,
        limit: int | None = None,
        on_error: OnError = "continue",
    ) -> int:
        """Work jobs off one after the other; return how many were begun.

        ``work(job)`` runs as the block ``with job``: the job is completed at its end, unless
        ``work`` has ended it. An exception is logged, the attempt has failed with it and a short
        traceback as the reason, and the next job is begun. A job whose lease is lost is logged.
        KeyboardInterrupt and SystemExit end the loop; the attempt does not count then.

        Args:
            work: Does one job.
            limit: Begin so many jobs, then return; None: no limit.
            on_error: ``raise``: an exception of a job ends the loop.

        Raises:
            CannotConnectError: The daemon stays away.
            RefusedError: It delivers no work, for instance ``forbidden``.
            BadRequestError: An argument that is none of these.
        """
        if limit is not None:
            check_integer("limit", limit, 1, INSTANT_MAX)
        raises, begun = ends_run(on_error), 0
        with self:
            for job in self:
                begun += 1
                self._run_one(job, work, raises=raises)
                if begun == limit:
                    break
        return begun

    def _run_one(self, job: SyncJob, work: Callable[[SyncJob], object], *, raises: bool) -> None:
        try:
            with job:
                try:
                    work(job)
                except Exception as error:  # foreign code: the job has failed
                    if raises or (isinstance(error, LeaseLostError) and job.loss is not None):
                        raise
                    release_jobs(self._connection, [job], report_failure(job, error))
        except LeaseLostError as error:
            if job.loss is None:
                raise
            _log.info("the lease of job %r was lost: %s", job.key, error.__cause__ or error)

    def _find(self) -> None:
        """Lease jobs; none are held afterwards where the wait for them is over, or at ``stop``."""
        dialer, now_s = self._dialer, self._dialer.now_s
        polling = PollLoop(
            self._options, dialer.plan, dialer.rng, now_s(), was_answered=self._was_answered
        )
        while not self._stop.is_set:
            try:
                call = polling.call(now_s(), self._options.count)
                found = self._connection.call(call, self._stop)
            except Stopped:
                return
            except FastjournalError as error:
                if self._stop.is_set:
                    return
                dialer.sleep(polling.failed(error, now_s()))
                continue
            polling.answered()
            self._was_answered = True
            self._held.extend(
                SyncJob(entry, self._connection, self._options, self._keeper) for entry in found
            )
            if self._held and self._keeper is not None:
                self._keeper.begin()
            if self._held or polling.is_over(now_s()):
                return

    def __enter__(self) -> SyncJobLoop:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._release_all(failure_of(error))

    def __del__(self) -> None:
        self.leave(LEFT)

    def leave(self, failure: BodyFailure | None) -> None:
        """Have everything released, without waiting for that.

        Args:
            failure: That of the job whose body ran; None: the program ends, so it did not fail.
        """
        self._end_renewal()
        held = list(self._held)
        self._held.clear()
        if releases := releases_of(held, failure):
            self._connection.send_releases_later(releases)

    def _release_all(self, failure: BodyFailure | None) -> None:
        self._end_renewal()
        held = list(self._held)
        self._held.clear()
        release_jobs(self._connection, held, failure)

    def _end_renewal(self) -> None:
        if self._keeper is not None:
            self._keeper.end()


_loops: WeakSet[SyncJobLoop] = WeakSet()
_connections: WeakSet[SyncConnection] = WeakSet()


@atexit.register
def _release_at_exit() -> None:
    """Release the jobs of loops at exit, and wait for queued releases of dropped ones."""
    for loop in list(_loops):
        loop.leave(None)
    for connection in list(_connections):
        connection.settle()
