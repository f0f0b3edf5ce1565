"""Delivery state of an entry: STATS with META says what keeps it from being delivered now.

Names that end in ``_us`` are instants, or durations where the name says so; 0: there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from fastjournal.limits import BUSY_WORKERS_A_UNIT, BUSY_WORKERS_LOOKS_MAX, DUE_LOOK_WORK
from fastjournald.engine.context import Context
from fastjournald.engine.store import Store
from fastjournald.engine.waiters import serves
from fastjournald.tables.domain import NEVER, Domain
from fastjournald.tables.entry import Entry, EntryState

_SECOND_US = 1_000_000

_SUBLISTS_A_UNIT = 16
"""Sublists of a queue whose lengths are added up in a microsecond."""


def key_text(key: bytes) -> str:
    """Return a key or a name as text in JSON; bytes that are not UTF-8 are escaped."""
    return key.decode("utf-8", "backslashreplace")


def delivery_state(
    context: Context,
    entry: Entry,
    now: int,
    may_see: Callable[[Entry], bool],
    may_see_key: Callable[[bytes], bool],
) -> dict[str, object]:
    """Return what keeps an entry from being delivered, and how many are before it if nothing does.

    The key of another entry is empty unless ``may_see`` says that the reader may see that entry,
    and the instants of its lease are whole seconds. ``may_see_key`` is for keys without an entry.
    The place in the queue costs O(n / 256) for a domain of n ready entries.
    """
    store = context.store
    lock = store.locks.held(entry.key, now)
    facts: dict[str, object] = {
        "now_us": now,
        "modified_us": entry.modified,
        "accessed_us": entry.accessed,
        **_holder(entry),
        "locked_since_us": 0 if lock is None else lock.since,
        "delayed_until_us": entry.delayed_until if entry.state == EntryState.DELAYED else 0,
        "ready_before": _ready_before(store, entry),
        "attempts_max": context.jobs.attempts_max_of(entry),
        "postpone_us_max": context.settings.postpone_us_max,
        "read_only": int(context.read_only),
        "daemon_paused_until_us": store.rules.pauses.everything_until,
        **_other_work(context.store, entry, may_see),
        **_took_uri(context, entry, may_see_key),
    }
    if entry.journal:
        facts |= _domain_state(entry.domain)
        name = entry.domain.name
        store.work += context.waiters.prefix_lengths * DUE_LOOK_WORK
        facts["domain_next_waiting"] = context.waiters.number_serving(name)
        facts["domain_workers_busy"] = workers_busy(store, name)
    return facts


def workers_busy(store: Store, domain: bytes) -> int:
    """Return how many connected workers hold leases and take work of a domain when they ask again.

    Of the first BUSY_WORKERS_LOOKS_MAX that hold leases, by what their last NEXT asked for.
    """
    holding = list(islice(store.leases.holding, BUSY_WORKERS_LOOKS_MAX))
    store.work += len(holding) // BUSY_WORKERS_A_UNIT
    return sum(holder.connected and serves(holder.asked, domain) for holder in holding)


def _holder(entry: Entry) -> dict[str, object]:
    """Return who works on an entry, and since when, as far as that is known; see ``lease``."""
    lease = entry.extra.lease
    if lease is None:
        return {"worked_on_since_us": 0, "worked_on_by": "", "worker_connected": 0}
    return {
        "worked_on_since_us": lease.since,
        "worked_on_by": lease.holder.name,
        "worker_connected": int(lease.holder.connected),
    }


def _took_uri(
    context: Context, entry: Entry, may_see_key: Callable[[bytes], bool]
) -> dict[str, object]:
    """Return the job of another domain from which an entry, or its forerunner, took its URI."""
    found = None if entry.uri is None else context.taken_uris.last_of(entry.uri)
    if found is not None:
        key, taken = found
        # a job that was created later, or of a third domain, took nothing
        if taken.taken_us >= entry.created and _domain_in(taken.key) == entry.domain.name:
            shown = key_text(key) if may_see_key(key) else ""
            return {"took_uri_from": shown, "took_uri_us": taken.taken_us}
    return {"took_uri_from": None, "took_uri_us": 0}


def _domain_in(key: bytes) -> bytes:
    return key.partition(b":")[0]


def tombstone_state(
    context: Context, key: bytes, now: int, may_see_key: Callable[[bytes], bool]
) -> dict[str, object] | None:
    """Return what a tombstone under a key says; None: there is none."""
    tombstones = context.store.tombstones
    found = tombstones.find(key, now)
    if found is None:
        return None
    timestamp, deleted_us = found
    taken = context.taken_uris.of(key)
    if taken is not None and taken.taken_us != deleted_us:
        taken = None  # an earlier job of this key
    by = None if taken is None else key_text(taken.key) if may_see_key(taken.key) else ""
    return {
        "state": "deleted",
        "keys": [key_text(key)],
        "now_us": now,
        "timestamp": timestamp,
        "deleted_us": deleted_us,
        "tombstone_until_us": tombstones.lasts_until(deleted_us, now),
        "uri_taken_by": by,
    }


def _ready_before(store: Store, entry: Entry) -> int:
    """Return how many ready entries of its domain are before a ready entry."""
    if entry.state != EntryState.READY:
        return 0
    ready = entry.domain.ready
    store.work += DUE_LOOK_WORK + len(ready) // (ready.LOAD * _SUBLISTS_A_UNIT)
    return ready.index_of(entry)


def _other_work(store: Store, entry: Entry, may_see: Callable[[Entry], bool]) -> dict[str, object]:
    """Return the lease of another entry on the URI, and the entry that has taken the URI."""
    leased = None if entry.uri is None else store.leased_uris.get(entry.uri)
    newer = store.find(entry.uri) if entry.superseded and entry.uri is not None else None
    if leased is entry:
        leased = None
    if newer is entry:
        newer = None
    return {
        **_lease_on_uri(entry, leased, may_see),
        "superseded_by": _key_for(newer, may_see),
    }


def _lease_on_uri(
    entry: Entry, leased: Entry | None, may_see: Callable[[Entry], bool]
) -> dict[str, object]:
    """Return the lease for which an entry waits; of one that is hidden only whole seconds.

    The exact end of a lease is its token, if no step of the clock has moved it, and an entry that
    waits for it is delayed until then.
    """
    if leased is None:
        return {"uri_leased_by": None, "uri_leased_since_us": 0, "uri_leased_until_us": 0}
    since = 0 if leased.extra.lease is None else leased.extra.lease.since
    facts: dict[str, object] = {
        "uri_leased_by": _key_for(leased, may_see),
        "uri_leased_since_us": since,
        "uri_leased_until_us": leased.leased_until,
    }
    if not may_see(leased):
        until = -(-leased.leased_until // _SECOND_US) * _SECOND_US
        facts["uri_leased_since_us"] = since // _SECOND_US * _SECOND_US
        facts["uri_leased_until_us"] = until
        if entry.delayed_until == leased.leased_until and entry.state == EntryState.DELAYED:
            facts["delayed_until_us"] = until
    return facts


def _key_for(entry: Entry | None, may_see: Callable[[Entry], bool]) -> str | None:
    if entry is None:
        return None
    return key_text(entry.key) if may_see(entry) else ""


def _domain_state(domain: Domain) -> dict[str, object]:
    limit = domain.limit
    held_until = domain.held_until()
    return {
        "domain": key_text(domain.name),
        "domain_due": len(domain.ready),
        "domain_worked_on": domain.worked_on,
        "domain_paused_until_us": domain.paused_until,
        "domain_delivered_us": domain.delivered_at,
        "domain_interval_us": 0 if limit is None else limit.interval_us,
        "domain_waits_until_us": domain.waits_until,
        "domain_jobs_max": 0 if limit is None else limit.jobs,
        "domain_is_full": domain.is_full(),
        "domain_held_until_us": 0 if held_until >= NEVER else held_until,
    }
