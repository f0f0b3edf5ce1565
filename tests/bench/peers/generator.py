"""Load generator of the benchmark: builds ``load.c`` with the machine's C compiler, and runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec

from tests.bench.peers.servers import Server

SOURCE = Path(__file__).with_name("load.c")


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

    def run(self, server: Server, *roles: str) -> list[Figures]:
        """Load a server with some roles until all with a count are done.

        Args:
            server: Which.
            roles: ``KIND:CONNECTIONS:WINDOW:COUNT``, as ``load.c`` has it.

        Raises:
            RuntimeError: A reply was not the one of success.
        """
        first, self._first = self._first, self._first + 1_000_000_000
        done = subprocess.run(
            [self._program, server.protocol, str(server.port), str(first), *roles],
            env=os.environ | {"LOAD_SCRIPTS": server.scripts},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{server.name}: {done.stderr.strip()}")
        return msgspec.json.decode(done.stdout, type=list[Figures])
