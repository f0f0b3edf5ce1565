"""Servers of the benchmark, each a process on a directory of its own, and their load generator.

A peer that is not installed is left out, and said. Every server has to sync a write before it
answers (``always``), or every second or so (``interval``).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import msgspec
import redis

from fastjournal import _native
from tests.bench.peers.redis_queue import COMPLETE, ENQUEUE, LEASE
from tests.bench.peers.rows import BEANSTALKD, LUA, OURS, PURE, STREAMS
from tests.integration.daemon_process import installed

START_S = 600.0
"""A start with a large log takes long."""

STOP_S = 120.0


class Server(ABC):
    """A server in a process of its own.

    Args:
        directory: Where its files go.
        policy: ``always`` or ``interval``.
    """

    name: str
    """Column of the table."""
    protocol: str
    """Protocol of the load generator."""
    program: str
    """Command that has to be on PATH."""
    has_uris = False
    """A job that is asked for again moves the waiting one."""
    has_scans = False
    environment: Mapping[str, str] = {}
    """Variables that it is started with."""

    def __init__(self, directory: Path, policy: str) -> None:
        self.directory = directory / f"{type(self).__name__}-{policy}"
        self.directory.mkdir()
        self.policy = policy
        self.port = free_port()
        self.scripts = ""
        """SHA-1 of its scripts, as the load generator takes them."""
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def is_installed(cls) -> bool:
        """Whether it can be started here."""
        return shutil.which(cls.program) is not None

    def start(self, *, lax: bool = False) -> float:
        """Start it, and return the seconds until it takes requests.

        Args:
            lax: Sync nothing, to fill it faster. Where that needs no restart, nothing is lost.
        """
        # as an installed daemon, which has its bytecode
        environment = os.environ | self.environment
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        started = time.perf_counter()
        with open(self.directory / "output", "ab") as output:
            self._process = subprocess.Popen(
                self.command(lax),
                cwd=self.directory,
                env=environment,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: see {self.directory}/output")
            time.sleep(0.002)
        return time.perf_counter() - started

    def stop(self) -> None:
        """End it in order."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)

    def processor_seconds(self) -> float:
        """Return the processor time that it has had, with that of threads that have ended."""
        # clock_getcpuclockid(3) of Linux
        return time.clock_gettime((~self._pid << 3) | 2)

    def resident_bytes(self) -> int:
        """Return its resident memory."""
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def _pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @abstractmethod
    def command(self, lax: bool) -> list[str]:
        """Return the command that starts it."""

    def is_ready(self) -> bool:
        """Whether it takes requests."""
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True


class Fastjournald(Server):
    """The installed daemon."""

    name, protocol, program = OURS, "fj", "python3"
    has_uris = has_scans = True

    def __init__(self, directory: Path, policy: str) -> None:
        super().__init__(directory, policy)
        self._http_port = free_port()
        self._ready_file = self.directory / "ready"

    def command(self, lax: bool) -> list[str]:
        """Return the command that starts it."""
        return [
            installed("fastjournald"),
            *("--listen", f"127.0.0.1:{self.port}", "--cmdlog-path", str(self.directory / "log")),
            *("--cmdlog-sync", "os" if lax else self.policy),
            *("--http", f"127.0.0.1:{self._http_port}", "--ready-file", str(self._ready_file)),
        ]

    def is_ready(self) -> bool:
        """Whether it serves: before the replay it listens for a moment, to check its address."""
        return self._ready_file.exists()

    def turns(self) -> dict[float, int]:
        """Return how many turns of the event loop took at most so many seconds, by bucket."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/metrics") as reply:
            text = reply.read().decode()
        found = re.findall(r'fastjournal_turn_seconds_bucket\{le="([^"]+)"\} ([0-9.e+]+)', text)
        return {float(bound): int(float(number)) for bound, number in found}


class FastjournaldPure(Fastjournald):
    """The installed daemon without native leaves."""

    name = PURE
    environment: Mapping[str, str] = {_native.SWITCH: "0"}

    @classmethod
    def is_installed(cls) -> bool:
        """Whether there are native leaves: else it is the one above."""
        return _native.leaves is not None


class RedisStreams(Server):
    """Redis with an append-only file; jobs are entries of a stream, a page of a scan has them."""

    name, protocol, program = STREAMS, "redis", "redis-server"
    has_scans = True

    def command(self, lax: bool) -> list[str]:
        """Return the command that starts it."""
        sync = "no" if lax else {"always": "always", "interval": "everysec"}[self.policy]
        return [
            *(self.program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""),
            *("--dir", str(self.directory), "--appendonly", "yes", "--appendfsync", sync),
        ]

    def is_ready(self) -> bool:
        """Whether it has loaded its file."""
        client = redis.Redis(port=self.port)
        try:
            client.ping()
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False
        self.prepare(client)
        client.close()
        return True

    def prepare(self, client: redis.Redis) -> None:
        """Make what the load needs."""
        if not client.exists("jobs"):
            client.xgroup_create("jobs", "workers", id="0", mkstream=True)


class RedisScripts(RedisStreams):
    """Redis with the queue of ``redis_queue``: the job that a SET with a URI is."""

    name, protocol = LUA, "lua"
    has_uris = True

    def prepare(self, client: redis.Redis) -> None:
        """Load the scripts."""
        shas = [client.script_load(script) for script in (ENQUEUE, LEASE, COMPLETE)]
        self.scripts = ",".join(str(sha) for sha in shas)


class Beanstalkd(Server):
    """Debian's beanstalkd with a binlog."""

    name, protocol, program = BEANSTALKD, "beanstalkd", "beanstalkd"

    def command(self, lax: bool) -> list[str]:
        """Return the command that starts it."""
        sync = ["-F"] if lax else ["-f", {"always": "0", "interval": "1000"}[self.policy]]
        return [
            *(self.program, "-l", "127.0.0.1", "-p", str(self.port)),
            *("-b", str(self.directory), *sync),
        ]

    def is_ready(self) -> bool:
        """Whether it has read its binlog: it listens before, and answers afterwards."""
        try:
            connection = socket.create_connection(("127.0.0.1", self.port))
        except ConnectionRefusedError:
            return False
        with connection:
            connection.settimeout(START_S)
            connection.sendall(b"list-tubes\r\n")
            return connection.recv(64).startswith(b"OK ")


SERVERS = (Fastjournald, FastjournaldPure, RedisStreams, RedisScripts, Beanstalkd)


_PORTS = iter(range(20_000 + os.getpid() % 10_000, 32_768))


def free_port() -> int:
    """Return a port that nothing listens on, each time another one.

    No client gets it while its server restarts.
    """
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise RuntimeError("no free port below those that clients get")


# --- load generator -------------------------------------------------------------------------------

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
