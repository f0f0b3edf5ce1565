"""Remote commit: chunks of the log in a store, replies that wait for them, lease, seal.

Time is trio's mock clock, and so is that of the store's requests; nothing runs in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal.cmdlog.format.layout import pack_position
from fastjournal.cmdlog.format.records import encode_time
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.errors import (
    FencedError,
    ForeignRemoteLogError,
    StoreRefusedError,
    StoreUnavailableError,
)
from fastjournal.remote.objects import Chunk, ChunkId, ChunkKind, chunk_name, encode_chunk
from fastjournal.remote.writer import RemoteAck
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.object_store import CruelStore, MemoryStore
from fastjournald.group_commit import remote_commit
from fastjournald.group_commit.commit import GroupCommit, SyncThread
from fastjournald.group_commit.remote_commit import (
    CHUNK_BYTES_FIRST,
    CHUNK_BYTES_MAX,
    CHUNK_SECONDS,
    HELD_BYTES_MAX,
    Backlog,
    RemoteCommit,
    Result,
)
from tests.property.subject import START
from tests.unit.server_fixture import LOG, new_primary, seal_epoch, stored_chunks

TIME = encode_time(0)
"""Begin of each record."""
REQUEST_SECONDS = 0.005
SYNC_SECONDS = 0.003


class TrioClock:
    def now_us(self) -> int:
        return START + boottime()


def boottime() -> int:
    return round(trio.current_time() * 1_000_000)


class Log:
    """A log on a simulated disk, which is stored chunk by chunk."""

    def __init__(
        self,
        *,
        ack: RemoteAck = RemoteAck.DURABLE,
        policy: SyncPolicy = SyncPolicy.ALWAYS,
        segment_bytes_max: int = 1 << 30,
        store: CruelStore | MemoryStore | None = None,
        interval_us: int = 0,
    ) -> None:
        self.disk = SimulatedDisk()
        self.disk.mkdir(LOG)
        self.writer = LogWriter(
            self.disk,
            LOG,
            segment_bytes_max=segment_bytes_max,
            sync=policy,
            active=None,
            sealed=[],
            segment_start=lambda _previous, _now: TIME + b"start",
        )
        self.commit = GroupCommit(self.writer, policy)
        self.cruel = store
        self.store = store.store if isinstance(store, CruelStore) else store or MemoryStore()
        self.away: Exception | None = None
        """Error of all requests."""
        self.seconds = REQUEST_SECONDS
        self.jumped_us = 0
        """By how much CLOCK_BOOTTIME has jumped."""
        self.began: list[float] = []
        """When each request of the store began."""
        self.under_way = self.under_way_max = 0
        self.told: list[str] = []
        primary = new_primary(self.store, self.writer, ack, self.boottime_us)
        primary.interval_us = interval_us
        primary.store = store or self.store
        self.remote = RemoteCommit(
            self.commit, primary, TrioClock(), boottime_us=self.boottime_us, call=self.call
        )

    def boottime_us(self) -> int:
        return boottime() + self.jumped_us

    async def call(self, call: Callable[[], Result]) -> Result:
        self.began.append(trio.current_time())
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        await trio.sleep(self.seconds)
        self.under_way -= 1
        if self.away is not None:
            raise self.away
        return call()

    def append(self, name: str, size: int = 0) -> None:
        self.writer.append(TIME + name.encode() + bytes(size), 1, 0)

    async def client(self, name: str) -> None:
        """Append, wait, and get OK."""
        self.append(name)
        mark = self.writer.appended
        await self.commit.wait_settled(mark)
        assert len(self.payload()) >= mark
        assert self.writer.committed >= mark
        self.told.append(name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        """Run it beside the block; the nursery ends with that."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.remote.run)
            yield nursery
            nursery.cancel_scope.cancel()

    async def run_to_error(self, error: type[Exception]) -> None:
        """Run to its end, which is an error."""
        with pytest.raises(ExceptionGroup) as raised:
            await self.remote.run()
        assert raised.group_contains(error)
        self.told.append(error.__name__)

    def payload(self) -> bytes:
        """What the store has of the log."""
        return b"".join(chunk.payload for chunk in stored_chunks(self.store))

    def files(self) -> bytes:
        return b"".join(self.disk.read(f"{LOG}/{n}") for n in sorted(self.disk.listdir(LOG)))


@pytest.fixture
def slow_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs run in the thread, which takes its time."""
    monkeypatch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", -1.0)

    async def run(_thread: SyncThread, call: Callable[[], object]) -> None:
        await trio.sleep(SYNC_SECONDS)
        call()

    monkeypatch.setattr(SyncThread, "run", run)


# --- W1, W4: one chunk for all who wait -----------------------------------------------------------


@pytest.mark.parametrize("policy", list(SyncPolicy))
async def test_remote_commit_is_one_write_one_sync_and_one_chunk_for_all_who_wait(
    policy: SyncPolicy, autojump_clock: MockClock
) -> None:
    log = Log(policy=policy)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as clients:
            for number in range(50):
                clients.start_soon(log.client, f"c{number}")
            nursery.start_soon(log.remote.run)
        assert len(log.told) == 50
        assert log.disk.calls["write"] == 1
        assert log.disk.calls["sync"] == (policy is SyncPolicy.ALWAYS)
        assert [len(chunk.payload) > 0 for chunk in stored_chunks(log.store)] == [False, True]
        assert log.payload() == log.files()
        assert log.remote.requests == {("create", "ok"): 1}
        assert log.remote.request_us.number == 1
        nursery.cancel_scope.cancel()


async def test_remote_commit_has_one_request_under_way_while_others_append(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    async with log.running():

        async def ask(name: str) -> None:
            for number in range(20):
                await log.client(f"{name}-{number}")
                await trio.sleep(0.0003 * (number % 7))

        async with trio.open_nursery() as clients:
            for number in range(10):
                clients.start_soon(ask, str(number))
        assert log.under_way_max == 1
        assert log.payload() == log.files()


async def test_chunk_waits_for_clients_that_were_just_answered_a_fifth_of_a_request(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    chunks: list[int] = []

    async def ask(delay: float) -> None:
        for _ in range(20):
            await log.client("x")
            await trio.sleep(delay)

    async with log.running():
        for late in (0.9, 1.1):
            before = len(log.began)
            async with trio.open_nursery() as clients:
                clients.start_soon(ask, 0)
                clients.start_soon(ask, late * REQUEST_SECONDS * remote_commit.GATHER_SHARE)
            chunks.append(len(log.began) - before)
    assert chunks[0] <= 21
    assert chunks[1] > 25, "they take turns"


async def test_shortest_time_between_chunks_is_kept(autojump_clock: MockClock) -> None:
    log = Log(interval_us=40_000)
    async with log.running():
        for _ in range(5):
            await log.client("x")
    assert len(log.began) == 5
    assert all(later - earlier > 0.0399 for earlier, later in pairwise(log.began))


@pytest.mark.usefixtures("slow_syncs")
async def test_local_sync_runs_while_the_chunk_is_on_its_way(autojump_clock: MockClock) -> None:
    log = Log()
    async with log.running():
        await log.client("first")
        for slower in (REQUEST_SECONDS, SYNC_SECONDS / 3):
            log.seconds = slower
            await trio.sleep(1)
            began = trio.current_time()
            await log.client("next")
            assert trio.current_time() - began == pytest.approx(max(slower, SYNC_SECONDS), rel=0.01)


async def test_much_that_is_appended_during_a_request_is_written_before_the_next_one(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    log.seconds = 1.0
    async with log.running() as nursery:
        nursery.start_soon(log.client, "first")
        await trio.sleep(0.1)
        for number in range(40):
            nursery.start_soon(log.client, f"{number}" + "x" * 100_000)
            await trio.testing.wait_all_tasks_blocked()
            buffered = log.writer.appended - log.writer.written
            assert buffered <= remote_commit.BUFFER_BYTES_MAX + 100_100
        assert log.writer.written > 3_000_000
        assert log.told == []
        await trio.sleep(20)
        assert len(log.told) == 41


# --- chunks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ack", list(RemoteAck))
async def test_chunk_has_whole_writes_of_one_segment(
    ack: RemoteAck, autojump_clock: MockClock
) -> None:
    log = Log(ack=ack, segment_bytes_max=2000, policy=SyncPolicy.OS)
    ends: set[int] = set()
    note = log.writer.on_write
    assert note is not None

    def note_too(segment: int, offset: int, data: bytes) -> None:
        ends.add(pack_position(segment, offset + len(data)))
        note(segment, offset, data)

    log.writer.on_write = note_too
    async with log.running() as nursery:
        for number in range(200):
            nursery.start_soon(
                log.client, f"{number}" + "x" * 50
            ) if ack is RemoteAck.DURABLE else (
                nursery.start_soon(log.commit.wait_settled, log.writer.appended)
            )
            log.append("y" * (number % 90))
            await trio.sleep(0.0007)
        await log.commit.write()
        await trio.sleep(1)
    at = 0
    chunks = [chunk for chunk in stored_chunks(log.store) if chunk.payload]
    assert {chunk.segment for chunk in chunks} == set(range(1, log.writer.next_number + 1))
    for chunk in chunks:
        assert chunk.offset == 0 or pack_position(chunk.segment, chunk.offset) == at
        at = chunk.end
        assert at in ends
    assert log.payload() == log.files()
    assert at == log.remote.stored_position
    assert log.remote.lag_bytes == 0


async def test_backlog_of_a_store_that_was_away_takes_bounded_memory(
    autojump_clock: MockClock,
) -> None:
    log = Log(ack=RemoteAck.ASYNC, policy=SyncPolicy.OS)
    log.away = StoreUnavailableError("away")
    write_bytes = [90_000] * 300 + [CHUNK_BYTES_MAX + 7] + [30] * 3000
    async with log.running():
        for number, size in enumerate(write_bytes):
            log.append(f"{number:06d}", size)
            await log.commit.wait_settled(log.writer.appended)
        held = [write.data for write in log.remote._backlog._writes if write.data is not None]
        assert HELD_BYTES_MAX * 0.9 < sum(map(len, held)) <= HELD_BYTES_MAX
        assert len(log.remote._backlog._writes) < len(held) + 50
        assert log.remote.lag_bytes == log.writer.appended > 4 * HELD_BYTES_MAX
        await trio.sleep(2)
        assert log.remote.lag_us >= 2_000_000
        assert len(stored_chunks(log.store)) == 1
        log.away = None
        await trio.sleep(10)
    assert log.payload() == log.files()
    assert log.remote.lag_bytes == log.remote.lag_us == 0
    ends = set(accumulate(len(TIME) + 6 + size for size in write_bytes))
    start = log.writer.appended - max(ends)
    sizes = [len(chunk.payload) for chunk in stored_chunks(log.store)]
    assert {size - start for size in accumulate(sizes[2:], initial=sizes[1])} <= ends
    assert sorted(sizes)[-2] <= CHUNK_BYTES_MAX < sorted(sizes)[-1]


async def test_chunks_are_small_while_the_store_is_slow(autojump_clock: MockClock) -> None:
    log = Log(ack=RemoteAck.ASYNC, policy=SyncPolicy.OS)
    for _ in range(400):
        log.append("x" * 50_000)
        log.writer.write()
    per_byte = CHUNK_SECONDS / (3 * CHUNK_BYTES_FIRST)

    async def call(call: Callable[[], Result]) -> Result:
        data = getattr(call, "args", [None, None])[-1]
        await trio.sleep(per_byte * len(getattr(data, "data", b"")))
        return call()

    log.remote._call = call
    async with log.running():
        await trio.sleep(60)
    assert log.payload() == log.files()
    sizes = [len(chunk.payload) for chunk in stored_chunks(log.store)]
    assert 2 * CHUNK_BYTES_FIRST < max(sizes) <= 4 * CHUNK_BYTES_FIRST
    assert max(sizes) * per_byte < 2.5 * CHUNK_SECONDS


def test_backlog_takes_as_much_as_it_is_asked_for_and_at_least_one_write() -> None:
    backlog = Backlog()
    for segment, size in ((1, 5), (1, 5), (1, 50), (2, 5), (2, 5)):
        backlog.add(segment, 0, bytes(size), 0)
    taken = [[write.size for write in backlog.take(10)] for _ in range(4)]
    assert taken == [[5, 5], [50], [5, 5], []]
    assert backlog.bytes == backlog._held == 0
    for segment, size in ((1, 5), (1, 6), (2, 5)):
        backlog.add(segment, 0, bytes(size), 0)
    taken = [[write.size for write in backlog.take(100)] for _ in range(2)]
    assert taken == [[5, 6], [5]], "a chunk has bytes of one segment"


async def test_bytes_that_nobody_has_stored_end_the_writer(autojump_clock: MockClock) -> None:
    log = Log()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run_to_error, RuntimeError)
        await log.client("x")
        log.remote.primary.chunks.stored -= 1
        log.append("y")
        await trio.sleep(10)
        assert log.told == ["x", "RuntimeError"]
    assert log.payload() == log.files()[: log.remote.stored]
    with pytest.raises(RuntimeError, match="not stored"):
        RemoteCommit(log.commit, log.remote.primary, TrioClock(), boottime_us=log.boottime_us)


# --- W3: a failed request says nothing ------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_create_that_failed_is_repeated_as_it_is(
    seed: int, autojump_clock: MockClock
) -> None:
    store = CruelStore(seed)
    log = Log(store=store, segment_bytes_max=500)
    store.failures = 0.5
    async with log.running():

        async def ask(name: str) -> None:
            for number in range(12):
                await log.client(f"{name}-{number}")

        async with trio.open_nursery() as clients:
            for number in range(6):
                clients.start_soon(ask, str(number))
        assert log.under_way_max == 1
        assert log.payload() == log.files()
        assert log.remote.requests["create", "unavailable"]
        assert log.remote.requests["create", "ok"]


@pytest.mark.parametrize("error", [StoreUnavailableError, StoreRefusedError])
async def test_store_that_is_away_is_told_once_and_when_it_is_back(
    error: type[Exception], caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.WARNING, "fastjournald")
    log = Log()
    log.away = error("the store is away")
    async with log.running() as nursery:
        nursery.start_soon(log.client, "x")
        await trio.sleep(10)
        assert log.told == []
        log.away = None
        await trio.sleep(2)
        assert log.told == ["x"]
    events = [getattr(line.msg, "fields", {}).get("event") for line in caplog.records]
    assert events == ["store-fails", "store-answers"]
    result = "refused" if error is StoreRefusedError else "unavailable"
    assert log.remote.requests["create", result] > 5


# --- W5: beat and lease ---------------------------------------------------------------------------


async def test_idle_writer_stores_an_empty_chunk_each_beat(autojump_clock: MockClock) -> None:
    log = Log()
    async with log.running():
        await trio.sleep(12)
        await log.client("x")
        await trio.sleep(12)
    empty = [not chunk.payload for chunk in stored_chunks(log.store)]
    assert empty == [True, True, True, False, True, True]
    beats = [later - earlier for earlier, later in pairwise(log.began)]
    assert max(beats) == pytest.approx(5, abs=0.001)


async def test_records_that_nobody_waits_for_are_stored_with_the_next_beat(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    async with log.running():
        await trio.sleep(1)
        log.append("x")
        await trio.sleep(5)
        assert log.remote.lag_bytes == 0
        assert log.payload() == log.files() != b""


@pytest.mark.parametrize("ack", list(RemoteAck))
async def test_lease_that_ends_withholds_everything_until_the_next_chunk_is_stored(
    ack: RemoteAck, autojump_clock: MockClock
) -> None:
    log = Log(ack=ack)
    settled: list[int] = []
    log.remote.on_settled = lambda: settled.append(log.writer.settled)
    async with log.running() as nursery:
        await log.client("x") if ack is RemoteAck.DURABLE else await trio.sleep(6)
        sent = log.began[-1]
        log.away = StoreUnavailableError("away")
        await trio.sleep_until(sent + 14.9)
        assert log.commit.releasable() == log.writer.settled == log.writer.appended
        await trio.sleep_until(sent + 15.1)
        assert log.commit.releasable() == -1
        before = len(settled)
        nursery.start_soon(log.commit.wait_settled, 0)
        log.away = None
        await trio.sleep(2)
        assert log.commit.releasable() == log.writer.settled == log.writer.appended
        assert settled[before:]
        assert all(position == log.writer.appended for position in settled[before:])


@pytest.mark.parametrize("ack", list(RemoteAck))
async def test_process_that_was_frozen_answers_nothing_before_the_next_stored_chunk(
    ack: RemoteAck, autojump_clock: MockClock
) -> None:
    log = Log(ack=ack)
    async with log.running():
        await trio.sleep(1)
        log.jumped_us += 20_000_000
        assert log.commit.releasable() == -1
        requests = len(log.began)
        # at once, not with the beat by a clock that stood still
        await trio.sleep(REQUEST_SECONDS / 2)
        assert len(log.began) == requests + 1
        assert log.writer.settled == -1
        await trio.sleep(REQUEST_SECONDS)
        assert log.commit.releasable() == log.writer.appended


async def test_lease_counts_from_when_the_chunk_was_sent_first(autojump_clock: MockClock) -> None:
    log = Log()
    async with log.running() as nursery:
        log.seconds = 16
        nursery.start_soon(log.client, "x")
        await trio.sleep(17)
        assert log.writer.settled == -1, "stored, but sent too long ago"
        log.seconds = REQUEST_SECONDS
        await trio.sleep(17)
        assert log.told == ["x"]


# --- W2, T3: fenced, sealed -----------------------------------------------------------------------


@pytest.mark.parametrize("ack", list(RemoteAck))
async def test_fenced_writer_settles_nothing_more_and_ends(
    ack: RemoteAck, autojump_clock: MockClock
) -> None:
    log = Log(ack=ack)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run_to_error, FencedError)
        await trio.sleep(1)
        seal_epoch(log.store)
        if ack is RemoteAck.DURABLE:
            nursery.start_soon(log.client, "x")
        await trio.sleep(10)
        assert log.told == ["FencedError"]
        nursery.cancel_scope.cancel()
    assert log.remote.fenced
    assert log.writer.settled == log.commit.releasable() == -1


async def test_chunk_of_another_writer_in_the_own_epoch_ends_the_writer(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    at = ChunkId(1, 1)
    foreign = Chunk(at, ChunkKind.DATA, b"f" * 16, START)
    log.store.objects[chunk_name(at)] = encode_chunk(foreign)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run_to_error, ForeignRemoteLogError)
        nursery.start_soon(log.client, "x")
        await trio.sleep(10)
        assert log.told == ["ForeignRemoteLogError"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ack", list(RemoteAck))
async def test_end_in_good_order_stores_the_rest_and_seals(
    ack: RemoteAck, autojump_clock: MockClock
) -> None:
    log = Log(ack=ack)
    at_seal: list[bytes] = []
    log.remote.before_seal = lambda: at_seal.append(log.payload())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.remote.run)
        await trio.sleep(1)
        log.append("x")
        assert await log.remote.finish(5)
    assert log.payload() == log.files() != b""
    assert at_seal == [log.files()]
    assert stored_chunks(log.store)[-1].is_seal
    assert trio.current_time() < 1.1


async def test_end_does_not_wait_longer_than_it_is_given_for_a_store_that_is_away(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.remote.run)
        await trio.sleep(1)
        log.away = StoreUnavailableError("away")
        log.append("x")
        assert not await log.remote.finish(5)
    assert trio.current_time() == pytest.approx(6, abs=0.01)
    assert not any(chunk.is_seal for chunk in stored_chunks(log.store))
    assert log.writer.settled == -1


# --- C1: the cut of a checkpoint ------------------------------------------------------------------


@pytest.mark.usefixtures("slow_syncs")
async def test_cut_is_behind_the_last_chunk_of_the_segments_before_it(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    async with log.running() as nursery:
        await log.client("x")
        log.append("unwritten")
        sealed = await log.commit.roll()
        end = pack_position(sealed[-1].number, sealed[-1].bytes)
        log.remote.cut(end)
        nursery.start_soon(log.client, "behind")
        behind, time_us = await log.remote.cut_at()
        await trio.sleep(1)
    chunks = stored_chunks(log.store)
    before = [chunk for chunk in chunks if chunk.id <= behind]
    assert b"".join(chunk.payload for chunk in before) == log.disk.read(f"{LOG}/{sealed[-1].name}")
    assert before[-1].end == end
    assert before[-1].time_us == time_us
    assert [chunk.segment for chunk in chunks if chunk.id > behind] == [2]


@pytest.mark.usefixtures("slow_syncs")
async def test_segment_that_a_compaction_wrote_is_stored_while_nobody_waits(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    async with log.running():
        await trio.sleep(1)
        log.append("copied")
        await log.commit.wait_durable(log.writer.appended)
        assert log.remote.lag_bytes, "durable here is enough for compaction"
        await trio.sleep(0.1)
        assert log.remote.lag_bytes == 0
