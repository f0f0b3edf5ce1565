"""How long a persistent write takes while the log is cleaned: ``... [RATE] [SECONDS]``.

One client sends SETs with OVERWRITE of 10,000 plain keys, 300 bytes each, 50 in a piece, at a
steady rate (default 10,000 a second). The latency of a write counts from the instant at which it
was to be sent. A daemon that never cleans and one that looks every 50 ms, with segments of 1 MiB,
take turns, each three times; the ratio is that of the medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fastjournal.protocol import Flag, Function
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build

RATE_DEFAULT = 10_000
SECONDS_DEFAULT = 10
PIECE = 50
KEYS = 10_000
TURNS = 3
SEGMENT_BYTES = 1024 * 1024


def _run(interval_ms: int, rate: int, seconds: float) -> dict[str, float]:
    """Return percentiles in milliseconds, the rate that was reached, and how often was cleaned."""
    options = ("--cmdlog-seg-size", str(SEGMENT_BYTES), "--cmdlog-clean-int", str(interval_ms))
    latencies = []
    with (
        tempfile.TemporaryDirectory() as directory,
        DaemonProcess(Path(directory), *options) as daemon,
        RawClient(daemon.address) as client,
    ):
        started = time.perf_counter()
        pieces = round(rate * seconds / PIECE)
        for piece in range(pieces):
            due = started + piece * PIECE / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            client.send(
                *(
                    build(
                        Function.SET,
                        b"key/%d" % ((piece * PIECE + number) * 7919 % KEYS),
                        b"v" * 300,
                        flags=Flag.PERSIST | Flag.OVERWRITE,
                    )
                    for number in range(PIECE)
                )
            )
            for _ in range(PIECE):
                assert client.reply().code == ""
                latencies.append((time.perf_counter() - due) * 1000)
        lasted = time.perf_counter() - started
        cleaned = daemon.said().count("event=cleaned")
    latencies.sort()
    return {
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[len(latencies) * 99 // 100],
        "writes_per_second": len(latencies) / lasted,
        "cleaned_segments": cleaned,
    }


def run(rate: int, seconds: float) -> dict[str, object]:
    """Return the medians of both, and the ratios."""
    turns = [[_run(interval, rate, seconds) for interval in (0, 50)] for _ in range(TURNS)]
    without, cleaning = (
        {
            name: round(statistics.median(turn[at][name] for turn in turns), 3)
            for name in turns[0][0]
        }
        for at in (0, 1)
    )
    return {
        "without": without,
        "cleaning": cleaning,
        "p50_ratio": round(cleaning["p50_ms"] / without["p50_ms"], 2),
        "p99_ratio": round(cleaning["p99_ms"] / without["p99_ms"], 2),
    }


if __name__ == "__main__":
    arguments = [float(text) for text in sys.argv[1:]]
    rate = int(arguments[0]) if arguments else RATE_DEFAULT
    print(json.dumps(run(rate, arguments[1] if len(arguments) > 1 else SECONDS_DEFAULT)))
