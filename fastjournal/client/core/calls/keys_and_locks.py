"""Calls about the keys and the lock of an entry: rename, link, lock, unlock."""

from __future__ import annotations

from fastjournal.client.core.calls import reply_readers
from fastjournal.client.core.calls.base import (
    OVERWRITE,
    UPDATE_TIMEOUT,
    Call,
    duration,
    key_bytes,
    new_key_bytes,
    persisted,
    stamp,
)
from fastjournal.client.core.results import Written
from fastjournal.protocol import Function, Request
from fastjournal.times import Duration

__all__ = ["link", "lock", "rename", "unlock"]


def lock(key: str | bytes, *, timeout: Duration | None = None, renew: bool = False) -> Call[None]:
    """Lock an entry for this connection: writes of others get ``locked``, reads continue.

    The lock ends with ``unlock``, with its time, and with the connection, so also where that is
    lost; ``locked`` gives a block that shows this. The holder of a lock sets a new end by this.

    Args:
        key: Any of its keys.
        timeout: Duration; None: 60 s.
        renew: Only set a new end of the lock that this connection holds, to keep it. A lock that
            ended meanwhile is not taken again: others may have had it and written.

    Raises:
        RefusedError: ``not-found``, ``locked`` (another connection holds it), ``busy``; with
            ``renew`` ``not-owner`` (this connection does not hold it, or no more).
    """
    request = Request(
        Function.LOCK,
        flags=UPDATE_TIMEOUT if renew else 0,
        key=key_bytes(key),
        timeout=duration("timeout", timeout),
    )
    return Call(request, reply_readers.nothing)


def unlock(key: str | bytes) -> Call[None]:
    """End a lock of this connection.

    Raises:
        RefusedError: ``not-found`` (no entry, or the lock is over), ``not-owner``. Where it was
            sent again after a lost connection, ``maybe_done`` is set: the lock ended by this, or
            before it with the connection.
    """
    return Call(Request(Function.UNLOCK, key=key_bytes(key)), reply_readers.nothing)


def rename(
    key: str | bytes,
    new_key: str | bytes,
    *,
    overwrite: bool = False,
    persist: bool = True,
    timestamp_us: int | None = None,
    plain: bool = False,
) -> Call[Written]:
    """Change the primary key of an entry; its value, further keys and all else stay.

    Never sent twice: where the connection is lost, it may have moved (``maybe_done``).

    Args:
        key: Its primary key.
        new_key: Where it goes. A journal key makes it work, any other key makes it plain data.
        overwrite: Replace an entry that stands there.
        persist: Keep the tombstone of the old key on disk, also where the entry is not.
        timestamp_us: Microseconds since 1970; an entry with a later one stays. None: this
            machine's time.
        plain: The new key may be one that no worker gets, as for ``set``.

    Raises:
        RefusedError: ``not-found``, ``exists``, ``stale``, ``locked``, ``worked-on``, ``bad-key``.
    """
    request = Request(
        Function.RENAME,
        flags=persisted(persist) | (OVERWRITE if overwrite else 0),
        timestamp=stamp(timestamp_us),
        key=key_bytes(key),
        second_key=new_key_bytes(new_key, plain=plain),
    )
    return Call(request, reply_readers.written)


def link(
    key: str | bytes, new_key: str | bytes, *, persist: bool = True, plain: bool = False
) -> Call[None]:
    """Add a key to an entry.

    Never sent twice: where the connection is lost, it may stand there (``maybe_done``).

    Args:
        key: Any of its keys.
        new_key: A further key. It changes neither domain nor delivery, also as a journal key.
        persist: Keep it on disk.
        plain: The new key may be one that no worker gets, as for ``set``.

    Raises:
        RefusedError: ``not-found``, ``exists``, ``locked``, ``too-large``.
        BadRequestError: A key that no daemon would take.
    """
    request = Request(
        Function.LINK,
        flags=persisted(persist),
        key=key_bytes(key),
        second_key=new_key_bytes(new_key, plain=plain),
    )
    return Call(request, reply_readers.nothing)
