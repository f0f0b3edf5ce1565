"""Sessions that all have something to do at the same instant take turns of bounded work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal.limits import BATCH_WORK, CALL_WORK_MAX, HANG_UP_WORK, NEXT_ENTRIES_MAX, TURN_WORK
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournald.admission.turn_budget import Share
from fastjournald.engine.engine import Scan
from fastjournald.engine.store import Store
from tests.property.subject import SECOND, START, request
from tests.unit.test_session_bounds import Room
from tests.unit.test_session_limits import NOP

pytestmark = pytest.mark.usefixtures("native", "transport")

CLIENTS = 400
WORK = {"request": BATCH_WORK, "hang-up": HANG_UP_WORK}
A_TURN = {what: 2 * TURN_WORK // work for what, work in WORK.items()}
"""Clients that were idle: they may use what the next turn has, too."""


class Turns(trio.abc.Instrument):
    """Counts first calls for each session by turn of the event loop."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self._turn = 0
        self._seen: set[object] = set()

    def after_io_wait(self, timeout: float) -> None:
        self._turn += 1

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            if arguments[0] not in self._seen:
                self._seen.add(arguments[0])
                self.calls[self._turn] += 1
            return call(*arguments)

        return counting


class WorkOfRounds(trio.abc.Instrument):
    """Counts the work of each turn of the event loop.

    Args:
        store: Counts the work.
    """

    def __init__(self, store: Store) -> None:
        self.work: list[int] = []
        self._store = store
        self._before = store.work

    def before_io_wait(self, timeout: float) -> None:
        self.work.append(self._store.work - self._before)
        self._before = self._store.work


@pytest.mark.parametrize("what", ["request", "hang-up"])
async def test_turn_serves_so_many_clients_that_come_at_the_same_instant(
    what: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, turns = Room(), Turns()
    async with room.open(), trio.open_nursery() as background:
        peers = [room.connect_in_memory() for _ in range(CLIENTS)]
        background.start_soon(room.server.turn_scheduler.run)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(turns)
        if what == "request":
            monkeypatch.setattr(room.engine, "handle", turns.counted(room.engine.handle))
            for peer in peers:
                background.start_soon(peer.send, NOP)
            assert [(await peer.reply()) is not None for peer in peers] == [True] * CLIENTS
        else:
            monkeypatch.setattr(room.engine, "end_session", turns.counted(room.engine.end_session))
            for peer in peers:
                background.start_soon(peer.stream.aclose)
            await trio.sleep(10)
            assert not room.sessions
        trio.lowlevel.remove_instrument(turns)
        background.cancel_scope.cancel()
    assert turns.calls.total() == CLIENTS
    assert max(turns.calls.values()) <= A_TURN[what] + 1


async def test_hangup_of_many_clients_makes_no_request_wait_for_all_of_them() -> None:
    room = Room()
    async with room.open(), trio.open_nursery() as background:
        peers = [room.connect_in_memory() for _ in range(CLIENTS)]
        other = room.connect_in_memory()
        background.start_soon(room.server.turn_scheduler.run)
        await other.ask(NOP)
        await trio.testing.wait_all_tasks_blocked()
        for peer in peers:
            background.start_soon(peer.stream.aclose)
        while len(room.sessions) > CLIENTS - 1:
            await trio.lowlevel.checkpoint()
        await other.ask(NOP)
        assert len(room.sessions) > CLIENTS / 2
        background.cancel_scope.cancel()


async def test_scan_of_a_client_that_has_had_much_holds_up_no_other_scan(
    autojump_clock: MockClock,
) -> None:
    room = Room()
    ended: list[str] = []
    async with room.open(), trio.open_nursery() as background:
        scheduler, store = room.server.turn_scheduler, room.engine.store
        turns = room.server.runtime.turns
        background.start_soon(scheduler.run)
        await trio.testing.wait_all_tasks_blocked()

        async def be_busy() -> None:
            share = Share()
            while True:
                if not turns.admits(share):
                    await scheduler.wait(share)
                store.work += TURN_WORK
                turns.charge(share)
                await scheduler.pass_on(share)

        async def scan(name: str, share: Share) -> None:
            found = room.engine.handle(name, request(Function.GET, b"a", uri=b"z"), START)
            assert isinstance(found, Scan)
            await room.server.scan_runner.run(found, lambda: False, lambda: False, share)
            ended.append(name)

        for _ in range(3):
            background.start_soon(be_busy)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        much = Share()
        much.virtual = 1_000 * TURN_WORK
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scan, "much", much)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            nursery.start_soon(scan, "little", Share())
        background.cancel_scope.cancel()
    assert ended == ["little", "much"]


# --- work that comes at one instant --------------------------------------------------------------

WAITS = 60
"""NEXTs that wait, each for a call's worth of entries."""


def resume(room: Room) -> None:
    room.engine.handle("admin", request(Function.PAUSE, b"d", ttl=0), room.clock.instant_us)


def let_delays_end(room: Room) -> None:
    room.clock.instant_us += SECOND
    # as the clock of the event loop does, which stands still here
    room.server.timers._sooner.set()


def lift_limit(room: Room) -> None:
    asked = request(Function.LIMIT, b"d", b'{"jobs":0}', kind=ValueType.STRING)
    room.engine.handle("admin", asked, room.clock.instant_us)


@pytest.mark.parametrize("release", [resume, let_delays_end, lift_limit])
async def test_turn_budget_bounds_the_work_before_a_request_while_a_domain_comes_free(
    release: Callable[[Room], None], autojump_clock: MockClock
) -> None:
    room = Room()
    engine, limits, began = room.engine, b'{"jobs":1}', START
    if release is resume:
        engine.handle("admin", request(Function.PAUSE, b"d", ttl=1000 * SECOND), began)
    elif release is lift_limit:
        engine.handle("x", request(Function.SET, b"d:1:0:first", b"v"), began)
        asked = request(Function.LIMIT, b"d", limits, kind=ValueType.STRING)
        engine.handle("admin", asked, began)
        engine.handle("x", request(Function.NEXT, b"d", timeout=1000 * SECOND), began)
    begins = began + SECOND if release is let_delays_end else 0
    for number in range(WAITS * NEXT_ENTRIES_MAX):
        key = b"d:1:%d:%06d" % (begins, number)
        engine.handle("x", request(Function.SET, key, b"v"), began)
    async with room.open(), trio.open_nursery() as background:
        worker, other = room.connect_in_memory(), room.connect_in_memory()
        waits = [
            request(Function.NEXT, b"d", flags=Flag.LISTEN, identifier=at, count=NEXT_ENTRIES_MAX)
            for at in range(WAITS)
        ]
        await worker.send(*waits)
        await other.ask(NOP)
        assert len(engine.waiters) == WAITS
        background.start_soon(room.server.turn_scheduler.run)
        background.start_soon(room.server.timers.run)
        await trio.testing.wait_all_tasks_blocked()
        rounds = WorkOfRounds(engine.store)
        trio.lowlevel.add_instrument(rounds)
        await other.ask(NOP)
        alone = len(rounds.work)
        release(room)
        room.server.timers.look()
        rounds.work.clear()
        most = 0
        while engine.waiters:
            before = len(rounds.work)
            await other.ask(NOP)
            most = max(most, len(rounds.work) - before)
        trio.lowlevel.remove_instrument(rounds)
        background.cancel_scope.cancel()
    # far more than a request may wait for
    assert sum(rounds.work) > 10 * CALL_WORK_MAX
    assert max(rounds.work) <= CALL_WORK_MAX + TURN_WORK
    assert sum(rounds.work) <= TURN_WORK * len(rounds.work) + CALL_WORK_MAX
    assert most <= alone + 6
