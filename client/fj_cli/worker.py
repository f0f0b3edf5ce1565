"""A whole worker: leases entries and has a ``Job`` for each, until there are no more.

Two connections. One asks for work, and may wait on it; QUIT ends that wait without losing what the
daemon hands out at the same moment. The other extends leases, completes and releases.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import AsyncIterator

import msgspec
import trio

from fastjournal.client import Client, Entry, Jobs, calls
from fastjournal.client.access import Access
from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    FastjournalError,
    RefusedError,
)
from fj_cli.courier import Courier
from fj_cli.job import Job
from fj_cli.options import DONE, NOTHING_TO_DO
from fj_cli.output import note
from fj_cli.reports import Ended, Outcome, Reports
from fj_cli.retries import Retries

_RECONNECT_S = 300.0
"""How long to ask for work at a daemon that has gone away, for instance to be restarted."""

_WAIT_US_MIN = 1_000_000
"""The shortest wait for work while commands run; a shorter one would only make traffic."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do. Times are microseconds."""

    server: str
    access: Access
    domain: bytes
    argv: list[str]
    jobs: int
    """Commands at once."""
    count: int | None
    """Entries in all; None: no limit."""
    lease_us: int
    wait_us: int | None
    """How long to wait for work when there is none; None: end then."""
    max_attempts: int
    retry_delay_us: int
    retry_delay_us_max: int
    as_json: bool


def find_program(name: str) -> str:
    """Return the path of a program, before anything is leased for it.

    Raises:
        BadRequestError: There is none of that name.
    """
    path = shutil.which(name)
    if path is None:
        raise BadRequestError(f"there is no program {name!r} to run", hint="look at PATH")
    return path


class Worker:
    """Works entries off until there are none, the wait for more is over, or it is stopped."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._retries = Retries(plan.retry_delay_us, plan.retry_delay_us_max, plan.max_attempts)
        self._reports = Reports(as_json=plan.as_json)
        self._running = 0
        self._taken = 0
        self._stopping = False
        self._unreachable: CannotConnectError | None = None
        """The daemon stayed away from who asked for work."""
        self._lost: CannotConnectError | None = None
        """It was away for longer than the lease of a job, and was not heard of since."""
        self._one_finished = trio.Event()

    async def run(self) -> int:
        """Do it all; return the exit code.

        Raises:
            CannotConnectError: The daemon stayed away.
            RefusedError: It hands out no work.
        """
        plan = self._plan
        refusal: RefusedError | None = None
        # The signals come first: from here on, none of them ends the program by itself.
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            # Couriers send again by themselves, for as long as each request is worth it.
            asking_client, telling_client = (
                Client(plan.server, tls=plan.access.tls, auth=plan.access.auth, reconnect=None)
                for _ in range(2)
            )
            async with asking_client as asking, telling_client as telling:
                self._asking, self._telling = Courier(asking), Courier(telling)
                async with trio.open_nursery() as nursery:
                    commands = trio.CancelScope()
                    nursery.start_soon(self._watch, signals, nursery, asking, commands)
                    with commands:
                        async with trio.open_nursery() as jobs:
                            refusal = await self._take_work(jobs)
                    nursery.cancel_scope.cancel()
        self._reports.summary()
        failure = self._unreachable or refusal or self._lost
        if failure is not None and not self._stopping:
            raise failure
        return DONE if self._taken or self._stopping else NOTHING_TO_DO

    # --- taking work ----------------------------------------------------------------------------

    async def _take_work(self, nursery: trio.Nursery) -> RefusedError | None:
        """Take work while there is some; return the refusal that ended it, if one did."""
        while self._goes_on():
            room = self._room()
            if room == 0:
                await self._wait_finished()
                continue
            try:
                jobs = await self._ask(room)
            except CannotConnectError as error:
                self._unreachable = error
                return None
            except RefusedError as error:
                return error
            self._lost = None
            if not self._goes_on():
                await self._give_back(jobs)
            elif jobs.pairs:
                for entry in jobs:
                    self._taken += 1
                    self._running += 1
                    nursery.start_soon(self._work_off, entry)
            elif not self._running:
                return None
            elif self._plan.wait_us is None:
                # What is done may set free what waits for the same URI, so it is asked again.
                await self._wait_finished()
        return None

    def _goes_on(self) -> bool:
        done = self._plan.count is not None and self._taken >= self._plan.count
        return not (self._stopping or done or self._unreachable)

    def _room(self) -> int:
        """How many entries may be started now."""
        free = self._plan.jobs - self._running
        return free if self._plan.count is None else min(free, self._plan.count - self._taken)

    async def _ask(self, count: int) -> Jobs:
        plan = self._plan
        wait_us = plan.wait_us
        if wait_us is not None and self._running:
            wait_us = max(wait_us, _WAIT_US_MIN)
        call = calls.next_(
            plan.domain, count=count, lease_us=plan.lease_us, wait_us=wait_us, meta=True
        )
        jobs = await self._asking.call(call, _RECONNECT_S)
        assert jobs is not None
        return jobs

    async def _wait_finished(self) -> None:
        self._one_finished = trio.Event()
        await self._one_finished.wait()

    async def _give_back(self, jobs: Jobs) -> None:
        for entry in jobs:
            assert entry.token is not None
            with contextlib.suppress(RefusedError, CannotConnectError):
                await self._telling.call(calls.release(entry.key, entry.token), 0)

    async def _work_off(self, entry: Entry) -> None:
        started = trio.current_time()
        outcome = Outcome(Ended.STOPPED)
        job = Job(
            entry,
            self._plan.argv,
            lease_us=self._plan.lease_us,
            courier=self._telling,
            retries=self._retries,
            server=self._plan.server,
        )
        try:
            outcome = await job.run()
        except CannotConnectError as error:
            self._lost = error
            outcome = Outcome(Ended.LOST, remark=error.message)
        finally:
            self._reports.add(entry, outcome, trio.current_time() - started)
            self._running -= 1
            self._one_finished.set()

    # --- being stopped --------------------------------------------------------------------------

    async def _watch(
        self,
        signals: AsyncIterator[int],
        nursery: trio.Nursery,
        asking: Client,
        commands: trio.CancelScope,
    ) -> None:
        """Act on signals: the first one lets running commands finish, the second ends them."""
        async for _ in signals:
            if self._stopping:
                self._telling.gave_up.set()
                commands.cancel()
                continue
            self._stopping = True
            note(f"stopping: {self._running} running; once more to end them")
            self._asking.gave_up.set()
            self._one_finished.set()
            nursery.start_soon(_end_waiting, asking)


async def _end_waiting(asking: Client) -> None:
    """Have the daemon answer a NEXT that waits, so that it leases nothing more to this worker."""
    with contextlib.suppress(FastjournalError):
        await asking.call(calls.quit_())
