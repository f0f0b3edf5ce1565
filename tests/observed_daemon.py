"""Daemon without sockets, on a disk in memory, whose metrics and pages are looked at."""

from __future__ import annotations

import trio

from fastjournal.http_server import HttpRequest, HttpResponse
from fastjournal.protocol import Function, Request, ValueType, decode_reply
from fastjournal.remote.writer import RemoteAck
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.object_store import MemoryStore
from fastjournald.config.options import Config
from fastjournald.observability.html_pages import routes_of
from fastjournald.recovery.recover import open_archive, recover_engine
from fastjournald.server import Server
from tests.unit.server_fixture import new_primary

START = 1_790_000_000_000_000


class ObservedDaemon:
    """A server without sockets, on a disk in memory."""

    def __init__(self, memory_limit: int = 0, *, remote: bool = False) -> None:
        disk = SimulatedDisk(1)
        disk.mkdir("/log")
        config = Config(cmdlog_path="/log", memory_limit=memory_limit, archive_dir="/archive")
        self.clock = ManualClock(START)
        settings = config.settings()
        engine, writer = recover_engine(disk, config, settings, self.clock, seed=bytes(8))
        disk.mkdir("/archive")
        archive = open_archive(disk, config, engine.journal.usage, writer)
        primary = None
        if remote:
            store, boottime_us = MemoryStore(), self.clock.monotonic_us
            primary = new_primary(store, writer, RemoteAck.DURABLE, boottime_us)
        self.server = Server(
            config, engine, writer, disk, self.clock, archive=archive, remote=primary
        )
        self.engine = engine
        engine.store.leases.name_of = str  # sessions of these tests are names

    def ask(
        self,
        function: int,
        key: bytes = b"",
        flags: int = 0,
        *,
        value: bytes = b"",
        uri: bytes | None = None,
        timeout: int | None = None,
        ttl: int | None = None,
    ) -> str:
        is_valued = bool(value) or function not in (Function.NEXT, Function.RELEASE)
        kind = int(ValueType.BUFFER) if is_valued else None
        request = Request(
            function,
            1,
            flags,
            self.clock.instant_us,
            key,
            uri,
            kind,
            value,
            timeout=timeout,
            ttl=ttl,
        )
        data = self.engine.handle("session", request, self.clock.instant_us)
        assert isinstance(data, bytes)
        return decode_reply(data).error

    def set(self, key: bytes, flags: int = 0) -> None:
        assert self.ask(Function.SET, key, flags, value=b"x") == ""

    def page(self, path: str) -> HttpResponse:
        route = routes_of(self.server.runtime, self.server.unready)[path]
        return trio.run(route.handler, HttpRequest({}, {}))
