"""Address of a daemon: ``HOST:PORT``, ``[::1]:PORT``, ``tls://HOST:PORT`` or ``unix:PATH``."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from fastjournal.errors import BadRequestError

_PORT = 9923
"""The daemon's, unless it was told another one."""
DEFAULT_ADDRESS = f"127.0.0.1:{_PORT}"
_LABEL_CHARACTERS_MAX = 63
_TLS = "tls://"
_HINT = "write HOST:PORT, [::1]:PORT, tls://HOST:PORT or unix:PATH"


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
