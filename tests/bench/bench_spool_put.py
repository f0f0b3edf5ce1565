"""Lines a second of ``fj-cli spool put``: the installed command, with its start.

    python -m tests.bench.bench_spool_put [--lines 300000]

Each line has a URI of one of 1,000 hosts and a value; no domain, so it is made of the URI. Two
figures: lines a second of processor time, which other work on the machine changes little, and lines
a second by the clock on the wall, which is worth something on a quiet machine only. Each is the
best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from tests.integration.programs import installed

ROUNDS = 3


def main() -> None:
    """Spool the lines several times, and print the best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=300_000)
    count = parser.parse_args().lines
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "lines")
        with path.open("w", encoding="utf-8") as file:
            for number in range(count):
                uri = f"https://host{number % 1000}.example.org/page/{number}"
                value = f"changed {number}, and some more text"
                file.write(json.dumps({"uri": uri, "value": value}) + "\n")
        spent: list[float] = []
        elapsed: list[float] = []
        for number in range(ROUNDS):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            started = time.monotonic()
            with path.open("rb") as lines:
                subprocess.run(
                    [installed("fj-cli"), "spool", "put", f"{directory}/{number}"],
                    stdin=lines,
                    stdout=subprocess.DEVNULL,
                    check=True,
                )
            elapsed.append(time.monotonic() - started)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"{count:,} lines, best of {ROUNDS}; load {os.getloadavg()[0]:.1f}")
    for kind, best in (("processor", min(spent)), ("wall", min(elapsed))):
        print(
            f"{kind} time: {best:.2f} s, {best / count * 1e6:.1f} us a line,"
            f" {count / best:,.0f} lines a second of {kind} time"
        )


if __name__ == "__main__":
    main()
