"""LIMIT as politeness per host: no two workers break it, whatever happens to them or the daemon.

Sixteen workers share fifty domains. Some of them die with leases, and the daemon is killed and
started again. Every delivery that a worker got is held against the interval and the bound
on jobs of its domain, by the daemon's own clock.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from fastjournal import SyncClient
from fastjournal.keys import parse_journal_key
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, listen_request, set_request

WORKERS = 16
DOMAINS = 50
ENTRIES = 8
KILLS = 3
INTERVAL_US = 150_000
SLOW_INTERVAL_US = 400_000
SLOW_DOMAINS = 5
"""The first domains have a LIMIT of their own."""
LEASE_US = 700_000
NOTHING_TO_DO = 75
PATIENCE_S = 120.0
"""Far longer than the work takes, so that a loaded machine fails no test."""


@dataclass
class HandOut:
    """One entry that a worker was given."""

    at: int
    """By the daemon's clock, microseconds."""
    ends: int
    """The earliest instant at which somebody else may have work of the domain."""


class Fleet:
    """Workers, what they were given, and a daemon that dies now and then."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.lock = threading.Lock()
        self.hand_outs: dict[bytes, list[HandOut]] = defaultdict(list)
        self.done: set[bytes] = set()
        self.lost = 0
        """Leases that workers let run out."""
        self.problems: list[BaseException] = []
        self.stopped = threading.Event()

    def work(self, number: int) -> None:
        """Work until all is done, over new connections where one is lost."""
        rng = random.Random(number)
        try:
            while not self.stopped.is_set():
                with suppress(OSError, EOFError), RawClient(self.daemon.address) as client:
                    self._converse(client, rng)
                self.stopped.wait(0.02)
        except BaseException as error:  # noqa: BLE001 - told by the test's thread
            self.problems.append(error)

    def _converse(self, client: RawClient, rng: random.Random) -> None:
        while not self.stopped.is_set():
            count = rng.choice([1, 1, 4, 60])
            asked = listen_request(timeout=LEASE_US, ttl=100_000, count=count)
            reply = client.ask(asked)
            if not reply.pairs:
                continue
            assert reply.timeout is not None
            with self.lock:
                for pair in reply.pairs:
                    domain = parse_journal_key(pair.key)
                    assert domain is not None
                    self.hand_outs[domain[0]].append(HandOut(reply.timestamp, reply.timeout))
            if rng.random() < 0.1:
                # it dies with what it has
                with self.lock:
                    self.lost += len(reply.pairs)
                return
            time.sleep(rng.random() * 0.03)
            for pair in reply.pairs:
                self._complete(client, pair.key, reply.timestamp, reply.timeout)

    def _complete(self, client: RawClient, key: bytes, at: int, token: int) -> None:
        parts = parse_journal_key(key)
        assert parts is not None
        (mine,) = [one for one in self.hand_outs[parts[0]] if (one.at, one.ends) == (at, token)]
        # from here on the daemon may take it for done, whether the reply comes or not
        mine.ends = min(token, time.time_ns() // 1000)
        request = build(Function.DELETE, key, flags=Flag.WORKED_ON | Flag.PERSIST, timeout=token)
        if client.ask(request).code in ("", "not-found"):
            with self.lock:
                self.done.add(key)


def limit(domain: bytes, value: bytes) -> Request:
    request = build(Function.LIMIT, domain, value)
    request.value_type = ValueType.STRING
    return request


def left(daemon: DaemonProcess) -> int:
    """Return how many entries the daemon has."""
    with RawClient(daemon.address) as client:
        reply = client.ask(build(Function.STATS))
    assert reply.pairs
    return int(json.loads(reply.pairs[0].value)["entries"])


def test_limit_holds_for_all_workers_across_lost_leases_and_kills(tmp_path: Path) -> None:
    interval_s = f"{INTERVAL_US / 1_000_000}"
    options = ("--default-interval", interval_s, "--default-jobs", "1")
    with DaemonProcess(tmp_path, *options) as daemon:
        names = [b"host%02d" % number for number in range(DOMAINS)]
        keys = [b"%s:1:0:%d" % (name, number) for name in names for number in range(ENTRIES)]
        with RawClient(daemon.address) as client:
            for name in names[:SLOW_DOMAINS]:
                value = b'{"interval_us": %d}' % SLOW_INTERVAL_US
                assert client.ask(limit(name, value)).code == ""
            for key in keys:
                assert client.ask(set_request(key)).code == ""
        fleet = Fleet(daemon)
        workers = [threading.Thread(target=fleet.work, args=(n,)) for n in range(WORKERS)]
        for worker in workers:
            worker.start()
        try:
            deadline = time.monotonic() + PATIENCE_S
            kills = [len(keys) * (n + 1) // (KILLS + 1) for n in range(KILLS)]
            # a completion whose reply a kill took is known to the daemon only
            while left(daemon):
                assert time.monotonic() < deadline, f"{len(fleet.done)} of {len(keys)} done"
                assert not fleet.problems
                if kills and len(fleet.done) >= kills[0]:
                    del kills[0]
                    daemon.kill()
                    daemon.start()
                time.sleep(0.05)
        finally:
            fleet.stopped.set()
            for worker in workers:
                worker.join()
        assert not fleet.problems
        assert fleet.lost
        assert not kills
    assert sorted(fleet.hand_outs) == names
    for number, name in enumerate(names):
        interval = SLOW_INTERVAL_US if number < SLOW_DOMAINS else INTERVAL_US
        for before, after in pairwise(sorted(fleet.hand_outs[name], key=lambda one: one.at)):
            assert after.at - before.at >= interval, (name, before, after)
            assert after.at >= before.ends, (name, before, after)


@pytest.mark.parametrize("by", ["limit", "default", "pop"])
def test_limit_interval_that_runs_outlives_compaction_and_a_restart(
    tmp_path: Path, by: str
) -> None:
    options = ("--cmdlog-seg-size", "65536", "--cmdlog-clean-int", "50")
    options += ("--listen", f"unix:{tmp_path}/socket")
    if by == "default":
        options += ("--default-interval", "600")
    with DaemonProcess(tmp_path, *options) as daemon:
        cli = Cli(tmp_path, daemon.address)
        if by != "default":
            assert cli("limit", "h", "--interval", "600s").returncode == 0
        for name in ("one", "two"):
            assert cli("set", f"h:128:0:{name}", "v").returncode == 0
        take = ("--delete",) if by == "pop" else ("--exec", "true")
        assert cli("next", "h", *take, "--count", "1").returncode == 0
        with SyncClient(daemon.address) as client:
            before = client.explain("h:128:0:two")
            first = min(daemon.log_path.glob("*.log"))
            deadline = time.monotonic() + PATIENCE_S
            for number in range(10**6):
                if number > 60 and not first.exists():
                    break
                assert time.monotonic() < deadline, "the log was not compacted"
                client.set(f"k{number % 3}", bytes(60_000), overwrite=True)
        daemon.kill()
        daemon.start()
        assert cli("next", "h").returncode == NOTHING_TO_DO
        with SyncClient(daemon.address) as client:
            after = client.explain("h:128:0:two")
    assert after.domain_waits_until_us == before.domain_waits_until_us > before.now_us
    assert after.domain_delivered_us == before.domain_delivered_us > 0
