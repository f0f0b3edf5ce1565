"""Runs the installed ``fj-cli`` in a process of its own, with nothing of the user's settings."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tests.integration.programs import Program, installed, run_program

TIMEOUT_S = 180.0
"""Far longer than a step takes, so that a loaded machine fails no test."""


class Cli:
    """``fj-cli`` against one daemon.

    Args:
        directory: Stands for the home directory.
        server: The daemon's address, by FASTJOURNAL_SERVER.
    """

    def __init__(self, directory: Path, server: str | None) -> None:
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FASTJOURNAL")
        }
        self.environment |= {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory / "config")}
        if server is not None:
            self.environment["FASTJOURNAL_SERVER"] = server

    def __call__(
        self, *arguments: str | bytes, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it to its end."""
        return run_program(
            [installed("fj-cli"), *arguments],
            input=stdin,
            capture_output=True,
            env=self.environment,
            timeout=TIMEOUT_S,
        )

    def start(
        self,
        *arguments: str,
        command: Sequence[str] | None = None,
        stdout: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Start it, and return while it runs.

        Args:
            arguments: Behind the command.
            command: From ``command_with``; None: the installed one.
            stdout: As ``subprocess.Popen`` takes it.
        """
        return Program(
            [*(command or [installed("fj-cli")]), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    def json(self, *arguments: str | bytes, stdin: bytes = b"") -> list[dict[str, Any]]:
        """Run it, see that it succeeds, and return the objects that it wrote."""
        done = self(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return [json.loads(line) for line in done.stdout.splitlines()]
