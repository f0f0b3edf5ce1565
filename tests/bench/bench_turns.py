"""How long a small client waits beside clients that ask for as much as they can, all at once.

    python -m tests.bench.bench_turns [SECONDS]

A daemon of its own process, and clients in a second one: connections that pipeline KICKs of 250
entries, connections that pipeline NOPs, NEXTs of 500 that wait while their domain is paused and
resumed, and leases of 30,000 entries that all end at one instant, again and again. Meanwhile one
client asks for a NOP and a NEXT of one job in turns, and notes how long each takes. The daemon
itself tells how long its turns were.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import selectors
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path

from fastjournal.protocol import Flag, Function, Request, encode_request
from tests.bench.paced import ask_all, bucket_counts
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient

SECONDS = 10.0
LEASED = 30_000
BURIED = 5_000
WAITING = 100
BUSY = 50
PIPELINED = 64
PRIORITY = -15
TURNS = "fastjournal_turn_seconds"


def now_us() -> int:
    return time.time_ns() // 1000


def job(domain: bytes, number: int, flags: int = Flag.PERSIST) -> Request:
    key = b"%b:128:0:%08d" % (domain, number)
    return Request(Function.SET, 0, int(flags), now_us(), key, value_type=1, value=b"x" * 100)


def load(address: str) -> None:
    """SET what the loads work on."""
    connection = RawClient(address)
    sizes = ((b"lease", LEASED), (b"kick", BURIED), (b"wait", 20_000), (b"small", 50_000))
    for domain, number in sizes:
        for at in range(0, number, 500):
            for reply in ask_all(connection, *(job(domain, at + n) for n in range(500))):
                assert not reply.error
    bury(connection)


def bury(connection: RawClient) -> None:
    for at in range(0, BURIED, 500):
        keys = (b"kick:128:0:%08d" % (at + n) for n in range(500))
        ask_all(connection, *(Request(Function.BURY, key=key) for key in keys))


def work_hard(address: str, stop: Event) -> None:
    """Be all the busy clients, until told to stop."""
    with suppress(PermissionError):
        os.nice(10)
    selector = selectors.DefaultSelector()
    kicks = b"".join(
        encode_request(Request(Function.KICK, n, 0, 0, b"", b"kick", count=250))
        for n in range(PIPELINED)
    )
    nops = b"".join(encode_request(Request(Function.NOP, n)) for n in range(PIPELINED * 20))
    for number in range(BUSY):
        connection = RawClient(address)
        connection.socket.setblocking(False)
        data = kicks if number < 5 else nops
        size = len(data)
        selector.register(connection.socket, selectors.EVENT_READ, [data, size])
        connection.socket.send(data)
    for _ in range(WAITING // 50):
        connection = RawClient(address)
        flags = int(Flag.LISTEN | Flag.DATA)
        waits = (
            Request(Function.NEXT, n, flags, 0, b"wait", count=500, timeout=1_000_000)
            for n in range(50)
        )
        connection.socket.sendall(b"".join(map(encode_request, waits)))
        connection.socket.setblocking(False)
        selector.register(connection.socket, selectors.EVENT_READ, None)
    control = RawClient(address)
    leases_end = 0.0
    resumes = 0.0
    while not stop.is_set():
        if time.monotonic() > leases_end:
            # all of these end at one instant
            end = now_us() + 2_000_000
            for _ in range(LEASED // 500):
                timeout = max(1, end - now_us())
                control.ask(Request(Function.NEXT, key=b"lease", count=500, timeout=timeout))
            leases_end = time.monotonic() + 3.0
        if time.monotonic() > resumes:
            control.ask(Request(Function.PAUSE, key=b"wait", ttl=10_000_000))
            control.ask(Request(Function.PAUSE, key=b"wait", ttl=0))
            bury(control)
            resumes = time.monotonic() + 1.0
        for key, _ in selector.select(0.05):
            with suppress(BlockingIOError):
                key.fileobj.recv(1 << 20)
                if key.data is not None:
                    key.fileobj.send(key.data[0])


def measure(address: str, seconds: float) -> dict[str, list[float]]:
    """Ask for a NOP and a NEXT in turns; return the milliseconds that they took."""
    connection = RawClient(address)
    taken: dict[str, list[float]] = {"nop": [], "next": []}
    over = time.perf_counter() + seconds
    while time.perf_counter() < over:
        for name, request in (
            ("nop", Request(Function.NOP)),
            ("next", Request(Function.NEXT, key=b"small", timeout=3_600_000_000)),
        ):
            began = time.perf_counter()
            connection.ask(request)
            taken[name].append((time.perf_counter() - began) * 1000)
            time.sleep(0.001)
    return taken


def figures(taken: list[float]) -> dict[str, float]:
    ordered = sorted(taken)
    return {
        "number": len(ordered),
        "median_ms": round(statistics.median(ordered), 2),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)], 2),
        "max_ms": round(ordered[-1], 2),
    }


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        options = ("--http", "127.0.0.1:0")
        with DaemonProcess(Path(directory), *options) as daemon:
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, daemon.pid, PRIORITY)
                os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
            load(daemon.address)
            http = re.findall(r"http=(\S+)", daemon.said())
            report: dict[str, object] = {
                "alone": {k: figures(v) for k, v in measure(daemon.address, 2.0).items()}
            }
            before = bucket_counts(http[0], TURNS) if http else {}
            stop = multiprocessing.Event()
            busy = multiprocessing.Process(target=work_hard, args=(daemon.address, stop))
            busy.start()
            time.sleep(1.0)
            taken = measure(daemon.address, seconds)
            stop.set()
            busy.join()
            report["beside_all"] = {k: figures(v) for k, v in taken.items()}
            if before:
                after = bucket_counts(http[0], TURNS)
                report["turns"] = {
                    f"{bound * 1000:g} ms": number - before[bound]
                    for bound, number in after.items()
                    if bound >= 0.001 and number > before[bound]
                }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
