"""Jobs with blocking sockets: no thread, so the body extends its lease itself, where it has to.

As with trio, a loop cannot see an exception of its body; the job is released when the iterator is
dropped, and a block (``with jobs`` or ``with job``) is exact.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakSet

from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call
from fastjournal.client.core.jobs import LEASE_IS_OVER, Asking, HeldJob, Terms, lost_job
from fastjournal.client.core.results import Entry
from fastjournal.client.sync.link import Dialer
from fastjournal.errors import FastjournalError, RefusedError

if TYPE_CHECKING:
    from fastjournal.client.sync.client import SyncClient


class SyncJob(HeldJob):
    """A leased entry.

    As a block (``with job``) it is completed at the end, and released on an exception.
    """

    def __init__(self, entry: Entry, client: SyncClient, terms: Terms, now_s: float) -> None:
        super().__init__(entry, terms.retry_delay_us)
        self._client = client
        self._lease_us = terms.lease_us
        self._process = os.getpid()
        self._lease_ends_s = now_s + terms.lease_us / 1e6

    @property
    def is_ours(self) -> bool:
        """Whether this process holds the lease; else the other side of a fork does."""
        return self._process == os.getpid()

    def is_over(self, now_s: float) -> bool:
        """Whether it has ended, or its lease, for sure."""
        return self.finished or now_s >= self._lease_ends_s

    def extend(self, lease_us: int | None = None) -> None:
        """Have the lease end in ``lease_us`` microseconds (None: the length asked for first).

        Raises:
            LeaseLostError: It was lost before: the work is no longer yours, so better stop.
            CannotConnectError: The daemon stayed away.
        """
        self._check_owner()
        ttl_us, asked_s = self._lease_us if lease_us is None else lease_us, self._client.now_s()
        try:
            token = self._client.touch(self.key, self.token, ttl_us=ttl_us)
        except RefusedError as error:
            if error.code in LEASE_IS_OVER:
                raise lost_job(error) from error
            raise
        assert token is not None, "an extended lease has a token"
        self.token = token
        self._lease_ends_s = asked_s + ttl_us / 1e6

    def complete(self) -> None:
        """The work is done: the entry goes.

        Raises:
            LeaseLostError: The lease was lost before, so somebody else may have done it too.
            CannotConnectError: The daemon stayed away.
        """
        self._end()
        try:
            self._client.call(self._completion())
        except RefusedError as error:
            if error.code in LEASE_IS_OVER:
                raise lost_job(error) from error
            raise

    def release(self, *, delay_us: int | None = None) -> None:
        """Give the entry back, due again in ``delay_us`` microseconds (None: as before).

        Raises:
            LeaseLostError: The lease was lost before.
            CannotConnectError: The daemon stayed away.
        """
        call = self._giving_back(delay_us)  # a bad argument ends nothing
        self._end()
        self._client.call(call)

    def bury(self, reason: str = "") -> None:
        """Set the entry aside: nobody gets it until it is kicked.

        Raises:
            LeaseLostError: The lease was lost before.
            CannotConnectError: The daemon stayed away.
        """
        call = calls.bury(self.key, self.token, reason=reason)
        self._end()
        self._client.call(call)

    def __enter__(self) -> SyncJob:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            let_go(self._client, [self], failed=isinstance(error, Exception))
        elif not self.finished:
            self.complete()

    def _end(self) -> None:
        self._check_owner()
        if self.finished:
            raise RuntimeError("this job has ended already")
        self.finished = True

    def _check_owner(self) -> None:
        if not self.is_ours:
            raise RuntimeError("this job is the parent process's: only that one can end it")


def let_go(client: SyncClient, jobs: Sequence[SyncJob], *, failed: bool) -> None:
    """Release jobs as well as can be done now, all in one go.

    What cannot be released in a few seconds comes back when its lease ends.

    Args:
        client: That they are from.
        jobs: Those that have ended already are left alone.
        failed: The body of the first one ran, and did not succeed.
    """
    with contextlib.suppress(FastjournalError):
        client.give_back(_releases_of(jobs, failed=failed))


def _releases_of(jobs: Sequence[SyncJob], *, failed: bool) -> list[Call[None]]:
    releases = []
    for job in jobs:
        # After a fork the job is still the parent's, and nothing ends it in the child.
        if not job.finished and job.is_ours:
            job.finished = True
            releases.append(job._giving_back(job._delay_after_failure_us() if failed else None))
        failed = False
    return releases


class SyncJobLoop:
    """Jobs one after the other; see ``SyncClient.jobs``."""

    def __init__(self, client: SyncClient, terms: Terms, dialer: Dialer) -> None:
        self._client = client
        self._terms = terms
        self._dialer = dialer
        self._held: deque[SyncJob] = deque()
        _loops.add(self)
        _clients.add(client)

    def __iter__(self) -> SyncJobLoop:
        return self

    def __next__(self) -> SyncJob:
        if self._held:
            job = self._held[0]
            if not job.finished:
                job.complete()
            self._held.popleft()
        dialer, now_s = self._dialer, self._dialer.now_s
        while self._held and self._held[0].is_over(now_s()):
            self._held.popleft()  # its lease ran out behind the others: somebody else has it
        asking = Asking(self._terms, dialer.plan, dialer.rng, now_s())
        while not self._held:
            try:
                found = self._client.call(asking.call(now_s()))
            except FastjournalError as error:
                dialer.sleep(asking.failed(error, now_s()))
                continue
            asking.answered()
            begun_s = now_s()
            self._held.extend(SyncJob(entry, self._client, self._terms, begun_s) for entry in found)
            if not found.pairs and asking.is_over(now_s()):
                raise StopIteration
        return self._held[0]

    def __enter__(self) -> SyncJobLoop:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._let_go(failed=isinstance(error, Exception))

    def __del__(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Have everything released, without waiting for that."""
        held = list(self._held)
        self._held.clear()
        if releases := _releases_of(held, failed=True):
            self._client.give_back_later(releases)

    def _let_go(self, *, failed: bool) -> None:
        held = list(self._held)
        self._held.clear()
        let_go(self._client, held, failed=failed)


_loops: WeakSet[SyncJobLoop] = WeakSet()
_clients: WeakSet[SyncClient] = WeakSet()


@atexit.register
def _give_back_at_exit() -> None:
    """Release what loops hold whose program ends, and wait for what dropped ones left behind."""
    for loop in list(_loops):
        loop.leave()
    for client in list(_clients):
        client.settle()
