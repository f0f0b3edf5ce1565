"""Which requests are sent again after the connection was lost before their reply came.

Such a request may have been carried out or not. It is repeated where that changes nothing that the
first time had not changed: reads, and writes that carry what makes them one (a timestamp, a token,
a wanted end state). What counts or takes (ADD, NOT, TRUNCATE, RENAME, LINK, KICK, NEXT) is not.
docs/decisions/client-library.md#0160 says why, one by one.
"""

from __future__ import annotations

import msgspec

from fastjournal.protocol import Flag, Function, Request

_UPDATE_TIMEOUT = int(Flag.UPDATE_TIMEOUT)


class Rule(msgspec.Struct, frozen=True):
    """How a request is treated whose reply was lost with its connection."""

    repeat: bool
    """Send it again."""
    changes: bool = True
    """It changes something, so that its caller has to know that it may have been done."""
    done_codes: frozenset[str] = frozenset()
    """Refusals of a repeat that mean: what was asked for is so."""


_READ = Rule(repeat=True, changes=False)
_AGAIN = Rule(repeat=True)
_ONCE = Rule(repeat=False)

RULES: dict[int, Rule] = {
    Function.NOP: _READ,
    Function.QUIT: _ONCE,
    Function.SET: Rule(repeat=True, done_codes=frozenset({"stale"})),
    Function.GET: _READ,
    Function.DELETE: Rule(repeat=True, done_codes=frozenset({"not-found"})),
    Function.ADD: _ONCE,
    Function.NOT: _ONCE,
    Function.TRUNCATE: _ONCE,
    Function.LOCK: _AGAIN,
    Function.UNLOCK: Rule(repeat=True, done_codes=frozenset({"not-found", "not-owner"})),
    Function.RENAME: _ONCE,
    Function.NEXT: _ONCE,
    Function.LINK: _ONCE,
    Function.RELEASE: Rule(repeat=True, done_codes=frozenset({"lease-lost", "not-found"})),
    Function.TOUCH: _AGAIN,
    Function.BURY: _AGAIN,
    Function.KICK: _ONCE,
    Function.STATS: _READ,
    Function.PAUSE: _AGAIN,
    Function.AUTH: _ONCE,
    Function.CANCEL: _ONCE,
    Function.SNAPSHOT: _ONCE,
}


def rule_of(request: Request) -> Rule:
    """Return how a request is treated whose reply was lost."""
    leases = request.timeout is not None and not request.flags & _UPDATE_TIMEOUT
    if request.function == Function.GET and leases:
        return _ONCE
    return RULES.get(request.function, _ONCE)
