"""Command of one job: run it with the entry as input, and end the job by its exit code."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping

import msgspec
import trio

from fastjournal.client import Job
from fastjournal.times import format_duration
from fj_cli.child import (
    NOT_FOUND,
    NOT_STARTED,
    environment_of,
    input_of,
    is_transient,
    open_child,
    run_child,
)
from fj_cli.reports import CommandOutcome, Ended

_START_AGAIN_S = 1.0
"""Pause before a command is started again where the system lacks something."""

_START_TRIES = 60
"""So often; then somebody else may have the entry."""

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
        daemon: Variables by which the command reaches the daemon; see ``environment_of``.
    """

    def __init__(
        self,
        job: Job,
        plan: CommandPlan,
        *,
        note: Callable[[str], None],
        stop: trio.Event,
        daemon: Mapping[str, str],
    ) -> None:
        self._job = job
        self._plan = plan
        self._note = note
        self._stop = stop
        self._daemon = daemon
        self._remark = ""
        self._error = ""
        """Why the attempt failed, if the command did not end by itself."""

    async def run(self) -> int | None:
        """Return the exit code of the command; None: it was not started, and the entry goes back.

        A command that is ended by its timeout has the code of the signal that it was sent first.

        A shortage of the system's resources is no fault of the entry, and no failed attempt.
        """
        for _ in range(_START_TRIES):
            try:
                process = await open_child(self._plan.argv, self._environment())
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
                return await self._run_child(process)
            with trio.move_on_after(_START_AGAIN_S):
                await self._stop.wait()
            if self._stop.is_set():
                break
        return None

    async def _run_child(self, process: trio.Process) -> int:
        """Return the exit code of a command that was started; end it when its time is over."""
        plan = self._plan
        timeout_s = float("inf") if plan.timeout_us is None else plan.timeout_us / 1e6
        with trio.move_on_after(timeout_s):
            data = input_of(self._job.entry)
            return await run_child(process, data, kill_after_s=plan.kill_after_us / 1e6)
        self._remark = self._error = f"timeout after {format_duration(plan.timeout_us or 0)}"
        return -signal.SIGTERM

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
        failed = await job.fail(self._error or _failure(code))
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
    """Return the error of a command that ended by itself, or by a signal of somebody else."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
