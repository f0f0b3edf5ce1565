"""Page figures: the domains that matter most on the page, found in time slices.

A walk over all domains takes time in proportion to their number, in slices of the event loop.
Figures of the daemon and of one domain are those of STATS, by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from fastjournal.limits import PAGE_ENTRIES_MAX, PAGE_LOOKS_MAX
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.stats import about_domain, oldest_due
from fastjournald.engine.key_filter import prefix_stop
from fastjournald.engine.store import Store
from fastjournald.observability.domain_totals import TimeSlices, Top
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

    def add(self, domain: Domain, now: int) -> None:
        """Add one domain."""
        name, waiting = domain.name, len(domain.ready) + len(domain.delayed)
        since = oldest_due(domain)
        self.waiting.add(waiting, name)
        if since is not None:
            self.oldest.add(now - since, name)
        self.leased.add(NEVER - domain.leases.first(), name)
        self.buried.add(domain.buried, name)
        if domain.must_wait():
            self.held.add(waiting + 1, name)


async def overview(context: Context, now: int, slices: TimeSlices) -> Overview:
    """Return the overview of all domains, computed a slice at a time."""
    found = Overview()
    for domain in list(context.store.scheduler.domains.values()):
        found.add(domain, now)
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
    domain: bytes
    due: int
    """When it is due, or was; 0: at once."""
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


def row(entry: Entry) -> EntryRow:
    """Return the row of an entry."""
    extra = entry.extra
    lease = extra.lease
    return EntryRow(
        key=entry.key,
        uri=entry.uri,
        domain=entry.domain.name,
        due=entry.not_before,
        # whole seconds: the instant to the microsecond is the token of the lease
        until=(extra.leased_until or entry.delayed_until) // SECOND_US * SECOND_US,
        since=0 if lease is None else lease.since,
        worker="" if lease is None else lease.holder.name,
        gone=lease is not None and not lease.holder.connected,
        state=STATE_NAMES[entry.state],
        attempts=extra.attempts,
        error=extra.error,
        reason=extra.reason,
    )


def rows_of(store: Store, entries: Iterable[Entry]) -> list[EntryRow]:
    """Return rows of the first of some entries, as many as a page shows."""
    return [row(entry) for entry in islice(entries, PAGE_ENTRIES_MAX)]


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
