"""Bulk SET: those in a row, of one client or several, that put in new entries or move waiting ones.

Each does what ``set_`` would do, with the same records and indexes. One that does more, or has to
be refused, ends the bulk and goes to ``set_``: so the conditions here name what is usual. The rule
of the SET that wins is that of ``cmdlog.format.endings``, for ``set_``, for this and for replay.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastjournal.cmdlog.format.packed_entry import pack_facts, unpack_facts
from fastjournal.keys import split_journal_key
from fastjournal.limits import WRITTEN_BYTES_MIN
from fastjournal.protocol import Request
from fastjournald.engine.authorization import Grant
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import LISTEN, PERSIST
from fastjournald.engine.handlers.set import note_superseded, place_of, postponed, validate
from fastjournald.engine.pubsub.change_set import ChangeSet
from fastjournald.tables.entry import Entry, Extra
from fastjournald.tables.entry_states import EntryState

_READY, _DELAYED = EntryState.READY, EntryState.DELAYED


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
