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
from fastjournal.client.core.access import Access
from fastjournal.client.core.failures import IN_VAIN
from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    FastjournalError,
    ProtocolError,
    RefusedError,
)
from fj_cli.courier import Courier, Patience
from fj_cli.job import Job
from fj_cli.notes import Notes
from fj_cli.options import DONE, NOTHING_TO_DO
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
        self._notes = Notes()
        self._reports = Reports(self._notes, as_json=plan.as_json)
        self._running = 0
        self._taken = 0
        self._stopped = False
        """By a signal."""
        self._ending = trio.Event()
        """Nothing new starts."""
        self._end_now = trio.Event()
        """Commands are ended, and nothing is sent a second time."""
        self._failure: CannotConnectError | RefusedError | None = None
        """Why no more work is taken."""
        self._lost: CannotConnectError | None = None
        """The daemon was away for longer than the lease of a job, and was not heard of since."""
        self._one_finished = trio.Event()

    async def run(self) -> int:
        """Do it all; return the exit code.

        Raises:
            CannotConnectError: The daemon stayed away.
            RefusedError: It hands out no work, or takes no end of it.
        """
        async with self._notes.writing():
            # The signals come first: from here on, none of them ends the program by itself.
            with trio.open_signal_receiver(*_signals()) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch, signals)
                    await self._work()
                    nursery.cancel_scope.cancel()
            self._reports.summary()
        failure = self._failure or self._lost
        if failure is not None and not self._stopped:
            raise failure
        return DONE if self._taken or self._stopped else NOTHING_TO_DO

    async def _work(self) -> None:
        """Connect, and work off what there is."""
        async with contextlib.AsyncExitStack() as clients:
            try:
                asking = await self._connect(clients)
                telling = await self._connect(clients)
            except (CannotConnectError, RefusedError) as error:
                self._failure = error
                return
            self._asking = Courier(asking, gave_up=self._ending)
            self._telling = Courier(telling, gave_up=self._end_now)
            async with trio.open_nursery() as helpers:
                helpers.start_soon(self._end_waiting, asking)
                commands = trio.CancelScope()
                helpers.start_soon(self._end_commands, commands)
                with commands:
                    async with trio.open_nursery() as jobs:
                        await self._take_work(jobs)
                helpers.cancel_scope.cancel()

    async def _connect(self, clients: contextlib.AsyncExitStack) -> Client:
        """Return a connected client; a daemon that is away is waited for."""
        plan, patience = self._plan, Patience(_RECONNECT_S, _RECONNECT_S, self._ending)
        told = False
        while True:
            # Couriers send again by themselves, for as long as each request is worth it.
            client = Client(plan.server, tls=plan.access.tls, auth=plan.access.auth, reconnect=None)
            try:
                return await clients.enter_async_context(client)
            except (CannotConnectError, ProtocolError, RefusedError) as error:
                if isinstance(error, CannotConnectError) and error.code in IN_VAIN:
                    raise
                await patience.pause_after(error)
                if not told:
                    told = True
                    self._notes.add(f"{error.message}; waiting for the daemon")

    # --- taking work ----------------------------------------------------------------------------

    async def _take_work(self, nursery: trio.Nursery) -> None:
        """Take work while there is some."""
        while self._goes_on():
            room = self._room()
            if room == 0:
                await self._wait_finished()
                continue
            try:
                jobs = await self._ask(room)
            except (CannotConnectError, RefusedError) as error:
                self._failure = self._failure or error
                return
            self._lost = None
            if not self._goes_on():
                await self._give_back(jobs)
            elif jobs.pairs:
                for entry in jobs:
                    self._taken += 1
                    self._running += 1
                    nursery.start_soon(self._work_off, entry)
            elif not self._running:
                return
            elif self._plan.wait_us is None:
                # What is done may set free what waits for the same URI, so it is asked again.
                await self._wait_finished()

    def _goes_on(self) -> bool:
        done = self._plan.count is not None and self._taken >= self._plan.count
        return not (self._ending.is_set() or done or self._failure)

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
        # A daemon that answers is waited for as long as work is: its disk may be full for hours.
        refused_s = max(_RECONNECT_S, (plan.wait_us or 0) / 1e6)
        jobs = await self._asking.call(call, _RECONNECT_S, refused_s=refused_s)
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
            notes=self._notes,
            stop=self._ending,
            server=self._plan.server,
        )
        try:
            outcome = await job.run()
        except CannotConnectError as error:
            self._lost = error
            outcome = Outcome(Ended.LOST, remark=error.message)
        except RefusedError as error:
            # The next one would end like this too: all work would be done in vain.
            self._failure = self._failure or error
            self._take_no_more()
            outcome = Outcome(Ended.LOST, remark=f"{error.code}: {error.message}")
        finally:
            self._reports.add(entry, outcome, trio.current_time() - started)
            self._running -= 1
            self._one_finished.set()

    # --- being stopped --------------------------------------------------------------------------

    async def _watch(self, signals: AsyncIterator[int]) -> None:
        """Act on signals: the first one lets running commands finish, the second ends them.

        A terminal that is closed may send SIGHUP twice, by its shell and by the kernel, and nobody
        means the second one: it ends nothing.
        """
        async for number in signals:
            if not self._stopped:
                self._stopped = True
                self._take_no_more()
                self._notes.add(f"stopping: {self._running} running; once more to end them")
            elif number != signal.SIGHUP:
                self._end_now.set()

    def _take_no_more(self) -> None:
        self._ending.set()
        self._one_finished.set()

    async def _end_commands(self, commands: trio.CancelScope) -> None:
        await self._end_now.wait()
        commands.cancel()

    async def _end_waiting(self, asking: Client) -> None:
        """Have the daemon answer a NEXT that waits, so that it leases nothing more to this one."""
        await self._ending.wait()
        with contextlib.suppress(FastjournalError):
            await asking.call(calls.quit_())


def _signals() -> list[signal.Signals]:
    """Return the signals that stop a worker: those that would end it. ``nohup`` ignores one."""
    asked = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    heard = [number for number in asked if signal.getsignal(number) != signal.SIG_IGN]
    return [signal.SIGTERM, *heard]
