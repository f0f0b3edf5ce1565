"""Cost of values that are on the disk only: ``python -m tests.bench.bench_value_cache``.

Two daemons beside each other, one that keeps all values in memory and one that keeps none
(``--memory-limit 1``), with the same entries; rounds of the two alternate. Measured are GETs, one
after the other and 64 in a piece, and NEXT of 64 with their completions. The file cache of the
system is warm: what the disk itself takes comes on top.

And how much memory ten times as many values as a limit take: ``... bench_cold LIMIT_MIB``.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fastjournal.protocol.constants import Flag, Function
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, set_request
from tests.integration.test_daemon_memory import figures

ENTRIES = 20_000
ROUNDS = 5
BATCH = 64
SIZES = (100, 10_000)
MIB = 2**20


def fill(client: RawClient, number: int, size: int) -> None:
    """Set so many entries with values of that size."""
    for first in range(0, number, BATCH):
        some = range(first, min(first + BATCH, number))
        client.send(
            *(set_request(b"a:1:0:%09d" % one, b"%09d" % one * (size // 9)) for one in some)
        )
        assert all(client.reply().error == "" for _ in some)


def get_one(client: RawClient, draw: random.Random) -> int:
    """GET values one after the other; return how many."""
    for _ in range(500):
        key = b"a:1:0:%09d" % draw.randrange(ENTRIES)
        assert client.ask(build(Function.GET, key, flags=Flag.DATA)).pairs
    return 500


def get_many(client: RawClient, draw: random.Random) -> int:
    """GET values in pieces; return how many."""
    for _ in range(20):
        keys = (b"a:1:0:%09d" % draw.randrange(ENTRIES) for _ in range(BATCH))
        client.send(*(build(Function.GET, key, flags=Flag.DATA) for key in keys))
        assert all(client.reply().pairs for _ in range(BATCH))
    return 20 * BATCH


def work(client: RawClient, _draw: random.Random) -> int:
    """Take and complete jobs; return how many."""
    for _ in range(20):
        reply = client.ask(build(Function.NEXT, b"a", flags=Flag.DATA, count=BATCH))
        assert reply.pairs
        client.send(
            *(
                build(Function.DELETE, pair.key, flags=Flag.WORKED_ON, timeout=reply.timeout)
                for pair in reply.pairs
            )
        )
        assert all(client.reply().error == "" for _ in reply.pairs)
    return 20 * BATCH


def compare(size: int) -> None:
    """Measure both daemons with values of that size."""
    with tempfile.TemporaryDirectory() as directory:
        places = [Path(directory, name) for name in ("warm", "cold")]
        for place in places:
            place.mkdir()
        with (
            DaemonProcess(places[0]) as warm,
            DaemonProcess(places[1], "--memory-limit", "1") as cold,
            RawClient(warm.address) as first,
            RawClient(cold.address) as second,
        ):
            for client in (first, second):
                fill(client, ENTRIES, size)
            for name, ask in (("GET", get_one), ("GET in 64s", get_many), ("NEXT of 64", work)):
                report(name, size, ask, first, second)


def report(
    name: str,
    size: int,
    ask: Callable[[RawClient, random.Random], int],
    warm: RawClient,
    cold: RawClient,
) -> None:
    """Print what alternating rounds of the two took."""
    speeds: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 1):
        for client, found in zip((warm, cold), speeds, strict=True):
            started = time.perf_counter()
            done = ask(client, random.Random(number))
            if number:
                found.append(done / (time.perf_counter() - started))
    in_memory, on_disk = map(statistics.median, speeds)
    print(
        f"{name} of {size:,} bytes: {in_memory:,.0f}/s in memory, {on_disk:,.0f}/s on the disk, "
        f"ratio {in_memory / on_disk:.1f}",
        flush=True,
    )


def hold(limit: int) -> None:
    """Print how much memory a daemon takes that holds ten times its limit."""
    size = 20_000
    with tempfile.TemporaryDirectory() as directory:
        options = ("--memory-limit", str(limit), "--cmdlog-seg-size", str(8 * MIB))
        with DaemonProcess(Path(directory), *options, "--http", "127.0.0.1:0") as daemon:
            with RawClient(daemon.address) as client:
                number = 10 * limit // size
                fill(client, number, size)
                print_memory("set", number, daemon)
                for _ in range(20):
                    draw = random.Random(1)
                    keys = (b"a:1:0:%09d" % draw.randrange(number) for _ in range(BATCH))
                    client.send(*(build(Function.GET, key, flags=Flag.DATA) for key in keys))
                    assert all(client.reply().pairs for _ in range(BATCH))
                print_memory("got", 20 * BATCH, daemon)
            daemon.kill()
            daemon.start()
            print_memory("started with", number, daemon)


def print_memory(what: str, number: int, daemon: DaemonProcess) -> None:
    """Print what a daemon takes."""
    found = figures(daemon)
    print(
        f"{what} {number:,}: resident {found['process_resident_memory_bytes'] / MIB:,.1f} MiB, "
        f"estimated {found['fastjournal_entries_memory_bytes'] / MIB:,.1f} MiB of "
        f"{found['fastjournal_entries_memory_limit_bytes'] / MIB:,.1f}",
        flush=True,
    )


def main() -> None:
    """Run the benchmark."""
    if len(sys.argv) > 1:
        hold(int(sys.argv[1]) * MIB)
    else:
        for size in SIZES:
            compare(size)


if __name__ == "__main__":
    main()
