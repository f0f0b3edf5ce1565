"""DOMAINS: list of the domains that hold anything, in byte order, page by page.

A page costs what it shows: it begins with a search in the sorted names, and a token that covers few
domains leads to these alone. It ends where it has as much work as a turn of the event loop may.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec

from fastjournal.limits import ENTRY_WORK, KEY_BYTES_MAX, PAIRS_MAX, TURN_WORK
from fastjournal.protocol import Pair, Query, Reply, Request, ValueType
from fastjournal.protocol.pairs import PAIR_BYTES, REPLY_BYTES
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import NOT_A_DOMAIN
from fastjournald.engine.handlers.scan.cursor import (
    CURSOR_BYTES,
    DOMAINS,
    Cursor,
    decode_cursor,
    encode_cursor,
)
from fastjournald.engine.handlers.scan.query_plan import BAD_CURSOR
from fastjournald.engine.handlers.stats import about_domain
from fastjournald.engine.key_filter import prefix_stop


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
        # behind the last pair there is room for a cursor with its name
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
