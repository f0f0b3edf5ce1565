"""Addresses that the daemon listens on: ``HOST:PORT``, ``[HOST]:PORT``, ``unix:PATH``."""

from __future__ import annotations

import os
import stat

import trio

from fastjournal.errors import ConfigError

UNIX = "unix:"


async def listen(text: str) -> list[trio.SocketListener]:
    """Return listeners on ``HOST:PORT``, ``[HOST]:PORT`` or ``unix:PATH``.

    Raises:
        ConfigError: It is none of these, or cannot be listened on.
    """
    try:
        if text.startswith(UNIX):
            return [await _listen_unix(text.removeprefix(UNIX))]
        host, _, port = text.rpartition(":")
        return await trio.open_tcp_listeners(int(port), host=host.strip("[]"), backlog=1024)
    except ValueError as error:
        raise ConfigError(
            f"--listen {text}: not HOST:PORT, [HOST]:PORT or unix:PATH", hint=str(error)
        ) from error
    except OSError as error:
        raise ConfigError(
            f"--listen {text}: cannot listen: {error.strerror or error}",
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
    await listener.bind(path)
    os.chmod(path, stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IWGRP)
    listener.listen(1024)
    return trio.SocketListener(listener)


def address_of(listener: trio.SocketListener) -> str:
    """Return the address that a listener is bound to, as ``--listen`` takes it."""
    name = listener.socket.getsockname()
    if isinstance(name, tuple):
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"unix:{os.fsdecode(name)}"
