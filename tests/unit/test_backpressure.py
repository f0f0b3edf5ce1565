"""Backpressure while the log is far too large: requests that wait, their order, and the others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import trio
import trio.testing

from fastjournal.cmdlog.locks import lock_read
from fastjournal.protocol import Flag, Function, Request, ValueType
from fastjournald.admission.log_growth import grows
from fastjournald.compaction.backpressure import GRANTED, Backpressure
from fastjournald.compaction.policy import bytes_slowed, bytes_usual
from fastjournald.tasks.compactor import Compactor
from tests.property.compacted_log import LOG, CompactedLog, nothing_to_archive, runtime_of
from tests.property.subject import START, request
from tests.unit.server_fixture import Peer
from tests.unit.test_session_bounds import Room

OVER = Flag.PERSIST | Flag.OVERWRITE
SEGMENT_BYTES = 16 * 1024


def overgrown() -> CompactedLog:
    """A log of which so little is live that writers wait."""
    log = CompactedLog(cmdlog_seg_size=SEGMENT_BYTES)
    for _ in range(10):
        log.fill(100)
        log.pass_time(1)
    log.roll()
    assert log.writer.log_bytes > bytes_slowed(log.engine.store, log.writer)
    return log


@pytest.fixture
def log() -> CompactedLog:
    return overgrown()


@pytest.fixture
def pressure(log: CompactedLog) -> Backpressure:
    pressure = Backpressure(log.engine, log.writer, compacts=True)
    pressure.look()
    assert pressure.closed
    return pressure


async def in_order(pressure: Backpressure, sizes: list[int], nursery: trio.Nursery) -> list[int]:
    """Let a session wait for each size; return the list that gets the numbers of those released."""
    gone: list[int] = []

    async def wait(number: int, size: int) -> None:
        await pressure.wait_turn(size)
        gone.append(number)

    for number, size in enumerate(sizes):
        nursery.start_soon(wait, number, size)
        await trio.testing.wait_all_tasks_blocked()
    return gone


@pytest.fixture
def calls_in_loop(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> trio.testing.MockClock:
    """Virtual time, and disk calls in the event loop: the clock would advance beside a thread."""

    async def run_sync(call: Callable[..., object], *arguments: object) -> object:
        await trio.lowlevel.checkpoint()
        return call(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    return autojump_clock


async def until(condition: Callable[[], bool]) -> None:
    """Wait, in virtual time, for something to be true."""
    with trio.fail_after(60):
        for _ in count():
            if condition():
                return
            await trio.sleep(0.001)


async def test_backpressure_lets_the_next_go_where_one_is_cancelled(pressure: Backpressure) -> None:
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0):
            await pressure.wait_turn(100)
        gone = await in_order(pressure, [100], nursery)
        pressure.freed(int(200 / GRANTED))
        await trio.testing.wait_all_tasks_blocked()
        assert gone == [0]
    assert pressure.waiting == 0


async def test_backpressure_ends_when_the_log_is_small_enough(
    log: CompactedLog, calls_in_loop: trio.testing.MockClock
) -> None:
    runtime = runtime_of(log)
    pressure = runtime.backpressure
    pressure.look()
    async with trio.open_nursery() as nursery:
        gone = await in_order(pressure, [10**9], nursery)
        nursery.start_soon(Compactor(runtime, nothing_to_archive).run)
        await until(lambda: bool(gone))
        nursery.cancel_scope.cancel()
    assert not pressure.closed
    assert log.writer.log_bytes < bytes_slowed(log.engine.store, log.writer)
    log.check()


async def test_backpressure_wakes_cleaning_at_once(
    log: CompactedLog, calls_in_loop: trio.testing.MockClock
) -> None:
    runtime = runtime_of(log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Compactor(runtime, nothing_to_archive).run)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        runtime.backpressure.look()
        await until(lambda: not runtime.backpressure.closed)
        assert trio.current_time() - began < 1
        nursery.cancel_scope.cancel()


async def test_backpressure_holds_nobody_where_cleaning_frees_nothing(
    log: CompactedLog, calls_in_loop: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = runtime_of(log)
    reader = lock_read(log.disk, LOG)
    async with trio.open_nursery() as nursery:
        runtime.backpressure.look()
        gone = await in_order(runtime.backpressure, [10**9], nursery)
        nursery.start_soon(Compactor(runtime, nothing_to_archive).run)
        await until(lambda: bool(gone))
        assert "event=writers-not-slowed" in caplog.text
        # they are slowed down again once the log has grown by much
        assert runtime.backpressure.look_at >= log.writer.appended + SEGMENT_BYTES
        reader.close()
        usual = bytes_usual(log.engine.store, log.writer)
        await until(lambda: log.writer.log_bytes <= usual)
        nursery.cancel_scope.cancel()


# --- the lag of a remote log ----------------------------------------------------------------------


class Lagging:
    """Backpressure of a small log whose remote log lags behind by as much as the test says."""

    def __init__(self, log: CompactedLog, *, compacts: bool = True) -> None:
        self.lag = 0
        self.pressure = Backpressure(
            log.engine, log.writer, compacts=compacts, lag=lambda: self.lag, lag_bytes_max=LAG_BYTES
        )


LAG_BYTES = 1600


@pytest.mark.parametrize("compacts", [True, False])
async def test_backpressure_bounds_the_lag_of_a_remote_log(
    compacts: bool, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    lagging = Lagging(CompactedLog(cmdlog_seg_size=SEGMENT_BYTES), compacts=compacts)
    pressure = lagging.pressure
    pressure.look()
    assert not pressure.closed
    assert pressure.look_at <= LAG_BYTES, "looked at before the lag can exceed its bound"
    lagging.lag = LAG_BYTES
    pressure.look()
    assert pressure.closed
    assert not pressure.needed, "compaction cannot help"
    assert f"lag_bytes={LAG_BYTES}" in caplog.text
    async with trio.open_nursery() as nursery:
        gone = await in_order(pressure, [100, 100, 100], nursery)
        pressure.freed(10**9)
        pressure.stop_slowing()
        await trio.testing.wait_all_tasks_blocked()
        assert gone == []
        lagging.lag = LAG_BYTES - 800
        pressure.look()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(gone) == [0, 1], "a quarter of the room is shared out"
        for _ in gone:
            pressure.turn_over(100)
        lagging.lag = 0
        pressure.look()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(gone) == [0, 1, 2]
        pressure.turn_over(100)
    pressure.look()
    assert not pressure.closed
    assert pressure.waited == 3


async def test_backpressure_by_lag_ends_with_the_daemon(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lagging = Lagging(CompactedLog(cmdlog_seg_size=SEGMENT_BYTES))
    lagging.lag = 10 * LAG_BYTES
    lagging.pressure.look()
    async with trio.open_nursery() as nursery:
        gone = await in_order(lagging.pressure, [100], nursery)
        assert gone == []
        lagging.pressure.end()
    assert gone == [0]


@pytest.mark.parametrize("segments", [1, 2])
async def test_backpressure_holds_writers_while_a_slow_sync_keeps_segments_from_being_sealed(
    calls_in_loop: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, segments: int
) -> None:
    log = CompactedLog(cmdlog_seg_size=SEGMENT_BYTES)
    # the clients append while the disk syncs: nothing is written, and so nothing sealed
    for _ in range(segments):
        appended_in_one_write(log)
    assert not log.writer.sealed
    assert log.writer.seals_next is (segments == 2)
    runtime = runtime_of(log)
    pressure = runtime.backpressure
    async with trio.open_nursery() as nursery:
        pressure.look()
        assert pressure.closed
        gone = await in_order(pressure, [10**9], nursery)
        nursery.start_soon(Compactor(runtime, nothing_to_archive).run)
        await until(lambda: bool(gone))
        assert "event=writers-not-slowed" not in caplog.text
        assert log.writer.log_bytes < bytes_slowed(log.engine.store, log.writer)
        nursery.cancel_scope.cancel()
    log.check()


def appended_in_one_write(log: CompactedLog) -> None:
    """Append values of one key, far more than a segment, in one write that is still to come."""
    log.writer.write()
    for at in range(log.clock.instant_us + 1, log.clock.instant_us + 801):
        log.engine.handle("session", request(Function.SET, b"a", b"v" * 200, flags=OVER, at=at), at)
    log.clock.instant_us += 801


async def test_backpressure_that_ends_before_a_session_waits_holds_it_not(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with Room(cmdlog_seg_size=SEGMENT_BYTES).open() as room:
        pressure = room.server.runtime.backpressure
        peer = await overgrow(room)
        wait_turn = pressure.wait_turn

        async def end_and_wait(size: int) -> None:
            pressure.end()
            await wait_turn(size)

        monkeypatch.setattr(pressure, "wait_turn", end_and_wait)
        room.clock.instant_us += 1
        write = request(Function.SET, b"a", LARGE, flags=OVER, at=room.clock.instant_us)
        assert (await peer.ask(write)).code == ""
        assert pressure.waiting == 0


LARGE = b"v" * 8000
GET = request(Function.GET, b"a", flags=Flag.DATA)


async def overgrow(room: Room) -> Peer:
    """Let a client write until writers have to wait."""
    pressure, peer = room.server.runtime.backpressure, room.connect_in_memory()
    for at in range(START, START + 30):
        if pressure.closed:
            break
        room.clock.instant_us = at
        await peer.ask(request(Function.SET, b"a", LARGE, flags=OVER, at=at))
    assert pressure.closed
    return peer


def test_backpressure_is_for_what_makes_the_log_grow() -> None:
    def one_grows(
        function: Function, timeout: int | None = None, value: bytes | None = None
    ) -> bool:
        kind = None if value is None else ValueType.STRING
        asked = Request(function, 1, key=b"k", timeout=timeout, value_type=kind, value=value or b"")
        return grows([asked], {b"standing": "entry"}.get)

    assert one_grows(Function.SET)
    assert one_grows(Function.NEXT)
    assert one_grows(Function.TOUCH)
    assert one_grows(Function.GET, timeout=1)
    assert not one_grows(Function.GET)
    for function in (Function.DELETE, Function.RELEASE, Function.NOP, Function.STATS):
        assert not one_grows(function), function
    assert not one_grows(Function.CANCEL)
    assert one_grows(Function.RELEASE, timeout=1, value=b"boom")
    assert not one_grows(Function.RELEASE, timeout=1)
    assert not one_grows(Function.DELETE, timeout=1, value=b"of no use")


def test_backpressure_is_for_deletes_that_only_leave_tombstones() -> None:
    def one_grows(key: bytes, flags: Flag, timeout: int | None = None) -> bool:
        asked = Request(Function.DELETE, 1, int(flags), key=key, timeout=timeout)
        return grows([asked], {b"standing": "entry"}.get)

    assert one_grows(b"missing", Flag.PERSIST)
    assert not one_grows(b"standing", Flag.PERSIST)
    assert not one_grows(b"missing", Flag(0))
    assert not one_grows(b"missing", Flag.PERSIST | Flag.OVERWRITE)
    assert not one_grows(b"missing", Flag.PERSIST | Flag.WORKED_ON, timeout=1)
