"""Invariants of the store: what must hold after every step of the engine. For tests."""

from __future__ import annotations

from collections import Counter

from fastjournal.cmdlog.format.segments import OFFSET_BITS
from fastjournald.engine.store import Counts, Store
from fastjournald.tables.domain import NEVER, Domain
from fastjournald.tables.entry import Entry
from fastjournald.tables.entry_states import EntryState
from fastjournald.tables.key_index import KeyIndex
from fastjournald.tables.scheduler import Scheduler


def check_store(store: Store, now: int) -> None:
    """Assert that keys, indexes and counters say the same, at this instant. O(n log n)."""
    entries = list(store)
    for entry in entries:
        _check_entry(store, entry)
    _check_keys(store)
    _check_counts(store, entries)
    _check_domains(store.scheduler, entries)
    _check_places(store.scheduler)
    _check_leases(store, entries)
    assert sorted(store.expiry) == sorted(
        (entry.expires, entry.key)
        for entry in entries
        if entry.expires and entry.state != EntryState.LEASED
    )
    _check_journal(store, entries)
    if store.values is not None:
        store.values.check(entries)
    store.locks.check()
    for key in store.locked:
        locked = store.find(key)
        assert locked is not None
        assert locked.key == key
        assert locked.state != EntryState.READY or not store.locks.is_locked(locked.key, now)


def _check_entry(store: Store, entry: Entry) -> None:
    assert store.find(entry.key) is entry
    if not entry.superseded:
        assert all(store.find(key) is entry for key in entry.all_keys())
    assert len(set(entry.all_keys())) == len(entry.all_keys())
    assert (entry.state == EntryState.LEASED) == (entry.token != 0)
    assert not entry.superseded or entry.state == EntryState.LEASED
    assert (entry.reason is not None) == (entry.state == EntryState.BURIED)
    if entry.state != EntryState.DELAYED:
        assert not entry.extra.waits_until
    if entry.journal:
        assert entry.state != EntryState.PLAIN
    else:
        assert entry.state not in (EntryState.READY, EntryState.DELAYED)


def _check_keys(store: Store) -> None:
    for key, entry in store.keys.items():
        assert key in entry.all_keys()
        assert store.find(entry.key) is entry
    if store.keys.index is not None:
        _check_key_index(store.keys.index, {key for key, _ in store.keys.items()})


def _check_key_index(index: KeyIndex, standing: set[bytes]) -> None:
    keys = list(index)
    assert keys == sorted(set(keys))
    assert set(keys) ^ standing <= index.unmerged()


def _check_counts(store: Store, entries: list[Entry]) -> None:
    states = Counter(entry.state for entry in entries)
    assert states[EntryState.ABSENT] == 0
    assert store.counts() == Counts(
        entries=len(entries),
        due=states[EntryState.READY],
        delayed=states[EntryState.DELAYED],
        leased=states[EntryState.LEASED],
        buried=states[EntryState.BURIED],
        plain=states[EntryState.PLAIN],
    )


def _check_domains(scheduler: Scheduler, entries: list[Entry]) -> None:
    domains = {entry.domain.name: entry.domain for entry in entries if entry.journal}
    pauses, limits = scheduler.pauses, scheduler.limits
    assert domains == scheduler.domains
    assert list(scheduler.names) == sorted({*domains, *pauses.ends, *limits.own_limits})
    assert all(entry.journal or entry.domain is scheduler.plain for entry in entries)
    for domain in [*domains.values(), scheduler.plain]:
        inside = [entry for entry in entries if entry.domain is domain]
        assert domain.entries == len(inside)
        assert domain.buried == sum(entry.state == EntryState.BURIED for entry in inside)
        _check_orders(domain, inside)
        assert domain.has_ready == bool(domain.ready)
        assert domain.paused_until == pauses.until(domain.name)
    for domain in domains.values():
        leased = [e for e in entries if e.domain is domain and e.state == EntryState.LEASED]
        assert domain.worked_on == len(leased)
        superseded = {entry.key for entry in leased if entry.superseded}
        assert {entry.key for entry in domain.superseded or ()} == superseded
        assert domain.limit == limits.holding(domain.name)
        assert domain.waits_until == limits.waits_until(domain.name)
        assert domain.wake == domain.next_instant()


def _check_orders(domain: Domain, inside: list[Entry]) -> None:
    for order, state in (
        (domain.ready, EntryState.READY),
        (domain.delayed, EntryState.DELAYED),
        (domain.buried_order, EntryState.BURIED),
    ):
        # also that the keys are those of the entries as they are now
        order._check()
        standing = {id(entry) for entry in inside if entry.state == state and entry.journal}
        assert len(order) == len(standing)
        assert {id(entry) for entry in order} == standing


def _check_places(scheduler: Scheduler) -> None:
    """Held domains stand apart from the others, with the instant at which they have work again."""
    pauses, held = scheduler.pauses, scheduler.round_robin.held
    assert pauses.first_end() == min(((until, name) for name, until in pauses), default=None)
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
        assert entry in leases.home(entry).leases.first_of(entry.token, store.entries)
        assert entry.uri is None or leases.by_uri[entry.uri] is entry
    for uri, entry in leases.by_uri.items():
        assert entry in leased
        assert uri == entry.uri or (entry.superseded and uri in (entry.links or ()))


def _check_journal(store: Store, entries: list[Entry]) -> None:
    journal = store.journal
    live: Counter[int] = Counter()
    for entry in entries:
        live[entry.position >> OFFSET_BITS] += entry.record_bytes
        assert not entry.extra.starts or journal.records.amended[entry.job_id] is entry
        kept = journal.records.trimmed.get(entry.job_id)
        assert kept is None or kept <= len(entry.value)
    assert +live == +Counter(journal.usage.live)
    assert live.total() == journal.records.live_bytes
    for job_id, amended in journal.records.amended.items():
        assert amended.job_id == job_id
        assert store.find(amended.key) is amended
    assert journal.records.displaced.keys() <= journal.records.amended.keys()
