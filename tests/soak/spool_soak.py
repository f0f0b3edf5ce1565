"""Soak of the spool: writers, forwarder and daemon are killed at random, and disks are full.

``python -m tests.soak.soak --spool --seconds 3600``. Four writers append numbered jobs, durable or
not, with poison of every kind among them, in slots of two seconds. A worker takes the jobs from the
daemon and completes them. Each second or so one of the writers, the forwarder or the daemon gets
SIGKILL and is started again; at times the disk of the spool is full (with rights to mount one). The
first server of the forwarder's list is nobody. At the end all writers stop, the rest is delivered,
and one line says:

- appended: jobs whose append returned;
- delivered: of them, jobs that the worker was handed;
- lost: appended, and neither delivered nor still in the spool or its ``dead/``: has to be 0;
- doubled: jobs that the worker was handed after the daemon had confirmed their completion: has to
  be 0. A job whose lease was over, or whose completion had no reply before a kill, may come again
  (at least once): such jobs are counted apart.

Every poisonous record has to be in ``dead/``, no job may be there, and nothing pending may be left.
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

from fastjournal.clock import unique_timestamp
from fastjournal.errors import ProtocolError
from fastjournal.protocol import Flag, Function, Request, decode_request
from fastjournal.spool import DeadDirectory, Kind, SlotReader, list_slots, spool_status
from tests.integration.programs import installed
from tests.soak.peer import LISTEN, LostError, Peer
from tests.soak.spool_writer import DOMAIN, SLOT_SECONDS, VALUE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITERS: Final = 4
SECOND: Final = 1_000_000
LEASE_US: Final = 4 * SECOND
BATCH: Final = 200
KILL_SECONDS: Final = 1.2
"""Mean time between two kills."""
FULL_SHARE: Final = 0.15
"""Share of kills that fill the disk instead."""
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
    dead: int = 0
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
            f"{self.refused:,} refused, {self.poison:,} poisonous and {self.dead:,} in dead/, "
            f"{self.kills:,} kills, {self.full:,} full disks"
        )


class Worker:
    """Takes jobs and completes them; a set of names each, by what happened to them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.delivered: set[str] = set()
        self.completed: set[str] = set()
        self.doubled: list[str] = []
        self.again = 0
        self.idle = 0
        """Empty answers in a row."""

    async def work(self) -> None:
        """Work until the end, on one connection after the other."""
        while True:
            with suppress(LostError, OSError):
                stream = await trio.open_tcp_stream("127.0.0.1", self._port)
                try:
                    peer = Peer(stream)
                    while True:
                        await self._turn(peer)
                finally:
                    await trio.aclose_forcefully(stream)
            self.idle = 0
            await trio.sleep(0.05)

    async def _turn(self, peer: Peer) -> None:
        leased = await peer.ask(
            Request(
                Function.NEXT,
                0,
                int(Flag.DATA | LISTEN),
                unique_timestamp(),
                DOMAIN.encode(),
                timeout=LEASE_US,
                ttl=SECOND // 2,
                count=BATCH,
            )
        )
        if leased.code in ("busy", "shutting-down", "read-only"):
            await trio.sleep(0.1)
            return
        assert not leased.code, leased.error
        pairs = leased.pairs or []
        self.idle = 0 if pairs else self.idle + 1
        names = [pair.key.split(b":", 3)[3].decode() for pair in pairs]
        for name, pair in zip(names, pairs, strict=True):
            assert pair.value.startswith(name.encode()), f"{name}: another value"
            if name in self.completed:
                self.doubled.append(name)
            self.again += name in self.delivered
            self.delivered.add(name)
        await peer.send(
            *(
                Request(
                    Function.DELETE,
                    number,
                    int(Flag.WORKED_ON),
                    unique_timestamp(),
                    pair.key,
                    timeout=leased.timeout,
                )
                for number, pair in enumerate(pairs, 1)
            )
        )
        for _ in pairs:
            reply = await peer.reply()
            if not reply.code:
                self.completed.add(names[reply.identifier - 1])


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
        self._reports = directory / "reports"
        self._reports.mkdir()
        self._port, self._nobody = free_port(), free_port()
        self._writers: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.worker = Worker(self._port)
        self.outcome = Outcome()

    async def run(self, seconds: float) -> Outcome:
        """Run for so long, then deliver the rest and count."""
        self._daemon = self._start_daemon()
        self._forwarder = self._start_forwarder()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.worker.work)
                self._writers = [self._start_writer() for _ in range(WRITERS)]
                with trio.move_on_after(seconds):
                    while True:
                        await trio.sleep(self._chance.expovariate(1 / KILL_SECONDS))
                        await self._disturb()
                for writer in self._writers:
                    end(writer, signal.SIGKILL)
                await self._drain()
                nursery.cancel_scope.cancel()
        finally:
            for process in (*self._writers, self._forwarder, self._daemon):
                end(process, signal.SIGTERM)
        self._count()
        return self.outcome

    async def _disturb(self) -> None:
        """Kill a process, or let the disk be full for a while."""
        if self._can_fill and self._chance.random() < FULL_SHARE:
            self.outcome.full += 1
            ballast = self._spool.parent / "ballast"
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            await trio.sleep(self._chance.uniform(0.1, 2))
            ballast.unlink()
            return
        self.outcome.kills += 1
        victim = self._chance.randrange(WRITERS + 3)
        if victim < WRITERS:
            end(self._writers[victim], signal.SIGKILL)
            self._writers[victim] = self._start_writer()
        elif victim == WRITERS:
            end(self._daemon, signal.SIGKILL)
            await trio.sleep(self._chance.uniform(0, 0.5))
            self._daemon = self._start_daemon()
        else:
            end(self._forwarder, signal.SIGKILL)
            await trio.sleep(self._chance.uniform(0, 0.5))
            self._forwarder = self._start_forwarder()

    async def _drain(self) -> None:
        """Wait until nothing is pending, and the worker was idle for longer than a lease."""
        enough = 2 * (LEASE_US // SECOND) + 4
        with trio.move_on_after(DRAIN_SECONDS) as patience:
            while self.worker.idle < enough or spool_status(self._spool, strict=False).pending:
                self._check_alive()
                await trio.sleep(0.5)
        if patience.cancelled_caught:
            self.outcome.wrong.append(f"not all was delivered after {DRAIN_SECONDS:g} s")

    def _check_alive(self) -> None:
        for process in (self._forwarder, self._daemon):
            if process.poll() is not None:
                raise AssertionError(f"{process.args!r} ended with {process.returncode}")

    def _count(self) -> None:
        outcome, worker = self.outcome, self.worker
        appended, refused, poison = self._read_reports()
        delivered = worker.delivered
        dead = [Path(piece.raw_path).read_bytes() for piece in DeadDirectory(self._spool).list()]
        outcome.appended = len(appended)
        outcome.delivered = len(appended & delivered)
        outcome.unreported = len(delivered - appended)
        outcome.refused, outcome.again = len(refused), worker.again
        outcome.poison, outcome.dead = len(poison), len(dead)
        missing = appended - delivered
        lost = missing - self._pending() - set(map(name_of, dead))
        outcome.lost = len(lost)
        outcome.doubled = len(worker.doubled)
        if lost:
            outcome.wrong.append(f"lost: {sorted(lost)[:5]}")
        if missing - lost:
            outcome.wrong.append(f"kept, and not delivered: {sorted(missing - lost)[:5]}")
        if worker.doubled:
            outcome.wrong.append(f"doubled: {worker.doubled[:5]}")
        if unburied := poison - set(dead):
            outcome.wrong.append(f"{len(unburied)} poisonous are not in dead/: {min(unburied)!r}")
        errors = (self._directory / "errors").read_text()
        if "Traceback" in errors:
            outcome.wrong.append(errors[errors.index("Traceback") :][:3000])

    def _pending(self) -> set[str]:
        """Return the names of jobs that are pending in the spool."""
        names = set()
        for slot in list_slots(self._spool):
            with SlotReader(slot.path) as reader:
                while pieces := reader.read(1000):
                    names |= {name_of(each.data) for each in pieces if each.kind is Kind.PENDING}
        return names

    def _read_reports(self) -> tuple[set[str], set[str], set[bytes]]:
        """Return the names of jobs that were appended and refused, and poisonous frames."""
        appended, refused, poison = set(), set(), set()
        for report in self._reports.iterdir():
            for line in report.read_text().splitlines():
                sign, _, what = line.partition(" ")
                if sign == "poison":
                    poison.add(bytes.fromhex(what))
                else:
                    (appended if sign == "+" else refused).add(f"{report.name}.{what}")
        return appended, refused, poison

    def _start_writer(self) -> subprocess.Popen[bytes]:
        self._started += 1
        report = self._reports / f"w{self._started}"
        seed = str(self._chance.getrandbits(32))
        command = [sys.executable, "-m", "tests.soak.spool_writer", self._spool, report, seed]
        return self._popen(command)

    def _start_forwarder(self) -> subprocess.Popen[bytes]:
        command = [installed("fj-forwarder"), "--spool", self._spool, "--log-level", "error"]
        command += ["--server", f"127.0.0.1:{self._nobody}", "--server", f"127.0.0.1:{self._port}"]
        return self._popen([*command, "--slot-seconds", str(SLOT_SECONDS)])

    def _start_daemon(self) -> subprocess.Popen[bytes]:
        command = [installed("fastjournald"), "--cmdlog-path", self._directory / "log"]
        command += ["--listen", f"127.0.0.1:{self._port}", "--max-value", str(VALUE_BYTES_MAX)]
        command += ["--cmdlog-seg-size", "1000000", "--cmdlog-clean-int", "5000"]
        return self._popen([*command, "--log-level", "error"])

    def _popen(self, command: list[str | Path]) -> subprocess.Popen[bytes]:
        with (self._directory / "errors").open("ab") as errors:
            return subprocess.Popen(command, stderr=errors, cwd=ROOT)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End a process, and wait for it."""
    process.send_signal(number)
    process.wait(START_SECONDS)


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
def small_disk(path: Path) -> Iterator[bool]:
    """Mount a small file system there; False: that is not allowed here."""
    path.mkdir()
    options = ["-o", f"size={DISK_BYTES}"]
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
