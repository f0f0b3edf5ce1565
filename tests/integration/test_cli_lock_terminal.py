"""Command under ``fj-cli lock`` in a shell with job control, on a terminal."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.terminal import Terminal


class Shell(Terminal):
    """An interactive shell on a terminal of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = ["bash", "--norc", "--noprofile", "-i"]
        super().__init__(command, {**environment, "PS1": "$ ", "TERM": "dumb"})
        self._seen = 0

    def screen(self) -> list[str]:
        return self.written[self._seen :].split("\n")

    def wait_for(self, text: str) -> None:
        """Read until the terminal shows this behind what was waited for before."""
        self.until(re.escape(text))
        self._seen = self.written.index(text, self._seen) + len(text)


@pytest.fixture
def terminal(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Shell]:
    cli = Cli(tmp_path, daemon.address)
    assert cli("set", "k", "v").returncode == 0
    with Shell(cli.environment) as shell:
        yield shell


def test_command_reads_the_terminal_and_its_ctrl_c_ends_no_lock(
    terminal: Shell, daemon: DaemonProcess, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("trap 'echo heard' INT; echo began; read a; read b; echo got $a $b")
    terminal.press(f'{installed("fj-cli")} lock --time 1s k bash {script}; echo co""de $?\n')
    terminal.wait_for("began")
    terminal.press("\x03")
    terminal.wait_for("heard")
    with SyncClient(daemon.address) as client:
        first = client.entry_stats("k").locked_until_us
        while client.entry_stats("k").locked_until_us < first + 1_000_000:
            time.sleep(0.02)
    terminal.press("one\n")
    terminal.press("two\n")
    terminal.wait_for("got one two")
    terminal.wait_for("code 0")


def test_command_that_is_stopped_gives_the_shell_back_and_goes_on_in_front(
    terminal: Shell, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("echo began; read a; echo got $a")
    terminal.press(f"{installed('fj-cli')} lock k bash {script}\n")
    terminal.wait_for("began")
    terminal.press("\x1a")
    terminal.wait_for("Stopped")
    terminal.press("echo sh''ell; fg; echo en''d $?\n")
    terminal.wait_for("shell")
    terminal.press("one\n")
    terminal.wait_for("got one")
    terminal.wait_for("end 0")
