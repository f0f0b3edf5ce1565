"""Eviction queue: a new connection pushes out the oldest of the address that has most."""

from __future__ import annotations

from random import Random

import pytest

from fastjournal.eviction_queue import EvictionQueue
from fastjournald.net.listeners import origin_of_host


def test_eviction_queue_gives_the_oldest_of_the_address_that_has_most() -> None:
    queue: EvictionQueue[int] = EvictionQueue()
    for client, origin in enumerate(("a", "b", "b", "c", "b", "c")):
        queue.add(origin, client)
    assert [queue.pop() for _ in range(2)] == [1, 3]
    assert len(queue) == 4


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
