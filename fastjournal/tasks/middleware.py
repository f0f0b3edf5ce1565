"""Middleware and hooks: what runs before, after and around the runs of tasks.

Of a function that runs in a thread the synchronous context managers are entered in that thread,
inside the asynchronous ones: so what they set is seen there, connections of a database too.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from fastjournal.errors import BadRequestError
from fastjournal.tasks.messages import TaskMessage

if TYPE_CHECKING:
    from fastjournal.client import Job, SyncJob


class TaskRun(msgspec.Struct, eq=False):
    """One run of a task."""

    message: TaskMessage
    job: Job | SyncJob
    """The leased job, for instance for its key. Do not end it: its run does."""
    task: Any
    """The ``Task``."""
    attempt: int
    """1 for the first run; one more for each that has failed, or was lost with its worker."""

    @property
    def is_last(self) -> bool:
        """Whether the job is buried if this run fails, by the ``retries`` of the task."""
        bound: int = self.task.attempts_max
        return 0 < bound <= self.attempt

    def managers(self) -> list[Around]:
        """Return the context managers of the middleware for it, in order."""
        return [around(self) for around in self.task.app.chain["around"]]


SyncAround: TypeAlias = contextlib.AbstractContextManager[object, bool | None]
Around: TypeAlias = SyncAround | contextlib.AbstractAsyncContextManager[object, bool | None]


class Middleware:
    """Base class of middleware, whose methods may be left out."""

    def on_enqueue(self, message: TaskMessage) -> None:
        """Take part in an enqueue: add to the headers of the message.

        What it raises reaches the producer, and nothing is enqueued.
        """

    def around(self, run: TaskRun) -> Around:
        """Return a context manager, async or not, around a run.

        Those of several are entered in their order and left in the reverse one. It sees what the
        function raises; what it raises itself is a failure of the run.
        """
        return contextlib.nullcontext()

    def on_stop(self) -> None:
        """Do what is to be done at the end of a worker, in its main thread."""


_run: ContextVar[TaskRun | None] = ContextVar("fastjournal_task_run", default=None)


def current_run() -> TaskRun:
    """Return the run in which this function is called, by a task.

    Raises:
        BadRequestError: No task runs here.
    """
    run = _run.get()
    if run is None:
        raise BadRequestError("no task runs here", hint="call it in the function of a task")
    return run


set_current_run = _run.set

Moment = Literal["before", "after", "failure"]


def hook(moment: Moment, function: Callable[..., Any]) -> Callable[[TaskRun], Around]:
    """Return the ``around`` of a function, async or not, that is called at one moment of a run.

    Args:
        moment: When.
        function: Called with the run, at a failure also with the exception.
    """

    async def await_at(now: Moment, *arguments: object) -> None:
        if moment == now:
            await function(*arguments)

    def call_at(now: Moment, *arguments: object) -> None:
        if moment == now:
            function(*arguments)

    @contextlib.asynccontextmanager
    async def around_async(run: TaskRun) -> AsyncIterator[None]:
        await await_at("before", run)
        try:
            yield
        except Exception as error:
            await await_at("failure", run, error)
            raise
        await await_at("after", run)

    @contextlib.contextmanager
    def around(run: TaskRun) -> Iterator[None]:
        call_at("before", run)
        try:
            yield
        except Exception as error:
            call_at("failure", run, error)
            raise
        call_at("after", run)

    return around_async if iscoroutinefunction(function) else around
