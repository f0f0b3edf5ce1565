"""Command under ``fj-cli lock`` in a shell with job control, on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed


class Terminal:
    """An interactive shell on a terminal of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._controller, there = pty.openpty()
        self.shown = b""
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"],
            stdin=there,
            stdout=there,
            stderr=there,
            env={**environment, "PS1": "$ ", "TERM": "dumb"},
        )
        os.close(there)

    def type(self, keys: str) -> None:
        os.write(self._controller, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until the terminal shows this; forget what came before it."""
        deadline = time.monotonic() + TIMEOUT_S
        while text.encode() not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not in {self.shown!r}"
            if select.select([self._controller], [], [], left)[0]:
                self.shown += os.read(self._controller, 4096)
        self.shown = self.shown.partition(text.encode())[2]

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._controller)


@pytest.fixture
def terminal(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Terminal]:
    cli = Cli(tmp_path, daemon.address)
    assert cli("set", "k", "v").returncode == 0
    terminal = Terminal(cli.environment)
    yield terminal
    terminal.close()


def test_command_reads_the_terminal_and_its_ctrl_c_ends_no_lock(
    terminal: Terminal, daemon: DaemonProcess, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("trap 'echo heard' INT; echo began; read a; read b; echo got $a $b")
    terminal.type(f'{installed("fj-cli")} lock --time 1s k bash {script}; echo co""de $?\n')
    terminal.wait_for("began")
    terminal.type("\x03")
    terminal.wait_for("heard")
    with SyncClient(daemon.address) as client:
        first = client.entry_stats("k").locked_until_us
        while client.entry_stats("k").locked_until_us < first + 1_000_000:
            time.sleep(0.02)
    terminal.type("one\n")
    terminal.type("two\n")
    terminal.wait_for("got one two")
    terminal.wait_for("code 0")


def test_command_that_is_stopped_gives_the_shell_back_and_goes_on_in_front(
    terminal: Terminal, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("echo began; read a; echo got $a")
    terminal.type(f"{installed('fj-cli')} lock k bash {script}\n")
    terminal.wait_for("began")
    terminal.type("\x1a")
    terminal.wait_for("Stopped")
    terminal.type("echo sh''ell; fg; echo en''d $?\n")
    terminal.wait_for("shell")
    terminal.type("one\n")
    terminal.wait_for("got one")
    terminal.wait_for("end 0")
