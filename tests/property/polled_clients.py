"""Clients of the poller over real sockets, each of another kind, and a daemon that they share.

Every client counts the replies that it is owed, and ends when it has them all. The daemon runs in
this process, on a simulated disk whose syncs take long, in the thread for syncs or in the event
loop, with compaction and backpressure at work.
"""

from __future__ import annotations

import array
import math
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Any

import pytest
import trio

from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Request
from fastjournal.testing.disk import SimulatedFile
from fastjournald.net.plain_socket import PlainSocket
from fastjournald.net.stream_transport import StepRunner
from tests.property.subject import START, request
from tests.unit.server_fixture import Peer, ServerFixture

SEGMENT_BYTES = 8192
SYNC_SECONDS_MAX = 0.003
RESET = struct.pack("ii", 1, 0)
OVERWRITE = Flag.PERSIST | Flag.OVERWRITE


class RunningClock:
    """Microseconds since the start of the test."""

    def now_us(self) -> int:
        """Return the instant."""
        return START + int(trio.current_time() * 1_000_000)

    monotonic_us = now_us


class PolledServer(ServerFixture):
    """A daemon on a slow disk whose log is always far too large.

    Args:
        seed: Seed of its delays.
        monkeypatch: Fixture of the test.
        options: Options of the daemon.
    """

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        super().__init__(
            clock=RunningClock(),
            cmdlog_seg_size=SEGMENT_BYTES,
            cmdlog_clean_int=100,
            cmdlog_sync_int=5,
            **options,
        )
        self.disk.capacity_bytes = None
        self.draw = draw = Random(seed)
        monkeypatch.setattr("fastjournald.net.connections.POLLS", True)
        # in the event loop, in the thread, or as the disk shows
        limit = draw.choice((math.inf, -1.0, -1.0, 0.001))
        monkeypatch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", limit)
        monkeypatch.setattr("fastjournald.tasks.compactor.LOOK_SECONDS", 0.02)
        slowness = draw.choice((0.0, 0.3, 1.0))
        sync = SimulatedFile.sync

        def sync_slowly(file: SimulatedFile) -> None:
            time.sleep(slowness * draw.uniform(0, SYNC_SECONDS_MAX))
            sync(file)

        monkeypatch.setattr(SimulatedFile, "sync", sync_slowly)
        monkeypatch.setattr(trio.to_thread, "run_sync", self._run_slowly)
        carry_out = StepRunner.carry_out
        lateness = draw.choice((0.0, 0.002))

        async def carry_out_late(steps: StepRunner, step: Any) -> None:
            # as when the event loop has much else to do between the decision to wait and the wait
            if lateness and draw.random() < 0.5:
                await trio.sleep(draw.uniform(0, lateness))
            await carry_out(steps, step)

        monkeypatch.setattr(StepRunner, "carry_out", carry_out_late)

    async def _run_slowly(self, call: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        # the disk belongs to one thread, but for syncs
        await trio.sleep(self.draw.uniform(0, 0.002))
        return call(*arguments)

    def pair(self) -> Peer:
        """Connect by a pair of unix sockets."""
        client, accepted = socket.socketpair()
        assert self.server.connections.serve(PlainSocket(accepted), {"peer": "pair"}) is not None
        return Peer(trio.SocketStream(trio.socket.from_stdlib_socket(client)))

    async def check_idle(self) -> None:
        """Assert that nothing is left of clients that have gone."""
        with trio.fail_after(60):
            for _ in count():
                if not self.server.connections.transports:
                    break
                await trio.sleep(0.001)
        runtime = self.server.runtime
        assert runtime.backpressure.waiting == 0
        assert runtime.memory.bytes == 0
        self.engine.check()


Kind = Callable[["Clients"], Awaitable[None]]


class Clients:
    """Clients of all kinds.

    Args:
        seed: Seed of all that they do.
        server: Their daemon.
        rounds: How often each goes on with what it does.
    """

    def __init__(self, seed: int, server: PolledServer, rounds: int) -> None:
        self.draw = Random(seed)
        self.server = server
        self.rounds = rounds
        self.replies: Counter[str] = Counter()
        """Replies by kind of client: they prove that each kind was at work."""
        self._number = 0

    # --- parts of clients -----------------------------------------------------------------------

    @asynccontextmanager
    async def peer(self, *, tcp: bool | None = None) -> AsyncIterator[Peer]:
        """Connect, over loopback or by a pair of sockets, and close in the end."""
        if tcp is None:
            tcp = self.draw.random() < 0.5
        peer = await self.server.connect() if tcp else self.server.pair()
        async with peer.stream:
            yield peer

    async def pause(self) -> None:
        """Do nothing, for no time or a little."""
        if self.draw.random() < 0.3:
            await trio.sleep(self.draw.uniform(0, 0.003))

    def write(self, size_max: int = 400) -> Request:
        """Return a request that makes the log grow, and leaves garbage."""
        self._number += 1
        value = b"v" * self.draw.randrange(size_max)
        key = b"w/%d" % self.draw.randrange(30)
        return request(Function.SET, key, value, flags=OVERWRITE, at=START + self._number)

    def job(self, domain: bytes = b"d") -> Request:
        """Return a SET of a job that nobody has put before."""
        self._number += 1
        at = self.server.clock.now_us()
        key = b"%s:1:0:%d" % (domain, self._number)
        return request(Function.SET, key, b"j", flags=Flag.PERSIST, at=at)

    def read(self) -> Request:
        """Return a request that waits for nobody."""
        key = b"w/%d" % self.draw.randrange(30)
        return self.draw.choice(
            (
                request(Function.GET, key, flags=Flag.DATA),
                request(Function.GET, b"w", uri=b"x", flags=Flag.DATA, count=5),
                request(Function.NOP),
                request(Function.STATS),
            )
        )

    async def take(self, kind: str, peer: Peer, number: int) -> None:
        """Receive as many replies as are owed."""
        for _ in range(number):
            reply = await peer.reply()
            assert reply is not None, f"{kind}: closed"
            assert reply.code in {"", "not-found", "stale"}, f"{kind}: {reply.error}"
            self.replies[kind] += 1

    # --- kinds of clients -----------------------------------------------------------------------

    async def one_at_a_time(self) -> None:
        """Wait for each reply."""
        async with self.peer() as peer:
            for _ in range(4 * self.rounds):
                await peer.send(self.draw.choice((self.write, self.job, self.read))())
                await self.take("one", peer, 1)
                await self.pause()

    async def windows(self) -> None:
        """Send windows of writes, some larger than what is received at once."""
        async with self.peer() as peer:
            for _ in range(self.rounds):
                size_max = self.draw.choice((100, 100, 2000))
                number = self.draw.randrange(1, 60)
                async with trio.open_nursery() as nursery:
                    writes = [self.write(size_max) for _ in range(number)]
                    nursery.start_soon(peer.send, *writes)
                    await self.take("windows", peer, number)
                await self.pause()

    async def half_closes(self) -> None:
        """Send, end the requests, and read all replies to the end."""
        for _ in range(self.rounds):
            async with self.peer() as peer:
                asked = [
                    self.draw.choice((self.write, self.read))()
                    for _ in range(self.draw.randrange(1, 20))
                ]
                await peer.send(*asked)
                await self.pause()
                await peer.stream.send_eof()
                await self.pause()
                await self.take("half-closes", peer, len(asked))
                assert await peer.reply() is None

    async def reads_late(self) -> None:
        """Ask for much, and read it when the daemon can send no more."""
        async with self.peer() as peer:
            large = request(Function.SET, b"large", b"x" * 100_000, flags=OVERWRITE)
            await peer.send(large)
            await self.take("reads-late", peer, 1)
            asked = [request(Function.GET, b"large", flags=Flag.DATA)] * 40
            await peer.send(*asked, self.write())
            await trio.sleep(self.draw.uniform(0, 0.03))
            await self.take("reads-late", peer, len(asked) + 1)

    async def dies(self) -> None:
        """Go in the middle, by a reset or not, with replies unread and half a request sent."""
        for _ in range(self.rounds):
            async with self.peer() as peer:
                data = b"".join(encode_request(self.write()) for _ in range(20))
                await peer.stream.send_all(data[: self.draw.randrange(len(data))])
                await self.pause()
                if self.draw.random() < 0.5 and peer.stream.socket.family == socket.AF_INET:
                    peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.replies["dies"] += 1

    async def out_of_band(self) -> None:
        """Send urgent data, or a descriptor, among the bytes of requests: both are dropped."""
        for tcp in (True, False) * self.rounds:
            async with self.peer(tcp=tcp) as peer:
                asked = [self.write() for _ in range(self.draw.randrange(2, 8))]
                data = b"".join(map(encode_request, asked))
                at = self.draw.randrange(1, len(data))
                with socket.socket(fileno=peer.stream.socket.fileno()) as plain:
                    # without a look at others between them: the daemon finds all of it at once
                    plain.send(data[:at])
                    if tcp:
                        plain.send(b"!", socket.MSG_OOB)
                        plain.send(data[at:])
                    else:
                        rights = array.array("i", [plain.fileno()])
                        passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)
                        plain.sendmsg([data[at:-1]], [passed])
                        plain.send(data[-1:])
                    plain.detach()
                await self.take("out-of-band", peer, len(asked))

    async def works(self) -> None:
        """Put jobs, wait for them as a worker does, and complete them."""
        self._number += 1
        domain = b"d%d" % self._number
        async with self.peer() as worker, self.peer() as producer:
            for _ in range(self.rounds):
                wait = request(Function.NEXT, domain, flags=Flag.LISTEN, count=3, timeout=10**9)
                await worker.send(wait)
                await self.pause()
                await producer.send(self.job(domain), self.job(domain))
                await self.take("works", producer, 2)
                reply = await worker.reply()
                assert reply is not None
                assert reply.code == ""
                flags = Flag.WORKED_ON | Flag.PERSIST
                for pair in reply.pairs:
                    done = request(Function.DELETE, pair.key, flags=flags, timeout=reply.timeout)
                    await worker.send(done)
                await self.take("works", worker, len(reply.pairs))

    async def listens(self) -> None:
        """Listen to a key, and get its last value however often it changes."""
        self._number += 1
        key = b"l/%d" % self._number
        async with self.peer() as listener, self.peer() as writer:
            for number in range(4 * self.rounds + 1):
                at = START + number
                value = b"%d" % number
                await writer.send(request(Function.SET, key, value, flags=OVERWRITE, at=at))
                await self.take("listens", writer, 1)
                await self.pause()
                if not number:
                    await listener.send(request(Function.GET, key, flags=Flag.LISTEN))
                    await self.take("listens", listener, 1)
            last = b""
            while last != b"%d" % (4 * self.rounds):
                reply = await listener.reply()
                assert reply is not None
                for pair in reply.pairs:
                    last = pair.value


KINDS: tuple[Kind, ...] = (
    Clients.one_at_a_time,
    Clients.windows,
    Clients.half_closes,
    Clients.reads_late,
    Clients.dies,
    Clients.out_of_band,
    Clients.works,
    Clients.listens,
)
