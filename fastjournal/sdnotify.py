"""Tells systemd about the state of a service (Type=notify), without a library.

A datagram to the socket named by NOTIFY_SOCKET: a path, or an abstract name that starts with "@".
Source: sd_notify(3).
"""

from __future__ import annotations

import os
import socket


def notify(state: str) -> bool:
    """Send ``state``, such as ``READY=1`` or ``STOPPING=1``; lines are separated by newlines.

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
            sender.connect(address)
            sender.sendall(state.encode())
    except OSError:
        return False
    return True
