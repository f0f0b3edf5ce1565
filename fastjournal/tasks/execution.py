"""One run of a task: from the leased job to the call, and what follows from a failure.

An async function is awaited in the event loop. A sync function runs in a thread, so that it holds
up nothing else. No thread can be ended from outside: at its timeout, or where its job is no longer
its own, an exception is raised in it between two steps of Python (``Interrupted``), which a call
into C does not notice before it returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import os
import sysconfig
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, suppress
from functools import partial
from traceback import FrameSummary, StackSummary
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

import fastjournal
from fastjournal.client.core.leased_job import report_failure
from fastjournal.errors import BadRequestError
from fastjournal.loglines import LogEvent
from fastjournal.tasks.messages import TaskMessage, decode_message
from fastjournal.tasks.middleware import Around, SyncAround, TaskRun, set_current_run
from fastjournal.times import duration_us

if TYPE_CHECKING:
    from fastjournal.client import Job, SyncClient, SyncJob

_RUNS_MAX: Final = 10_000
"""Of one ``run_pending``."""

_log = logging.getLogger("fastjournal.tasks")


class Interrupted(BaseException):
    """Raised in the thread of a function that is to end."""


def begin_run(tasks: Mapping[str, Any], job: Job | SyncJob) -> TaskRun | str:
    """Return the run that a job is, or why it is none of these tasks, and is to be buried."""
    try:
        envelope = decode_message(job.value, job.value_type)
        task = tasks.get(envelope.task)
        if task is None:
            raise BadRequestError(
                f"there is no task {envelope.task!r} in this worker",
                code="unknown-task",
                hint=f"it has {', '.join(tasks)}: kick the job when a worker has its task, or name"
                " the queues of each worker",
            )
        arguments = task.arguments.decode(envelope.args)
        message = TaskMessage(envelope.task, arguments, envelope.headers, task.queue)
        run = TaskRun(message, job, task, job.attempts + 1)
        if 0 < task.attempts_max <= job.attempts:
            raise BadRequestError(
                f"{job.attempts} runs failed, or were lost with their worker, and the task has"
                f" retries={task.attempts_max - 1}",
                code="no-more-retries",
            )
    except BadRequestError as error:
        reason = f"{error.code}: {error}"
        _log_buried(job, reason)
        return reason
    return run


def _log_buried(job: Job | SyncJob, reason: str) -> None:
    _log.error(LogEvent("job-buried", key=job.key, reason=reason.partition("\n")[0]))


def failure_of_run(run: TaskRun, error: Exception) -> dict[str, Any]:
    """Return the arguments of ``job.fail`` for a run that raised this; it is logged."""
    trace, code = error.__traceback__, getattr(run.task.function, "__code__", None)
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next  # the frames of the worker say nothing
    error = error.with_traceback(trace or error.__traceback__)
    reason = report_failure(run.job, error, partial(_log_failure, run)).reason
    try:
        delay = run.task.retry_delay(run.attempt)
        if delay is not None:
            duration_us("retry_delay", delay)
    except Exception:  # noqa: BLE001 - foreign code: whatever it raises, the job goes back
        _log.exception("retry_delay of %s failed; the delay is the daemon's", run.message.task)
        delay = None
    if run.is_last:
        _log_buried(run.job, reason)
    return {"reason": reason, "delay": delay, "attempts_max": run.task.attempts_max}


_TEXT_MAX = 500
"""Characters of an error in a line of the log; the reason of the job has more."""
_PLACES_MAX = 3
_FOREIGN = "site-packages", "dist-packages"
"""Directories of other libraries, also where they are below that of Python itself."""


def _log_failure(run: TaskRun, text: str, stack: StackSummary) -> None:
    """Log a run that failed in one line: where, without frames of Python and of fastjournal."""
    python, own = sysconfig.get_path("stdlib"), os.path.dirname(fastjournal.__file__) + os.sep

    def is_shown(frame: FrameSummary) -> bool:
        name = os.path.abspath(frame.filename)
        is_foreign = any(part in name for part in _FOREIGN)
        return not name.startswith(own) and (is_foreign or not name.startswith(python))

    shown = list(filter(is_shown, stack)) or stack[-1:]
    places = [f"{os.path.basename(at.filename)}:{at.lineno} {at.name}"[-100:] for at in shown]
    event = LogEvent(
        "run-failed",
        task=run.message.task,
        key=run.job.key,
        attempt=run.attempt,
        error=text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}...",
        at=" > ".join(places[-_PLACES_MAX:]),
    )
    _log.warning(event)


async def perform(
    run: TaskRun, managers: Sequence[Around], threads: ThreadRunner | None = None
) -> None:
    """Call the function of a run within the middleware; raise what it raises.

    Args:
        run: It.
        managers: Context managers of the middleware, in order.
        threads: Calls a sync function; without it it is called here, and has no timeout.
    """
    set_current_run(run)
    task = run.task
    function, timeout_s = partial(task.function, **run.message.args), task.timeout_s
    try:
        async with AsyncExitStack() as stack:
            for manager in managers:
                if not isinstance(manager, AbstractContextManager):
                    await stack.enter_async_context(manager)
                elif task.is_async:
                    stack.enter_context(manager)
            if not task.is_async:
                inner = [each for each in managers if isinstance(each, AbstractContextManager)]
                call = ThreadCall(function, inner)
                await threads.run(call, timeout_s) if threads else call()
            elif timeout_s is None:
                await function()
            else:
                with anyio.move_on_after(timeout_s) as scope:
                    await function()
                if scope.cancel_called:  # also of a function that goes on, and returns something
                    raise _timeout(timeout_s)
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # foreign code, which is not to end the other runs
        if isinstance(error, asyncio.CancelledError):
            asking = asyncio.current_task()
            if asking is None or asking.cancelling():
                raise
            why = "the task cancelled itself"
        else:
            code = f"({error.code!r})" if isinstance(error, SystemExit) else ""
            why = f"the task ended with {type(error).__name__}{code}"
        raise RuntimeError(why).with_traceback(error.__traceback__) from error


class ThreadCall:
    """Call of a function, within context managers, that another thread can interrupt."""

    def __init__(self, function: Callable[[], object], managers: Iterable[SyncAround] = ()) -> None:
        self._function = function
        self._managers = managers
        self._lock = threading.Lock()
        self._thread: int | None = None
        """The thread in which it runs now."""
        self._is_over = False
        self._why: Exception | None = None
        """Why it was interrupted, before it was over: so it has failed, whatever it returns."""

    def __call__(self) -> None:
        """Call it, in this thread.

        Raises:
            Exception: What it raises, or why it was interrupted.
        """
        with ExitStack() as stack:
            for manager in self._managers:
                stack.enter_context(manager)
            self._call()

    def _call(self) -> None:
        try:
            try:
                with self._lock:
                    self._thread = threading.get_ident()
                if self._why is None:
                    self._function()
            finally:
                with self._lock:
                    self._thread, self._is_over = None, True
                if self._why is not None:  # raised too late, it must not meet other code
                    _take_pending()
            if self._why is not None:
                raise self._why
        except Interrupted as error:
            if self._why is None:
                raise
            raise self._why.with_traceback(error.__traceback__) from None  # where it was

    def interrupt(self, why: Exception) -> None:
        """Raise an exception in the function, once, unless it is over."""
        with self._lock:
            if self._why is not None or self._is_over:
                return
            self._why = why
            if self._thread is not None:
                thread = ctypes.c_ulong(self._thread)
                exception = ctypes.py_object(Interrupted)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, exception)


def _take_pending() -> None:
    """Have an exception raised that was set for this thread: Python looks for it at each call.

    To take it back by a call of C is no way: CPython 3.11 then looks again at every step, for good,
    and does not go on under a tracer.
    """


def _timeout(timeout_s: float) -> TimeoutError:
    return TimeoutError(f"the timeout of {timeout_s:g} s is over")


class ThreadRunner:
    """Calls sync functions in threads of an asyncio program, so many at once.

    Args:
        threads: Number of them.
    """

    def __init__(self, threads: int) -> None:
        self._limiter = anyio.CapacityLimiter(threads)
        self.running: set[ThreadCall] = set()
        """Those that run, also of jobs that have ended meanwhile."""

    async def run(self, call: ThreadCall, timeout_s: float | None) -> None:
        """Call it in a thread; interrupt it at the timeout, and where this is cancelled.

        At the timeout the end of the function is waited for, so that no two runs of a job meet.
        """
        loop = asyncio.get_running_loop()
        timer = timeout_s and loop.call_later(timeout_s, call.interrupt, _timeout(timeout_s))
        try:
            await anyio.to_thread.run_sync(
                self._counted, call, abandon_on_cancel=True, limiter=self._limiter
            )
        except asyncio.CancelledError:
            call.interrupt(InterruptedError("the job is no longer this worker's"))
            raise
        finally:
            if timer:
                timer.cancel()

    def _counted(self, call: ThreadCall) -> None:
        self.running.add(call)
        try:
            call()
        finally:
            self.running.discard(call)


# --- run_pending --------------------------------------------------------------------------------


def run_pending(app: Any, client: SyncClient, *, raise_errors: bool, periodic: bool) -> int:
    """Run all that is due; see ``Tasks.run_pending``."""
    if periodic and app.periodics:
        from fastjournal.tasks.periodic import set_due_ticks  # noqa: PLC0415 - few need it

        set_due_ticks(app.periodics, client)
    number = 0
    for job in client.jobs(app.queues, wait=None) if app.queues else ():
        run = begin_run(app.by_name, job)
        if isinstance(run, str):
            job.bury(run)
            continue
        try:
            contextvars.copy_context().run(_perform_here, run)
        except Exception as error:
            job.fail(**failure_of_run(run, error))
            if raise_errors:
                raise
        else:
            job.complete()
        number += 1
        if number > _RUNS_MAX:
            raise BadRequestError(
                f"over {_RUNS_MAX} runs, and still one is due",
                hint="does a task enqueue itself? give it a delay",
            )
    return number


def _perform_here(run: TaskRun) -> None:
    """Perform a run: in this thread where nothing of it is async, else in an event loop."""
    managers = run.managers()
    work = perform(run, managers)
    if not run.task.is_async and all(isinstance(m, AbstractContextManager) for m in managers):
        with suppress(StopIteration):  # it never waits
            work.send(None)
        return

    main = partial(anyio.run, lambda: work)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        main()
        return
    with ThreadPoolExecutor(1) as threads:  # the test itself is async: its loop cannot run this
        threads.submit(contextvars.copy_context().run, main).result()
