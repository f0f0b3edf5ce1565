"""The scheduler: one budget a turn of the event loop, and who has it next. Without clocks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from fastjournal.limits import ALONE_WORK, CREDIT_WORK, SLICE_WORK, TURN_WORK
from fastjournald.admission.turn_budget import Share, TurnBudget
from fastjournald.engine.store import Store
from fastjournald.histogram import Histogram, Latencies
from fastjournald.tasks.turn_scheduler import TurnScheduler

SMALL = 10


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


async def test_turn_beside_clients_that_work_in_slices_keeps_its_budget(loop: Loop) -> None:
    """A small request begins at once, however many clients are busy, and these share alike."""
    turns, scheduler = loop.turns, loop.scheduler
    done: Counter[str] = Counter()

    async def be_busy(name: str, work: int) -> None:
        share = Share()
        await trio.lowlevel.checkpoint()
        if not turns.admits(share, TURN_WORK):
            await scheduler.wait(share)
        while True:
            loop.do(name, work)
            done[name] += work
            turns.charge(share)
            await scheduler.pass_on(share)

    with trio.fail_after(60):
        async with trio.open_nursery() as background:
            background.start_soon(scheduler.run)
            await trio.testing.wait_all_tasks_blocked()
            background.start_soon(loop.count_turns)
            for number in range(5):
                background.start_soon(be_busy, f"busy {number}", SLICE_WORK + SMALL * number)
            while loop.turn < 100:
                await trio.lowlevel.checkpoint()
                assert turns.admits(Share(), SMALL)
            background.cancel_scope.cancel()
    settled = [work for turn, work in loop.by_turn.items() if turn > 10]
    # the last slice may begin at the end of the budget, and one may count for the turn before
    assert max(settled) <= TURN_WORK + 2 * (SLICE_WORK + 4 * SMALL)
    assert sum(settled) <= (TURN_WORK + SLICE_WORK) * 100
    assert max(done.values()) <= 1.2 * min(done.values()), "all have the same share"


def test_budget_of_the_next_turn_is_for_small_requests(loop: Loop) -> None:
    """A client that has had less than another begins beyond the budget, but not with a window."""
    turns, ahead, behind = loop.turns, Share(), Share()
    turns.start()
    for _ in range(2):
        turns.begin_turn()
        assert turns.admits(ahead, TURN_WORK)
        loop.store.work += TURN_WORK
        turns.charge(ahead)
    assert not turns.admits(behind, CREDIT_WORK + 1)
    assert behind.virtual < ahead.virtual
    assert turns.admits(behind, CREDIT_WORK)


async def test_busy_clients_have_equal_shares_whatever_they_ask_for_at_a_time(loop: Loop) -> None:
    """One asks for much at a time, the other for a tenth of it: both have done about as much."""
    with trio.fail_after(60):
        await loop.run(("much", [2 * TURN_WORK] * 30), ("less", [TURN_WORK // 5] * 300))
    done: Counter[str] = Counter()
    for name in loop.order[: len(loop.order) // 2]:
        done[name] += 2 * TURN_WORK if name == "much" else TURN_WORK // 5
    # in a turn that nobody waits for, whoever comes may begin
    assert 0.5 <= done["much"] / done["less"] <= 2


async def test_client_that_was_idle_begins_before_those_that_are_busy(loop: Loop) -> None:
    scheduler, turns, store = loop.scheduler, loop.turns, loop.store
    shares = [Share() for _ in range(20)]
    began: list[object] = []

    async def wait(share: Share, name: object, expected: int) -> None:
        if not turns.admits(share):
            await scheduler.wait(share, expected)
        began.append(name)
        store.work += expected
        turns.charge(share)

    with trio.fail_after(60):
        async with trio.open_nursery() as background:
            background.start_soon(scheduler.run)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                async with trio.open_nursery() as nursery:
                    for number, share in enumerate(shares):
                        nursery.start_soon(wait, share, number, TURN_WORK)
            began.clear()
            async with trio.open_nursery() as nursery:
                for number, share in enumerate(shares):
                    nursery.start_soon(wait, share, number, TURN_WORK)
                await trio.lowlevel.checkpoint()
                nursery.start_soon(wait, Share(), "small", SMALL)
            background.cancel_scope.cancel()
    assert began.index("small") <= 3
    assert len(began) == 21


async def test_call_over_the_budget_is_taken_off_the_next_turns(loop: Loop) -> None:
    scheduler, turns, store = loop.scheduler, loop.turns, loop.store
    with trio.fail_after(60):
        async with trio.open_nursery() as background:
            background.start_soon(scheduler.run)
            await trio.testing.wait_all_tasks_blocked()
            busy = Share()
            assert turns.admits(busy)
            store.work += 4 * TURN_WORK
            turns.charge(busy)
            rested = 0
            while not turns.open:
                rested += 1
                assert not turns.admits(busy)
                await trio.lowlevel.checkpoint()
            assert rested >= 3
            background.cancel_scope.cancel()


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


def test_virtual_time_of_an_idle_client_follows_the_others(loop: Loop) -> None:
    """A client that worked alone is not behind for ever, and one that slept not ahead for ever."""
    turns, store = loop.turns, loop.store
    alone, idle = Share(), Share()
    for _ in range(100):
        assert turns.admits(alone)
        store.work += TURN_WORK
        turns.charge(alone)
    assert turns.admits(idle)
    assert idle.virtual >= alone.virtual - TURN_WORK - CREDIT_WORK
    assert turns.admits(alone)


async def test_turns_are_measured(loop: Loop) -> None:
    with trio.fail_after(60):
        await loop.run(("one", [TURN_WORK] * 8))
    assert loop.turn_us.cumulative()[-1] >= 5


async def test_newcomers_without_end_do_not_keep_a_busy_client_from_its_turn(loop: Loop) -> None:
    """Each comes on a new connection, so it was idle; each asks for more than a turn has."""

    async def come_again_and_again() -> None:
        while True:
            share = Share()
            if not loop.turns.admits(share):
                await loop.scheduler.wait(share)
            loop.do("newcomer", 2 * TURN_WORK)
            await trio.lowlevel.checkpoint()

    async def give_up() -> None:
        while loop.turn < 2000:
            await trio.lowlevel.checkpoint()
        raise AssertionError("the busy client waits for ever")

    with trio.fail_after(60):
        async with trio.open_nursery() as background:
            background.start_soon(loop.count_turns)
            background.start_soon(loop.scheduler.run)
            background.start_soon(give_up)
            for _ in range(5):
                background.start_soon(come_again_and_again)
            await loop.client("busy", [TURN_WORK] * 10)
            background.cancel_scope.cancel()
    assert loop.order.count("busy") == 10


def test_slice_of_a_client_is_a_whole_turn_once_it_was_alone_for_long(loop: Loop) -> None:
    turns, one, other = loop.turns, Share(), Share()
    turns.charge(one)
    loop.store.work += ALONE_WORK - 1
    turns.charge(one)
    assert turns.slice_work == SLICE_WORK
    loop.store.work += 1
    assert turns.slice_work == TURN_WORK
    turns.charge(one)
    assert turns.slice_work == TURN_WORK
    turns.charge(other)
    assert turns.slice_work == SLICE_WORK, "it is alone no more"


def test_client_is_alone_behind_pieces_of_work_between_which_no_other_did_any(loop: Loop) -> None:
    turns, one, other = loop.turns, Share(), Share()
    turns.charge(other)
    for _ in range(5):
        assert turns.in_row < 4
        turns.charge(one)
    assert turns.in_row >= 4
    assert turns.in_row < 5
    turns.charge(Share(), is_client=False)
    assert turns.in_row >= 4, "a task is no client"
    turns.charge(other)
    assert turns.in_row < 1


def test_admission_looks_no_more_at_clients_that_were_woken_and_have_asked(loop: Loop) -> None:
    turns = loop.turns
    turns.start()
    woken = [turns.queue_up(Share(), lambda: None, SMALL) for _ in range(5)]
    turns.release()
    assert turns._woken == woken
    for waiting in woken[1:]:
        waiting.share = None
    assert not turns.admits(Share(), TURN_WORK), "one that was woken comes first"
    assert turns._woken == woken[:1]
