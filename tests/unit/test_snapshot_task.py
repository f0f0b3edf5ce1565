"""Snapshots of a server in this process, which is stopped while one is taken or removed."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from fastjournal.cmdlog.live_index import LIVE_NAME
from fastjournal.cmdlog.snapshot import list_snapshots, verify_snapshot
from fastjournal.protocol.constants import Flag, Function
from fastjournal.testing.disk import SimulatedDisk, SimulatedFile
from tests.property.live_indexes import assert_live_index
from tests.property.subject import request
from tests.unit.server_fixture import LOG, SILENCE_S, Peer, ServerFixture

SNAPSHOTS = f"{LOG}/snapshots"


@pytest.mark.parametrize("call", ["link", "create", "rename", "rmdir", "unlink"])
async def test_snapshot_is_whole_or_not_there_where_the_daemon_stops_meanwhile(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr("fastjournald.server.STOP_SECONDS_MAX", 0.0)
    fixture = ServerFixture()
    begun, goes_on = threading.Semaphore(0), threading.Event()
    plain = SimulatedDisk._call

    def held(disk: SimulatedDisk, name: str) -> None:
        if name == call and threading.current_thread() is not threading.main_thread():
            begun.release()
            assert goes_on.wait(SILENCE_S)
        plain(disk, name)

    with trio.fail_after(SILENCE_S):
        async with fixture.open():
            peer = await fixture.connect()
            for number in range(2):
                key = b"k%d" % number
                asked = request(Function.SET, key, b"v" * 100, flags=Flag.PERSIST)
                assert (await peer.ask(asked)).code == ""
                fixture.clock.instant_us += 1
                assert (await peer.ask(request(Function.SNAPSHOT))).code == ""
            fixture.clock.instant_us += 1
            monkeypatch.setattr(SimulatedDisk, "_call", held)
            await peer.send(request(Function.SNAPSHOT, count=1))
            await trio.to_thread.run_sync(begun.acquire)
            fixture.stopped.set()
            # the stop has cancelled the request: its thread goes on to the end
            await trio.testing.wait_all_tasks_blocked(0.05)
            goes_on.set()
    monkeypatch.undo()
    disk = fixture.disk.kill()
    assert not [name for name in disk.listdir(SNAPSHOTS) if name.endswith(".partial")]
    snapshots = list_snapshots(disk, SNAPSHOTS)
    # one that is not whole is removed; the rename makes it whole
    assert len(snapshots) == {"link": 2, "create": 2, "rename": 3}.get(call, 1)
    for path in snapshots:
        verify_snapshot(disk, path)


async def test_snapshot_has_the_entries_of_its_instant_while_clients_change_all_of_them() -> None:
    fixture = ServerFixture()
    number, rounds = 300, 3
    with trio.fail_after(SILENCE_S):
        async with fixture.open():
            peer = await fixture.connect()
            for at in range(number):
                asked = request(Function.SET, b"a:1:0:%d" % at, b"v", flags=Flag.PERSIST, ttl=10**9)
                assert (await peer.ask(asked)).code == ""

            async def change(worker: Peer) -> None:
                for at in range(number):
                    leased = await worker.ask(request(Function.NEXT, count=1))
                    for pair in leased.pairs or ():
                        how = Function.DELETE if at % 3 == 0 else Function.RELEASE
                        ended = request(how, pair.key, flags=Flag.WORKED_ON, timeout=leased.timeout)
                        await worker.ask(ended)
                        fixture.clock.instant_us += 1

            worker = await fixture.connect()
            for _ in range(rounds):
                fixture.clock.instant_us += 1
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(change, worker)
                    reply = await peer.ask(request(Function.SNAPSHOT))
                assert reply.code == ""
                assert fixture.engine.store.capture is None
    paths = list_snapshots(fixture.disk, SNAPSHOTS)
    assert len(paths) == rounds
    for path in paths:
        verify_snapshot(fixture.disk, path)
        assert assert_live_index(fixture.disk, path) > 0


async def test_snapshot_ends_with_an_error_where_the_daemon_stops_while_its_index_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.tasks.snapshots.STOP_SECONDS", 0.0)
    fixture = ServerFixture()
    begun, goes_on = threading.Event(), threading.Event()
    plain = SimulatedFile.write

    def held(file: SimulatedFile, data: bytes) -> None:
        if file.path.endswith(LIVE_NAME):
            begun.set()
            assert goes_on.wait(SILENCE_S)
        plain(file, data)

    monkeypatch.setattr(SimulatedFile, "write", held)
    with trio.fail_after(SILENCE_S):
        async with fixture.open():
            peer = await fixture.connect()
            asked = request(Function.SET, b"a:1:0:x", b"v", flags=Flag.PERSIST)
            assert (await peer.ask(asked)).code == ""
            await peer.send(request(Function.SNAPSHOT))
            assert await trio.to_thread.run_sync(begun.wait, SILENCE_S)
            fixture.stopped.set()
            await trio.testing.wait_all_tasks_blocked(0.05)
            goes_on.set()
            assert (await peer.reply()).code == "shutting-down"
    assert fixture.disk.kill().listdir(SNAPSHOTS) == []
    assert fixture.engine.store.capture is None


async def test_snapshot_leaves_the_log_its_reserve_of_the_disk() -> None:
    fixture = ServerFixture()
    with trio.fail_after(SILENCE_S):
        async with fixture.open():
            peer = await fixture.connect()
            asked = request(Function.SET, b"a:1:0:x", b"v", flags=Flag.PERSIST)
            assert (await peer.ask(asked)).code == ""
            assert fixture.disk.capacity_bytes is not None
            plain = SimulatedDisk.link

            def fill(disk: SimulatedDisk, source: str, target: str) -> None:
                plain(disk, source, target)
                free = disk.free_space(LOG).bytes
                disk.create("/filler").write(bytes(free - fixture.config.min_free_bytes - 1))

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(SimulatedDisk, "link", fill)
                reply = await peer.ask(request(Function.SNAPSHOT))
            assert reply.code == "read-only"
            assert "no room for the live index" in reply.error
            assert fixture.disk.listdir(SNAPSHOTS) == []
            assert not fixture.engine.context.read_only
            fixture.disk.unlink("/filler")
            fixture.clock.instant_us += 1
            assert (await peer.ask(request(Function.SNAPSHOT))).code == ""
