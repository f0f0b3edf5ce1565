"""fj-cli next --exec under job control: a terminal or a signal stops and continues it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.terminal import Shell
from tests.integration.worker_process import Ticking, add, wait_until

KEY = b"d:128:0000000000000000:one"


@pytest.fixture
def ticking(tmp_path: Path) -> Iterator[Ticking]:
    ticking = Ticking(tmp_path)
    yield ticking
    ticking.kill()


@pytest.fixture
def terminal(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Shell]:
    with Shell(Cli(tmp_path, daemon.address).environment) as shell:
        yield shell


def begin(terminal: Shell, ticking: Ticking, options: str, end: str = "") -> None:
    worker = f"{quote(installed('fj-cli'))} next d {options} --exec {ticking.command}{end}"
    terminal.press(f"{worker}\n")
    ticking.wait_ticking()


STOPS = {"Ctrl-Z": ("", "\x1a")} | {
    name: (" &", f"kill -s {name} %1\n") for name in ("TSTP", "TTIN", "TTOU")
}


@pytest.mark.parametrize("stop", STOPS)
def test_worker_that_is_stopped_stops_its_command_and_ends_it_where_the_lease_is_lost(
    terminal: Shell, client: SyncClient, ticking: Ticking, stop: str
) -> None:
    add(client, "one")
    end, keys = STOPS[stop]
    begin(terminal, ticking, "--lease 1s --count 1", end)
    terminal.press(keys)
    wait_until(lambda: ticking.states == {"T"})
    stopped_at = ticking.ticks
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
        terminal.press("\x1a")
        wait_until(lambda: ticking.states == {"T"})
        stopped_at = ticking.ticks
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
    terminal.press("\x1a")
    wait_until(lambda: ticking.states == {"T"})
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
    terminal.press("\x1a")
    wait_until(lambda: ticking.states == {"T"})
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
