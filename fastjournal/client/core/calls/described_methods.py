"""Methods of both clients, described once, with the arguments and the docstring of their call.

    class WorkMethods:
        release = method(release)

Each method sends a call, or iterates over the results of a scan. ``SyncClient`` and ``Client`` have
all methods described so. Editors and mypy see the signature of the call, and the result of the
client in use; ``add_methods`` makes the functions.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from fastjournal.client.core.address import Address, Servers
from fastjournal.client.core.calls import daemon, data, scans, work
from fastjournal.client.core.calls.base import Call, PagedCall
from fastjournal.protocol import Request
from fastjournal.times import Duration

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
"""Result of a method of ``SyncClient``."""
A = TypeVar("A")
"""Result of a method of ``Client``."""
F = TypeVar("F", bound=Callable[..., Any])

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


class ClientMethods(ABC):
    """Methods of either client, which inherits their text: ``await`` those of ``Client``."""

    servers: Servers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.servers)!r})"

    @property
    def address(self) -> Address:
        """The address in use: of the connection, or of the last one."""
        return self.servers.current

    @abstractmethod
    def connect(self) -> Any:
        """Connect, unless it is connected; try once.

        A daemon that has no room, or is stopping, is tried again as ``reconnect`` says.

        Raises:
            CannotConnectError: Nobody listens there, or TLS fails, or the daemon takes no more.
            RefusedError: ``auth-failed``.
        """

    @abstractmethod
    def locked(
        self, key: str | bytes, *, timeout: Duration | None = None, renew: bool = False
    ) -> Any:
        """Hold a lock on an entry while the block runs.

        For the daemon the connection holds the lock. So blocks of threads or tasks that share this
        client exclude each other here, where they name the entry by the same key.

        With ``renew`` the block may take longer than the lock: a thread, or a task of ``Client``,
        renews it at a third of its length. ``with client.locked(key, renew=True) as lock``:
        ``lock.lost`` is set (``threading.Event``; with ``Client`` ``anyio.Event``) once a renewal
        finds that the lock is lost, and ``lock.loss`` says why. ``Client`` cancels the block then;
        with ``SyncClient`` the block better ends. There a renewal waits for its turn as any
        request: a request of the client that waits (``next_``) must be shorter than the lock.

        Args:
            key: Any of its keys.
            timeout: Length of time after which the lock ends by itself; None: 60 s.
            renew: Renew the lock while the block runs.

        Raises:
            RefusedError: ``locked`` (another connection, or another block of this client, holds
                it), ``not-found``.
            LockLostError: At the end of the block: the lock ended before it, by its time or with
                the connection: others may have written meanwhile. Its cause says why.
            BadRequestError: ``timeout`` is no duration; with ``renew``, less than 1 s.
        """

    @abstractmethod
    def request(self, request: Request) -> Any:
        """Send a request as it is; return the reply, which may be a refusal.

        A timestamp of 0 is replaced by this machine's time; the identifier is set.
        """

    @abstractmethod
    def request_many(self, requests: Iterable[Request]) -> Any:
        """Send requests without waiting between them; return their replies in the same order.

        Raises:
            CannotConnectError: The connection was lost; any of them may have been carried out.
        """

    @abstractmethod
    def enqueue_many(self, jobs: Iterable[Mapping[str, Any]]) -> Any:
        """Pipeline jobs: each is a mapping with the arguments of ``enqueue``.

        All are checked before the first is sent.

        Returns:
            For each its ``Written``, or its RefusedError, in the same order.

        Raises:
            BadRequestError: An argument that no daemon accepts; nothing was sent.
            TypeError: A job has an argument that ``enqueue`` has not; nothing was sent.
            CannotConnectError: The connection was lost; any of them may have been enqueued.
        """

    @abstractmethod
    def call_many(self, many: Iterable[Call[T]]) -> Any:
        """Pipeline calls, without a wait for single replies; each gives its result or refusal."""


class Caller(ClientMethods):
    """Sender of calls that waits for their results."""

    @abstractmethod
    def call(self, call: Call[T]) -> T:
        """Send one of ``fastjournal.client.core.calls``; return its result."""


class AsyncCaller(ClientMethods):
    """Sender of calls that does other work until the results are there."""

    @abstractmethod
    async def call(self, call: Call[T]) -> T:
        """Send one of ``fastjournal.client.core.calls``; return its result."""


class Method(Generic[P, R, A]):
    """One method of both clients, by the function that builds its call or scan."""

    def __init__(self, build: Callable[P, Any], *, scans: bool) -> None:
        self.build = build
        self.scans = scans

    if TYPE_CHECKING:
        # At run time there is a function of the client's own in its place.

        @overload
        def __get__(self, client: Caller, owner: object) -> Callable[P, R]: ...

        @overload
        def __get__(self, client: AsyncCaller, owner: object) -> Callable[P, A]: ...

        @overload
        def __get__(
            self, client: None, owner: type[Caller]
        ) -> Callable[Concatenate[Caller, P], R]: ...

        @overload
        def __get__(
            self, client: None, owner: type[AsyncCaller]
        ) -> Callable[Concatenate[AsyncCaller, P], A]: ...

        def __get__(self, client: object, owner: object) -> Any: ...


def method(build: Callable[P, Call[T]]) -> Method[P, T, Coroutine[Any, Any, T]]:
    """Describe a method that sends the call and returns its result."""
    return Method(build, scans=False)


def scan_method(build: Callable[P, PagedCall[T]]) -> Method[P, Iterator[T], AsyncIterator[T]]:
    """Describe a method that gives what a scan finds, a page in memory at a time."""
    return Method(build, scans=True)


def add_methods(
    client: type,
    make_method: Callable[[Callable[..., Call[Any]]], Callable[..., Any]],
    make_scan: Callable[[Callable[..., PagedCall[Any]]], Callable[..., Any]],
    iterator: str,
) -> None:
    """Give a class the functions for all methods that it has a description of.

    Args:
        client: The class.
        make_method: Makes the function that sends a call.
        make_scan: Makes the function that gives what a scan finds.
        iterator: Name of the type of what that returns.
    """
    for base in client.__mro__:
        for name, described in list(vars(base).items()):
            if isinstance(described, Method):
                build, returns = described.build, None
                make: Callable[..., Callable[..., Any]] = make_method
                if described.scans:
                    make, returns = make_scan, f"{iterator}[{_inside(build, 'PagedCall')}]"
                setattr(client, name, wrap(make(build), build, name, returns))


def wrap(function: F, build: Callable[..., Any], name: str, returns: str | None = None) -> F:
    """Give a function the docstring of ``build``, and its signature with ``self`` before it.

    Args:
        function: Function that becomes the method.
        build: Function of ``fastjournal.client.core.calls``.
        name: Name of the method.
        returns: The name of what the method returns; None: what the ``Call`` of ``build`` gives.
    """
    functools.update_wrapper(function, build)
    function.__name__ = function.__qualname__ = name
    signature = inspect.signature(build)
    returns = returns or _inside(build, "Call")
    function.__annotations__ = {**build.__annotations__, "return": returns}
    function.__signature__ = signature.replace(  # type: ignore[attr-defined] # inspect reads it
        parameters=[_SELF, *signature.parameters.values()],
        return_annotation=returns,
    )
    return function


def _inside(build: Callable[..., Any], kind: str) -> str:
    """Return the type that the ``Call`` or ``PagedCall`` of ``build`` is about."""
    annotation: str = build.__annotations__["return"]
    return annotation.removeprefix(f"{kind}[").removesuffix("]")


def with_arguments_of(described: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that adds arguments to the section ``Args`` of a method's docstring.

    It adds those that the method has, ``described`` describes and the docstring does not. All are
    then in the order of the signature.
    """

    def add(function: F) -> F:
        head, own, tail = _arguments(inspect.getdoc(function) or "")
        texts = _arguments(inspect.getdoc(described) or "")[1] | own
        named = [name for name in inspect.signature(function).parameters if name in texts]
        function.__doc__ = head + "".join(texts[name] for name in named) + tail
        return function

    return add


def _arguments(text: str) -> tuple[str, dict[str, str], str]:
    """Return the text before the arguments of a docstring, each of these by name, and the rest.

    The lines of an argument are those from its name on.
    """
    head, mark, rest = f"{text}\n".partition("\nArgs:\n")
    lines = rest.splitlines(keepends=True)
    end = next((n for n, line in enumerate(lines) if not line.startswith("    ")), len(lines))
    arguments: dict[str, str] = {}
    name = ""
    for line in lines[:end]:
        if not line.startswith("     "):
            name = line.partition(":")[0].strip()
        arguments[name] = arguments.get(name, "") + line
    return head + mark, arguments, "".join(lines[end:])


class CallMethods:
    """Methods that both clients have: one for each call, which has the text of the method.

    A name is that of the protocol's function; the underscore at the end of a call's name keeps it
    from hiding a name of Python.
    """

    set = method(data.set_)
    get = method(data.get)
    delete = method(data.delete)
    add = method(data.add)
    flip = method(data.flip)
    truncate = method(data.truncate)

    rename = method(data.rename)
    link = method(data.link)
    lock = method(data.lock)
    unlock = method(data.unlock)

    range = scan_method(scans.range_)
    prefix = scan_method(scans.prefix)
    regex = scan_method(scans.regex)
    domains = scan_method(scans.domains)
    dead_letters = scan_method(scans.dead_letters)

    enqueue = method(work.enqueue)
    next = method(work.next_)
    peek = method(work.peek)
    release = method(work.release)
    touch = method(work.touch)
    bury = method(work.bury)
    kick = method(work.kick)
    kick_domain = method(work.kick_domain)
    limit = method(work.limit)
    purge = method(work.purge)
    pause = method(work.pause)
    pause_all = method(work.pause_all)
    resume = method(work.resume)
    resume_all = method(work.resume_all)

    nop = method(daemon.nop)
    auth = method(daemon.auth)
    stats = method(daemon.stats)
    daemon_stats = method(daemon.daemon_stats)
    domain_stats = method(daemon.domain_stats)
    entry_stats = method(daemon.entry_stats)
    snapshot = method(daemon.snapshot)
    remote_checkpoint = method(daemon.remote_checkpoint)
    remote_handover = method(daemon.remote_handover)
    explain = method(daemon.explain)
