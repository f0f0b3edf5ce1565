"""Arguments of requests: checks that several handlers make."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.limits import KEY_BYTES_MAX
from fastjournal.protocol import ErrorCode, Flag, Request
from fastjournald.engine.context import Context
from fastjournald.tables.entry import Entry

WORKED_ON = int(Flag.WORKED_ON)
OVERWRITE = int(Flag.OVERWRITE)
PERSIST = int(Flag.PERSIST)
DATA = int(Flag.DATA)
LISTEN = int(Flag.LISTEN)
META = int(Flag.META)
UPDATE_TIMEOUT = int(Flag.UPDATE_TIMEOUT)
TWO_KEYS = int(Flag.TWO_KEYS)
"""Plain integers: an IntFlag's ``&`` takes ten times as long."""

BAD_KEY = f"{ErrorCode.BAD_KEY} a key has 1 to {KEY_BYTES_MAX} bytes"
NOT_A_DOMAIN = f"{ErrorCode.BAD_KEY} a domain has 1 to {KEY_BYTES_MAX} bytes, none of them ':'"
HALF_TOKEN = f"{ErrorCode.BAD_REQUEST} a lease token needs both WORKED_ON and TIMEOUT"
CLOCK_SKEW = f"{ErrorCode.CLOCK_SKEW} the timestamp is too far ahead of the daemon's clock"
SCARCE = f"{ErrorCode.BUSY} memory is scarce, and the value is large; ask again later"
LOCKED = f"{ErrorCode.LOCKED} another connection has locked the entry"
LIMITED = f"{ErrorCode.BUSY} the limit of the domain allows no further hand-out for now"
READ_ONLY = f"{ErrorCode.READ_ONLY} the disk is nearly full; nothing new is taken until it is not"


def is_key(key: bytes | None) -> bool:
    """Whether something can stand under this key."""
    return bool(key) and len(key or b"") <= KEY_BYTES_MAX


def is_domain(name: bytes) -> bool:
    """Whether a domain may have this name."""
    return 0 < len(name) <= KEY_BYTES_MAX and b":" not in name


def token_of(request: Request) -> int | str | None:
    """Return the lease token of a request for a key, None where it has none, or the error.

    A token that is over is lost, also where the end of the lease was not applied yet.
    """
    key = request.key
    if not key or len(key) > KEY_BYTES_MAX:
        return BAD_KEY
    worked_on = request.flags & WORKED_ON
    if worked_on and request.timeout is not None:
        return request.timeout
    if worked_on or request.timeout is not None:
        return HALF_TOKEN
    return None


def entry_to_change(
    context: Context, session: Hashable, key: bytes, now: int, token: int | None = None
) -> Entry | str:
    """Return the entry under a key, or why the session may not change it now.

    Args:
        context: Context with the store.
        session: The client's.
        key: Any key of the entry.
        now: The present.
        token: Token of the lease that the entry has to have; None: it needs none.
    """
    store = context.store
    entry = store.find(key)
    if entry is None:
        return ErrorCode.NOT_FOUND.value
    if store.locks.locked_to(entry.key, session, now):
        return LOCKED
    if token is not None and (entry.token != token or entry.leased_until <= now):
        return ErrorCode.LEASE_LOST.value
    return entry
