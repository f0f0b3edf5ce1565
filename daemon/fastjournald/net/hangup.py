"""Hang-up detection: whether the client at the other end of a socket has gone, asked of the system.

It costs a system call and no waiting. Bytes that the client sent before may be unread still.
"""

from __future__ import annotations

import select

import trio

from fastjournald.net.plain_socket import PlainSocket
from fastjournald.net.tls import TlsStream


def has_hung_up(stream: trio.abc.Stream) -> bool:
    """Return whether the client sends nothing more: it closed, shut down or reset its end."""
    return _poll(stream, select.POLLRDHUP)


def is_lost(stream: trio.abc.Stream) -> bool:
    """Return whether nothing reaches the client; one that only ended its requests still reads."""
    return _poll(stream, 0)


def _poll(stream: trio.abc.Stream, events: int) -> bool:
    if not isinstance(stream, trio.SocketStream | TlsStream | PlainSocket):
        return False
    descriptor = stream.socket.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    # hang-ups and errors are always reported
    poll.register(descriptor, events)
    return bool(poll.poll(0))
