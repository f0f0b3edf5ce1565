"""Worker process of ``fj-cli next --exec``: a command for each job, signals, and the exit code.

The job loop of the library leases the jobs (``fastjournal.client.aio.job_loop``) and starts a task
for each that renews its lease (``Job.keep`` in ``fastjournal.client.aio.jobs``). A ``JobCommand``
runs the program of one job (``fj_cli.job``).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
from collections.abc import AsyncIterator

import msgspec
import trio

from fastjournal.client import Client, Job, JobLoop, Reconnect
from fastjournal.client.core.client_credentials import Credentials
from fastjournal.client.core.failures import IN_VAIN
from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    FastjournalError,
    RefusedError,
)
from fastjournal.limits import DURATION_US_MAX
from fj_cli.child import Children
from fj_cli.command_group import JOB_CONTROL, stop_self
from fj_cli.job import CommandPlan, JobCommand
from fj_cli.reports import CommandOutcome, Ended, Reports
from fj_cli.shared_options import DONE, NOTHING_TO_DO
from fj_cli.text import to_duration, to_wait

_PATIENCE_S = 300.0
_RECONNECT = Reconnect(first_pause=0.1, longest_pause=5.0, patience=_PATIENCE_S)
"""How long to retry at a daemon that is away, for instance during a restart."""

_LAST_WORDS_S = 5.0
"""How long a worker that is ending at once waits for the daemon to hear how a job ended."""


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a worker. Times are microseconds."""

    server: str
    credentials: Credentials
    daemon: dict[str, str]
    """Environment variables of both, for the commands."""
    domain: bytes | tuple[bytes, ...]
    ordered: bool = False
    prefix: bytes | None = None
    command: CommandPlan
    jobs: int
    """Commands at once."""
    count: int | None
    """Entries in all; None: no limit."""
    lease_us: int
    wait_us: int | None
    """How long to wait for work when there is none, or FOREVER_US; None: end then."""
    max_attempts: int
    retry_delay_us: int
    retry_delay_us_max: int
    as_json: bool


def find_program(name: str) -> str:
    """Return the path of a program, before anything is leased for it.

    Raises:
        BadRequestError: There is none of that name, or it cannot be executed.
    """
    path = shutil.which(name)
    if path is not None:
        return path
    found = name if os.path.dirname(name) else shutil.which(name, mode=os.F_OK)
    if found is None or not os.path.exists(found):
        raise BadRequestError(
            f"there is no program {name!r} to run", hint="check its name, and PATH"
        )
    if os.path.isdir(found):
        raise BadRequestError(f"{found!r} is a directory", hint="name the program in it")
    raise BadRequestError(
        f"{found!r} is not executable",
        hint=f"chmod +x {shlex.quote(found)}, or run it by its"
        f" interpreter: --exec sh {shlex.quote(found)}",
    )


class ExecWorker:
    """Works entries off until there are none, the wait for more is over, or it is stopped."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        self._reports = Reports(as_json=plan.as_json)
        self._jobs: JobLoop | None = None
        """None before the worker is connected."""
        self._work_scope = trio.CancelScope()
        self._telling: set[trio.CancelScope] = set()
        """Scopes of the requests that report the ends of jobs; they continue when commands are
        ended."""
        self._commands: set[JobCommand] = set()
        self._taken = 0
        self._stopped = False
        """By a signal."""
        self._ending = trio.Event()
        """No command begins any more."""
        self._failure: FastjournalError | None = None
        """Why no more work is taken."""
        self._lost: CannotConnectError | None = None
        """The daemon was away for longer than the lease of a job, and was not heard of since."""

    async def run(self) -> int:
        """Do it all; return the exit code.

        Raises:
            CannotConnectError: The daemon stayed away.
            RefusedError: It delivers no work, or accepts no end of it.
        """
        # The signal handlers come first: from here on, no signal ends the program by itself.
        with trio.open_signal_receiver(*_signals()) as signals:
            async with trio.open_nursery() as nursery:
                self._children = Children(nursery)
                nursery.start_soon(self._watch, signals, nursery)
                with self._work_scope:
                    await self._work()
                nursery.cancel_scope.cancel()
        self._reports.summary()
        failure = self._failure or self._lost
        if failure is not None and not self._stopped:
            raise failure
        return DONE if self._taken or self._stopped else NOTHING_TO_DO

    async def _work(self) -> None:
        """Connect, and work off what there is."""
        plan = self._plan
        wait_s = min(plan.wait_us or 0, DURATION_US_MAX) / 1e6
        async with contextlib.AsyncExitStack() as stack:
            try:
                client = await self._connect(stack)
                self._jobs = client.jobs(
                    plan.domain,
                    ordered=plan.ordered,
                    prefix=plan.prefix,
                    count=plan.jobs,
                    lease=to_duration(plan.lease_us),
                    wait=to_wait(plan.wait_us),
                    retry_delay=to_duration(plan.retry_delay_us),
                    retry_delay_max=to_duration(plan.retry_delay_us_max),
                    attempts_max=plan.max_attempts,
                    # A daemon that answers is waited for as long as work is: its disk may be full.
                    patience=max(_PATIENCE_S, wait_s),
                )
                begun = await self._jobs.run(self._work_off, limit=plan.count)
                if begun != plan.count:
                    self._lost = None  # the daemon has said that there is no more
            except FastjournalError as error:
                self._failure = self._failure or error

    async def _connect(self, stack: contextlib.AsyncExitStack) -> Client:
        """Return a connected client; a daemon that is away is waited for."""
        credentials = self._plan.credentials
        for at_start in (False, True):
            client = Client(
                self._plan.server,
                tls=credentials.tls,
                auth=credentials.auth,
                name=f"fj-cli next on {socket.gethostname()}, process {os.getpid()}",
                reconnect=msgspec.structs.replace(_RECONNECT, at_start=at_start),
            )
            try:
                return await stack.enter_async_context(client)
            except CannotConnectError as error:
                if at_start or error.code in IN_VAIN:
                    raise
                self._reports.note(f"{error.message}; waiting for the daemon")
        raise AssertionError("the second try returns or raises")

    async def _work_off(self, job: Job) -> None:
        """Run the command of a job, and report how that ended."""
        self._lost = None  # the daemon has handed it out, so it is there
        self._taken += 1
        started = trio.current_time()
        command = JobCommand(
            job,
            self._plan.command,
            note=self._reports.note,
            stop=self._ending,
            children=self._children,
            daemon=self._plan.daemon,
        )
        self._commands.add(command)
        outcome = CommandOutcome(Ended.STOPPED)
        try:
            code = await command.run()
            outcome = await self._tell_end(job, command, code)
        finally:
            if job.loss is not None:
                outcome = _lost_outcome(job.loss, outcome.exit_code)
                if isinstance(job.loss, CannotConnectError):
                    self._lost = job.loss
            self._reports.add(job.entry, outcome, trio.current_time() - started)
            self._commands.discard(command)

    async def _tell_end(self, job: Job, command: JobCommand, code: int | None) -> CommandOutcome:
        """Report the end of a job to the daemon, also while commands are being ended."""
        outcome = CommandOutcome(
            Ended.LOST, code, remark="the daemon did not take the end of it in time"
        )
        with trio.CancelScope(shield=True) as telling:
            self._telling.add(telling)
            try:
                outcome = await command.tell_end(code)
            except CannotConnectError as error:
                self._lost = error
                outcome = _lost_outcome(error, code)
            except RefusedError as error:
                outcome = _lost_outcome(error, code)
                if job.loss is None:
                    # The next one would fail like this too: all work would be in vain.
                    self._failure = self._failure or error
                    self._take_no_more()
                    await job.abandon()
            finally:
                self._telling.discard(telling)
        return outcome

    # --- being stopped --------------------------------------------------------------------------

    async def _watch(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        """Act on signals: the first one waits for running commands, the second one ends them.

        A terminal that is closed may send SIGHUP twice, by its shell and by the kernel, without
        intent: the second one ends nothing.
        """
        async for number in signals:
            if number == signal.SIGCHLD:
                self._children.reap_orphans()
            elif number == signal.SIGCONT:
                self._resume(nursery)
            elif number in JOB_CONTROL:
                self._suspend(number, nursery)
            elif not self._stopped:
                self._stopped = True
                self._take_no_more()
                running = len(self._commands)
                self._reports.note(f"stopping: {running} running; once more to end them")
            elif number != signal.SIGHUP:
                self._end_now()

    def _suspend(self, number: int, nursery: trio.Nursery) -> None:
        """Stop the commands and this process, as the signal says, until that is continued.

        Nobody renews leases meanwhile, so no command may work on. In an orphaned process group the
        signal stops nothing, and the commands go on at once.
        """
        began_s = trio.current_time()
        for command in self._commands:
            command.suspend()
        stop_self(number)
        for command in self._commands:
            command.extend_timeout(trio.current_time() - began_s)
        self._resume(nursery)

    def _resume(self, nursery: trio.Nursery) -> None:
        """Check the leases, and continue the commands that were stopped: SIGSTOP stops none."""
        for command in self._commands:
            nursery.start_soon(command.resume)

    def _take_no_more(self) -> None:
        self._ending.set()
        if self._jobs is None:
            self._work_scope.cancel()
        else:
            self._jobs.stop()

    def _end_now(self) -> None:
        self._work_scope.cancel()
        for telling in self._telling:
            telling.deadline = min(telling.deadline, trio.current_time() + _LAST_WORDS_S)


def _lost_outcome(error: FastjournalError, code: int | None) -> CommandOutcome:
    """Return the outcome of a job whose end the daemon has not taken."""
    if isinstance(error, RefusedError):
        return CommandOutcome(Ended.LOST, code, remark=f"{error.code}: {error.message}")
    return CommandOutcome(Ended.LOST, remark=error.message)


def _signals() -> list[signal.Signals]:
    """Return the signals of a worker: those that would end or stop it. ``nohup`` ignores one."""
    asked = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *JOB_CONTROL)
    heard = [number for number in asked if signal.getsignal(number) != signal.SIG_IGN]
    return [signal.SIGTERM, signal.SIGCONT, signal.SIGCHLD, *heard]
