"""DOMAINS, PAUSE, LIMIT, PURGE: handlers of requests about a whole domain.

- DOMAINS lists the domains with entries, a pause or a limit, in byte order, page by page. The cost
  of a page is in proportion to its size: it begins with a search in the sorted names, and a token
  for few domains leads directly to these. A page ends after the work of one turn of the event loop.
- PAUSE stops the deliveries of a domain, or of all, for a while.
- LIMIT sets rate limit, concurrency limit, lease and attempts of a domain.
- PURGE deletes the entries of a domain that are not leased, some at a time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain, islice
from typing import Annotated

import msgspec

from fastjournal.limits import (
    ASIDE_WORK_MAX,
    ENTRY_WORK,
    INSTANT_MAX,
    KEY_BYTES_MAX,
    LIMIT_BYTES,
    LIMIT_MAX,
    LIMIT_VALUE_BYTES_MAX,
    LIMITED_BYTES_MAX,
    LIMITED_DOMAINS_MAX,
    PAIRS_MAX,
    PAUSE_BYTES,
    PAUSE_RECORD_BYTES,
    PAUSED_BYTES_MAX,
    PAUSED_DOMAINS_MAX,
    PURGE_ENTRIES_MAX,
    PURGE_LOOKS_A_UNIT,
    PURGE_LOOKS_MAX,
    TURN_WORK,
    WRITTEN_BYTES_A_UNIT,
)
from fastjournal.protocol import ErrorCode, Pair, Query, Reply, Request, ValueType
from fastjournal.protocol.replies import PAIR_BYTES, REPLY_BYTES
from fastjournal.versioned_json import json_fault
from fastjournald.engine.context import (
    NOT_A_DOMAIN,
    OVERWRITE,
    PERSIST,
    READ_ONLY,
    Context,
    is_domain,
)
from fastjournald.engine.handlers.next import ANY_DOMAIN, is_any_domain
from fastjournald.engine.handlers.scan.page import (
    BAD_CURSOR,
    CURSOR_BYTES,
    DOMAINS,
    Cursor,
    decode_cursor,
    encode_cursor,
)
from fastjournald.engine.handlers.stats import about_domain
from fastjournald.engine.key_filter import prefix_stop
from fastjournald.tables.domain_limits import EVERYTHING, UNLIMITED
from fastjournald.tables.entry import Entry


def domains(context: Context, session: Hashable, request: Request, now: int) -> str | Reply:
    """List the domains whose names begin with the key; one pair each, a JSON object as STATS'."""
    prefix = start = request.key
    count = request.count or 0
    if request.query == Query.CURSOR:
        cursor = decode_cursor(request.key, DOMAINS)
        if cursor is None:
            return BAD_CURSOR
        prefix, start, count = cursor.text, cursor.next_key, cursor.count
    if len(prefix) > KEY_BYTES_MAX:
        return NOT_A_DOMAIN
    store = context.store
    room = context.reply_bytes_max - REPLY_BYTES - CURSOR_BYTES - len(prefix)
    number_max = count or PAIRS_MAX
    work_over = store.work + TURN_WORK
    pairs: list[Pair] = []
    for name in _names(context, session, prefix, start):
        pair = _pair(context, name, now)
        room -= PAIR_BYTES + len(name) + len(pair.value)
        # after the last pair there must be room for a cursor with its name
        if pairs and (len(pairs) == number_max or store.work > work_over or room <= len(name)):
            next_name = pairs[-1].key + b"\0"
            cursor_bytes = encode_cursor(Cursor(DOMAINS, count, next_name, prefix))
            return Reply(pairs=pairs, cursor=cursor_bytes)
        pairs.append(pair)
    return Reply(pairs=pairs)


def _names(context: Context, session: Hashable, prefix: bytes, start: bytes) -> Iterator[bytes]:
    """Yield the names from ``start`` on that begin with the prefix and that a session may see."""
    stop = prefix_stop(prefix)
    for first, end in context.domains_seen(session):
        lowest = max(first, prefix, start)
        highest = end if stop is None or (end is not None and end < stop) else stop
        if highest is None or lowest < highest:
            yield from context.store.scheduler.names.irange(
                lowest, highest, inclusive=(True, False)
            )


def _pair(context: Context, name: bytes, now: int) -> Pair:
    store = context.store
    store.work += ENTRY_WORK
    facts = about_domain(context, name, now)
    facts["paused_until_us"] = facts["paused_until"]
    return Pair(name, int(ValueType.STRING), msgspec.json.encode(facts))


_NO_TTL = f"{ErrorCode.BAD_REQUEST} PAUSE needs TTL; 0 resumes"
_TOO_MANY_PAUSED = f"{ErrorCode.BUSY} {PAUSED_DOMAINS_MAX} domains are paused"
_PAUSED_TOO_LARGE = f"{ErrorCode.BUSY} the domains that are paused take {PAUSED_BYTES_MAX} bytes"


def pause(context: Context, _session: Hashable, request: Request, now: int) -> str:
    """Pause a domain until now + ttl, whether it has entries or not; ttl 0 resumes it.

    An empty key pauses everything, beside the pauses of domains and their bounds. A read-only
    daemon takes some: else the work would begin at the moment at which there is room again.
    """
    name, ttl = request.key, request.ttl
    if not is_any_domain(name):
        return ANY_DOMAIN
    if ttl is None:
        return _NO_TTL
    store = context.store
    pauses = store.rules.pauses
    paused = name in pauses
    if not ttl:
        if paused:
            store.rules.resume(name)
            context.journal.log.paused(name, 0, now)
        return ""
    if not paused and name != EVERYTHING:
        if pauses.domains >= PAUSED_DOMAINS_MAX:
            return _TOO_MANY_PAUSED
        if pauses.bytes + PAUSE_BYTES + len(name) > PAUSED_BYTES_MAX:
            return _PAUSED_TOO_LARGE
    if context.read_only:
        room = context.pause_room - PAUSE_RECORD_BYTES - len(name)
        if room < 0:
            return READ_ONLY
        context.pause_room = room
    until = min(now + ttl, INSTANT_MAX)
    store.rules.pause(name, until)
    context.journal.log.paused(name, until, now)
    return ""


_Number = Annotated[int, msgspec.Meta(ge=0, le=LIMIT_MAX)] | msgspec.UnsetType

_TOO_MANY_LIMITED = f"{ErrorCode.BUSY} {LIMITED_DOMAINS_MAX} domains have limits of their own"
_LIMITED_TOO_LARGE = f"{ErrorCode.BUSY} the domains with limits take {LIMITED_BYTES_MAX} bytes"
_NO_STRING = f"{ErrorCode.BAD_VALUE} LIMIT needs a JSON object as a value of type string"
_LONG_VALUE = f"{ErrorCode.TOO_LARGE} the value of LIMIT has at most {LIMIT_VALUE_BYTES_MAX} bytes"
_STRING = int(ValueType.STRING)


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """The value of a request; what is not named stays."""

    interval_us: _Number = msgspec.UNSET
    jobs: _Number = msgspec.UNSET
    lease_us: _Number = msgspec.UNSET
    attempts: Annotated[int, msgspec.Meta(ge=-1, le=LIMIT_MAX)] | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Given).decode


def limit(context: Context, _session: Hashable, request: Request, now: int) -> str:
    """Set the limits of a domain that the value names, whether it has entries or not."""
    name = request.key
    if not is_domain(name):
        return NOT_A_DOMAIN
    if request.value_type != _STRING:
        return _NO_STRING
    if len(request.value) > LIMIT_VALUE_BYTES_MAX:
        return _LONG_VALUE
    try:
        given = msgspec.structs.asdict(_decode(request.value))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # UnicodeDecodeError: a name in the object is not UTF-8
        return f"{ErrorCode.BAD_VALUE} {json_fault(request.value, error)}"
    store = context.store
    limits = store.rules.limits
    before = limits.own(name)
    named = {field: number for field, number in given.items() if number is not msgspec.UNSET}
    after = msgspec.structs.replace(before, **named)
    if after == before:
        return ""
    if before == UNLIMITED:
        if len(limits) >= LIMITED_DOMAINS_MAX:
            return _TOO_MANY_LIMITED
        if limits.bytes + LIMIT_BYTES + len(name) > LIMITED_BYTES_MAX:
            return _LIMITED_TOO_LARGE
    if context.read_only:
        return READ_ONLY
    store.rules.limit(name, after, now)
    if name in limits.unlogged:
        # no record may prove a delivery from before there was an interval
        del limits.unlogged[name]
        context.journal.log.delivered(name, limits.last_delivery(name), now)
    context.journal.log.limited(name, after, now)
    return ""


def purge(context: Context, session: Hashable, request: Request, now: int) -> str | Reply:
    """Delete the first entries in queue order; the ttl of the reply is their number."""
    name = request.key
    if not is_domain(name):
        return NOT_A_DOMAIN
    store = context.store
    count = 1 if request.count is None else min(request.count, PURGE_ENTRIES_MAX)
    timestamp = request.timestamp
    if timestamp > now + context.settings.clock_skew_us_max:
        # its tombstones would refuse new work until that time has come
        timestamp = now
    # beside the entries: their links, and the bytes of their keys
    work_over = store.work + ENTRY_WORK * count + ASIDE_WORK_MAX
    leaves_tombstones = not request.flags & OVERWRITE
    persist = bool(request.flags & PERSIST)
    purged: list[tuple[Entry, int]] = []
    for entry in list(islice(_unlocked(context, session, name, now), count)):
        if store.work > work_over:
            break
        store.remove(entry, now)
        purged.append((entry, max(timestamp, entry.timestamp)))
        if leaves_tombstones:
            store.tombstones.put_for(entry, purged[-1][1], now, persist=persist)
        store.work += ENTRY_WORK + len(entry.key) // WRITTEN_BYTES_A_UNIT
    context.journal.purged(purged, now, tombstones=leaves_tombstones, persist=persist)
    return Reply(ttl=len(purged))


def _unlocked(context: Context, session: Hashable, name: bytes, now: int) -> Iterator[Entry]:
    """Yield the entries of a domain that are ready, delayed or buried, within the bounds.

    Those that another connection has locked are left out.
    """
    store = context.store
    domain = store.scheduler.domains.get(name)
    if domain is None:
        return
    standing = chain(domain.ready, domain.delayed, domain.buried_order)
    for looks, entry in enumerate(islice(standing, PURGE_LOOKS_MAX)):
        if looks % PURGE_LOOKS_A_UNIT == 0:
            store.work += 1
        if not store.locks.locked_to(entry.key, session, now):
            yield entry
