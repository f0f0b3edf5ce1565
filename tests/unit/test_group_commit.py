from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.errors import LogFailedError
from fastjournal.testing.disk import SimulatedDisk
from tests.door.daemon import INLINE_SECONDS_MAX, GroupCommit
from tests.door.places import patch_module

LOG = "/log"


class Log:
    """A commit over a writer on a simulated disk."""

    def __init__(self, policy: SyncPolicy = SyncPolicy.ALWAYS) -> None:
        self.disk = SimulatedDisk()
        self.disk.mkdir(LOG)
        self.writer = LogWriter(
            self.disk,
            LOG,
            segment_bytes_max=1 << 20,
            sync=policy,
            active=None,
            sealed=[],
            segment_start=lambda _previous, _now: b"start",
        )
        self.commit = GroupCommit(self.writer, policy)
        self.told: list[str] = []

    @property
    def syncs(self) -> int:
        return self.disk.calls["sync"]

    async def client(self, name: str) -> None:
        """Append, wait, and be told OK or not."""
        self.writer.append(name.encode(), 1, 0)
        mark = self.writer.appended
        try:
            await self.commit.wait_settled(mark)
        except LogFailedError:
            self.told.append(f"{name} failed")
        else:
            assert self.writer.settled >= mark
            self.told.append(f"{name} OK")

    async def clients(self, count: int) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(self.client, f"c{number}")


@pytest.mark.rule("Durability: `always`")
async def test_all_who_wait_share_one_write_and_one_sync() -> None:
    log = Log()
    await log.clients(50)
    assert sorted(log.told) == sorted(f"c{number} OK" for number in range(50))
    assert log.disk.calls["write"] == 1
    assert log.syncs == 1


async def test_commit_of_a_settled_mark_costs_nothing() -> None:
    log = Log()
    await log.client("a")
    before = log.disk.calls.total()
    await log.commit.wait_settled(log.writer.appended)
    assert log.disk.calls.total() == before


@pytest.mark.parametrize("call", ["write", "sync", "create", "sync_directory"])
async def test_failure_reaches_all_who_wait_and_nobody_is_told_ok(call: str) -> None:
    log = Log()
    log.disk.fail_at(1, call)
    await log.clients(20)
    assert sorted(log.told) == sorted(f"c{number} failed" for number in range(20))
    for later in (log.commit.wait_settled(log.writer.appended), log.client("late")):
        with pytest.raises(LogFailedError):
            await later


@pytest.mark.rule("Durability: `os`")
@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.OS])
async def test_other_policies_wait_for_the_write_only(policy: SyncPolicy) -> None:
    log = Log(policy)
    await log.clients(5)
    assert all(answer.endswith("OK") for answer in log.told)
    assert log.disk.calls["write"] == 1
    assert log.syncs == 0
    assert log.writer.dirty


async def test_cancelled_leader_leaves_the_lead_to_another() -> None:
    log = Log()
    async with trio.open_nursery() as nursery:
        leader = trio.CancelScope()

        async def lead() -> None:
            with leader:
                await log.client("leader")

        nursery.start_soon(lead)
        nursery.start_soon(log.clients, 5)
        leader.cancel()
    assert sorted(log.told) == sorted(f"c{number} OK" for number in range(5))


async def test_waiter_that_is_cancelled_holds_up_nobody() -> None:
    log = Log()
    async with log.commit.exclusive():
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.client, "gone")
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
    await log.client("stays")
    assert log.told == ["stays OK"]


async def test_nobody_writes_while_somebody_has_the_log_to_himself() -> None:
    log = Log()
    async with trio.open_nursery() as nursery, log.commit.exclusive():
        nursery.start_soon(log.clients, 3)
        await trio.testing.wait_all_tasks_blocked()
        assert log.disk.calls["write"] == 0
        assert log.told == []
    assert len(log.told) == 3
    assert log.syncs == 1


async def test_two_who_want_the_log_to_themselves_take_turns() -> None:
    log = Log()
    inside = 0
    turns = 0

    async def roll() -> None:
        nonlocal inside, turns
        async with log.commit.exclusive():
            inside += 1
            assert inside == 1
            await trio.lowlevel.checkpoint()
            inside -= 1
            turns += 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(roll)
            nursery.start_soon(log.clients, 2)
    assert turns == 10
    assert len(log.told) == 20


async def test_error_inside_the_exclusive_part_gives_the_log_back() -> None:
    log = Log()
    with pytest.raises(KeyError):
        async with log.commit.exclusive():
            raise KeyError
    await log.client("a")
    assert log.told == ["a OK"]


# --- slow disks ---------------------------------------------------------------------------------


class SlowDisk:
    """Makes the commit believe that syncs take so long, and tells where they ran."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.in_thread: list[bool] = []
        self.during_sync: Callable[[], object] = lambda: None
        self._now = 0.0
        self._sync = log.writer.sync
        self._main = threading.get_ident()
        monkeypatch.setattr(log.writer, "sync", self.sync)
        patch_module(monkeypatch, "commit.perf_counter", lambda: self._now)

    def sync(self) -> None:
        self.in_thread.append(threading.get_ident() != self._main)
        self._now += self.seconds
        self.during_sync()
        self._sync()


async def test_slow_disk_is_synced_in_a_thread_and_a_fast_one_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    slow = SlowDisk(log, monkeypatch)
    slow.seconds = INLINE_SECONDS_MAX / 10
    for _ in range(20):
        await log.client("fast")
    assert not any(slow.in_thread)
    slow.seconds = INLINE_SECONDS_MAX * 5
    for _ in range(10):
        await log.client("slow")
    assert slow.in_thread[-1]
    slow.seconds = 0
    for _ in range(40):
        await log.client("fast again")
    assert not slow.in_thread[-1]
    assert all(answer.endswith("OK") for answer in log.told)


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.OS])
async def test_full_segment_is_synced_in_a_thread_before_it_is_sealed(
    policy: SyncPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(policy)
    slow = SlowDisk(log, monkeypatch)
    await log.client("x" * (1 << 20))
    assert slow.in_thread == []
    await log.client("in the next segment")
    assert slow.in_thread == [True]
    assert len(log.writer.sealed) == 1
    assert log.writer.durable == log.writer.sealed[0].bytes


async def test_roll_syncs_in_a_thread_and_tells_what_is_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(SyncPolicy.OS)
    slow = SlowDisk(log, monkeypatch)
    await log.client("a")
    sealed = await log.commit.roll()
    assert slow.in_thread == [True]
    assert sealed == log.writer.sealed
    assert log.writer.durable == log.writer.appended == sealed[0].bytes
    assert await log.commit.roll() == sealed, "there is nothing new to seal"


async def test_one_slow_sync_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    slow = SlowDisk(log, monkeypatch)
    slow.seconds = INLINE_SECONDS_MAX * 9
    await log.client("slow")
    slow.seconds = 0
    await log.client("fast")
    assert slow.in_thread == [False, False]


async def test_next_batch_gathers_while_a_thread_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    slow = SlowDisk(log, monkeypatch)
    slow.seconds = 1.0
    await log.client("first")
    begun, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert goes_on.wait(60)

    slow.during_sync = hold
    before = log.syncs
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.client, "alone")
        assert await trio.to_thread.run_sync(begun.wait, 60)
        nursery.start_soon(log.clients, 30)
        await trio.testing.wait_all_tasks_blocked()
        told = list(log.told)
        goes_on.set()
    assert told == ["first OK"], "told OK before the sync has ended"
    assert slow.in_thread == [False, True, True]
    assert len(log.told) == 32
    assert log.syncs == before + 2


async def test_failure_in_the_thread_reaches_all_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    slow = SlowDisk(log, monkeypatch)
    slow.seconds = 1.0
    await log.client("first")
    log.disk.fail_at(1, "sync")
    await log.clients(10)
    assert sorted(log.told[1:]) == sorted(f"c{number} failed" for number in range(10))
    assert slow.in_thread == [False, True]


# --- the policy interval ------------------------------------------------------------------------


@pytest.mark.rule("Durability: `interval`")
async def test_each_interval_is_synced_once_and_only_if_something_was_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = Log(SyncPolicy.INTERVAL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.commit.sync_every, 1.0)
        await trio.sleep(2.5)
        assert log.syncs == 0
        await log.clients(3)
        assert log.writer.dirty
        await trio.sleep(1)
        assert not log.writer.dirty
        assert log.syncs == 1
        await trio.sleep(10)
        assert log.syncs == 1
        nursery.cancel_scope.cancel()


async def test_failed_interval_sync_ends_the_daemon(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = Log(SyncPolicy.INTERVAL)
    await log.client("a")
    log.disk.fail_at(1, "sync")
    with pytest.raises(LogFailedError):
        await log.commit.sync_every(1.0)
    with pytest.raises(LogFailedError):
        await log.client("b")
