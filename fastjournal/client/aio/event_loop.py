"""Event loop that runs: its clock, events and time-outs, and calls into it from elsewhere.

anyio looks up the running event loop for each event, scope and time. A connection needs these for
each request, and looks it up once.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import anyio


class LoopEvent(Protocol):
    """Event of any event loop."""

    def set(self) -> object:
        """Wake all that wait for it."""

    def is_set(self) -> bool:
        """Whether it was set."""

    def wait(self) -> Awaitable[object]:
        """Wait until it is set."""


class TimeoutScope(Protocol):
    """Cancel scope with a deadline, of any event loop."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether the deadline ended its block."""

    @property
    def deadline(self) -> float:
        """When that is, by the clock of the loop."""


class EventLoop(NamedTuple):
    """Functions of the event loop in which this was made."""

    now: Callable[[], float]
    """Seconds of its clock, which does not jump."""
    new_event: Callable[[], LoopEvent]
    move_on_after: Callable[[float], AbstractContextManager[TimeoutScope]]
    """Cancels its block after so many seconds."""
    call_soon: Callable[[Callable[[], object]], None]
    """Calls a function in it soon, from finalizers and other threads too. It waits for nothing, and
    calls nothing where that loop has ended."""


def running_loop() -> EventLoop:
    """Return the event loop of the task that runs now."""
    trio = sys.modules.get("trio")
    return _trio_loop() if trio and trio.lowlevel.in_trio_task() else _asyncio_loop()


def asyncio_task() -> asyncio.Task[object] | None:
    """Return the task of asyncio that runs now; None: another event loop runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _trio_loop() -> EventLoop:
    import trio  # noqa: PLC0415 - it is loaded already, if it runs

    token = trio.lowlevel.current_trio_token()

    def call_soon(function: Callable[[], object]) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(function)

    return EventLoop(trio.current_time, trio.Event, trio.move_on_after, call_soon)


def _asyncio_loop() -> EventLoop:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive

    def call_soon(function: Callable[[], object]) -> None:
        async def call() -> None:
            function()

        def begin() -> None:
            # anyio finds its event loop in tasks only, and not in callbacks
            task = loop.create_task(call())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(begin)

    return EventLoop(loop.time, asyncio.Event, anyio.move_on_after, call_soon)
