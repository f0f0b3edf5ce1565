"""The scheduler: one budget a turn of the event loop, and who has it next. Without clocks."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from fastjournal.limits import TURN_WORK
from fastjournald.admission.turn_budget import Share, TurnBudget
from fastjournald.engine.store import Store
from fastjournald.histogram import Histogram, Latencies
from fastjournald.tasks.turn_scheduler import TurnScheduler


class Loop:
    """Clients that work, and the work of each turn of the event loop."""

    def __init__(self) -> None:
        self.store = SimpleNamespace(work=0)
        self.turn_us = Histogram(24)
        self.turns = TurnBudget(cast(Store, self.store))
        log = SimpleNamespace(settled=0)
        self.scheduler = TurnScheduler(self.turns, self.turn_us, Latencies([]), log)
        self.by_turn: Counter[int] = Counter()
        self.turn = 0
        self.order: list[str] = []

    def do(self, name: str, work: int) -> None:
        self.store.work += work
        self.by_turn[self.turn] += work
        self.order.append(name)

    async def count_turns(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.turn += 1

    async def client(self, name: str, works: list[int]) -> None:
        """Do these pieces of work, one after the other, as soon as it may."""
        share = Share()
        if not self.turns.admits(share):
            await self.scheduler.wait(share, works[0])
        for work in works:
            self.do(name, work)
            if self.store.work - share.began >= TURN_WORK:
                self.turns.charge(share)
                await self.scheduler.pass_on(share)

    async def run(self, *clients: tuple[str, list[int]]) -> None:
        async with trio.open_nursery() as background:
            background.start_soon(self.count_turns)
            background.start_soon(self.scheduler.run)
            await trio.lowlevel.checkpoint()
            async with trio.open_nursery() as nursery:
                for name, works in clients:
                    nursery.start_soon(self.client, name, works)
            background.cancel_scope.cancel()


@pytest.fixture
def loop() -> Loop:
    return Loop()


async def test_turn_of_fifty_busy_clients_does_no_more_than_that_of_one(loop: Loop) -> None:
    with trio.fail_after(60):
        await loop.run(*((f"busy {number}", [TURN_WORK] * 4) for number in range(50)))
    # in the first turn all come from idleness, and use the budget of the next one too
    assert max(loop.by_turn.values()) <= 3 * TURN_WORK
    assert len(loop.by_turn) >= 50
    assert Counter(loop.order) == {f"busy {number}": 4 for number in range(50)}


async def test_busy_clients_have_equal_shares_whatever_they_ask_for_at_a_time(loop: Loop) -> None:
    """One asks for much at a time, the other for a tenth of it: both have done about as much."""
    with trio.fail_after(60):
        await loop.run(("much", [2 * TURN_WORK] * 30), ("less", [TURN_WORK // 5] * 300))
    done: Counter[str] = Counter()
    for name in loop.order[: len(loop.order) // 2]:
        done[name] += 2 * TURN_WORK if name == "much" else TURN_WORK // 5
    # in a turn that nobody waits for, whoever comes may begin
    assert 0.5 <= done["much"] / done["less"] <= 2


async def test_waiting_client_that_is_cancelled_leaves_the_others_their_turn(loop: Loop) -> None:
    scheduler, turns, store = loop.scheduler, loop.turns, loop.store
    with trio.fail_after(60):
        async with trio.open_nursery() as background:
            background.start_soon(scheduler.run)
            await trio.testing.wait_all_tasks_blocked()
            first, gone, last = Share(), Share(), Share()
            assert turns.admits(first)
            store.work += 10 * TURN_WORK
            turns.charge(first)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scheduler.wait, gone)
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await scheduler.wait(last)
            background.cancel_scope.cancel()


# --- whether a task is alone ----------------------------------------------------------------------


@pytest.fixture
def pipes() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Sockets by which the system wakes two tasks in one turn: nothing else has to run for it."""
    made = [socket.socketpair() for _ in range(2)]
    yield made
    for pair in made:
        for end in pair:
            end.close()


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ("nobody", True),
        ("one that sleeps for longer", True),
        ("one whose time comes", False),
        ("one that is woken in the same turn", False),
        ("one that it wakes", False),
        ("one that it starts", False),
        ("one that it cancels", False),
        ("nobody, for long", False),
    ],
)
async def test_task_is_alone_where_no_other_can_run_before_its_time_is_over(
    beside: str,
    expected: bool,
    loop: Loop,
    pipes: list[tuple[socket.socket, socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, event, scope = loop.scheduler, trio.Event(), trio.CancelScope()
    monkeypatch.setattr(
        "fastjournald.tasks.turn_scheduler.ALONE_SECONDS",
        0.0 if "long" in beside and "nobody" in beside else 3600.0,
    )
    (ours, theirs), (our_other, their_other) = pipes

    async def other() -> None:
        with scope:
            if "sleeps" in beside or "time comes" in beside:
                await trio.sleep(600 if "longer" in beside else 60)
            elif "same turn" in beside:
                await trio.lowlevel.wait_readable(their_other)
            elif "nobody" not in beside:
                await event.wait()

    async with trio.open_nursery() as background:
        background.start_soon(scheduler.run)
        background.start_soon(other)
        await trio.testing.wait_all_tasks_blocked()
        for end in (ours, our_other):
            end.send(b"x")
        await trio.lowlevel.wait_readable(theirs)
        if "wakes" in beside:
            event.set()
        elif "starts" in beside:
            background.start_soon(trio.sleep, 0)
        elif "cancels" in beside:
            scope.cancel()
        assert scheduler.is_alone(120) is expected
        scheduler.next_turn()
        assert scheduler.is_alone(120) is expected, "no task has run meanwhile"
        background.cancel_scope.cancel()


async def test_task_that_only_yields_is_not_alone_as_nobody_knows_the_next_timeout(
    loop: Loop,
) -> None:
    async with trio.open_nursery() as background:
        background.start_soon(loop.scheduler.run)
        await trio.testing.wait_all_tasks_blocked()
        await trio.lowlevel.checkpoint()
        assert not loop.scheduler.is_alone(0)
        background.cancel_scope.cancel()
