"""Stop signals of a service: noted while nobody receives them, ignored behind the end.

A receiver of trio opens after the start of a program and closes before its end. A signal outside of
that would kill the process, with an exit code other than that of an orderly stop.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stops_noted() -> Iterator[list[int]]:
    """Note stop signals while nobody receives them, and ignore them from the end of the block on.

    The process is about to end then, and none of them may change its exit code. In the block, give
    the signals that were noted to the receiver by ``raise_noted`` when it has opened.
    """
    stops: list[int] = []
    for each in STOP_SIGNALS:
        signal.signal(each, lambda number, _frame: stops.append(number))
    try:
        yield stops
    finally:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)


def raise_noted(stops: list[int]) -> None:
    """Raise the signals that came before the receiver opened, once more."""
    while stops:
        signal.raise_signal(stops.pop(0))
