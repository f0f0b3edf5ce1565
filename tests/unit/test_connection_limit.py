"""Whom a newcomer pushes out: the oldest of the address that holds most."""

from __future__ import annotations

from random import Random

import pytest

from tests.door.net import Newcomers, origin_of_host


def test_newcomers_push_out_the_oldest_of_the_address_that_has_most() -> None:
    newcomers: Newcomers[int] = Newcomers()
    for client, origin in enumerate(("a", "b", "b", "c", "b", "c")):
        newcomers.add(origin, client)
    assert [newcomers.pop() for _ in range(2)] == [1, 3]
    assert len(newcomers) == 4


def test_newcomers_agree_with_a_naive_list() -> None:
    for seed in range(30):
        draw = Random(seed)
        newcomers: Newcomers[int] = Newcomers()
        naive: list[tuple[str, int]] = []
        for client in range(300):
            match draw.choices("adpo", (5, 2, 2, 1))[0]:
                case "a":
                    origin = draw.choice("vwxyz")
                    newcomers.add(origin, client)
                    naive.append((origin, client))
                case "d":
                    one = draw.choice(naive) if naive and draw.random() < 0.8 else ("v", -1)
                    assert newcomers.discard(*one) is (one in naive)
                    naive = [other for other in naive if other != one]
                case "p":
                    number = {origin: sum(o == origin for o, _ in naive) for origin, _ in naive}
                    popped = newcomers.pop()
                    assert (popped is None) is (not naive)
                    if popped is not None:
                        (origin,) = [o for o, c in naive if c == popped]
                        assert number[origin] == max(number.values())
                        assert popped == next(c for o, c in naive if o == origin)
                        naive.remove((origin, popped))
                case _ if naive:
                    origin = draw.choice(naive)[0]
                    oldest = next(c for o, c in naive if o == origin)
                    assert newcomers.pop_oldest_of(origin) == oldest
                    naive.remove((origin, oldest))
            assert len(newcomers) == len(naive)
            for origin in "vwxyz":
                assert newcomers.number_of(origin) == sum(o == origin for o, _ in naive)
        while newcomers.pop() is not None:
            pass
        assert vars(newcomers) == vars(Newcomers())


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
def test_an_ipv6_network_of_64_bits_is_one_address(host: str, origin: str) -> None:
    assert origin_of_host(host) == origin
