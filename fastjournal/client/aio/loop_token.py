"""Token of the running event loop: calls a function in it from finalizers and other threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import sniffio


def loop_caller() -> Callable[[Callable[[], object]], None]:
    """Return a function that calls another one soon, in the event loop that runs now.

    It waits for nothing, and calls nothing where that loop has ended.
    """
    if sniffio.current_async_library() == "trio":
        import trio  # noqa: PLC0415 - it is loaded already, if it runs

        token = trio.lowlevel.current_trio_token()

        def call_in_trio(function: Callable[[], object]) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(function)

        return call_in_trio
    import asyncio  # noqa: PLC0415 - likewise

    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive

    def call_in_asyncio(function: Callable[[], object]) -> None:
        async def call() -> None:
            function()

        def begin() -> None:
            # anyio finds its event loop in tasks only, and not in callbacks
            task = loop.create_task(call())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(begin)

    return call_in_asyncio
