"""Worker of the spool soak: takes jobs from the daemon and completes them."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import trio

from fastjournal.clock import unique_timestamp
from fastjournal.protocol import Flag, Function, Request
from tests.soak.peer import LISTEN, LostError, Peer
from tests.soak.spool_writer import DOMAIN

SECOND_US: Final = 1_000_000
LEASE_US: Final = 4 * SECOND_US
BATCH: Final = 200


class Worker:
    """Takes jobs and completes them; a set of names each, by what happened to them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.delivered: set[str] = set()
        self.completed: set[str] = set()
        self.doubled: list[str] = []
        self.again = 0
        self.idle = 0
        """Empty answers in a row."""

    async def work(self) -> None:
        """Work until the end, on one connection after the other."""
        while True:
            with suppress(LostError, OSError):
                stream = await trio.open_tcp_stream("127.0.0.1", self._port)
                try:
                    peer = Peer(stream)
                    while True:
                        await self._turn(peer)
                finally:
                    await trio.aclose_forcefully(stream)
            self.idle = 0
            await trio.sleep(0.05)

    async def _turn(self, peer: Peer) -> None:
        leased = await peer.ask(
            Request(
                Function.NEXT,
                0,
                int(Flag.DATA | LISTEN),
                unique_timestamp(),
                DOMAIN.encode(),
                timeout=LEASE_US,
                ttl=SECOND_US // 2,
                count=BATCH,
            )
        )
        if leased.code in ("busy", "shutting-down", "read-only"):
            await trio.sleep(0.1)
            return
        assert not leased.code, leased.error
        pairs = leased.pairs or []
        self.idle = 0 if pairs else self.idle + 1
        names = [pair.key.split(b":", 3)[3].decode() for pair in pairs]
        for name, pair in zip(names, pairs, strict=True):
            assert pair.value.startswith(name.encode()), f"{name}: another value"
            if name in self.completed:
                self.doubled.append(name)
            self.again += name in self.delivered
            self.delivered.add(name)
        await peer.send(
            *(
                Request(
                    Function.DELETE,
                    number,
                    int(Flag.WORKED_ON),
                    unique_timestamp(),
                    pair.key,
                    timeout=leased.timeout,
                )
                for number, pair in enumerate(pairs, 1)
            )
        )
        for _ in pairs:
            reply = await peer.reply()
            if not reply.code:
                self.completed.add(names[reply.identifier - 1])
