"""Invariants of the store: the check that tests run after each step sees what does not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastjournal.cmdlog.format.layout import OFFSET_BITS
from fastjournal.protocol.constants import Flag
from fastjournald.engine.store import Store
from fastjournald.tables.entry import Entry, EntryState
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject


@pytest.fixture
def s() -> Subject:
    """A store with an entry in each state, a link, an expiry, a lock and an index of the keys."""
    s = Subject(EngineSubject(Rules()))
    persist = Flag.PERSIST | Flag.OVERWRITE
    for number in range(3):
        assert s.set(b"a:1:0:%d" % number, uri=b"u%d" % number, flags=persist) == ""
    assert s.set(b"d:1:%d:x" % (START + SECOND), flags=persist) == ""
    assert s.set(b"plain", flags=persist) == ""
    assert s.set(b"short", timeout=START + 9 * SECOND) == ""
    assert s.link(b"plain", b"link") == ""
    assert s.bury(b"a:1:0:2") == ""
    assert s.lock(b"plain", timeout=START + SECOND) == ""
    assert s.jobs(b"a", timeout=SECOND) == [b"a:1:0:0"]
    assert s.get(b"", uri=b"").code == ""
    return s


def entry(store: Store, key: bytes) -> Entry:
    found = store.find(key)
    assert found is not None
    return found


def lose_key(store: Store) -> None:
    store.keys.pop(b"link", entry(store, b"plain"))


def key_leads_elsewhere(store: Store) -> None:
    store.keys.put(b"u1", entry(store, b"plain"))


def key_has_no_primary(store: Store) -> None:
    store.keys.pop(b"plain", entry(store, b"plain"))


def index_misses_a_key(store: Store) -> None:
    assert store.keys.index is not None
    while store.keys.index.merge(1000):
        pass
    store.keys.index.pending.clear()
    shards = store.keys._shards
    shards[hash(b"more") & 255][b"more"] = entry(store, b"plain")
    entry(store, b"plain").own().links = [b"link", b"more"]


def same_key_twice(store: Store) -> None:
    entry(store, b"plain").own().links = [b"link", b"link"]


def token_without_lease(store: Store) -> None:
    entry(store, b"a:1:0:1").own().token = START


def reason_without_burial(store: Store) -> None:
    entry(store, b"plain").own().reason = b"why"


def superseded_without_lease(store: Store) -> None:
    entry(store, b"plain").own().superseded = START


def waits_without_delay(store: Store) -> None:
    entry(store, b"a:1:0:1").own().waits_until = START


def plain_that_is_ready(store: Store) -> None:
    entry(store, b"short").state = EntryState.READY


def journal_that_is_plain(store: Store) -> None:
    entry(store, b"a:1:0:1").state = EntryState.PLAIN


def count_too_many(store: Store) -> None:
    store.entries += 1


def domain_counts_too_many(store: Store) -> None:
    entry(store, b"a:1:0:1").domain.entries += 1


def domain_counts_too_few_buried(store: Store) -> None:
    entry(store, b"a:1:0:2").domain.buried -= 1


def ready_order_misses_one(store: Store) -> None:
    entry(store, b"a:1:0:1").domain.ready.pop_first()


def delayed_order_is_by_an_older_key(store: Store) -> None:
    entry(store, b"d:1:%d:x" % (START + SECOND)).not_before = START + 2 * SECOND


def wake_is_too_late(store: Store) -> None:
    entry(store, b"a:1:0:1").domain.wake += 1


def turn_is_lost(store: Store) -> None:
    entry(store, b"a:1:0:1").domain.has_ready = False


def domain_has_no_entries(store: Store) -> None:
    store.scheduler.domain_of(b"nobody")


def lease_is_lost(store: Store) -> None:
    found = entry(store, b"a:1:0:0")
    found.domain.leases.discard(found.token, found)


def lease_operation_is_of_another_domain(store: Store) -> None:
    entry(store, b"a:1:0:0").extra.lease.leased = store.scheduler.plain


def lease_holder_counts_too_many(store: Store) -> None:
    entry(store, b"a:1:0:0").extra.lease.holder.number += 1


def lease_holder_has_lost_a_lease(store: Store) -> None:
    entry(store, b"a:1:0:0").extra.lease.holder.first = None


def lease_holder_is_in_no_list(store: Store) -> None:
    store.leases.holding.clear()


def uri_is_not_leased(store: Store) -> None:
    store.leases.by_uri.clear()


def expiry_is_lost(store: Store) -> None:
    store.expiry.pop_key()


def live_bytes_are_too_many(store: Store) -> None:
    store.journal.records.live_bytes += 1


def tombstone_records_are_too_many(store: Store) -> None:
    store.tombstones.record_bytes += 1


def live_bytes_are_in_another_segment(store: Store) -> None:
    found = entry(store, b"plain")
    found.move_record(found.position + (1 << OFFSET_BITS))


def trimmed_to_more_than_it_has(store: Store) -> None:
    store.journal.records.trimmed[entry(store, b"plain").job_id] = 1000


def lock_without_an_end(store: Store) -> None:
    store.locks.by_key.clear()


FAULTS = (
    *(lose_key, key_leads_elsewhere, key_has_no_primary, index_misses_a_key, same_key_twice),
    *(token_without_lease, reason_without_burial, superseded_without_lease, waits_without_delay),
    *(plain_that_is_ready, journal_that_is_plain, count_too_many, domain_counts_too_many),
    *(domain_counts_too_few_buried, ready_order_misses_one, delayed_order_is_by_an_older_key),
    *(wake_is_too_late, turn_is_lost, domain_has_no_entries, lease_is_lost, uri_is_not_leased),
    *(expiry_is_lost, live_bytes_are_too_many, live_bytes_are_in_another_segment),
    *(tombstone_records_are_too_many, trimmed_to_more_than_it_has, lock_without_an_end),
    *(lease_operation_is_of_another_domain, lease_holder_counts_too_many),
    *(lease_holder_has_lost_a_lease, lease_holder_is_in_no_list),
)


@pytest.mark.parametrize("fault", FAULTS)
def test_invariants_fail_where_one_part_says_something_else(
    fault: Callable[[Store], None], s: Subject
) -> None:
    engine = s.target.engine
    engine.check()
    fault(engine.store)
    with pytest.raises(AssertionError):
        engine.check()
