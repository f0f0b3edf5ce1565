"""Jobs with blocking sockets: a thread of the loop renews each lease while the body runs."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from fastjournal.client.core.calls import Call
from fastjournal.client.core.failed_attempts import EndPolicy, FailedAttempt, learn_burial
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
from fastjournal.client.core.results import Entry, RenewedLease
from fastjournal.client.core.worker_options import WorkerOptions
from fastjournal.client.sync.connection import LastWord, SyncConnection
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import CLIENT_LAST_WORDS_S, LEASE_RENEWAL_PAUSE_S_MIN
from fastjournal.protocol import Request
from fastjournal.times import Duration, lease_us


class LeaseKeeper:
    """Thread that renews the leases of jobs while they are held.

    It begins when jobs are held for the first time. It refers to neither the loop nor its iterator,
    so that these are freed as soon as the body is left.

    Args:
        held: The jobs or locks; their owner adds and removes some at any time.
    """

    def __init__(self, held: Collection[SyncKeptLease]) -> None:
        self._held = held
        self._orders: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Look after jobs that were added."""
        if self._thread is None or not self._thread.is_alive():  # none lives on in a forked child
            self._orders = SimpleQueue()
            self._thread = threading.Thread(
                target=_keep,
                args=(self._orders, self._held),
                name="fastjournal lease renewal",
                daemon=True,
            )
            self._thread.start()
        else:
            self._orders.put(True)

    def look(self) -> None:
        """Have a look at the jobs now: the lease of one has another end."""
        self._orders.put(True)

    def end(self) -> None:
        """End the thread, soon; for finalizers too: takes no lock, and waits for nothing."""
        self._thread = None
        self._orders.put(False)


class SyncKeptLease(HeldLease):
    """Lease, or lock, that a thread renews beside the body."""

    def _keep_by(self, connection: SyncConnection, keeper: LeaseKeeper | None) -> None:
        """Begin; with no keeper, nobody renews it."""
        self.lost = threading.Event()
        """Set when it is lost: the work is no longer yours, so the body better ends."""
        self._connection = connection
        self._keeper = keeper
        self._mutex = threading.RLock()
        """Held during a renewal or an end: an end comes after the answer of the renewal."""
        self._missed: FastjournalError | None = None
        """Why the last renewal failed; None: it did not."""
        self._plan_renewal()

    @abstractmethod
    def _exchange_renewal(self, renewal: Call[Any]) -> Any:
        """Send a renewal; return its result, until the end of what it renews at the latest."""

    def keep(self) -> float:
        """Renew the lease if it is time; return the seconds until the next look.

        For the thread that does so; it does not wait where the job is ended meanwhile.
        """
        if self.finished or self.loss is not None:
            return self._renewal_s
        if not self._mutex.acquire(blocking=False):
            return LEASE_RENEWAL_PAUSE_S_MIN  # it is being extended, perhaps in vain
        try:
            if self._now_s() >= self._renew_at_s and not self.finished:
                self._renew()
            return max(self._renew_at_s - self._now_s(), 0.0)
        finally:
            self._mutex.release()

    def _renew(self) -> None:
        asked_s = self._now_s()
        self._note_lateness(asked_s)
        renewal = self._renewal_call(self._length_us)
        try:
            answer = self._exchange_renewal(renewal)
        except FastjournalError as error:
            self._missed = error
            if self._is_over_by(error) or self._now_s() >= self._lease_ends_s:
                self._lose(error, self._now_s())
        else:
            self._missed = None
            self._renewed(answer, asked_s=asked_s)
        self._plan_renewal()

    def _plan_renewal(self) -> None:
        if self._keeper is None:
            self._renew_at_s = math.inf  # nobody renews it, so no renewal is late
            return
        now_s, rng = self._now_s(), self._connection.dialer.rng
        self._renew_at_s = now_s + self._renewal_pause_s(self._missed, now_s, rng)

    def _lose(self, error: FastjournalError, now_s: float) -> None:
        super()._lose(error, now_s)
        self.lost.set()

    def _now_s(self) -> float:
        return self._connection.dialer.now_s()


def _keep(orders: SimpleQueue[bool], held: Collection[SyncKeptLease]) -> None:
    """Renew leases when it is time, until the order to end comes."""
    while True:
        pause_s = min([job.keep() for job in tuple(held)], default=None)
        with contextlib.suppress(Empty):
            if not orders.get(timeout=pause_s):
                return


class SyncJob(LeasedJob, SyncKeptLease, JobMethods):
    """A leased entry; its lease is renewed until the work on it ends.

    As a block (``with job``) it is completed at the end, and has failed on an exception.

    ``complete``, ``release``, ``fail`` and ``bury`` end it. A daemon that is away, or says not now
    (``busy``, ``read-only``, ...), is asked again until the lease is over, where the client
    reconnects at all. An end that is refused for good ends nothing: the lease goes on.
    """

    def __init__(
        self,
        entry: Entry,
        connection: SyncConnection,
        options: WorkerOptions,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        super().__init__(entry, options, connection.dialer.now_s())
        self._keep_by(connection, keeper)
        self._dialer = connection.dialer
        self._process = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process holds the lease; else the other side of a fork does."""
        return self._process == os.getpid()

    def is_over(self, now_s: float) -> bool:
        """Whether it has ended, or its lease, for sure."""
        return self.finished or self.loss is not None or now_s >= self._lease_ends_s

    def extend(self, lease: Duration | None = None) -> None:
        """Have the lease end that long from now (None: the length asked for first).

        Raises:
            LeaseLostError: It was lost before: the work is no longer yours, so better stop.
            CannotConnectError: The daemon stayed away.
        """
        self._check_owner()
        ttl_us = self._options.lease_us
        if lease is not None:
            ttl_us = lease_us("lease", lease, zero=False)
        with self._mutex:
            asked_s = self._now_s()
            try:
                renewed = self._connection.call(self._renewal_call(ttl_us))
            except RefusedError as error:
                if error.code in LEASE_IS_OVER:
                    self._lose(error, self._now_s())
                    raise lost_job(error) from self.loss
                raise
            self._missed = None
            self._renewed(renewed, asked_s=asked_s)
            self._plan_renewal()
        if self._keeper is not None:
            self._keeper.look()

    def last_error(self) -> str | None:
        return (self._connection.call(self._state())).last_error

    def complete(self) -> None:
        try:
            self._end(self._completion)
        except RefusedError as error:
            if error.code in LEASE_IS_OVER:
                raise lost_job(error) from self.loss or error
            raise

    def release(self, *, delay: Duration | None = None) -> None:
        self._end(lambda: self._release_call(delay))

    def fail(
        self, reason: str = "", *, delay: Duration | None = None, attempts_max: int = 0
    ) -> FailedAttempt:
        failed = self._failed_attempt(reason, delay, attempts_max)
        self._end(lambda: self._failure(failed))
        return self._settled(failed)

    def _settled(self, failed: FailedAttempt) -> FailedAttempt:
        """Return the outcome of a failure that the daemon has taken, which may have buried."""
        try:
            return learn_burial(failed, self._connection.call(self._state()))
        except FastjournalError as error:
            return learn_burial(failed, error)

    def bury(self, reason: str = "") -> None:
        self._end(lambda: self._burial(reason))

    def abandon(self) -> None:
        release_jobs(self._connection, [self], None)

    def __enter__(self) -> SyncJob:
        self.was_entered = True
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            release_jobs(self._connection, [self], failure_of(error))
        elif not self.finished:
            try:
                self.complete()
            except RefusedError:
                self.abandon()
                raise

    def _end(self, build: Callable[[], Call[Any]]) -> None:
        """Report the end to the daemon, until it has answered or the lease is over."""
        build()  # a bad argument ends nothing
        self._check_owner()
        # A renewal that is under way is seen through: its reply has the token.
        with self._mutex:
            if self.finished:
                raise RuntimeError("this job has ended already")
            self.finished = True  # also where a signal handler's exception comes in between
            if self.loss is not None:
                raise lost_lease(self.key) from self.loss
            self._note_lateness(self._now_s())
            self._send_until_lease_end(build())

    def _send_until_lease_end(self, call: Call[Any]) -> None:
        dialer = self._dialer
        policy = EndPolicy(call, dialer.plan, dialer.rng, lease_ends_s=self._lease_ends_s)
        while True:
            try:
                self._connection.call(call)
            except FastjournalError as error:
                try:
                    pause_s = policy.pause_s(error, self._now_s())
                except FastjournalError:
                    self._not_ended(error)
                    raise
                if pause_s is None:
                    return
                dialer.sleep(pause_s)
            else:
                return

    def _not_ended(self, error: FastjournalError) -> None:
        """Note that the daemon took no end of the job."""
        refused = isinstance(error, RefusedError)
        if (refused and error.code in LEASE_IS_OVER) or self._now_s() >= self._lease_ends_s:
            self._lose(error, self._now_s())
        elif refused:
            self.finished = False
            self._plan_renewal()

    def _exchange_renewal(self, renewal: Call[Any]) -> RenewedLease:
        lease: RenewedLease = self._connection.exchange_beside(renewal, self._lease_ends_s)
        return lease

    def _last_word(self, failure: BodyFailure | None) -> LastWord:
        """Return what builds the release of a job that has ended."""
        build = self._last_words(failure)

        def request() -> Request | None:
            # A renewal that is under way is seen through, as above.
            was_acquired = self._mutex.acquire(timeout=CLIENT_LAST_WORDS_S)
            try:
                return build().request if self.loss is None else None
            finally:
                if was_acquired:
                    self._mutex.release()

        return request

    def _check_owner(self) -> None:
        if not self.is_ours:
            raise RuntimeError("this job is the parent process's: only that one can end it")


def release_jobs(
    connection: SyncConnection, jobs: Sequence[SyncJob], failure: BodyFailure | None
) -> None:
    """Release jobs as well as can be done now, all in one go.

    Jobs that cannot be released in a few seconds come back when their lease ends.

    Args:
        connection: Their client's.
        jobs: Those that have ended already are left alone.
        failure: How the body of the first one failed; None: it did not.
    """
    with contextlib.suppress(FastjournalError):
        connection.send_releases(releases_of(jobs, failure))


def releases_of(jobs: Sequence[SyncJob], failure: BodyFailure | None) -> list[LastWord]:
    """Return what builds the requests that give jobs back, which have ended then.

    It takes no lock; what it returns does. See ``release_jobs``.
    """
    releases = []
    for job in jobs:
        # After a fork the job is still the parent's, and nothing ends it in the child.
        if not job.finished and job.is_ours:
            job.finished = True
            releases.append(job._last_word(failure))
        failure = None
    return releases
