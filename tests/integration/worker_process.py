"""Workers under test: entries for them, the reports that they write, waiting for what they do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastjournal.client import SyncClient
from fastjournal.keys import build_journal_key
from tests.integration.cli_process import TIMEOUT_S

Alarm = Callable[[Callable[[], object]], None]
"""Has a function called in a signal handler of the main thread, in a moment."""


def add(client: SyncClient, *names: str, value: bytes | None = None) -> list[bytes]:
    """Set an entry of domain ``d`` for each name, with a URI of its own; return their keys."""
    keys = [build_journal_key("d", name) for name in names]
    for key, name in zip(keys, names, strict=True):
        client.set(key, f"value of {name}" if value is None else value, uri=f"uri:{name}")
    return keys


def reports(stderr: bytes) -> list[dict[str, Any]]:
    """Return what a worker said with --json, without summary, error and lines for people."""
    found = [json.loads(line) for line in stderr.splitlines() if line.startswith(b"{")]
    return [report for report in found if report.get("result", "summary") != "summary"]


def results(stderr: bytes) -> list[str]:
    """Return how the entries of these reports ended."""
    return [report["result"] for report in reports(stderr)]


def wait_until(condition: Callable[[], object]) -> None:
    """Return once the condition holds, which another process brings about."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_connected(client: SyncClient) -> None:
    """Return once a worker has connected to the client's daemon."""
    wait_until(lambda: client.stats()["connections"] == 2)


def line_of(worker: subprocess.Popen[bytes], wanted: bytes) -> bytes:
    """Read standard error up to the line that holds this; end a worker that stays silent."""
    assert worker.stderr is not None
    silence = threading.Timer(TIMEOUT_S, worker.kill)
    silence.start()
    try:
        for line in worker.stderr:
            if wanted in line:
                return line
    finally:
        silence.cancel()
    raise AssertionError(f"{wanted!r} was not said")


def gated(tmp_path: Path) -> tuple[str, ...]:
    """Return a command that says that it began, and ends once it may."""
    shell = f"touch {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    return "--exec", "sh", "-c", shell


class Ticking:
    """Command that writes while it runs, in a process below that of the worker's command.

    Args:
        directory: For its files.
    """

    def __init__(self, directory: Path) -> None:
        self._ticks, self._pids, self._go = (directory / name for name in ("ticks", "pids", "go"))
        loop = f"while [ ! -e {self._go} ]; do echo >>{self._ticks}; sleep 0.01; done"
        script = directory / "script"
        script.write_text(f"(echo $BASHPID $PPID >>{self._pids}; {loop}) & wait")
        self.command = f"bash {script}"

    @property
    def ticks(self) -> int:
        return self._ticks.stat().st_size if self._ticks.exists() else 0

    @property
    def states(self) -> set[str]:
        """States of its processes, as ps shows them."""
        found = set()
        for pid in self._pids.read_text().split():
            try:
                found.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
            except FileNotFoundError:
                found.add("gone")
        return found

    def wait_ticking(self) -> None:
        before = self.ticks
        wait_until(lambda: self.ticks > before)

    def wait_gone(self) -> None:
        wait_until(lambda: self.states <= {"gone", "Z"})

    def finish(self) -> None:
        self._go.touch()

    def kill(self) -> None:
        """End what still runs of it."""
        for pid in self._pids.read_text().split() if self._pids.exists() else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
