"""How long a persistent write takes while the log is cleaned, and how much is cleaned meanwhile.

    python -m tests.bench.bench_compaction [RATE] [SECONDS]

SETs with OVERWRITE of 50,000 plain keys at random, 100 bytes each, are sent over four connections
in windows of 256, at a steady rate: 50,000 a second, or four fifths of what the daemon takes
without cleaning where that is less (RATE 0, the default), or RATE. Each write makes one before it
garbage, so all that is sealed has to be cleaned, again and again. A daemon that never cleans and
one that looks at its log every 50 ms take turns on a disk; the ratio is that of the medians, and of
each pair of rounds. ``log_mb`` tells whether cleaning keeps up: ten megabytes are live.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fastjournal.clock import unique_timestamp
from fastjournal.protocol import Flag, Function, Request, ValueType, encode_request
from tests.bench.paced import Paced, processor_seconds
from tests.integration.daemon_process import DaemonProcess

RATE_MAX = 50_000
SHARE = 0.8
SECONDS_DEFAULT = 8.0
WINDOW = 256
CONNECTIONS = 4
KEYS = 50_000
VALUE = b"v" * 100
MOST_WRITES = 204_800
"""Sent to find out what the daemon takes."""
TURNS = 5
WARM_SECONDS = 3.0
SEGMENT_BYTES = 4 * 1024 * 1024
DIRECTORY = "/var/tmp"
"""On a disk: /tmp often is in memory, where a sync costs nothing."""

Figures = dict[str, float]


def windows(count: int) -> list[bytes]:
    """Encode that many writes, in windows, of keys at random, each over one connection only."""
    draw = random.Random(1)
    now = unique_timestamp()
    frames = []
    for number in range(count):
        connection = number // WINDOW % CONNECTIONS
        key = draw.randrange(KEYS // CONNECTIONS) * CONNECTIONS + connection
        frames.append(
            encode_request(
                Request(
                    function=Function.SET,
                    flags=Flag.PERSIST | Flag.OVERWRITE,
                    timestamp=now + number,
                    key=b"key/%d" % key,
                    value_type=ValueType.BUFFER,
                    value=VALUE,
                )
            )
        )
    return [b"".join(frames[at : at + WINDOW]) for at in range(0, count, WINDOW)]


def one_round(sent: list[bytes], interval_ms: int, rate: float, seconds: float) -> Figures:
    """Return what one daemon did."""
    options = ("--cmdlog-seg-size", str(SEGMENT_BYTES), "--cmdlog-clean-int", str(interval_ms))
    with (
        tempfile.TemporaryDirectory(dir=DIRECTORY) as directory,
        DaemonProcess(Path(directory), *options) as daemon,
    ):
        paced = Paced(daemon.address, CONNECTIONS)
        try:
            warm = math.ceil(rate * WARM_SECONDS / WINDOW) or len(sent) // 4
            paced.run(sent[:warm], WINDOW, rate, WARM_SECONDS)
            cleaned = daemon.said().count("event=cleaned")
            busy, clock = processor_seconds(daemon.pid), time.perf_counter()
            found = paced.run(sent[warm:], WINDOW, rate, seconds)
            busy, clock = processor_seconds(daemon.pid) - busy, time.perf_counter() - clock
        finally:
            paced.close()
        said = daemon.said()
        files = list(daemon.log_path.glob("*.log"))
        return {
            "p50_ms": found.at(0.5),
            "p99_ms": found.at(0.99),
            "p999_ms": found.at(0.999),
            "max_ms": found.at(1),
            "writes_per_second": found.requests_per_second,
            "daemon_processor": busy / clock,
            "cleaned_segments": said.count("event=cleaned") - cleaned,
            "log_mb": sum(file.stat().st_size for file in files) / 1e6,
        }


def main(rate: float, seconds: float) -> None:
    """Take turns, and print."""
    if not rate:
        most = one_round(windows(MOST_WRITES), 0, 0, seconds)["writes_per_second"]
        rate = min(RATE_MAX, SHARE * most)
        print(f"without pace, never cleaning: {most:,.0f} writes/s; paced: {rate:,.0f}")
    sent = windows(math.ceil(rate * (seconds + WARM_SECONDS) / WINDOW + 2) * WINDOW)
    turns: dict[int, list[Figures]] = {0: [], 50: []}
    for number in range(TURNS):
        for interval_ms in (0, 50) if number % 2 == 0 else (50, 0):
            found = one_round(sent, interval_ms, rate, seconds)
            found["load"] = os.getloadavg()[0]
            turns[interval_ms].append(found)
            rounded = {name: round(figure, 2) for name, figure in found.items()}
            print("cleaning" if interval_ms else "without ", json.dumps(rounded), flush=True)
    for percentile in ("p50_ms", "p99_ms"):
        without, cleaning = ([found[percentile] for found in turns[key]] for key in (0, 50))
        medians = statistics.median(without), statistics.median(cleaning)
        pairs = sorted(with_it / bare for bare, with_it in zip(without, cleaning, strict=True))
        print(
            f"{percentile}: without {medians[0]:.2f}, cleaning {medians[1]:.2f}, "
            f"ratio {medians[1] / medians[0]:.2f} (pairs {pairs[0]:.2f} to {pairs[-1]:.2f})"
        )


if __name__ == "__main__":
    arguments = [float(text) for text in sys.argv[1:]]
    main(
        arguments[0] if arguments else 0.0, arguments[1] if len(arguments) > 1 else SECONDS_DEFAULT
    )
