"""Soak of the remote log: two daemons, one S3 server, kills, freezes and faulty networks.

``python -m tests.soak.soak --failover --seconds 1800 --seed 1``; ``--faults 500`` ends after so
many faults of processes. Each node has a network of its own to the store (``FaultProxy``), a small
disk of its own where mounting is allowed, and somebody who starts it again, as its unit does.

Two faults go on at a time: one of a process (killed, frozen for longer than ``takeover-after``,
stopped, asked to hand over, its directory burned or set back, its disk full), and one of a network.
Held to:

- lost 0: every acknowledged SET of a job is completed, when the faults have ended;
- doubled 0: no job is completed twice, or given to somebody who asks behind its completion;
- no stale read: a GET that begins behind an OK shows that change, whichever node answers, also one
  that was frozen, has a successor, and goes on;
- the daemons end with the codes of the contract only, say no traceback, and the remote log passes
  ``fj-cli remote verify``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from fastjournal.clock import unique_timestamp
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Reply
from tests.integration.daemon_process import DaemonProcess
from tests.integration.fault_proxy import Fate, FaultProxy, Faults
from tests.integration.job_ledger import LATER, Bookkeeping, produce, work
from tests.integration.programs import installed
from tests.integration.raw_client import RawClient, build, set_request
from tests.integration.s3_servers import BUCKET, s3_server
from tests.soak.spool_soak import free_port, small_disk

TAKEOVER_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 4.0
"""Time after which a client tries the next address."""
SERVE_SECONDS: Final = 60.0
"""Within so long somebody serves when the faults have ended, on a loaded machine."""
DISK_BYTES: Final = 48 << 20
URL: Final = f"s3://{BUCKET}/soak"
OPTIONS: Final = (
    *("--min-free-bytes", str(4 << 20)),
    *("--remote-log", URL),
    *("--takeover-after", f"{TAKEOVER_SECONDS:g}"),
    *("--remote-poll", "200"),
    *("--cmdlog-seg-size", "200000"),
    *("--cmdlog-clean-int", "500"),
)
ENDS: Final = {-signal.SIGKILL, -signal.SIGTERM, 0, 76}
"""Exit codes: killed, stopped before it had a handler, stopped, fenced."""
FULL: Final = 74
"""Also that, where the disk is full."""
REGISTER: Final = b"register"


class Outcome(msgspec.Struct):
    """Counts of a run."""

    acknowledged: int = 0
    completed: int = 0
    reads: int = 0
    process_faults: Counter[str] = msgspec.field(default_factory=Counter)
    network_faults: Counter[str] = msgspec.field(default_factory=Counter)
    ends: Counter[int] = msgspec.field(default_factory=Counter)
    fates: Counter[str] = msgspec.field(default_factory=Counter)
    epochs: int = 0
    longest_silence: float = 0.0
    lost: int = 0
    doubled: int = 0
    stale: int = 0
    wrong: list[str] = []

    def line(self) -> str:
        """Return the closing line."""
        faults = sum(self.process_faults.values())
        return (
            f"acknowledged {self.acknowledged:,}, completed {self.completed:,}, lost {self.lost}, "
            f"doubled {self.doubled}, stale {self.stale} of {self.reads:,} reads; {faults:,} "
            f"faults of processes {dict(self.process_faults)}, of networks "
            f"{dict(self.network_faults)}, requests {dict(self.fates)}; {self.epochs:,} epochs, "
            f"ends {dict(self.ends)}, longest silence {self.longest_silence:.1f} s"
        )


class Node:
    """A machine: directory, network, and a daemon that is started again whenever it ends.

    Args:
        name: Of the node.
        directory: An empty one.
        proxy: Its network.
    """

    def __init__(self, name: str, directory: Path, proxy: FaultProxy) -> None:
        self.name, self.directory, self.proxy = name, directory, proxy
        self.address = f"127.0.0.1:{free_port()}"
        self.daemon = DaemonProcess(
            directory,
            *("--listen", self.address, "--remote-node", name, *OPTIONS),
            own_interpreter=True,
            environment={"AWS_ENDPOINT_URL": proxy.address},
        )
        self.answered_at = 0.0
        """When it has answered a client last."""
        self.ends: Counter[int] = Counter()
        self.disk_was_full = False
        self.wrong: list[str] = []
        self._change = threading.Condition()
        self._down = True
        """Whether it is held down."""
        self._runs = False
        self._over = False
        self._thread = threading.Thread(target=self._keep_up)
        self._thread.start()

    @contextmanager
    def down(self, number: signal.Signals = signal.SIGKILL) -> Iterator[None]:
        """End the daemon; it is started again behind the block."""
        with self._change:
            self._down = True
            if self._runs:
                self.signal(number)
            if not self._change.wait_for(lambda: not self._runs, SERVE_SECONDS):
                self.signal(signal.SIGKILL)
                self._change.wait_for(lambda: not self._runs)
                self.wrong.append(f"{self.name} does not end: {self.daemon.said()[-2000:]}")
        try:
            yield
        finally:
            self.up()

    def up(self) -> None:
        """Let it run."""
        with self._change:
            self._down = False
            self._change.notify_all()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process, if there is one."""
        with suppress(ProcessLookupError):
            os.kill(self.daemon.pid, number)

    def close(self) -> None:
        """End it for good."""
        with self.down(signal.SIGTERM):
            self._over = True
        self._thread.join()

    def _keep_up(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._over or not self._down)
                if self._over:
                    return
                self.daemon.launch()
                self._runs = True
            code = self._wait()
            with self._change:
                self._runs = False
                self.ends[code] += 1
                self._change.notify_all()
            time.sleep(0.1)  # RestartSec of a unit

    def _wait(self) -> int:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return self.daemon.wait()


class Soak:
    """All processes of a run, and what is done to them.

    Args:
        nodes: All of them.
        seed: Seed of all chances.
        can_fill: Whether each node has a small disk of its own.
    """

    def __init__(self, nodes: list[Node], seed: int, *, can_fill: bool) -> None:
        self.nodes = nodes
        self.outcome = Outcome()
        self.books = Bookkeeping(self.connect, retry_seconds=0.1, pause_seconds=0.02)
        self._chance = Random(seed)
        self._network_chance = Random(seed + 1)
        self._addresses = cycle(nodes)
        self._acknowledged = 0
        """Number in the register that was acknowledged last."""
        self._calm = threading.Event()
        """No more faults."""
        self.process_faults: dict[str, Callable[[Node], None]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "stop": self._stop,
            "hand over": self._hand_over,
            "burn": self._burn,
            "set back": self._set_back,
        }
        if can_fill:
            self.process_faults["full disk"] = self._fill
        self.network_faults: dict[str, Faults] = {
            "cut off": Faults({Fate.DROP: 1.0}),
            "black hole": Faults({Fate.SWALLOW: 1.0}),
            "no replies": Faults({Fate.SILENCE: 1.0}),
            "replies cut": Faults({Fate.CUT: 0.5}),
            "503 storm": Faults({Fate.REFUSE: 0.9}),
            "500 behind the work": Faults({Fate.FAIL: 0.5}),
            "late requests": Faults({Fate.LATE: 0.3}, late_seconds=3.0),
            "slow": Faults(delay_seconds=0.3),
        }

    # --- clients --------------------------------------------------------------------------------

    def connect(self) -> RawClient:
        """Connect to the next node; one that does not serve closes the connection at once."""
        return patient(next(self._addresses).address)

    def write_register(self, _books: Bookkeeping, _seed: int) -> None:
        """Count a register up, one acknowledged number after the other."""
        client, number = self.books.connect(), 0
        while self.books.working:
            number += 1
            asked = set_request(REGISTER, b"%d" % number, at=unique_timestamp())
            asked.flags |= Flag.OVERWRITE
            while self.books.working:
                try:
                    reply = client.ask(asked)
                except (OSError, EOFError):
                    client.socket.close()
                    client = self.books.connect()
                    continue
                if reply.code not in LATER:
                    assert reply.code == "", reply.error
                    self._acknowledged = number
                    break
            time.sleep(0.02)
        client.socket.close()

    def read_register(self, _books: Bookkeeping, index: int) -> None:
        """Read the register from one node, whatever it is: what it answers is not stale."""
        node = self.nodes[index]
        while self.books.working:
            try:
                with patient(node.address, 4 * TAKEOVER_SECONDS + 4) as client:
                    while self.books.working:
                        floor = self._acknowledged
                        reply = client.ask(build(Function.GET, REGISTER, flags=Flag.DATA))
                        if reply.code not in LATER:
                            self._count_read(node, floor, reply)
                        time.sleep(0.01)
            except (OSError, EOFError):
                time.sleep(0.05)

    def _count_read(self, node: Node, floor: int, reply: Reply) -> None:
        assert reply.code in ("", "not-found"), reply.error
        node.answered_at = time.monotonic()
        self.outcome.reads += 1
        found = int(reply.pairs[0].value) if reply.pairs else 0
        if found < floor:
            self.outcome.stale += 1
            self.outcome.wrong.append(f"{node.name} answers {found} where {floor} has got OK")

    # --- faults ---------------------------------------------------------------------------------

    def run(self, seconds: float, faults: int) -> None:
        """Run all faults for so long, or so many of processes; then let all be worked off."""
        books = self.books
        producers = [books.run(produce, seed) for seed in range(2)]
        others = [books.run(work, seed) for seed in range(2)]
        others += [books.run(self.write_register, 0)]
        others += [books.run(self.read_register, index) for index in range(len(self.nodes))]
        books.wait_told(20)
        books.longest_silence = 0.0
        networks = threading.Thread(target=self._disturb_networks)
        networks.start()
        until = time.monotonic() + seconds
        try:
            while not books.problems and time.monotonic() < until:
                if sum(self.outcome.process_faults.values()) >= faults:
                    break
                self._disturb_a_process()
        finally:
            self._calm.set()
            networks.join()
        self._end(producers, others)

    def _end(self, producers: list[threading.Thread], others: list[threading.Thread]) -> None:
        books = self.books
        told, until = books.told, time.monotonic() + SERVE_SECONDS
        while books.told < told + 20 and not books.problems:
            if time.monotonic() > until:
                self.outcome.wrong.append(f"nobody serves {SERVE_SECONDS:g} s behind the faults")
                break
            time.sleep(0.05)
        books.producing = False
        if not self.outcome.wrong:
            books.drain(left=1)
        books.working = False
        for thread in [*producers, *others]:
            thread.join(SERVE_SECONDS)

    def _disturb_a_process(self) -> None:
        """Do something to a process, mostly to that of the primary; then leave it in peace."""
        primary = max(self.nodes, key=lambda node: node.answered_at)
        node = primary if self._chance.random() < 0.7 else self._chance.choice(self.nodes)
        name = self._chance.choice(list(self.process_faults))
        self.outcome.process_faults[name] += 1
        self.process_faults[name](node)
        # often a new primary begins to serve meanwhile, and sometimes not
        self._calm.wait(self._chance.uniform(0, 2 * TAKEOVER_SECONDS))

    def _disturb_networks(self) -> None:
        chance = self._network_chance
        while not self._calm.wait(chance.uniform(0.5, 2 * TAKEOVER_SECONDS)):
            name = chance.choice(list(self.network_faults))
            self.outcome.network_faults[name] += 1
            chosen = chance.choice([self.nodes[:1], self.nodes[1:], self.nodes])
            for node in chosen:
                node.proxy.faults = self.network_faults[name]
                if name in ("cut off", "black hole"):
                    node.proxy.cut()
            self._calm.wait(chance.uniform(0.2, 2.5 * TAKEOVER_SECONDS))
            for node in chosen:
                node.proxy.faults = Faults()
                node.proxy.cut()

    def _kill(self, node: Node) -> None:
        with node.down():
            time.sleep(self._chance.choice((0, 0.5, TAKEOVER_SECONDS + 1)))

    def _stop(self, node: Node) -> None:
        with node.down(signal.SIGTERM):
            time.sleep(self._chance.choice((0, 0.5)))

    def _hand_over(self, node: Node) -> None:
        """Ask it to let a standby take over; where it is one itself, nobody answers."""
        command = [installed("fj-cli"), "--server", node.address, "remote", "handover"]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_SECONDS)

    def _freeze(self, node: Node) -> None:
        """Stop the clock of a process for longer than it may be silent."""
        node.signal(signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.5, 2.5) * TAKEOVER_SECONDS)
        node.signal(signal.SIGCONT)

    def _burn(self, node: Node) -> None:
        """Lose a machine with its disk; another one has its name."""
        with node.down():
            shutil.rmtree(node.daemon.log_path, ignore_errors=True)

    def _set_back(self, node: Node) -> None:
        """Start on a copy of the directory that was made at an earlier kill."""
        with node.down():
            # beside its disk, which has no room for two
            log, copy = node.daemon.log_path, node.directory.with_name(f"{node.name}-copy")
            if log.exists() and not copy.exists():
                shutil.copytree(log, copy)
            elif copy.exists():
                shutil.rmtree(log, ignore_errors=True)
                shutil.move(copy, log)

    def _fill(self, node: Node) -> None:
        node.disk_was_full = True
        ballast = node.directory / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        time.sleep(self._chance.uniform(0.2, TAKEOVER_SECONDS))
        ballast.unlink()

    # --- count ----------------------------------------------------------------------------------

    def count(self) -> None:
        """Count what was promised, and look at what the nodes have said."""
        outcome, books = self.outcome, self.books
        outcome.acknowledged = len(books.acknowledged)
        outcome.completed = len(books.completed)
        outcome.longest_silence = books.longest_silence
        outcome.lost = len(books.lost) + len(books.lost_uris)
        outcome.doubled = len(books.doubled)
        outcome.wrong += books.problems
        if outcome.lost:
            outcome.wrong.append(f"lost: {sorted(books.lost | books.lost_uris)[:5]}")
        if outcome.doubled:
            outcome.wrong.append(f"doubled: {sorted(books.doubled)[:5]}")
        for node in self.nodes:
            outcome.ends += node.ends
            outcome.wrong += node.wrong
            outcome.fates += Counter(
                {fate.value: count for fate, count in node.proxy.fates.items()}
            )
            said = node.daemon.said()
            allowed = ENDS | ({FULL} if node.disk_was_full else set())
            if node.ends.keys() - allowed:
                outcome.wrong.append(f"{node.name} ended with {dict(node.ends)}: {said[-2000:]}")
            if "Traceback" in said:
                outcome.wrong.append(said[said.index("Traceback") :][:3000])

    def verify(self) -> None:
        """Have the command line verify the remote log."""
        command = [installed("fj-cli"), "remote", "verify", URL, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.outcome.wrong.append(f"verify: {done.stderr[-2000:]}")
        command = [installed("fj-cli"), "remote", "status", URL, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        self.outcome.epochs = msgspec.json.decode(done.stdout)["epoch"]


def patient(address: str, seconds: float = PATIENCE_SECONDS) -> RawClient:
    """Return a connection whose calls wait so long."""
    client = RawClient(address)
    client.socket.settimeout(seconds)
    return client


def run_failover(seconds: float, seed: int, faults: int = 1 << 30) -> Outcome:
    """Soak two new nodes with an S3 server of their own."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="failover-soak-")))
        server = stack.enter_context(s3_server())
        nodes, filled = [], []
        for number in (1, 2):
            own = directory / f"node{number}"
            filled.append(stack.enter_context(small_disk(own, DISK_BYTES)))
            proxy = stack.enter_context(FaultProxy(server, seed + number))
            nodes.append(Node(f"node{number}", own, proxy))
        soak = Soak(nodes, seed, can_fill=all(filled))
        try:
            subprocess.run([installed("fj-cli"), "remote", "create", URL], check=True)
            for node in nodes:
                node.up()
            soak.books.connect().socket.close()
            soak.run(seconds, faults)
        finally:
            for node in nodes:
                node.close()
        soak.count()
        soak.verify()
        for node in nodes if soak.outcome.wrong else ():
            print(f"--- {node.name} said:\n{node.daemon.said()[-8000:]}")
        return soak.outcome
