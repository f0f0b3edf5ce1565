"""Functions of all programs: standard streams, stop signals, service notification of systemd.

Standard streams may be closed, or unable to encode some text.

Stop signals are noted while no task receives them, and ignored after the end. A receiver of trio
opens after the start of a program and closes before its end. A signal outside of that time would
kill the process, with an exit code other than that of an orderly stop.

Service notification (Type=notify) reports states, reload, start timeout and watchdog. It is a
datagram to the socket named by NOTIFY_SOCKET: a path, or an abstract name that starts with "@".
Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TextIO

from fastjournal.errors import ConfigError

_STREAMS = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
"""How a closed one is opened. To read standard input fails then, and to write to standard output;
standard error is dropped."""


def prepare_stdio() -> None:
    """Make standard input, output and error safe to use; call it before anything is opened.

    A descriptor that is closed is occupied: else the next socket would get its number, and texts
    for people would go there. A character that an encoding cannot hold is escaped.
    """
    for fd, (name, mode, flags) in enumerate(_STREAMS):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)
        if getattr(sys, name) is None:
            # as Python opens them: the descriptor outlives the object
            stream = open(fd, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def open_input() -> BinaryIO:
    """Return standard input, whose reads wait for all of it.

    Raises:
        OSError: It is closed, or can only be written.
    """
    stream = sys.stdin.buffer
    if fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise OSError("standard input is closed, so there is nothing to read")
    os.set_blocking(stream.fileno(), True)  # else a read returns where the writer is slow
    return stream


def holds_unicode(stream: TextIO) -> bool:
    """Whether a stream can hold all text."""
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def drop(stream: TextIO) -> None:
    """Discard all further output of a stream, also that which Python flushes at exit."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def drop_what_fails() -> None:
    """Discard output that standard output and error do not accept: it is too late to report it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            drop(stream)


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
    """Raise the signals again that were noted before the receiver opened."""
    while stops:
        signal.raise_signal(stops.pop(0))


WAIT_S = 1.0
"""Longest wait for a service manager that takes no state: all clients wait meanwhile."""


def notify(state: str, *, wait: bool = True) -> bool:
    """Send ``state``, such as ``READY=1`` or ``STOPPING=1``; lines are separated by newlines.

    Args:
        state: Assignments.
        wait: Whether to wait ``WAIT_S`` at most for room in the queue of the service manager. An
            event loop does not wait for a state that is sent again soon.

    Returns:
        Whether it was sent. False: no service manager asked for it, or it cannot be reached,
        which is no reason for a service to fail.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(WAIT_S if wait else 0)
            sender.connect(address)
            sender.sendall(state.encode())
    except OSError:
        return False
    return True


def notify_reloading() -> bool:
    """Send that a reload begins; ``READY=1`` ends it."""
    return notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


def watchdog_seconds() -> float | None:
    """Return the time in which the service manager waits for ``WATCHDOG=1``; None: it does not.

    Raises:
        ConfigError: WATCHDOG_USEC or WATCHDOG_PID is no positive number.
    """
    microseconds = positive_variable("WATCHDOG_USEC")
    if microseconds is None or positive_variable("WATCHDOG_PID") not in (None, os.getpid()):
        return None
    return microseconds / 1_000_000


def positive_variable(name: str) -> int | None:
    """Return the number that the service manager has put into a variable; None: it has not.

    Raises:
        ConfigError: It is no positive number.
    """
    text = os.environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:20]) < 2**63):
        raise ConfigError(
            f"{name}={text}: not a positive number",
            hint="the service manager sets this variable; start the program without it",
        )
    return int(text)
