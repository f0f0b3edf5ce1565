"""Command of one job: run it with the entry as input, and end the job by its exit code."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping

import msgspec
import trio

from fastjournal.client import Job
from fastjournal.time_texts import format_duration
from fj_cli.child import (
    NOT_FOUND,
    NOT_STARTED,
    Child,
    Children,
    environment_of,
    input_of,
    is_transient,
)
from fj_cli.reports import CommandOutcome, Ended

_START_AGAIN_S = 1.0
"""Pause before a command is started again where the system lacks something."""

_START_TRIES = 60
"""Most tries; then another worker may have the entry."""

_BURIAL_UNKNOWN = "the daemon did not say whether it has buried the entry"


class CommandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Command of a worker, and how long it may take. Times are microseconds."""

    argv: list[str]
    timeout_us: int | None = None
    """When it is ended, which is a failed attempt; None: never."""
    kill_after_us: int = 10_000_000
    """From SIGTERM to SIGKILL, whenever a command is ended."""


class JobCommand:
    """A command for one leased entry, whose lease the library renews meanwhile.

    Args:
        job: With its metadata.
        plan: The command.
        note: Writes a line for people.
        stop: Once set, a command that has not begun does not begin.
        children: Starts the command.
        daemon: Variables by which the command reaches the daemon; see ``environment_of``.
    """

    def __init__(
        self,
        job: Job,
        plan: CommandPlan,
        *,
        note: Callable[[str], None],
        stop: trio.Event,
        children: Children,
        daemon: Mapping[str, str],
    ) -> None:
        self._job = job
        self._plan = plan
        self._note = note
        self._stop = stop
        self._children = children
        self._daemon = daemon
        self._remark = ""
        self._error = ""
        """Error of the attempt, if the command was ended."""
        self._child: Child | None = None
        self._suspensions = 0
        self._is_suspended = False
        """It is stopped, with all that it started."""
        self._timeout = trio.CancelScope()

    async def run(self) -> int | None:
        """Return the exit code of the command; None: it was not started, and the entry goes back.

        A command that is ended by its timeout has the code of the signal that it was sent first.

        A shortage of the system's resources is no fault of the entry, and no failed attempt.
        """
        for _ in range(_START_TRIES):
            try:
                self._child = await self._children.start(self._plan.argv, self._environment())
            except OSError as error:
                remark = f"cannot run {self._plan.argv[0]}: {error.strerror}"
                if not is_transient(error):
                    self._remark = self._error = remark
                    return NOT_FOUND if error.errno == errno.ENOENT else NOT_STARTED
                if not self._remark:
                    self._note(f"{remark}; trying again")
                self._remark = remark
            else:
                self._remark = ""
                return await self._run_child(self._child)
            with trio.move_on_after(_START_AGAIN_S):
                await self._stop.wait()
            if self._stop.is_set():
                break
        return None

    async def _run_child(self, child: Child) -> int:
        """Return the exit code of a command that was started; end it when its time is over."""
        plan = self._plan
        if self._is_suspended:
            child.suspend()
        if plan.timeout_us is not None:
            self._timeout.deadline = trio.current_time() + plan.timeout_us / 1e6
        with self._timeout:
            data = input_of(self._job.entry)
            return await child.run(data, kill_after_s=plan.kill_after_us / 1e6)
        self._remark = self._error = f"timeout after {format_duration(plan.timeout_us or 0)}"
        return -signal.SIGTERM

    def suspend(self) -> None:
        """Stop the command, as the worker is about to be."""
        self._suspensions += 1
        self._is_suspended = True
        if self._child is not None:
            self._child.suspend()

    def extend_timeout(self, seconds: float) -> None:
        """Have the timeout come later: the command was stopped meanwhile."""
        self._timeout.deadline += seconds

    async def resume(self) -> None:
        """Check the lease, and continue the command if it lasts; otherwise end it."""
        suspensions = self._suspensions
        if await self._job.confirm_lease() and suspensions == self._suspensions:
            self._is_suspended = False
            if self._child is not None:
                self._child.resume()

    async def tell_end(self, code: int | None) -> CommandOutcome:
        """End the job: complete it on exit code 0, give it back, or count a failed attempt.

        Raises:
            CannotConnectError: The daemon stayed away, so that it does not know the end.
            RefusedError: It refused the end; where ``job.loss`` is None, for every other job too.
        """
        job = self._job
        if code is None:
            await job.abandon()
            return CommandOutcome(Ended.STOPPED, remark=self._remark)
        if code == 0:
            await job.complete()
            return CommandOutcome(Ended.DONE, 0)
        line = "" if self._child is None else self._child.last_line
        failed = await job.fail(": ".join(filter(None, (self._error or _failure(code), line))))
        if failed.buried:
            return CommandOutcome(Ended.BURIED, code, remark=failed.reason)
        remark = self._remark
        if failed.buried is None:
            remark = "; ".join(filter(None, (remark, _BURIAL_UNKNOWN)))
        return CommandOutcome(Ended.FAILED, code, failed.delay_us, remark=remark)

    def _environment(self) -> dict[str, str]:
        job = self._job
        return environment_of(
            job.entry, attempts=job.attempts, daemon=self._daemon, base=os.environ
        )


def _failure(code: int) -> str:
    """Return the error of a command that ended by itself, or by a signal of another program."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
