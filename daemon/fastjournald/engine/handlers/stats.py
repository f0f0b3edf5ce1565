"""STATS: figures of the daemon, of a domain, or of an entry.

One of them is the backlog age: the time since the oldest unleased entry became due. An entry is due
since the due time in its key or the end of its delay; without a due time (0) since it was created.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain, islice

import msgspec

from fastjournal.cmdlog.format.layout import unpack_position
from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.limits import DUE_LOOK_WORK, OLDEST_DUE_LOOKS_MAX, WORKER_ROW_WORK, WORKERS_MAX
from fastjournal.protocol import ErrorCode, Function, Pair, Reply, Request, ValueType
from fastjournald.engine.context import (
    BAD_KEY,
    DATA,
    META,
    NOT_A_DOMAIN,
    Context,
    is_domain,
    is_key,
)
from fastjournald.engine.handlers.delivery_state import delivery_state, key_text, tombstone_state
from fastjournald.engine.store import Store
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import STATE_NAMES, Entry


def oldest_due(domain: Domain, store: Store | None = None) -> int | None:
    """Return since when the oldest ready entry of a domain is due; None: nothing is ready.

    At most 512 binary searches, which are work of the ``store`` where one is given.
    """
    entries = list(_oldest(domain))
    if store is not None:
        store.work += DUE_LOOK_WORK * len(entries)
    return min(map(_due_since, entries), default=None)


def oldest_due_anywhere(store: Store, looks_max: int) -> int | None:
    """Return since when the oldest ready entry is due; None: nothing is ready.

    Args:
        store: Store of the entries.
        looks_max: Most domains, and priorities in them, that are looked at: those first
            whose turn is next.
    """
    round_robin = store.scheduler.round_robin
    domains = chain(round_robin.turns.values(), round_robin.held.ready.values())
    entries = list(islice(chain.from_iterable(map(_oldest, domains)), looks_max))
    store.work += DUE_LOOK_WORK * len(entries)
    return min(map(_due_since, entries), default=None)


def _oldest(domain: Domain) -> Iterator[Entry]:
    """Yield the entries among which the oldest due one is: some of each priority.

    They are the first that names no instant (0), and the earliest that names one: at most
    512 binary searches, and none where all have one priority and name instants, or none does.
    """
    ready = domain.ready
    if not ready:
        return
    entry, last = ready.first(), ready.last()
    while entry is not None:
        yield entry
        priority = entry.priority
        if priority == last.priority and not (entry.not_before or last.not_before):
            return
        if not entry.not_before:
            entry = ready.first_from(pack_facts(priority, 1, 0, 0, 0, 0))
        elif priority < last.priority:
            entry = ready.first_from(pack_facts(priority + 1, 0, 0, 0, 0, 0))
        else:
            return


def _due_since(entry: Entry) -> int:
    return entry.not_before or entry.created


_NOT_A_DOMAIN = f"{NOT_A_DOMAIN}; add DATA to ask about an entry"


def stats(context: Context, session: Hashable, request: Request, now: int) -> str | Reply:
    """Return the figures of the daemon, a domain, or with DATA an entry: a JSON object."""
    key = request.key
    facts: dict[str, object]
    if request.flags & DATA:
        if not is_key(key):
            return BAD_KEY
        found = _about_key(context, session, key, now, explained=bool(request.flags & META))
        if found is None:
            return ErrorCode.NOT_FOUND.value
        facts = found
    elif not key:
        facts = {**about_daemon(context.store, now), **_totals(context), **context.gauges(now)}
        facts["subscriptions"] = len(context.subscriptions)
        # workers are of all domains: a token for some of them is not shown any
        grants = context.grants
        if request.flags & META and (grants is None or grants.covers_everything(session)):
            workers, is_cut = about_workers(context)
            facts["workers"] = [worker.facts() for worker in workers]
            facts["workers_cut"] = int(is_cut)
    elif not is_domain(key):
        return _NOT_A_DOMAIN
    else:
        facts = about_domain(context, key, now)
    data = msgspec.json.encode(facts)
    return Reply(pairs=[Pair(key, int(ValueType.STRING), data)])


def about_daemon(store: Store, now: int) -> dict[str, object]:
    """Return the figures of STATS for all entries of the daemon."""
    counts = store.counts()
    oldest = oldest_due_anywhere(store, OLDEST_DUE_LOOKS_MAX)
    return {
        "entries": counts.entries,
        "waiting": counts.due + counts.delayed,
        "due": counts.due,
        "delayed": counts.delayed,
        "worked_on": counts.leased,
        "buried": counts.buried,
        "oldest_due_us": 0 if oldest is None else now - oldest,
        "domains": len(store.scheduler.domains),
    }


def _totals(context: Context) -> dict[str, int]:
    """Return totals since the start of the daemon, for rates."""
    requests = context.counters.requests
    return {
        "requests": sum(requests.values()),
        "set_requests": requests[Function.SET],
        "next_requests": requests[Function.NEXT],
        "delete_requests": requests[Function.DELETE],
        "leases_lost": context.store.leases.lost,
    }


class WorkerRow(msgspec.Struct, gc=False):
    """Worker, as STATS of the daemon shows it."""

    name: str
    connected: bool
    waiting: int
    """Its NEXTs that wait for work."""
    worked_on: int = 0
    since_us: int = 0
    """Begin of the first of its leases; 0: it has none, or one from before the start."""
    domain: str = ""

    def facts(self) -> dict[str, object]:
        """Return it as an object of the reply, with 0 and 1 as everywhere in STATS."""
        return msgspec.structs.asdict(self) | {"connected": int(self.connected)}


def about_workers(context: Context) -> tuple[list[WorkerRow], bool]:
    """Return the connections that hold leases or wait for work, those that hold some first.

    Leases from before the start of the daemon are nobody's.

    Returns:
        As many as a reply shows, and whether there are more.
    """
    store, waiters = context.store, context.waiters
    leases = store.leases
    rows = []
    for holder in islice(leases.holding, WORKERS_MAX):
        oldest = holder.oldest()
        domain = oldest.domain()
        rows.append(
            WorkerRow(
                holder.name,
                holder.connected,
                waiters.count_of(holder.session),
                holder.number,
                oldest.since,
                "" if domain is None else key_text(domain.name),
            )
        )
    is_cut = len(leases.holding) > len(rows)
    looks = len(rows)
    if not is_cut:
        # at most as many of them hold leases, and are in the list, as that has rows
        for session, number in waiters.numbers():
            looks += 1
            holder_or_none = leases.holder_of(session)
            if holder_or_none is not None and holder_or_none.number:
                continue
            if len(rows) == WORKERS_MAX:
                is_cut = True
                break
            rows.append(WorkerRow(leases.name_of(session), connected=True, waiting=number))
    store.work += looks * WORKER_ROW_WORK
    return rows, is_cut


def about_domain(context: Context, name: bytes, now: int) -> dict[str, object]:
    """Return the figures of STATS for a domain; at most 512 binary searches."""
    store = context.store
    domain = store.scheduler.domains.get(name)
    limit = store.rules.limits.of(name)
    limits = {
        "interval_us": limit.interval_us,
        "jobs_max": limit.jobs,
        "lease_us": limit.lease_us or context.settings.lease_us_default,
        "attempts_max": limit.attempts or context.settings.attempts_max,
    }
    if domain is None:
        counts = dict.fromkeys(("entries", "waiting", "due", "delayed", "worked_on", "buried"), 0)
        return {
            **counts,
            "oldest_due_us": 0,
            "paused_until": store.rules.pauses.until(name),
            **limits,
        }
    oldest = oldest_due(domain, store)
    return {
        "entries": domain.entries,
        "waiting": len(domain.ready) + len(domain.delayed),
        "due": len(domain.ready),
        "delayed": len(domain.delayed),
        "worked_on": domain.worked_on,
        "buried": domain.buried,
        "oldest_due_us": 0 if oldest is None else now - oldest,
        "paused_until": domain.paused_until,
        **limits,
    }


def _about_key(
    context: Context, session: Hashable, key: bytes, now: int, *, explained: bool
) -> dict[str, object] | None:
    entry = context.store.find(key)
    if entry is None:
        return tombstone_state(context, key, now) if explained else None
    facts = about_entry(context.store, entry, now)
    if not explained:
        return facts

    def may_see(other: Entry) -> bool:
        return context.grants is None or context.grants.may_see(session, other)

    return facts | delivery_state(context, entry, now, may_see)


def about_entry(store: Store, entry: Entry, now: int) -> dict[str, object]:
    """Return the figures of STATS for an entry."""
    lock = store.locks.held(entry.key, now)
    error = entry.extra.error
    segment, offset = unpack_position(entry.position)
    return {
        "keys": [key_text(key) for key in entry.all_keys()],
        "state": STATE_NAMES[entry.state],
        "persistent": entry.persistent,
        "priority": entry.priority,
        "attempts": entry.extra.attempts,
        "buried_reason": None if entry.reason is None else entry.reason.decode("utf-8", "replace"),
        "last_error": error if error is None else error.decode("utf-8", "replace"),
        "superseded": bool(entry.superseded),
        "timestamp": entry.timestamp,
        "created": entry.created,
        "not_before": entry.not_before,
        "first_due": entry.extra.first_due,
        "expires": entry.expires,
        "worked_on_until": entry.token,
        "lease_ends": entry.leased_until,
        "locked_until": 0 if lock is None else lock.until,
        "value_bytes": len(entry.value),
        "job_id": entry.job_id.hex(),
        "log_segment": segment,
        "log_offset": offset,
    }
