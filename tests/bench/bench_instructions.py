"""Processor instructions of one request, counted: repeatable on a busy machine.

    python -m tests.bench.bench_instructions [--vs OTHER/bin/python]

The daemon runs under callgrind (valgrind), which counts what it executes, whatever else the machine
does. A request costs the difference between a run with ``REQUESTS`` of them and one with none of
them, divided by their number: start and stop fall out. ``--vs`` names the interpreter of another
checkout (its ``.venv/bin/python``), counted in the same way; the last column is this one divided by
the other one. The figures differ by less than one percent between two runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.bench_beanstalkd import BATCH, WINDOW, Ours

REQUESTS = 40 * WINDOW
START_SECONDS = 300.0
PROGRAM = "from fastjournald.main import main; main()"
COLLECTED = re.compile(rb"Collected : (\d+)")


class CountedDaemon:
    """A daemon under callgrind.

    Args:
        python: The interpreter of the checkout that it comes from.
        directory: A directory of its own.
    """

    def __init__(self, python: str, directory: Path) -> None:
        self._report = directory / "callgrind.txt"
        self._ready_file = directory / "ready"
        command = [
            *("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"),
            *(f"--log-file={self._report}", python, "-P", "-c", PROGRAM),
            *("--cmdlog-path", str(directory / "log"), "--ready-file", str(self._ready_file)),
            *("--listen", "127.0.0.1:0", "--cmdlog-sync", "os"),
        ]
        # the same order of every set and dictionary in each run
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait_ready(self) -> str:
        """Return the address once it listens."""
        deadline = time.monotonic() + START_SECONDS
        while not self._ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the daemon did not start under valgrind")
            time.sleep(0.05)
        return self._ready_file.read_text().split()[0]

    def stop(self) -> int:
        """Stop it, and return how many instructions it executed."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(START_SECONDS)
        found = COLLECTED.search(self._report.read_bytes())
        if found is None:
            raise RuntimeError(f"callgrind counted nothing: {self._report.read_text()[-500:]}")
        return int(found[1])


def count(python: str, *, sets: int, takes: int) -> int:
    """Return the instructions of a run with so many SETs and jobs leased and completed."""
    with tempfile.TemporaryDirectory() as directory:
        daemon = CountedDaemon(python, Path(directory))
        client = Ours(daemon.wait_ready())
        if sets:
            client.put(sets)
        if takes:
            client.take(takes)
        client.close()
        return daemon.stop()


def measure(python: str) -> dict[str, float]:
    """Return the instructions of one request of each kind."""
    nothing = count(python, sets=0, takes=0)
    sets = count(python, sets=REQUESTS, takes=0)
    both = count(python, sets=REQUESTS, takes=REQUESTS)
    return {
        f"SET with URI, windows of {WINDOW}": (sets - nothing) / REQUESTS,
        f"a job of a NEXT of {BATCH} and its DELETE": (both - sets) / REQUESTS,
    }


def main() -> None:
    """Count, and print a line for each kind of request."""
    parser = argparse.ArgumentParser(description="Count the instructions of a request.")
    parser.add_argument("--vs", metavar="PYTHON", help="interpreter of another checkout")
    given = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not installed (apt-get install valgrind): nothing is counted")
        return
    ours = measure(sys.executable)
    theirs = measure(given.vs) if given.vs else {}
    for what, figure in ours.items():
        other = theirs.get(what)
        against = f"  against {other:,.0f}: {figure / other:.3f}" if other else ""
        print(f"{what}: {figure:,.0f} instructions{against}")


if __name__ == "__main__":
    main()
