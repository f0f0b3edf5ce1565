"""Pseudo-terminal with a program on it: what it shows, keys, its size and its modes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

from tests.integration.programs import Program

TIMEOUT_S = 60.0
_READ_S = 0.05
_INTERRUPT_S = 5.0
_READ_BYTES = 65536

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""A control sequence: colours, movements, modes."""

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Terminal:
    """A program that has a terminal of its own, in front there.

    Args:
        command: Command line of the program.
        environment: Its environment; COLUMNS and LINES are left out.
        size: Columns and lines.
        stdin: Standard input; None: the terminal.
        stderr: Standard error; None: the terminal.
        encoding: Encoding of its output.
    """

    def __init__(
        self,
        command: Sequence[str | bytes],
        environment: Mapping[str, str],
        size: tuple[int, int] = (80, 24),
        *,
        stdin: int | IO[Any] | None = None,
        stderr: int | None = None,
        encoding: str = "utf-8",
    ) -> None:
        self.columns, self.lines = size
        self.encoding = encoding
        self._ours, self._terminal = pty.openpty()
        fcntl.ioctl(
            self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", self.lines, self.columns, 0, 0)
        )
        self.mode_before = self.mode
        variables = {"TERM": "xterm"} | dict(environment)
        for name in ("COLUMNS", "LINES"):
            variables.pop(name, None)
        self.process = Program(
            command,
            stdin=self._terminal if stdin is None else stdin,
            stdout=self._terminal,
            stderr=self._terminal if stderr is None else stderr,
            env=variables,
            in_front=True,
        )
        self._read = b""

    @property
    def mode(self) -> list[Any]:
        """Attributes of the terminal: echo, line editing, signals."""
        return termios.tcgetattr(self._terminal)

    @property
    def written(self) -> str:
        """All that was written so far."""
        return self._read.decode(self.encoding, "replace")

    @property
    def text(self) -> str:
        """The same without control sequences, with the line ends of a file."""
        return CONTROL.sub("", self.written).replace("\r\n", "\n")

    @property
    def is_sane(self) -> bool:
        """Whether its modes are as before, and the cursor can be seen."""
        hidden, shown = (self.written.rfind(code) for code in (HIDE_CURSOR, SHOW_CURSOR))
        return self.mode == self.mode_before and hidden <= shown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        os.close(self._ours)
        os.close(self._terminal)

    def press(self, keys: str) -> None:
        """Type keys; ``\\x03`` is Ctrl-C."""
        os.write(self._ours, keys.encode())

    def read(self) -> bool:
        """Take what was written within a moment; whether there was any."""
        if not select.select([self._ours], [], [], _READ_S)[0]:
            return False
        self._read += os.read(self._ours, _READ_BYTES)
        return True

    def screen(self) -> list[str]:
        """Return the lines of what is shown; a program that draws anew has its own."""
        return self.text.split("\n")

    def until(self, pattern: str, absent: str = "$^") -> list[str]:
        """Read until the screen has a match, and none of what is to be absent; return it."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            lines = self.screen()
            text = "\n".join(lines)
            if re.search(pattern, text) and not re.search(absent, text):
                return lines
            assert time.monotonic() < deadline, text
            assert self.process.poll() is None, (text, self.process.stderr)
            self.read()

    def interrupt(self) -> int:
        """Press Ctrl-C, as often as it takes; return the exit code.

        A program that begins to wait for its input at this moment may miss it.
        """
        code = None
        for _ in range(int(TIMEOUT_S / _INTERRUPT_S)):
            self.press("\x03")
            code = self._end_within(_INTERRUPT_S)
            if code is not None:
                break
        assert code is not None, self.text
        return code

    def end(self) -> int:
        """Return the exit code of the program, whose last words are read."""
        code = self._end_within(TIMEOUT_S)
        assert code is not None, self.text
        return code

    def _end_within(self, patience_s: float) -> int | None:
        deadline = time.monotonic() + patience_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        while self.process.poll() is not None and self.read():
            pass
        return self.process.poll()


class Shell(Terminal):
    """Interactive shell with job control, on a terminal of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = ["bash", "--norc", "--noprofile", "-i"]
        super().__init__(command, {**environment, "PS1": "$ ", "TERM": "dumb"})
        self._seen = 0

    def screen(self) -> list[str]:
        return self.written[self._seen :].split("\n")

    def wait_for(self, text: str) -> None:
        """Read until the terminal shows this behind what was waited for before."""
        self.until(re.escape(text))
        self._seen = self.written.index(text, self._seen) + len(text)


def on_terminal(
    command: Sequence[str | bytes],
    environment: Mapping[str, str],
    size: tuple[int, int] = (80, 24),
    **options: Any,
) -> str:
    """Run a program without input on a terminal; return all that it writes there."""
    with Terminal(command, environment, size, stdin=subprocess.DEVNULL, **options) as terminal:
        terminal.end()
        return terminal.written
