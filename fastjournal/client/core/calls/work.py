"""Calls about work: enqueue it, lease it, renew the lease, release it, bury it."""

from __future__ import annotations

import os

import msgspec

from fastjournal.client.core.calls import reply_readers
from fastjournal.client.core.calls.base import (
    DATA,
    LISTEN,
    META,
    OVERWRITE,
    WORKED_ON,
    Call,
    Domains,
    checked_count,
    checked_lease,
    checked_token,
    duration,
    expiry,
    key_bytes,
    persisted,
    stamp,
    token_flag,
)
from fastjournal.client.core.results import Jobs, Written
from fastjournal.clock import unique_timestamp
from fastjournal.errors import BadRequestError
from fastjournal.keys import (
    KEY_EXCLUDES,
    deduplication_key,
    default_id,
    job_key,
    journal_key_of,
)
from fastjournal.limits import (
    FAILED_ATTEMPTS_MAX,
    INSTANT_MAX,
    JOB_LEASE_S,
    LEASE_US_MIN,
    LIMIT_MAX,
    NEXT_DOMAINS_MAX,
    PRIORITY_DEFAULT,
    WAIT_WITHOUT_END,
)
from fastjournal.numeric import check_integer
from fastjournal.protocol import Function, Reply, Request, ValueType
from fastjournal.protocol.values import Storable, encode_value
from fastjournal.times import Duration, Instant, duration_us, instant_us, lease_us

__all__ = [
    "WAIT_WITHOUT_END",
    "bury",
    "enqueue",
    "kick",
    "kick_domain",
    "limit",
    "next_",
    "pause",
    "pause_all",
    "peek",
    "purge",
    "release",
    "resume",
    "resume_all",
    "touch",
]


_STALE = frozenset({"stale"})


def enqueue(
    queue: str | bytes | None,
    value: Storable = b"",
    *,
    uri: str | bytes | None = None,
    unique: str | bytes | None = None,
    key: str | bytes | None = None,
    priority: int | None = None,
    delay: Duration | None = None,
    not_before: Instant | None = None,
    expires: Instant | None = None,
    persist: bool = True,
    timestamp_us: int | None = None,
) -> Call[Written]:
    """Enqueue a job.

    Args:
        queue: Its queue (domain): not empty, without ``:``. None: the key names it.
        value: Payload: bytes, str, int, float, bool or None. A dict or a list is written as JSON.
        uri: Resource that the job is about, over all queues: of the jobs of one URI one waits, the
            newest, also where they were enqueued in different queues.
        unique: Deduplication key within the queue: of the jobs of one value one waits, the newest.
        key: The whole journal key, for a job that has a name of its own. It replaces a waiting job
            with the same key.
        priority: 0 (first) to 255 (last); None: 128.
        delay: Duration from now, by this machine's clock, before which it must not start.
        not_before: Instant before which it must not start. None, without a delay: now, so that jobs
            of one priority are delivered in the order of these calls.
        expires: Instant at which it vanishes, in the future.
        persist: Return only once it is on disk, as the daemon's sync policy says.
        timestamp_us: Microseconds since 1970; the larger one wins. None: this machine's time.

    Returns:
        The timestamp, the key and the outcome: ``new``, ``replaced`` or ``kept``. After a lost
        connection it is sent again with these, which changes nothing if it was delivered.

    Raises:
        RefusedError: ``worked-on`` (the job of this key is leased; enqueue it later), ``exists``
            (the key or the URI is that of another entry), ``locked``, ``clock-skew``.
        BadRequestError: Arguments that exclude each other, or that no daemon accepts; it is a
            ``ValueError``.
    """
    timestamp = stamp(timestamp_us) or unique_timestamp()
    flags = persisted(persist)
    if key is not None:
        if queue is not None or (priority, delay, not_before) != (None, None, None):
            raise BadRequestError(KEY_EXCLUDES)
        name, domain = job_key(key)
        second_key = deduplication_key(domain, uri, unique)
        flags |= OVERWRITE | WORKED_ON
    else:
        if queue is None:
            raise BadRequestError("there is neither a queue nor a key")
        second_key = deduplication_key(queue, uri, unique)
        # a job that names nothing is equal to no other, of the child of a fork neither
        writer = os.urandom(4).hex() if second_key is None else ""
        name = journal_key_of(
            queue,
            default_id(timestamp, second_key, writer),
            _start_us(timestamp, delay, not_before),
            PRIORITY_DEFAULT if priority is None else priority,
        )
    value_type, data = encode_value(value)
    request = Request(
        Function.SET,
        flags=flags,
        timestamp=timestamp,
        key=name,
        second_key=second_key,
        value_type=value_type,
        value=data,
        timeout=expiry(expires),
    )
    return Call(request, reply_readers.set_outcome, kept_codes=_STALE)


def _start_us(timestamp: int, delay: Duration | None, not_before: Instant | None) -> int:
    """Return the instant before which a job must not start, in microseconds."""
    if not_before is not None:
        if delay is not None:
            raise BadRequestError("delay and not_before exclude each other")
        return instant_us("not_before", not_before)
    return timestamp + (0 if delay is None else duration_us("delay", delay))


def _selected(
    domain: Domains, ordered: bool, prefix: str | bytes | None, attempts_max: int = 0
) -> tuple[bytes, bytes]:
    """Return the key and the value of a request for jobs: one domain, several, or a prefix.

    Raises:
        BadRequestError: Both domains and a prefix, none, too many, or a name that is not UTF-8.
    """
    options: dict[str, object] = {"attempts": attempts_max} if attempts_max else {}
    key = b""
    if isinstance(domain, (str, bytes)):
        key = key_bytes(domain)
        if ordered:
            raise BadRequestError("ordered needs a list of domains")
    else:
        if not 0 < len(domain) <= NEXT_DOMAINS_MAX:
            raise BadRequestError(
                f"{len(domain)} domains: name 1 to {NEXT_DOMAINS_MAX}, or give a prefix"
            )
        options["domains"] = [_text_of(name) for name in domain]
        if ordered:
            options["ordered"] = True
    if prefix is not None:
        if domain:
            raise BadRequestError("give domains or a prefix, not both")
        options["prefix"] = _text_of(prefix)
    return key, msgspec.json.encode(options) if options else b""


def _text_of(name: str | bytes) -> str:
    try:
        return key_bytes(name).decode()
    except UnicodeDecodeError as error:
        raise BadRequestError(f"{name!r}: a name in a list, and a prefix, are UTF-8") from error


def next_(
    domain: Domains = b"",
    *,
    ordered: bool = False,
    prefix: str | bytes | None = None,
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
        domain: Jobs of this domain only, or of these (at most 64), which take turns; empty: of
            any.
        ordered: Of several domains, the first one that has work is served first.
        prefix: Jobs of all domains whose names begin so; they take turns.
        count: At most that many, 1 to 65,535; the daemon gives at most 500.
        lease: Length of the lease; None: 5 minutes; 0: that of the domain (``limit``), else the
            daemon's default, which is a day.
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
    key, value = _selected(domain, ordered, prefix, bound)
    request = Request(
        Function.NEXT,
        flags=flags,
        key=key,
        value_type=ValueType.STRING if value else None,
        value=value,
        count=checked_count("count", count),
        timeout=None if delete else _length_of(lease),
        ttl=None if wait is None or endless else duration("wait", wait),
    )
    return Call(request, reply_readers.jobs, undo=None if delete else reply_readers.release_all)


def peek(
    domain: Domains = b"",
    *,
    ordered: bool = False,
    prefix: str | bytes | None = None,
    count: int = 1,
    lease: Duration | None = None,
    data: bool = True,
    meta: bool = False,
) -> Call[Jobs]:
    """Return the jobs that ``next`` would lease now, in work order, without a lease.

    A paused domain that is named shows what it would give were it not paused.

    Args:
        domain: Jobs of this domain only, or of these; empty: as the domains would take turns.
        ordered: As ``next`` would be given it.
        prefix: As ``next`` would be given it.
        count: At most that many, 1 to 65,535; the daemon shows at most 500.
        lease: As ``next`` would be given it: with 0 it ends before a domain with another default
            lease (``limit``).
        data: Read the values, not only their types.
        meta: Return the metadata too.

    Raises:
        RefusedError: ``not-readable``, ``busy``.
        BadRequestError: An argument that no daemon would take.
    """
    key, value = _selected(domain, ordered, prefix)
    request = Request(
        Function.PEEK,
        flags=(DATA if data else 0) | (META if meta else 0),
        key=key,
        value_type=ValueType.STRING if value else None,
        value=value,
        count=checked_count("count", count),
        timeout=_length_of(lease),
    )
    return Call(request, _peeked)


def _length_of(lease: Duration | None) -> int | None:
    """Return the length of a lease as the wire has it; None: the daemon's default."""
    return checked_lease(JOB_LEASE_S if lease is None else lease)


def _peeked(_request: Request, reply: Reply) -> Jobs:
    entries = [reply_readers.to_entry(pair) for pair in reply.pairs or ()]
    return Jobs(None, None if entries else reply.timeout, entries)


def release(
    key: str | bytes,
    token: int,
    *,
    delay: Duration | None = None,
    error: str | None = None,
    attempts_max: int = 0,
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
        attempts_max: With an ``error``: failed attempts, this one included, after which it is
            buried; 0: no other bound than those.

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
        count=check_integer("attempts_max", attempts_max, 0, FAILED_ATTEMPTS_MAX) or None,
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
        BadRequestError: The name is empty.
    """
    name = key_bytes(domain)
    if not name:
        raise BadRequestError("the domain is empty", hint="all domains together: pause_all()")
    request = Request(Function.PAUSE, key=name, ttl=duration_us("duration", duration))
    return Call(request, reply_readers.nothing)


def pause_all(duration: Duration | None = None) -> Call[None]:
    """Pause all domains, those to come too: NEXT delivers nothing; 0 ends this pause.

    The pauses of single domains stay, and go on after it. It outlives a restart of the daemon.

    Args:
        duration: How long; None: until ``resume_all``.

    Raises:
        RefusedError: ``forbidden``: the token lacks the right admin for everything.
    """
    ttl = INSTANT_MAX if duration is None else duration_us("duration", duration)
    return Call(Request(Function.PAUSE, key=b"", ttl=ttl), reply_readers.nothing)


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
        lease: Length of a lease where the request names none, as ``next(lease=0)``.
        attempts: Failed attempts after which an entry is buried; -1: never.

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
        name: check_integer(name, number, -1 if name == "attempts" else 0, LIMIT_MAX)
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


def resume_all() -> Call[None]:
    """End the pause of all domains together; single domains may be paused still."""
    return pause_all(0)
