"""The daemon and the forwarder of the demonstration: the installed commands, as processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Self

from fastjournal.errors import FastjournalError
from fj_cli.termination import done_first

START_SECONDS = 30.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.005

SEGMENT_BYTES = 4 * 1024 * 1024
"""Small, so that there are several, and Spark's partitions use all cores."""


class DemoError(FastjournalError):
    """The demonstration did not work; the message says where to look."""

    code = "demo"


def installed(command: str) -> str:
    """Return the path of a command of this installation."""
    beside = Path(sys.executable).parent / command
    return str(beside if beside.exists() else Path(sysconfig.get_path("scripts")) / command)


class Service:
    """One program that runs until it is stopped or killed.

    Args:
        command: Program and arguments.
        log: Where its standard error goes.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        # otherwise it could run unknown to this program
        with self._log.open("ab") as log, done_first():
            self._process = subprocess.Popen(self._command, stderr=log, stdout=log)

    def kill(self) -> None:
        """End it as a power loss would: SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as systemd would: SIGTERM.

        Raises:
            DemoError: It does not end, or not well.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise DemoError("did not end on SIGTERM", path=self._log) from None
        if status != 0:
            raise DemoError(f"ended with exit code {status}", path=self._log)

    def check(self) -> None:
        """Raise unless it runs.

        Raises:
            DemoError: It has ended by itself.
        """
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            raise DemoError(f"ended with exit code {status}", path=self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.stop()
        elif self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Daemon(Service):
    """``fastjournald`` on a unix socket below a directory.

    Args:
        directory: Directory of everything that it writes.
        archive: Directory of the archive; None: it keeps none.
    """

    def __init__(self, directory: Path, archive: Path | None = None) -> None:
        self.cmdlog = directory / "cmdlog"
        self.address = f"unix:{directory / 'daemon.sock'}"
        self._ready = directory / "ready"
        command = [
            installed("fastjournald"),
            f"--cmdlog-path={self.cmdlog}",
            f"--listen={self.address}",
            f"--ready-file={self._ready}",
            f"--cmdlog-seg-size={SEGMENT_BYTES}",
        ]
        if archive is not None:
            command.append(f"--archive-dir={archive}")
        super().__init__(command, directory / "fastjournald.log")

    def start(self) -> None:
        """Start it, and return once it takes requests.

        Raises:
            DemoError: It does not.
        """
        self._ready.unlink(missing_ok=True)
        super().start()
        deadline = time.monotonic() + START_SECONDS
        while not self._ready.exists():
            self.check()
            if time.monotonic() > deadline:
                raise DemoError("is not ready", path=self._log)
            time.sleep(POLL_SECONDS)


def forwarder(directory: Path, spool: Path, address: str) -> Service:
    """Return ``fj-forwarder`` from a spool to a daemon."""
    command = [installed("fj-forwarder"), f"--spool={spool}", f"--server={address}"]
    return Service(command, directory / "fj-forwarder.log")
