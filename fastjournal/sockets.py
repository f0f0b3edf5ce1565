"""Sockets: addresses of options (``HOST:PORT``, ``unix:PATH``), and the lingering close."""

from __future__ import annotations

import math
import os
from ipaddress import ip_address
from typing import Any, NamedTuple, TypeAlias

import trio

from fastjournal.errors import ConfigError

UNIX = "unix:"
PORT_MAX = 0xFFFF
UNIX_PATH_BYTES_MAX = 107
"""Linux keeps the path of a unix socket in 108 bytes, a zero at the end."""

LINGER_SECONDS = 1.0
"""Time for which a connection that closes reads and discards: a socket that is closed with unread
bytes is reset, and the reset can overtake the last replies."""


class Tcp(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it; a name is not asked for, but ``localhost``."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False


class Unix(NamedTuple):
    """A socket in the file system."""

    path: str


Place: TypeAlias = Tcp | Unix


def parse_place(text: str, option: str = "--listen") -> Place:
    """Return what an option says.

    Raises:
        ConfigError: It is no address.
    """
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        size = len(os.fsencode(path))
        if not path or "\0" in path:
            raise _no_address(text, option, "the path is empty" if not path else "a zero byte")
        if size > UNIX_PATH_BYTES_MAX:
            raise ConfigError(
                f"{option} {text}: the path has {size} bytes",
                hint=f"the system takes {UNIX_PATH_BYTES_MAX}: choose a shorter one",
            )
        return Unix(path)
    host, colon, number = text.rpartition(":")
    if not colon:
        raise _no_address(text, option, f"the port is missing: write {text}:PORT")
    if not host:
        raise _no_address(text, option, "the host is empty")
    if not (number.isascii() and number.isdecimal() and int(number) <= PORT_MAX):
        raise _no_address(text, option, f"a port is 0 to {PORT_MAX}")
    return Tcp(host.strip("[]"), int(number))


def parse_http_place(text: str, *, loopback_only: bool = True) -> Tcp:
    """Return the place that ``--http`` names.

    Args:
        text: Value of the option.
        loopback_only: Refuse an address that other machines may reach.

    Raises:
        ConfigError: It is no such address with a port.
    """
    try:
        place: Place | None = parse_place(text, "--http")
    except ConfigError:
        place = None
    if isinstance(place, Tcp) and (place.is_loopback or not loopback_only):
        return place
    if loopback_only:
        raise ConfigError(
            f"--http {text}: not HOST:PORT with localhost or a loopback address",
            hint="--insecure allows others: these metrics need no token, and a reverse proxy on "
            "this machine can ask for one",
        )
    raise ConfigError(f"--http {text}: not HOST:PORT", hint="write it like 127.0.0.1:9924")


def address_text(place: Place) -> str:
    """Return a place as an option takes it."""
    if isinstance(place, Unix):
        return f"{UNIX}{place.path}"
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_address(name: Any) -> str:
    """Return the name of a bound socket (``getsockname``) as an option takes it."""
    return address_text(Tcp(*name[:2]) if isinstance(name, tuple) else Unix(os.fsdecode(name)))


async def linger(
    stream: trio.abc.ReceiveStream, receive_bytes: int, bytes_max: float = math.inf
) -> None:
    """Give the client, which got the end of the stream, time to take what was sent.

    Args:
        stream: It is read until the client closes it, for ``LINGER_SECONDS`` at most.
        receive_bytes: Bytes of one read.
        bytes_max: Bytes that are discarded at most.
    """
    with trio.move_on_after(LINGER_SECONDS):
        while bytes_max > 0 and (data := await stream.receive_some(receive_bytes)):
            bytes_max -= len(data)


def _no_address(text: str, option: str, hint: str) -> ConfigError:
    return ConfigError(f"{option} {text}: not HOST:PORT, [HOST]:PORT or unix:PATH", hint=hint)
