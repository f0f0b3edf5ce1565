"""Domain of a URI: its host, as the name of a queue."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from fastjournal.errors import BadRequestError

_HINT = "name the domain, or give a URI with a host, such as https://example.org/"
_NAME = re.compile(r"[0-9a-z_][0-9a-z_-]*(\.[0-9a-z_-]+)*")
_ALLOWED = "a host has letters, digits, '-', '_' and '.', or is an IPv6 address in brackets"


def domain_of(uri: str | bytes) -> str:
    """Return the domain (queue) of a URI: its host in lower case, with its port.

    A host that is not ASCII has its IDNA form (``xn--...``). A port that the URI names, and the
    colons of an IPv6 address, follow as ``%3A``, because a domain holds no colon:
    ``http://Example.org:8080/`` is of ``example.org%3A8080``.

    Raises:
        BadRequestError: It has no host, or one that is neither a host name (letters, digits, ``-``,
            ``_`` and ``.``) nor an address; code ``bad-key``.
    """
    shown = uri.decode(errors="backslashreplace") if isinstance(uri, bytes) else uri
    try:
        text = uri.decode() if isinstance(uri, bytes) else uri
        parts = urlsplit(text)
        host, port = (parts.hostname or "").removesuffix("."), parts.port
        if host and not host.isascii():
            host = _idna(host)
    except ValueError as error:  # also of the port, of UTF-8 and of IDNA
        raise BadRequestError(
            f"{shown!r} has no domain: {error}", code="bad-key", hint=_HINT
        ) from None
    if not host:
        raise BadRequestError(f"{shown!r} has no host", code="bad-key", hint=_HINT)
    if _NAME.fullmatch(host) is None and not _is_ipv6(host):
        raise BadRequestError(
            f"{host!r} is no host name", code="bad-key", hint=f"{_ALLOWED}; or {_HINT}"
        )
    return (host if port is None else f"{host}:{port}").replace(":", "%3A")


def _is_ipv6(host: str) -> bool:
    try:
        return IPv6Address(host).scope_id is None
    except ValueError:
        return False


def _idna(host: str) -> str:
    import idna  # noqa: PLC0415 - its tables are large, and most hosts are ASCII

    return idna.encode(host, uts46=True).decode()
