"""A daemon without sockets for a spool: engine, log on a disk that fails, restarts, and a worker.

Its journal is recovered from the disk at each start, after a kill or a power loss. The worker takes
jobs and completes them; what it was handed, and what the daemon has confirmed, is kept here, as the
world outside knows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

from fastjournal.errors import LogFailedError
from fastjournal.protocol import Flag, Function, Reply, Request, decode_reply
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.compaction.compact_segment import DURABLE, NOW, TURN, Blocking, compact_segment
from fastjournald.config.options import Config
from fastjournald.recovery.recover import recover_engine

LOG: Final = "/log"
DOMAIN: Final = b"good"
"""The worker takes jobs of this queue."""
LEASE_US: Final = 2_000_000
_TRIES: Final = 3


class DiedError(Exception):
    """The daemon has ended: a kill, a power loss, or its disk failed."""


class SpoolDaemon:
    """Daemon and worker; see the module.

    Args:
        random: Random numbers for faults and losses.
        clock: Clock of the machine.
    """

    def __init__(self, random: Random, clock: ManualClock) -> None:
        self._random = random
        self._clock = clock
        self._disk = SimulatedDisk(random.getrandbits(32))
        self._disk.mkdir(LOG)
        self._config = Config(cmdlog_path=LOG, cmdlog_seg_size=random.choice((1000, 20_000)))
        self._end_rate = random.choice((0.005, 0.03))
        """A daemon that lives long has other journals than one that ends all the time."""
        self.starts = 0
        self.handed: set[bytes] = set()
        """Keys of jobs that the worker was handed."""
        self.completed: set[bytes] = set()
        """Keys of jobs whose completion the daemon has confirmed."""
        self.doubled: list[bytes] = []
        """Keys of jobs that the worker was handed after that."""
        self._start()

    def keys(self) -> set[bytes]:
        """Return the keys of the entries that the daemon has."""
        return {entry.key for entry in self._engine.store}

    def has_work(self) -> bool:
        """Whether there is an entry that the worker asks for."""
        return any(entry.domain.name == DOMAIN for entry in self._engine.store)

    def standing(self, key: bytes) -> int:
        """Return the timestamp that stands under a key or URI, of an entry or a tombstone; or 0."""
        store = self._engine.store
        entry = store.find(key)
        if entry is not None:
            return entry.timestamp
        return store.tombstones.get(key, self._clock.instant_us) or 0

    def values(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values that are there under these keys or URIs."""
        entries = {key: self._engine.store.find(key) for key in keys}
        found = {key: entry.value for key, entry in entries.items() if entry is not None}
        return {key: value for key, value in found.items() if isinstance(value, bytes)}

    def serve(self, requests: list[Request]) -> list[Reply]:
        """Carry out requests and commit; raise DiedError where there is no reply to any of them."""
        draw = self._random
        if draw.random() < self._end_rate:
            self._disk.fail_at(draw.randint(1, 4), draw.choice(("any", "write", "sync")))
        try:
            replies = [self._handle(request) for request in requests]
            if draw.random() < self._end_rate:
                self.end()
            self._writer.write()
            if draw.random() < self._end_rate:
                self.end()
            self._writer.sync()
            if draw.random() < self._end_rate:
                self.end()  # all is durable, and nobody hears of it
            if draw.random() < 0.05 and self._writer.sealed:
                self._compact()
        except LogFailedError:
            self.end()
        return replies

    def work(self) -> None:
        """Take some jobs, and complete them."""
        draw = self._random
        flags = int(Flag.DATA)
        count = draw.choice((1, 3, 20))
        (leased,) = self.serve(
            [
                Request(
                    Function.NEXT,
                    1,
                    flags,
                    self._clock.instant_us,
                    DOMAIN,
                    timeout=LEASE_US,
                    count=count,
                )
            ]
        )
        pairs = leased.pairs or []
        keys = [pair.key for pair in pairs]
        self.doubled += [key for key in keys if key in self.completed]
        self.handed.update(keys)
        if not keys or draw.random() < 0.1:
            return  # the worker dies: its leases end
        done = [
            Request(
                Function.DELETE,
                number,
                int(Flag.WORKED_ON | Flag.PERSIST),
                self._clock.instant_us,
                key,
                timeout=leased.timeout,
            )
            for number, key in enumerate(keys, 1)
        ]
        replies = self.serve(done)
        self.completed.update(keys[reply.identifier - 1] for reply in replies if not reply.error)

    def end(self) -> None:
        """Kill the daemon, or cut the power of its machine; the next one starts."""
        for _ in range(_TRIES):
            seed = self._random.getrandbits(32)
            is_power = self._random.random() < 0.5
            self._disk = self._disk.crash(seed) if is_power else self._disk.kill(seed)
            if self._random.random() < 0.1:
                self._disk.fail_at(self._random.randint(1, 10))
            try:
                self._start()
            except LogFailedError:
                continue
            raise DiedError
        self._disk = self._disk.kill()
        self._start()
        raise DiedError

    def _start(self) -> None:
        self.starts += 1
        seed = self.starts.to_bytes(8)
        self._engine, self._writer = recover_engine(
            self._disk, self._config, self._config.settings(), self._clock, seed=seed
        )

    def _handle(self, request: Request) -> Reply:
        answer = self._engine.handle("session", request, self._clock.instant_us)
        assert isinstance(answer, bytes), answer
        return decode_reply(answer)

    def _compact(self) -> None:
        info = self._random.choice(list(self._writer.sealed))
        steps = compact_segment(
            self._engine.store, self._writer, self._disk, LOG, info, self._clock.instant_us
        )
        answer: object = None
        try:
            while True:
                wanted = steps.send(answer)
                answer = None
                if wanted in (TURN, NOW):
                    answer = self._clock.instant_us
                elif wanted is DURABLE:
                    self._writer.write()
                    self._writer.sync()
                else:
                    assert isinstance(wanted, Blocking)
                    answer = wanted.call()
        except StopIteration:
            return
