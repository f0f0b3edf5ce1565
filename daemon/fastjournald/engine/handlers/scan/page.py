"""Page of a scan: the pairs of one reply, the room for them, and the continuation token. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fastjournal.limits import PAIRS_MAX, SCAN_LEASES_MAX
from fastjournal.protocol import ErrorCode, Pair, Reply, ReplyEncoder, Request
from fastjournal.protocol.pairs import META_BYTES, PAIR_BYTES, REPLY_BYTES
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import DATA, META, TWO_KEYS, WORKED_ON
from fastjournald.engine.handlers.scan.cursor import CURSOR_BYTES, Cursor, encode_cursor
from fastjournald.engine.handlers.scan.query_plan import QueryPlan
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Missing, Unreadable


class ScanPage:
    """Pairs of one reply.

    Args:
        context: Tells how large a reply may be.
        request: The GET.
        plan: Plan of the scan.
        leases: Whether the scan leases all that it returns.
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
        """Whether a pair fits, and if so take the room for it; the first one does.

        Behind it there must be room for a cursor with its key.
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
        """Add a pair for which room was taken, as it stands now."""
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
