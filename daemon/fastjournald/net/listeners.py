"""Listeners on ``HOST:PORT``, ``[HOST]:PORT`` and ``unix:PATH``: accept, and names of clients."""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv6Address, ip_address
from typing import TypeAlias

import trio

from fastjournal.errors import ConfigError
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.sockets import Place, Unix, parse_place, socket_address

LOG = logging.getLogger("fastjournald")

PAUSE_SECONDS = 0.1
"""After the system had no room for a connection: clients wait in its queue meanwhile."""

_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


async def accept(
    listener: trio.abc.Listener[trio.SocketStream],
    serve: Callable[[trio.SocketStream], object],
) -> None:
    """Take connections, until cancelled; then close the listener.

    Args:
        listener: Where from.
        serve: Called with each stream; has to see to it that it is closed.

    Raises:
        OSError: The listener is unusable.
    """
    short = False
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                if not short:
                    LOG.warning(
                        LogEvent(
                            "no-room-for-connections",
                            error=Sentence(error.strerror),
                            hint="see LimitNOFILE",
                        )
                    )
                short = True
                await trio.sleep(PAUSE_SECONDS)
            else:
                short = False
                serve(stream)


Peer: TypeAlias = Mapping[str, object]
"""Address of a client, as fields of the log."""

NONE_HANDED_OVER: Mapping[Place, socket.socket] = {}

_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""

KEEPALIVE = {
    socket.TCP_KEEPIDLE: 60,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 6,
}
"""A client whose machine is lost gets no more work after two minutes."""


@asynccontextmanager
async def listening(
    addresses: Iterable[str],
    option: str = "--listen",
    *,
    socket_mode: int = 0o660,
    handed_over: Mapping[Place, socket.socket] = NONE_HANDED_OVER,
) -> AsyncIterator[list[trio.SocketListener]]:
    """Listen on all addresses while the block runs; in the end unix sockets are removed.

    Args:
        addresses: As the option takes them.
        option: Named in errors.
        socket_mode: Permissions of unix sockets.
        handed_over: Sockets of the service manager, which listen already and stay where they are.

    Raises:
        ConfigError: An address is none, or cannot be listened on.
    """
    listeners: list[trio.SocketListener] = []
    paths: list[tuple[str, tuple[int, int]]] = []
    try:
        for text in addresses:
            plain = handed_over.get(parse_place(text, option))
            if plain is not None:
                listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(plain)))
                continue
            bound = await listen(text, option, socket_mode, handed_over)
            listeners += bound
            # The acceptor closes a listener when it ends: then it has no name to ask for.
            names = [
                listener.socket.getsockname()
                for listener in bound
                if listener.socket.family == socket.AF_UNIX
            ]
            paths += [(name, _file_of(name)) for name in names]
        yield listeners
    finally:
        for path, file in paths:
            with suppress(FileNotFoundError):
                # a socket that another daemon has bound there since is its own
                if _file_of(path) == file:
                    os.unlink(path)
        for listener in listeners:
            listener.socket.close()


def _file_of(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


async def check_addresses(
    addresses: Iterable[str],
    handed_over: Mapping[Place, socket.socket] = NONE_HANDED_OVER,
    option: str = "--listen",
) -> None:
    """Listen on all addresses for a moment, but on those that were handed over.

    Raises:
        ConfigError: As ``listening``.
    """
    missing = [text for text in addresses if parse_place(text) not in handed_over]
    async with listening(missing, option, socket_mode=0o600, handed_over=handed_over):
        pass


def keep_alive(stream: trio.SocketStream) -> None:
    """Enable TCP keepalive: the system detects that the other machine is lost."""
    if not is_unix(stream):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            stream.setsockopt(socket.IPPROTO_TCP, option, value)


def is_unix(stream: trio.SocketStream) -> bool:
    """Whether it is of a unix socket."""
    return bool(stream.socket.family == socket.AF_UNIX)


def take_socket(stream: trio.SocketStream) -> socket.socket:
    """Return the socket of a stream, which has none from here on."""
    plain = stream.socket
    return socket.socket(plain.family, plain.type, plain.proto, fileno=plain.detach())


def peer_of(stream: trio.SocketStream) -> Peer:
    """Return the address of a client as fields of the log: its port too, or process and user."""
    try:
        if is_unix(stream):
            size = _CREDENTIALS.size
            packed = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return dict(zip(("pid", "uid", "gid"), _CREDENTIALS.unpack(packed), strict=True))
        return {"peer": socket_address(stream.socket.getpeername())}
    except OSError:
        return {"peer": "gone"}


def peer_name(peer: Peer) -> str:
    """Return these fields as a name for people."""
    if "peer" in peer:
        return str(peer["peer"])
    return " ".join(f"{name}={value}" for name, value in peer.items())


def origin_of(stream: trio.SocketStream) -> str:
    """Return the address that shares what each address may have: host, or /64 network, or user."""
    try:
        if is_unix(stream):
            packed = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return f"uid={_CREDENTIALS.unpack(packed)[1]}"
        host = stream.socket.getpeername()[0]
    except OSError:
        return "gone"
    return origin_of_host(host)


def origin_of_host(host: str) -> str:
    """Return the same for an IP address: a client with IPv6 has a network of 64 bits."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Address(int(address) >> 64 << 64))
    return host


async def listen(
    text: str, option: str, socket_mode: int, handed_over: Mapping[Place, socket.socket]
) -> list[trio.SocketListener]:
    """Return listeners on ``HOST:PORT``, ``[HOST]:PORT`` or ``unix:PATH``.

    Raises:
        ConfigError: It is none of these, or cannot be listened on.
    """
    place = parse_place(text, option)
    try:
        if isinstance(place, Unix):
            return [await _listen_unix(place.path, socket_mode)]
        return await trio.open_tcp_listeners(place.port, host=place.host, backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"{option} {text}: cannot listen: {error.strerror or error}",
            hint=_who_may_use_it(handed_over),
        ) from error


def _who_may_use_it(handed_over: Mapping[Place, socket.socket]) -> str:
    if not handed_over:
        return "another program may use it; port 0 picks a free one"
    others = ", ".join(socket_address(plain.getsockname()) for plain in handed_over.values())
    return f"the service manager listens on {others} for it: name the same address, or none"


async def _listen_unix(path: str, mode: int) -> trio.SocketListener:
    if await trio.Path(path).is_socket():
        # left by a daemon that was killed; a running one takes the connection
        with trio.socket.socket(trio.socket.AF_UNIX) as probe:
            try:
                await probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    try:
        # It has its mode from the start: no client can connect between bind and chmod.
        before = os.umask(0o777 & ~mode)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        os.chmod(path, mode)
        listener.listen(1024)
        return trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    except OSError:
        listener.close()
        raise


def address_of(listener: trio.SocketListener) -> str:
    """Return the address that a listener is bound to, as ``--listen`` takes it."""
    return socket_address(listener.socket.getsockname())
