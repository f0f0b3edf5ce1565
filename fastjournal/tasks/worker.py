"""Worker process: leases the jobs of an application, and runs them side by side in one event loop.

It is stopped by signals, by its supervisor, or by a file that changes (``--reload``); the service
manager hears from it.

The supervisor of several processes (``--processes``, for tasks that hold the processor) has a
socket to each child, which is the child's standard input. At its end, however the supervisor ends,
the child stops as at SIGTERM. In the other direction the child sends a byte where a service would
notify systemd: a child that is not heard of for the time of the watchdog is killed. It has a
session of its own, so that Ctrl-C in a terminal reaches it by the supervisor only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import sysconfig
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, Final

import anyio
import anyio.abc
import msgspec

from fastjournal.client import WAIT_WITHOUT_END, Client, Job, JobLoop, Reconnect
from fastjournal.errors import BadRequestError
from fastjournal.keys import journal_key_of
from fastjournal.limits import JOB_LEASE_S
from fastjournal.loglines import LogEvent, LogFormat, LogLevel
from fastjournal.numeric import exponential_backoff
from fastjournal.program import STOP_SIGNALS, notify, raise_noted, watchdog_seconds
from fastjournal.tasks import execution
from fastjournal.tasks.app import Tasks
from fastjournal.tasks.periodic import TickSetter

_log = logging.getLogger("fastjournal.tasks")

_RECONNECT = Reconnect(patience=365 * 86_400, at_start=True)
"""A worker waits for a daemon that is away for as long as it takes."""

LOOK_S = 0.5
"""Seconds between two looks at the files of the modules, with --reload."""

EXIT_USAGE: Final = 2
_PAUSE_S: Final = (0.5, 30.0)
"""Pause before a child that died is started again; it doubles up to the second."""
_LIVED_S: Final = 60.0
"""After a life that long the pauses begin anew."""

_OF_SERVICE: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID")
"""Variables by which children would speak to the service manager."""

Number = Annotated[int, msgspec.Meta(ge=1, lt=65_536)]


class WorkerOptions(msgspec.Struct, kw_only=True):
    """Options of the program, by their names. Times are seconds."""

    app: str = ""
    queues: str = ""
    """Names with commas between them; empty: those of the tasks."""
    concurrency: Number = 8
    processes: Number = 1
    server: str | None = None
    grace: Annotated[float, msgspec.Meta(ge=0, lt=366 * 86_400)] = 30
    lease: Annotated[float, msgspec.Meta(ge=1, lt=366 * 86_400)] = JOB_LEASE_S
    burst: bool = False
    reload: bool = False
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    supervised: bool = False
    """It is a child of a supervisor."""


@contextlib.asynccontextmanager
async def served(
    early_stops: list[int],
    stop: Callable[[str], Awaitable[None]],
    all_ready: Iterable[anyio.Event],
    notify: Callable[..., object] = notify,
) -> AsyncIterator[anyio.abc.TaskGroup]:
    """Within the block, hear stop signals and notify the service manager.

    Args:
        early_stops: Signals that came before.
        stop: Called with the name of each signal.
        all_ready: It is ready when all of these are set.
        notify: Sends a state.
    """

    async def tell_manager() -> None:
        seconds = watchdog_seconds()
        for ready in all_ready:
            await ready.wait()
        notify("READY=1")
        while seconds is not None:
            notify("WATCHDOG=1", wait=False)
            await anyio.sleep(seconds / 3)

    async def watch_signals() -> None:
        async for number in signals:
            await stop(number.name)

    with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
        raise_noted(early_stops)
        async with anyio.create_task_group() as group:
            group.start_soon(watch_signals)
            group.start_soon(tell_manager)
            yield group
            group.cancel_scope.cancel()


class Worker:
    """Works jobs off until it is stopped.

    Args:
        app: The tasks.
        options: Of the program.

    Raises:
        BadRequestError: There is no queue to work on.
    """

    def __init__(self, app: Tasks, options: WorkerOptions) -> None:
        self._app = app
        self._options = options
        self._wait_changed = watch_files()
        self._queues = [name.strip() for name in options.queues.split(",") if name] or app.queues
        if not self._queues:
            raise BadRequestError(
                "there is no queue to work on: the application has no tasks",
                hint="import the modules with its tasks where the application is made",
            )
        for name in self._queues:
            journal_key_of(name, "", 0)  # checks it
        if unknown := [name for name in self._queues if name not in app.queues]:
            # no error: another application may share them, and its tasks are then dead letters here
            names, own = ",".join(unknown), ",".join(app.queues)
            _log.warning(LogEvent("no-task-of-queue", queues=names, app_queues=own))
        self._threads = execution.ThreadRunner(options.concurrency)
        self._ready = anyio.Event()
        self._jobs: JobLoop | None = None
        """None before it is connected."""
        self._stops = 0
        self.is_changed = False
        """Ended because a file has changed."""
        self.threads_left = self._threads.running
        """Calls in threads that still run at the end."""

    async def run(self, early_stops: list[int]) -> None:
        """Connect, and work jobs off; ``early_stops`` are signals that came before.

        Raises:
            CannotConnectError: The daemon stays away, or is no daemon.
            RefusedError: It delivers no work, for instance ``forbidden``.
            ExceptionGroup: With one of these, or the exception of a hook.
        """
        options, self._scope = self._options, anyio.CancelScope()
        tell = tell_supervisor if options.supervised else notify
        async with served(early_stops, self.stop, [self._ready], tell) as self._group:
            if options.supervised:
                os.set_blocking(0, False)
                self._group.start_soon(self._watch_supervisor)
            if options.reload:
                self._group.start_soon(self._watch_files)
            plan = Reconnect() if options.burst else _RECONNECT
            name = f"fj-worker {options.app} on {socket.gethostname()}, process {os.getpid()}"
            client = Client(self._app.server, name=name, reconnect=plan)
            _log.info(LogEvent("connecting", server=str(client.servers)))
            with self._scope:
                async with client:
                    await self.work(client)

    async def work(self, client: Client) -> None:
        """Work jobs off with this client."""
        options, app = self._options, self._app
        bounds = {task.attempts_max for task in app.by_name.values()}
        self._jobs = client.jobs(
            self._queues,
            count=options.concurrency,
            lease=options.lease,
            wait=None if options.burst else WAIT_WITHOUT_END,
            attempts_max=0 if 0 in bounds else max(bounds, default=0),
        )
        self._jobs.on_accepted = self._tell_ready
        with app.using(client):
            async with anyio.create_task_group() as group:
                if app.periodics:
                    group.start_soon(TickSetter(app.periodics).run, client)
                await self._jobs.run(self._run_job)
                group.cancel_scope.cancel()

    def _tell_ready(self) -> None:
        """Say that the daemon gives work to this worker."""
        _log.info(LogEvent("ready", queues=",".join(self._queues), pid=os.getpid()))
        self._ready.set()

    async def _run_job(self, job: Job) -> None:
        """Run one job, and report a failure; the loop completes it else."""
        run = execution.begin_run(self._app.by_name, job)
        if isinstance(run, str):
            await job.bury(run)
            return
        try:
            await execution.perform(run, run.managers(), self._threads)
        except Exception as error:  # foreign code: the run has failed
            if job.loss is not None:
                raise
            await job.fail(**execution.failure_of_run(run, error))

    # --- stops ----------------------------------------------------------------------------------

    async def stop(self, why: str) -> None:
        """Stop: the first time when the runs have ended, the second time at once.

        Then the jobs of the runs are released, and do not count as failed.
        """
        self._stops += 1
        if self._stops == 1:
            notify("STOPPING=1")
            _log.info(LogEvent("stopping", reason=why))
            if self._jobs is None:
                self._scope.cancel()
            else:
                self._jobs.stop()
            self._group.start_soon(self._end_grace)
        elif self._stops == 2:
            self._scope.cancel()
        else:
            os._exit(1)

    async def _end_grace(self) -> None:
        await anyio.sleep(self._options.grace)
        _log.warning(LogEvent("grace-is-over", seconds=self._options.grace))
        self._scope.cancel()

    async def _watch_supervisor(self) -> None:
        """Stop when the supervisor closes standard input, or has died."""
        await anyio.wait_readable(0)
        await self.stop("supervisor")

    async def _watch_files(self) -> None:
        changed = await self._wait_changed()
        self.is_changed = True
        await self.stop(f"changed: {changed}")


def watch_files(failed: BaseException | None = None) -> Callable[[], Coroutine[Any, Any, str]]:
    """Return what waits until a file of an imported module differs from now; it returns its name.

    Those of installed packages do not count. A file that is not there is about to be written
    again, by an editor or a checkout.

    Args:
        failed: Exception of an import, whose files count too.
    """
    paths = sysconfig.get_paths()
    installed = tuple(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    modules = list(sys.modules.values())
    found: set[str | None] = {getattr(module, "__file__", None) for module in modules}
    if failed is not None:
        found |= {each.filename for each in traceback.extract_tb(failed.__traceback__)}
        found.add(getattr(failed, "filename", None))
    times = {name: _changed_at(name) for name in found if name and not name.startswith(installed)}

    async def wait_changed() -> str:
        while True:
            for name, at in times.items():
                if _changed_at(name) not in (at, 0):
                    return name
            await anyio.sleep(LOOK_S)

    return wait_changed


def _changed_at(name: str) -> int:
    """Return when a file was changed; 0: it is not there."""
    try:
        return os.stat(name).st_mtime_ns
    except OSError:
        return 0


def tell_supervisor(_state: str, *, wait: bool = True) -> None:
    """Send a byte to the supervisor; one that is away, or does not read, gets none."""
    with contextlib.suppress(OSError):
        os.write(0, b".")


class Supervisor:
    """Runs children until it is stopped; those that die are started again, after a pause.

    Args:
        command: Starts a child.
        number: How many.
    """

    def __init__(self, command: Sequence[str], number: int) -> None:
        self._command = command
        self._ready = [anyio.Event() for _ in range(number)]
        self._is_stopping = anyio.Event()
        self._is_urgent = anyio.Event()
        self._status = 0

    async def run(self, early_stops: list[int]) -> int:
        """Run; return the exit code."""
        async with served(early_stops, self.stop, self._ready), anyio.create_task_group() as group:
            for ready in self._ready:
                group.start_soon(self._keep, ready)
        return self._status

    async def _keep(self, ready: anyio.Event) -> None:
        """Run a child again and again."""
        deaths = 0
        while not self._is_stopping.is_set():
            began_s = anyio.current_time()
            status = await self._live(ready)
            if status == EXIT_USAGE:  # another start would fail as this one
                self._status = status
                self._is_stopping.set()
            if self._is_stopping.is_set() or status == 0:
                return
            deaths = 0 if anyio.current_time() - began_s > _LIVED_S else deaths
            pause_s = exponential_backoff(*_PAUSE_S, deaths)
            deaths += 1
            _log.error(LogEvent("process-died", status=status, again_in_seconds=pause_s))
            with anyio.move_on_after(pause_s):
                await self._is_stopping.wait()

    async def _live(self, ready: anyio.Event) -> int:
        """Start a child; return the exit code at its end."""
        environment = {name: text for name, text in os.environ.items() if name not in _OF_SERVICE}
        ours, of_child = socket.socketpair()
        with ours, of_child:
            async with await anyio.open_process(
                self._command,
                stdin=of_child.fileno(),
                stdout=None,
                stderr=None,
                start_new_session=True,
                env=environment,
            ) as process:
                of_child.close()
                async with anyio.create_task_group() as group:
                    group.start_soon(self._listen, ours, process, ready)
                    group.start_soon(self._end, ours, process)
                    status = await process.wait()
                    group.cancel_scope.cancel()
        return status

    async def _listen(
        self, ours: socket.socket, process: anyio.abc.Process, ready: anyio.Event
    ) -> None:
        """Kill a child that was heard of, and then is not for the time of the watchdog."""
        seconds = None
        while True:
            with anyio.move_on_after(seconds) as scope:
                await anyio.wait_readable(ours)
            if scope.cancelled_caught:
                _log.error(LogEvent("process-hangs", pid=process.pid, seconds=seconds))
                process.kill()
                return
            if not ours.recv(4096):
                return
            ready.set()
            seconds = watchdog_seconds()

    async def _end(self, ours: socket.socket, process: anyio.abc.Process) -> None:
        """Stop a child when this is stopped, and once more at the second signal."""
        with contextlib.suppress(OSError):  # it has died just now
            await self._is_stopping.wait()
            ours.shutdown(socket.SHUT_WR)
            await self._is_urgent.wait()
            process.terminate()

    async def stop(self, _why: str) -> None:
        """Stop all children; a signal that is not the first stops them at once."""
        if self._is_stopping.is_set():
            self._is_urgent.set()
        self._is_stopping.set()
        notify("STOPPING=1")
