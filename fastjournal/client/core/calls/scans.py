"""Scans: calls that read many entries, page after page; the clients make iterators of them."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from fastjournal.client.core.calls import reply_readers
from fastjournal.client.core.calls.base import LISTEN, Call, PagedCall, checked_count, key_bytes
from fastjournal.client.core.calls.data import reading_flags, reading_timeout
from fastjournal.client.core.results import Entry, Page
from fastjournal.client.core.stats import DeadLetter, DomainStats
from fastjournal.errors import BadRequestError
from fastjournal.keys import encode_text
from fastjournal.limits import KEY_BYTES_MAX, SCAN_PAGE_ENTRIES
from fastjournal.protocol import QUERY_SHIFT, Function, Query, Reply, Request
from fastjournal.times import Duration, Instant

__all__ = [
    "dead_letters",
    "domains",
    "listening",
    "prefix",
    "range_",
    "regex",
]

T = TypeVar("T")

_REGEX = int(Query.REGEX) << QUERY_SHIFT


def range_(
    start: str | bytes = b"",
    end: str | bytes = b"",
    *,
    page: int = SCAN_PAGE_ENTRIES,
    data: bool = True,
    meta: bool = False,
    lease: Duration | None = None,
    expires: Instant | None = None,
    skip_worked_on: bool = False,
) -> PagedCall[Entry]:
    """Iterate over the entries under the keys from ``start`` to ``end``, in byte order.

    An entry is returned under each of its keys in the range; a key that exists throughout is
    returned exactly once. Memory holds one page at a time, also in the daemon. With a lease or an
    expiry a page that was lost with its connection is not asked for again.

    Args:
        start: The first key that counts; empty: from the beginning.
        end: The last key that counts; empty: no upper end.
        page: Entries to ask for at a time, at most, 1 to 65,535.
        data: Read the values, not only their types.
        meta: Read the metadata too.
        lease: Lease the entries for that long (0: the daemon's default), a page at a time: a caller
            that does not read to the end leaves leases.
        expires: Set the expiry of what is read to this instant, in the future; ``math.inf``: remove
            it.
        skip_worked_on: Skip leased entries.

    Raises:
        BadRequestError: An argument that no daemon accepts.
    """
    flags = reading_flags(data, meta, lease, expires, skip_worked_on)
    request = Request(
        Function.GET,
        flags=flags,
        key=key_bytes(start),
        second_key=key_bytes(end),
        count=checked_count("page", page),
        timeout=reading_timeout(lease, expires),
    )
    return _scan(request, lease)


def prefix(
    prefix: str | bytes,
    *,
    page: int = SCAN_PAGE_ENTRIES,
    data: bool = True,
    meta: bool = False,
    lease: Duration | None = None,
    expires: Instant | None = None,
    skip_worked_on: bool = False,
) -> PagedCall[Entry]:
    """Iterate over the entries under the keys that begin with ``prefix``, in byte order.

    All else is as for ``range``, which this is.
    """
    start, end = prefix_bounds(prefix)
    return range_(
        start,
        end,
        page=page,
        data=data,
        meta=meta,
        lease=lease,
        expires=expires,
        skip_worked_on=skip_worked_on,
    )


def regex(
    expression: str | bytes,
    *,
    page: int = SCAN_PAGE_ENTRIES,
    data: bool = True,
    meta: bool = False,
    lease: Duration | None = None,
    expires: Instant | None = None,
    skip_worked_on: bool = False,
) -> PagedCall[Entry]:
    """Iterate over the entries under the keys that the expression matches anywhere.

    The expression has RE2 syntax and at most 4,096 bytes, and matches bytes, not characters: so
    ``.`` is one byte of a key. All else is as for ``range``.

    Raises:
        RefusedError: ``bad-regex``.
    """
    request = _regex_request(expression)
    request.flags |= reading_flags(data, meta, lease, expires, skip_worked_on)
    request.count = checked_count("page", page)
    request.timeout = reading_timeout(lease, expires)
    return _scan(request, lease)


def domains(prefix: str | bytes = b"", *, page: int = SCAN_PAGE_ENTRIES) -> PagedCall[DomainStats]:
    """Iterate over the domains whose names begin with ``prefix``, in byte order.

    These are the domains that hold entries, are paused or have a limit, of those that the token
    covers, each with its counts. Memory holds one page at a time, also in the daemon.

    Args:
        prefix: Beginning of the names; empty: all domains.
        page: Domains to ask for at a time, at most, 1 to 65,535; the daemon may return fewer.

    Raises:
        RefusedError: ``forbidden``.
        BadRequestError: An argument that no daemon would take.
    """
    request = Request(Function.DOMAINS, key=key_bytes(prefix), count=checked_count("page", page))
    return PagedCall(Call(request, _domains))


def _domains(request: Request, reply: Reply) -> Page[DomainStats]:
    read = reply_readers.json_of(DomainStats)
    found = ((pair.key, read(request, Reply(pairs=[pair]))) for pair in reply.pairs or ())
    named = [msgspec.structs.replace(stats, name=name) for name, stats in found]
    return Page(named, reply.cursor or None)


def dead_letters(domain: str | bytes, *, page: int = SCAN_PAGE_ENTRIES) -> PagedCall[DeadLetter]:
    """Iterate over the dead letters (buried entries) of a domain, in the order of work.

    Nothing changes, not even an expiry. Memory holds one page at a time, also in the daemon.

    Args:
        domain: Its name; an unknown one has none.
        page: Dead letters to ask for at a time, at most, 1 to 65,535; the daemon may return fewer.

    Raises:
        RefusedError: ``forbidden``, ``bad-key``.
        BadRequestError: The name is empty, or the page is no number.
    """
    if not domain:
        raise BadRequestError("the name of a domain is empty", code="bad-key")
    count = checked_count("page", page)
    request = Request(Function.STATS, key=key_bytes(domain), count=count)
    return _PagesOfOneKey(Call(request, _dead_letters))


class _PagesOfOneKey(PagedCall[T], frozen=True):
    """Pages whose requests have the same key, and the cursor as second key."""

    def following(self, cursor: bytes) -> Call[Page[T]]:
        """Return the call for the page after the one that had this cursor."""
        request = msgspec.structs.replace(self.first.request, second_key=cursor)
        return Call(request, self.first.interpret)


def _dead_letters(_request: Request, reply: Reply) -> Page[DeadLetter]:
    letters = [
        msgspec.structs.replace(
            reply_readers.json_value(pair, DeadLetter), key=pair.key, uri=pair.second_key
        )
        for pair in reply.pairs or ()
    ]
    return Page(letters, reply.cursor or None)


def listening(
    key: str | bytes | None = None,
    *,
    prefix: str | bytes | None = None,
    start: str | bytes | None = None,
    end: str | bytes = b"",
    regex: str | bytes | None = None,
) -> Call[Page[Entry]]:
    """Subscribe to changes of a key, a prefix, a range, or keys that an expression matches.

    Each key that gets a value or loses it is reported, also if changed by this client; not leases,
    burial or locks. Changes of one key that are faster than the reads are merged into the last one.
    After a lost connection the listener subscribes again, and reports by a change of kind MISSED
    that it may have missed some. To keep a copy, begin to listen first and read then.

    Args:
        key: This key; it need not exist yet.
        prefix: All keys that begin with this.
        start: All keys from this one on, up to ``end``.
        end: The last key that counts; empty: no upper end.
        regex: All keys that this expression matches anywhere: RE2 syntax, on bytes.

    Raises:
        RefusedError: ``bad-regex``, ``busy`` (too many subscriptions).
        BadRequestError: Not exactly one of key, prefix, start and regex was given.
    """
    # A GET of the key itself requires that the key exists; so the request names a range.
    if [key, prefix, start, regex].count(None) != 3:
        raise BadRequestError("listen to one of key, prefix, start, regex")
    if regex is not None:
        request = _regex_request(regex)
    else:
        if key is not None:
            start = end = key
        elif prefix is not None:
            start, end = prefix_bounds(prefix)
        assert start is not None, "one of them was given"
        request = Request(Function.GET, key=key_bytes(start), second_key=key_bytes(end))
    request.flags |= LISTEN
    request.count = 1
    return Call(request, reply_readers.page)


def prefix_bounds(prefix: str | bytes) -> tuple[bytes, bytes]:
    """Return the first and the last possible key with a prefix.

    Raises:
        BadRequestError: It is longer than any key.
    """
    first = key_bytes(prefix)
    return first, first.ljust(KEY_BYTES_MAX, b"\xff")


def _scan(request: Request, lease: Duration | None) -> PagedCall[Entry]:
    undo = None if lease is None else reply_readers.release_all
    return PagedCall(Call(request, reply_readers.page, undo=undo))


def _regex_request(expression: str | bytes) -> Request:
    pattern = encode_text("expression", expression)
    if len(pattern) > KEY_BYTES_MAX:
        raise BadRequestError(
            f"expression has {len(pattern)} bytes, over {KEY_BYTES_MAX}", code="bad-regex"
        )
    return Request(Function.GET, flags=_REGEX, key=pattern)
