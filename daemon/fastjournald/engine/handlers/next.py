"""NEXT: lease or pop due entries, with round robin between domains."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import islice

from fastjournal import _native
from fastjournal.cmdlog.format import workq
from fastjournal.limits import (
    ASIDE_WORK_MAX,
    ENTRY_WORK,
    HOLD_WORK,
    KEY_BYTES_MAX,
    NAMES_SORTED_A_UNIT,
    NEXT_ENTRIES_MAX,
    REASON_BYTES_MAX,
    WAITS_BYTES_MAX,
    WAITS_MAX,
    WAITS_PER_CONNECTION_MAX,
    WRITTEN_BYTES_A_UNIT,
)
from fastjournal.protocol import ErrorCode, Reply, Request, encode_reply_to
from fastjournal.protocol.replies import META_BYTES, PAIR_BYTES, REPLY_BYTES
from fastjournald.engine.context import (
    DATA,
    LISTEN,
    META,
    NOT_A_DOMAIN,
    OVERWRITE,
    READ_ONLY,
    SCARCE,
    TWO_KEYS,
    WORKED_ON,
    Context,
)
from fastjournald.engine.next_options import Chosen, next_at, options_of, valid_options
from fastjournald.engine.undelivered import DeliveringReply
from fastjournald.engine.waiters import ALL_NAMES, names_of
from fastjournald.tables.domain import NEVER, Domain
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import ALL_READABLE, Missing, Unreadable

ANY_DOMAIN = f"{NOT_A_DOMAIN}; empty stands for any"
_TOO_MANY_WAITS = f"{ErrorCode.BUSY} {WAITS_PER_CONNECTION_MAX} requests wait on this connection"
_TOO_MANY_WAIT = f"{ErrorCode.BUSY} {WAITS_MAX} requests wait on all connections"
_TOO_LARGE_WAIT = f"{ErrorCode.BUSY} {WAITS_BYTES_MAX} bytes of requests wait on all connections"


def next_(
    context: Context,
    session: Hashable,
    request: Request,
    now: int,
    unreadable: Unreadable = ALL_READABLE,
) -> str | Reply | DeliveringReply | Missing | None:
    """Lease due entries. If there are none, wait or reply with the instant of the next one."""
    if not is_any_domain(request.key):
        return ANY_DOMAIN
    if request.value_type is not None:
        options = options_of(request)
        if isinstance(options, str):
            return options
    if context.read_only:
        return READ_ONLY
    reply = next_work(context, session, request, now, unreadable)
    if not isinstance(reply, Reply):
        return reply
    if reply.error:
        return reply.error
    if request.flags & LISTEN and request.count != 0:
        if context.stopping:
            return ErrorCode.SHUTTING_DOWN.value
        if context.waiters.count_of(session) >= WAITS_PER_CONNECTION_MAX:
            return _TOO_MANY_WAITS
        if len(context.waiters) >= WAITS_MAX:
            return _TOO_MANY_WAIT
        if context.waiters.bytes_with(request) > WAITS_BYTES_MAX:
            return _TOO_LARGE_WAIT
        context.wait(session, request, now)
        return None
    return reply


def is_any_domain(name: bytes) -> bool:
    """Whether this is a valid domain name, or empty for any domain."""
    return len(name) <= KEY_BYTES_MAX and b":" not in name


def nothing_due(context: Context, request: Request) -> Reply:
    """Return the reply of a NEXT that found no due entry: the instant of the next one."""
    instant = next_at(context.store.scheduler, request)
    return Reply(pairs=[], timeout=None if instant == NEVER else instant)


def next_work(
    context: Context, session: Hashable, request: Request, now: int, unreadable: Unreadable
) -> Reply | DeliveringReply | Missing:
    """Lease or pop due entries, up to the count and the size of a reply; Reply: none is due."""
    entries = _take(context, request, now, unreadable)
    if entries is None:
        return Reply(error=SCARCE)
    if isinstance(entries, Missing):
        return entries
    if not entries:
        return nothing_due(context, request)
    store, journal = context.store, context.journal
    if store.scheduler.requeued:
        for entry in entries:
            store.scheduler.drop_requeued(entry)
    limited = store.rules.limits.any
    asked = names_of(request)
    if asked == ALL_NAMES:
        context.any_domain_at = now
    pops = request.flags & OVERWRITE
    store.work += (ENTRY_WORK + HOLD_WORK * limited) * len(entries)
    unproven = context.unproven(entries, leased=not pops) if limited else ()
    reply = Reply(flags=TWO_KEYS)
    if pops:
        store.scheduler.job_counts.pop(entries, now)
        for entry in entries:
            store.remove(entry, now, popped=True)
            store.tombstones.put_for(entry, entry.timestamp, now)
        journal.popped(entries, now, unproven)
        token = 0
    else:
        lease_us = request.timeout or context.tokens.lease_us_of(entries[0].domain)
        token = context.tokens.issue(entries, now + lease_us)
        attempts_max = 0
        if request.value_type is not None:
            attempts_max = valid_options(request).attempts
        journal.leases.leased(entries, token, now, (), attempts_max, unproven)
        store.begin_work(entries, token, session, now)
        store.leases.note_asked(session, asked)
        if attempts_max:
            store.leases.bound(entries, attempts_max)
        reply.flags |= WORKED_ON
        reply.timeout = token
    reply.pairs = store.pairs(entries, request.flags, now)
    delivery = DeliveringReply(encode_reply_to(request.identifier, reply, now))
    delivery.jobs = token, entries
    return delivery


def _take(
    context: Context, request: Request, now: int, unreadable: Unreadable
) -> list[Entry] | Missing | None:
    """Dequeue due entries, one per domain and turn; None: the first value is too large now."""
    store, rules = context.store, context.store.rules
    scheduler = store.scheduler
    turns: OrderedDict[bytes, Domain] | Chosen = scheduler.round_robin.turns
    if request.value_type is not None:
        turns = _turns_for(context, request)
    room = context.reply_bytes_max - REPLY_BYTES
    overhead = _overhead(request)
    with_data = request.flags & DATA
    count = 1 if request.count is None else min(request.count, NEXT_ENTRIES_MAX)
    named: Domain | None = scheduler.domains.get(request.key) if request.key else None
    if (named is not None and named.held) or scheduler.pauses.everything_until:
        return []
    if store.values is not None and store.values.cold:
        missing = _missing(context, request, count, now, unreadable)
        if missing:
            return Missing(missing)
    pops = request.flags & OVERWRITE
    entries: list[Entry] = []
    work_over = store.work + ASIDE_WORK_MAX
    leaf = None
    if _native.leaves is not None and not pops and (named is not None or not request.key):
        leaf = _native.leaves.take_ready
    while len(entries) < count and store.work <= work_over:
        if leaf is not None:
            room = leaf(
                *(turns, named, count, room, overhead, bool(with_data), now),
                *(scheduler.pop_ready, entries),
            )
            if len(entries) == count:
                break
        if request.key:
            if named is None or not named.has_ready or named.held:
                break
            domain = named
        elif turns:
            domain = next(iter(turns.values()))
        else:
            break
        if entries and ends_batch(context, request, entries[0].domain, domain):
            break
        entry = domain.ready.first()
        room -= len(entry.key) + len(entry.uri or b"") + overhead
        if with_data:
            room -= len(entry.value)
        if room < 0:
            if entries:
                break
            if with_data and len(entry.value) > context.value_bytes_ration:
                return None
        scheduler.pop_ready(domain)
        domain.delivered_at = now
        if domain.limit is not None:
            rules.note_delivery(domain, now)
        entries.append(entry)
        if pops:
            # ``Store.remove`` also removes its links
            store.work += len(entry.key) // WRITTEN_BYTES_A_UNIT + len(entry.links or ())
        elif entry.extra.starts >= workq.ATTEMPTS_MAX:
            # it becomes a new job in the workq log
            store.work += entry.full_bytes() // WRITTEN_BYTES_A_UNIT
        if not request.key and domain.has_ready and not domain.held:
            turns.move_to_end(domain.name)
    if request.value_type is not None and entries:
        options = valid_options(request)
        if options.selects and not options.ordered:
            context.cycles.note(options, entries[-1].domain.name)
    return entries


def _turns_for(context: Context, request: Request) -> OrderedDict[bytes, Domain] | Chosen:
    """Return the domains that take turns in a NEXT without a domain as its key."""
    scheduler = context.store.scheduler
    if request.value_type is not None:
        options = valid_options(request)
        if options.selects:
            if options.prefix:
                names = scheduler.round_robin.sort_turns(scheduler.names)
                context.store.work += names // NAMES_SORTED_A_UNIT
            return Chosen(options, scheduler, context.cycles.last(options))
    return scheduler.round_robin.turns


def ends_batch(context: Context, request: Request, first: Domain, domain: Domain) -> bool:
    """Whether the batch of a NEXT that began in ``first`` ends before an entry of ``domain``.

    All leases of a reply have one token, which is their end. The batch ends at a domain with
    another lease length.
    """
    if domain is first or request.timeout or request.flags & OVERWRITE:
        return False
    return context.tokens.lease_us_of(domain) != context.tokens.lease_us_of(first)


def _overhead(request: Request) -> int:
    """Return the size of a pair without its keys and its value."""
    return PAIR_BYTES + (META_BYTES if request.flags & META else 0)


def _missing(
    context: Context, request: Request, count: int, now: int, unreadable: Unreadable
) -> list[Entry]:
    """Return the entries to take now whose value is only on disk (evicted).

    If there are any, add those that other waiting requests will take. An entry whose value cannot
    be read is buried: otherwise it blocks the queue.
    """
    store, flags = context.store, request.flags
    assert store.values is not None
    leases = not flags & OVERWRITE
    # a popped entry may be restored, and its record becomes dead with the pop
    needs = flags & DATA or not leases
    others = context.fetching + context.waiters.number_for(request)
    ahead = min(count + others, NEXT_ENTRIES_MAX)
    while True:
        missing: list[Entry] = []
        lost: list[tuple[Entry, str]] = []
        room = store.values.kept_bytes
        mine = count
        first: Entry | None = None
        for at, entry in enumerate(upcoming(context, request, ahead)):
            first = first or entry
            if at < mine and ends_batch(context, request, first.domain, entry.domain):
                mine = at
            room -= len(entry.value)
            if at >= mine and (room < 0 or not missing):
                # it would be evicted before the other requests take it
                break
            if flags & DATA and len(entry.value) > context.value_bytes_ration:
                # too large to be delivered now
                break
            if entry.is_missing(needs, leases=leases):
                why_not = unreadable.get(entry.job_id)
                if why_not:
                    lost.append((entry, why_not))
                else:
                    missing.append(entry)
        if not lost:
            return missing
        # bury all of them first: each round walks over all upcoming entries
        for entry, why_not in lost:
            # a path in the reason may be no valid text
            reason = why_not.encode(errors="backslashreplace")
            context.jobs.bury(entry, reason[:REASON_BYTES_MAX], now)


def upcoming(context: Context, request: Request, count: int) -> Iterator[Entry]:
    """Yield the entries that NEXT would take now, in order; also those of a paused domain.

    At most ``count`` entries, and as many as fit into the reply. O(1) for each.
    """
    store = context.store
    if request.key:
        named = store.scheduler.domains.get(request.key)
        domains = [] if named is None else [named]
    elif store.rules.pauses.everything_until:
        domains = []
    else:
        domains = list(islice(_turns_for(context, request).values(), count))
    ordered = request.value_type is not None and valid_options(request).ordered
    room = context.reply_bytes_max - REPLY_BYTES
    overhead = _overhead(request)
    first = True
    for domain, rank in _by_domain(domains) if ordered else _by_turns(domains):
        entry = store.scheduler.ready_at(domain, rank)
        room -= len(entry.key) + len(entry.uri or b"") + overhead
        if request.flags & DATA:
            room -= len(entry.value)
        if not count or (room < 0 and not first):
            return
        yield entry
        count -= 1
        first = False


def _by_turns(domains: list[Domain]) -> Iterator[tuple[Domain, int]]:
    """Yield the domains and ranks of the entries that they give, one a turn."""
    rank = 0
    while domains := [
        domain for domain in domains if rank < min(len(domain.ready), domain.allowance())
    ]:
        for domain in domains:
            yield domain, rank
        rank += 1


def _by_domain(domains: list[Domain]) -> Iterator[tuple[Domain, int]]:
    """Yield the domains and ranks of the entries that they give, one domain after the other."""
    for domain in domains:
        for rank in range(min(len(domain.ready), domain.allowance())):
            yield domain, rank
