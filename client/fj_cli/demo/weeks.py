"""Four simulated weeks and their report: a daemon on the log, its archive, and ``fj-nightly``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fastjournal.clock import SystemClock
from fj_cli.demo.history import DAYS, Simulation
from fj_cli.demo.page_changes import PageChange
from fj_cli.demo.services import Daemon, DemoError, installed

CHANGES = 10_000
"""Newest events of the file, which are spread over the weeks."""


class Weeks:
    """Weeks that end now.

    Args:
        directory: Directory of everything; it is created.
        changes: Events, oldest first.
    """

    def __init__(self, directory: Path, changes: list[PageChange]) -> None:
        self._directory = directory
        directory.mkdir()
        self._archive = directory / "archive"
        self._daemon = Daemon(directory, self._archive)
        self.ledger = Simulation(
            self._daemon.cmdlog, changes[-CHANGES:], until_us=SystemClock().now_us(), days=DAYS
        ).run()

    def report(self) -> Path:
        """Start a daemon on the log, let ``fj-nightly`` report on it, and return the page.

        Raises:
            DemoError: One of them failed.
        """
        output = self._directory / "report"
        command = [installed("fj-nightly"), f"--server={self._daemon.address}"]
        command += [f"--archive={self._archive}", f"--output={output}"]
        with self._daemon:
            self._daemon.start()
            status = subprocess.run(command, check=False)
        if status.returncode:
            raise DemoError("fj-nightly failed", hint="--no-spark leaves it out")
        return max((output / "reports").iterdir())
