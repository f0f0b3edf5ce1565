"""Remote log under load: throughput and processor time with a store that takes its time.

    python -m tests.bench.bench_remote_log [--store-ms 5] [--rounds 5]
    python -m tests.bench.bench_remote_log --standby
    python -m tests.bench.bench_remote_log --restore LOG

Each create of the daemon's store takes so long. It is measured in turns with a daemon without a
remote log. Two loads of persistent SETs with values of 100 bytes: 50 clients that wait for each
reply, and windows of 256 on 8 connections. The last line of each says what the remote log costs, as
shares of the throughput and of the processor time of a SET without one.

``--standby``: processor time of an installed standby at 1,000 SETs a second, with chunks each 5 and
each 30 ms. ``--restore``: what the restore of a log takes that a daemon has stored in a directory,
beside a copy of the objects, and the start on it. Both stores are directories.
"""

from __future__ import annotations

import argparse
import os
import shutil
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
from tests.bench.bench_start import start
from tests.bench.one_connection import DIRECTORY, WINDOW, Connection
from tests.bench.paced import Paced, processor_seconds
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed

ROUND_SECONDS = 2.0
CLIENTS = 50
CONNECTIONS = 8
WINDOWS = 60
START_SECONDS = 60.0
STANDBY_RATE, STANDBY_SECONDS, STANDBY_WINDOW = 1000, 20, 10
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
        command = [sys.executable, "-c", PROGRAM, str(store_ms), f"{directory}/log", str(ready)]
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


def node(directory: Path, name: str, *options: str) -> DaemonProcess:
    """Return a node of the remote log in a directory, which is not started."""
    (directory / name).mkdir()
    url = f"file://{directory}/store"
    return DaemonProcess(
        directory / name, "--remote-log", url, "--remote-node", name, *options, own_interpreter=True
    )


def wait(condition: Callable[[], bool], seconds: float) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("a node did not become what it should")
        time.sleep(0.05)


def measure_standby(chunk_ms: int) -> None:
    """Print which share of a processor a standby takes."""
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as name:
        directory = Path(name)
        url = f"file://{directory}/store"
        subprocess.run([installed("fj-cli"), "remote", "create", url], check=True)
        primary = node(directory, "a", "--remote-interval", str(chunk_ms))
        standby = node(directory, "b")
        try:
            primary.start()
            standby.launch()
            wait(lambda: "standby of a" in standby.said(), START_SECONDS)
            connection = Connection(primary.address)
            count = STANDBY_RATE * STANDBY_SECONDS // STANDBY_WINDOW
            windows = connection.windows(count * STANDBY_WINDOW, STANDBY_WINDOW)
            paced = Paced(primary.address, 1)
            before = processor_seconds(standby.pid)
            found = paced.run(windows, STANDBY_WINDOW, STANDBY_RATE, STANDBY_SECONDS)
            used = processor_seconds(standby.pid) - before
            print(
                f"standby, chunks each {chunk_ms} ms: {used / STANDBY_SECONDS:.3f} of a processor"
                f" at {found.requests_per_second:,.0f} SETs a second",
                flush=True,
            )
        finally:
            primary.kill()
            standby.kill()


def measure_restore(log: Path) -> None:
    """Print how long the restore of a log takes, a copy of its objects, and a start on it."""
    with tempfile.TemporaryDirectory(dir=log.parent) as name:
        directory = Path(name)
        primary = node(directory, "a")
        shutil.copytree(log, primary.log_path)
        primary.launch()
        try:
            wait(lambda: primary.is_ready, 30 * START_SECONDS)
            if primary.stop():
                raise RuntimeError("the daemon failed")
        finally:
            primary.__exit__()
        shutil.rmtree(primary.directory)
        began = time.perf_counter()
        shutil.copytree(directory / "store", directory / "copy")
        subprocess.run(["sync", "-f", directory], check=True)
        copied = time.perf_counter()
        shutil.rmtree(directory / "copy")
        command = (installed("fj-cli"), "remote", "restore", f"file://{directory}/store")
        restoring = time.perf_counter()
        subprocess.run([*command, directory / "log"], check=True)
        restored = time.perf_counter()
        size = sum(path.stat().st_size for path in (directory / "log").glob("*.log"))
        started = start(directory / "log", directory / "ready")["seconds"]
        print(
            f"{size:,} bytes: restore {restored - restoring:.1f} s, copy of the objects"
            f" {copied - began:.1f} s, start {started:.1f} s"
        )


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description="Measure the remote log.")
    parser.add_argument("--store-ms", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--restore", type=Path)
    given = parser.parse_args()
    if given.restore:
        measure_restore(given.restore)
        return
    if given.standby:
        for chunk_ms in (5, 30):
            measure_standby(chunk_ms)
        return
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
