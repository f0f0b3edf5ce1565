"""Tasks of an application: decoration of functions, enqueue, and ``run_pending`` for tests."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)
from weakref import WeakValueDictionary

import msgspec

from fastjournal.client import Call, SyncClient, Written, calls
from fastjournal.client.core.client_credentials import check_found
from fastjournal.keys import journal_key_of
from fastjournal.limits import FAILED_ATTEMPTS_MAX, PRIORITY_DEFAULT
from fastjournal.numeric import check_integer
from fastjournal.printable import did_you_mean
from fastjournal.tasks.messages import OPTIONS, Arguments, TaskMessage, bad_task, encode_message
from fastjournal.tasks.middleware import hook
from fastjournal.times import Duration, Instant, duration_s, duration_us

if TYPE_CHECKING:
    from fastjournal.client import Client
    from fastjournal.spool import Spool
    from fastjournal.tasks.periodic import Periodic

    Producer = SyncClient | Client | Spool

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., object])

Unique = bool | Sequence[str] | Callable[..., str]
"""True: all arguments; names of arguments; or a function of the arguments that returns a text."""

RetryDelay = Duration | Sequence[Duration] | Callable[[int], Duration] | None
"""Delay after a failed run: always this one; one for each, the last for all further ones; or a
function of the number of the failed run, from 1 on. None: the daemon's back-off."""

_RETRIES_MAX: Final = FAILED_ATTEMPTS_MAX - 1

_UNIQUE_BYTES_MAX: Final = 200
"""A longer value of ``unique`` is replaced by its hash."""

_NAME_CHARACTERS: Final = 200
"""Of the name of a task, in the keys of its jobs."""

_OF_OTHERS: Final = ("delay", "apply_async", "send", "send_with_options", "defer", "schedule")
"""Methods of tasks of other libraries that enqueue."""

_json = msgspec.json.Encoder(order="deterministic")
_apps: WeakValueDictionary[tuple[str | None, str], Task[..., Any]] = WeakValueDictionary()
"""Tasks of functions of modules, by the server of their application and their name."""


class Enqueue(Protocol[P, R_co]):
    """Function that takes the arguments of a task, and options of the enqueue by name.

    Type checkers check the arguments of a call without options; all are checked when it runs.
    """

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Any, delay: Duration, **kwargs: Any) -> R_co: ...
    @overload
    def __call__(self, *args: Any, not_before: Instant, **kwargs: Any) -> R_co: ...
    @overload
    def __call__(self, *args: Any, expires: Instant, **kwargs: Any) -> R_co: ...
    @overload
    def __call__(self, *args: Any, unique: str, **kwargs: Any) -> R_co: ...
    @overload
    def __call__(self, *args: Any, uri: str, **kwargs: Any) -> R_co: ...
    @overload
    def __call__(self, *args: Any, headers: Mapping[str, str], **kwargs: Any) -> R_co: ...


class TaskOptions(TypedDict, total=False):
    """Options of ``Tasks.task``, which describes them."""

    name: str | None
    queue: str | None
    unique: Unique
    retries: int | None
    retry_delay: RetryDelay
    timeout: Duration | None
    priority: int


class Task(Generic[P, R]):
    """A function that workers call: ``task.enqueue(...)``; ``task(...)`` calls it here and now."""

    enqueue: Enqueue[P, Written]
    """Enqueue a run with these arguments; return as ``SyncClient.enqueue`` does.

    Further names: ``delay``, ``not_before``, ``expires``, ``uri`` and ``unique`` (a text, in place
    of that of the task) as for ``SyncClient.enqueue``; ``headers``, texts beside the arguments. A
    spool writes it to its files, and the outcome is None.

    Raises:
        BadRequestError: ``bad-arguments``: the function takes no such arguments.
        CannotConnectError, RefusedError: As ``SyncClient.enqueue``.
    """
    aenqueue: Enqueue[P, Coroutine[Any, Any, Written]]
    """Enqueue from async code: ``await task.aenqueue(...)``, else as ``enqueue``.

    By the ``Client`` of ``Tasks.using``; without one by a blocking client in a thread.
    """
    call: Enqueue[P, Call[Written]]
    """Return the call that enqueues, for ``client.call`` and ``client.call_many``."""

    def __init__(self, app: Tasks, function: Callable[P, R], options: TaskOptions) -> None:
        functools.update_wrapper(self, function)
        self.app = app
        self.function = function
        self.name = options.get("name") or _place(function)
        queue, timeout = options.get("queue"), options.get("timeout")
        self.queue = app.queue if queue is None else queue
        self.priority = options.get("priority", PRIORITY_DEFAULT)
        journal_key_of(self.queue, "", 0, self.priority)  # checks both
        retries = options.get("retries")
        retries = -1 if retries is None else check_integer("retries", retries, 0, _RETRIES_MAX)
        self.attempts_max = retries + 1
        """Failed runs after which a job is buried; 0: as the daemon says."""
        self.retry_delay = _delay_by(options.get("retry_delay"))
        self.timeout_s = (
            None if timeout is None else duration_s("timeout", timeout, above_zero=True)
        )
        self.is_async = inspect.iscoroutinefunction(function)
        self.arguments = Arguments(self.name, function)
        self._unique = self._unique_by(options.get("unique", False))
        for attribute in ("enqueue", "aenqueue", "call"):
            setattr(self, attribute, getattr(self, f"_{attribute}"))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, without a queue."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name} of queue {self.queue}>"

    if not TYPE_CHECKING:  # checkers know the names

        def __getattr__(self, name: str) -> Any:
            """Say what to write in place of a name that other libraries have."""
            text = f"a task has no attribute {name!r}"
            if name in _OF_OTHERS:
                text += ": write task.enqueue(...), and task.enqueue(..., delay=60) for a later run"
            raise AttributeError(text, name=name, obj=self)

    def _call(self, *args: Any, **kwargs: Any) -> Call[Written]:
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        headers = dict(options.pop("headers", None) or {})
        arguments = self.arguments.bind(args, kwargs)
        data = self.arguments.encode(arguments)
        message = TaskMessage(self.name, arguments, headers, self.queue)
        for on_enqueue in self.app.chain["on_enqueue"]:
            on_enqueue(message)
        value = encode_message(self.name, data, message.headers)
        if self._unique and options.get("uri") is None and options.get("unique") is None:
            options["unique"] = self._unique(**self.arguments.with_defaults(arguments))
        call = calls.enqueue(self.queue, value, priority=self.priority, **options)
        *place, last = call.request.key.split(b":", 3)  # with the task, for people who look at keys
        key = b":".join([*place, self.name[:_NAME_CHARACTERS].encode() + b"-" + last])
        request = msgspec.structs.replace(call.request, key=key)
        return msgspec.structs.replace(call, request=request)

    def _enqueue(self, *args: Any, **kwargs: Any) -> Written:
        return self.app.send(self._call(*args, **kwargs))

    async def _aenqueue(self, *args: Any, **kwargs: Any) -> Written:
        return await self.app.asend(self._call(*args, **kwargs))

    def _unique_by(self, unique: Unique) -> Callable[..., str] | None:
        """Return the function of all arguments whose text is unique within the queue."""
        if callable(unique) or unique is False:
            return unique or None
        known = self.arguments.names
        names = {unique} if isinstance(unique, str) else set(known if unique is True else unique)
        if not names <= known or not (names or unique is True):
            why = f"task {self.name}: unique={unique!r} names no parameters"
            raise bad_task(why, f"name some of: {', '.join(known)}")

        def value_of(**arguments: Any) -> str:
            data = _json.encode({name: arguments[name] for name in names})
            if len(data) > _UNIQUE_BYTES_MAX:
                return f"{self.name}:{blake2b(data, digest_size=16).hexdigest()}"
            return f"{self.name}:{data.decode()}"

        return value_of


class HasSyncClient(Protocol):
    """Daemon in the process of a test."""

    def sync_client(self) -> SyncClient:
        """Return a client of it."""


class Tasks:
    """Tasks of an application: decorates functions, and enqueues.

    It connects at the first enqueue. A process that forks has a connection in each child.

    Args:
        server: Address of the daemon, or several with commas; None: as ``SyncClient()`` finds it.
        queue: Queue of the tasks that name none.
        middleware: Objects with ``on_enqueue``, ``around`` or both, in order; see ``Middleware``.
        producer: Client or spool that enqueues, in place of a ``SyncClient`` for ``server``.

    Raises:
        BadRequestError: The queue is none.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        queue: str = "default",
        middleware: Sequence[object] = (),
        producer: Producer | None = None,
    ) -> None:
        journal_key_of(queue, "", 0)  # checks it
        self.server = server
        self.queue = queue
        self.by_name: dict[str, Task[..., Any]] = {}
        self.chain: dict[str, list[Callable[..., Any]]] = {
            name: [getattr(each, name) for each in middleware if hasattr(each, name)]
            for name in ("on_enqueue", "around", "on_stop")
        }
        """Methods of the middleware, and hooks."""
        self.periodics: list[Periodic] = []
        self._producers: list[Producer] = [] if producer is None else [producer]
        self._own: tuple[int, SyncClient] | None = None
        """Process, and its own client."""

    def __repr__(self) -> str:
        return f"<Tasks: {', '.join(self.by_name) or 'none'}>"

    # --- decoration -----------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Make a function, sync or async, a task: ``@app.task`` or ``@app.task(retries=2)``.

        Args:
            functions: The function. Its arguments are sent as JSON, by its annotations.
            options: ``name``: of the task, unique in the application; ``module.function`` without
                one. ``queue``: without one that of the application. ``unique``: of the waiting
                runs with the same arguments one stays, the newest; see ``Unique``. ``retries``:
                runs after a first one that failed, at most; then the job is buried. None: as the
                daemon says, whose bound holds in any case. ``retry_delay``: see ``RetryDelay``.
                ``timeout``: of a run, which has failed then; a function in a thread is interrupted
                between two steps of Python. ``priority``: 0 (first) to 255.

        Raises:
            BadRequestError: ``bad-task``: the name is taken, or the function cannot be a task.
            TypeError: There is no such option.
        """
        known = TaskOptions.__annotations__
        for name in options.keys() - known.keys():
            meant = did_you_mean(name, known)
            note = f" ({meant})" if meant else ""
            raise TypeError(f"a task has no option {name}; it has: {', '.join(known)}{note}")
        add = partial(self._add, options)
        return add(*functions) if functions else add

    def _add(self, options: Any, function: Callable[..., Any]) -> Task[..., Any]:
        generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if not inspect.isfunction(function) or generates:
            raise bad_task(f"{function!r} is no function", "decorate a def or async def")
        task = Task(self, function, options)
        place = _place(function)
        is_local = "<locals>" in place  # of a test, which makes such applications again and again
        other = self.by_name.get(task.name)
        if other is None and not is_local:
            other = _apps.get((self.server, task.name))
            if other is not None and _place(other.function) == place:
                other = None  # its module was loaded twice
        if other is not None:
            raise bad_task(
                f"two tasks have the name {task.name}: {_place(other.function)} and {place}",
                "give one of them another name=...",
            )
        self.by_name[task.name] = task
        if not is_local:
            _apps[self.server, task.name] = task
        return task

    @property
    def queues(self) -> list[str]:
        """The queues of its tasks."""
        return list(dict.fromkeys(task.queue for task in self.by_name.values()))

    # --- hooks ----------------------------------------------------------------------------------

    def before(self, function: F) -> F:
        """Have a function called with the ``TaskRun`` before each run; it may be async."""
        self.chain["around"].append(hook("before", function))
        return function

    def after(self, function: F) -> F:
        """Have a function called with the ``TaskRun`` after each run that succeeded."""
        self.chain["around"].append(hook("after", function))
        return function

    def on_failure(self, function: F) -> F:
        """Have a function called with the ``TaskRun`` and the exception after one that failed."""
        self.chain["around"].append(hook("failure", function))
        return function

    # --- periodic tasks -------------------------------------------------------------------------

    def periodic(
        self,
        line: str,
        zone: str = "UTC",
        *,
        id: str | None = None,
        args: Mapping[str, Any] | None = None,
        catch_up: Duration = 1800,
        expires: Duration | None = None,
    ) -> Callable[[Task[P, R]], Task[P, R]]:
        """Have the workers enqueue a task at each tick of a cron line: above ``@app.task``.

        Each tick is one job, whatever the number of workers; all workers of the application set
        the ticks of all its tasks. docs/tasks.md says what happens where clocks change.

        Args:
            line: Five fields of cron, or six, of which the first is the seconds.
            zone: Time zone in which the line is meant, such as ``Europe/Berlin``.
            id: Last part of the keys of its jobs; None: the name of the task.
            args: Arguments of the task.
            catch_up: Age of a tick beyond which it is never set. It has to be far less than the
                daemon's ``tombstone-ttl``, an hour.
            expires: How long after its tick a job vanishes that nobody has begun; None: never.

        Raises:
            BadRequestError: The line is none or never comes, there is no such zone, the id is
                taken, or the arguments are none of the task.
        """
        from fastjournal.tasks import periodic  # noqa: PLC0415 - few applications need it

        ticking = partial(
            periodic.Periodic,
            schedule=periodic.parse_schedule(line, zone),
            catch_up_us=duration_us("catch_up", catch_up),
            expires_us=0 if expires is None else duration_us("expires", expires),
        )

        def add(task: Task[P, R]) -> Task[P, R]:
            if not isinstance(task, Task):
                raise bad_task(f"{task!r} is no task", "write @app.periodic above @app.task")
            arguments = dict(args or {})
            task.arguments.encode(task.arguments.bind((), arguments))
            name = task.name if id is None else id
            journal_key_of(task.queue, name, 0)
            if any(each.id == name for each in self.periodics):
                raise bad_task(f"two periodic tasks have the id {name}", "give one another id=...")
            self.periodics.append(ticking(id=name, enqueue=partial(task.call, **arguments)))
            return task

        return add

    # --- enqueue --------------------------------------------------------------------------------

    @contextmanager
    def using(self, producer: Producer) -> Iterator[None]:
        """Enqueue by this client or spool while the block runs, in all threads and tasks.

        A ``Client`` serves ``aenqueue`` only.
        """
        self._producers.append(producer)
        try:
            yield
        finally:
            self._producers.remove(producer)

    def send(self, call: Call[Written]) -> Written:
        """Send a call of ``Task.call``; return its result."""
        for producer in reversed(self._producers):
            if isinstance(producer, SyncClient):
                return producer.call(call)
            if hasattr(producer, "append_request"):  # a Spool, whose module is not loaded for this
                producer.append_request(call.request)
                return Written(call.request.timestamp, call.request.key)
        if self.server is None:
            check_found()  # its client may have connected before
        if self._own is None or self._own[0] != os.getpid():
            self._own = os.getpid(), SyncClient(self.server)
        return self._own[1].call(call)

    async def asend(self, call: Call[Written]) -> Written:
        """Send a call of ``Task.call`` from async code; return its result."""
        from anyio import to_thread  # noqa: PLC0415 - few programs need it

        from fastjournal.client import Client  # noqa: PLC0415 - with anyio

        if self._producers and isinstance(self._producers[-1], Client):
            return await self._producers[-1].call(call)
        return await to_thread.run_sync(self.send, call)

    # --- tests ----------------------------------------------------------------------------------

    def run_pending(
        self,
        daemon: HasSyncClient | SyncClient,
        *,
        raise_errors: bool = False,
        periodic: bool = True,
    ) -> int:
        """Run here, one after the other, all that is due now, also what these runs enqueue.

        For tests, with ``fastjournald.testing.FastjournalDaemon`` or a client of it. Failed runs
        are retried when the test moves the clock. Functions run in this thread, and have no
        timeout.

        Args:
            daemon: It, or its client, which also enqueues meanwhile.
            raise_errors: Raise the first exception of a function, whose run has failed.
            periodic: Set first the jobs of the ticks that are due, as a worker does.

        Returns:
            Number of runs, those of ticks too, without jobs that were buried because they are
            none.

        Raises:
            BadRequestError: Over 10,000 runs: some task enqueues itself again and again.
        """
        from fastjournal.tasks.execution import run_pending  # noqa: PLC0415 - tests need it only

        client = daemon if isinstance(daemon, SyncClient) else daemon.sync_client()
        with self.using(client):
            return run_pending(self, client, raise_errors=raise_errors, periodic=periodic)


def _delay_by(given: RetryDelay) -> Callable[[int], Duration | None]:
    """Return the function of the number of a failed run that returns the delay after it."""
    if callable(given):
        return given
    delays = given if isinstance(given, Sequence) else [given]
    if not delays:
        raise bad_task("retry_delay is empty", "give a delay, or None")
    for delay in delays:
        if delay is not None:
            duration_s("retry_delay", delay)
    return lambda number: delays[min(number, len(delays)) - 1]


def _place(function: Callable[..., object]) -> str:
    """Return its module, of a program that runs the one by which a worker has it, and its name."""
    module, main = function.__module__, sys.modules["__main__"]
    if module == "__main__":
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name.removesuffix(".__main__") if spec else Path(path or module).stem
    return f"{module}.{function.__qualname__}"
