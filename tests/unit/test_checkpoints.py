"""Checkpoints of a server in this process, in a store in memory: due, asked for, given up."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal.errors import RemoteLogCorruptError, StoreUnavailableError
from fastjournal.protocol import Flag, Function, decode_reply
from fastjournal.remote.checkpoints import Uploads, adopt
from fastjournal.remote.node import Primary
from fastjournal.remote.objects import (
    CHECKPOINTS,
    ChunkId,
    Epoch,
    checkpoint_id,
    chunk_name,
    decode_checkpoint,
    segment_object,
    segments_of,
)
from fastjournal.remote.reader import Candidate, LogReader, Restart, take_over
from fastjournal.remote.restore import restore_remote
from fastjournal.remote.store import perform, run
from fastjournal.remote.writer import ChunkWriter, PrimaryLease, RemoteAck
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.object_store import MemoryStore
from fastjournald.group_commit.remote_commit import boottime_us
from fastjournald.recovery.recover import recover_engine
from fastjournald.server import Server
from tests.property.subject import START, request
from tests.unit.server_fixture import (
    BEAT_US,
    LOG,
    REMOTE_LOG,
    SILENCE_S,
    TAKEOVER_AFTER_US,
    Peer,
    ServerFixture,
)

SECOND = 1_000_000
ASK = partial(request, Function.REMOTE)


class DiskStore(MemoryStore):
    """A store in memory that uploads the files of a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__()
        self.disk = disk
        self.away = threading.Event()
        """While it is set, files cannot be uploaded."""
        self.uploaded: list[str] = []
        self.copied: list[str] = []

    def overwrite(self, name: str, data: bytes | None, path: str = "") -> None:
        """Write an object from bytes or from a file."""
        if self.away.is_set():
            raise StoreUnavailableError("the store does not answer")
        self.uploaded.append(name)
        self.objects[name] = self.disk.read(path) if data is None else data

    def copy(self, source: str, target: str) -> bool:
        """Copy an object, if there is one."""
        self.copied.append(target)
        return super().copy(source, target)


class RemoteServer(ServerFixture):
    """A server that has taken over an adopted log."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.store = DiskStore(self.disk)
        self._run(adopt(Epoch(0, REMOTE_LOG, "one", bytes(16), -1), START, {}))
        reader = LogReader(REMOTE_LOG)
        base: list[Restart] = []

        def answer(asked: Any) -> object:
            if isinstance(asked, Restart):
                base.append(asked)
                return None
            return perform(self.store, asked)

        epoch = run(take_over(reader, Candidate("one", b"n" * 16), START), answer)
        assert epoch is not None
        chunks = ChunkWriter(epoch, reader.end, reader.time_us)
        self._run(chunks.store(0, 0, b"", START))
        behind, checkpoint = base[-1]
        primary = Primary(
            store=self.store,
            chunks=chunks,
            uploads=Uploads(epoch.epoch, (behind, checkpoint)),
            lease=PrimaryLease(BEAT_US, TAKEOVER_AFTER_US, boottime_us()),
            ack=RemoteAck.DURABLE,
            base=behind,
            base_us=checkpoint.time_us,
        )
        self.server = Server(
            self.config, self.engine, self.writer, self.disk, self.clock, remote=primary
        )
        assert self.server.checkpoints is not None
        self.checkpoints = self.server.checkpoints

    def _run(self, steps: Any) -> object:
        return run(steps, partial(perform, self.store))

    def listed(self) -> list[ChunkId]:
        """The checkpoints in the store, oldest first; that of epoch 0 is left out."""
        found = [checkpoint_id(name) for name, _ in self.store.list(CHECKPOINTS)]
        return sorted(each for each in found if each is not None and each.epoch)

    async def wait_first(self) -> ChunkId:
        """Wait for the first checkpoint of the epoch."""
        await until(lambda: self.checkpoints.last in self.listed())
        return self.checkpoints.last

    def is_refused(self) -> bool:
        """Whether an upload failed."""
        return self.checkpoints._remote.requests["overwrite", "unavailable"] > 0

    def restored(self, keys: list[bytes], until_us: int | None = None) -> list[bytes]:
        """The values of keys in a daemon that starts on a restored log."""
        disk = SimulatedDisk()
        restore_remote(
            self.store, disk, LOG, wait=no_wait, now_us=self.clock.now_us(), until_us=until_us
        )
        engine, _ = recover_engine(
            disk, self.config, self.config.settings(), self.clock, seed=bytes(8)
        )
        replies = [
            engine.handle("reader", request(Function.GET, key, flags=Flag.DATA), START)
            for key in keys
        ]
        found = [decode_reply(reply) for reply in replies if isinstance(reply, bytes)]
        return [pair.value for reply in found for pair in reply.pairs or ()]


async def until(is_met: Callable[[], object]) -> None:
    while not is_met():  # noqa: ASYNC110 - a condition of several parts
        await trio.sleep(0.01)


def no_wait(_tries: int, error: StoreUnavailableError) -> None:
    raise error


@asynccontextmanager
async def serving(fixture: RemoteServer) -> AsyncIterator[Peer]:
    with trio.fail_after(SILENCE_S):
        async with fixture.open():
            yield await fixture.connect()


async def put(fixture: RemoteServer, peer: Peer, key: bytes, value: bytes) -> None:
    fixture.clock.instant_us += SECOND
    now = fixture.clock.instant_us
    asked = request(Function.SET, key, value, flags=Flag.PERSIST | Flag.OVERWRITE, at=now)
    assert (await peer.ask(asked)).code == ""


async def checkpoint(fixture: RemoteServer, peer: Peer) -> ChunkId:
    """Ask for a checkpoint; return behind which chunk it is."""
    reply = await peer.ask(ASK(b"checkpoint"))
    assert (reply.error, reply.timestamp) == ("", fixture.clock.now_us())
    assert reply.pairs is not None
    epoch, _, number = reply.pairs[0].value.partition(b"-")
    found = ChunkId(int(epoch), int(number))
    assert found in fixture.listed()
    return found


def segments_at(fixture: RemoteServer, behind: ChunkId) -> list[str]:
    content = fixture.store.objects[f"checkpoints/{behind.epoch:010d}-{behind.number:012d}.json"]
    listed = decode_checkpoint(behind, content).segments
    return [segment_object(behind.epoch, segment) for segment in listed]


async def test_checkpoint_is_taken_soon_in_a_new_epoch_and_on_request_and_restores_the_log() -> (
    None
):
    fixture = RemoteServer()
    async with serving(fixture) as peer:
        await fixture.wait_first()
        keys = [b"k%d" % number for number in range(5)]
        for key in keys:
            await put(fixture, peer, key, b"first of " + key)
        behind = await checkpoint(fixture, peer)
        (segment,) = segments_at(fixture, behind)
        assert f"live/{behind.epoch:010d}-{behind.number:012d}" in fixture.store.objects
        assert fixture.store.uploaded.count(segment) == 1
        await put(fixture, peer, keys[0], b"second")
        # the links go, and the next checkpoint uploads only what is new
        assert fixture.disk.listdir(f"{LOG}/snapshots") == []
        later = await checkpoint(fixture, peer)
        assert later > behind
        assert fixture.store.uploaded.count(segment) == 1
        assert len(segments_at(fixture, later)) == 2
    assert fixture.restored(keys) == [b"second", *(b"first of " + key for key in keys[1:])]
    for name in [name for name in fixture.store.objects if name.startswith("log/0000000001/")]:
        if int(name[-12:]) <= later.number:
            del fixture.store.objects[name]
    assert fixture.restored(keys)[0] == b"second"


async def test_checkpoint_behind_the_same_chunk_is_the_one_that_is_there() -> None:
    fixture = RemoteServer()
    async with serving(fixture) as peer:
        await put(fixture, peer, b"k", b"v")
        assert await checkpoint(fixture, peer) == await checkpoint(fixture, peer)


async def test_checkpoint_is_due_by_the_bytes_behind_it_and_by_its_age() -> None:
    fixture = RemoteServer(cmdlog_seg_size=4096)
    async with serving(fixture) as peer:
        first = await fixture.wait_first()
        for _ in range(2 * 4096 // 500):
            await put(fixture, peer, b"k", b"v" * 500)
        with trio.move_on_after(2.5):
            await until(lambda: fixture.checkpoints.last != first)
        assert fixture.checkpoints.last == first
        for _ in range(4 * 4096 // 500):
            await put(fixture, peer, b"k", b"v" * 500)
        await until(lambda: fixture.checkpoints.last != first)
        second = fixture.checkpoints.last
        await put(fixture, peer, b"k", b"last")
        fixture.clock.instant_us = fixture.checkpoints._taken_us + 3599 * SECOND
        with trio.move_on_after(2.5):
            await until(lambda: fixture.checkpoints.last != second)
        assert fixture.checkpoints.last == second
        fixture.clock.instant_us += SECOND
        await until(lambda: fixture.checkpoints.last != second)


async def test_checkpoint_that_is_due_while_one_is_under_way_is_that_one() -> None:
    fixture = RemoteServer(cmdlog_seg_size=4096)
    async with serving(fixture) as peer:
        await fixture.wait_first()
        other = await fixture.connect()
        for _ in range(5 * 4096 // 500):
            await put(fixture, other, b"k", b"v" * 500)
        fixture.store.away.set()
        await peer.send(ASK(b"checkpoint"))
        await until(fixture.is_refused)
        await put(fixture, other, b"k", b"last")
        # two looks whether one is due
        await trio.sleep(2.5)
        before = fixture.listed()
        fixture.store.away.clear()
        assert await peer.reply() is not None
        await trio.sleep(2.5)
        assert len(fixture.listed()) - len(before) == 1


async def test_collection_keeps_what_the_window_needs_and_never_a_hole() -> None:
    keep_s = 100
    fixture = RemoteServer(remote_keep=keep_s)
    taken: dict[ChunkId, int] = {}
    values: dict[int, bytes] = {}
    async with serving(fixture) as peer:
        await fixture.wait_first()
        for number in range(8):
            await put(fixture, peer, b"k", b"%d" % number)
            values[fixture.clock.now_us()] = b"%d" % number
            fixture.clock.instant_us += 29 * SECOND
            behind = await checkpoint(fixture, peer)
            now = fixture.clock.now_us()
            taken[behind] = fixture.server.runtime.counters.checkpoint_us
            fixture.clock.instant_us += SECOND
    newest = fixture.listed()
    # the test's own rule: all of the window, and the newest one before it
    window = {behind for behind, at in taken.items() if at >= now - keep_s * SECOND}
    before = max(set(taken) - window)
    assert set(newest) == window | {before}
    oldest = min(newest)
    chunks = [name for name in fixture.store.objects if name.startswith("log/0000000001/")]
    assert min(int(name[-12:]) for name in chunks) == oldest.number + 1
    needed = {name for behind in newest for name in segments_at(fixture, behind)}
    assert {name for name, _ in fixture.store.list(segments_of(1))} == needed
    assert {name.partition("/")[2] for name, _ in fixture.store.list("live")} == {
        f"{behind.epoch:010d}-{behind.number:012d}" for behind in newest
    }
    # the seal of epoch 0 stays for ever
    assert chunk_name(ChunkId(0, fixture.checkpoints._epoch.sealed_at)) in {
        name for name in fixture.store.objects if "log/" in name
    }
    for at, value in values.items():
        if at >= taken[oldest]:
            assert fixture.restored([b"k"], at) == [value]
    assert fixture.restored([b"k"]) == [b"7"]


async def test_missing_segment_is_uploaded_again_and_told(caplog: pytest.LogCaptureFixture) -> None:
    fixture = RemoteServer()
    async with serving(fixture) as peer:
        await put(fixture, peer, b"k", b"v")
        (segment,) = segments_at(fixture, await checkpoint(fixture, peer))
        content = fixture.store.objects.pop(segment)
        await put(fixture, peer, b"l", b"w")
        later = await checkpoint(fixture, peer)
        assert fixture.store.objects[segment] == content
        assert segment in segments_at(fixture, later)
        assert fixture.server.runtime.counters.segments_missing == 1
        assert "event=segment-was-missing" in caplog.text
    assert fixture.restored([b"k", b"l"]) == [b"v", b"w"]


@pytest.mark.parametrize("name", ["format.json", "epochs/0000000001.json"])
async def test_daemon_ends_where_somebody_deleted_parts_of_the_log(name: str) -> None:
    fixture = RemoteServer()
    with pytest.RaisesGroup(
        pytest.RaisesExc(RemoteLogCorruptError, match="somebody deleted parts"),
        flatten_subgroups=True,
    ):
        async with serving(fixture) as peer:
            await fixture.wait_first()
            await put(fixture, peer, b"k", b"v")
            del fixture.store.objects[name]
            await peer.send(ASK(b"checkpoint"))
            assert await peer.reply() is None
            await trio.sleep_forever()


async def test_checkpoint_waits_for_the_store_and_holds_up_nobody() -> None:
    fixture = RemoteServer()
    async with serving(fixture) as peer:
        await fixture.wait_first()
        await put(fixture, peer, b"k", b"v")
        fixture.store.away.set()
        await peer.send(ASK(b"checkpoint"))
        other = await fixture.connect()
        while not fixture.is_refused():
            await put(fixture, other, b"l", b"w")
        # compaction may go on, too
        assert not fixture.server.runtime.segments_free.locked()
        fixture.store.away.clear()
        reply = await peer.reply()
        assert reply is not None
        assert not reply.error
    assert fixture.restored([b"k", b"l"]) == [b"v", b"w"]


async def test_checkpoint_is_given_up_where_the_disk_is_nearly_full() -> None:
    fixture = RemoteServer()
    async with serving(fixture) as peer:
        await fixture.wait_first()
        await put(fixture, peer, b"k", b"v")
        fixture.store.away.set()
        await peer.send(ASK(b"checkpoint"))
        await until(fixture.is_refused)
        assert fixture.disk.listdir(f"{LOG}/snapshots") != []
        free = fixture.disk.free_space(LOG).bytes
        fixture.disk.create("/filler").write(bytes(free - fixture.config.min_free_bytes // 2))
        reply = await peer.reply()
        assert reply is not None
        assert reply.code == "read-only"
        assert "given up" in reply.error
        assert fixture.disk.listdir(f"{LOG}/snapshots") == []
        refused = await peer.ask(ASK(b"checkpoint"))
        assert refused.code == "read-only"
        fixture.disk.unlink("/filler")
        await until(lambda: not fixture.engine.context.read_only)
        fixture.store.away.clear()
        assert await checkpoint(fixture, peer)


async def test_checkpoint_without_room_for_its_live_index_has_none() -> None:
    fixture = RemoteServer()
    async with serving(fixture) as peer:
        await fixture.wait_first()
        await put(fixture, peer, b"k", b"v")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fastjournald.tasks.snapshots.room_bytes", lambda *_: 0)
            behind = await checkpoint(fixture, peer)
        assert f"live/{behind.epoch:010d}-{behind.number:012d}" not in fixture.store.objects
    assert fixture.restored([b"k"]) == [b"v"]


async def test_checkpoint_under_way_ends_where_the_daemon_stops() -> None:
    fixture = RemoteServer()
    async with serving(fixture) as peer:
        await fixture.wait_first()
        await put(fixture, peer, b"k", b"v")
        fixture.store.away.set()
        await peer.send(ASK(b"checkpoint"))
        await until(fixture.is_refused)
        fixture.stopped.set()
        reply = await peer.reply()
        assert reply is not None
        assert reply.code == "shutting-down"
    assert fixture.disk.listdir(f"{LOG}/snapshots") == []
    assert fixture.restored([b"k"]) == [b"v"]


async def test_handover_answers_then_ends_the_server_and_seals_its_epoch() -> None:
    fixture = RemoteServer()
    async with serving(fixture) as peer:
        await put(fixture, peer, b"k", b"v")
        assert (await peer.ask(ASK(b"other"))).code == "bad-key"
        noted: list[bool] = []
        fixture.checkpoints.on_handover = lambda: noted.append(fixture.checkpoints._remote.sealed)
        reply = await peer.ask(ASK(b"handover"))
        # a flag too many, and a client takes it for a notification
        assert (reply.error, reply.flags) == ("", 0)
        assert reply.timestamp > 0
        await fixture.checkpoints.handover.wait()
        fixture.stopped.set()
        assert await peer.reply() is None
    assert noted == [False]
    assert fixture.checkpoints._remote.sealed
    assert fixture.restored([b"k"]) == [b"v"]
