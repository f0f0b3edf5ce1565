"""Server fixture: a daemon in this process, over loopback, on a fault-injecting disk."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from fastjournal.cmdlog.writer import LogWriter
from fastjournal.protocol import ClientConnection, encode_request
from fastjournal.protocol.messages import Reply, Request
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.disk import SimulatedDisk, SimulatedFile
from fastjournald.config.options import Config
from fastjournald.engine.engine import Engine
from fastjournald.recovery.recover import recover_engine
from fastjournald.server import Server
from tests.property.subject import START

LOG = "/log"
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


class ServerFixture:
    """A server and its parts."""

    def __init__(self, *, clock: Any = None, **options: Any) -> None:
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
        self.server = Server(self.config, self.engine, self.writer, self.disk, self.clock)
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
