"""PAUSE: deliver no job of a domain for a while."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.limits import (
    INSTANT_MAX,
    PAUSE_BYTES,
    PAUSED_BYTES_MAX,
    PAUSED_DOMAINS_MAX,
)
from fastjournal.protocol import ErrorCode, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import NOT_A_DOMAIN, READ_ONLY, is_domain

_NO_TTL = f"{ErrorCode.BAD_REQUEST} PAUSE needs TTL; 0 resumes"
_TOO_MANY = f"{ErrorCode.BUSY} {PAUSED_DOMAINS_MAX} domains are paused"
_TOO_LARGE = f"{ErrorCode.BUSY} the domains that are paused take {PAUSED_BYTES_MAX} bytes"


def pause(context: Context, _session: Hashable, request: Request, now: int) -> str:
    """Pause a domain until now + ttl, whether it has entries or not; ttl 0 resumes it."""
    name, ttl = request.key, request.ttl
    if not is_domain(name):
        return NOT_A_DOMAIN
    if ttl is None:
        return _NO_TTL
    store = context.store
    paused = name in store.rules.pauses
    if not ttl:
        if paused:
            store.rules.resume(name)
            context.journal.log.paused(name, 0, now)
        return ""
    if not paused and len(store.rules.pauses) >= PAUSED_DOMAINS_MAX:
        return _TOO_MANY
    if not paused and store.rules.pauses.bytes + PAUSE_BYTES + len(name) > PAUSED_BYTES_MAX:
        return _TOO_LARGE
    if context.read_only:
        return READ_ONLY
    until = min(now + ttl, INSTANT_MAX)
    store.rules.pause(name, until)
    context.journal.log.paused(name, until, now)
    return ""
