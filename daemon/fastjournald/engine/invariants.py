"""Invariants of the store: what must hold after every step of the engine. For tests."""

from __future__ import annotations

from collections import Counter

from fastjournal.cmdlog.format.layout import OFFSET_BITS
from fastjournald.engine.store import EntryCounts, Store
from fastjournald.tables.domain import NEVER, Domain, SortedTurns
from fastjournald.tables.domain_limits import EVERYTHING
from fastjournald.tables.entry import NOTHING, Entry, EntryState
from fastjournald.tables.lease_holders import LeaseBatch, LeaseHolder, LeaseOperation
from fastjournald.tables.leases import LeaseTable
from fastjournald.tables.scheduler import Scheduler, asked_since


def check_store(store: Store, now: int) -> None:
    """Assert that keys, indexes and counters say the same, at this instant. O(n log n)."""
    items = list(store.keys.items())
    by_key = dict(items)
    assert len(by_key) == len(items)
    entries = [entry for key, entry in items if key == entry.key]
    _check_keys(store, items, by_key)
    for entry in entries:
        _check_entry(entry, by_key)
    _check_counts(store, entries)
    _check_domains(store.scheduler, entries)
    _check_places(store.scheduler)
    _check_leases(store, entries)
    assert list(store.expiry) == sorted(
        (entry.extra.expires, entry.key)
        for entry in entries
        if entry.extra.expires and entry.state != EntryState.LEASED
    )
    _check_journal(store, entries)
    if store.values is not None:
        store.values.check(entries)
    store.locks.check()
    for key in store.locked:
        locked = by_key.get(key)
        assert locked is not None
        assert locked.key == key
        assert locked.state != EntryState.READY or not store.locks.is_locked(locked.key, now)


def _check_keys(store: Store, items: list[tuple[bytes, Entry]], by_key: dict[bytes, Entry]) -> None:
    find = store.find
    for key, entry in items:
        assert find(key) is entry
        if key != entry.key:
            assert key in entry.all_keys()
            assert by_key.get(entry.key) is entry
    if store.keys.index is not None:
        store.keys.index.check(by_key.keys())


def _check_entry(entry: Entry, by_key: dict[bytes, Entry]) -> None:
    state, extra = entry.state, entry.extra
    if entry.uri is not None or extra.links is not None:
        keys = entry.all_keys()
        assert len(set(keys)) == len(keys)
        assert extra.superseded or all(by_key.get(key) is entry for key in keys)
    if extra is not NOTHING:
        assert not extra.superseded or state == EntryState.LEASED
        assert state == EntryState.DELAYED or not extra.waits_until
        assert state == EntryState.LEASED or not extra.attempts_max
    assert (state == EntryState.LEASED) == (extra.token != 0) == (extra.leased_until != 0)
    assert (state == EntryState.BURIED) == (extra.reason is not None)
    if entry.journal:
        assert state != EntryState.PLAIN
    else:
        assert state not in (EntryState.READY, EntryState.DELAYED)


def _check_counts(store: Store, entries: list[Entry]) -> None:
    states = Counter([entry.state for entry in entries])
    assert states[EntryState.ABSENT] == 0
    assert store.counts() == EntryCounts(
        entries=len(entries),
        due=states[EntryState.READY],
        delayed=states[EntryState.DELAYED],
        leased=states[EntryState.LEASED],
        buried=states[EntryState.BURIED],
        plain=states[EntryState.PLAIN],
    )


def _check_domains(scheduler: Scheduler, entries: list[Entry]) -> None:
    inside: dict[Domain, list[Entry]] = {scheduler.plain: []}
    for entry in entries:
        inside.setdefault(entry.domain, []).append(entry)
    pauses, limits = scheduler.pauses, scheduler.limits
    assert scheduler.plain.name == b""
    domains = [domain for domain in inside if domain is not scheduler.plain]
    assert {domain.name: domain for domain in domains} == scheduler.domains
    assert len(domains) == len(scheduler.domains)
    assert all(scheduler.domains)
    names = {*scheduler.domains, *pauses.ends, *limits.own_limits} - {EVERYTHING}
    assert list(scheduler.names) == sorted(names)
    for domain, its_entries in inside.items():
        assert domain.entries == len(its_entries)
        states = [entry.state for entry in its_entries]
        assert domain.buried == states.count(EntryState.BURIED)
        _check_requeued(domain, its_entries)
        _check_orders(domain, its_entries)
        assert domain.has_ready == bool(domain.ready)
    assert scheduler.requeued == {each.name: each for each in domains if each.requeued}
    for domain in domains:
        if domain.counts is not None and not scheduler.job_counts.is_shared(domain.counts):
            assert domain.counts is scheduler.job_counts.by_domain.get(domain.name)
        leased = [entry for entry in inside[domain] if entry.state == EntryState.LEASED]
        assert domain.worked_on == len(leased)
        assert domain.paused_until == pauses.until(domain.name)
        superseded = {entry.key for entry in leased if entry.superseded}
        assert {entry.key for entry in domain.superseded or ()} == superseded
        assert domain.limit == limits.holding(domain.name)
        assert domain.waits_until == limits.waits_until(domain.name)
        assert domain.wake == domain.next_instant()


def _check_requeued(domain: Domain, inside: list[Entry]) -> None:
    """Waiting entries that failed are found by when they were asked for, and no leased ones."""
    found = list(domain.requeued or ())
    assert domain.requeued is None or found == sorted(found) != []
    waiting = [e for e in inside if e.state in (EntryState.READY, EntryState.DELAYED)]
    # a job of a workq log may have attempts, and no lease of ours
    leased = {
        (asked_since(entry), entry.key): bool(entry.extra.attempts)
        for entry in waiting
        if entry.extra.due
    }
    failed = {place for place, has_failed in leased.items() if has_failed}
    assert failed <= set(found) <= leased.keys()


def _check_orders(domain: Domain, inside: list[Entry]) -> None:
    standing: dict[int, set[int]] = {}
    for entry in inside:
        if entry.journal:
            standing.setdefault(entry.state, set()).add(id(entry))
    for order, state in (
        (domain.ready, EntryState.READY),
        (domain.delayed, EntryState.DELAYED),
        (domain.buried_order, EntryState.BURIED),
    ):
        # also that the keys are those of the entries as they are now
        order.check()
        expected = standing.get(state, set())
        assert len(order) == len(expected)
        assert set(map(id, order)) == expected


def _check_places(scheduler: Scheduler) -> None:
    """Held domains are in their own table, with the instant at which they have work again."""
    pauses, held = scheduler.pauses, scheduler.round_robin.held
    assert pauses.first_end() == min(((until, name) for name, until in pauses), default=None)
    turns = scheduler.round_robin.turns
    if isinstance(turns, SortedTurns):
        assert list(turns.names) == sorted(turns)
    due = []
    for name, domain in scheduler.domains.items():
        assert domain.held == domain.must_wait()
        in_turns = domain.has_ready and not domain.held
        assert (name in scheduler.round_robin.turns) == in_turns
        assert (name in held.ready) == (domain.has_ready and domain.held)
        expected = NEVER
        if domain.held and domain.ready:
            expected = domain.held_until()
        elif domain.held and domain.wake != NEVER:
            expected = max(domain.held_until(), domain.wake)
        assert held.due_at(name) == expected
        due.append(expected)
    assert held.first_due() == min(due, default=NEVER)
    assert set(held.ready) <= set(scheduler.domains)
    for wakes, are_held in ((scheduler.round_robin.wakes, False), (held.wakes, True)):
        assert set(wakes) == {
            (domain.wake, name)
            for name, domain in scheduler.domains.items()
            if domain.wake != NEVER and domain.held == are_held
        }


def _check_leases(store: Store, entries: list[Entry]) -> None:
    leases = store.leases
    leased = [entry for entry in entries if entry.state == EntryState.LEASED]
    assert leases.plain_count == sum(not entry.journal for entry in leased)
    for entry in leased:
        assert entry in leases.home(entry).leases.first_of(entry.leased_until, store.entries)
        assert entry.uri is None or leases.by_uri.get(entry.uri) is entry
    _check_lease_holders(leases, leased)
    assert not any(entry.extra.lease for entry in entries if entry.state != EntryState.LEASED)
    for uri, entry in leases.by_uri.items():
        assert entry in leased
        assert uri == entry.uri or (entry.superseded and uri in (entry.links or ()))


def _check_lease_holders(leases: LeaseTable, leased: list[Entry]) -> None:
    """Lease operations and their holders have counted the entries that refer to them."""
    held: dict[LeaseOperation, list[Entry]] = {}
    for entry in leased:
        if entry.extra.lease is not None:
            held.setdefault(entry.extra.lease, []).append(entry)
    numbers: Counter[LeaseHolder] = Counter()
    for operation, entries in held.items():
        assert operation.number == len(entries)
        batch = operation.leased
        if isinstance(batch, LeaseBatch):
            assert {entry.leased_until for entry in entries} == {batch.until}
            assert len(batch.domains) == len(set(batch.domains))
        else:
            assert [entry.domain for entry in entries] == [batch]
        numbers[operation.holder] += len(entries)
    assert {holder: holder.number for holder in leases.holding} == numbers
    for holder in leases.holding:
        linked: list[LeaseOperation] = []
        link = holder.first
        while link is not None:
            assert link.previous is (linked[-1] if linked else None)
            linked.append(link)
            link = link.following
        assert holder.last is (linked[-1] if linked else None)
        assert [each.since for each in linked] == sorted(each.since for each in linked)
        together = [*linked, *(holder.inherited or ())]
        assert set(together) == {each for each in held if each.holder is holder}
        assert len(together) == len(set(together))
        assert holder.oldest().since == min(each.since for each in together)


def _check_journal(store: Store, entries: list[Entry]) -> None:
    store.tombstones.check()
    records, live_bytes = store.journal.records, store.journal.usage.live
    live: dict[int, int] = {}
    for entry in entries:
        size = entry.record_bytes
        if size:
            number = entry.position >> OFFSET_BITS
            live[number] = live.get(number, 0) + size
        if entry.extra.starts:
            assert records.amended[entry.job_id] is entry
        if records.trimmed:
            kept = records.trimmed.get(entry.job_id)
            assert kept is None or kept <= len(entry.value)
    assert live == {number: size for number, size in live_bytes.items() if size}
    assert sum(live.values()) == records.live_bytes
    for job_id, amended in records.amended.items():
        assert amended.job_id == job_id
        assert amended.extra is not NOTHING
        assert store.find(amended.key) is amended
    assert records.superseded.keys() <= records.amended.keys()
