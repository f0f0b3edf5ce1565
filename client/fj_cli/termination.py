"""Termination of a command by SIGTERM or SIGHUP: unwind it first, so that temporary files go.

SIGINT does so by itself: it is an exception. By the other two a process ends where it stands.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _TerminatedError(BaseException):
    """A signal asks the process to end."""


@contextmanager
def unwound() -> Iterator[None]:
    """Unwind the block at a signal, then end the process by it; a second one ends it at once."""
    asked: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise _TerminatedError

    heard = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in heard:
        signal.signal(number, stop)
    try:
        yield
    except _TerminatedError:
        os.kill(os.getpid(), asked[0])
        raise
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)
