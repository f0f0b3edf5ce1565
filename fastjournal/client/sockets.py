"""Connecting a socket of the standard library."""

from __future__ import annotations

import socket

from fastjournal.client.address import Address, UnixAddress
from fastjournal.client.failures import cannot_connect


def connect_socket(address: Address, timeout_s: float) -> socket.socket:
    """Return a connected, non-blocking socket.

    Raises:
        CannotConnectError: Nobody listens there, or the name or path leads nowhere.
    """
    try:
        if isinstance(address, UnixAddress):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout_s)
                sock.connect(address.path)
            except BaseException:
                sock.close()
                raise
        else:
            sock = socket.create_connection(address, timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except OSError as error:
        raise cannot_connect(address, error) from error
    sock.setblocking(False)
    return sock
