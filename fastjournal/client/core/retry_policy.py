"""Retry policy: idempotent requests are sent again where the connection was lost before the reply.

Such a request may have been carried out or not. It is repeated where that changes nothing that the
first time had not changed: reads, and writes that carry what makes them one (a timestamp, a token,
a wanted end state). Functions that count or take (ADD, NOT, TRUNCATE, RENAME, LINK, KICK, NEXT) are
sent once.
docs/decisions/client-library.md#0160 says why, one by one.
"""

from __future__ import annotations

from fastjournal.protocol import Flag, Function, Request
from fastjournal.protocol.declaration import Retry

_UPDATE_TIMEOUT = int(Flag.UPDATE_TIMEOUT)
_ONCE = Retry(repeat=False)

RULES: dict[int, Retry] = {int(function): function.declared.retry for function in Function}


def rule_of(request: Request) -> Retry:
    """Return how a request is treated whose reply was lost."""
    leases = request.timeout is not None and not request.flags & _UPDATE_TIMEOUT
    if request.function == Function.GET and leases:
        return _ONCE
    return RULES.get(request.function, _ONCE)
