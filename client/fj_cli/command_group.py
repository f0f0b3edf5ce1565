"""Process group of a command that runs under this program, with the terminal as a shell lends it.

A signal to the group reaches all that the command started. A group of its own cannot read the
terminal unless it is the one in front, so it is put there, and Ctrl-C is the command's; where the
terminal stops it (Ctrl-Z), this program stops too, so that the shell is in front again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fj_cli.termination import done_first

_LOOK_S = 0.1
_TERM_S, _KILL_S = 10.0, 5.0
"""Patience after SIGTERM, and after SIGKILL: what is left then, the kernel holds."""


class CommandGroup:
    """A command and all that it starts, until they leave its process group.

    Args:
        argv: Program and its arguments.

    Raises:
        OSError: It cannot be run.
    """

    def __init__(self, argv: list[str]) -> None:
        self._terminal = _open_terminal()
        self._lent = False
        self._process = subprocess.Popen(argv, process_group=0)
        self._lend_terminal()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code of the command, negative for a signal; None: it still runs."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                return self._process.wait(min(left_s, _LOOK_S))
            except subprocess.TimeoutExpired:
                if left_s <= _LOOK_S:
                    return None
            if self._is_stopped():
                self._stop_too()

    def signal(self, number: int) -> bool:
        """Send a signal to the group; whether there is still something in it."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # programs with the rights of another user
        return True

    def close(self) -> None:
        """End what still runs if the command does; take the terminal back."""
        try:
            if self._process.poll() is None:
                self._end()
        finally:
            self._take_terminal()
            if self._terminal is not None:
                os.close(self._terminal)

    def _end(self) -> None:
        for number, patience_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
            self.signal(number)
            self.signal(signal.SIGCONT)  # a stopped one would not take it
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline:
                self._process.poll()  # a leader that is not waited for stays in its group
                if not self.signal(0):
                    return
                time.sleep(_LOOK_S / 2)  # no call waits for the last process of a group

    # --- the terminal ---------------------------------------------------------------------------

    def _lend_terminal(self) -> None:
        """Put the group in front, if this program is there."""
        if self._terminal is not None and os.tcgetpgrp(self._terminal) == os.getpgrp():
            os.tcsetpgrp(self._terminal, self._process.pid)
            self._lent = True
            self.signal(signal.SIGCONT)  # it may have read the terminal before, which stopped it

    def _take_terminal(self) -> None:
        if not self._lent or self._terminal is None:
            return
        self._lent = False
        # from behind, a call for the front stops the caller, unless this signal is blocked
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if os.tcgetpgrp(self._terminal) == self._process.pid:
                os.tcsetpgrp(self._terminal, os.getpgrp())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})

    def _is_stopped(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG) is not None
        except ChildProcessError:
            return False  # it has ended, and the next wait says so

    def _stop_too(self) -> None:
        """Stop as the command has stopped, until the shell continues this program."""
        if self._terminal is None:
            return  # somebody has stopped it who will continue it
        self._take_terminal()
        os.kill(0, signal.SIGTSTP)
        self._lend_terminal()
        self.signal(signal.SIGCONT)


@contextmanager
def running(argv: list[str]) -> Iterator[CommandGroup]:
    """Run a command in the block, and end it behind; SIGINT is passed on to it.

    Raises:
        OSError: It cannot be run.
    """
    group: CommandGroup | None = None
    asked = False

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if group is not None:
            group.signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, pass_on)
    try:
        with done_first():
            group = CommandGroup(argv)
        if asked:
            group.signal(signal.SIGINT)
        yield group
    finally:
        if group is not None:
            group.close()
        signal.signal(signal.SIGINT, before)


def _open_terminal() -> int | None:
    """Return a descriptor of the controlling terminal; None: there is none."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
