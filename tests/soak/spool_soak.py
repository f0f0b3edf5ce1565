"""Soak of the spool: writers, forwarder and daemon are killed at random, and disks are full.

``python -m tests.soak.soak --spool --seconds 3600``. Four writers append numbered jobs, durable or
not, in slots of two seconds. Poison of every kind comes among them (``poisons.py``), an operator
empties ``dead/``. A worker takes the jobs from the daemon and completes them. Each second
or so one of the writers, the forwarder or the daemon gets SIGKILL and is started again; at times
the disk of the spool is full (with rights to mount one). The first server of the forwarder's list
is nobody; the second one is a gate to the daemon, which ends the connection at suspects.

At the end all writers stop. First everything has to be delivered but suspects and records of clocks
far ahead: so these hold up nothing. Then the gate is opened, and suspects are delivered, too. One
line says:

- appended: jobs whose append returned, and good jobs among the poisons;
- delivered: of them, jobs that the worker was handed;
- lost: appended, and neither delivered nor still in the spool or its ``dead/``: has to be 0;
- doubled: jobs that the worker was handed after the daemon had confirmed their completion: has to
  be 0. A job whose lease was over, or whose completion had no reply before a kill, may come again
  (at least once): such jobs are counted apart.

A run fails if a kind of poison was never there, if one of its effects is missing (a dead letter of
its code, once; a name in the log, once; a file that stays), or if a job is in ``dead/``.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from fastjournal.errors import ProtocolError, SpoolFailedError
from fastjournal.protocol import decode_request
from fastjournal.spool import Kind, SlotReader, list_slots
from tests.integration.programs import installed
from tests.soak.gate import Gate
from tests.soak.poisons import SUSPECT_MARK, Operator, Poisons
from tests.soak.spool_worker import LEASE_US, SECOND_US, Worker
from tests.soak.spool_writer import SLOT_SECONDS, VALUE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WRITERS: Final = 4
KILL_SECONDS: Final = 1.2
"""Mean time between two kills."""
FULL_SHARE: Final = 0.15
"""Share of kills that fill the disk instead."""
POISON_SECONDS: Final = 0.2
"""Mean time between two poisons."""
DISK_BYTES: Final = 32 * 1024 * 1024
DRAIN_SECONDS: Final = 180.0
START_SECONDS: Final = 60.0
ROOT: Final = Path(__file__).parents[2]


class Outcome(msgspec.Struct):
    """Counts of a run."""

    appended: int = 0
    delivered: int = 0
    again: int = 0
    """Handed out again without a confirmed completion: allowed."""
    unreported: int = 0
    """Delivered; the writer was killed, or its disk full, before the append returned."""
    refused: int = 0
    """Appends that were refused: the disk was full."""
    poison: int = 0
    """Poisons that were put."""
    dead: int = 0
    """Pieces that came to dead/."""
    kills: int = 0
    full: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = []

    def line(self) -> str:
        """Return the closing line."""
        return (
            f"appended {self.appended:,}, delivered {self.delivered:,}, lost {self.lost}, "
            f"doubled {self.doubled}; {self.again:,} again, {self.unreported:,} unreported, "
            f"{self.refused:,} refused, {self.poison:,} poisons and {self.dead:,} in dead/, "
            f"{self.kills:,} kills, {self.full:,} full disks"
        )


class Soak:
    """All processes of a run.

    Args:
        directory: For the log of the daemon and all reports.
        spool: The spool.
        seed: Seed of all chances.
        can_fill: Whether the spool has a small disk of its own, which may be filled.
    """

    def __init__(self, directory: Path, spool: Path, seed: int, *, can_fill: bool) -> None:
        self._directory = directory
        self._spool = spool
        self._chance = Random(seed)
        self._can_fill = can_fill
        self._reports, self._logs = directory / "reports", directory / "logs"
        for made in (spool, self._reports, self._logs):
            made.mkdir()
        self._port, self._nobody = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        """All that were started and not ended."""
        self._writers: list[subprocess.Popen[bytes]] = []
        self._started = self._lives = 0
        self.worker = Worker(self._port)
        self.gate = Gate(self._port, SUSPECT_MARK)
        self.poisons = Poisons(spool, Random(seed))
        self.operator = Operator(spool)
        self.outcome = Outcome()

    async def run(self, seconds: float) -> Outcome:
        """Run for so long, then deliver the rest and count."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self._gate_port = listeners[0].socket.getsockname()[1]
        try:
            self._daemon = self._start_daemon()
            self._forwarder = self._start_forwarder()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.gate.run, listeners)
                nursery.start_soon(self.worker.work)
                nursery.start_soon(self.operator.run)
                self._writers = [self._start_writer() for _ in range(WRITERS)]
                with trio.move_on_after(seconds):
                    async with trio.open_nursery() as disturbances:
                        disturbances.start_soon(self.poisons.run, POISON_SECONDS)
                        disturbances.start_soon(self._disturb_on)
                await self.poisons.deal_the_rest()
                for writer in self._writers:
                    end(writer, signal.SIGKILL)
                await self._drain()
                nursery.cancel_scope.cancel()
        finally:
            for process in self._processes:
                end(process, signal.SIGTERM)
        self._count()
        return self.outcome

    async def _disturb_on(self) -> None:
        while True:
            await trio.sleep(self._chance.expovariate(1 / KILL_SECONDS))
            await self._disturb()

    async def _disturb(self) -> None:
        """Kill a process, or let the disk be full for a while; a cancel ends that at once."""
        if self._can_fill and self._chance.random() < FULL_SHARE:
            self.outcome.full += 1
            ballast = self._spool.parent / "ballast"
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            try:
                await trio.sleep(self._chance.uniform(0.1, 2))
            finally:
                ballast.unlink()
            return
        self.outcome.kills += 1
        victim = self._chance.randrange(WRITERS + 3)
        if victim < WRITERS:
            end(self._writers[victim], signal.SIGKILL)
            self._writers[victim] = self._start_writer()
        elif victim == WRITERS:
            end(self._daemon, signal.SIGKILL)
            try:
                await trio.sleep(self._chance.uniform(0, 0.5))
            finally:
                self._daemon = self._start_daemon()
        else:
            end(self._forwarder, signal.SIGKILL)
            try:
                await trio.sleep(self._chance.uniform(0, 0.5))
            finally:
                self._forwarder = self._start_forwarder()

    async def _drain(self) -> None:
        """Wait until all is delivered but suspects, open the gate, and wait for the rest."""
        outcome, poisons = self.outcome, self.poisons
        outcome.wrong += [f"never put: {kind}" for kind in poisons.missing()]
        self._jobs = self._read_reports()[0] | poisons.jobs
        await self._wait("before the cure", 0, lambda: self._open_ends(poisons.suspects))
        said = self._log().read_text(errors="replace")
        for name in poisons.ignored:
            if (times := said.count(f"/{name}: nothing of a spool")) != 1:
                outcome.wrong.append(f"named {times} times: {name!r}")
        if not self.gate.closed:
            outcome.wrong.append("no connection ended at a suspect")
        self.gate.is_open = True
        end(self._forwarder, signal.SIGKILL)  # else the cured wait for up to 30 s
        self._forwarder = self._start_forwarder()
        self._jobs |= set(map(name_of, poisons.suspects))
        enough = 2 * (LEASE_US // SECOND_US) + 4  # what is leased and not completed comes again
        await self._wait("after the cure", enough, lambda: self._open_ends(set()))

    async def _wait(self, when: str, idle: int, open_ends: Callable[[], list[str]]) -> None:
        """Wait until there are no open ends, and the worker got so many empty answers in a row."""
        with trio.move_on_after(DRAIN_SECONDS) as patience:
            while open_ends() or self.worker.idle < idle:
                self._check_alive()
                await trio.sleep(0.5)
        if patience.cancelled_caught:
            self.outcome.wrong += [f"{when}: {problem}" for problem in open_ends()[:20]]
            self.outcome.wrong.append(f"{when}: not all was delivered after {DRAIN_SECONDS:g} s")

    def _open_ends(self, late: set[bytes]) -> list[str]:
        """Return what is to be done still; frames of ``late`` may wait."""
        self.operator.empty()
        pending, never = self._pending(), self.poisons.never
        problems = [f"pending: {frame!r}" for frame in pending - never - late]
        problems += [f"not pending: {frame!r}" for frame in never - pending]
        undelivered = self._jobs - self.worker.delivered
        problems += [f"not delivered: {name}" for name in undelivered]
        return problems + self.poisons.problems(self.operator)

    def _check_alive(self) -> None:
        for process in (self._forwarder, self._daemon):
            if process.poll() is not None:
                raise AssertionError(f"{process.args!r} ended with {process.returncode}")

    def _count(self) -> None:
        outcome, worker, operator = self.outcome, self.worker, self.operator
        appended, refused = self._read_reports()
        appended |= self._jobs
        delivered = worker.delivered
        dead = {raw for _, raw in operator.pieces.values()}
        outcome.appended = len(appended)
        outcome.delivered = len(appended & delivered)
        outcome.unreported = len(delivered - appended)
        outcome.refused, outcome.again = len(refused), worker.again
        outcome.poison, outcome.dead = self.poisons.count, len(operator.pieces)
        missing = appended - delivered
        lost = missing - set(map(name_of, self._pending() | dead))
        outcome.lost = len(lost)
        outcome.doubled = len(worker.doubled)
        if lost:
            outcome.wrong.append(f"lost: {sorted(lost)[:5]}")
        if missing - lost:
            outcome.wrong.append(f"kept, and not delivered: {sorted(missing - lost)[:5]}")
        if worker.doubled:
            outcome.wrong.append(f"doubled: {worker.doubled[:5]}")
        outcome.wrong += operator.problems
        logs = [path.read_text(errors="replace") for path in self._logs.iterdir()]
        outcome.wrong += [
            log[log.index("Traceback") :][:3000] for log in logs if "Traceback" in log
        ]

    def _pending(self) -> set[bytes]:
        """Return the frames that are pending in the spool, in slots that can be read."""
        frames: set[bytes] = set()
        for slot in list_slots(self._spool):
            with suppress(SpoolFailedError), SlotReader(slot.path) as reader:
                # all writers have ended: bytes that stay half a record hide no record behind them
                while pieces := reader.read(1000, final=True):
                    frames |= {piece.data for piece in pieces if piece.kind is Kind.PENDING}
        return frames

    def _read_reports(self) -> tuple[set[str], set[str]]:
        """Return the names of jobs that were appended and refused."""
        appended: set[str] = set()
        refused: set[str] = set()
        for report in self._reports.iterdir():
            for line in report.read_text().splitlines():
                sign, _, what = line.partition(" ")
                (appended if sign == "+" else refused).add(f"{report.name}.{what}")
        return appended, refused

    # --- processes ------------------------------------------------------------------------------

    def _start_writer(self) -> subprocess.Popen[bytes]:
        self._started += 1
        report = self._reports / f"w{self._started}"
        seed = str(self._chance.getrandbits(32))
        module = ("-m", "tests.soak.spool_writer")
        return self._popen(
            [sys.executable, *module, self._spool, report, seed], self._logs / "others"
        )

    def _start_forwarder(self) -> subprocess.Popen[bytes]:
        self._lives += 1
        command: list[str | Path] = [installed("fj-forwarder"), "--spool", self._spool]
        command += ["--log-level", "warning"]
        for port in (self._nobody, self._gate_port):
            command += ["--server", f"127.0.0.1:{port}"]
        return self._popen([*command, "--slot-seconds", str(SLOT_SECONDS)], self._log())

    def _log(self) -> Path:
        """Return the log of the forwarder that runs."""
        return self._logs / f"forwarder{self._lives}"

    def _start_daemon(self) -> subprocess.Popen[bytes]:
        log = self._directory / "log"
        command: list[str | Path] = [installed("fastjournald"), "--cmdlog-path", log]
        command += ["--listen", f"127.0.0.1:{self._port}", "--max-value", str(VALUE_BYTES_MAX)]
        command += ["--cmdlog-seg-size", "1000000", "--cmdlog-clean-int", "5000"]
        return self._popen([*command, "--log-level", "error"], self._logs / "others")

    def _popen(self, command: list[str | Path], log: Path) -> subprocess.Popen[bytes]:
        self._processes = [each for each in self._processes if each.returncode is None]
        with log.open("ab") as errors:
            process = subprocess.Popen(command, stderr=errors, cwd=ROOT)
        self._processes.append(process)
        return process


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End a process, and wait for it."""
    process.send_signal(number)
    try:
        process.wait(START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def name_of(frame: bytes) -> str:
    """Return the name of the job in a frame; empty: it is none."""
    try:
        return decode_request(frame).key.split(b":", 3)[3].decode()
    except (ProtocolError, IndexError, UnicodeDecodeError):
        return ""


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def small_disk(path: Path, size: int = DISK_BYTES) -> Iterator[bool]:
    """Mount a file system of so many bytes there; False: that is not allowed here."""
    path.mkdir()
    options = ["-o", f"size={size}"]
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *options, "none", path], capture_output=True, check=False
    )
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", path], check=True)


def run_spool(seconds: float, seed: int) -> Outcome:
    """Soak a new spool."""
    with (
        tempfile.TemporaryDirectory(prefix="spool-soak-") as name,
        small_disk(Path(name, "disk")) as can_fill,
    ):
        directory = Path(name)
        soak = Soak(directory, directory / "disk" / "spool", seed, can_fill=can_fill)
        return trio.run(soak.run, seconds)
