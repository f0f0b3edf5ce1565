"""Reply to a TOUCH, for scripted daemons: the token is the end of the lease by its own clock."""

from __future__ import annotations

from fastjournal.protocol import Reply, Request

NOW_US = 1_000_000_000_000
"""Clock of these daemons; that of the clients shows another time."""


def renewed_lease(request: Request) -> Reply:
    """Return the reply to a TOUCH that is carried out."""
    assert request.ttl is not None
    return Reply(request.identifier, timestamp=NOW_US, timeout=NOW_US + request.ttl)
