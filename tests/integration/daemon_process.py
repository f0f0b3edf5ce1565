"""Starts a real ``fastjournald`` in a process of its own, and ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.programs import Program, installed

START_S = 180.0
"""Far longer than a start takes, so that a loaded machine fails no test."""

_POLL_S = 0.003


class DaemonProcess:
    """A daemon on a directory, listening on a free port of the loopback interface.

    Args:
        directory: The log goes below it, and what the daemon says.
        options: More command line options.
        own_interpreter: Fork it from no server (see programs.py): its memory or /proc is looked at.
        command: Starts it in another way; none: as it is installed.
        environment: More variables.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        own_interpreter: bool = False,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.log_path = directory / "log"
        self.stderr_path = directory / "fastjournald.err"
        self._ready_file = directory / "ready"
        self._options = options
        self._own_interpreter = own_interpreter
        self._environment = environment or {}
        self._command = command or (installed("fastjournald"),)
        self._process: subprocess.Popen[Any] | None = None
        self.addresses: list[str] = []
        """Where it listens, since the last start."""

    @property
    def address(self) -> str:
        """The first address."""
        return self.addresses[0]

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self._ready_file.exists()

    def launch(self) -> None:
        """Start it, and return at once."""
        self._ready_file.unlink(missing_ok=True)
        listen = () if "--listen" in self._options else ("--listen", "127.0.0.1:0")
        with open(self.stderr_path, "ab") as stderr:
            self._process = Program(
                [
                    *self._command,
                    *("--cmdlog-path", str(self.log_path)),
                    *("--ready-file", str(self._ready_file)),
                    *listen,
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                own_interpreter=self._own_interpreter,
                env=os.environ | self._environment,
            )

    def start(self) -> None:
        """Start it, and return when it takes requests."""
        self.launch()
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while not self.is_ready:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"fastjournald did not start: {self.said()}")
            time.sleep(_POLL_S)
        self.addresses = self._ready_file.read_text().split()

    def kill(self) -> None:
        """SIGKILL: as a crash of the process."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Return the exit code of a daemon that ends by itself."""
        assert self._process is not None, "not started"
        return self._process.wait(START_S)

    def said(self) -> str:
        """Return what it wrote to standard output and error."""
        return self.stderr_path.read_text() if self.stderr_path.exists() else ""

    def segments(self) -> dict[str, os.stat_result]:
        """Return the segments of its log; compaction may remove some meanwhile."""
        found = {}
        for path in self.log_path.glob("*.log"):
            with suppress(FileNotFoundError):
                found[path.name] = path.stat()
        return found

    def __enter__(self) -> DaemonProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None, "not started"
        process, self._process = self._process, None
        if process.poll() is None:
            os.kill(process.pid, number)
        try:
            return process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def lasting_daemon(*options: str) -> Any:
    """Return a fixture that runs a daemon with these options until the tests of the module end."""

    @pytest.fixture(scope="module")
    def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
        with DaemonProcess(tmp_path_factory.mktemp("daemon"), *options) as process:
            yield process

    return fixture
