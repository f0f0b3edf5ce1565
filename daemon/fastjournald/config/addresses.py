"""Addresses of ``--listen`` and ``--http``: ``HOST:PORT``, ``[HOST]:PORT``, ``unix:PATH``."""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import Any, NamedTuple, TypeAlias

from fastjournal.errors import ConfigError

UNIX = "unix:"
PORT_MAX = 0xFFFF
UNIX_PATH_BYTES_MAX = 107
"""Linux keeps the path of a unix socket in 108 bytes, a zero at the end."""


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
    host, _, number = text.rpartition(":")
    if not host:
        raise _no_address(text, option, "the host is empty")
    if not (number.isascii() and number.isdecimal() and int(number) <= PORT_MAX):
        raise _no_address(text, option, f"a port is 0 to {PORT_MAX}")
    return Tcp(host.strip("[]"), int(number))


def address_text(place: Place) -> str:
    """Return a place as an option takes it."""
    if isinstance(place, Unix):
        return f"{UNIX}{place.path}"
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_address(name: Any) -> str:
    """Return the name of a bound socket (``getsockname``) as an option takes it."""
    return address_text(Tcp(*name[:2]) if isinstance(name, tuple) else Unix(os.fsdecode(name)))


def _no_address(text: str, option: str, hint: str) -> ConfigError:
    return ConfigError(f"{option} {text}: not HOST:PORT, [HOST]:PORT or unix:PATH", hint=hint)
