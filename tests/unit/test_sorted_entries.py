"""Sorted lists of a domain: they hold when the facts change that entries are sorted by.

``Subject`` checks after each request that each list is sorted by the facts as they are now.
"""

from __future__ import annotations

import random

import pytest

from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.protocol.constants import Flag, ValueType
from tests.door.tables import NO_ENTRIES, Domain, Entry
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
    assert s.meta(key).timestamp > START
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
    for _ in range(400):
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
            expected = sorted(expected + added, key=lambda entry: entry.facts)
        assert list(domain.ready) == expected
        assert len(domain.ready) == len(expected)
        if expected:
            assert domain.ready[len(expected) // 2] is expected[len(expected) // 2]
