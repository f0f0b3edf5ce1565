"""The play: slices of events, each spooled, forwarded and worked off; the daemon killed midway."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from fastjournal.client import SyncClient
from fastjournal.clock import SystemClock
from fastjournal.spool import Spool
from fastjournal.spool.status import spool_status
from fj_cli.demo.players import (
    SECOND_US,
    Player,
    Spooled,
    Terms,
    Worked,
    expected_executions,
    load_changes,
    produce,
    slices,
    work,
)
from fj_cli.demo.services import POLL_SECONDS, Daemon, DemoError, Service, forwarder
from fj_cli.termination import done_first

PRODUCERS = 3
WORKERS = 2
KILLS = (0.35, 0.65)
"""Where in the file the daemon is killed: once while events come in, once while jobs are done."""

DRAIN_SECONDS = 60.0
"""Far longer than the slowest machine takes for one slice."""

DAY_S = 24 * 3600


class DemoResult(msgspec.Struct):
    """Result of the play."""

    events: int
    expected: int
    """Executions, computed straight from the file."""
    executions: int
    entries: int
    """Jobs of the daemon after deduplication, by its own count."""
    lost: int
    """Work of the file that no worker did."""
    doubled: int
    """Work done twice, or without an event in the file."""
    requests: int
    seconds: float
    kills: int
    lost_leases: int
    log_bytes: int
    spooled_bytes: int
    snapshot: str

    @property
    def good(self) -> bool:
        """Whether everything was worked on as often as the file asks for."""
        is_exact = self.executions == self.expected == self.entries
        return is_exact and not self.lost and not self.doubled


class Play:
    """Play of the demonstration: all programs on one directory.

    Args:
        directory: Empty.
        delay_s: Seconds without a change after which a changed page may be processed.
        seed: Seed of the moments of the kills.
        events: File of the events; None: those of the package.
        on_progress: Gets events spooled and jobs completed so far.
    """

    def __init__(
        self,
        directory: Path,
        *,
        delay_s: int,
        seed: int,
        events: Path | None,
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._directory = directory
        self._spool = directory / "spool"
        self._delay_s = delay_s
        self._random = random.Random(seed)
        self._events = events
        self._on_progress = on_progress
        self._daemon = Daemon(directory)
        self._players: list[Player] = []
        self._slot_bytes: dict[str, int] = {}
        self._completed: Counter[tuple[bytes, int]] = Counter()
        self._entries = 0
        self._waiting = 0
        self._requests = 0
        self._lost_leases = 0
        self._kills = 0

    def run(self) -> DemoResult:
        """Play everything.

        Raises:
            DemoError: A part did not do what it should.
        """
        changes = load_changes(self._events)
        expected = expected_executions(changes, self._delay_s)
        Spool(self._spool).close()
        shift_s = SystemClock().now_us() // SECOND_US - changes[-1].at_s - self._delay_s - DAY_S
        terms = Terms(
            spool=str(self._spool),
            address=self._daemon.address,
            delay_s=self._delay_s,
            shift_s=shift_s,
            producers=PRODUCERS,
            events=self._events,
        )
        started = time.monotonic()
        sending = forwarder(self._directory, self._spool, self._daemon.address)
        with self._daemon, sending:
            self._daemon.start()
            producers = [self._player(produce, terms, number) for number in range(PRODUCERS)]
            workers = [self._player(work, terms, number) for number in range(WORKERS)]
            sending.start()
            kill_at = [int(part * len(changes)) for part in KILLS]
            for piece in slices(changes, self._delay_s):
                kill = bool(kill_at) and piece.end > kill_at[0]
                if kill:
                    kill_at.pop(0)
                while_working = kill and self._kills % 2 == 1
                spooled_kill = kill and not while_working
                self._spool_slice(producers, piece.first, piece.end, kill=spooled_kill)
                self._wait_forwarded(sending)
                self._count_entries()
                self._work_off(workers, piece.due_s, kill=while_working)
                self._on_progress(piece.end, self._completed.total())
            seconds = time.monotonic() - started
            for player in self._players:
                player.close()
            with SyncClient(self._daemon.address) as client:
                stats = client.stats()
                snapshot = client.snapshot()
        return DemoResult(
            events=len(changes),
            expected=len(expected),
            executions=self._completed.total(),
            entries=self._entries,
            lost=len(expected - self._completed.keys()),
            doubled=(self._completed - Counter(expected)).total(),
            requests=self._requests,
            seconds=seconds,
            kills=self._kills,
            lost_leases=self._lost_leases,
            log_bytes=stats["log_bytes"],
            spooled_bytes=sum(self._slot_bytes.values()),
            snapshot=snapshot,
        )

    def close(self) -> None:
        """End all producers and workers: until then they write into the directory."""
        for player in self._players:
            player.end()

    def _player(
        self, role: Callable[[Connection, Terms, int], None], terms: Terms, number: int
    ) -> Player:
        with done_first():
            self._players.append(Player(role, terms, number))
        return self._players[-1]

    # --- one slice ------------------------------------------------------------------------------

    def _spool_slice(self, producers: list[Player], first: int, end: int, *, kill: bool) -> None:
        for producer in producers:
            producer.tell(first, end)
        if kill:
            self._kill_soon()
        for producer in producers:
            done = producer.answer()
            assert isinstance(done, Spooled)
            self._requests += done.events

    def _wait_forwarded(self, sending: Service) -> None:
        """Wait until every record of the spool was acknowledged and erased."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while not self._is_drained():
            sending.check()
            self._daemon.check()
            if time.monotonic() > deadline:
                raise DemoError("the forwarder did not send everything", path=self._spool)
            time.sleep(POLL_SECONDS)

    def _is_drained(self) -> bool:
        status = spool_status(self._spool)
        for slot in status.slots:
            self._slot_bytes[slot.name] = slot.size
        return status.pending == 0

    def _count_entries(self) -> None:
        """Count what waits now and did not before: a change that only moved an entry adds none."""
        with SyncClient(self._daemon.address) as client:
            self._entries += client.stats()["waiting"] - self._waiting

    def _work_off(self, workers: list[Player], due_s: int | None, *, kill: bool) -> None:
        """Run the workers until all due jobs are completed, and those that a kill left leased."""
        deadline = time.monotonic() + DRAIN_SECONDS
        is_unleased = False
        while True:
            for worker in workers:
                worker.tell(due_s)
            if kill:
                self._kill_soon()
                kill = False
            for worker in workers:
                worked = worker.answer()
                assert isinstance(worked, Worked)
                self._completed.update(worked.completed)
                self._requests += worked.requests
                self._lost_leases += worked.lost_leases
            with SyncClient(self._daemon.address) as client:
                stats = client.stats()
            self._waiting, was_unleased = stats["waiting"], is_unleased
            # a lease that ended after the turn of the workers left work for another turn
            is_unleased = stats["worked_on"] == 0
            if is_unleased and was_unleased and (due_s is not None or not self._waiting):
                return
            if time.monotonic() > deadline:
                raise DemoError("jobs are left", path=self._directory)
            time.sleep(POLL_SECONDS)

    def _kill_soon(self) -> None:
        """SIGKILL the daemon at a random moment of the play, and start it again."""
        time.sleep(self._random.uniform(0.0, 0.02))
        self._daemon.kill()
        self._kills += 1
        self._daemon.start()


def print_result(result: DemoResult, console: Console) -> None:
    """Print the input, the output, and the duration."""
    seconds = result.seconds
    on_disk = result.log_bytes + result.spooled_bytes
    table = Table(title="From a changed page to a finished job", title_justify="left")
    table.add_column("what")
    table.add_column("number", justify="right")
    table.add_column("which is")
    for what, number, meaning in (
        ("events", f"{result.events:,}", "changes in the file, spooled and forwarded"),
        ("entries", f"{result.entries:,}", "left of them in the daemon, de-duplicated"),
        ("executions", f"{result.executions:,}", "jobs completed under their lease token"),
        ("expected", f"{result.expected:,}", "executions computed straight from the file"),
        ("lost", f"{result.lost:,}", "expected, but not worked on"),
        ("doubled", f"{result.doubled:,}", "worked on more often than expected"),
        ("daemon killed", f"{result.kills:,}", "times by SIGKILL, and started again"),
        ("leases lost", f"{result.lost_leases:,}", "by workers, over it"),
        ("seconds", f"{seconds:,.1f}", "from the first event to the last job"),
        ("requests/s", f"{result.requests / seconds:,.0f}", "all requests, over all that time"),
        ("bytes/s", f"{on_disk / seconds:,.0f}", "written to spool and command log"),
    ):
        table.add_row(what, number, meaning)
    console.print(table)
    if result.good:
        console.print("every page was worked on exactly as often as its changes ask for")
    else:
        console.print("[bold red]executions differ from what the file asks for[/]")
