"""Remote log under load: throughput and processor time with a store that takes its time.

    python -m tests.bench.bench_remote_log [--store-ms 5] [--rounds 5]

Each create of the daemon's store takes so long. It is measured in turns with a daemon without a
remote log. Two loads of persistent SETs with values of 100 bytes: 50 clients that wait for each
reply, and windows of 256 on 8 connections. The last line of each says what the remote log costs, as
shares of the throughput and of the processor time of a SET without one.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tests.bench.bench_commit import Round, frame, load
from tests.bench.one_connection import DIRECTORY, WINDOW, Connection
from tests.bench.paced import processor_seconds

ROUND_SECONDS = 2.0
CLIENTS = 50
CONNECTIONS = 8
WINDOWS = 60
START_SECONDS = 60.0
FRAMES = 100_000
"""More than the clients send in a round."""
NUMBERS = count()

PROGRAM = """
import sys, time
from pathlib import Path
import trio
from fastjournal.clock import SystemClock
from fastjournal.disk import OsDisk
from fastjournal.testing.object_store import MemoryStore
from fastjournald.config.options import Config
from fastjournald.group_commit.remote_commit import boottime_us
from fastjournald.main import SWITCH_SECONDS
from fastjournald.recovery.recover import recover_engine
from fastjournald.server import Server
from fastjournald.tasks.checkpoints import Checkpoints
from fastjournal.remote.writer import RemoteAck
from tests.unit.server_fixture import new_primary

class SlowStore(MemoryStore):
    chunks = 0
    def create(self, name, data):
        time.sleep(seconds)
        self.chunks += 1
        return True

Checkpoints._is_due = lambda _: False
seconds, log, ready = float(sys.argv[1]) / 1000, sys.argv[2], sys.argv[3]
sys.setswitchinterval(SWITCH_SECONDS)
config = Config(cmdlog_path=log, listen=["127.0.0.1:0"], cmdlog_clean_int=0)
disk, clock = OsDisk(), SystemClock()
disk.mkdir(log)
engine, writer = recover_engine(disk, config, config.settings(), clock, seed=bytes(8))
store = SlowStore()
primary = new_primary(store, writer, RemoteAck.DURABLE, boottime_us) if seconds else None
server = Server(config, engine, writer, disk, clock, remote=primary)

async def main():
    async with trio.open_nursery() as nursery:
        stopped = trio.Event()
        def begin(addresses):
            Path(ready + ".new").write_text(addresses[0])
            Path(ready + ".new").rename(ready)
        async def watch():
            import signal
            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                async for _ in signals:
                    stopped.set()
        nursery.start_soon(watch)
        await server.run(begin, stopped.wait)
        nursery.cancel_scope.cancel()

trio.run(main)
"""
"""A daemon whose store takes so many milliseconds for a request; 0: it has none. It takes no
checkpoints: the store keeps nothing."""


class Figures(NamedTuple):
    """Figures of one load."""

    per_second: float
    processor_us: float
    """Of the daemon, for each request."""


class Daemon:
    """A daemon on a log of its own.

    Args:
        directory: For its files.
        store_ms: Time of a request of its store; 0: it has no remote log.
    """

    def __init__(self, directory: Path, store_ms: float) -> None:
        ready = directory / "ready"
        command = [sys.executable, "-c", PROGRAM, str(store_ms), directory / "log", ready]
        path = ":".join(str(Path(__file__).parents[2] / part) for part in ("", "daemon"))
        self.process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path})
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the daemon did not start")
            time.sleep(0.02)
        self.address = ready.read_text()

    def measure(self, run: Callable[[str], tuple[int, float]]) -> Figures:
        """Return the figures of a load, which returns its requests and its seconds."""
        before = processor_seconds(self.process.pid)
        requests, seconds = run(self.address)
        used = processor_seconds(self.process.pid) - before
        return Figures(requests / seconds, 1e6 * used / requests)

    def stop(self) -> None:
        """End it, and assert that it ends well."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(START_SECONDS):
            raise RuntimeError("the daemon failed")


def single_requests(address: str) -> tuple[int, float]:
    """Have 50 clients wait for each reply."""
    result, frames = Round(), [frame(next(NUMBERS)) for _ in range(FRAMES)]
    load(address, CLIENTS, ROUND_SECONDS, result, frames)
    return result.requests, result.seconds


def windows(address: str) -> tuple[int, float]:
    """Have 8 connections send windows of 256, each when the one before is answered."""
    connections = [Connection(address) for _ in range(CONNECTIONS)]
    frames = [connection.windows(WINDOWS * WINDOW) for connection in connections]
    threads = [
        threading.Thread(target=connection.send_windows, args=(sent, WINDOW))
        for connection, sent in zip(connections, frames, strict=True)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return CONNECTIONS * WINDOWS * WINDOW, seconds


LOADS = {f"{CLIENTS} clients": single_requests, f"{CONNECTIONS} x {WINDOW}": windows}


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description="Measure the remote log.")
    parser.add_argument("--store-ms", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found: dict[tuple[str, float], list[Figures]] = {}
    for _ in range(given.rounds):
        for store_ms in (0.0, given.store_ms):
            with tempfile.TemporaryDirectory(dir=DIRECTORY) as directory:
                daemon = Daemon(Path(directory), store_ms)
                try:
                    for run in LOADS.values():
                        run(daemon.address)
                    for name, run in LOADS.items():
                        found.setdefault((name, store_ms), []).append(daemon.measure(run))
                finally:
                    daemon.stop()
    for name in LOADS:
        medians = []
        for store_ms in (0.0, given.store_ms):
            rounds = found[name, store_ms]
            rates = [each.per_second for each in rounds]
            used = statistics.median(each.processor_us for each in rounds)
            medians.append((statistics.median(rates), used))
            print(
                f"{name}, {f'store {store_ms:g} ms' if store_ms else 'no remote log'}:"
                f" {statistics.median(rates):,.0f}/s ({min(rates):,.0f} to {max(rates):,.0f}),"
                f" {used:.1f} us of processor time for each"
            )
        (without, used_without), (with_store, used_with) = medians
        shares = with_store / without, used_with / used_without
        print(f"  throughput {shares[0]:.2f}, processor time {shares[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
