"""Termination of a command by SIGTERM or SIGHUP: unwind it, so that half-done work is cleaned up.

SIGINT does so by itself: it is an exception. The other two end a process at once. Exit codes are
those of a shell: 128 and the number of the signal.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class TerminatedError(BaseException):
    """A signal asks the process to end."""


class _EndSignal:
    """Signal that has come, and whether it has to wait."""

    def __init__(self) -> None:
        self.number = 0
        self.waits = False

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Unwind, unless that has to wait; from now on a signal ends the process at once."""
        self.number = number
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if not self.waits:
            raise TerminatedError


_asked = _EndSignal()


@contextmanager
def unwound() -> Iterator[None]:
    """Unwind the block at a signal, then exit; a second signal ends the process at once."""
    heard = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in heard:
        signal.signal(number, _asked.stop)
    try:
        yield
    except TerminatedError:
        sys.exit(128 + _asked.number)
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def done_first() -> Iterator[None]:
    """Defer a signal until the block is done, which takes no time: to start a process."""
    _asked.waits = True
    try:
        yield
    finally:
        _asked.waits = False
    if _asked.number:
        raise TerminatedError
