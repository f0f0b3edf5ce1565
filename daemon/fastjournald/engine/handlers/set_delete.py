"""SET and DELETE: which write wins, and what it replaces."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.cmdlog.format.removal_time import REPLACED_BY_NONE
from fastjournal.keys import parse_journal_key
from fastjournal.limits import INSTANT_MAX, KEY_BYTES_MAX, WRITTEN_BYTES_A_UNIT, WRITTEN_BYTES_MIN
from fastjournal.protocol import ErrorCode, Request, ValueType
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import (
    BAD_KEY,
    CLOCK_SKEW,
    LISTEN,
    LOCKED,
    OVERWRITE,
    PERSIST,
    READ_ONLY,
    token_of,
)
from fastjournald.engine.store import Store
from fastjournald.tables.entry import Entry, Extra, Place

_TYPE_MAX = int(max(ValueType))
_NO_VALUE = f"{ErrorCode.BAD_VALUE} a SET needs a value; void is type 0 without data"
_BAD_TYPE = f"{ErrorCode.BAD_VALUE} value types are 0 to {_TYPE_MAX}"
_VOID_WITH_DATA = f"{ErrorCode.BAD_VALUE} a void value has no data"
_SAME_KEY = f"{ErrorCode.BAD_KEY} the second key equals the key"
_FURTHER_KEY = f"{ErrorCode.EXISTS} the key is a further key of another entry"
_PRIMARY_KEY = f"{ErrorCode.EXISTS} the second key is the primary key of another entry"


def set_(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Set key to value; a second key is the resource, which has one waiting entry at most."""
    store = context.store
    key, uri, timestamp = request.key, request.second_key, request.timestamp
    find = store.find
    standing = find(key)
    if standing is not None and standing.timestamp == timestamp and standing.key == key:
        return _listen(context, session, request) if request.flags & LISTEN else ""
    if not key or len(key) > KEY_BYTES_MAX:
        return BAD_KEY
    if uri is not None:
        if not uri or len(uri) > KEY_BYTES_MAX:
            return BAD_KEY
        if uri == key:
            return _SAME_KEY
    value_type = request.value_type
    if value_type is None:
        return _NO_VALUE
    if value_type > _TYPE_MAX:
        return _BAD_TYPE
    if value_type == 0 and request.value:
        return _VOID_WITH_DATA
    flags = request.flags
    if timestamp > now + context.settings.clock_skew_us_max:
        return CLOCK_SKEW
    other = None if uri is None else find(uri)
    if other is standing:
        other = None
    if store.locked:
        for entry in (standing, other):
            if entry is not None and store.locked_to(entry, session, now):
                return LOCKED
    tombstones = store.tombstones
    deleted = tombstones.get(key, now)
    if deleted is not None and timestamp <= deleted:
        return ErrorCode.STALE.value
    if other is not None and timestamp < other.timestamp:
        return ErrorCode.STALE.value
    if standing is not None:
        if timestamp < standing.timestamp:
            return ErrorCode.STALE.value
        if not flags & OVERWRITE:
            return ErrorCode.EXISTS.value
        if standing.key != key:
            return _FURTHER_KEY
    if other is not None and other.key == uri:
        return _PRIMARY_KEY
    if flags & LISTEN:
        refused = context.subscriptions.refuses(session, request.identifier, request.key)
        if refused:
            return refused
    if context.read_only:
        return READ_ONLY

    expires, ttl = request.timeout, request.ttl
    if expires is None:
        expires = min(now + ttl, INSTANT_MAX) if ttl else 0
    if deleted is not None:
        tombstones.discard(key)
    journal = context.journal
    created = now
    waited = None
    if other is not None:
        if other.place == Place.LEASED:
            assert uri is not None
            store.supersede(other, uri, timestamp)
            if flags & PERSIST:
                journal.superseded(other)
        else:
            created = other.created
            waited = other
    links, token_before, first_due = None, 0, 0
    if standing is None:
        arrival = journal.ids.next_serial()
    else:
        created, arrival = standing.created, standing.arrival
        token_before = standing.token or standing.extra.token_before
        links, uri = _inherited(store, standing, uri)
        if other is None and uri is not None and uri == standing.uri:
            waited = standing
    parts = parse_journal_key(key)
    if parts is None:
        domain, priority, not_before = store.plain, 0, 0
    else:
        name, priority, not_before, _ = parts
        domain = store.domain_of(name)
        if waited is not None:
            postpone = context.settings.postpone_us_max
            first_due = _first_due(waited)
            if first_due and postpone:
                if not_before - now > postpone:
                    # who delays it for so long means it: from there a new chain begins
                    first_due = 0
                else:
                    not_before = min(not_before, first_due + postpone)
    facts = pack_facts(priority, not_before, arrival, timestamp, created, value_type)
    entry = Entry(facts, key, uri, request.value, domain)
    if created != now:
        entry.changed = entry.seen = now
    if expires or ttl or links or token_before or first_due:
        entry.extra = Extra(
            expires=expires,
            ttl=ttl or 0,
            links=links,
            token_before=token_before,
            first_due=first_due,
        )
    kept = bool(flags & PERSIST)
    if kept:
        if len(request.value) > WRITTEN_BYTES_MIN:
            store.work += len(request.value) // WRITTEN_BYTES_A_UNIT
        erases = deleted is not None or (
            standing is not None and standing.job_id in journal.records.erasers
        )
        journal.stored(entry, now, erases=erases)
    # The new comes before the old goes: a domain that is ready all along keeps its turn, so that
    # one whose only page is reported over and over is not put off for ever.
    store.insert(entry, now)
    if standing is not None:
        store.remove(standing, now)
        journal.deleted(standing, now, 1 if kept else REPLACED_BY_NONE)
    if other is not None and not other.superseded:
        replaced = 1 + (standing is not None and standing.persistent) if kept else REPLACED_BY_NONE
        store.replace_by_uri(other, timestamp, now, replaced)
    if flags & LISTEN:
        # the change that this was is its own reply
        context.subscriptions.begin(session, request.identifier, key)
    return ""


def _listen(context: Context, session: Hashable, request: Request) -> str:
    """Listen to the key, for a SET that was carried out already."""
    refused = context.subscriptions.refuses(session, request.identifier, request.key)
    if not refused:
        context.subscriptions.begin(session, request.identifier, request.key)
    return refused


def _inherited(
    store: Store, standing: Entry, uri: bytes | None
) -> tuple[list[bytes] | None, bytes | None]:
    """Return links and URI of the entry that a SET with OVERWRITE puts in the place of another."""

    def kept(key: bytes) -> bool:
        return key != uri and (not standing.superseded or store.find(key) is standing)

    links = [link for link in standing.links or () if kept(link)] or None
    if uri is None and standing.uri is not None and kept(standing.uri):
        return links, standing.uri
    return links, uri


def _first_due(replaced: Entry) -> int:
    """Return when the work of an entry for the same URI was first due; 0: it does not wait."""
    if replaced.place not in (Place.READY, Place.DELAYED):
        return 0
    return replaced.extra.first_due or max(replaced.not_before, replaced.created)


def delete(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Delete by any key; with the lease token this is how a worker completes a job."""
    key = request.key
    if not key or len(key) > KEY_BYTES_MAX:
        return BAD_KEY
    token = token_of(request)
    if isinstance(token, str):
        return token
    store = context.store
    entry = store.find(key)
    timestamp = request.timestamp
    skewed = timestamp > now + context.settings.clock_skew_us_max
    if entry is None:
        if token is None and not skewed:
            _mark_deleted(context, request, now)
        return ErrorCode.NOT_FOUND.value
    if skewed and token is None:
        return CLOCK_SKEW
    if store.locked and store.locked_to(entry, session, now):
        return LOCKED
    if token is not None:
        if entry.extra.token != token or token <= now:
            return ErrorCode.LEASE_LOST.value
        # A tombstone from a clock far ahead would refuse new work until that time has come.
        timestamp = max(now if skewed else timestamp, entry.timestamp)
    elif timestamp < entry.timestamp:
        return ErrorCode.STALE.value
    store.remove(entry, now)
    if request.flags & OVERWRITE:
        context.journal.deleted(entry, now)
    else:
        store.tombstones.put(entry.key, timestamp, now)
        if entry.run is not None:
            context.journal.completed(entry, timestamp, now)
        elif request.flags & PERSIST:
            context.journal.tombstone(entry.key, timestamp, now)
    return ""


def _mark_deleted(context: Context, request: Request, now: int) -> None:
    """Nothing stands under the key: leave a tombstone, or with OVERWRITE remove one."""
    tombstones = context.store.tombstones
    if request.flags & OVERWRITE:
        if tombstones.discard(request.key):
            context.journal.tombstone_erased(request.key, now)
        return
    tombstones.put(request.key, request.timestamp, now)
    if request.flags & PERSIST:
        context.journal.tombstone(request.key, request.timestamp, now)
