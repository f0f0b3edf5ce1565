"""Processor instructions of one request, counted: repeatable on a busy machine.

    python -m tests.bench.bench_instructions [--tokens] [--both] [--vs OTHER/bin/python]

The daemon runs under callgrind (valgrind), which counts what it executes, whatever else the machine
does. Its event loop runs by a slower clock, as the processor does: else what it does each second
would be a large part of the count, and one that depends on the load of the machine. The counter is
read before and after each load, so start, warming up and stop are no part of it. ``--vs`` names the
interpreter of another checkout (its ``.venv/bin/python``), which is counted in the same way; the
last column is this one divided by the other one. ``--both`` counts this checkout without its native
leaves in the same way; ``FASTJOURNAL_NATIVE=0`` counts without them in all checkouts.
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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fastjournal import _native
from tests.bench.one_connection import BATCH, WINDOW, Connection
from tests.bench.peers.rows import interpreter

WARM_UP = 2 * WINDOW
REQUESTS = 10 * WINDOW
FEW = 2 * WINDOW
"""Requests of a load with small windows, each of which takes more instructions."""
SMALL_WINDOW = 16
START_SECONDS = 300.0

SLOWER = 200
"""The daemon's clock runs by so much slower: it looks after its memory after minutes."""

PROGRAM = f"""
import functools, time, trio
class SlowClock(trio.abc.Clock):
    def start_clock(self): pass
    def current_time(self): return time.perf_counter() / {SLOWER}
    def deadline_to_sleep_time(self, deadline):
        return (deadline - self.current_time()) * {SLOWER}
trio.run = functools.partial(trio.run, clock=SlowClock())
from fastjournald.main import main
main()
"""

COUNTED = re.compile(rb"^(?:summary|totals): (\d+)", re.MULTILINE)


class Interpreter(NamedTuple):
    """Interpreter of a checkout, and its variables."""

    python: str
    environment: dict[str, str]

    @property
    def described(self) -> str:
        """Version, and whether it is optimised and runs native leaves."""
        return interpreter(self.python, self.environment)


class CountedDaemon:
    """A daemon under callgrind.

    Args:
        runs: The interpreter of the checkout that it comes from.
        directory: A directory of its own.
        options: More of its options.
    """

    def __init__(self, runs: Interpreter, directory: Path, *options: str) -> None:
        self._dump = directory / "callgrind"
        self._dumps = 0
        self._ready_file = directory / "ready"
        command = [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={self._dump}"),
            *(f"--vgdb-prefix={directory}/vgdb", "--dump-instr=no"),
            *(runs.python, "-P", "-c", PROGRAM),
            *("--cmdlog-path", str(directory / "log"), "--ready-file", str(self._ready_file)),
            *("--listen", "127.0.0.1:0", "--cmdlog-sync", "os"),
            *options,
        ]
        # the same order of every set and dictionary in each run
        environment = runs.environment | {"PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._vgdb = ["vgdb", f"--vgdb-prefix={directory}/vgdb", f"--pid={self._process.pid}"]

    def wait_ready(self) -> str:
        """Return the address once it listens."""
        deadline = time.monotonic() + START_SECONDS
        while not self._ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the daemon did not start under valgrind")
            time.sleep(0.05)
        return self._ready_file.read_text().split()[0]

    def count(self) -> int:
        """Return how many instructions it executed since the last time."""
        self._dumps += 1
        self._tell("dump")
        dump = self._dump.with_name(f"{self._dump.name}.{self._dumps}")
        found = COUNTED.search(dump.read_bytes())
        if found is None:
            raise RuntimeError("callgrind counted nothing")
        return int(found[1])

    def _tell(self, *command: str) -> None:
        subprocess.run(
            [*self._vgdb, *command], check=True, timeout=START_SECONDS, capture_output=True
        )

    def stop(self) -> None:
        """End it: nothing of what it still does is counted."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(START_SECONDS)


LOADS: dict[str, tuple[int, Callable[[Connection], object]]] = {
    f"SET with URI, windows of {WINDOW}": (REQUESTS, lambda ours: ours.put(REQUESTS)),
    f"SET that moves a waiting entry, windows of {WINDOW}": (
        REQUESTS,
        lambda ours: ours.put_again(REQUESTS),
    ),
    f"a job of a NEXT of {BATCH} and its DELETE": (REQUESTS, lambda ours: ours.take(REQUESTS)),
    f"SET with URI, windows of {SMALL_WINDOW}": (FEW, lambda ours: ours.put(FEW, SMALL_WINDOW)),
    f"a job of a NEXT of {SMALL_WINDOW} and its DELETE": (
        FEW,
        lambda ours: ours.take(FEW, SMALL_WINDOW),
    ),
    "SET with URI, one at a time": (FEW, lambda ours: ours.put(FEW, 1)),
    "a NEXT of 1, then its DELETE": (FEW, lambda ours: ours.take_singly(FEW)),
}
"""Scenarios in the order of counting: number of requests or jobs, and how a client sends them."""


TOKEN = b"access-token-of-the-benchmark"
TOKENS = f"""
[[token]]
name = "benchmark"
token = "{TOKEN.decode()}"
rights = ["write", "next"]
prefixes = ["", "other.example:"]
"""
"""Token of a client that may ask for work of any domain."""
DOMAIN_TOKENS = TOKENS.replace('"", "other', '"example.org:", "other')
"""Token for two domains."""
TOKEN_LOADS = dict(list(LOADS.items())[:2])
"""Scenarios of a client with a token for two domains: its NEXTs would have to name one."""


def measure_all(runs: Interpreter) -> dict[str, float]:
    """Return the instructions of one request or job of each kind."""
    return measure(runs, LOADS) | measure_tokens(runs)


def measure_tokens(runs: Interpreter) -> dict[str, float]:
    """Return those of clients that have an access token."""
    loads = dict(list(LOADS.items())[:3])
    return measure(runs, loads, TOKENS, "with a token for everything: ") | measure(
        runs, TOKEN_LOADS, DOMAIN_TOKENS, "with a token for two domains: "
    )


def measure(
    runs: Interpreter,
    loads: dict[str, tuple[int, Callable[[Connection], object]]],
    tokens: str = "",
    name: str = "",
) -> dict[str, float]:
    """Return the instructions of some loads on one daemon.

    Args:
        runs: Interpreter of the checkout.
        loads: Some of ``LOADS``.
        tokens: File of access tokens; empty: clients need none.
        name: Begin of the names of the figures.
    """
    figures = {}
    with tempfile.TemporaryDirectory() as directory:
        options: tuple[str, ...] = ()
        if tokens:
            file = Path(directory) / "tokens.toml"
            file.touch(0o600)
            file.write_text(tokens)
            options = ("--auth-tokens", str(file))
        daemon = CountedDaemon(runs, Path(directory), *options)
        try:
            client = Connection(daemon.wait_ready(), TOKEN if tokens else b"")
            client.put(WARM_UP)
            if loads is not TOKEN_LOADS:
                client.take(WARM_UP)
                client.put(1, 1)
                client.take_singly(1)
            daemon.count()
            for what, (number, load) in loads.items():
                load(client)
                figures[name + what] = daemon.count() / number
            client.close()
        finally:
            daemon.stop()
    return figures


def main() -> None:
    """Count, and print a line for each kind of request."""
    parser = argparse.ArgumentParser(description="Count the instructions of a request.")
    parser.add_argument("--vs", metavar="PYTHON", help="interpreter of another checkout")
    parser.add_argument("--both", action="store_true", help="against this one without leaves")
    parser.add_argument("--tokens", action="store_true", help="count clients with a token only")
    given = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not installed (apt-get install valgrind): nothing is counted")
        return
    count = measure_tokens if given.tokens else measure_all
    environment = dict(os.environ)
    runs = Interpreter(sys.executable, environment)
    other_runs = Interpreter(given.vs, environment) if given.vs else None
    if given.both:
        other_runs = Interpreter(sys.executable, environment | {_native.SWITCH: "0"})
    print(runs.described + (f", against {other_runs.described}" if other_runs else ""), flush=True)
    ours = count(runs)
    theirs = count(other_runs) if other_runs else {}
    for what, figure in ours.items():
        other = theirs.get(what)
        against = f"  against {other:,.0f}: {figure / other:.3f}" if other else ""
        print(f"{what}: {figure:,.0f} instructions{against}", flush=True)


if __name__ == "__main__":
    main()
