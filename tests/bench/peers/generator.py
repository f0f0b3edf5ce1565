"""Load generator of the benchmark: builds ``load.c`` with the machine's C compiler, and runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec

from tests.bench.peers.servers import Server

SOURCE = Path(__file__).with_name("load.c")

RUN_NUMBERS = 1_000_000_000
"""Numbers of jobs that each run has for itself."""
RUN_S = 900.0
"""A run that takes longer is stuck."""


class Figures(msgspec.Struct, frozen=True):
    """Result of a role of the generator."""

    kind: str
    operations: int
    seconds: float
    p50_us: int
    p99_us: int
    max_us: int

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds


class Run(msgspec.Struct, frozen=True):
    """Result of a run of the generator."""

    seconds: float
    processor_seconds: float
    roles: list[Figures]

    @property
    def processor_share(self) -> float:
        """Share of one processor that the generator had; near 1 it is the bottleneck."""
        return self.processor_seconds / self.seconds


class Generator:
    """A built load generator.

    Args:
        directory: Where the program goes.

    Raises:
        RuntimeError: There is no C compiler.
    """

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError("the load generator needs a C compiler (apt-get install gcc)")
        self._program = directory / "load"
        options = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
        subprocess.run([compiler, *options, "-o", self._program, SOURCE], check=True)
        self._first = 1

    def run(self, server: Server, *roles: str) -> Run:
        """Load a server with some roles until all with a count are done.

        A role ``move`` moves the jobs that the run before has put.

        Args:
            server: Server that is loaded.
            roles: ``KIND:CONNECTIONS:WINDOW:COUNT``, as ``load.c`` has it.

        Raises:
            RuntimeError: A reply was not the one of success, or the run took too long.
        """
        before, self._first = self._first, self._first + RUN_NUMBERS
        numbers = (str(self._first), str(before))
        try:
            done = subprocess.run(
                [self._program, server.protocol, str(server.port), *numbers, *roles],
                env=os.environ | {"LOAD_SCRIPTS": server.scripts},
                check=False,
                capture_output=True,
                text=True,
                timeout=RUN_S,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{server.name}: {' '.join(roles)} took too long") from error
        if done.returncode:
            raise RuntimeError(f"{server.name}: {' '.join(roles)}: {done.stderr.strip()}")
        return msgspec.json.decode(done.stdout, type=Run)
