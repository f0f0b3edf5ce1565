"""Lines a second of ``fj-cli spool put``: processor time of the installed command, with its start.

    python -m tests.bench.bench_spool_put [--lines 300000]

Each line has a URI of one of 1,000 hosts and a value; no domain, so it is made of the URI.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
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
        spent = []
        for number in range(ROUNDS):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            with path.open("rb") as lines:
                subprocess.run(
                    [installed("fj-cli"), "spool", "put", f"{directory}/{number}"],
                    stdin=lines,
                    stdout=subprocess.DEVNULL,
                    check=True,
                )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    best = min(spent)
    print(
        f"{count:,} lines: {best:.2f} s of processor, {best / count * 1e6:.1f} us a line,"
        f" {count / best:,.0f} a second; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
