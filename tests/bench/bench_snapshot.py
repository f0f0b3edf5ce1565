"""How long a snapshot takes, and writes beside it, by the number of segments.

    python -m tests.bench.bench_snapshot [SEGMENTS ...]

For each number (default: 10, 200, 2,000) a log of that many segments of 16 KiB is made, on a disk.
Then writes go on at a steady 5,000 a second over two connections in windows of 25, while a third
asks for a snapshot now and then. Reported are the time from the request to its reply, and the
latency of the writes that were due within 100 ms from a request on, beside that of all others.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from fastjournal.clock import unique_timestamp
from fastjournal.protocol import Flag, Function, Request, ValueType, encode_request
from tests.bench.paced import Latencies, Paced
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build

SEGMENTS_DEFAULT = (10, 200, 2000)
SEGMENT_BYTES = 16 * 1024
SNAPSHOTS = 8
APART_SECONDS = 0.75
NEAR_SECONDS = 0.1
RATE = 5000
WINDOW = 25
CONNECTIONS = 2
FILL_WINDOW = 64
"""Records of 300 bytes in a window: more than a segment, so that each window is one."""
DIRECTORY = "/var/tmp"


def windows(count: int, size: int, prefix: bytes) -> list[bytes]:
    """Encode writes of new plain keys."""
    now = unique_timestamp()
    return [
        b"".join(
            encode_request(
                Request(
                    function=Function.SET,
                    flags=Flag.PERSIST | Flag.OVERWRITE,
                    timestamp=now + number,
                    key=b"%b/%d" % (prefix, window * size + number),
                    value_type=ValueType.BUFFER,
                    value=b"v" * 200,
                )
            )
            for number in range(size)
        )
        for window in range(count)
    ]


def measure(segments: int) -> None:
    """Print what snapshots of one log cost."""
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as name:
        directory = Path(name)
        fill(directory, segments)
        with (
            DaemonProcess(directory, "--cmdlog-clean-int", "0") as daemon,
            RawClient(daemon.address) as asking,
        ):
            snapshots(daemon, asking)


def fill(directory: Path, segments: int) -> None:
    """Make a log of so many segments."""
    options = ("--cmdlog-seg-size", str(SEGMENT_BYTES), "--cmdlog-clean-int", "0")
    with DaemonProcess(directory, *options) as daemon:
        paced = Paced(daemon.address, 1)
        for window in windows(segments, FILL_WINDOW, b"fill"):
            paced.run([window], FILL_WINDOW, 0, 60)
        paced.close()
        daemon.stop()


def snapshots(daemon: DaemonProcess, asking: RawClient) -> None:
    """Take snapshots while writes go on, and print how long both took."""
    taken: list[tuple[float, float]] = []

    def ask() -> None:
        for _ in range(SNAPSHOTS):
            time.sleep(APART_SECONDS)
            began = time.perf_counter()
            reply = asking.ask(build(Function.SNAPSHOT))
            assert not reply.error, reply.error
            taken.append((began, time.perf_counter() - began))

    seconds = (SNAPSHOTS + 1) * APART_SECONDS
    sent = windows(round(RATE * seconds / WINDOW), WINDOW, b"new")
    paced = Paced(daemon.address, CONNECTIONS)
    thread = threading.Thread(target=ask)
    thread.start()
    found = paced.run(sent, WINDOW, RATE, 2 * seconds)
    thread.join()
    paced.close()
    files = len(list(daemon.log_path.glob("*.log")))
    beside, others = Latencies([], 0.0), Latencies([], 0.0)
    for figure in found.figures:
        near = any(began <= figure.due < began + NEAR_SECONDS for began, _ in taken)
        (beside if near else others).figures.append(figure)
    milliseconds = sorted(seconds * 1000 for _, seconds in taken)
    print(
        f"{files} segments: snapshot {statistics.median(milliseconds):.1f} ms "
        f"({milliseconds[0]:.1f} to {milliseconds[-1]:.1f}); "
        f"writes p50, p99, max ms: beside {_three(beside)}; else {_three(others)}; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def _three(found: Latencies) -> str:
    return ", ".join(f"{found.at(share):.1f}" for share in (0.5, 0.99, 1))


if __name__ == "__main__":
    for argument in [int(text) for text in sys.argv[1:]] or SEGMENTS_DEFAULT:
        measure(argument)
