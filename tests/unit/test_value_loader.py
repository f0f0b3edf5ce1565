"""Values that are read from the disk for the requests of a server in this process."""

from __future__ import annotations

import errno
import threading

import pytest
import trio

from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Request
from fastjournald.engine.value_memory import evict_values, fill_value
from fastjournald.tables.entry import Cold
from fastjournald.tasks.value_loader import Evictor
from tests.property.subject import request
from tests.unit.server_fixture import SILENCE_S, ServerFixture

LONG = b"a value that may leave memory " * 10
NOP = request(Function.NOP)


def set_(key: bytes) -> Request:
    return request(Function.SET, key, LONG, flags=Flag.PERSIST)


def get(key: bytes) -> Request:
    return request(Function.GET, key, flags=Flag.DATA)


def is_cold(fixture: ServerFixture, key: bytes) -> bool:
    entry = fixture.engine.store.find(key)
    assert entry is not None
    return isinstance(entry.value, Cold)


class HeldRead:
    """Holds the reads of values, in their threads, until the test lets them go on."""

    def __init__(self, fixture: ServerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun, self._goes_on = threading.Semaphore(0), threading.Semaphore(0)
        self._read_slice = fixture.disk.read_slice
        monkeypatch.setattr(fixture.disk, "read_slice", self.read_slice)

    def read_slice(self, path: str, offset: int, size: int) -> bytes:
        self._begun.release()
        assert self._goes_on.acquire(timeout=SILENCE_S)
        return self._read_slice(path, offset, size)

    async def wait_begun(self) -> None:
        assert await trio.to_thread.run_sync(lambda: self._begun.acquire(timeout=SILENCE_S))

    def go_on(self, number: int = 1) -> None:
        self._goes_on.release(number)


def get_all(first: bytes, last: bytes) -> Request:
    flags = Query.RANGE << QUERY_SHIFT | Flag.DATA
    return request(Function.GET, first, uri=last, flags=flags)


@pytest.mark.parametrize("policy", ["os", "interval", "always"])
async def test_values_leave_memory_where_nothing_else_makes_them_durable(policy: str) -> None:
    fixture = ServerFixture(memory_limit=1, cmdlog_sync=policy, cmdlog_sync_int=3_600_000)
    async with fixture.open():
        peer = await fixture.connect()
        assert (await peer.ask(set_(b"key"))).code == ""
        with trio.fail_after(SILENCE_S):
            while not is_cold(fixture, b"key"):  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.01)
        pairs = (await peer.ask(get(b"key"))).pairs
        assert pairs
        assert pairs[0].value == LONG


async def test_read_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.server.STOP_SECONDS_MAX", 0.0)
    fixture = ServerFixture(memory_limit=1)
    with trio.fail_after(SILENCE_S / 2):
        async with fixture.open():
            peer = await fixture.connect()
            assert (await peer.ask(set_(b"key"), NOP)).code == ""
            assert is_cold(fixture, b"key")
            held = HeldRead(fixture, monkeypatch)
            await peer.send(get(b"key"))
            await held.wait_begun()
    held.go_on()


async def test_record_that_is_gone_with_its_entry_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ServerFixture(memory_limit=1).open() as fixture:
        peer, other = await fixture.connect(), await fixture.connect()
        assert (await peer.ask(set_(b"key"), NOP)).code == ""
        held = HeldRead(fixture, monkeypatch)
        await peer.send(get(b"key"))
        await held.wait_begun()
        assert (await other.ask(request(Function.DELETE, b"key"))).code == ""
        # as if cleaning had removed the segment meanwhile
        fixture.disk.fail_at(1, "read_slice")
        held.go_on()
        # of the NOP
        assert (await peer.reply()) is not None
        assert (await peer.reply()).code == "not-found"
        assert fixture.server.runtime.counters.values_unreadable == 0


async def test_workers_who_want_the_same_jobs_read_each_value_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = 10
    fixture = ServerFixture(memory_limit=1)
    values = fixture.engine.store.values
    values.kept_bytes = 3 * workers * len(LONG)
    async with fixture.open():
        peer = await fixture.connect()
        for number in range(3 * workers):
            # in memory for as long as the limit has room for it
            assert (await peer.ask(set_(b"a:1:0:%02d" % number))).code == ""
        values.kept_bytes = 0
        fixture.server.evictor.evict()
        values.kept_bytes = 3 * workers * len(LONG)
        assert values.cold == 3 * workers
        held = HeldRead(fixture, monkeypatch)
        others = [await fixture.connect() for _ in range(workers)]
        asked = request(Function.NEXT, b"a", flags=Flag.DATA)
        for other in others:
            await other.send(asked)
        await held.wait_begun()
        held.go_on(10_000)
        keys = []
        for left in (2, 1, 0):
            for other in others:
                reply = await other.reply()
                assert reply.pairs
                keys.append(reply.pairs[0].key)
                if left:
                    await other.send(asked)
        assert len(set(keys)) == 3 * workers
        assert fixture.server.runtime.counters.values_read == 3 * workers


async def test_single_flight_reads_once_what_several_requests_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ServerFixture(memory_limit=1).open() as fixture:
        peers = [await fixture.connect() for _ in range(3)]
        assert (await peers[0].ask(set_(b"key"), NOP)).code == ""
        await peers[0].reply()
        assert is_cold(fixture, b"key")
        values = fixture.engine.store.values
        values.kept_bytes = len(LONG)
        held = HeldRead(fixture, monkeypatch)
        for peer in peers:
            await peer.send(get(b"key"))
        await held.wait_begun()
        with trio.fail_after(SILENCE_S):
            while fixture.engine.context.fetching < len(peers):  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.01)
        held.go_on(10)
        for peer in peers:
            assert (await peer.reply()).pairs
        assert fixture.disk.calls["read_slice"] == 1


class LateTurn:
    """Comes when others have had so many requests that all values have left memory."""

    def __init__(self, fixture: ServerFixture) -> None:
        self._fixture = fixture

    async def __aenter__(self) -> None:
        self._fixture.server.evictor.evict()

    async def __aexit__(self, *_error: object) -> None:
        await trio.lowlevel.checkpoint()


async def test_scan_gets_on_where_what_it_had_read_leaves_memory_before_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ServerFixture(memory_limit=1).open() as fixture:
        peer = await fixture.connect()
        for number in range(20):
            assert (await peer.ask(set_(b"key/%02d" % number))).code == ""
        assert (await peer.ask(NOP)).code == ""
        monkeypatch.setattr(fixture.server.scan_runner, "_turn", LateTurn(fixture))
        reply = await peer.ask(get_all(b"", b""))
        assert [pair.value for pair in reply.pairs or ()] == [LONG] * 20


async def test_failed_read_for_a_waiting_next_buries_the_entry_and_it_waits_on() -> None:
    async with ServerFixture(memory_limit=1).open() as fixture:
        peer, waits = await fixture.connect(), await fixture.connect()
        for key in (b"a:1:%d:bad", b"a:2:%d:good"):
            asked = set_(key % (fixture.clock.instant_us + 1))
            assert (await peer.ask(asked, NOP)).code == ""
            await peer.reply()
        await waits.send(request(Function.NEXT, b"a", flags=Flag.DATA | Flag.LISTEN), NOP)
        await waits.reply()
        fixture.disk.fail_at(1, "read_slice")
        fixture.clock.instant_us += 1
        assert [pair.key[-4:] for pair in (await waits.reply()).pairs or ()] == [b"good"]
        assert fixture.engine.store.scheduler.buried == 1


async def test_failed_read_for_a_notification_is_told_in_it_and_in_no_later_one() -> None:
    async with ServerFixture(memory_limit=1).open() as fixture:
        peer, hears = await fixture.connect(), await fixture.connect()
        assert (await peer.ask(set_(b"key"), NOP)).code == ""
        await peer.reply()
        all_keys = Query.RANGE << QUERY_SHIFT
        await hears.ask(request(Function.GET, b"", uri=b"", flags=all_keys | Flag.LISTEN))
        codes = []
        for link in (b"link/1", b"link/2"):
            if not codes:
                fixture.disk.fail_at(1, "read_slice")
            assert is_cold(fixture, b"key")
            await peer.ask(request(Function.LINK, b"key", uri=link, flags=Flag.PERSIST))
            told = await hears.reply()
            codes.append(told.code)
            fixture.server.evictor.evict()
        assert codes == ["not-readable", ""]


async def test_value_does_not_count_as_damaged_because_too_many_files_are_open() -> None:
    async with ServerFixture(memory_limit=1).open() as fixture:
        peer = await fixture.connect()
        assert (await peer.ask(set_(b"a:1:0:x"))).code == ""
        assert (await peer.ask(NOP)).code == ""
        assert is_cold(fixture, b"a:1:0:x")
        for count in (1, 2):
            fixture.disk.fail_at(count, "read_slice", errno.EMFILE)
        assert (await peer.ask(request(Function.NEXT, b"a", flags=Flag.DATA))).pairs
        assert fixture.engine.store.scheduler.buried == 0


async def test_waiting_next_gets_a_value_from_the_disk_when_a_delay_ends_and_nobody_asks() -> None:
    async with ServerFixture(memory_limit=1).open() as fixture:
        peer, waits = await fixture.connect(), await fixture.connect()
        key = b"a:1:%d:x" % (fixture.clock.instant_us + 1)
        assert (await peer.ask(set_(key), NOP)).code == ""
        assert await peer.reply() is not None
        assert is_cold(fixture, key)
        await waits.send(request(Function.NEXT, b"a", flags=Flag.DATA | Flag.LISTEN), NOP)
        assert await waits.reply() is not None
        fixture.clock.instant_us += 1
        assert [pair.value for pair in (await waits.reply()).pairs or ()] == [LONG]


async def test_request_is_not_kept_from_one_value_by_another_that_leaves_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evict, evicts = Evictor.evict, True
    monkeypatch.setattr(Evictor, "evict", lambda evictor: evicts and evict(evictor))
    fixture = ServerFixture(memory_limit=1)
    store = fixture.engine.store
    async with fixture.open():
        peer = await fixture.connect()
        for key in (b"a:1:0:x", b"a:1:0:y"):
            assert (await peer.ask(set_(key))).code == ""
        assert (await peer.ask(NOP)).code == ""
        assert is_cold(fixture, b"a:1:0:y")
        first = store.find(b"a:1:0:x")
        assert first is not None
        # somebody else had this one read; whatever is in memory leaves it with the next read
        evicts = False
        fill_value(store, first, first.job_id, LONG)
        read_slice = fixture.disk.read_slice

        def read_and_evict(path: str, offset: int, size: int) -> bytes:
            trio.from_thread.run_sync(evict_values, store, fixture.writer.durable_at, 1000)
            return read_slice(path, offset, size)

        monkeypatch.setattr(fixture.disk, "read_slice", read_and_evict)
        reply = await peer.ask(request(Function.NEXT, b"a", flags=Flag.DATA, count=2))
        assert [pair.value for pair in reply.pairs or ()] == [LONG, LONG]
