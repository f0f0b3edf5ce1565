"""Server fixture: a daemon in this process, over loopback, on a fault-injecting disk."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from fastjournal.cmdlog.writer import LogWriter
from fastjournal.protocol import ClientConnection, encode_request
from fastjournal.protocol.messages import Reply, Request
from fastjournal.remote.checkpoints import Uploads
from fastjournal.remote.node import Primary
from fastjournal.remote.objects import (
    Checkpoint,
    Chunk,
    ChunkId,
    ChunkKind,
    Epoch,
    chunk_name,
    chunks_of,
    decode_chunk,
    encode_chunk,
)
from fastjournal.remote.store import ObjectStore, perform, run
from fastjournal.remote.writer import ChunkWriter, PrimaryLease, RemoteAck
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.disk import SimulatedDisk, SimulatedFile
from fastjournal.testing.object_store import MemoryStore
from fastjournald.config.options import Config
from fastjournald.engine.engine import Engine
from fastjournald.group_commit.remote_commit import boottime_us
from fastjournald.net.credentials import load_security
from fastjournald.recovery.recover import recover_engine
from fastjournald.server import Server
from tests.property.subject import START

LOG = "/log"
REMOTE_LOG = "8b6e7b2e-52b9-4c0e-9d2c-3a1f0c9f7d11"
BEAT_US = 5_000_000
TAKEOVER_AFTER_US = 15_000_000
SILENCE_S = 60.0
"""Far longer than any answer takes."""


class Peer:
    """A client."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._connection = ClientConnection()

    async def send(self, *requests: Request) -> None:
        await self.stream.send_all(b"".join(encode_request(asked) for asked in requests))

    async def reply(self) -> Reply | None:
        """The next reply; None: the server has closed."""
        with trio.fail_after(SILENCE_S):
            while not isinstance(event := self._connection.next_event(), Reply):
                data = await self.stream.receive_some(65536)
                if not data:
                    return None
                self._connection.receive_data(data)
        return event

    async def ask(self, *requests: Request) -> Reply:
        await self.send(*requests)
        reply = await self.reply()
        assert reply is not None
        return reply


def new_primary(
    store: ObjectStore, writer: LogWriter, ack: RemoteAck, boottime_us: Callable[[], int]
) -> Primary:
    """Return a primary of epoch 1 of a log that begins with this writer."""
    base = ChunkId(0, 0)
    chunks = ChunkWriter(Epoch(1, REMOTE_LOG, "one", b"n" * 16, -1), 0, START)
    run(chunks.store(0, 0, b"", START), partial(perform, store))
    lease = PrimaryLease(BEAT_US, TAKEOVER_AFTER_US, boottime_us())
    assert not writer.appended
    return Primary(
        store=store,
        chunks=chunks,
        uploads=Uploads(1, (base, Checkpoint(START, ()))),
        lease=lease,
        ack=ack,
        base=base,
        base_us=START,
    )


def stored_chunks(store: MemoryStore, epoch: int = 1) -> list[Chunk]:
    """Return the chunks of an epoch in their order, its seal too."""
    names = sorted(name for name in store.objects if name.startswith(f"{chunks_of(epoch)}/"))
    found = [decode_chunk(ChunkId(epoch, at), store.objects[n]) for at, n in enumerate(names)]
    assert [chunk_name(chunk.id) for chunk in found] == names, "a number is missing"
    return found


def seal_epoch(store: MemoryStore, epoch: int = 1) -> None:
    """Seal an epoch behind its last chunk, as a node that takes over does."""
    at = ChunkId(epoch, len(stored_chunks(store, epoch)))
    store.objects[chunk_name(at)] = encode_chunk(Chunk(at, ChunkKind.SEAL, b"t" * 16, START))


class ServerFixture:
    """A server and its parts.

    Args:
        clock: Its clock; None: one that only the test moves.
        store: Store of its remote log; None: it has none.
        ack: What the store has to acknowledge.
        boottime_us: Clock of the lease.
        options: Options of the daemon.
    """

    def __init__(
        self,
        *,
        clock: Any = None,
        store: ObjectStore | None = None,
        ack: RemoteAck = RemoteAck.DURABLE,
        boottime_us: Callable[[], int] = boottime_us,
        **options: Any,
    ) -> None:
        self.disk = SimulatedDisk(capacity_bytes=1 << 20)
        self.disk.mkdir(LOG)
        self.clock = clock or ManualClock(START)
        self.config = Config(
            cmdlog_path=LOG, listen=["127.0.0.1:0"], min_free_bytes=1 << 18, **options
        )
        settings = self.config.settings()
        self.engine: Engine
        self.writer: LogWriter
        self.engine, self.writer = recover_engine(
            self.disk, self.config, settings, self.clock, seed=bytes(8)
        )
        primary = None if store is None else new_primary(store, self.writer, ack, boottime_us)
        self.server = Server(
            self.config,
            self.engine,
            self.writer,
            self.disk,
            self.clock,
            security=load_security(self.config),
            remote=primary,
            boottime_us=boottime_us,
        )
        self.stopped = trio.Event()
        self._addresses: list[str] = []
        self._peers: list[Peer] = []

    async def connect(self) -> Peer:
        host, port = self._addresses[0].split(":")
        peer = Peer(await trio.open_tcp_stream(host, int(port)))
        self._peers.append(peer)
        return peer

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ServerFixture]:
        """Serve while the block runs, then stop."""
        async with trio.open_nursery() as nursery:
            ready = trio.Event()

            def note(addresses: list[str]) -> None:
                self._addresses = addresses
                ready.set()

            nursery.start_soon(self.server.run, note, self.stopped.wait)
            await ready.wait()
            try:
                yield self
            finally:
                for peer in self._peers:
                    peer.stream.socket.close()
                self.stopped.set()


class HeldSync:
    """Holds the next sync, in a thread, until the test lets it go on."""

    def __init__(self, fixture: ServerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun, self._goes_on = threading.Event(), threading.Event()
        self._sync = SimulatedFile.sync
        # a function: a bound method in a class would not be given the file
        monkeypatch.setattr(SimulatedFile, "sync", lambda file, slowly=self.sync: slowly(file))
        # as on a disk whose syncs take long
        monkeypatch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", -1.0)

    def sync(self, file: SimulatedFile) -> None:
        self._begun.set()
        assert self._goes_on.wait(SILENCE_S)
        self._sync(file)

    async def wait_begun(self) -> None:
        assert await trio.to_thread.run_sync(self._begun.wait, SILENCE_S)

    def go_on(self) -> None:
        self._goes_on.set()
