"""Packed facts of an entry: every field comes back as it was set."""

from __future__ import annotations

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_NUMBER_MAX, pack_position
from fastjournal.cmdlog.format.packed_entry import FACTS_BYTES, ORDER_BYTES, pack_facts, pack_record
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.limits import INSTANT_MAX
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import ARRIVAL_MAX, NOTHING, AccessTimes, Entry, Extra
from fastjournald.wal.journal import Journal

HIGHEST = (255, INSTANT_MAX, ARRIVAL_MAX, INSTANT_MAX - 1, INSTANT_MAX - 2, 7)
LAST_POSITION = pack_position(SEGMENT_NUMBER_MAX, 2**40 - 1)


def an_entry(*facts: int) -> Entry:
    return Entry(pack_facts(*facts), b"a:1:2:x", None, b"value", Domain(b"a"))


def stored(journal: Journal, arrival: int) -> Entry:
    entry = an_entry(1, 2, arrival, 4, 5, 6)
    journal.stored(entry, 10)
    return entry


class Log:
    """A journal whose records are kept."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.journal = Journal(self.append, seed=b"12345678", lease_us=1)

    def append(self, data: bytes, records: int, now: int) -> int:
        self.records.append(data)
        return pack_position(3, len(self.records))


@pytest.mark.parametrize("facts", [HIGHEST, (0, 0, 0, 0, 0, 0), (1, 2, 3, 4, 5, 6)])
def test_facts_are_what_was_packed(facts: tuple[int, ...]) -> None:
    entry = an_entry(*facts)
    assert facts == (
        *(entry.priority, entry.not_before, entry.arrival),
        *(entry.timestamp, entry.created, entry.value_type),
    )
    assert (entry.position, entry.record_bytes, entry.job_id) == (0, 0, b"")
    assert not entry.persistent
    assert (entry.modified, entry.accessed) == (entry.created, entry.created)


@pytest.mark.parametrize("position", [0, pack_position(1, 8), LAST_POSITION])
def test_facts_tell_of_the_record(position: int) -> None:
    entry = an_entry(*HIGHEST)
    entry.facts += pack_record(position >> 8, position & 0xFF, 2**32 - 1)
    assert (entry.position, entry.record_bytes) == (position, 2**32 - 1)
    entry.move_record(LAST_POSITION)
    assert (entry.position, entry.record_bytes) == (LAST_POSITION, 2**32 - 1)
    assert (entry.priority, entry.value_type) == (255, 7)


def test_fact_of_an_entry_changes_and_the_others_stay() -> None:
    entry = an_entry(1, 2, 3, 4, 5, 6)
    entry.not_before = 20
    entry.timestamp = 40
    assert entry.facts == pack_facts(1, 20, 3, 40, 5, 6)
    entry.reorder(10, 200)
    assert entry.facts == pack_facts(10, 200, 3, 40, 5, 6)


def test_facts_sort_by_priority_instant_and_arrival() -> None:
    ascending = [(1, 300, 900), (2, 0, 800), (2, 1, 700), (2, 1, 701), (2, 256, 1), (3, 0, 0)]
    packed = [pack_facts(*order, 0, 0, 0) for order in ascending]
    assert packed == sorted(packed)
    assert [facts[:ORDER_BYTES] for facts in packed] == sorted(
        facts[:ORDER_BYTES] for facts in reversed(packed)
    )


def test_null_object_of_cold_fields_cannot_be_written_to() -> None:
    entry = an_entry(1, 2, 3, 4, 5, 6)
    assert entry.extra is NOTHING
    with pytest.raises(AttributeError):
        NOTHING.token = 5
    entry.own().token = 5
    assert (entry.token, NOTHING.token) == (5, 0)
    assert entry.own() is entry.extra
    assert entry.extra == Extra(token=5)


def test_entry_that_was_only_read_has_times_and_no_other_cold_field() -> None:
    entry = an_entry(1, 2, 3, 4, 5, 6)
    entry.domain = Domain(b"")
    entry.accessed = 9
    assert type(entry.extra) is AccessTimes
    assert (entry.accessed, entry.modified) == (9, entry.created)
    unset = Extra(seen=9)
    for name in Extra.__struct_fields__:
        assert getattr(entry.extra, name) == getattr(unset, name)
    with pytest.raises(AttributeError):
        entry.extra.token = 5
    entry.modified = 8
    assert type(entry.extra) is AccessTimes
    entry.own().token = 5
    assert entry.extra == Extra(changed=8, seen=9, token=5)


def test_id_in_the_record_is_that_of_the_entry() -> None:
    log = Log()
    log.journal.ids.serial = ARRIVAL_MAX + 1
    entries = [stored(log.journal, arrival) for arrival in (1, 2, 2, 7, ARRIVAL_MAX + 1)]
    for entry, data in zip(entries, log.records, strict=True):
        assert decode_record(data)[0].job_id == entry.job_id
        assert (entry.record_bytes, entry.persistent) == (len(data), True)
    assert len({entry.job_id for entry in entries}) == len(entries)


def test_id_is_kept_in_few_bytes_where_the_arrival_is_its_end() -> None:
    log = Log()
    first, second = (stored(log.journal, log.journal.ids.next_serial()) for _ in range(2))
    assert first.run is second.run
    assert len(first.run or b"") < 16


def test_ids_ascend_with_the_order_of_writing() -> None:
    log = Log()
    entries = [stored(log.journal, log.journal.ids.next_serial()) for _ in range(3)]
    ids = [entry.job_id for entry in entries]
    for entry in (entries[1], entries[0], entries[0]):
        log.journal.stored(entry, 11)
        ids.append(entry.job_id)
    ids.append(stored(log.journal, log.journal.ids.next_serial()).job_id)
    assert ids == sorted(set(ids))


def test_entry_stored_anew_keeps_its_facts() -> None:
    log = Log()
    entry = stored(log.journal, 3)
    before = entry.facts[:FACTS_BYTES]
    log.journal.stored(entry, 20)
    assert entry.facts[:FACTS_BYTES] == before
    assert entry.position == pack_position(3, 2)
