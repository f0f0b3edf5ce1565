"""References of the native leaves: a server under load keeps no object and no count of references.

    FJ_STEADY_REQUESTS=1000000 python -m pytest -s tests/soak/test_native_references.py

The server runs in a thread of this process, where its allocations can be counted. A debug build of
Python counts all references, but not those that extensions of a normal build (msgspec) release.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from fastjournal.clock import SystemClock, unique_timestamp
from fastjournal.disk import OsDisk
from fastjournal.protocol import Pair, Reply, Request, encode_request
from fastjournal.protocol.constants import Flag, Function
from fastjournald.config.options import Config
from fastjournald.recovery.recover import recover_engine
from fastjournald.server import Server
from fastjournald.tables.entry import Entry
from tests.integration.raw_client import RawClient, build, codes, set_request
from tests.soak.soak import resident_bytes

REQUESTS = int(os.environ.get("FJ_STEADY_REQUESTS", "50000"))
WINDOW = 64
ERRORS = ("bad-key", "exists", "not-found", "stale", "unknown-function")
BLOCKS_MAX = 2000
"""Blocks of memory that caches, the free lists of Python and the log's bookkeeping may add."""

RESIDENT_BYTES_MAX = 16 << 20
"""Memory that is in no such block, as that of large values."""


class Counts(NamedTuple):
    """What a leaf that loses a reference makes grow."""

    blocks: int
    references: tuple[int, ...]
    """Of objects that the leaves touch with each request; from Python 3.12 on None has no count."""

    @classmethod
    def now(cls) -> Counts:
        gc.collect()
        touched = (None, Request, Reply, Pair, Entry)
        return cls(sys.getallocatedblocks(), tuple(map(sys.getrefcount, touched)))


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Run a server in a thread; return its address."""
    config = Config(cmdlog_path=str(directory), listen=["127.0.0.1:0"], cmdlog_sync="os")
    clock, disk = SystemClock(), OsDisk()
    disk.mkdir(config.cmdlog_path)
    engine, writer = recover_engine(disk, config, config.settings(), clock, seed=bytes(8))
    server = Server(config, engine, writer, disk, clock)
    stopped, ready = trio.Event(), threading.Event()
    found: list[str] = []
    tokens: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        tokens.append(trio.lowlevel.current_trio_token())

        def note(addresses: list[str]) -> None:
            found.extend(addresses)
            ready.set()

        await server.run(note, stopped.wait)

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        assert ready.wait(60)
        yield found[0]
    finally:
        tokens[0].run_sync_soon(stopped.set)
        thread.join(60)
        assert not thread.is_alive()


def load(clients: list[RawClient], said: Counter[str]) -> None:
    """Send one window: jobs that are set, leased and completed; plain keys; each refusal."""
    first, second = clients[:2]
    jobs = [b"steady:1:0:%d" % number for number in range(WINDOW)]
    plain = [b"plain/%d" % number for number in range(WINDOW // 4)]

    def ask(client: RawClient, *requests: Request) -> list[Reply]:
        client.send(*requests)
        replies = [client.reply() for _ in requests]
        said.update(codes(replies))
        return replies

    ask(first, *(set_request(key, b"v" * 100, uri=b"uri/%b" % key) for key in jobs))
    [leased] = ask(second, build(Function.NEXT, b"steady", count=WINDOW, timeout=60_000_000))
    assert len(leased.pairs) == WINDOW
    done = {"flags": Flag.WORKED_ON | Flag.PERSIST, "timeout": leased.timeout}
    ask(second, *(build(Function.DELETE, key, **done) for key in jobs))
    ask(first, *(set_request(key) for key in plain))
    ask(first, *(build(Function.GET, key, flags=Flag.DATA | Flag.META) for key in plain))
    ask(first, *(set_request(key, b"w" * 300, at=1) for key in plain))
    ask(first, *(build(Function.DELETE, key) for key in plain))
    ask(second, *(build(Function.GET, key) for key in plain))
    ask(second, build(999), set_request(b""), build(Function.DELETE, jobs[0], **done))
    # one request of each at a time, for the round of the poller
    for client in clients:
        client.send(set_request(b"each/%d" % client.socket.fileno()))
    said.update(codes(client.reply() for client in clients))
    # a frame in two pieces
    frame = encode_request(build(Function.NOP))
    first.socket.sendall(frame[:7])
    first.socket.sendall(frame[7:])
    said.update(codes([first.reply()]))


def test_server_keeps_no_object_and_no_reference_of_requests(tmp_path: Path, native: bool) -> None:
    said = Counter[str]()
    with serving(tmp_path / "log") as address:
        clients = [RawClient(address) for _ in range(8)]
        try:
            while said.total() < REQUESTS // 5:
                load(clients, said)
            warm, begin, began = Counts.now(), said.total(), unique_timestamp()
            resident = resident_bytes(os.getpid())
            while said.total() < begin + REQUESTS:
                load(clients, said)
            end = Counts.now()
        finally:
            for client in clients:
                client.socket.close()
    assert set(said) == {"", *ERRORS}, said
    grown = resident_bytes(os.getpid()) - resident
    print(
        f"native leaves: {native}; {said.total() - begin} requests in "
        f"{(unique_timestamp() - began) / 1e6:.1f} s; blocks {warm.blocks} to {end.blocks}, "
        f"references {warm.references} to {end.references}, "
        f"resident bytes {resident} and {grown}"
    )
    assert end.blocks - warm.blocks < BLOCKS_MAX
    gained = [after - before for before, after in zip(warm.references, end.references, strict=True)]
    assert max(gained) < BLOCKS_MAX
    assert grown < RESIDENT_BYTES_MAX
