"""Snapshots of a server in this process, which is stopped while one is taken or removed."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from fastjournal.cmdlog.snapshot import list_snapshots, verify_snapshot
from fastjournal.protocol.constants import Flag, Function
from fastjournal.testing.disk import SimulatedDisk
from tests.door.places import patch_module
from tests.property.subject import request
from tests.unit.server_fixture import LOG, SILENCE_S, ServerFixture

SNAPSHOTS = f"{LOG}/snapshots"


@pytest.mark.parametrize("call", ["link", "create", "rename", "rmdir", "unlink"])
async def test_snapshot_is_whole_or_not_there_where_the_daemon_stops_meanwhile(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    patch_module(monkeypatch, "STOP_SECONDS_MAX", 0.0)
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
    assert len(snapshots) == (3 if call in ("link", "create", "rename") else 1)
    for path in snapshots:
        verify_snapshot(disk, path)


async def test_snapshot_taken_after_the_clock_was_set_back_stays_and_those_before_it_go() -> None:
    fixture = ServerFixture()
    with trio.fail_after(SILENCE_S):
        async with fixture.open():
            peer = await fixture.connect()

            async def taken(count: int | None = None) -> str:
                fixture.clock.instant_us += 1
                reply = await peer.ask(request(Function.SNAPSHOT, count=count))
                assert reply.code == ""
                return reply.pairs[0].value.decode()

            before = [await taken() for _ in range(2)]
            fixture.clock.instant_us -= 3600 * 1_000_000
            first = await taken(2)
            assert list_snapshots(fixture.disk, SNAPSHOTS) == [first, before[1]]
            second = await taken(2)
            assert list_snapshots(fixture.disk, SNAPSHOTS) == [first, second]
            third = await taken(1)
            assert list_snapshots(fixture.disk, SNAPSHOTS) == [third]
            verify_snapshot(fixture.disk, third)
