"""No byte reaches a client before the records of what it shows are settled, however slow a sync is.

The daemon's own sessions run on trio's mock clock; each sync takes a drawn time, in which others
go on: SETs arrive, NEXTs that wait are served, changes are sent, scans lease, the daemon stops.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal.errors import StoreUnavailableError
from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Reply, Request
from fastjournal.remote.writer import RemoteAck
from fastjournal.testing.object_store import MemoryStore
from fastjournald.recovery.recover import recover_engine
from tests.property.slow_syncs import SlowRoom
from tests.property.subject import SECOND, request
from tests.unit.server_fixture import Peer

pytestmark = pytest.mark.usefixtures("native", "transport")

SEEDS = 30
REMOTE_SEEDS = 6
CLIENTS = 6
REQUESTS = 40


def listen(identifier: int, flags: int = 0, domain: bytes = b"a") -> Request:
    return request(Function.NEXT, domain, flags=Flag.LISTEN | flags, identifier=identifier)


def set_(number: int, **fields: int) -> Request:
    return request(Function.SET, b"a:1:0:%d" % number, b"v", flags=Flag.PERSIST, **fields)


def draw_request(draw: Random, now: int) -> Request:
    """One of all that sends something, at once or later."""
    key = draw.choice((b"a:1:0:%d", b"b:1:0:%d", b"plain%d")) % draw.randrange(8)
    flags = draw.choice((Flag(0), Flag.DATA, Flag.META))
    match draw.choices(range(10), (16, 12, 4, 4, 4, 4, 2, 2, 4, 1))[0]:
        case 0:
            flags = Flag.PERSIST | Flag.OVERWRITE
            return request(Function.SET, key, b"v" * draw.randrange(40), flags=flags, at=now)
        case 1:
            flags |= Flag.LISTEN | draw.choice((Flag(0), Flag.OVERWRITE))
            domain, ttl = draw.choice((b"", b"a", b"b")), draw.choice((None, SECOND))
            lease = draw.choice((None, SECOND))
            return request(Function.NEXT, domain, flags=flags, count=2, timeout=lease, ttl=ttl)
        case 2:
            flags |= draw.choice((Flag(0), Flag.LISTEN))
            return request(Function.GET, key, flags=flags)
        case 3:
            timeout = draw.choice((None, SECOND))
            return request(Function.GET, b"", uri=b"", flags=flags, count=0, timeout=timeout)
        case 4:
            return request(Function.DELETE, key, at=now)
        case 5:
            query = Query.REGEX << QUERY_SHIFT
            return request(Function.GET, b"^[ab]", flags=Flag.LISTEN | query, count=1)
        case 6:
            return request(Function.SNAPSHOT)
        case 7:
            return request(Function.LOCK, key, timeout=SECOND)
        case 8:
            return request(Function.CANCEL, count=draw.randint(1, REQUESTS))
        case _:
            return request(Function.QUIT)


class SometimesAway(MemoryStore):
    """A store that is away at times, also for longer than a primary may answer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = Random(seed)
        self._is_away = False

    def create(self, name: str, data: bytes) -> bool:
        if self._is_away:
            raise StoreUnavailableError("the store does not answer")
        return super().create(name, data)

    async def come_and_go(self) -> None:
        while True:
            # longer than the pause before a repeat
            await trio.sleep(self._draw.uniform(2, 5))
            self._is_away = True
            await trio.sleep(self._draw.choice((0.5, 3, 20)))
            self._is_away = False


class Client:
    """Asks without pause, in bursts, and connects again when the daemon has closed.

    Its readers outlive it. A client that reads no more and keeps its connection would keep the
    work that the daemon has leased to it and cannot send.
    """

    def __init__(self, room: SlowRoom, draw: Random, readers: trio.Nursery) -> None:
        self._room = room
        self._draw = draw
        self._readers = readers
        self.replies = 0

    async def run(self) -> None:
        left = REQUESTS
        identifier = 0
        while left:
            peer = self._room.connect_watched(lockstep=self._draw.random() < 0.2)
            self._readers.start_soon(self._read, peer)
            while left and peer not in self._room.ended:
                burst = min(left, self._draw.choice((1, 1, 2, 5)))
                left -= burst
                asked = []
                for _ in range(burst):
                    identifier += 1
                    drawn = draw_request(self._draw, self._room.clock.now_us())
                    drawn.identifier = identifier
                    asked.append(encode_request(drawn))
                if self._draw.random() < 0.02:
                    asked.append(b"garbage " * 9)
                try:
                    await peer.stream.send_all(b"".join(asked))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    break
                await trio.sleep(self._draw.choice((0, 0, 0.01, 0.2)))
                if self._draw.random() < 0.03:
                    await peer.stream.aclose()
                    break

    async def _read(self, peer: Peer) -> None:
        try:
            while await peer.reply() is not None:
                self.replies += 1
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


@pytest.mark.parametrize("policy", ["always", "os"])
@pytest.mark.parametrize(
    ("seed", "ack"),
    [
        *((seed, None) for seed in range(SEEDS)),
        *((seed, ack) for seed in range(REMOTE_SEEDS) for ack in RemoteAck),
    ],
)
async def test_commit_mark_is_settled_before_its_message_leaves(
    seed: int,
    ack: RemoteAck | None,
    policy: str,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    options: dict[str, Any] = {"memory_limit": (seed % 3 == 2) * 10_000}
    store = SometimesAway(seed)
    if ack is not None:
        options |= {"ack": ack, "store": store}
        # clients that have done wait for those that the store keeps waiting
        monkeypatch.setattr("tests.unit.server_fixture.SILENCE_S", 600.0)
    room = SlowRoom(seed, monkeypatch, cmdlog_sync=policy, **options)
    handed_out: set[int] = set()

    def note(reply: Reply) -> None:
        if reply.flags & Flag.WORKED_ON and reply.timeout is not None:
            handed_out.add(reply.timeout)

    room.on_message = note
    async with room.open(), trio.open_nursery() as readers:
        readers.start_soon(store.come_and_go)
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                client = Client(room, Random(seed * 100 + number), readers)
                nursery.start_soon(client.run)
        await trio.sleep(5)
        room.stop()
        await trio.sleep(40)
        room.engine.check()
        for entry in room.engine.store:
            assert not entry.token or entry.token in handed_out, "leased, and nobody was told"
        readers.cancel_scope.cancel()
    assert room.messages_sent > CLIENTS * REQUESTS // 4
    if policy == "always":
        assert room.sent_ahead > 0, "none left while the log went on: this proves nothing"


@pytest.mark.parametrize("flags", [Flag(0), Flag.OVERWRITE])
async def test_power_lost_when_a_second_waiting_next_was_answered_during_a_sync(
    flags: Flag, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The log knows, at the instant at which work leaves for a client, that it was leased."""
    room = SlowRoom(1, monkeypatch, 1.0)
    handed_out: list[bytes] = []

    def look_after_power_loss(reply: Reply) -> None:
        if not reply.pairs:
            return
        for seed in range(5):
            disk = room.disk.crash(seed)
            engine, writer = recover_engine(
                disk, room.config, room.config.settings(), room.clock, seed=bytes(8)
            )
            for pair in reply.pairs:
                entry = engine.store.find(pair.key)
                if flags:
                    assert entry is None, "popped, and it comes again"
                else:
                    assert entry is not None
                    assert entry.token == reply.timeout, "leased, and the log knows nothing of it"
            writer.close()
        handed_out.extend(pair.key for pair in reply.pairs)

    room.on_message = look_after_power_loss
    async with room.open():
        worker, one, two = (room.connect_watched() for _ in range(3))
        await worker.send(listen(1, flags), listen(2, flags))
        await trio.testing.wait_all_tasks_blocked()
        await one.send(set_(1))
        while room.writer.settled == room.writer.appended:
            await trio.testing.wait_all_tasks_blocked()
        await two.send(set_(2))
        for _ in range(2):
            reply = await worker.reply()
            assert reply is not None
            assert reply.pairs
    assert handed_out == [b"a:1:0:1", b"a:1:0:2"]
