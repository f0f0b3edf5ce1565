"""SET: precedence (last writer wins), takeover of the deduplication key (URI).

Bulk SET: those in a row, of one client or several, that put in new entries or move waiting ones.

Each does what ``set_`` would do, with the same records and indexes. One that does more, or has to
be refused, ends the bulk and goes to ``set_``: so the conditions here name what is usual. The rule
of the SET that wins is that of ``cmdlog.format.endings``, for ``set_``, for this and for replay.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from fastjournal.cmdlog.format.endings import REPLACED, REPLACED_UNLOGGED, is_stale
from fastjournal.cmdlog.format.packed_entry import pack_facts, unpack_facts
from fastjournal.keys import split_journal_key
from fastjournal.limits import INSTANT_MAX, KEY_BYTES_MAX, WRITTEN_BYTES_A_UNIT, WRITTEN_BYTES_MIN
from fastjournal.protocol import ErrorCode, Request, ValueType
from fastjournald.engine.authorization import Grant
from fastjournald.engine.context import (
    BAD_KEY,
    CLOCK_SKEW,
    LISTEN,
    LOCKED,
    OVERWRITE,
    PERSIST,
    READ_ONLY,
    Context,
)
from fastjournald.engine.pubsub.change_set import ChangeSet
from fastjournald.engine.store import Store
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry, EntryState, Extra
from fastjournald.tables.scheduler import Scheduler

_READY, _DELAYED = EntryState.READY, EntryState.DELAYED
_TYPE_MAX = int(max(ValueType))
_NO_VALUE = f"{ErrorCode.BAD_VALUE} a SET needs a value; void is type 0 without data"
_BAD_TYPE = f"{ErrorCode.BAD_VALUE} value types are 0 to {_TYPE_MAX}"
_VOID_WITH_DATA = f"{ErrorCode.BAD_VALUE} a void value has no data"
_SAME_KEY = f"{ErrorCode.BAD_KEY} the second key equals the key"
_FURTHER_KEY = f"{ErrorCode.EXISTS} the key is a further key of another entry"
_PRIMARY_KEY = f"{ErrorCode.EXISTS} the second key is the primary key of another entry"


class _Inherited(NamedTuple):
    """Fields that an entry takes over from those in whose place it is set."""

    created: int
    arrival: int
    uri: bytes | None
    links: list[bytes] | None
    token_before: int
    waiting: Entry | None
    """The entry for the same resource that waited so far; None: none did."""


class _Met(NamedTuple):
    """Entries and tombstone that a SET meets under its keys; one of the three is there at least."""

    standing: Entry | None
    """The entry under its key."""
    holder: Entry | None
    """Another one under its URI."""
    deleted: int | None
    """Timestamp of the tombstone under its key."""


def set_(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Set key to value; a second key is the resource, which has one waiting entry at most."""
    store = context.store
    key, uri, flags = request.key, request.second_key, request.flags
    standing = store.find(key)
    if standing is not None and standing.timestamp == request.timestamp and standing.key == key:
        # a repeat: it was carried out already
        return _listen(context, session, request) if flags & LISTEN else ""
    refused = validate(request)
    if refused:
        return refused
    holder = None if uri is None else store.find(uri)
    if holder is standing:
        holder = None
    if request.timestamp > now + context.settings.clock_skew_us_max:
        return CLOCK_SKEW
    deleted = store.tombstones.get(key, now)
    met = None
    if standing is not None or holder is not None or deleted is not None:
        met = _Met(standing, holder, deleted)
        refused = _precedence(context, session, request, met, now)
        if refused:
            return refused
    if flags & LISTEN:
        refused = context.subscriptions.refuses(session, request.identifier, key)
        if refused:
            return refused
    if context.read_only:
        return READ_ONLY

    if deleted is not None:
        store.tombstones.discard(key)
    inherited = None if met is None else _take_over(context, request, met, now)
    entry = _build(context, request, inherited, now)
    if flags & PERSIST:
        if len(request.value) > WRITTEN_BYTES_MIN:
            store.work += len(request.value) // WRITTEN_BYTES_A_UNIT
        erases = deleted is not None or (
            standing is not None and standing.job_id in context.journal.records.erasers
        )
        context.journal.stored(entry, now, erases=erases)
        note_superseded(context, (entry,))
    # The new comes before the old goes: a domain that is ready all along keeps its turn, so that
    # one whose only page is reported over and over is not put off for ever.
    store.insert(entry, now)
    if met is not None:
        _remove_replaced(store, request, met, now)
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


def validate(request: Request) -> str:
    """Return what is wrong with the arguments of a SET; empty: nothing."""
    key, uri, value_type = request.key, request.second_key, request.value_type
    if not key or len(key) > KEY_BYTES_MAX:
        return BAD_KEY
    if uri is not None:
        if not uri or len(uri) > KEY_BYTES_MAX:
            return BAD_KEY
        if uri == key:
            return _SAME_KEY
    if not value_type:
        if value_type is None:
            return _NO_VALUE
        return _VOID_WITH_DATA if request.value else ""
    return _BAD_TYPE if value_type > _TYPE_MAX else ""


def _precedence(context: Context, session: Hashable, request: Request, met: _Met, now: int) -> str:
    """Return why a SET does not win over what stands there; empty: it does."""
    standing, holder, deleted = met
    timestamp, store = request.timestamp, context.store
    if store.locked:
        for entry in (standing, holder):
            if entry is not None and store.locks.locked_to(entry.key, session, now):
                return LOCKED
    if is_stale(
        timestamp,
        None if standing is None else standing.timestamp,
        None if holder is None else holder.timestamp,
        deleted,
    ):
        return ErrorCode.STALE.value
    if standing is not None:
        if not request.flags & OVERWRITE:
            return ErrorCode.EXISTS.value
        if standing.key != request.key:
            return _FURTHER_KEY
    if holder is not None and holder.key == request.second_key:
        return _PRIMARY_KEY
    return ""


def _take_over(context: Context, request: Request, met: _Met, now: int) -> _Inherited:
    """Take the key of one entry and the URI of another; return what the new one inherits."""
    standing, holder, _ = met
    uri = request.second_key
    created, waiting = now, None
    if holder is not None:
        if holder.state == EntryState.LEASED:
            assert uri is not None
            context.store.leases.supersede(holder, uri, request.timestamp)
        else:
            created, waiting = holder.created, holder
    if standing is None:
        return _Inherited(created, context.journal.ids.next_serial(), uri, None, 0, waiting)
    links, uri = _inherited_keys(context.store, standing, uri)
    if holder is None and uri is not None and uri == standing.uri:
        waiting = standing
    token_before = standing.token or standing.extra.token_before
    return _Inherited(standing.created, standing.arrival, uri, links, token_before, waiting)


def _inherited_keys(
    store: Store, standing: Entry, uri: bytes | None
) -> tuple[list[bytes] | None, bytes | None]:
    """Return links and URI of the entry that a SET with OVERWRITE puts in the place of another."""

    def kept(key: bytes) -> bool:
        return key != uri and (not standing.superseded or store.find(key) is standing)

    links = [link for link in standing.links or () if kept(link)] or None
    if uri is None and standing.uri is not None and kept(standing.uri):
        return links, standing.uri
    return links, uri


def _remove_replaced(store: Store, request: Request, met: _Met, now: int) -> None:
    """Remove the entries in whose place the new one stands."""
    standing, holder, _ = met
    how = REPLACED + 1 if request.flags & PERSIST else REPLACED_UNLOGGED
    if standing is not None:
        store.remove(standing, now)
        records = store.journal.deleted(standing, now, how)
        if request.flags & PERSIST:
            how += records
    if holder is not None and not holder.superseded:
        store.replace_by_uri(holder, request.timestamp, now, how)


def _build(context: Context, request: Request, inherited: _Inherited | None, now: int) -> Entry:
    """Return the entry that a SET puts in."""
    store, key = context.store, request.key
    if inherited is None:
        created, uri, links, token_before, waiting = now, request.second_key, None, 0, None
        arrival = context.journal.ids.next_serial()
    else:
        created, arrival, uri, links, token_before, waiting = inherited
    domain, priority, not_before = place_of(store.scheduler, key)
    first_due = 0
    if waiting is not None and domain is not store.scheduler.plain:
        not_before, first_due = postponed(context, waiting, not_before, now)
    facts = pack_facts(
        priority, not_before, arrival, request.timestamp, created, request.value_type or 0
    )
    entry = Entry(facts, key, uri, request.value, domain)
    changed = now if created != now else 0
    expires, ttl = request.timeout, request.ttl
    if expires is None:
        expires = min(now + ttl, INSTANT_MAX) if ttl else 0
    if expires or ttl or links or token_before or first_due:
        entry.extra = Extra(
            changed=changed,
            seen=changed,
            expires=expires,
            ttl=ttl or 0,
            links=links,
            token_before=token_before,
            first_due=first_due,
        )
    elif changed:
        times = entry.own_times()
        times.changed = times.seen = changed
    return entry


def note_superseded(context: Context, entries: Iterable[Entry]) -> None:
    """Note that the records of new entries take their URIs from entries that are worked on.

    It may be another one that had a URI until now, which is not persistent: the log has the URI
    with the one that is worked on.
    """
    store = context.store
    if not store.leased_uris:
        return
    for entry in entries:
        running = None if entry.uri is None else store.leased_uris.get(entry.uri)
        if running is not None and running.superseded:
            store.before_change(running)
            context.journal.superseded(running, entry.timestamp)


def place_of(scheduler: Scheduler, key: bytes) -> tuple[Domain, int, int]:
    """Return the domain of an entry with this primary key, its priority and its instant."""
    parts = split_journal_key(key)
    if parts is None:
        return scheduler.plain, 0, 0
    name, priority, not_before, _ = parts
    return scheduler.domains.get(name) or scheduler.domain_of(name), priority, not_before


def postponed(context: Context, waiting: Entry, not_before: int, now: int) -> tuple[int, int]:
    """Return when work may start that puts off a waiting entry, and when that was first due."""
    postpone = context.settings.postpone_us_max
    if waiting.state not in (_READY, _DELAYED):
        return not_before, 0
    first_due = waiting.extra.first_due or max(waiting.not_before, waiting.created)
    if not postpone:
        return not_before, first_due
    if not_before - now > postpone:
        # so long a delay is meant: from there a new chain begins
        return not_before, 0
    return min(not_before, first_due + postpone), first_due


def set_waiting(
    context: Context, requests: Iterable[Request], now: int, grant: Grant | None
) -> int:
    """Bulk insert: carry out SETs that put in new entries or move waiting ones; return how many.

    It ends before the first that does more or has to be refused: ``set_`` does that.
    """
    store = context.store
    if context.read_only:
        return 0
    changes, wanted, only = store.changes, store.changes.wanted, store.changes.only
    find, tombstone, scheduler = store.find, store.tombstones.get, store.scheduler
    add_keys, next_serial = store.keys.add_new, context.journal.ids.next_serial
    latest = now + context.settings.clock_skew_us_max
    entries, recorded = [], {}
    persistent: list[Entry] = []
    replaced: list[tuple[Entry, int]] = []
    for request in requests:
        key, uri, flags = request.key, request.second_key, request.flags
        if (
            find(key) is not None
            or flags & LISTEN
            or request.timeout
            or request.ttl
            or request.timestamp > latest
            or len(request.value) > WRITTEN_BYTES_MIN
            or tombstone(key, now) is not None
            or validate(request)
            or not (grant is None or grant.covers_new(key, uri))
        ):
            break
        holder = None if uri is None else find(uri)
        if holder is None:
            domain, priority, not_before = place_of(scheduler, key)
            facts = pack_facts(
                priority, not_before, next_serial(), request.timestamp, now, request.value_type or 0
            )
            entry = Entry(facts, key, uri, request.value, domain)
        elif (grant is not None and not grant.covers(holder)) or (
            moved := _moved(context, request, holder, now)
        ) is None:
            break
        else:
            entry = moved
            replaced.append((holder, request.timestamp))
        if wanted:
            if only is None or holder is not None or key in only or uri in only:
                _note(changes, key, uri, holder)
            else:
                changes.passed += 1
        # at once: the next one may have the same keys
        add_keys(entry, uri_stands=holder is not None)
        entries.append(entry)
        if flags & PERSIST:
            if holder is not None:
                recorded[len(persistent)] = replaced[-1]
            persistent.append(entry)
    if persistent:
        context.journal.stored_new(persistent, now, recorded)
        note_superseded(context, persistent)
    if entries:
        store.insert_new(entries, now)
    if replaced:
        store.remove_replaced(replaced, now)
    return len(entries)


def _note(changes: ChangeSet, key: bytes, uri: bytes | None, holder: Entry | None) -> None:
    """Note the keys that an entry takes, of which another one may hold the URI and goes."""
    owner = None if holder is None else holder.key
    if owner is not None:
        changes.note(owner, owner)
    changes.note(key, None)
    if uri is not None:
        changes.note(uri, owner)


def _moved(context: Context, request: Request, holder: Entry, now: int) -> Entry | None:
    """Return the entry that takes the URI of a waiting one in the same domain.

    None: the SET does more than that, or the turn of the domain depends on the order in which
    entries come and go.
    """
    state, domain = holder.state, holder.domain
    _, _, _, standing_timestamp, created, _ = unpack_facts(holder.facts)
    if (
        state not in (_READY, _DELAYED)
        or holder.key in context.store.locked
        # it can be found under no other key that a SET may take
        or holder.extra.links
        or holder.key == request.second_key
        # as ``is_stale`` of the holder, without a call (tests.bench.bench_instructions)
        or request.timestamp < standing_timestamp
        or (holder.run is not None and not request.flags & PERSIST)
        or (parts := split_journal_key(request.key)) is None
        or parts[0] != domain.name
    ):
        return None
    not_before, first_due = postponed(context, holder, parts[2], now)
    if not_before > now and state == _READY:
        return None
    facts = pack_facts(
        parts[1],
        not_before,
        context.journal.ids.next_serial(),
        request.timestamp,
        created,
        request.value_type or 0,
    )
    entry = Entry(facts, request.key, request.second_key, request.value, domain)
    changed = now if created != now else 0
    if first_due:
        entry.extra = Extra(changed=changed, seen=changed, first_due=first_due)
    elif changed:
        times = entry.own_times()
        times.changed = times.seen = changed
    return entry
