"""Addresses that the daemon listens on: ``HOST:PORT``, ``[HOST]:PORT``, ``unix:PATH``."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

import trio

from fastjournal.errors import ConfigError

UNIX = "unix:"
PORT_MAX = 0xFFFF

KEEPALIVE = {
    socket.TCP_KEEPIDLE: 60,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 6,
}
"""Two minutes after a client's machine is gone nothing more is handed out to it."""


@asynccontextmanager
async def listening(
    addresses: Iterable[str], option: str = "--listen"
) -> AsyncIterator[list[trio.SocketListener]]:
    """Listen on all addresses while the block runs; in the end unix sockets are removed.

    Args:
        addresses: As the option takes them.
        option: Named in errors.

    Raises:
        ConfigError: An address is none, or cannot be listened on.
    """
    listeners: list[trio.SocketListener] = []
    paths: list[str] = []
    try:
        for text in addresses:
            bound = await listen(text, option)
            listeners += bound
            # Whoever accepts on a listener closes it when it ends: then it has no name to ask for.
            paths += [
                listener.socket.getsockname()
                for listener in bound
                if listener.socket.family == socket.AF_UNIX
            ]
        yield listeners
    finally:
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(path)
        for listener in listeners:
            listener.socket.close()


def keep_alive(stream: trio.SocketStream) -> None:
    """Let the system find out when the other machine is gone without a word."""
    if stream.socket.family != socket.AF_UNIX:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            stream.setsockopt(socket.IPPROTO_TCP, option, value)


async def listen(text: str, option: str = "--listen") -> list[trio.SocketListener]:
    """Return listeners on ``HOST:PORT``, ``[HOST]:PORT`` or ``unix:PATH``.

    Raises:
        ConfigError: It is none of these, or cannot be listened on.
    """
    try:
        if text.startswith(UNIX):
            path = text.removeprefix(UNIX)
            if not path:
                raise ValueError("the path is empty")
            return [await _listen_unix(path)]
        host, _, number = text.rpartition(":")
        port = int(number)
        if not host or not 0 <= port <= PORT_MAX:
            raise ValueError(f"a port is 0 to {PORT_MAX}" if host else "the host is empty")
        return await trio.open_tcp_listeners(port, host=host.strip("[]"), backlog=1024)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text}: not HOST:PORT, [HOST]:PORT or unix:PATH", hint=str(error)
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{option} {text}: cannot listen: {error.strerror or error}",
            hint="another program may use it; port 0 picks a free one",
        ) from error


async def _listen_unix(path: str) -> trio.SocketListener:
    if await trio.Path(path).is_socket():
        # left by a daemon that was killed; a running one takes the connection
        with trio.socket.socket(trio.socket.AF_UNIX) as probe:
            try:
                await probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    try:
        await listener.bind(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IWGRP)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return trio.SocketListener(listener)


def address_of(listener: trio.SocketListener) -> str:
    """Return the address that a listener is bound to, as ``--listen`` takes it."""
    name = listener.socket.getsockname()
    if isinstance(name, tuple):
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"unix:{os.fsdecode(name)}"
