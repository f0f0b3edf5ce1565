"""STATS: figures of the daemon, of a domain, of an entry, or of the dead letters of a domain.

One of them is the backlog age: the time since the oldest unleased entry became due. An entry is due
since the due time in its key or the end of its delay; without a due time (0) since it was created.
A failed attempt begins it anew. So another one is the time since the oldest waiting entry was asked
for: since its creation, or the due time in its key where that is later.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from fastjournal.cmdlog.format.layout import unpack_position
from fastjournal.cmdlog.format.packed_entry import ORDER_BYTES, pack_facts
from fastjournal.limits import (
    COUNTED_DOMAIN_WORK,
    DUE_LOOK_WORK,
    ENTRY_WORK,
    OLDEST_DUE_LOOKS_MAX,
    PAIRS_MAX,
    TURN_WORK,
    WORKER_DOMAINS_MAX,
    WORKER_ROW_WORK,
    WORKERS_MAX,
    WRITTEN_BYTES_A_UNIT,
)
from fastjournal.protocol import ErrorCode, Function, Pair, Reply, Request, ValueType
from fastjournal.protocol.replies import PAIR_BYTES, REPLY_BYTES
from fastjournald.engine.context import (
    BAD_KEY,
    DATA,
    META,
    NOT_A_DOMAIN,
    TWO_KEYS,
    Context,
    is_domain,
    is_key,
)
from fastjournald.engine.handlers.delivery_state import (
    delivery_state,
    key_text,
    tombstone_state,
    workers_busy,
)
from fastjournald.engine.handlers.scan.page import (
    BAD_CURSOR,
    CURSOR_BYTES,
    DEAD_LETTERS,
    Cursor,
    decode_cursor,
    encode_cursor,
)
from fastjournald.engine.store import Store
from fastjournald.engine.waiters import Waiters
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import STATE_NAMES, Entry
from fastjournald.tables.job_counts import JobCounts


class Oldest(NamedTuple):
    """Instants of the oldest waiting entries; None: there is none."""

    due: int | None
    """Since when the oldest ready entry is due."""
    asked: int | None
    """Since when one is asked for that is due, or was leased before and waits for its next time."""


def oldest_in(domain: Domain, now: int, store: Store | None = None) -> Oldest:
    """Return the instants of the oldest waiting entries of a domain.

    At most 512 binary searches, which are work of the ``store`` where one is given.
    """
    entries = list(_oldest(domain))
    if store is not None:
        store.work += DUE_LOOK_WORK * len(entries)
    return _oldest_of(entries, (domain,), now)


def oldest_anywhere(store: Store, now: int, looks_max: int) -> Oldest:
    """Return the instants of the oldest waiting entries of all domains.

    Args:
        store: Store of the entries.
        now: Present instant.
        looks_max: Most domains, and priorities in them, that are looked at: those first
            whose turn is next. Also most domains with entries that were leased before.
    """
    round_robin, again = store.scheduler.round_robin, store.scheduler.requeued
    domains = chain(round_robin.turns.values(), round_robin.held.ready.values())
    entries = list(islice(chain.from_iterable(map(_oldest, domains)), looks_max))
    store.work += DUE_LOOK_WORK * (len(entries) + min(len(again), looks_max))
    return _oldest_of(entries, islice(again.values(), looks_max), now)


def _oldest_of(entries: list[Entry], domains: Iterable[Domain], now: int) -> Oldest:
    asked = chain(map(_asked_since, entries), _requeued_since(domains, now))
    return Oldest(min(map(_due_since, entries), default=None), min(asked, default=None))


def _requeued_since(domains: Iterable[Domain], now: int) -> Iterator[int]:
    """Yield since when the first entry of each domain that was leased before is asked for."""
    for domain in domains:
        if domain.requeued is not None:
            since, _ = domain.requeued[0]
            if since <= now:
                yield since


def _asked_since(entry: Entry) -> int:
    """Return since when an entry is asked for that was not leased before."""
    return max(entry.not_before, entry.created)


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
            facts["workers"] = [worker.facts(context.waiters) for worker in workers]
            facts["workers_cut"] = int(is_cut)
    elif not is_domain(key):
        return _NOT_A_DOMAIN
    elif request.count is not None:
        return _dead_letters(context, request, request.count, now)
    else:
        facts = about_domain(context, key, now)
        facts["workers_busy"] = workers_busy(context.store, key)
    data = msgspec.json.encode(facts)
    return Reply(pairs=[Pair(key, int(ValueType.STRING), data)])


def about_daemon(store: Store, now: int) -> dict[str, object]:
    """Return the figures of STATS for all entries of the daemon."""
    counts = store.counts()
    oldest = oldest_anywhere(store, now, OLDEST_DUE_LOOKS_MAX)
    return {
        "entries": counts.entries,
        "waiting": counts.due + counts.delayed,
        "due": counts.due,
        "delayed": counts.delayed,
        "worked_on": counts.leased,
        "buried": counts.buried,
        "oldest_due_us": 0 if oldest.due is None else now - oldest.due,
        "oldest_waiting_us": 0 if oldest.asked is None else max(0, now - oldest.asked),
        "domains": len(store.scheduler.domains),
        "paused_until": store.rules.pauses.everything_until,
    }


def _totals(context: Context) -> dict[str, int]:
    """Return totals since the start of the daemon, for rates."""
    requests = context.counters.requests
    job_counts = context.store.scheduler.job_counts
    context.store.work += COUNTED_DOMAIN_WORK * len(job_counts.by_domain)
    return {
        "requests": sum(requests.values()),
        "set_requests": requests[Function.SET],
        "next_requests": requests[Function.NEXT],
        "delete_requests": requests[Function.DELETE],
        **about_jobs(job_counts.total()),
        # with those of plain entries
        "leases_lost": context.store.leases.lost,
    }


def about_jobs(counts: JobCounts | None) -> dict[str, int]:
    """Return what became of jobs since the start of the daemon."""
    counts = counts or JobCounts()
    return {
        "deliveries": counts.waited_us.number,
        "jobs_completed": counts.completed,
        "attempts_failed": counts.attempts_failed,
        "leases_lost": counts.leases_lost,
        "jobs_buried": counts.buried,
        "waited_us": counts.waited_us.total,
        "run_us": counts.run_us.total,
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
    domain: bytes = b""
    takes: tuple[bytes, ...] = ()
    """Domains that its last NEXT with work asked for, as ``waits_for`` names them."""
    session: Hashable = None
    """None: it has ended. No part of the reply."""

    def facts(self, waiters: Waiters) -> dict[str, object]:
        """Return it as an object of the reply, with 0 and 1 as everywhere in STATS."""
        facts = msgspec.structs.asdict(self)
        del facts["session"]
        waits_for = waiters.domains_of(self.session, WORKER_DOMAINS_MAX) if self.waiting else []
        return facts | {
            "connected": int(self.connected),
            "domain": key_text(self.domain),
            "takes": list(map(key_text, self.takes[:WORKER_DOMAINS_MAX])),
            "waits_for": list(map(key_text, waits_for)),
        }


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
                b"" if domain is None else domain.name,
                holder.asked,
                holder.session,
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
            rows.append(WorkerRow(leases.name_of(session), True, number, session=session))
    store.work += looks * WORKER_ROW_WORK
    return rows, is_cut


def about_domain(context: Context, name: bytes, now: int) -> dict[str, object]:
    """Return the figures of STATS for a domain; at most 512 binary searches."""
    store = context.store
    store.work += context.waiters.prefix_lengths * DUE_LOOK_WORK
    domain = store.scheduler.domains.get(name)
    limit = store.rules.limits.of(name)
    rules = {
        "daemon_paused_until": store.rules.pauses.everything_until,
        "interval_us": limit.interval_us,
        "jobs_max": limit.jobs,
        "lease_us": limit.lease_us or context.settings.lease_us_default,
        "attempts_max": max(limit.attempts or context.settings.attempts_max, 0),
        "next_waiting": context.waiters.number_serving(name),
    }
    jobs = about_jobs(store.scheduler.job_counts.by_domain.get(name))
    if domain is None:
        counts = dict.fromkeys(("entries", "waiting", "due", "delayed", "worked_on", "buried"), 0)
        return {
            **counts,
            "oldest_due_us": 0,
            "oldest_waiting_us": 0,
            "paused_until": store.rules.pauses.until(name),
            **rules,
            **jobs,
        }
    oldest = oldest_in(domain, now, store)
    return {
        "entries": domain.entries,
        "waiting": len(domain.ready) + len(domain.delayed),
        "due": len(domain.ready),
        "delayed": len(domain.delayed),
        "worked_on": domain.worked_on,
        "buried": domain.buried,
        "oldest_due_us": 0 if oldest.due is None else now - oldest.due,
        "oldest_waiting_us": 0 if oldest.asked is None else max(0, now - oldest.asked),
        "paused_until": domain.paused_until,
        **rules,
        **jobs,
    }


_FIRST_PLACE = bytes(ORDER_BYTES)
"""Place in the order of work before that of each entry."""
_BEHIND = b"\xff" * 8
"""End of a place that is behind the entry whose facts begin so: an instant follows there."""
_PART = 64
"""Dead letters that are looked up at once."""


def _dead_letters(context: Context, request: Request, count: int, now: int) -> str | Reply:
    """Return a page of the dead letters of a domain in the order of work, each as an entry."""
    store, name, place = context.store, request.key, _FIRST_PLACE
    if request.second_key:
        cursor = decode_cursor(request.second_key, DEAD_LETTERS)
        if cursor is None or cursor.text != name or len(cursor.next_key) < ORDER_BYTES:
            return BAD_CURSOR
        place = cursor.next_key
    domain = store.scheduler.domains.get(name)
    room = (
        context.reply_bytes_max
        - REPLY_BYTES
        - CURSOR_BYTES
        - len(name)
        - ORDER_BYTES
        - len(_BEHIND)
    )
    work_over = store.work + TURN_WORK
    reply = Reply(flags=TWO_KEYS, pairs=[])
    pairs: list[Pair] = []
    for entry in () if domain is None else _buried_from(domain, place):
        data = msgspec.json.encode(about_entry(store, entry, now))
        pair = Pair(entry.key, int(ValueType.STRING), data, entry.uri or b"")
        room -= PAIR_BYTES + len(pair.key) + len(pair.second_key) + len(data)
        if pairs and (len(pairs) == (count or PAIRS_MAX) or store.work > work_over or room < 0):
            reply.cursor = encode_cursor(Cursor(DEAD_LETTERS, count, place, name))
            break
        pairs.append(pair)
        store.work += ENTRY_WORK + len(data) // WRITTEN_BYTES_A_UNIT
        place = entry.facts[:ORDER_BYTES] + _BEHIND
    reply.pairs = pairs
    return reply


def _buried_from(domain: Domain, place: bytes) -> Iterator[Entry]:
    """Yield the dead letters of a domain from a place in the order of work on."""
    while part := domain.buried_order.part_from(place, _PART):
        yield from part
        place = domain.buried_order.key_after(part[-1])


def _about_key(
    context: Context, session: Hashable, key: bytes, now: int, *, explained: bool
) -> dict[str, object] | None:

    def may_see_key(other: bytes) -> bool:
        return context.grants is None or context.grants.may_see_key(session, other)

    entry = context.store.find(key)
    if entry is None:
        return tombstone_state(context, key, now, may_see_key) if explained else None
    facts = about_entry(context.store, entry, now)
    if not explained:
        return facts

    def may_see(other: Entry) -> bool:
        return context.grants is None or context.grants.may_see(session, other)

    return facts | delivery_state(context, entry, now, may_see, may_see_key)


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
