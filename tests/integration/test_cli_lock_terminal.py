"""Command under ``fj-cli lock`` in a shell with job control, on a terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest

from fastjournal.client import SyncClient
from fastjournal.errors import RefusedError
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.terminal import Shell
from tests.integration.worker_process import Ticking, add, wait_until


@pytest.fixture
def ticking(tmp_path: Path) -> Iterator[Ticking]:
    ticking = Ticking(tmp_path)
    yield ticking
    ticking.kill()


@pytest.fixture
def terminal(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Shell]:
    cli = Cli(tmp_path, daemon.address)
    assert cli("set", "k", "v").returncode == 0
    with Shell(cli.environment) as shell:
        yield shell


def stop(terminal: Shell, ticking: Ticking, keys: str = "\x1a") -> int:
    """Stop command and all; return how many ticks it had by then."""
    terminal.press(keys)
    wait_until(lambda: ticking.states == {"T"})
    return ticking.ticks


def test_command_reads_the_terminal_and_its_ctrl_c_ends_no_lock(
    terminal: Shell, daemon: DaemonProcess, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("trap 'echo heard' INT; echo began; read a; read b; echo got $a $b")
    terminal.press(f'{quote(installed("fj-cli"))} lock --time 1s k bash {script}; echo co""de $?\n')
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
    terminal.press(f"{quote(installed('fj-cli'))} lock k bash {script}\n")
    terminal.wait_for("began")
    terminal.press("\x1a")
    terminal.wait_for("Stopped")
    terminal.press("echo sh''ell; fg; echo en''d $?\n")
    terminal.wait_for("shell")
    terminal.press("one\n")
    terminal.wait_for("got one")
    terminal.wait_for("end 0")


LENDING = """
import os, signal
from fj_cli.main import main
lend = os.tcsetpgrp
def lend_once(terminal, group):
    os.tcsetpgrp = lend
    {}
os.tcsetpgrp = lend_once
main()
"""
"""The command line, with a moment at which it hands the terminal over to its command."""
WAIT_STOPPED = "os.waitid(os.P_PID, group, os.WSTOPPED | os.WNOWAIT)"


@pytest.mark.parametrize(
    "moment",
    [
        "os.kill(os.getpid(), signal.SIGTSTP); lend(terminal, group)",
        f"lend(terminal, group); os.killpg(group, signal.SIGTSTP); {WAIT_STOPPED}",
    ],
    ids=["before", "after"],
)
def test_stop_that_comes_while_the_command_gets_the_terminal_is_not_lost(
    moment: str, terminal: Shell, tmp_path: Path
) -> None:
    run_lending(terminal, tmp_path, moment)
    terminal.wait_for("Stopped")
    terminal.press("echo sh''ell; fg; echo en''d $?\n")
    terminal.wait_for("shell")
    terminal.press("one\n")
    terminal.wait_for("got one")
    terminal.wait_for("end 0")


def test_command_that_reads_before_it_has_the_terminal_goes_on(
    terminal: Shell, tmp_path: Path
) -> None:
    run_lending(terminal, tmp_path, f"{WAIT_STOPPED}; lend(terminal, group)")
    terminal.wait_for("began")
    terminal.press("one\n")
    terminal.wait_for("got one")


def run_lending(terminal: Shell, directory: Path, moment: str) -> None:
    script, program = directory / "script", directory / "program.py"
    script.write_text("echo began; read a; echo got $a")
    program.write_text(LENDING.format(moment))
    terminal.press(f"{quote(sys.executable)} {program} lock k bash {script}\n")


def test_lock_stops_its_command_with_it_and_goes_on_once_the_lock_is_renewed(
    terminal: Shell, client: SyncClient, ticking: Ticking
) -> None:
    terminal.press(f"{quote(installed('fj-cli'))} lock --time 1h k {ticking.command} &\n")
    ticking.wait_ticking()
    for name in ("TSTP", "TTIN", "TTOU"):
        stopped_at = stop(terminal, ticking, f"kill -s {name} %1\n")
        ends_us = client.entry_stats("k").locked_until_us
        terminal.press("bg\n")
        wait_until(lambda: ticking.ticks > stopped_at)  # noqa: B023 - at once
        assert client.entry_stats("k").locked_until_us > ends_us
    terminal.press("fg; echo co''de $?\n")
    ticking.finish()
    terminal.wait_for("code 0")


@pytest.mark.parametrize("keys", ["\x1a", "kill -s TSTP %1\n"])
def test_lock_that_was_lost_while_it_was_stopped_ends_its_command(
    terminal: Shell, client: SyncClient, ticking: Ticking, keys: str
) -> None:
    end = "" if keys == "\x1a" else " &"
    terminal.press(f"{quote(installed('fj-cli'))} lock --time 1s k {ticking.command}{end}\n")
    ticking.wait_ticking()
    stopped_at = stop(terminal, ticking, keys)

    def locked() -> bool:
        try:
            client.lock("k", timeout=3600)
        except RefusedError:
            return False
        return True

    wait_until(locked)
    terminal.press("fg; echo co''de $?\n")
    terminal.wait_for("code 1")
    ticking.wait_gone()
    assert ticking.ticks == stopped_at


KEY = b"d:128:0000000000000000:one"


def begin(terminal: Shell, ticking: Ticking, options: str, end: str = "") -> None:
    worker = f"{quote(installed('fj-cli'))} next d {options} --exec {ticking.command}{end}"
    terminal.press(f"{worker}\n")
    ticking.wait_ticking()


STOPS = {"Ctrl-Z": ("", "\x1a")} | {name: (" &", f"kill -s {name} %1\n") for name in ("TTIN",)}


@pytest.mark.parametrize(("end", "keys"), STOPS.values(), ids=STOPS)
def test_worker_that_is_stopped_stops_its_command_and_ends_it_where_the_lease_is_lost(
    terminal: Shell, client: SyncClient, ticking: Ticking, end: str, keys: str
) -> None:
    add(client, "one")
    begin(terminal, ticking, "--lease 1s --count 1", end)
    stopped_at = stop(terminal, ticking, keys)
    (job,) = client.next("d", lease=3600, wait=60)
    assert job.key == KEY
    terminal.press("fg\n")
    terminal.wait_for("1 lost, 0 stopped")
    ticking.wait_gone()
    assert ticking.ticks == stopped_at
    client.delete(KEY, token=job.token)


def test_worker_that_is_continued_renews_its_lease_before_its_command_goes_on(
    terminal: Shell, client: SyncClient, ticking: Ticking
) -> None:
    add(client, "one")
    begin(terminal, ticking, "--lease 1h --timeout 1h --count 1")
    for _ in range(2):
        stopped_at = stop(terminal, ticking)
        lease_ends_us = client.entry_stats(KEY).worked_on_until_us
        terminal.press("fg\n")
        wait_until(lambda: ticking.ticks > stopped_at)  # noqa: B023 - at once
        assert client.entry_stats(KEY).worked_on_until_us > lease_ends_us
    ticking.finish()
    terminal.wait_for("1 done, 0 failed, 0 buried, 0 lost, 0 stopped")


def test_worker_time_that_it_was_stopped_is_no_time_of_its_command(
    terminal: Shell, client: SyncClient, ticking: Ticking
) -> None:
    add(client, "one")
    begin(terminal, ticking, "--lease 1h --timeout 1500ms --count 1")
    stop(terminal, ticking)
    client.set(b"other:128:0:x", "v")
    client.next("other", lease=2)
    assert client.next("other", lease=3600, wait=60)  # two seconds later
    ticking.finish()
    terminal.press("fg\n")
    terminal.wait_for("1 done, 0 failed, 0 buried, 0 lost, 0 stopped")


def test_worker_that_is_ended_while_it_is_stopped_ends_its_command(
    terminal: Shell, client: SyncClient, ticking: Ticking
) -> None:
    add(client, "one")
    begin(terminal, ticking, "--lease 1h --count 1")
    stop(terminal, ticking)
    terminal.press("kill -TERM %1; fg; echo ov''er\n")
    terminal.wait_for("stopping: 1 running; once more to end them")
    terminal.press("\x03")
    terminal.wait_for("over")
    ticking.wait_gone()
    assert client.domain_stats("d").due == 1


def test_worker_that_sigstop_has_stopped_looks_at_its_lease_first(
    cli: Cli, client: SyncClient, ticking: Ticking
) -> None:
    add(client, "one")
    worker = cli.start(
        *("next", "d", "--lease", "1s", "--count", "1", "--exec", *ticking.command.split())
    )
    ticking.wait_ticking()
    os.kill(worker.pid, signal.SIGSTOP)
    (job,) = client.next("d", lease=3600, wait=60)
    os.kill(worker.pid, signal.SIGCONT)
    _, said = worker.communicate(timeout=60)
    ticking.wait_gone()
    assert b"1 lost" in said
    client.delete(KEY, token=job.token)
