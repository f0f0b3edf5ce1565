"""Address of a daemon: ``HOST:PORT``, ``[::1]:PORT``, ``tls://HOST:PORT`` or ``unix:PATH``.

Several with commas between them are a list: the nodes of one remote log, of which one serves.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from fastjournal.errors import BadRequestError
from fastjournal.limits import CLIENT_KEEPALIVE

_PORT = 9923
"""The daemon's, unless it was told another one."""
DEFAULT_ADDRESS = f"127.0.0.1:{_PORT}"
_LABEL_CHARACTERS_MAX = 63
_TLS = "tls://"
_HINT = "write HOST:PORT, [::1]:PORT, tls://HOST:PORT or unix:PATH, several with commas"

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in CLIENT_KEEPALIVE.items()
        if hasattr(socket, name)  # macOS has others
    ),
]
"""Arguments of ``setsockopt`` for a connection to a TCP address."""


class TcpAddress(NamedTuple):
    """A host name or IP address, and a port."""

    host: str
    port: int
    tls: bool = False
    """It is written with ``tls://``; without, options may still ask for TLS."""

    def __str__(self) -> str:
        scheme = _TLS if self.tls else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}{host}:{self.port}"


class UnixAddress(NamedTuple):
    """A socket in the file system."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address: TypeAlias = TcpAddress | UnixAddress


class Servers:
    """Addresses of a list, and the one in use: a client stays with it until it fails.

    Args:
        addresses: At least one, in the order in which they are tried.

    Raises:
        BadRequestError: One is there twice, or only some TCP addresses have ``tls://``; code
            ``bad-address``.
    """

    def __init__(self, addresses: Iterable[Address]) -> None:
        self._addresses = tuple(addresses)
        self._turn = 0
        tls = set()
        for number, address in enumerate(self._addresses):
            if address in self._addresses[:number]:
                raise BadRequestError(
                    f"{str(address)!r} is there twice",
                    code="bad-address",
                    hint="write each address once",
                )
            if isinstance(address, TcpAddress):
                tls.add(address.tls)
        if len(tls) > 1:
            raise BadRequestError(
                f"{str(self)!r} has tls:// at some addresses only",
                code="bad-address",
                hint="write it at each HOST:PORT, or at none",
            )

    def __str__(self) -> str:
        return ",".join(map(str, self._addresses))

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def current(self) -> Address:
        """The address in use: that of the last connection, at first the first one."""
        return self._addresses[self._turn]

    def in_turn(self) -> tuple[Address, ...]:
        """Return all of them, from the one in use on."""
        return self._addresses[self._turn :] + self._addresses[: self._turn]

    def use(self, address: Address) -> None:
        """Make this the address in use."""
        self._turn = self._addresses.index(address)

    def move_on(self) -> None:
        """Make the next one the address in use."""
        self._turn = (self._turn + 1) % len(self._addresses)


def parse_servers(*texts: str) -> Servers:
    """Return the addresses of lists with commas, such as ``a.example:9923,b.example:9923``.

    Raises:
        BadRequestError: One of them is no address, is there twice, or has ``tls://`` while another
            one has not; code ``bad-address``.
    """
    parts = [part.strip() for text in texts for part in text.split(",")]
    if len(parts) > 1 and "" in parts:
        raise BadRequestError(
            f"{','.join(texts)!r} has an empty address: a comma too many",
            code="bad-address",
            hint="write HOST:PORT,HOST:PORT",
        )
    return Servers(map(parse_address, parts))


def parse_address(text: str) -> Address:
    """Return the address that ``text`` names.

    Raises:
        BadRequestError: It names none; code ``bad-address``.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path or "\0" in path:
            raise BadRequestError(f"{text!r} has no path", code="bad-address", hint=_HINT)
        return UnixAddress(path)
    host, colon, port = text.removeprefix(_TLS).rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon and _is_host(port):
        raise BadRequestError(
            f"{text!r} is no address: write HOST:PORT",
            code="bad-address",
            hint=f"as in {text}:{_PORT}",
        )
    malformed = (":" in host) != bracketed or "[" in host or "]" in host
    if not colon or malformed or not (bracketed or _is_host(host)):
        raise BadRequestError(f"{text!r} is no address", code="bad-address", hint=_HINT)
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise BadRequestError(
            f"{text!r} has no port from 1 to 65535", code="bad-address", hint=_HINT
        )
    return TcpAddress(host, int(port), text.startswith(_TLS))


def _is_host(host: str) -> bool:
    """Whether the resolver takes it; it raises UnicodeError for what it does not take."""
    try:
        host.encode("ascii" if host.isascii() else "idna")
    except UnicodeError:
        return False
    return "\0" not in host and all(
        0 < len(label) <= _LABEL_CHARACTERS_MAX for label in host.removesuffix(".").split(".")
    )
