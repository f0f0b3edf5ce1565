"""Calls about the connection and the daemon itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastjournal.client.core.calls import reply_readers
from fastjournal.client.core.calls.base import DATA, META, Call, checked_count, key_bytes
from fastjournal.client.core.stats import DaemonStats, DomainStats, EntryExplanation, EntryStats
from fastjournal.errors import BadRequestError
from fastjournal.protocol import Function, Request, ValueType

__all__ = [
    "auth",
    "cancellation",
    "daemon_stats",
    "domain_stats",
    "entry_stats",
    "explain",
    "nop",
    "quit_",
    "remote_checkpoint",
    "remote_handover",
    "snapshot",
    "stats",
]


def nop() -> Call[datetime]:
    """Do nothing; return the daemon's clock."""
    return Call(Request(Function.NOP), reply_readers.daemon_clock)


def quit_() -> Call[None]:
    """Ask the daemon to answer what it owes (a waiting NEXT with nothing) and to close."""
    return Call(Request(Function.QUIT), reply_readers.nothing)


def auth(token: str | bytes) -> Call[None]:
    """Authenticate the connection with an access token.

    The clients do this by themselves at every connect where they were given ``auth=``.

    Raises:
        RefusedError: ``auth-failed``.
    """
    data = token.encode() if isinstance(token, str) else token
    request = Request(Function.AUTH, value_type=ValueType.BUFFER, value=data)
    return Call(request, reply_readers.nothing)


def cancellation(identifier: int) -> Request:
    """Return what ends a NEXT that waits, or a subscription, of the connection it is sent on."""
    return Request(Function.CANCEL, count=identifier)


def snapshot(*, keep: int | None = None) -> Call[str]:
    """Take a snapshot; return the path of its directory on the daemon's machine.

    Never sent twice: where the connection is lost, it may have been taken (``maybe_done``). It may
    take long, up to an hour; on a connection that is shared, others' replies wait for it.

    Args:
        keep: Remove all but that many, the newest, this one among them; 1 to 65,535. None: remove
            none.

    Raises:
        RefusedError: ``not-persisted``.
        BadRequestError: The number to keep is none.
    """
    count = None if keep is None else checked_count("keep", keep)
    return Call(Request(Function.SNAPSHOT, count=count), reply_readers.text)


def remote_checkpoint() -> Call[str]:
    """Have the daemon store a checkpoint of its remote log; return its epoch and number.

    It may take long, up to an hour, as a snapshot.

    Raises:
        RefusedError: ``unknown-function``: the daemon has no remote log. ``not-persisted``: the
            store or the disk has refused it. ``read-only``.
    """
    return Call(Request(Function.REMOTE, key=b"checkpoint"), reply_readers.text)


def remote_handover() -> Call[None]:
    """Have the daemon seal its epoch of the remote log and end, so that a standby takes over.

    Never sent twice: where the connection is lost, it may have been done (``maybe_done``).

    Raises:
        RefusedError: ``unknown-function``: the daemon has no remote log.
    """
    return Call(Request(Function.REMOTE, key=b"handover"), reply_readers.nothing)


def stats(key: str | bytes = b"", *, data: bool = False) -> Call[dict[str, Any]]:
    """Return counts of the daemon or of a domain or, with ``data``, the state of one entry.

    This is the JSON object as it came; ``daemon_stats``, ``domain_stats`` and ``entry_stats`` give
    what this version knows of it, with types.

    Raises:
        RefusedError: ``not-found``, ``bad-key``.
    """
    return Call(_stats(key, data=data), reply_readers.json_object)


def daemon_stats(*, workers: bool = False) -> Call[DaemonStats]:
    """Return counts of the whole daemon.

    Args:
        workers: Include the connections that hold leases, or wait for work.
    """
    request = Request(Function.STATS, flags=META if workers else 0)
    return Call(request, reply_readers.json_of(DaemonStats))


def domain_stats(domain: str | bytes) -> Call[DomainStats]:
    """Return counts of a domain; an unknown one has none.

    Raises:
        RefusedError: ``bad-key``.
        BadRequestError: The name is empty.
    """
    if not domain:
        raise BadRequestError("the name of a domain is empty", code="bad-key")
    return Call(_stats(domain, data=False), reply_readers.json_of(DomainStats))


def entry_stats(key: str | bytes) -> Call[EntryStats]:
    """Return the state of the entry under a key, without its value.

    Raises:
        RefusedError: ``not-found``.
    """
    return Call(_stats(key, data=True), reply_readers.json_of(EntryStats))


def explain(key: str | bytes) -> Call[EntryExplanation]:
    """Return the state of the entry under a key, and what keeps it from being delivered now.

    A key without an entry that has a tombstone has the state ``deleted``.

    Raises:
        RefusedError: ``not-found``: there is neither an entry nor a tombstone.
    """
    request = Request(Function.STATS, flags=DATA | META, key=key_bytes(key))
    return Call(request, reply_readers.json_of(EntryExplanation))


def _stats(key: str | bytes, *, data: bool) -> Request:
    return Request(Function.STATS, flags=DATA if data else 0, key=key_bytes(key))
