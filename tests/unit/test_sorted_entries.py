"""Sorted lists of a domain: in order whatever is added, taken out and moved."""

from __future__ import annotations

import random
from operator import attrgetter
from random import Random

import pytest

from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.eviction_queue import EvictionQueue
from fastjournald.net.listeners import origin_of_host
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry
from fastjournald.tables.sorted_entries import SortedEntries


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
        walked, key = list[Entry](), bytes(9)
        while part := order.part_from(key, 3):
            assert len(part) <= 3
            walked += part
            key = order.key_after(part[-1])
        assert walked == expected
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


# --- eviction queue -------------------------------------------------------------------------------
# Eviction queue: a new connection pushes out the oldest of the address that has most.


def test_eviction_queue_agrees_with_a_naive_list() -> None:
    for seed in range(30):
        draw = Random(seed)
        queue: EvictionQueue[int] = EvictionQueue()
        naive: list[tuple[str, int]] = []
        for client in range(300):
            match draw.choices("adpo", (5, 2, 2, 1))[0]:
                case "a":
                    origin = draw.choice("vwxyz")
                    queue.add(origin, client)
                    naive.append((origin, client))
                case "d":
                    one = draw.choice(naive) if naive and draw.random() < 0.8 else ("v", -1)
                    assert queue.discard(*one) is (one in naive)
                    naive = [other for other in naive if other != one]
                case "p":
                    number = {origin: sum(o == origin for o, _ in naive) for origin, _ in naive}
                    popped = queue.pop()
                    assert (popped is None) is (not naive)
                    if popped is not None:
                        (origin,) = [o for o, c in naive if c == popped]
                        assert number[origin] == max(number.values())
                        assert popped == next(c for o, c in naive if o == origin)
                        naive.remove((origin, popped))
                case _ if naive:
                    origin = draw.choice(naive)[0]
                    oldest = next(c for o, c in naive if o == origin)
                    assert queue.pop_oldest_of(origin) == oldest
                    naive.remove((origin, oldest))
            assert len(queue) == len(naive)
            for origin in "vwxyz":
                assert queue.number_of(origin) == sum(o == origin for o, _ in naive)
        while queue.pop() is not None:
            pass
        assert vars(queue) == vars(EvictionQueue())


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
    ],
)
def test_ipv6_network_of_64_bits_is_one_address(host: str, origin: str) -> None:
    assert origin_of_host(host) == origin
