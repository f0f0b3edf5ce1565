"""Calls about one entry: its value, its keys (rename, link) and its lock."""

from __future__ import annotations

from fastjournal.client.core.calls import reply_readers
from fastjournal.client.core.calls.base import (
    DATA,
    META,
    OVERWRITE,
    UPDATE_TIMEOUT,
    WORKED_ON,
    Call,
    checked_lease,
    checked_token,
    duration,
    expiry,
    key_bytes,
    new_key_bytes,
    persisted,
    stamp,
    token_flag,
)
from fastjournal.client.core.results import Entry, Written
from fastjournal.clock import unique_timestamp
from fastjournal.errors import BadRequestError
from fastjournal.keys import default_id, journal_key_of, second_key_of
from fastjournal.numeric import check_integer
from fastjournal.protocol import Function, Request
from fastjournal.protocol.values import Storable, encode_value
from fastjournal.times import Duration, Instant

_KEY_HINT = "give a key, or None and a URI, whose host is the domain then"

__all__ = [
    "add",
    "delete",
    "flip",
    "get",
    "link",
    "lock",
    "rename",
    "set_",
    "truncate",
    "unlock",
]


def set_(
    key: str | bytes | None,
    value: Storable = b"",
    *,
    uri: str | bytes | None = None,
    persist: bool = True,
    overwrite: bool = False,
    expires: Instant | None = None,
    ttl: Duration | None = None,
    timestamp_us: int | None = None,
    plain: bool = False,
) -> Call[Written]:
    """Set a key to a value.

    Args:
        key: A journal key (``build_journal_key``) makes it work that NEXT delivers. None: work in
            the domain of the URI (``domain_of``), due now; the result has the key.
        value: bytes, str, int, float, bool or None; its type goes with it. A dict or a list is
            written as JSON, a string.
        uri: A further, unique key: this entry replaces the waiting entry of the same URI. One that
            begins with ``unique:`` is the reserved form for the queue of this key.
        persist: Return only once it is on disk, as the daemon's sync policy says.
        overwrite: Replace an entry with the same key.
        expires: Instant at which it vanishes, in the future; ``math.inf``: never. None: never, or
            where ``ttl`` is given, that long from now.
        ttl: Duration by which each read moves the expiry.
        timestamp_us: Microseconds since 1970; the larger one wins. None: this machine's time.
        plain: The key may be one that no worker gets: it looks like a journal key and is none, such
            as ``pages:300:0:x``, or its timestamp is after the year 9999.

    Returns:
        The timestamp, the key and the outcome. After a lost connection it is sent again with
        these: a repeat changes nothing, and ``stale`` counts as done, for the write was delivered
        or lost to a newer one.

    Raises:
        RefusedError: ``exists``, ``stale``, ``locked``, ``clock-skew``.
        BadRequestError: An argument that no daemon accepts.
    """
    value_type, data = encode_value(value)
    timestamp = stamp(timestamp_us)
    if key is None:
        timestamp = timestamp or unique_timestamp()
        key = _key_of_work(uri, timestamp)
    name = new_key_bytes(key, plain=plain)
    request = Request(
        Function.SET,
        flags=persisted(persist) | (OVERWRITE if overwrite else 0),
        timestamp=timestamp,
        key=name,
        second_key=None if uri is None else second_key_of(name, key_bytes(uri)),
        value_type=value_type,
        value=data,
        timeout=expiry(expires),
        ttl=duration("ttl", ttl),
    )
    return Call(request, reply_readers.set_outcome)


def _key_of_work(uri: str | bytes | None, timestamp_us: int) -> bytes:
    """Return the key of work in the domain of its URI, as ``Spool.append`` builds it."""
    from fastjournal.keys import domain_of  # noqa: PLC0415 - loads parsers of URLs and addresses

    if uri is None:
        raise BadRequestError("there is neither a key nor a URI", code="bad-key", hint=_KEY_HINT)
    id = default_id(timestamp_us, second_key_of(None, key_bytes(uri)), "")
    return journal_key_of(domain_of(uri), id, timestamp_us)


def get(
    key: str | bytes,
    *,
    data: bool = True,
    meta: bool = False,
    lease: Duration | None = None,
    expires: Instant | None = None,
    skip_worked_on: bool = False,
) -> Call[Entry]:
    """Return the entry under a key.

    Args:
        key: Any of its keys.
        data: Return the value, not only its type.
        meta: Return the metadata too.
        lease: Lease it for that long (0: the daemon's default). Then it is not sent again after
            a lost connection.
        expires: Set its expiry to this instant, in the future; ``math.inf``: remove it.
        skip_worked_on: Refuse with ``worked-on`` where somebody works on it.

    Raises:
        RefusedError: ``not-found``, ``worked-on``, ``locked``.
        BadRequestError: An argument that no daemon would take.
    """
    request = Request(
        Function.GET,
        flags=reading_flags(data, meta, lease, expires, skip_worked_on),
        key=key_bytes(key),
        timeout=reading_timeout(lease, expires),
    )
    return Call(
        request, reply_readers.entry, undo=None if lease is None else reply_readers.release_all
    )


def delete(
    key: str | bytes,
    *,
    token: int | None = None,
    overwrite: bool = False,
    persist: bool = True,
    timestamp_us: int | None = None,
) -> Call[Written]:
    """Delete an entry with all its keys; with its lease token: complete the job.

    With a token the clocks of this machine and of the daemon need not agree: the token decides, and
    the daemon takes the later of the timestamps that it can believe.

    Args:
        key: Any of its keys.
        token: Only if this is the entry's lease token.
        overwrite: Leave no tombstone.
        persist: Keep the tombstone on disk even if there was no entry to delete.
        timestamp_us: Microseconds since 1970; an entry with a later one stays. None: this machine's
            time.

    Returns:
        The timestamp. If it was sent again after a lost connection, ``not-found`` counts as done:
        the entry does not exist, as requested, and with a token nobody else could delete it while
        the lease lasted.

    Raises:
        RefusedError: ``not-found``, ``locked``; with a token ``lease-lost``; without one ``stale``,
            ``clock-skew``.
    """
    request = Request(
        Function.DELETE,
        flags=persisted(persist) | (OVERWRITE if overwrite else 0) | token_flag(token),
        timestamp=stamp(timestamp_us),
        key=key_bytes(key),
        timeout=checked_token(token),
    )
    return Call(request, reply_readers.written)


def add(
    key: str | bytes,
    amount: float = 1,
    *,
    create: bool = False,
    persist: bool = True,
    meta: bool = False,
    timestamp_us: int | None = None,
    plain: bool = False,
) -> Call[Entry]:
    """Add to a stored number; return the entry with the new number.

    Never sent twice: if the connection is lost, it may have been added (``maybe_done``).

    Args:
        key: Any of its keys.
        amount: An int to add to an integer, a float to add to a float.
        create: If there is no entry, create one with the amount.
        persist: Keep it on disk if it is created; a persistent entry stays so either way.
        meta: Return the metadata too.
        timestamp_us: Microseconds since 1970. None: this machine's time.
        plain: The key that is created may be one that no worker gets, as for ``set``.

    Raises:
        RefusedError: ``not-found``, ``type-mismatch``, ``overflow``, ``locked``, ``bad-value``.
        BadRequestError: The amount is no number, or does not fit 8 bytes.
    """
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise BadRequestError(f"{amount!r} is no number", code="bad-value")
    value_type, data = encode_value(amount)
    request = Request(
        Function.ADD,
        flags=persisted(persist) | (OVERWRITE if create else 0) | (META if meta else 0),
        timestamp=stamp(timestamp_us),
        key=new_key_bytes(key, plain=plain or not create),
        value_type=value_type,
        value=data,
    )
    return Call(request, reply_readers.entry)


def flip(
    key: str | bytes, *, persist: bool = True, meta: bool = False, timestamp_us: int | None = None
) -> Call[Entry]:
    """Flip a stored boolean (the protocol's NOT); return the entry with the new value.

    Never sent twice: where the connection is lost, it may be flipped (``maybe_done``).

    Args:
        key: Any of its keys.
        persist: Changes nothing yet: a persistent entry stays so either way.
        meta: Return the metadata too.
        timestamp_us: Microseconds since 1970. None: this machine's time.

    Raises:
        RefusedError: ``not-found``, ``type-mismatch``, ``bad-value``, ``locked``.
    """
    request = Request(
        Function.NOT,
        flags=persisted(persist) | (META if meta else 0),
        timestamp=stamp(timestamp_us),
        key=key_bytes(key),
    )
    return Call(request, reply_readers.entry)


def truncate(
    key: str | bytes, size: int, *, persist: bool = True, timestamp_us: int | None = None
) -> Call[Written]:
    """Resize a buffer or string to ``size`` bytes: cut it, or fill it up with zero bytes.

    Never sent twice: where the connection is lost, it may be cut (``maybe_done``).

    Raises:
        RefusedError: ``not-found``, ``type-mismatch``, ``too-large``, ``locked``.
        BadRequestError: A size below 0, or over 8 bytes.
    """
    value_type, data = encode_value(check_integer("size", size, 0, 2**63 - 1, "bad-value"))
    request = Request(
        Function.TRUNCATE,
        flags=persisted(persist),
        timestamp=stamp(timestamp_us),
        key=key_bytes(key),
        value_type=value_type,
        value=data,
    )
    return Call(request, reply_readers.written)


def reading_flags(
    data: bool, meta: bool, lease: Duration | None, expires: Instant | None, skip_worked_on: bool
) -> int:
    """Return the flags of a GET.

    Raises:
        BadRequestError: Both a lease and an expiry are asked for.
    """
    if lease is not None and expires is not None:
        raise BadRequestError("a GET takes a lease or sets the expiry, not both")
    return (
        (DATA if data else 0)
        | (META if meta else 0)
        | (UPDATE_TIMEOUT if expires is not None else 0)
        | (WORKED_ON if skip_worked_on else 0)
    )


def reading_timeout(lease: Duration | None, expires: Instant | None) -> int | None:
    """Return the timeout of a GET: a lease or an expiry."""
    return checked_lease(lease) if expires is None else expiry(expires)


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

    Never sent twice: if the connection is lost, it may have moved (``maybe_done``).

    Args:
        key: Its primary key.
        new_key: Where it goes. A journal key makes it work, any other key makes it plain data.
        overwrite: Replace an entry that has the new key.
        persist: Keep the tombstone of the old key on disk, even if the entry is not.
        timestamp_us: Microseconds since 1970; an entry with a later one stays. None: this machine's
            time.
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

    Never sent twice: if the connection is lost, it may have been added (``maybe_done``).

    Args:
        key: Any of its keys.
        new_key: A further key. It changes neither domain nor delivery, also as a journal key.
        persist: Keep it on disk.
        plain: The new key may be one that no worker gets, as for ``set``.

    Raises:
        RefusedError: ``not-found``, ``exists``, ``locked``, ``too-large``.
        BadRequestError: A key that no daemon accepts.
    """
    request = Request(
        Function.LINK,
        flags=persisted(persist),
        key=key_bytes(key),
        second_key=new_key_bytes(new_key, plain=plain),
    )
    return Call(request, reply_readers.nothing)
