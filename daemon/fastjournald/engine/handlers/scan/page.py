"""Page of a scan: query plan, pairs of one reply, the room for them, continuation token. Pure.

The query plan has the keys to scan, page after page. An entry is eligible by rights, flags of the
request, locks, leases and limits. A cursor (continuation token) has all fields that the next page
needs.

Byte layout of a cursor, integers big endian and unsigned:

    offset size  field
    0      1     version, 1
    1      1     kind: 1 range, 2 expression, 3 domains, 4 dead letters of a domain
    2      2     count of the first request, 0: as many as fit a reply
    4      2     size of the next key
    6      n     next key, or name of a domain: the first that may be returned; kind 4: place in
                 the order of work
           2     size of the text
           n     kind 1: the last key of the range, empty: no upper end; kind 2: the expression;
                 kind 3: the prefix of the names; kind 4: the domain
           4     CRC-32C of all before

The checksum detects damage, not forgery: a cursor gives access to nothing that a range or an
expression does not give. A cursor of another version is of another daemon: the client restarts the
scan.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from struct import Struct
from typing import Final

import google_crc32c
import msgspec

from fastjournal.limits import (
    COMPILE_WORK,
    COMPILED_BYTE_WORK,
    KEY_BYTES_MAX,
    PAIRS_MAX,
    SCAN_LEASES_MAX,
)
from fastjournal.protocol import ErrorCode, Pair, Query, Reply, ReplyEncoder, Request
from fastjournal.protocol.framing import StructError
from fastjournal.protocol.replies import META_BYTES, PAIR_BYTES, REPLY_BYTES
from fastjournald.engine.context import DATA, META, TWO_KEYS, UPDATE_TIMEOUT, WORKED_ON, Context
from fastjournald.engine.key_filter import KeyFilter, expression_filter, range_filter
from fastjournald.tables.entry import Entry, EntryState
from fastjournald.tables.value_cache import Missing, Unreadable

_VERSION: Final = 1
_HEAD: Final = Struct(">BBHH")
_SIZE: Final = Struct(">H")
_CHECK: Final = Struct(">I")

RANGE: Final = 1
EXPRESSION: Final = 2
DOMAINS: Final = 3
DEAD_LETTERS: Final = 4

CURSOR_BYTES: Final = _HEAD.size + _SIZE.size + _CHECK.size
"""Size of a cursor without its next key and its text."""


class Cursor(msgspec.Struct, gc=False):
    """Continuation token of a scan, decoded: its query, its bounds and its progress."""

    kind: int
    count: int
    next_key: bytes
    text: bytes
    """The last key of the range, the expression, or the prefix."""


def encode_cursor(cursor: Cursor) -> bytes:
    """Return the bytes of a cursor."""
    body = (
        _HEAD.pack(_VERSION, cursor.kind, cursor.count, len(cursor.next_key))
        + cursor.next_key
        + _SIZE.pack(len(cursor.text))
        + cursor.text
    )
    return body + _CHECK.pack(google_crc32c.value(body))


def decode_cursor(data: bytes, *kinds: int) -> Cursor | None:
    """Return the cursor of one of these kinds that the bytes are.

    None: they are none of this version, or damaged, or of another kind.
    """
    body = data[: -_CHECK.size]
    try:
        version, kind, count, size = _HEAD.unpack_from(body)
        at = _HEAD.size + size
        (text_size,) = _SIZE.unpack_from(body, at)
        (check,) = _CHECK.unpack(data[-_CHECK.size :])
    except StructError:
        return None
    text = body[at + _SIZE.size :]
    if (
        version != _VERSION
        or kind not in kinds
        or len(text) != text_size
        or check != google_crc32c.value(body)
    ):
        return None
    return Cursor(kind, count, body[_HEAD.size : at], text)


BAD_CURSOR = f"{ErrorCode.BAD_CURSOR} not from this version of the daemon, or damaged"


class QueryPlan(msgspec.Struct, gc=False):
    """Keys and number of pairs that a request asks for."""

    keys: KeyFilter
    kind: int
    text: bytes
    """The last key of the range, or the expression."""
    count: int
    """Pairs of a reply at most; 0: as many as fit."""


def plan_of(context: Context, request: Request) -> QueryPlan | str:
    """Return the plan of a GET of a range, an expression or a cursor, or the error."""
    if request.query == Query.CURSOR:
        cursor = decode_cursor(request.key, RANGE, EXPRESSION)
        if cursor is None or len(cursor.next_key) > KEY_BYTES_MAX + 1:
            return BAD_CURSOR
        kind, text, count = cursor.kind, cursor.text, cursor.count
    else:
        cursor = None
        kind = RANGE if request.query == Query.RANGE else EXPRESSION
        text = (request.second_key or b"") if kind == RANGE else request.key
        count = request.count or 0
    if kind == EXPRESSION:
        context.store.work += COMPILE_WORK + COMPILED_BYTE_WORK * len(text)
        keys = expression_filter(text)
    else:
        keys = range_filter(request.key if cursor is None else b"", text)
    if isinstance(keys, str):
        return keys if cursor is None else BAD_CURSOR
    if cursor is not None:
        keys.start = max(keys.start, cursor.next_key)
    return QueryPlan(keys, kind, text, count)


class ScanPage:
    """Pairs of one reply.

    Args:
        context: Has the bound on a reply.
        request: The GET.
        plan: Plan of the scan.
        leases: Whether the scan leases all entries that it returns.
    """

    __slots__ = (
        *("_flags", "_key_bytes_max", "_leases", "_plan", "_request", "_room"),
        *("_value_bytes_max", "bytes", "number_max", "pairs"),
    )

    def __init__(
        self, context: Context, request: Request, plan: QueryPlan, *, leases: bool
    ) -> None:
        self._request = request
        self._flags = request.flags
        self._plan = plan
        self._leases = leases
        number_max = SCAN_LEASES_MAX if leases else PAIRS_MAX
        self.number_max = min(plan.count or number_max, number_max)
        """Pairs at most."""
        self.pairs: list[Pair] = []
        self._room = self._bytes_max(context)
        """Bytes for further pairs."""
        self.bytes = 0
        """Bytes of the pairs."""
        self._key_bytes_max = 0
        self._value_bytes_max = 0

    def keep_to_ration(self, context: Context) -> None:
        """Keep to the bytes that a reply may have now: memory may have become scarce."""
        self._room = min(self._room, self._bytes_max(context))

    def _bytes_max(self, context: Context) -> int:
        """Return the bytes of all pairs that a reply has room for."""
        return context.reply_bytes_max - REPLY_BYTES - CURSOR_BYTES - len(self._plan.text)

    def is_too_large(self, context: Context, entry: Entry) -> bool:
        """Whether memory is scarce and the value large."""
        return bool(self._flags & DATA) and len(entry.value) > context.value_bytes_ration

    def reserve(self, entry: Entry, key: bytes, *, first: bool) -> bool:
        """Whether a pair fits, and if so reserve its room; the first one does.

        After it there must be room for a cursor with its key.
        """
        other = len(entry.uri or b"") if key == entry.key else len(entry.key)
        size = len(key) + other + PAIR_BYTES
        if self._flags & DATA:
            size += len(entry.value)
        if self._flags & META:
            size += META_BYTES
        if size + len(key) >= self._room and not first:
            return False
        self._room -= size
        self.bytes += size
        return True

    def add(self, context: Context, entry: Entry, key: bytes, now: int) -> None:
        """Add the current pair of an entry; its room was reserved."""
        pair = context.store.pair(entry, key, self._flags, now)
        self.pairs.append(pair)
        self._key_bytes_max = max(self._key_bytes_max, len(key), len(pair.second_key))
        self._value_bytes_max = max(self._value_bytes_max, len(pair.value))

    def missing(
        self, entry: Entry, ahead: Iterable[Entry], unreadable: Unreadable
    ) -> str | Missing:
        """Ask for the value of an entry, and for those that are needed soon; or say why not."""
        why_not = unreadable.get(entry.job_id)
        if why_not:
            return f"{ErrorCode.NOT_READABLE} {why_not}"
        # one entry may have several keys
        missing = {entry.key: entry}
        room = self._room - len(entry.value)
        for other in ahead:
            room -= len(other.value)
            if room < 0:
                break
            if other.is_missing(self._flags & DATA, leases=self._leases):
                missing[other.key] = other
        return Missing(list(missing.values()))

    def encoder(self, next_key: bytes | None, token: int, now: int) -> ReplyEncoder:
        """Return the encoder of the reply.

        Args:
            next_key: Where the next page begins; None: this is the last one.
            token: Token of the lease; 0: nothing is leased.
            now: The present.
        """
        reply = Reply(flags=TWO_KEYS, identifier=self._request.identifier, timestamp=now)
        if token:
            reply.flags |= WORKED_ON
            reply.timeout = token
        reply.pairs = self.pairs
        if next_key is not None:
            if self.pairs:
                # keys between were left out, and are read again: they may have changed then
                next_key = self.pairs[-1].key + b"\0"
            plan = self._plan
            reply.cursor = encode_cursor(Cursor(plan.kind, plan.count, next_key, plan.text))
        return ReplyEncoder(reply, self._key_bytes_max, self._value_bytes_max)


class Eligibility:
    """Decides which entries a scan returns, and which it may lease.

    Args:
        session: The client's.
        request: The GET.
    """

    __slots__ = ("_request", "_session", "_taken", "leases", "token")

    def __init__(self, session: Hashable, request: Request) -> None:
        self._session = session
        self._request = request
        self.leases = request.timeout is not None and not request.flags & UPDATE_TIMEOUT
        """Whether the scan leases all that it returns."""
        self.token = 0
        """Lease token of all that it leases; 0: nothing so far."""
        self._taken: dict[bytes, int] = {}
        """Entries taken of limited domains, that are not leased so far."""

    def leaves_out(self, context: Context, entry: Entry, now: int) -> bool:
        """Whether rights or the flags of the request exclude an entry now."""
        if context.grants is not None and not context.grants.may_see(self._session, entry):
            return True
        request, store = self._request, context.store
        if request.timeout is not None and store.locks.locked_to(entry.key, self._session, now):
            return True
        if (self.leases or request.flags & WORKED_ON) and entry.state == EntryState.LEASED:
            return True
        return self.leases and (
            # no entry gets the token that it had before
            0 < self.token == entry.extra.token_before
            or entry.state == EntryState.BURIED
            or (entry.uri is not None and entry.uri in store.leases.by_uri)
        )

    def takes_room(self, entry: Entry) -> bool:
        """Whether the limit of its domain allows one more delivery, and if so take that."""
        domain = entry.domain
        if domain.limit is None:
            return True
        taken = self._taken.get(domain.name, 0)
        if taken >= domain.allowance():
            return False
        self._taken[domain.name] = taken + 1
        return True

    def clear_taken(self) -> None:
        """All that was taken is leased, or will not be."""
        self._taken.clear()
