"""Clients of the soak that use one bound to the full, each its own, as an attacker would.

None of them may hurt another client, and none may let the daemon's memory grow. Each attack ends
with its entries deleted, so that the next one begins as the first did.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

import msgspec
import trio

from fastjournal.clock import unique_timestamp
from fastjournal.limits import INSTANT_MAX, KEY_BYTES_MAX
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Reply, Request
from tests.soak.peer import LISTEN, Peer

SECOND = 1_000_000
ENTRIES = 250
"""Entries of one attack: the most that one KICK takes, and half of one NEXT."""

OVERWRITE = int(Flag.OVERWRITE)
PERSIST = int(Flag.PERSIST)
REGEX = Query.REGEX << QUERY_SHIFT

REFUSALS = {"busy", "too-large", "bad-regex"}
"""Bounds that an attack may meet."""
CHANGED = {"not-found", "worked-on", "lease-lost", "exists", "locked", "stale"}
"""Another client of the soak was here: random scans lease what they find."""

Attack = Callable[[], Awaitable[None]]


class Attacks:
    """All attacks, on connections of their own.

    Args:
        connect: Connects for the length of a block.
        chance: Random numbers for all choices.
        count: Counts a reply, which may have one of some error codes.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Peer]],
        chance: Random,
        count: Callable[[Reply, set[str], object], None],
    ) -> None:
        self._connect = connect
        self._chance = chance
        self._count = count

    def all(self) -> list[Attack]:
        """Return every attack."""
        return [
            self._lease_until_the_end_of_time,
            self._let_leases_end_at_once,
            self._kick_in_bulk,
            self._resume_many_waiters,
            self._hang_up_while_waiting,
            self._hang_up_under_a_pop,
            self._cancel_waits,
            self._listen_widely,
            self._say_nothing,
            self._leave_long_tombstones,
            self._wait_for_long_names,
        ]

    async def _ask_all(self, peer: Peer, requests: list[Request], allowed: set[str]) -> list[Reply]:
        """Send requests in one piece, and return their replies in the order of their arrival."""
        for number, request in enumerate(requests):
            request.identifier = number
        await peer.send(*requests)
        replies = [await peer.reply() for _ in requests]
        for reply in replies:
            self._count(reply, allowed, requests[reply.identifier % len(requests)])
        return replies

    async def _fill(self, peer: Peer, domain: bytes, *, count: int = ENTRIES) -> list[bytes]:
        """Set entries that are due; return their keys."""
        keys = [b"%b:128:0:%03d" % (domain, number) for number in range(count)]
        requests = [ask(Function.SET, key, flags=PERSIST | OVERWRITE, value=b"v") for key in keys]
        await self._ask_all(peer, requests, CHANGED)
        return keys

    async def _erase(self, peer: Peer, keys: list[bytes]) -> None:
        requests = [ask(Function.DELETE, key, flags=OVERWRITE) for key in keys]
        await self._ask_all(peer, requests, CHANGED)

    # --- leases ---------------------------------------------------------------------------------

    async def _lease_until_the_end_of_time(self) -> None:
        """All tokens at the last instant that there is."""
        async with self._connect() as peer:
            keys = await self._fill(peer, b"forever")
            next_one = ask(Function.NEXT, b"forever", timeout=INSTANT_MAX, count=1)
            await self._ask_all(peer, [copy(next_one) for _ in keys], set())
            await self._erase(peer, keys)

    async def _let_leases_end_at_once(self) -> None:
        async with self._connect() as peer:
            keys = await self._fill(peer, b"brief")
            lease = ask(Function.NEXT, b"brief", timeout=SECOND // 5, count=len(keys))
            for _ in range(3):
                await self._ask_all(peer, [copy(lease)], set())
                await trio.sleep(0.3)
            await self._erase(peer, keys)

    # --- work that one request makes ------------------------------------------------------------

    async def _kick_in_bulk(self) -> None:
        async with self._connect() as peer:
            keys = await self._fill(peer, b"kicked")
            kick = ask(Function.KICK, b"", second_key=b"kicked", count=len(keys))
            for _ in range(3):
                await self._ask_all(peer, [ask(Function.BURY, key) for key in keys], CHANGED)
                await self._ask_all(peer, [copy(kick) for _ in range(64)], set())
            await self._erase(peer, keys)

    async def _resume_many_waiters(self) -> None:
        async with self._connect() as peer:
            keys = await self._fill(peer, b"resumed")
            await self._ask_all(peer, [ask(Function.PAUSE, b"resumed", ttl=60 * SECOND)], set())
            wait = ask(
                Function.NEXT, b"resumed", flags=LISTEN, ttl=SECOND, timeout=SECOND, count=500
            )
            resume = ask(Function.PAUSE, b"resumed", ttl=0)
            await self._ask_all(peer, [*(copy(wait) for _ in range(60)), resume], REFUSALS)
            await self._erase(peer, keys)

    # --- clients that are gone ------------------------------------------------------------------

    async def _hang_up_while_waiting(self) -> None:
        """A lease of work that a living worker would have got."""
        async with self._connect() as peer:
            wait = ask(Function.NEXT, b"work", flags=LISTEN, ttl=SECOND, timeout=SECOND, count=10)
            await peer.send(wait)
            await trio.sleep(self._chance.uniform(0, 0.05))

    async def _hang_up_under_a_pop(self) -> None:
        async with self._connect() as peer:
            keys = await self._fill(peer, b"popped", count=20)
            pop = ask(Function.NEXT, b"popped", flags=OVERWRITE, count=5)
            await peer.send(*(copy(pop) for _ in range(4)))
        async with self._connect() as peer:
            await self._erase(peer, keys)

    async def _cancel_waits(self) -> None:
        async with self._connect() as peer:
            wait = ask(Function.NEXT, b"never", flags=LISTEN)
            waits = [copy(wait) for _ in range(64)]
            cancels = [ask(Function.CANCEL, b"", count=number) for number in range(len(waits))]
            for _ in range(10):
                await self._ask_all(peer, [*map(copy, waits), *map(copy, cancels)], set())

    # --- memory and time of the daemon ----------------------------------------------------------

    async def _listen_widely(self) -> None:
        async with self._connect() as peer:
            listens = [
                ask(Function.GET, b"soak-%03d" % number, second_key=b"t", flags=LISTEN, count=1)
                if number % 2
                else ask(Function.GET, b"(soak|churn)-.*%d$" % number, flags=LISTEN | REGEX)
                for number in range(200)
            ]
            await self._ask_all(peer, listens, REFUSALS)
            with trio.move_on_after(self._chance.uniform(0, 1)):
                # notifications are passed over; no reply comes
                await peer.reply()

    async def _say_nothing(self) -> None:
        async with self._connect() as peer:
            with trio.move_on_after(self._chance.uniform(0, 3)):
                await peer.wait()

    async def _leave_long_tombstones(self) -> None:
        async with self._connect() as peer:
            keys = [b"%08d" % self._chance.randrange(100_000_000) for _ in range(100)]
            long_keys = [key.ljust(KEY_BYTES_MAX, b"-") for key in keys]
            requests = [ask(Function.DELETE, key) for key in long_keys]
            await self._ask_all(peer, requests, {"not-found"})

    async def _wait_for_long_names(self) -> None:
        async with self._connect() as peer:
            names = [b"%d" % number for number in range(60)]
            await self._ask_all(
                peer,
                [
                    ask(Function.NEXT, name.ljust(4000, b"-"), flags=LISTEN, ttl=SECOND // 10)
                    for name in names
                ],
                REFUSALS,
            )


def ask(function: int, key: bytes, *, value: bytes | None = None, **fields: Any) -> Request:
    """Return a request of this instant."""
    return Request(
        function=function,
        timestamp=unique_timestamp(),
        key=key,
        value_type=None if value is None else 1,
        value=value or b"",
        **fields,
    )


def copy(request: Request) -> Request:
    """Return the same request with a timestamp of its own."""
    return msgspec.structs.replace(request, timestamp=unique_timestamp())
