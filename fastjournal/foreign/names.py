"""Names of queues as domains: percent-escaped where a domain cannot hold a byte.

A domain holds no ``:``. So ``:`` becomes ``%3A``, and ``%`` becomes ``%25``: no two queues become
one domain, and the name of the queue follows from its domain.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import google_crc32c

_ESCAPED = re.compile(rb"%(3A|25)")
_ESCAPES = {b"3A": b":", b"25": b"%"}


def domain_of(name: bytes) -> bytes:
    """Return the domain of a queue or tube of this name."""
    return name.replace(b"%", b"%25").replace(b":", b"%3A")


def name_of(domain: bytes) -> bytes:
    """Return the name of the queue that has this domain; of any other domain itself."""
    name = _ESCAPED.sub(lambda found: _ESCAPES[found[1]], domain)
    return name if domain_of(name) == domain else domain


class FittedName(NamedTuple):
    """Name of a queue for a domain."""

    name: bytes
    exact: bool
    """Whether an import of the queue gives the same domain."""


def fit_name(
    domain: bytes, not_allowed: re.Pattern[bytes], bytes_max: int, *, utf8: bool = False
) -> FittedName:
    """Return a name for the queue of a domain.

    A name that the other program does not take has ``_`` for each byte that is not allowed, and at
    its end 8 hex digits of the CRC-32C of the domain, so that no two domains become one queue.

    Args:
        domain: Domain.
        not_allowed: Matches each byte that the name may not have.
        bytes_max: Bytes of the longest name.
        utf8: The name has to be UTF-8.
    """
    name = name_of(domain)
    fits = len(name) <= bytes_max and not_allowed.search(name) is None
    if utf8 and fits:
        try:
            name.decode()
        except UnicodeDecodeError:
            fits = False
    if fits:
        return FittedName(name, domain_of(name) == domain)
    mark = b"_%08x" % google_crc32c.value(domain)
    fitted = not_allowed.sub(b"_", name)[: bytes_max - len(mark)]
    if utf8:
        fitted = (
            fitted.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "_").encode()
        )
    return FittedName(fitted + mark, exact=False)
