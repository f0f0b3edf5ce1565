"""What must hold after every step of the engine. For tests."""

from __future__ import annotations

from collections import Counter

from fastjournal.cmdlog.format.segments import OFFSET_BITS
from fastjournald.engine.store import Store
from fastjournald.tables.domain import NEVER, Domain
from fastjournald.tables.entry import Entry, Place
from fastjournald.tables.key_index import KeyIndex


def check_store(store: Store, now: int) -> None:
    """Assert that keys, indexes and counters say the same, at this instant. O(n log n)."""
    entries = list(store.keys)
    assert len(entries) == store.entries
    domains: dict[bytes, Domain] = {}
    for entry in entries:
        assert store.find(entry.key) is entry
        if not entry.superseded:
            assert all(store.find(key) is entry for key in entry.all_keys())
        assert len(set(entry.all_keys())) == len(entry.all_keys())
        assert (entry.place == Place.LEASED) == (entry.token != 0)
        assert not entry.superseded or entry.place == Place.LEASED
        assert (entry.reason is not None) == (entry.place == Place.BURIED)
        if entry.place != Place.DELAYED:
            assert not entry.extra.waits_until
        if entry.place == Place.LEASED:
            assert entry in store.lease_home(entry).leases.first_of(entry.token, store.entries)
            assert entry.uri is None or store.running[entry.uri] is entry
        if entry.journal:
            domains[entry.domain.name] = entry.domain
        else:
            assert entry.domain is store.plain
    for key, entry in store.keys.items():
        assert key in entry.all_keys()
        assert store.find(entry.key) is entry
    if store.keys.index is not None:
        _check_key_index(store.keys.index, {key for key, _ in store.keys.items()})
    assert domains == store.domains
    assert list(store.names) == sorted(
        {*domains, *(name for name, _ in store.pauses), *(name for name, _ in store.limits)}
    )
    for domain in [*domains.values(), store.plain]:
        inside = [entry for entry in entries if entry.domain is domain]
        assert domain.entries == len(inside)
        assert domain.buried == sum(entry.place == Place.BURIED for entry in inside)
        _check_orders(domain, inside)
        assert domain.paused_until == store.pauses.until(domain.name)
        if domain is not store.plain:
            assert domain.worked_on == sum(entry.place == Place.LEASED for entry in inside)
            held = domain.held
            assert held == domain.must_wait()
            assert (domain.name in store.turns) == (bool(domain.ready) and not held)
            assert (domain.name in store.held.ready) == (bool(domain.ready) and held)
            assert domain.limit == store.limits.holding(domain.name)
            assert domain.waits_until == store.limits.waits_until(domain.name)
            superseded = {e.key for e in inside if e.place == Place.LEASED and e.superseded}
            assert {entry.key for entry in domain.superseded or ()} == superseded
            assert domain.wake == domain.next_instant()
    for wakes, held in ((store.wakes, False), (store.held.wakes, True)):
        assert set(wakes) == {
            (domain.wake, name)
            for name, domain in domains.items()
            if domain.wake != NEVER and domain.held == held
        }
    _check_pauses(store)
    assert sorted(store.expiry) == sorted(
        (entry.expires, entry.key)
        for entry in entries
        if entry.expires and entry.place != Place.LEASED
    )
    live: Counter[int] = Counter()
    for entry in entries:
        live[entry.position >> OFFSET_BITS] += entry.record_bytes
        assert not entry.extra.starts or store.journal.records.amended[entry.job_id] is entry
    journal = store.journal
    assert +live == +Counter(journal.usage.live)
    assert live.total() == journal.records.live_bytes
    for job_id, amended in journal.records.amended.items():
        assert amended.job_id == job_id
        assert store.find(amended.key) is amended
    assert journal.records.displaced.keys() <= journal.records.amended.keys()
    worked_on = [entry for entry in entries if entry.place == Place.LEASED]
    assert store.worked_on == len(worked_on)
    assert store.plain_worked_on == sum(not entry.journal for entry in worked_on)
    assert store.due == sum(entry.place == Place.READY for entry in entries)
    assert store.delayed == sum(entry.place == Place.DELAYED for entry in entries)
    assert store.buried == sum(entry.place == Place.BURIED for entry in entries)
    assert {entry.uri for entry in worked_on if entry.uri is not None} <= set(store.running)
    for uri, entry in store.running.items():
        assert entry in worked_on
        assert uri == entry.uri or (entry.superseded and uri in (entry.links or ()))
    if store.values is not None:
        store.values.check(entries)
        for entry in entries:
            kept = journal.records.trimmed.get(entry.job_id)
            assert kept is None or kept <= len(entry.value)
    store.locks.check()
    for key in store.locked:
        locked = store.find(key)
        assert locked is not None
        assert locked.key == key
        assert locked.place != Place.READY or not store.is_locked(locked, now)


def _check_orders(domain: Domain, inside: list[Entry]) -> None:
    for order, place in (
        (domain.ready, Place.READY),
        (domain.delayed, Place.DELAYED),
        (domain.buried_order, Place.BURIED),
    ):
        # also that the keys are those of the entries as they are now
        order._check()
        standing = {id(entry) for entry in inside if entry.place == place and entry.journal}
        assert len(order) == len(standing)
        assert {id(entry) for entry in order} == standing


def _check_key_index(index: KeyIndex, standing: set[bytes]) -> None:
    keys = list(index)
    assert keys == sorted(set(keys))
    assert set(keys) ^ standing <= index.unmerged()


def _check_pauses(store: Store) -> None:
    pauses = store.pauses
    ends = [(until, name) for name, until in pauses]
    assert pauses.first_end() == min(ends, default=None)
    due = []
    held = store.held
    for name, domain in store.domains.items():
        expected = NEVER
        if domain.held and domain.ready:
            expected = domain.held_until()
        elif domain.held and domain.wake != NEVER:
            expected = max(domain.held_until(), domain.wake)
        assert held.due_at(name) == expected
        due.append(expected)
    assert held.first_due() == min(due, default=NEVER)
    assert set(held.ready) <= set(store.domains)
