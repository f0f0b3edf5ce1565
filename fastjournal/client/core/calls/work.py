"""Calls about work: lease it, renew the lease, release it, bury it."""

from __future__ import annotations

import msgspec

from fastjournal.client.core.calls import reply_readers
from fastjournal.client.core.calls.base import (
    DATA,
    LISTEN,
    META,
    OVERWRITE,
    Call,
    checked_count,
    checked_lease,
    checked_token,
    duration,
    key_bytes,
    persisted,
    token_flag,
)
from fastjournal.client.core.results import Jobs
from fastjournal.limits import (
    FAILED_ATTEMPTS_MAX,
    LEASE_US_MIN,
    LIMIT_MAX,
    WAIT_WITHOUT_END,
)
from fastjournal.numeric import check_integer
from fastjournal.protocol import Function, Reply, Request, ValueType
from fastjournal.times import Duration, duration_us, lease_us

__all__ = [
    "WAIT_WITHOUT_END",
    "bury",
    "kick",
    "kick_domain",
    "limit",
    "next_",
    "pause",
    "peek",
    "purge",
    "release",
    "resume",
    "touch",
]


def next_(
    domain: str | bytes = b"",
    *,
    count: int = 1,
    lease: Duration | None = None,
    wait: Duration | None = None,
    delete: bool = False,
    meta: bool = False,
    attempts_max: int = 0,
) -> Call[Jobs]:
    """Lease due jobs, in work order.

    Never sent twice: where the connection is lost, entries may be leased (``maybe_done``); they
    come back when that lease ends.

    Args:
        domain: Jobs of this domain only; empty: the domains take turns.
        count: At most that many, 1 to 65,535; the daemon gives at most 500.
        lease: Length of the lease; None or 0: the daemon's default.
        wait: Wait for work at most that long (``WAIT_WITHOUT_END``); None: return at once.
        delete: Delete the entries instead of leasing them.
        meta: Return the metadata too.
        attempts_max: Failed attempts after which the daemon buries an entry of this lease, also
            where the worker does not live to report one; 0: as the domain says. A smaller bound of
            the domain or the daemon holds beside it.

    Raises:
        RefusedError: ``shutting-down``, ``busy`` (too many wait on this connection).
        BadRequestError: An argument that no daemon would take.
    """
    flags = DATA | (META if meta else 0)
    flags |= OVERWRITE if delete else 0
    flags |= LISTEN if wait is not None else 0
    endless = wait == WAIT_WITHOUT_END
    bound = check_integer("attempts_max", attempts_max, 0, FAILED_ATTEMPTS_MAX)
    request = Request(
        Function.NEXT,
        flags=flags,
        key=key_bytes(domain),
        value_type=ValueType.STRING if bound else None,
        value=msgspec.json.encode({"attempts": bound}) if bound else b"",
        count=checked_count("count", count),
        timeout=checked_lease(lease),
        ttl=None if wait is None or endless else duration("wait", wait),
    )
    return Call(request, reply_readers.jobs, undo=None if delete else reply_readers.release_all)


def peek(
    domain: str | bytes = b"",
    *,
    count: int = 1,
    lease: Duration | None = None,
    data: bool = True,
    meta: bool = False,
) -> Call[Jobs]:
    """Return the jobs that ``next`` would lease now, in work order, without a lease.

    A paused domain that is named shows what it would give were it not paused.

    Args:
        domain: Jobs of this domain only; empty: as the domains would take turns.
        count: At most that many, 1 to 65,535; the daemon shows at most 500.
        lease: As ``next`` would be given it: with None or 0 it ends before a domain with another
            default lease (``limit``).
        data: Read the values, not only their types.
        meta: Return the metadata too.

    Raises:
        RefusedError: ``not-readable``, ``busy``.
        BadRequestError: An argument that no daemon would take.
    """
    request = Request(
        Function.PEEK,
        flags=(DATA if data else 0) | (META if meta else 0),
        key=key_bytes(domain),
        count=checked_count("count", count),
        timeout=checked_lease(lease),
    )
    return Call(request, _peeked)


def _peeked(_request: Request, reply: Reply) -> Jobs:
    entries = [reply_readers.to_entry(pair) for pair in reply.pairs or ()]
    return Jobs(None, None if entries else reply.timeout, entries)


def release(
    key: str | bytes,
    token: int,
    *,
    delay: Duration | None = None,
    error: str | None = None,
) -> Call[None]:
    """Release a leased entry: it waits again.

    With an ``error`` the attempt failed: the daemon counts it, keeps the error, delays the entry
    longer with each failure, and buries it at the max attempts of the domain or of the lease.

    Where it was sent again after a lost connection, ``lease-lost`` and ``not-found`` count as
    done: the entry is no longer held, as was asked.

    Args:
        key: Any of its keys.
        token: Its lease token.
        delay: It is due again that long from now; None: as before, or with an
            ``error`` after the daemon's back-off.
        error: Why the attempt failed, at most 4,096 bytes of UTF-8; None: it did not.

    Raises:
        RefusedError: ``lease-lost``, ``not-found``.
    """
    request = Request(
        Function.RELEASE,
        flags=token_flag(token),
        key=key_bytes(key),
        value_type=None if error is None else ValueType.STRING,
        value=b"" if error is None else _reason(error),
        timeout=checked_token(token),
        ttl=duration("delay", delay),
    )
    return Call(request, reply_readers.nothing)


def touch(key: str | bytes, token: int | None = None, *, ttl: Duration) -> Call[int | None]:
    """Renew a lease (with its token): it ends ``ttl`` from now; return the new token.

    Without a token: the entry expires ``ttl`` from now, and None is returned. A renewal that is
    sent again after a lost reply, with another ``ttl`` too, is good for that long from then on, at
    least. Where the daemon was restarted meanwhile it is ``lease-lost`` (``maybe_done``): the token
    before is not known.

    Raises:
        RefusedError: ``lease-lost``, ``not-found``, ``locked``.
    """
    request = Request(
        Function.TOUCH,
        flags=token_flag(token),
        key=key_bytes(key),
        timeout=checked_token(token),
        ttl=lease_us("ttl", ttl, zero=False) if token is not None else duration("ttl", ttl),
    )
    return Call(request, reply_readers.token if token is not None else reply_readers.nothing)


def bury(key: str | bytes, token: int | None = None, *, reason: str = "") -> Call[None]:
    """Make an entry a dead letter: NEXT does not deliver it until it is kicked.

    Args:
        key: Any of its keys.
        token: Only if this is the entry's lease token; None: a worker that holds it loses the
            lease.
        reason: For people who examine it later; at most 4,096 bytes.

    Raises:
        RefusedError: ``lease-lost``, ``not-found``, ``locked``, ``too-large``.
    """
    request = Request(
        Function.BURY,
        flags=token_flag(token),
        key=key_bytes(key),
        value_type=ValueType.STRING,
        value=_reason(reason),
        timeout=checked_token(token),
    )
    return Call(request, reply_readers.nothing)


def _reason(reason: str) -> bytes:
    if not isinstance(reason, str):
        raise TypeError(f"reason is str, not {type(reason).__name__}")
    return reason.encode("utf-8", "backslashreplace")


def kick(key: str | bytes) -> Call[int]:
    """Make a buried entry ready again; return 1, or 0 if it is not buried.

    Never sent twice: where the connection is lost, it may be kicked (``maybe_done``).

    Raises:
        RefusedError: ``not-found``, ``locked``.
    """
    return Call(Request(Function.KICK, key=key_bytes(key)), reply_readers.how_many)


def kick_domain(domain: str | bytes, *, count: int = 1) -> Call[int]:
    """Make buried entries of a domain ready again, in work order; return how many.

    Never sent twice: where the connection is lost, some may be kicked (``maybe_done``).

    Args:
        domain: Its name.
        count: At most that many, 1 to 65,535; the daemon takes at most 250 at a time.

    Raises:
        RefusedError: ``bad-key``.
        BadRequestError: The count is none.
    """
    request = Request(
        Function.KICK, second_key=key_bytes(domain), count=checked_count("count", count)
    )
    return Call(request, reply_readers.how_many)


def purge(
    domain: str | bytes, *, count: int = 1, overwrite: bool = False, persist: bool = True
) -> Call[int]:
    """Delete entries of a domain that nobody works on; return how many.

    First those that are ready, most urgent first, then the delayed ones, then the dead letters.
    Entries that are leased, or locked by another connection, stay. To delete all of them, repeat
    the call until it returns 0. Never sent twice: if the connection is lost, some may be deleted
    (``maybe_done``).

    Args:
        domain: Its name.
        count: At most that many, 1 to 65,535; the daemon deletes at most 250 at a time.
        overwrite: Leave no tombstones: an older SET of such an entry would count again.
        persist: Return only once it is on disk, as the daemon's sync policy says.

    Raises:
        RefusedError: ``bad-key``.
        BadRequestError: The count is none.
    """
    request = Request(
        Function.PURGE,
        flags=persisted(persist) | (OVERWRITE if overwrite else 0),
        key=key_bytes(domain),
        count=checked_count("count", count),
    )
    return Call(request, reply_readers.how_many)


def pause(domain: str | bytes, duration: Duration) -> Call[None]:
    """Pause a domain: NEXT delivers nothing of it for this long; 0 ends the pause.

    This replaces an earlier pause of it, and outlives a restart of the daemon.

    Raises:
        RefusedError: ``bad-key``, ``busy``.
    """
    request = Request(Function.PAUSE, key=key_bytes(domain), ttl=duration_us("duration", duration))
    return Call(request, reply_readers.nothing)


def limit(
    domain: str | bytes,
    *,
    interval: Duration | None = None,
    jobs: int | None = None,
    lease: Duration | None = None,
    attempts: int | None = None,
) -> Call[None]:
    """Limit how fast a domain is worked off: politeness that no worker can break.

    A number that is None stays as it is; 0 is the daemon's default. The limit outlives a restart of
    the daemon and the entries of the domain.

    Args:
        domain: Its name.
        interval: Least time between two deliveries.
        jobs: Most entries that are leased at once.
        lease: Length of a lease where the request names none.
        attempts: Failed attempts after which an entry is buried.

    Raises:
        RefusedError: ``bad-key``, ``busy`` (too many domains have limits), ``read-only``.
        BadRequestError: A number that no daemon would take.
    """
    given = {
        "interval_us": duration("interval", interval),
        "jobs": jobs,
        "lease_us": None if lease is None else duration_us("lease", lease, least_us=LEASE_US_MIN),
        "attempts": attempts,
    }
    named = {
        name: check_integer(name, number, 0, LIMIT_MAX)
        for name, number in given.items()
        if number is not None
    }
    request = Request(
        Function.LIMIT,
        key=key_bytes(domain),
        value_type=ValueType.STRING,
        value=msgspec.json.encode(named),
    )
    return Call(request, reply_readers.nothing)


def resume(domain: str | bytes) -> Call[None]:
    """End the pause of a domain.

    Raises:
        RefusedError: ``bad-key``.
    """
    return pause(domain, 0)
