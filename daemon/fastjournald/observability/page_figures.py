"""Page figures: the domains that matter most on the page, found in time slices.

A walk over all domains takes time in proportion to their number, in slices of the event loop.
Figures of the daemon and of one domain are those of STATS, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

import msgspec

from fastjournal.keys import unique_of
from fastjournal.limits import (
    BUSY_WORKERS_LOOKS_MAX,
    PAGE_DOMAINS_MAX,
    PAGE_ENTRIES_MAX,
    PAGE_LOOKS_MAX,
    PAGE_UNSERVED_SECONDS,
    PAGE_WALK_MAX,
)
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.stats import WorkerRow, about_domain, about_workers, oldest_in
from fastjournald.engine.key_filter import prefix_stop
from fastjournald.engine.store import Store
from fastjournald.engine.waiters import serves
from fastjournald.observability.domain_totals import TimeSlices, Top
from fastjournald.observability.failing import error_of, first_ones, parts_of
from fastjournald.observability.page_text import SECOND_US
from fastjournald.tables.domain import NEVER, Domain
from fastjournald.tables.entry import STATE_NAMES, Entry


class Overview(msgspec.Struct):
    """Names of the domains that matter most, by what matters."""

    waiting: Top = msgspec.field(default_factory=Top)
    """With most due and delayed entries."""
    oldest: Top = msgspec.field(default_factory=Top)
    """With the entry that is due for longest."""
    leased: Top = msgspec.field(default_factory=Top)
    """With the lease that ends first."""
    buried: Top = msgspec.field(default_factory=Top)
    """With most buried entries."""
    held: Top = msgspec.field(default_factory=Top)
    """Paused or at a limit, with most waiting entries."""
    unserved: Top = msgspec.field(default_factory=Top)
    """With entries that are due for long, and nobody who takes them."""
    unserved_number: int = 0
    taken: frozenset[tuple[bytes, ...]] = frozenset()
    """Domains that busy workers take, as ``waiters.names_of``."""

    def add(
        self, context: Context, domain: Domain, now: int, is_delivered: Callable[[bytes], bool]
    ) -> None:
        """Add one domain."""
        name, waiting = domain.name, len(domain.ready) + len(domain.delayed)
        since = oldest_in(domain, now).due
        self.waiting.add(waiting, name)
        if since is not None:
            self.oldest.add(now - since, name)
        self.leased.add(NEVER - domain.leases.first(), name)
        self.buried.add(domain.buried, name)
        if domain.must_wait():
            self.held.add(waiting + 1, name)
        elif (
            since is not None
            and is_unserved(context, domain, since, now)
            and not is_delivered(name)
            and not any(serves(names, name) for names in self.taken)
        ):
            self.unserved.add(len(domain.ready), name)
            self.unserved_number += 1


class Service(msgspec.Struct, frozen=True):
    """Workers of a domain."""

    working: int = 0
    """Connections that hold leases of it."""
    gone: int = 0
    """Connections that have ended, whose leases go on."""
    unknown: int = 0
    """Leases from before the start of the daemon, whose workers are not known."""
    waiting: int = 0
    """Requests that wait for work of it."""
    busy: int = 0
    """Workers that take its work, and hold leases; some of them may be of it."""

    @property
    def is_there(self) -> bool:
        """Whether somebody works on the domain, or waits for work of it."""
        return bool(self.working or self.unknown or self.waiting)


def is_unserved(context: Context, domain: Domain, due_since: int, now: int) -> bool:
    """Whether entries of a domain are due for long, and nobody takes them.

    Who works for any domain serves all of them, also one whose turn comes later.
    """
    long_ago = now - PAGE_UNSERVED_SECONDS * SECOND_US
    if due_since > long_ago or context.any_domain_at > long_ago:
        return False
    if context.store.rules.pauses.everything_until:
        return False
    return not service_of(context, domain).is_there


def service_of(context: Context, domain: Domain, busy: int = 0) -> Service:
    """Return the workers of a domain, by PAGE_LOOKS_MAX of its leases.

    Args:
        context: Context of the engine.
        domain: The domain.
        busy: Workers that take its work and are busy, as ``workers_busy``.
    """
    leases = [entry.extra.lease for entry in islice(domain.leases, PAGE_LOOKS_MAX)]
    holders = {id(lease.holder): lease.holder for lease in leases if lease is not None}.values()
    working = sum(holder.connected for holder in holders)
    return Service(
        working,
        len(holders) - working,
        sum(lease is None for lease in leases),
        context.waiters.number_serving(domain.name),
        busy,
    )


class Worker(msgspec.Struct):
    """Row of the table of workers."""

    row: WorkerRow
    waits_for: list[bytes]
    """Domains for which it waits, as ``Waiters.domains_of``."""


def workers(context: Context) -> tuple[list[Worker], bool]:
    """Return the connections that hold leases or wait for work, and whether there are more."""
    found, is_cut = about_workers(context)
    waiters = context.waiters
    return [
        Worker(row, waiters.domains_of(row.session, PAGE_DOMAINS_MAX) if row.waiting else [])
        for row in found
    ], is_cut


async def overview(
    context: Context, now: int, slices: TimeSlices, is_delivered: Callable[[bytes], bool]
) -> Overview:
    """Return the overview of all domains, computed a slice at a time.

    Args:
        context: Context of the engine.
        now: The present.
        slices: Slices of the walk.
        is_delivered: Whether work of a domain was delivered lately.
    """
    holding = islice(context.store.leases.holding, BUSY_WORKERS_LOOKS_MAX)
    found = Overview(taken=frozenset(holder.asked for holder in holding if holder.connected))
    for domain in list(context.store.scheduler.domains.values()):
        found.add(context, domain, now, is_delivered)
        await slices.give_way()
    return found


async def rows(context: Context, names: list[bytes], now: int) -> list[dict[str, object]]:
    """Return a row for each domain: its figures of STATS, and its name."""
    made, slices = [], TimeSlices()
    for name in names:
        made.append({"name": name, **about_domain(context, name, now)})
        await slices.give_way()
    return made


def page_of_names(
    context: Context, prefix: bytes, start: bytes
) -> tuple[list[bytes], bytes | None]:
    """Return the names of one page of the list of domains, and where the next page begins."""
    names = context.store.scheduler.names
    stop = prefix_stop(prefix)
    first = max(prefix, start)
    if stop is not None and first >= stop:
        return [], None
    found = list(islice(names.irange(first, stop, (True, False)), PAGE_ENTRIES_MAX + 1))
    if len(found) > PAGE_ENTRIES_MAX:
        return found[:-1], found[-1]
    return found, None


class EntryRow(msgspec.Struct):
    """Row of a table of entries, copied at one moment."""

    key: bytes
    uri: bytes | None
    """Its URI; None: it has none, perhaps a unique value."""
    unique: bytes | None
    domain: bytes
    due: int
    """When it is due, or was; 0: at once."""
    created: int
    until: int
    """End of its lease or delay; 0: it has none."""
    since: int
    """When its lease began; 0: it has none, or one from before the start of the daemon."""
    worker: str
    """Connection that works on it; empty: none, or it is not known."""
    gone: bool
    """The connection of that worker has ended."""
    state: str
    attempts: int
    error: bytes | None
    reason: bytes | None
    group: str
    """What its error has in common with those that are alike; empty: it has not failed."""


def row(entry: Entry) -> EntryRow:
    """Return the row of an entry."""
    extra = entry.extra
    lease = extra.lease
    unique = unique_of(entry.key, entry.uri)
    return EntryRow(
        key=entry.key,
        uri=entry.uri if unique is None else None,
        unique=unique,
        domain=entry.domain.name,
        due=entry.not_before,
        created=entry.created,
        # whole seconds: the instant to the microsecond is the token of the lease
        until=(extra.leased_until or entry.delayed_until) // SECOND_US * SECOND_US,
        since=0 if lease is None else lease.since,
        worker="" if lease is None else lease.holder.name,
        gone=lease is not None and not lease.holder.connected,
        state=STATE_NAMES[entry.state],
        attempts=extra.attempts,
        error=extra.error,
        reason=extra.reason,
        group=error_of(entry) if extra.error or extra.reason else "",
    )


async def sorted_rows(domain: Domain, sort: str) -> tuple[dict[str, list[EntryRow]], bool]:
    """Return the first rows of a domain by state, in an order, as many as a page shows.

    Returns:
        And whether some were not looked at: they are more than PAGE_WALK_MAX.
    """
    slices = TimeSlices()
    found: dict[str, list[EntryRow]] = {}
    is_cut = False
    lists = (("ready", domain.ready), ("delayed", domain.delayed), ("buried", domain.buried_order))
    for kind, entries in lists:
        first: list[Entry] = []
        looks = 0
        for part in parts_of(entries):
            first = first_ones(chain(first, part), sort)
            looks += len(part)
            if looks >= PAGE_WALK_MAX or (not sort and looks >= PAGE_ENTRIES_MAX):
                is_cut = is_cut or bool(sort)
                break
            await slices.give_way()
        found[kind] = [row(entry) for entry in first]
    return found, is_cut


def entries_that_begin(store: Store, prefix: bytes) -> tuple[list[EntryRow], bool]:
    """Return entries that have a key, URI or link with this prefix, in the order of these.

    Returns:
        As many as a page shows, and whether there may be more. Keys of the index may be deleted
        already, so the number of keys looked at has a bound.
    """
    index = store.keys.sorted_keys()
    keys = list(islice(index.between(prefix, prefix_stop(prefix)), PAGE_LOOKS_MAX))
    found: dict[bytes, EntryRow] = {}
    for key in keys:
        entry = store.find(key)
        if entry is not None and entry.key not in found:
            if len(found) == PAGE_ENTRIES_MAX:
                return list(found.values()), True
            found[entry.key] = row(entry)
    return list(found.values()), len(keys) == PAGE_LOOKS_MAX


def first_leased(store: Store, domain: Domain, number_max: int) -> list[EntryRow]:
    """Return entries of a domain that are leased, those whose lease ends first."""
    found: list[Entry] = []
    for until in domain.leases.ends():
        found += domain.leases.first_of(until, number_max - len(found))
        if len(found) >= number_max:
            break
    return [row(entry) for entry in found]


def first_buried(store: Store, domain: Domain, number_max: int) -> list[EntryRow]:
    """Return entries of a domain that are buried, in the order of work."""
    return [row(entry) for entry in islice(domain.buried_order, number_max)]


async def entries_of(context: Context, names: list[bytes], *, leased: bool) -> list[EntryRow]:
    """Return leased or buried entries of several domains, as many as a page shows.

    Each domain has its share first, so that one with many does not hide the others.
    """
    found: list[EntryRow] = []
    slices = TimeSlices()
    share = max(1, PAGE_ENTRIES_MAX // max(1, len(names)))
    for domain in _existing(context, names):
        found += (first_leased if leased else first_buried)(context.store, domain, share)
        await slices.give_way()
    return found


def _existing(context: Context, names: list[bytes]) -> Iterator[Domain]:
    """Yield the domains that still exist when their turn comes."""
    domains = context.store.scheduler.domains
    for name in names:
        domain = domains.get(name)
        if domain is not None:
            yield domain
