"""Sync thread: one persistent thread that carries out the fdatasyncs of a slow disk.

A thread pool takes locks, limiters and a task switch for each call, more than a fast fdatasync
takes. This thread waits at a queue, and wakes the event loop by an eventfd.

It starts with ``start``, at the latest at the first call, and ends with ``close``; the next call
starts another one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

import trio


class _ThreadCall:
    """One call, and how it ended."""

    __slots__ = ("call", "done", "error")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.done = False
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        """Keep any error for the task that waits, which raises it."""
        self.error = error
        self.done = True
        return True


class SyncThread:
    """Runs one call at a time beside the event loop."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._done = -1
        """The eventfd."""

    async def run(self, call: Callable[[], object]) -> None:
        """Run ``call`` in the thread and wait for its end, also where the task is cancelled.

        One task at a time may call this.

        Raises:
            BaseException: The error that ``call`` raised.
        """
        self.start()
        pending = _ThreadCall(call)
        self._calls.put(pending)
        # a half-done sync is of no use to anyone: the wait has no checkpoint for a cancellation
        with trio.CancelScope(shield=True):
            while not pending.done:
                await trio.lowlevel.wait_readable(self._done)
                os.eventfd_read(self._done)
        if pending.error is not None:
            raise pending.error

    def close(self) -> None:
        """End the thread, once a call that it carries out has ended; twice does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            thread.join()
            os.close(self._done)
            self._done = -1

    def start(self) -> None:
        """Start the thread, if it does not run: later the system may have no descriptor for it."""
        if self._thread is not None:
            return
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(
            target=_work, args=(self._calls, self._done), name="fastjournald-sync", daemon=True
        )
        self._thread.start()


def _work(calls: SimpleQueue[_ThreadCall | None], done: int) -> None:
    while (pending := calls.get()) is not None:
        with pending:
            pending.call()
        os.eventfd_write(done, 1)
