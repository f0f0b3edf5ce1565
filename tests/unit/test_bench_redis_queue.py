"""Redis queue of the benchmark: its scripts do the job that fastjournald does for a SET with a URI.

The scripts run in a Redis that is simulated in this process, with a real Lua.
"""

from __future__ import annotations

import pytest

from tests.bench.peers.redis_queue import COMPLETE, ENQUEUE, LEASE

NOW = 1_700_000_000_000_000
LEASE_US = 60_000_000


class Queue:
    """The scripts, called as the load generator calls them."""

    def __init__(self) -> None:
        import fakeredis  # takes a moment, for the processes that run these tests

        self.redis = fakeredis.FakeRedis()

    def enqueue(
        self, uri: str, number: int, *, priority: int = 128, at: int = NOW, now: int = NOW
    ) -> None:
        added = self.redis.eval(ENQUEUE, 0, uri, priority, at, number, f"body {number}", now)
        assert added == 1

    def lease(self, count: int, now: int = NOW) -> tuple[int, dict[bytes, bytes]]:
        token, *found = self.redis.eval(LEASE, 0, count, now, LEASE_US)
        return int(token), dict(zip(found[::2], found[1::2], strict=True))

    def numbers(self, count: int, now: int = NOW) -> list[int]:
        return [number_of(name) for name in self.lease(count, now)[1]]

    def complete(self, token: int, *names: bytes) -> int:
        return int(self.redis.eval(COMPLETE, 0, token, *names))


def number_of(name: bytes) -> int:
    return int(name.rpartition(b":")[2])


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_redis_queue_leases_by_priority_then_instant_then_number(queue: Queue) -> None:
    queue.enqueue("d", 4, priority=200)
    queue.enqueue("c", 3)
    queue.enqueue("b", 2, at=NOW - 1)
    queue.enqueue("a", 1, priority=7)
    assert queue.numbers(3) == [1, 2, 3]
    assert queue.numbers(3) == [4]


def test_redis_queue_moves_the_waiting_job_of_a_uri(queue: Queue) -> None:
    queue.enqueue("a", 1)
    queue.enqueue("a", 2, at=NOW - 5)
    token, found = queue.lease(10)
    assert list(found.values()) == [b"body 2"]
    assert queue.complete(token, *found) == 1
    assert queue.redis.keys("*") == [b"token"]


def test_redis_queue_delays_a_job_until_its_instant(queue: Queue) -> None:
    queue.enqueue("a", 1, at=NOW + 10)
    assert queue.numbers(10, NOW + 9) == []
    assert queue.numbers(10, NOW + 10) == [1]


def test_redis_queue_moves_a_delayed_job_of_a_uri_to_the_present(queue: Queue) -> None:
    queue.enqueue("a", 1, at=NOW + 10)
    queue.enqueue("a", 2)
    assert queue.numbers(10, NOW + 10) == [2]


def test_redis_queue_gives_a_job_of_a_lost_lease_back_under_another_token(queue: Queue) -> None:
    queue.enqueue("a", 1)
    late, found = queue.lease(1)
    assert queue.numbers(1, NOW + LEASE_US - 1) == []
    token, again = queue.lease(1, NOW + LEASE_US)
    assert again == found
    assert queue.complete(late, *found) == 0
    assert queue.complete(token, *found) == 1
    assert queue.complete(token, *found) == 0


def test_redis_queue_keeps_a_job_that_was_enqueued_while_its_uri_was_leased(queue: Queue) -> None:
    queue.enqueue("a", 1)
    token, found = queue.lease(1)
    queue.enqueue("a", 2)
    assert queue.complete(token, *found) == 1
    assert queue.numbers(10) == [2]


def test_redis_queue_drops_a_lost_lease_whose_uri_waits_again(queue: Queue) -> None:
    queue.enqueue("a", 1)
    queue.lease(1)
    queue.enqueue("a", 2)
    token, found = queue.lease(10, NOW + LEASE_US)
    assert list(found.values()) == [b"body 2"]
    assert queue.complete(token, *found) == 1
    assert queue.redis.keys("*") == [b"token"]
