"""Periodic tasks with installed workers and a daemon: one job a tick, kills, suspensions."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.keys import parse_journal_key
from tests.integration import shifted_daemon
from tests.integration.cli_process import TIMEOUT_S
from tests.integration.daemon_process import DaemonProcess
from tests.integration.page_contents import http_address
from tests.integration.programs import installed
from tests.integration.worker_process import wait_until

FIVE_MINUTES_US = 300_000_000

MODULE = """
from fastjournal.tasks import Tasks, current_run

app = Tasks()

@app.periodic("{line}", "Europe/Berlin")
@app.task(queue="ticks", name="tick")
def tick() -> None:
    run = current_run()
    with open("said", "a") as file:
        file.write(f"{{run.job.key.decode()}} {{run.attempt}}\\n")
"""


class Ticking:
    """An application whose only task is periodic, and its workers."""

    def __init__(self, directory: Path, line: str, address: str) -> None:
        self._directory = directory
        self._address = address
        self.said_path = directory / "said"
        self.workers: list[subprocess.Popen[bytes]] = []
        (directory / "ticking.py").write_text(MODULE.format(line=line))

    def start(self) -> subprocess.Popen[bytes]:
        """Start a worker."""
        with open(self._log_path(len(self.workers)), "wb") as stderr:
            worker = subprocess.Popen(
                [installed("fj-worker"), "ticking:app", "--lease", "1"],
                cwd=self._directory,
                env={**os.environ, "FASTJOURNAL_SERVER": self._address},
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )
        self.workers.append(worker)
        return worker

    def _log_path(self, index: int) -> Path:
        return self._directory / f"worker-{index}.err"

    def log(self, index: int) -> str:
        """Return what a worker said."""
        return self._log_path(index).read_text()

    def runs(self) -> list[tuple[int, int]]:
        """Return tick and attempt of each run, in the order of their begins."""
        found = []
        for line in self.said_path.read_text().splitlines() if self.said_path.exists() else ():
            key, _, attempt = line.rpartition(" ")
            parts = parse_journal_key(key.encode())
            assert parts is not None
            assert (parts.domain, parts.priority, parts.id) == (b"ticks", 128, b"tick")
            found.append((parts.not_before_us, int(attempt)))
        return found

    def end(self) -> None:
        """Stop the workers."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
            worker.send_signal(signal.SIGCONT)
        for worker in self.workers:
            worker.wait(TIMEOUT_S)


Start = Callable[[str, str], Ticking]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    all_started = []

    def begin(line: str, address: str) -> Ticking:
        all_started.append(Ticking(tmp_path, line, address))
        return all_started[-1]

    yield begin
    for each in all_started:
        each.end()


def test_each_tick_is_one_job_with_three_workers_of_which_one_is_killed(
    tmp_path: Path, start: Start
) -> None:
    with DaemonProcess(tmp_path) as daemon:
        ticking = start("* * * * * *", daemon.address)
        for _ in range(3):
            ticking.start()
        wait_until(lambda: len(ticking.runs()) >= 4)
        ticking.workers[0].kill()
        wait_until(lambda: len(ticking.runs()) >= 9)
        ticking.start()
        wait_until(lambda: len(ticking.runs()) >= 13)
        ticking.end()
        with SyncClient(daemon.address) as client:
            left = [entry.key for entry in client.prefix("ticks:")]
        runs = ticking.runs()
    assert max(Counter(runs).values()) == 1, "no attempt twice: a tick is one job"
    begun = {tick for tick, _ in runs} | {int(key.split(b":")[2]) for key in left}
    second = 1_000_000
    passed = set(range(min(begun), max(begun), second))
    # on a machine that is busy for over a second a tick may be missed by all: they have said so
    assert not passed - begun or all("event=ticks-missed" in ticking.log(index) for index in (1, 2))


@pytest.fixture
def shifted(tmp_path: Path) -> Iterator[tuple[DaemonProcess, Callable[[int, int], None]]]:
    """A daemon whose clock begins a second after a tick, and what moves it, in seconds."""
    offset = tmp_path / "offset"
    begin_us = FIVE_MINUTES_US - time.time_ns() // 1000 % FIVE_MINUTES_US + 1_000_000

    def move(passed_s: int, set_s: int) -> None:
        shifted_daemon.set_offset(offset, begin_us + passed_s * 1_000_000, set_s * 1_000_000)

    move(0, 0)
    command = (sys.executable, "-m", shifted_daemon.__name__, str(offset))
    with DaemonProcess(tmp_path, "--http", "127.0.0.1:0", command=command) as daemon:
        yield daemon, move


def test_a_suspended_worker_sets_the_newest_tick_and_says_what_it_missed(
    shifted: tuple[DaemonProcess, Callable[[int, int], None]], start: Start
) -> None:
    daemon, move = shifted
    ticking = start("*/5 * * * *", daemon.address)
    worker = ticking.start()
    wait_until(lambda: len(ticking.runs()) == 1)
    with SyncClient(daemon.address) as client:  # else its lease would end, for a second attempt
        wait_until(lambda: not list(client.prefix("ticks:")))
    worker.send_signal(signal.SIGSTOP)
    move(3600, 0)
    worker.send_signal(signal.SIGCONT)
    wait_until(lambda: len(ticking.runs()) == 2)
    wait_until(lambda: "event=ticks-missed" in ticking.log(0))
    (before, _), (after, _) = ticking.runs()
    assert after - before == 3_600_000_000
    assert "event=ticks-missed id=tick missed=11 " in ticking.log(0)
    # one that starts now finds that all is done
    with SyncClient(daemon.address) as client:
        sets = client.daemon_stats().set_requests
        ticking.start()
        wait_until(lambda: client.daemon_stats().set_requests > sets)
        assert [entry.key for entry in client.prefix("ticks:")] == []
    ticking.end()
    assert len(ticking.runs()) == 2


def looks(daemon: DaemonProcess) -> int:
    """Return how often workers have asked for the time."""
    with closing(http.client.HTTPConnection(*http_address(daemon), timeout=TIMEOUT_S)) as page:
        page.request("GET", "/metrics")
        text = page.getresponse().read().decode()
    found = re.search(r'^fastjournal_requests_total\{function="nop"\} (\d+)', text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_a_clock_that_is_set_ahead_and_back_leaves_out_no_tick_and_repeats_none(
    shifted: tuple[DaemonProcess, Callable[[int, int], None]], start: Start
) -> None:
    daemon, move = shifted
    ticking = start("*/5 * * * *", daemon.address)
    ticking.start()
    wait_until(lambda: len(ticking.runs()) == 1)
    for set_s, runs in ((3600, 2), (300, 3), (3600, 3), (600, 4)):
        move(0, set_s)
        before = looks(daemon)
        wait_until(lambda before=before: looks(daemon) > before)  # type: ignore[misc]
        wait_until(lambda runs=runs: len(ticking.runs()) >= runs)  # type: ignore[misc]
    begin_us = ticking.runs()[0][0]
    assert [(tick - begin_us) // 1_000_000 for tick, _ in ticking.runs()] == [0, 3600, 300, 600]
