"""Stop signal: ends a wait for the daemon from a signal handler or another thread."""

from __future__ import annotations

import os


class Stopped(Exception):  # noqa: N818 - no error: its caller asked for it
    """The wait was ended by its stop signal; nothing is leased by it."""


class StopSignal:
    """A flag that a blocking wait looks at, and a pipe that wakes it.

    The pipe is made at the first wait, so that a loop that is never waited with costs nothing.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._pipe: tuple[int, int] | None = None
        self._process = os.getpid()

    def set(self) -> None:
        """End the wait, and all that come."""
        was_set, self.is_set = self.is_set, True
        # The child of a fork does not wake its parent.
        if self._pipe is not None and not was_set and self._process == os.getpid():
            os.write(self._pipe[1], b"\0")

    def fileno(self) -> int:
        """Return a descriptor that is readable, or will be, once the signal is set."""
        if self._pipe is None:
            self._pipe = os.pipe()
            if self.is_set:  # by another thread, which found no pipe
                os.write(self._pipe[1], b"\0")
        return self._pipe[0]

    def __del__(self) -> None:
        if self._pipe is not None:
            for descriptor in self._pipe:
                os.close(descriptor)
