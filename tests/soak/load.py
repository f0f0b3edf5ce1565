"""Those who load the daemon in a soak: producers, workers, the random, and the hostile."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import trio

from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Reply, Request
from tests.soak.attacks import Attacks, ask
from tests.soak.operations import ALWAYS, OPERATIONS, SECOND, build
from tests.soak.peer import LISTEN, SILENCE_SECONDS, LostError, Peer

OWED_MAX = 2000
"""Jobs that are set and not completed: then producers wait, so that memory has a bound."""

DOMAIN = b"work"


def value_of(number: int) -> bytes:
    """Return the value of a job."""
    return b"%d" % number * (1, 10, 100)[number % 3]


def number_of(key: bytes) -> int:
    """Return the number of the job with a key."""
    return int(key.rpartition(b":")[2])


GIVEN_UP = ("bad-request", "busy")
"""How the daemon ends a connection whose request is not whole: the identifier may not be there."""


class Load:
    """All of them, what they have counted, and what was promised to them.

    Args:
        address: ``HOST:PORT``.
        seed: Seed of all chances.
    """

    def __init__(self, address: str, seed: int) -> None:
        self._host, _, self._port = address.rpartition(":")
        self.chance = Random(seed)
        self.done = trio.Event()
        """Set when it is enough."""
        self.answers = 0
        self.codes: Counter[str] = Counter()
        self.owed: set[int] = set()
        """Jobs whose SET got OK and that nobody has completed."""
        self.completed = 0
        self.died = 0
        self._finished = array("Q")
        """By number of the job: when it was completed, by the clock of the daemon; 0: it is not."""
        self._room = trio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Peer]:
        """Connect for the length of the block."""
        stream = await trio.open_tcp_stream(self._host, int(self._port))
        try:
            yield Peer(stream)
        finally:
            await trio.aclose_forcefully(stream)

    def start(self, nursery: trio.Nursery) -> None:
        """Start everybody."""
        crowd: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (2, self._produce),
            (4, self._work),
            (4, self._ask_at_random),
            (2, self._read_nothing),
            (1, self._send_garbage),
            (1, self._send_half),
            (1, self._send_single_bytes),
            *((1, attack) for attack in Attacks(self.connect, self.chance, self._count).all()),
        ]
        for number, member in crowd:
            for _ in range(number):
                nursery.start_soon(self._again_and_again, member)

    async def _again_and_again(self, member: Callable[[], Awaitable[None]]) -> None:
        while not self.done.is_set():
            try:
                await member()
            except LostError:
                self.codes["(lost)"] += 1
            await trio.sleep(0.01)

    def _count(self, reply: Reply, allowed: set[str], what: object) -> None:
        self.answers += 1
        self.codes[reply.code or "ok"] += 1
        if reply.code not in allowed and reply.code not in ALWAYS:
            raise AssertionError(f"{what!r} got {reply.error!r}")

    # --- those who behave -------------------------------------------------------------------------

    async def _produce(self) -> None:
        async with self.connect() as peer:
            for _ in range(self.chance.randrange(1, 500)):
                if len(self.owed) >= OWED_MAX:
                    self._room = trio.Event()
                    with trio.move_on_after(1):
                        await self._room.wait()
                if self.done.is_set():
                    return
                number = len(self._finished)
                self._finished.append(0)
                key = b"%s:%d:0:%d" % (DOMAIN, self.chance.randrange(256), number)
                reply = await peer.ask(self._request(Function.SET, key, value=value_of(number)))
                self._count(reply, set(), "SET of a job")
                if not reply.code and not self._finished[number]:
                    # else a worker was faster
                    self.owed.add(number)

    async def _work(self) -> None:
        async with self.connect() as peer:
            for _ in range(self.chance.randrange(1, 200)):
                if self.done.is_set():
                    return
                leased = await peer.ask(
                    self._request(
                        Function.NEXT,
                        DOMAIN,
                        flags=Flag.DATA | LISTEN,
                        timeout=2 * SECOND,
                        ttl=SECOND,
                        count=self.chance.choice((1, 1, 10)),
                    )
                )
                self._count(leased, set(), "NEXT")
                if self.chance.random() < 0.02 and leased.pairs:
                    # dies with the work in its hands
                    self.died += 1
                    return
                for pair in leased.pairs or ():
                    # a slow worker may come to it when its lease is over and another is done
                    finished = self._finished[number_of(pair.key)]
                    assert not 0 < finished < leased.timestamp, f"{pair.key!r} again"
                    assert pair.value == value_of(number_of(pair.key))
                    await self._deal_with(peer, pair.key, leased.timeout)

    async def _deal_with(self, peer: Peer, key: bytes, token: int | None) -> None:
        fields: dict[str, Any] = {"flags": Flag.WORKED_ON, "timeout": token}
        lot = self.chance.random()
        if lot < 0.05:
            fields["ttl"] = self.chance.randrange(SECOND // 10)
            reply = await peer.ask(self._request(Function.RELEASE, key, **fields))
            if not reply.code:
                await self._try_in_vain(peer, key, token)
        elif lot < 0.1:
            fields["ttl"] = 2 * SECOND
            reply = await peer.ask(self._request(Function.TOUCH, key, **fields))
            fields["timeout"] = reply.timeout
            if not reply.code:
                await self._try_in_vain(peer, key, token)
                await self._complete(peer, key, fields)
            return
        elif lot < 0.12:
            reply = await peer.ask(self._request(Function.BURY, key, value=b"why", **fields))
            self._count(reply, {"lease-lost", "not-found"}, "BURY")
            reply = await peer.ask(self._request(Function.KICK, key))
        else:
            await self._complete(peer, key, fields)
            return
        self._count(reply, {"lease-lost", "not-found"}, "the end of a lease")

    async def _complete(self, peer: Peer, key: bytes, fields: dict[str, Any]) -> None:
        number = number_of(key)
        reply = await peer.ask(self._request(Function.DELETE, key, **fields))
        self._count(reply, {"lease-lost", "not-found"}, "completion")
        if not reply.code:
            assert not self._finished[number], f"{key!r} was completed twice"
            self._finished[number] = reply.timestamp
            self.completed += 1
            self.owed.discard(number)
            self._room.set()

    async def _try_in_vain(self, peer: Peer, key: bytes, token: int | None) -> None:
        """Complete a job with a token that is over."""
        fields: dict[str, Any] = {"flags": Flag.WORKED_ON, "timeout": token}
        reply = await peer.ask(self._request(Function.DELETE, key, **fields))
        assert reply.code, f"{key!r} was completed with a token that was over"
        self._count(reply, {"lease-lost", "not-found"}, "completion in vain")

    async def _ask_at_random(self) -> None:
        weights = [operation.weight for operation in OPERATIONS]
        async with self.connect() as peer:
            for _ in range(self.chance.randrange(1, 50)):
                if self.done.is_set():
                    return
                chosen = self.chance.choices(OPERATIONS, weights, k=self.chance.randrange(1, 40))
                asked = {
                    number: (build(operation, self.chance, number), operation)
                    for number, operation in enumerate(chosen)
                }
                await peer.send(*(request for request, _ in asked.values()))
                while asked:
                    reply = await peer.reply()
                    if reply.code in GIVEN_UP and reply.identifier not in asked:
                        # it had come too slowly for the short times of this daemon
                        raise LostError
                    request, operation = asked.pop(reply.identifier)
                    self._count(reply, operation.codes, request)

    # --- the hostile ------------------------------------------------------------------------------

    async def _read_nothing(self) -> None:
        async with self.connect() as peer:
            many = encode_request(self._request(Function.STATS, b"")) * 1000
            with trio.move_on_after(self.chance.uniform(0.1, 8)):
                while not self.done.is_set():
                    await peer.send_bytes(many)

    async def _send_garbage(self) -> None:
        async with self.connect() as peer:
            start = self.chance.choice((b"", b"FJ", b"FJ\0\1", b"FJ\0\1\0\2"))
            await peer.send_bytes(start + self.chance.randbytes(2000))
            await peer.send_end()
            while True:
                self.codes[(await peer.reply()).code] += 1

    async def _send_half(self) -> None:
        async with self.connect() as peer:
            whole = encode_request(self._request(Function.SET, b"half", value=bytes(200_000)))
            await peer.send_bytes(whole[: self.chance.randrange(1, len(whole))])
            with trio.move_on_after(self.chance.uniform(0.1, 5)):
                self.codes[(await peer.reply()).code] += 1

    async def _send_single_bytes(self) -> None:
        async with self.connect() as peer:
            for byte in encode_request(self._request(Function.GET, b"soak-001", flags=Flag.DATA)):
                await peer.send_bytes(bytes([byte]))
                await trio.sleep(0.001)
            # on a loaded machine they come too slowly for --request-timeout: the daemon says so and
            # ends the connection, which the next byte finds
            self._count(await peer.reply(), {"not-found", *GIVEN_UP}, "GET in single bytes")

    # --- the end ----------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Work off what is owed; the test fails if anything of it does not come.

        Nobody else works any more; leases of the dead run out meanwhile.
        """
        async with self.connect() as peer:
            # a worker that is stopped between BURY and KICK leaves it buried
            await peer.ask(self._request(Function.KICK, b"", second_key=DOMAIN, count=OWED_MAX))
            with trio.fail_after(SILENCE_SECONDS):
                while self.owed:
                    leased = await peer.ask(
                        self._request(Function.NEXT, DOMAIN, flags=LISTEN, ttl=SECOND, count=100)
                    )
                    for pair in leased.pairs or ():
                        fields = {"flags": Flag.WORKED_ON, "timeout": leased.timeout}
                        await self._complete(peer, pair.key, fields)
                while await self._left(peer):  # noqa: ASYNC110 - it happens in the daemon
                    await trio.sleep(0.1)

    async def _left(self, peer: Peer) -> bool:
        """Whether the daemon still holds what belonged to connections that are closed."""
        reply = await peer.ask(self._request(Function.STATS, b""))
        (pair,) = reply.pairs or ()
        facts = msgspec.json.decode(pair.value)
        return bool(facts["connections"] > 1 or facts["subscriptions"])

    @staticmethod
    def _request(
        function: int, key: bytes, *, value: bytes | None = None, flags: int = 0, **fields: Any
    ) -> Request:
        persist = Flag.PERSIST if function == Function.SET else 0
        return ask(function, key, value=value, flags=int(flags | persist), **fields)
