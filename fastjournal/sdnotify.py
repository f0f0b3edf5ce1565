"""Service notification of systemd (Type=notify): states, reload, start timeout, watchdog.

A datagram to the socket named by NOTIFY_SOCKET: a path, or an abstract name that starts with "@".
Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
import time

from fastjournal.errors import ConfigError

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
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
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
