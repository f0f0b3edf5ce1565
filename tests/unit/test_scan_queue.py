"""Scan queue: scans take turns for its places; those of clients that may have gone come last."""

from __future__ import annotations

import trio
import trio.testing

from fastjournald.tasks.scan_runner import Place, ScanQueue


def stays() -> bool:
    return False


def has_ended() -> bool:
    return True


async def test_scan_queue_gives_every_other_place_to_scans_that_go_on() -> None:
    queue = ScanQueue(1)
    served: list[str] = []
    old = [Place(queue, stays) for _ in range(3)]
    for place in old:
        await place.enter()
        place.leave()
    held = Place(queue, stays)
    await held.enter()

    async def take(name: str, place: Place) -> None:
        await place.enter()
        served.append(name)
        place.leave()

    async with trio.open_nursery() as nursery:
        for name, place in [
            *(("gone", Place(queue, has_ended)) for _ in range(2)),
            *(("old", place) for place in old),
            *(("new", Place(queue, stays)) for _ in range(2)),
        ]:
            nursery.start_soon(take, name, place)
            await trio.testing.wait_all_tasks_blocked()
        assert queue.is_awaited
        held.leave()
    # the one that held the place had begun
    assert served == ["old", "new", "old", "new", "old", "gone", "gone"]
    assert not queue.is_awaited


async def test_scan_queue_keeps_no_place_for_a_scan_that_was_cancelled() -> None:
    queue = ScanQueue(1)
    held, other = Place(queue, stays), Place(queue, stays)
    await held.enter()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Place(queue, stays).enter)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    held.leave()
    with trio.CancelScope() as scope:
        scope.cancel()
        await Place(queue, stays).enter()
    assert scope.cancelled_caught
    with trio.fail_after(5):
        await other.enter()
    other.leave()
    other.leave()
    await held.enter()
    with trio.move_on_after(0.01) as waited:
        await other.enter()
    assert waited.cancelled_caught, "a place was left twice"
