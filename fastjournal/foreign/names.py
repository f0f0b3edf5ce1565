"""Names of queues as domains: percent-escaped where a domain cannot hold a byte.

A domain holds no ``:``. So ``:`` becomes ``%3A``, and ``%`` becomes ``%25``: no two queues become
one domain, and the name of the queue follows from its domain.
"""

from __future__ import annotations

import re

_ESCAPED = re.compile(rb"%(3A|25)")
_ESCAPES = {b"3A": b":", b"25": b"%"}


def domain_of(name: bytes) -> bytes:
    """Return the domain of a queue or tube of this name."""
    return name.replace(b"%", b"%25").replace(b":", b"%3A")


def name_of(domain: bytes) -> bytes:
    """Return the name of the queue that has this domain; of any other domain itself."""
    name = _ESCAPED.sub(lambda found: _ESCAPES[found[1]], domain)
    return name if domain_of(name) == domain else domain
