"""Group commit: one write and one sync for all who wait, and slow syncs in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from fastjournal.cmdlog.format.records import encode_time
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.errors import LogFailedError
from fastjournal.testing.disk import SimulatedDisk, SimulatedFile
from fastjournald.group_commit.commit import WRITE_BYTES_MIN, GroupCommit, SyncThread

LOG = "/log"
TIME = encode_time(0)
"""Begin of each record."""
SILENCE_S = 60
LOGS: list[Log] = []
"""Those of the running test."""


@pytest.fixture(autouse=True)
def end_threads() -> Iterator[None]:
    """End the threads that syncs ran in."""
    yield
    while LOGS:
        LOGS.pop().commit.close()


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
            segment_start=lambda _previous, _now: TIME + b"start",
        )
        self.commit = GroupCommit(self.writer, policy)
        self.told: list[str] = []
        LOGS.append(self)

    @property
    def syncs(self) -> int:
        return self.disk.calls["sync"]

    async def client(self, name: str) -> None:
        """Append, wait, and get OK or not."""
        self.writer.append(TIME + name.encode(), 1, 0)
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


async def test_commit_is_one_write_and_one_sync_for_all_who_wait() -> None:
    log = Log()
    await log.clients(50)
    assert sorted(log.told) == sorted(f"c{number} OK" for number in range(50))
    assert log.disk.calls["write"] == 1
    assert log.syncs == 1


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.OS])
async def test_commit_of_other_policies_waits_for_the_write_only(policy: SyncPolicy) -> None:
    log = Log(policy)
    await log.clients(5)
    assert all(answer.endswith("OK") for answer in log.told)
    assert log.disk.calls["write"] == 1
    assert log.syncs == 0
    assert log.writer.dirty


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


async def test_exclusive_waits_for_one_leader_however_many_clients_wait_again_at_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    VirtualSyncs(monkeypatch)
    log = Log()
    syncs_meanwhile: list[int] = []
    syncs = 0
    sync_in_thread = log.commit._sync_in_thread

    async def counted(*, writable: bool) -> float:
        nonlocal syncs
        syncs += 1
        return await sync_in_thread(writable=writable)

    monkeypatch.setattr(log.commit, "_sync_in_thread", counted)

    async def client() -> None:
        while True:
            await log.client("c")

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(client)
        for number in range(20):
            # at any phase of a sync
            await trio.sleep(0.007 + number / 5000)
            before = syncs
            with trio.fail_after(1):
                async with log.commit.exclusive():
                    syncs_meanwhile.append(syncs - before)
            await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    assert max(syncs_meanwhile) <= 1
    assert len(log.told) > 1000


async def test_claimant_of_the_log_that_is_cancelled_holds_up_nobody() -> None:
    log = Log()
    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(3)]
        inside: list[int] = []

        async def claim(number: int) -> None:
            with scopes[number]:
                async with log.commit.exclusive():
                    inside.append(number)
                    await trio.lowlevel.checkpoint()

        async with log.commit.exclusive():
            for number in range(3):
                nursery.start_soon(claim, number)
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(log.client, "a")
            await trio.testing.wait_all_tasks_blocked()
            # one that still waits, and one that has been handed the lead by then
            scopes[1].cancel()
            await trio.testing.wait_all_tasks_blocked()
        scopes[0].cancel()
    assert inside == [0, 2]
    assert log.told == ["a OK"]


# --- slow disks ---------------------------------------------------------------------------------


class SlowDisk:
    """Makes the commit believe that syncs take so long, and tells where they ran."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.in_thread: list[bool] = []
        self.during_sync: Callable[[], object] = lambda: None
        self._now = 0.0
        self._sync = SimulatedFile.sync
        self._main = threading.get_ident()
        # a function: a bound method in a class would not be given the file
        monkeypatch.setattr(SimulatedFile, "sync", lambda file, slowly=self.sync: slowly(file))
        monkeypatch.setattr("fastjournald.group_commit.commit.perf_counter", lambda: self._now)

    def sync(self, file: SimulatedFile) -> None:
        self.in_thread.append(threading.get_ident() != self._main)
        self._now += self.seconds
        self.during_sync()
        self._sync(file)


class HeldDisk(SlowDisk):
    """A slow disk whose syncs end when the test says so."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(log, monkeypatch)
        self._begun, self._goes_on = threading.Event(), threading.Event()

    async def wait_slow(self, log: Log) -> None:
        """Let the commit find out; from then on syncs are held."""
        self.seconds = 1.0
        while not (self.in_thread and self.in_thread[-1]):
            await log.client("first")
        log.told.clear()
        self.during_sync = self._hold

    async def wait_begun(self) -> None:
        assert await trio.to_thread.run_sync(self._begun.wait, SILENCE_S)

    def go_on(self) -> None:
        self._goes_on.set()

    def _hold(self) -> None:
        self._begun.set()
        assert self._goes_on.wait(SILENCE_S)


async def on_slow_disk(monkeypatch: pytest.MonkeyPatch) -> tuple[Log, HeldDisk]:
    """Return a log whose syncs run in the thread, and the disk that holds them."""
    log = Log()
    slow = HeldDisk(log, monkeypatch)
    await slow.wait_slow(log)
    return log, slow


async def test_next_batch_gathers_while_a_thread_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    log, slow = await on_slow_disk(monkeypatch)
    before = log.syncs
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.client, "alone")
        await slow.wait_begun()
        nursery.start_soon(log.clients, 30)
        await trio.testing.wait_all_tasks_blocked()
        told = list(log.told)
        slow.go_on()
    assert told == [], "told OK before the sync has ended"
    assert len(log.told) == 31
    assert log.syncs == before + 2


async def test_large_batch_is_written_while_a_thread_syncs_and_made_durable_by_the_next_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, slow = await on_slow_disk(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.client, "alone")
        await slow.wait_begun()
        synced = log.writer.written
        nursery.start_soon(log.client, "x" * (WRITE_BYTES_MIN - 2 - 2 * len(TIME)))
        await trio.testing.wait_all_tasks_blocked()
        assert log.writer.written == synced, "few bytes wait for the next write"
        nursery.start_soon(log.client, "yy")
        await trio.testing.wait_all_tasks_blocked()
        assert log.writer.written == log.writer.appended == synced + WRITE_BYTES_MIN
        slow.during_sync = lambda: None
        marks: list[int] = []
        sync = log.writer._count_durable
        monkeypatch.setattr(
            log.writer, "_count_durable", lambda *given: (marks.append(given[0]), sync(*given))
        )
        slow.go_on()
    assert marks == [synced, synced + WRITE_BYTES_MIN]
    assert all(answer.endswith("OK") for answer in log.told)
    assert len(log.told) == 3


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.OS])
async def test_replies_that_need_a_write_only_do_not_wait_for_a_sync_in_the_thread(
    policy: SyncPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(policy)
    slow = HeldDisk(log, monkeypatch)
    slow.during_sync = slow._hold
    async with trio.open_nursery() as nursery:
        await log.client("written")
        nursery.start_soon(log.commit.wait_durable, log.writer.appended)
        await slow.wait_begun()
        writes = log.disk.calls["write"]
        await log.clients(20)
        assert len(log.told) == 21
        assert log.disk.calls["write"] == writes + 1
        assert log.writer.durable == 0
        slow.go_on()
    assert 0 < log.writer.durable < log.writer.written


async def test_failure_in_the_thread_reaches_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    log, slow = await on_slow_disk(monkeypatch)
    slow.during_sync = lambda: None
    log.disk.fail_at(1, "sync")
    await log.clients(10)
    assert sorted(log.told) == sorted(f"c{number} failed" for number in range(10))
    assert slow.in_thread[-1]


async def test_write_that_fails_while_a_thread_syncs_fails_all_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, slow = await on_slow_disk(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.client, "alone")
        await slow.wait_begun()
        log.disk.fail_at(1, "write")
        nursery.start_soon(log.client, "x" * WRITE_BYTES_MIN)
        await trio.testing.wait_all_tasks_blocked()
        slow.go_on()
    assert len(log.told) == 2
    assert all(answer.endswith("failed") for answer in log.told)


class VirtualSyncs:
    """Syncs in the thread take 5 ms of trio's mock clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", -1.0)
        monkeypatch.setattr("fastjournald.group_commit.commit.perf_counter", trio.current_time)

        async def run(_thread: SyncThread, call: Callable[[], object]) -> None:
            await trio.sleep(0.005)
            call()

        monkeypatch.setattr(SyncThread, "run", run)


async def test_gathering_ends_after_a_part_of_a_sync_where_clients_stay_away(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    VirtualSyncs(monkeypatch)
    log = Log()
    log.commit.estimate.mean_seconds = 0.004
    await log.clients(50)
    started = trio.current_time()
    for _ in range(10):
        await log.client("one")
    assert trio.current_time() - started < 10 * 0.0051


# --- the policy interval ------------------------------------------------------------------------


async def test_interval_is_synced_once_and_only_if_something_was_written(
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


async def test_failed_interval_sync_ends_the_daemon(autojump_clock: trio.testing.MockClock) -> None:
    log = Log(SyncPolicy.INTERVAL)
    await log.client("a")
    log.disk.fail_at(1, "sync")
    with pytest.raises(LogFailedError):
        await log.commit.sync_every(1.0)
    with pytest.raises(LogFailedError):
        await log.client("b")
