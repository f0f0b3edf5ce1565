"""Sorted lists of a domain: they hold when the facts change that entries are sorted by.

``Subject`` checks after each request that each list is sorted by the facts as they are now.
"""

from __future__ import annotations

import random
from operator import attrgetter

import pytest

from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.protocol.constants import Flag, ValueType
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry
from fastjournald.tables.sorted_entries import NO_ENTRIES, SortedEntries
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject

KEYS = [b"a:1:0:%d" % number for number in range(3)]
DELAYED = b"a:1:%d:z" % (START + 60 * SECOND)
ONE = (1).to_bytes(8, "big", signed=True)
TYPES = {"kind": ValueType.INTEGER}


@pytest.fixture
def s() -> Subject:
    subject = Subject(EngineSubject(Rules()))
    for key in (*KEYS, DELAYED):
        assert subject.set(key, ONE, at=START, flags=Flag.PERSIST, **TYPES) == ""
    return subject


@pytest.mark.parametrize("key", [KEYS[1], DELAYED])
def test_add_to_a_waiting_entry_keeps_its_place_in_the_order(s: Subject, key: bytes) -> None:
    s.later(SECOND)
    assert s.add(key, ONE, ValueType.INTEGER, at=s.now).code == ""
    assert s.meta(key).timestamp_us > START
    s.later(60 * SECOND)
    assert s.jobs(count=10) == [*KEYS, DELAYED]


def test_add_to_a_dead_letter_keeps_its_place_in_the_order(s: Subject) -> None:
    for key in KEYS:
        assert s.bury(key) == ""
    s.later(SECOND)
    assert s.add(KEYS[1], ONE, ValueType.INTEGER, at=s.now).code == ""
    assert s.kick_domain(b"a", 2) == 2
    assert s.jobs(count=10) == KEYS[:2]


def test_bury_with_another_reason_keeps_the_place_in_the_order(s: Subject) -> None:
    for key in KEYS:
        assert s.bury(key, reason=b"one") == ""
    assert s.bury(KEYS[0], reason=b"another") == ""
    assert s.kick_domain(b"a", 3) == 3
    assert s.jobs(count=10) == KEYS


def test_rename_moves_an_entry_to_its_new_place_in_the_order(s: Subject) -> None:
    s.later(SECOND)
    assert s.rename(KEYS[0], b"a:2:0:0", at=s.now) == ""
    assert s.jobs(count=10) == [*KEYS[1:], b"a:2:0:0"]


def test_domains_without_delays_and_dead_letters_share_an_empty_list(s: Subject) -> None:
    domain = Domain(b"b")
    assert domain.delayed is domain.buried_order is NO_ENTRIES
    assert s.bury(KEYS[0]) == ""
    assert len(NO_ENTRIES) == 0


@pytest.mark.parametrize("seed", range(4))
def test_taking_out_first_and_adding_many_keep_the_order(seed: int) -> None:
    draw, domain = random.Random(seed), Domain(b"a")
    expected: list[Entry] = []
    serial = 0
    for step in range(400):
        if expected and draw.random() < 0.4:
            for _ in range(draw.randint(1, min(400, len(expected)))):
                assert domain.ready.first() is expected[0]
                assert domain.ready.pop_first() is expected.pop(0)
        else:
            number, latest = draw.choice([1, 2, 30, 256, 600]), draw.random() < 0.7
            added = []
            for _ in range(number):
                serial += 1
                instant = 10 if latest else draw.randint(0, 9)
                facts = pack_facts(1, instant, serial, 0, 0, 0)
                added.append(Entry(facts, b"%d" % serial, None, b"", domain))
            domain.ready.add_all(added)
            expected = sorted(expected + added, key=attrgetter("facts"))
        assert list(domain.ready) == expected
        assert len(domain.ready) == len(expected)
        if step % 8 == 7:
            # a rank that is wrong stays until its sublist has gone
            domain.ready.check()


class Short(SortedEntries):
    """Sublists of 2 to 8 entries, so that few entries split and join many."""

    LOAD = 4


def facts_of(entry: Entry) -> bytes:
    return entry.facts


def an_entry(instant: int, serial: int, domain: Domain) -> Entry:
    return Entry(pack_facts(1, instant, serial, 0, 0, 0), b"%d" % serial, None, b"", domain)


@pytest.mark.parametrize("instants", [1, 3, 2**9, 2**40, 2**60])
@pytest.mark.parametrize("seed", range(3))
def test_sorted_list_adds_and_removes_at_any_place_also_of_equal_ranks(
    seed: int, instants: int
) -> None:
    """A rank leaves out the arrival, and tells instants to 64 us."""
    draw, domain = random.Random(seed), Domain(b"a")
    order, expected = Short(), list[Entry]()
    serials = draw.sample(range(600), 600)
    grows = 0.7
    while serials:
        if len(expected) > 150:
            grows = 0.3
        elif len(expected) < 5:
            grows = 0.7
        if draw.random() < grows:
            number = draw.choice([1, 1, 1, 3, 4, 20])
            added = [
                an_entry(draw.randrange(instants), serials.pop(), domain)
                for _ in range(min(number, len(serials)))
            ]
            if len(added) == 1:
                order.add(added[0])
            else:
                order.add_all(added)
            expected = sorted(expected + added, key=facts_of)
        elif expected:
            at = draw.randrange(len(expected))
            for _ in range(draw.choice([1, 1, 2, 9])):
                if at < len(expected):
                    order.remove(expected.pop(at))
                    order.check()
        assert list(order) == expected
        assert len(order) == len(expected)
        order.check()
        bound = pack_facts(1, draw.randrange(instants + 1), draw.randrange(600), 0, 0, 0)
        found = next((entry for entry in expected if entry.facts >= bound), None)
        assert order.first_from(bound) is found
        assert order.first_from(pack_facts(1, 0, 0, 0, 0, 0)) is (expected[0] if expected else None)
        assert order.first_from(pack_facts(2, 0, 0, 0, 0, 0)) is None
    for entry in expected:
        assert order.pop_first() is entry
        order.check()
    assert not order


def test_sorted_list_takes_out_the_very_entry_among_those_with_equal_keys() -> None:
    order, domain = Short(), Domain(b"a")
    entries = [an_entry(5, 7, domain) for _ in range(30)]
    for entry in entries:
        order.add(entry)
    for entry in random.Random(1).sample(entries, 20):
        order.remove(entry)
        entries.remove(entry)
        assert set(map(id, order)) == set(map(id, entries))
        order.check()


@pytest.mark.parametrize("instant", [0, 5, 1000])
def test_sorted_list_refuses_to_take_out_what_is_not_in_it(instant: int) -> None:
    order, domain = Short(), Domain(b"a")
    absent = an_entry(instant, 100, domain)
    with pytest.raises(ValueError, match="not in this list"):
        order.remove(absent)
    for serial in range(30):
        order.add(an_entry(5, serial, domain))
    with pytest.raises(ValueError, match="not in this list"):
        order.remove(absent)
    order.check()
