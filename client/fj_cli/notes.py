"""Lines for standard error that hold nothing up: backpressure of their reader is not the worker's.

A worker extends leases and completes jobs, whoever reads its reports. So a thread writes them, in
order; where the reader stops reading, lines beyond a bound are dropped, and where it is gone, or
the disk is full, all are.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator

import trio

from fj_cli.text import safe_text

NOTES_MAX = 10_000
"""Lines that wait to be written: a few MB at most."""

_LAST_WORDS_S = 5.0
"""How long the end of a worker waits for the reader of its reports."""


class Notes:
    """Lines on their way to standard error."""

    def __init__(self) -> None:
        self._put, self._take = trio.open_memory_channel[str](NOTES_MAX)
        self._scope = trio.CancelScope(shield=True)
        self.dropped = 0
        """Lines that could not be written."""

    def add(self, line: str) -> None:
        """Have a line written, without its end; what could disturb a terminal is escaped."""
        try:
            self._put.send_nowait(safe_text(line))
        except trio.WouldBlock:
            self.dropped += 1

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write lines while the block runs; at its end wait a little for the last ones."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            try:
                yield
            finally:
                self._put.close()
                self._scope.deadline = trio.current_time() + _LAST_WORDS_S

    async def _write(self) -> None:
        with self._scope:
            async for line in self._take:
                data = f"{line}\n".encode()
                # A thread that waits for the reader is left behind at the end.
                written = await trio.to_thread.run_sync(_write_all, data, abandon_on_cancel=True)
                self.dropped += not written


def _write_all(data: bytes) -> bool:
    """Write to standard error, past its buffer; whether that could be done."""
    try:
        fd = sys.stderr.fileno()
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        return False
    return True
