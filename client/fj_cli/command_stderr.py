"""Standard error of a command: passed on as it comes, and its last line kept as a reason."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import unicodedata
from contextlib import suppress

import trio

from fastjournal.stderr_queue import QueuedStderr

LINE_BYTES_MAX = 1000
"""Length of a line that is kept; the rest of a longer one is cut off."""

_CHUNK_BYTES = 64 * 1024
"""As much as a pipe holds."""

_FULL_S = 0.05
"""Between two looks whether the reader of standard error has taken something."""

_LEVEL = logging.DEBUG
"""Level of its own, so that commands and reports do not crowd out each other."""

_LINE_END = re.compile(rb"[\r\n]+")
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])?"
)


def plain_line(line: bytes) -> str:
    """Return a line as text without what controls a terminal; bytes that are no UTF-8 as \\xhh."""
    text = _ESCAPE_SEQUENCE.sub("", line.decode("utf-8", "backslashreplace")).replace("\t", " ")
    return "".join(char for char in text if unicodedata.category(char)[0] != "C").strip()


class LastLine:
    """The last line with text of what comes in parts, at most ``LINE_BYTES_MAX`` of it."""

    def __init__(self) -> None:
        self._ended = ""
        self._part = b""

    def add(self, data: bytes) -> None:
        """Add a part."""
        first, *others = _LINE_END.split(data)
        lines = [(self._part + first)[:LINE_BYTES_MAX], *others]
        self._part = lines.pop()[:LINE_BYTES_MAX]
        for line in reversed(lines):
            text = plain_line(line[:LINE_BYTES_MAX])
            if text:
                self._ended = text
                break

    @property
    def text(self) -> str:
        """The line; empty: there was none."""
        return (plain_line(self._part) or self._ended)[:LINE_BYTES_MAX]


class CommandStderr:
    """Pipe that a command has as standard error.

    All of it is passed on to the standard error of this process, in the order of its writes. While
    nobody takes that, the command waits as it would without the pipe, and this process does not.

    Args:
        stderr: Standard error of this process.
    """

    def __init__(self, stderr: QueuedStderr) -> None:
        self._stderr = stderr
        self._reading, self.writing = os.pipe()
        """The end of the command; close it once that has started."""
        os.set_blocking(self._reading, False)
        self._unsent = bytearray()
        self._is_over = False
        """All that may write to it have closed it."""
        self.last_line = LastLine()

    def close_writing(self) -> None:
        """Close the end of the command: it has inherited it, or was not started."""
        os.close(self.writing)

    def close(self) -> None:
        """Close it, and leave what other processes still write to one of its own: ``cat``."""
        self.read_rest()
        if not self._is_over:
            # they outlive the worker, and a pipe without a reader would end them
            os.set_blocking(self._reading, True)
            with suppress(OSError):
                subprocess.Popen(
                    ["cat"],
                    stdin=self._reading,
                    stdout=self._stderr.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        os.close(self._reading)

    async def pass_on(self) -> None:
        """Pass on all that is written until everybody has closed it."""
        try:
            while not self._is_over:
                await trio.lowlevel.wait_readable(self._reading)
                self._read()
                await self._send_all()
            await self._send_all()
        finally:
            self.close()

    def read_rest(self) -> None:
        """Read what the command has written until its end: no more than the pipe holds."""
        while self._read():
            pass
        self._send()

    def _read(self) -> bool:
        """Read once, unless much waits to be sent; whether there may be more."""
        if len(self._unsent) > _CHUNK_BYTES or self._is_over:
            return False
        try:
            data = os.read(self._reading, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._is_over = not data
        self._unsent += data
        self.last_line.add(data)
        return True

    async def _send_all(self) -> None:
        while not self._send():  # noqa: ASYNC110 - nobody tells that there is room
            await trio.sleep(_FULL_S)

    def _send(self) -> bool:
        """Send what there is if the queue has room; whether nothing is left."""
        if self._unsent and self._stderr.has_room(len(self._unsent), _LEVEL):
            self._stderr.put_bytes(bytes(self._unsent), _LEVEL)
            self._unsent.clear()
        return not self._unsent


def open_command_stderr() -> CommandStderr | None:
    """Return the standard error of a command to come; None: it has that of this process."""
    return CommandStderr(sys.stderr) if isinstance(sys.stderr, QueuedStderr) else None
