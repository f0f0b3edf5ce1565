"""How long a NEXT takes while other clients scan a million keys.

    python -m tests.bench.bench_scans [KEYS]

A daemon of its own process holds half as many entries as keys, each with a URI, and 100 plain keys
of 4,096 bytes. Clients in processes of their own ask for all of it again and again, page by page,
by range or by expression. Meanwhile one client times NEXT: in a domain that has nothing, in one
that has work, and in one whose work is kept on disk, so that NEXT waits for a sync. The daemon's
own figures tell how long its slices were.

Other processes on the machine would be measured too. So daemon and timing client ask the system for
a high priority, which it gives to root, and those that scan for a low one.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path

from fastjournal.client.core.address import parse_address
from fastjournal.protocol import (
    QUERY_SHIFT,
    Flag,
    Function,
    Query,
    Request,
    encode_request,
)
from tests.bench.paced import ask_all, bucket_counts
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient

KEYS = 1_000_000
DOMAINS = 1000
WINDOW = 512
SLICES = "fastjournal_scan_slice_seconds"
SECONDS = 8.0
"""Duration of each scenario."""
HEAD_START_SECONDS = 1.5
"""So long do the scanning clients run before NEXT is timed: all of them have begun by then."""
PAUSE_SECONDS = 0.001
"""Between two NEXTs."""
PRIORITY = -15
DIRECTORY = "/var/tmp"
"""On a disk: /tmp often is in memory, where a sync costs nothing."""

ALL = Request(
    Function.GET, flags=Flag.DATA | Flag.META | Query.RANGE << QUERY_SHIFT, second_key=b"", count=0
)
REGEX = Query.REGEX << QUERY_SHIFT
NONE = Request(Function.GET, flags=REGEX, key=rb"example\.(net|com)/[a-z]+/x{3}\d+$")
SOME = Request(Function.GET, flags=REGEX, key=rb"page/\d*77\.html$")
SLOW = Request(Function.GET, flags=REGEX, key=rb"[ab]*a[ab]{180}!")
"""Scan with an expression just small enough to be allowed, and made to be slow."""

SCENARIOS: list[tuple[str, list[Request]]] = [
    ("no scans", []),
    ("4 full ranges with data", [ALL] * 4),
    ("4 expressions, no match", [NONE] * 4),
    ("4 expressions, 1 in 100 matches", [SOME] * 4),
    ("4 expressions made to be slow", [SLOW] * 4),
    ("16 of all these", [ALL, NONE, SOME, SLOW] * 4),
]


def load(address: str, keys: int) -> None:
    """Set half as many entries as keys; the first of them have work for NEXT."""
    connection = RawClient(address)
    now = time.time_ns() // 1000
    later = now + 3600 * 1_000_000
    requests = [
        Request(
            Function.SET,
            flags=Flag.PERSIST if domain == b"kept" else 0,
            timestamp=now,
            key=b"%s:128:%016d:%x" % (domain, instant, number),
            second_key=b"https://example.org/%s/page/%d.html" % (domain, number),
            value_type=1,
            value=b"v" * 60,
        )
        for number in range(keys // 2)
        for domain, instant in [
            (b"kept", 0)
            if number < 2000
            else (b"work", 0)
            if number < 4000
            else (b"domain%d" % (number % DOMAINS), later + number * 7919 % 10**9)
        ]
    ]
    draw = random.Random(1)
    for number in range(100):
        key = b"long%03d" % number + bytes(draw.choices(b"ab", k=4089))
        requests.append(
            Request(Function.SET, timestamp=now, key=key, value_type=1, value=b"v" * 60)
        )
    for at in range(0, len(requests), WINDOW):
        ask_all(connection, *requests[at : at + WINDOW])


def scan(address: str, request: Request, stop: Event) -> None:
    """Ask for all pages of a query again and again, and take no notice of the pairs."""
    os.setpriority(os.PRIO_PROCESS, 0, 10)
    target = parse_address(address)
    with socket.create_connection((target.host, target.port)) as sock:
        mark = encode_request(Request(Function.NOP, 0xFFFF))
        page = request
        while not stop.is_set():
            sock.sendall(encode_request(page) + mark)
            data = bytearray()
            # the reply to NOP has 17 bytes, and its identifier
            while not (len(data) > 17 and data[-17:-11] == b"JR\0\1\xff\xff"):
                data += sock.recv(1 << 20)
            assert int.from_bytes(data[6:8]) & Flag.COUNT, bytes(data[:80])
            cursor = cursor_of(bytes(data[: 64 + 16384]))
            if cursor is None:
                page = request
            else:
                bits = request.flags & (Flag.DATA | Flag.META) | Query.CURSOR << QUERY_SHIFT
                page = Request(Function.GET, flags=bits, key=cursor)


def cursor_of(head: bytes) -> bytes | None:
    """Return the cursor of a successful reply without timeout and ttl."""
    flags = int.from_bytes(head[6:8])
    if not flags & Flag.CURSOR:
        return None
    width = 2 if flags & Flag.KEY16 else 1
    at = 16 + 2 + width
    size = int.from_bytes(head[at : at + width])
    return head[at + width : at + width + size]


@contextmanager
def scanning(address: str, requests: list[Request]) -> Iterator[None]:
    """Scan in processes of their own."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    processes = [context.Process(target=scan, args=(address, r, stop)) for r in requests]
    for process in processes:
        process.start()
    try:
        if processes:
            time.sleep(HEAD_START_SECONDS)
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(30)
            process.kill()


def time_nexts(connection: RawClient) -> dict[str, list[float]]:
    """Ask NEXT for some seconds; milliseconds by what it found."""
    taken: dict[str, list[float]] = {"nothing": [], "work": [], "kept": []}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for domain, times in taken.items():
            begin = time.perf_counter()
            reply = connection.ask(Request(Function.NEXT, key=domain.encode()))
            times.append((time.perf_counter() - begin) * 1000)
            assert bool(reply.pairs) is (domain != "nothing")
            for pair in reply.pairs or ():
                release = Request(
                    Function.RELEASE, flags=Flag.WORKED_ON, key=pair.key, timeout=reply.timeout
                )
                connection.ask(release)
            time.sleep(PAUSE_SECONDS)
    return taken


def report(name: str, taken: dict[str, list[float]], before: dict[float, int], http: str) -> None:
    """Print the figures of one scenario."""
    print(f"{name}")
    for domain, times in taken.items():
        cuts = statistics.quantiles(times, n=100)
        print(
            f"  NEXT, {domain:8} {len(times):6} times, ms: p50 {cuts[49]:6.2f}"
            f"   p99 {cuts[98]:6.2f}   max {max(times):6.2f}"
        )
    after = bucket_counts(http, SLICES)
    number = {bound: after[bound] - before[bound] for bound in after}
    total = number[float("inf")]
    over = {b: total - n for b, n in number.items() if 0.001 < b < 0.1 and total - n}
    listed = ", ".join(f"{n} over {b * 1000:.1f} ms" for b, n in over.items())
    print(f"  {total} slices: {listed or 'none over 1 ms'}")


def main() -> None:
    """Run all scenarios against one daemon."""
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    with (
        tempfile.TemporaryDirectory(dir=DIRECTORY) as directory,
        DaemonProcess(Path(directory), "--http", "127.0.0.1:0") as daemon,
    ):
        for process in (daemon.pid, 0):
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, process, PRIORITY)
        matched = re.search(r"http=(\S+)", daemon.said())
        assert matched is not None
        http = matched[1]
        begin = time.perf_counter()
        load(daemon.address, keys)
        print(f"{keys} keys loaded in {time.perf_counter() - begin:.1f} s")
        connection = RawClient(daemon.address)
        connection.ask(Request(Function.NOP))
        for name, requests in [("the first scan: the index is made", [ALL]), *SCENARIOS]:
            before = bucket_counts(http, SLICES)
            if name.startswith("the first"):
                begin = time.perf_counter()
                RawClient(daemon.address).ask(
                    Request(Function.GET, flags=1 << QUERY_SHIFT, second_key=b"a", count=1)
                )
                print(f"{name} in {time.perf_counter() - begin:.1f} s")
                continue
            with scanning(daemon.address, requests):
                taken = time_nexts(connection)
            report(name, taken, before, http)


if __name__ == "__main__":
    main()
