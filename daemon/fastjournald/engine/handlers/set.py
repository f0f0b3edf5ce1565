"""SET and bulk SET: last writer wins; deduplication by URI (one waiting entry per URI).

Bulk SET carries out consecutive SETs, of one or several clients, that add new entries or replace
waiting ones. Each has the same effect, records and indexes as ``set_``. The bulk ends before the
first SET that does more or is refused, and ``set_`` carries that one out. The rule of precedence is
``is_stale`` in ``cmdlog.format.endings``, for ``set_``, bulk SET and replay.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from fastjournal import _native
from fastjournal.cmdlog.format.endings import REPLACED, REPLACED_UNLOGGED, is_stale
from fastjournal.cmdlog.format.packed_entry import pack_facts, unpack_facts
from fastjournal.keys import split_journal_key
from fastjournal.limits import INSTANT_MAX, KEY_BYTES_MAX, WRITTEN_BYTES_A_UNIT, WRITTEN_BYTES_MIN
from fastjournal.protocol import (
    ErrorCode,
    Function,
    Pair,
    Reply,
    Request,
    ValueType,
    encode_success_of,
)
from fastjournald.engine.authorization import Grant
from fastjournald.engine.context import (
    BAD_KEY,
    CLOCK_SKEW,
    LISTEN,
    LOCKED,
    OVERWRITE,
    PERSIST,
    READ_ONLY,
    WORKED_ON,
    Context,
)
from fastjournald.engine.pubsub.change_set import ChangeSet
from fastjournald.engine.store import Store
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry, EntryState, Extra
from fastjournald.tables.scheduler import Scheduler

_READY, _DELAYED = EntryState.READY, EntryState.DELAYED
_SET = Function.SET.value
TYPE_MAX = int(max(ValueType))
_NO_VALUE = f"{ErrorCode.BAD_VALUE} a SET needs a value; void is type 0 without data"
_BAD_TYPE = f"{ErrorCode.BAD_VALUE} value types are 0 to {TYPE_MAX}"
_VOID_WITH_DATA = f"{ErrorCode.BAD_VALUE} a void value has no data"
_SAME_KEY = f"{ErrorCode.BAD_KEY} the second key equals the key"
_FURTHER_KEY = f"{ErrorCode.EXISTS} the key is a further key of another entry"
_PRIMARY_KEY = f"{ErrorCode.EXISTS} the second key is the primary key of another entry"


class _Inherited(NamedTuple):
    """Fields that a new entry takes over from the entries that it replaces."""

    created: int
    arrival: int
    uri: bytes | None
    links: list[bytes] | None
    token_before: int
    waiting: Entry | None
    """The waiting entry of the same URI; None: there was none."""
    replaced: int
    """Number of entries that are gone: of the same key, and of the same URI if not leased."""


class _Met(NamedTuple):
    """Entries and tombstone under the keys of a SET; at least one of the three is present."""

    standing: Entry | None
    """Entry under its key."""
    holder: Entry | None
    """Another entry under its URI."""
    deleted: int | None
    """Timestamp of the tombstone under its key."""


def set_(context: Context, session: Hashable, request: Request, now: int) -> str | bytes | Reply:
    """Set a key to a value. The second key is the URI, which has at most one waiting entry.

    The reply's ttl is the number of entries that it replaced: 0 for a repeat, absent for a new one.
    If one of them was a job of another domain, the reply has a pair with its key.
    """
    store = context.store
    key, uri, flags = request.key, request.second_key, request.flags
    standing = store.find(key)
    if standing is not None and standing.timestamp == request.timestamp and standing.key == key:
        # idempotent: a repeated SET was carried out before
        refused = _listen(context, session, request) if flags & LISTEN else ""
        return refused or encode_success_of(request.identifier, now, 0)
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
    # Insert the new entry before the old one is removed: the domain never becomes empty, so it
    # keeps its turn. Otherwise a domain whose only page is reported often never gets a turn.
    store.insert(entry, now)
    taken = None
    if met is not None:
        _remove_replaced(store, request, met, now)
        taken = _taken_from(context, inherited, entry, now)
    if flags & LISTEN:
        # the reply reports this change: no notification
        context.subscriptions.begin(session, request.identifier, key)
    if taken is not None and inherited is not None:
        return Reply(ttl=inherited.replaced, pairs=[Pair(taken.key, ValueType.VOID, b"")])
    if inherited is not None and inherited.replaced:
        return encode_success_of(request.identifier, now, inherited.replaced)
    return ""


def _listen(context: Context, session: Hashable, request: Request) -> str:
    """Subscribe to the key of a SET that was carried out before."""
    refused = context.subscriptions.refuses(session, request.identifier, request.key)
    if not refused:
        context.subscriptions.begin(session, request.identifier, request.key)
    return refused


def validate(request: Request) -> str:
    """Return the error in the arguments of a SET; empty: none."""
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
    return _BAD_TYPE if value_type > TYPE_MAX else ""


def _precedence(context: Context, session: Hashable, request: Request, met: _Met, now: int) -> str:
    """Return why a SET loses against the existing entries or tombstone; empty: it wins."""
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
    if standing is not None and request.flags & WORKED_ON and standing.state == EntryState.LEASED:
        return ErrorCode.WORKED_ON.value
    return ""


def _take_over(context: Context, request: Request, met: _Met, now: int) -> _Inherited:
    """Take over the key of one entry and the URI of another; return the inherited fields."""
    standing, holder, _ = met
    uri = request.second_key
    created, waiting, replaced = now, None, 0
    if holder is not None:
        if holder.state == EntryState.LEASED:
            assert uri is not None
            context.store.leases.supersede(holder, uri, request.timestamp)
        else:
            created, waiting, replaced = holder.created, holder, 1
    if standing is None:
        arrival = context.journal.ids.next_serial()
        return _Inherited(created, arrival, uri, None, 0, waiting, replaced)
    links, uri = _inherited_keys(context.store, standing, uri)
    if holder is None and uri is not None and uri == standing.uri:
        waiting = standing
    token_before = standing.token or standing.extra.token_before
    arrival = standing.arrival
    return _Inherited(standing.created, arrival, uri, links, token_before, waiting, replaced + 1)


def _inherited_keys(
    store: Store, standing: Entry, uri: bytes | None
) -> tuple[list[bytes] | None, bytes | None]:
    """Return the links and the URI of an entry that replaces another by SET with OVERWRITE."""

    def kept(key: bytes) -> bool:
        return key != uri and (not standing.superseded or store.find(key) is standing)

    links = [link for link in standing.links or () if kept(link)] or None
    if uri is None and standing.uri is not None and kept(standing.uri):
        return links, standing.uri
    return links, uri


def _remove_replaced(store: Store, request: Request, met: _Met, now: int) -> None:
    """Remove the entries that the new one replaces."""
    standing, holder, _ = met
    how = REPLACED + 1 if request.flags & PERSIST else REPLACED_UNLOGGED
    if standing is not None:
        store.remove(standing, now)
        records = store.journal.deleted(standing, now, how)
        if request.flags & PERSIST:
            how += records
    if holder is not None and not holder.superseded:
        store.replace_by_uri(holder, request.timestamp, now, how)


def _taken_from(
    context: Context, inherited: _Inherited | None, entry: Entry, now: int
) -> Entry | None:
    """Return the waiting job of another domain whose URI a job took, and count it; None: none."""
    if inherited is None or inherited.waiting is None:
        return None
    waiting, domain = inherited.waiting, entry.domain
    if domain is waiting.domain or context.store.scheduler.plain in (waiting.domain, domain):
        return None
    assert entry.uri is not None
    context.counters.count_replaced(waiting.domain.name, domain.name)
    context.taken_uris.add(waiting.key, entry.uri, entry.key, now)
    return waiting


def _build(context: Context, request: Request, inherited: _Inherited | None, now: int) -> Entry:
    """Return the new entry of a SET."""
    store, key = context.store, request.key
    if inherited is None:
        created, uri, links, token_before, waiting = now, request.second_key, None, 0, None
        arrival = context.journal.ids.next_serial()
    else:
        created, arrival, uri, links, token_before, waiting, _ = inherited
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
    """Log that new entries take over the URIs of leased entries.

    An entry that is not persistent may have had the URI until now. In the log the leased entry has
    it.
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
    """Return the domain, the priority and the due time (not before) in a primary key."""
    parts = split_journal_key(key)
    if parts is None:
        return scheduler.plain, 0, 0
    name, priority, not_before, _ = parts
    return scheduler.domains.get(name) or scheduler.domain_of(name), priority, not_before


def postponed(context: Context, waiting: Entry, not_before: int, now: int) -> tuple[int, int]:
    """Return the due time of an entry that postpones a waiting one, and the first due time."""
    postpone = context.settings.postpone_us_max
    if waiting.state not in (_READY, _DELAYED):
        return not_before, 0
    first_due = waiting.extra.first_due or max(waiting.not_before, waiting.created)
    if not postpone:
        return not_before, first_due
    if not_before - now > postpone:
        # so long a delay is intended: the bound counts from the new due time
        return not_before, 0
    return min(not_before, first_due + postpone), first_due


def set_waiting(
    context: Context,
    requests: list[Request],
    start: int,
    stop: int,
    now: int,
    grant: Grant | None,
) -> int:
    """Bulk insert: carry out SETs that add entries or replace waiting ones; return how many.

    It ends before the first request that is no SET, does more or is refused; the caller passes that
    one to ``set_``. ``context.replacing`` has the places of those that replaced an entry.
    """
    store = context.store
    if context.read_only:
        return 0
    changes, wanted, only = store.changes, store.changes.wanted, store.changes.only
    find, tombstone, scheduler = store.find, store.tombstones.get, store.scheduler
    add_keys, next_serial = store.keys.add_new, context.journal.ids.next_serial
    latest = now + context.settings.clock_skew_us_max
    entries: list[Entry] = []
    recorded: dict[int, tuple[Entry, int]] = {}
    persistent: list[Entry] = []
    replaced: list[tuple[Entry, int]] = []
    leaf = None if wanted or _native.leaves is None else _native.leaves.insert_waiting
    tables = (
        *(context.journal.ids, store.keys, store.tombstones, scheduler.domains),
        *(scheduler.domain_of, scheduler.plain, store.locked, grant, latest),
        context.settings.postpone_us_max,
    )
    made = entries, persistent, replaced, recorded, context.replacing
    at = start
    while at < stop:
        if leaf is not None:
            at = leaf(requests, at, stop, now, tables, made)
            if at == stop:
                break
        request = requests[at]
        key, uri, flags = request.key, request.second_key, request.flags
        if (
            request.function != _SET
            or find(key) is not None
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
            moved := _moved(context, request, holder, now, len(replaced))
        ) is None:
            break
        else:
            entry = moved
            context.replacing.append(len(entries))
            replaced.append((holder, request.timestamp))
        if wanted:
            if only is None or holder is not None or key in only or uri in only:
                _note(changes, key, uri, holder)
            else:
                changes.passed += 1
        # at once: the next request may have the same keys
        add_keys(entry, uri_stands=holder is not None)
        entries.append(entry)
        if flags & PERSIST:
            if holder is not None:
                recorded[len(persistent)] = replaced[-1]
            persistent.append(entry)
        at += 1
    if persistent:
        context.journal.stored_new(persistent, now, recorded)
        note_superseded(context, persistent)
    if entries:
        store.insert_new(entries, now)
    if replaced:
        store.remove_replaced(replaced, now)
    return len(entries)


def _note(changes: ChangeSet, key: bytes, uri: bytes | None, holder: Entry | None) -> None:
    """Note the changed keys of a new entry, and of the holder of its URI that it replaces."""
    owner = None if holder is None else holder.key
    if owner is not None:
        changes.note(owner, owner)
    changes.note(key, None)
    if uri is not None:
        changes.note(uri, owner)


def _moved(
    context: Context, request: Request, holder: Entry, now: int, before: int
) -> Entry | None:
    """Return the entry that replaces a waiting one with the same URI in the same domain.

    None: the SET does more, or the domain's turn depends on the order of insert and remove: where
    an entry becomes delayed, and it and those that the bulk replaced ``before``, which are removed
    later, may be all ready ones.
    """
    state, domain = holder.state, holder.domain
    _, _, _, standing_timestamp, created, _ = unpack_facts(holder.facts)
    if (
        state not in (_READY, _DELAYED)
        or holder.key in context.store.locked
        # links are further keys that a SET could take
        or holder.extra.links
        or holder.key == request.second_key
        # same as ``is_stale`` of the holder, without a call (tests.bench.bench_instructions)
        or request.timestamp < standing_timestamp
        or (holder.run is not None and not request.flags & PERSIST)
        or (parts := split_journal_key(request.key)) is None
        or parts[0] != domain.name
    ):
        return None
    not_before, first_due = postponed(context, holder, parts[2], now)
    if not_before > now and state == _READY and len(domain.ready) <= before + 1:
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
