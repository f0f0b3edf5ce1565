"""Process group of a command that runs under this program and uses its terminal.

A signal to the group reaches all processes of the command. A background group cannot read the
terminal, so the group becomes the foreground group, and gets Ctrl-C. If the terminal stops it
(Ctrl-Z), this program stops too, so that the shell gets the terminal back. A signal that stops this
program stops the group as well. Before the group is continued, the caller checks its lease or lock,
which was not renewed meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from fj_cli.termination import done_first

_LOOK_S = 0.1
JOB_CONTROL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""Signals of a terminal that stop a process: Ctrl-Z, and its use from the background."""

_USES = (signal.SIGTTIN, signal.SIGTTOU)
"""Those of its use from the background."""

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
        self._is_suspended = False
        """This program was stopped, and the group with it."""
        self._is_due = False
        """It was stopped, and the caller has not checked its lease or lock since."""
        self._process = subprocess.Popen(argv, process_group=0)
        self._lend_terminal()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end of the command.

        Returns:
            Its exit code, negative for a signal. None: it has not ended in that time, or this
            program was stopped, and the next call continues the command.
        """
        deadline = time.monotonic() + timeout_s
        if self._is_suspended and not self._is_due:
            self._resume()
        while not self._is_due:
            left_s = max(0.0, deadline - time.monotonic())
            reap_orphans({self._process.pid})
            try:
                return self._process.wait(min(left_s, _LOOK_S))
            except subprocess.TimeoutExpired:
                if left_s <= _LOOK_S:
                    return None
            if self._is_stopped() and not self._is_due:
                self._stop_too()
        self._is_due = False
        return None

    def suspend(self, number: int) -> None:
        """Stop the group and this process as a signal says, until this process is continued."""
        self.signal(signal.SIGSTOP)
        self._take_terminal()
        stop_self(number)
        self._is_suspended = True
        self.look()

    def look(self) -> None:
        """Have ``wait`` return soon: this process was continued."""
        self._is_due = True

    def signal(self, number: int) -> bool:
        """Send a signal to the group; whether there is still something in it."""
        return signal_group(self._process.pid, number)

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
                reap_orphans({self._process.pid})
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

    def _take_terminal(self) -> None:
        if not self._lent or self._terminal is None:
            return
        self._lent = False
        # in the background, a call for the foreground stops the caller, unless this signal is
        # blocked
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if os.tcgetpgrp(self._terminal) == self._process.pid:
                os.tcsetpgrp(self._terminal, os.getpgrp())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})

    def _is_stopped(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: a stop is seen by nobody
            return False
        try:
            stopped = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return False  # it has ended, and the next wait says so
        used = stopped is not None and self._lent and stopped.si_status in _USES
        if used and not self._awaits_stop():
            self.signal(signal.SIGCONT)  # it used the terminal before it was in front
            return False
        return stopped is not None

    def _awaits_stop(self) -> bool:
        """Whether SIGTSTP is pending for the stopped command: SIGCONT would discard it."""
        if not os.path.isdir("/proc/self"):  # no system but Linux says it
            return False
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        pending = next(line for line in status.split("\n") if line.startswith("ShdPnd:"))
        return bool(int(pending.split()[1], 16) & 1 << signal.SIGTSTP - 1)

    def _stop_too(self) -> None:
        """Stop as the command has stopped, until the shell continues this program."""
        if self._terminal is None:
            return  # somebody has stopped it who will continue it
        self._take_terminal()
        os.kill(0, signal.SIGTSTP)  # the handler suspends
        if not self._is_suspended:
            self._resume()  # it is ignored: nothing stops this program

    def _resume(self) -> None:
        self._is_suspended = False
        self._lend_terminal()
        self.signal(signal.SIGCONT)


@contextmanager
def running(argv: list[str]) -> Iterator[CommandGroup]:
    """Run a command in the block, then end it; it gets SIGINT, and stops with this program.

    Raises:
        OSError: It cannot be run.
    """
    group: CommandGroup | None = None
    asked, stop = False, 0

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if group is not None:
            group.signal(signal.SIGINT)

    def suspend(number: int, _frame: FrameType | None) -> None:
        nonlocal stop
        if group is None:
            stop = number
        else:
            group.suspend(number)

    def look(_number: int, _frame: FrameType | None) -> None:
        if group is not None:
            group.look()

    handlers: dict[int, Callable[[int, FrameType | None], None]] = {
        signal.SIGINT: pass_on,
        signal.SIGCONT: look,
        **dict.fromkeys(JOB_CONTROL, suspend),
    }
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        with done_first():
            group = CommandGroup(argv)
        if asked:
            group.signal(signal.SIGINT)
        if stop:
            group.suspend(stop)
        yield group
    finally:
        if group is not None:
            group.close()
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def signal_group(leader: int, number: int) -> bool:
    """Send a signal to the group of a process; whether there is still something in it."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # programs with the rights of another user
    return True


def stop_self(number: int) -> None:
    """Stop this process by a signal that has a handler, until this process is continued."""
    before = signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    signal.signal(number, before)


def reap_orphans(own: Container[int]) -> None:
    """Wait for children that have ended, up to one of ``own``, which is left to its owner.

    A process whose parent has ended becomes a child of process 1 of its container, or of the next
    subreaper, and stays a zombie until that has waited for it.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13, which has no subreaper either
        return
    with suppress(ChildProcessError):  # there is no child
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own:
                break
            os.waitpid(ended.si_pid, 0)


def _open_terminal() -> int | None:
    """Return a descriptor of the controlling terminal; None: there is none."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
