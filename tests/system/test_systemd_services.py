"""The services as systemd starts them: the installed command line, with a notify socket."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal import Spool, SyncClient
from tests.integration.programs import ended
from tests.system.staging import Unit, install

DEADLINE_S = 60


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose path is short enough for the name of a unix socket."""
    with tempfile.TemporaryDirectory(prefix="fj-") as name:
        yield Path(name)


def command_line(directory: Path, unit: str, environment: dict[str, str]) -> list[str]:
    """Return the command that systemd executes for a unit installed below a directory."""
    stage, bindir = directory / "stage", directory / "bin"
    if not bindir.exists():
        # the checkout may be in a path with a blank, which units have no programs in
        bindir.symlink_to(Path(sys.executable).parent)
    done = install(stage, bindir=str(bindir), sysconfdir=str(directory))
    assert done.returncode == 0, done.stderr
    line = Unit(stage / "usr/local/lib/systemd/system" / unit)["Service"]["ExecStart"]
    words: list[str] = []
    for word in shlex.split(line):
        if word.startswith("$") and word[1] != "{":
            words += environment[word[1:]].split()  # a variable of any number of words
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda name: environment[name[1]], word))
    return words


def start_daemon(directory: Path) -> list[str]:
    """Write a configuration and return how the unit starts the daemon on it."""
    (directory / "fastjournal").mkdir(exist_ok=True)
    (directory / "fastjournal/fastjournald.toml").write_text(
        f'cmdlog_path = "{directory}/log"\nlisten = ["unix:{directory}/socket"]\n', encoding="utf-8"
    )
    return command_line(directory, "fastjournald.service", {})


def states_until_ready(manager: socket.socket) -> list[str]:
    """Return the states that a service sends its manager, up to and with READY=1."""
    states: list[str] = []
    while "READY=1" not in states:
        states += manager.recv(4096).decode().splitlines()
    return states


@pytest.fixture
def manager(directory: Path) -> Iterator[socket.socket]:
    """The service manager's end of the notify socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(DEADLINE_S)
        receiver.bind(str(directory / "notify"))
        yield receiver


def test_daemon_is_ready_after_recovery_and_keeps_what_it_acknowledged(
    directory: Path, manager: socket.socket
) -> None:
    line = start_daemon(directory)
    environment = {**os.environ, "NOTIFY_SOCKET": str(directory / "notify")}
    address = f"unix:{directory}/socket"

    with ended(subprocess.Popen(line, env=environment)) as daemon:
        states_until_ready(manager)
        with SyncClient(address) as client:
            client.set("pages:128:0:1", "kept", uri="https://example.org/")
        daemon.kill()
    with ended(subprocess.Popen(line, env=environment)) as daemon:
        states_until_ready(manager)
        with SyncClient(address) as client:
            assert client.get("pages:128:0:1").value == b"kept"
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(DEADLINE_S) == 0

    assert manager.recv(4096) == b"STOPPING=1"


def test_forwarder_of_the_unit_empties_a_spool(directory: Path, manager: socket.socket) -> None:
    variables = {
        "FASTJOURNAL_SPOOL": str(directory / "spool"),
        "FASTJOURNAL_SERVER": f"unix:{directory}/socket",
        "FASTJOURNAL_FORWARDER_OPTIONS": "--http 127.0.0.1:0",
    }
    environment = {**os.environ, **variables, "NOTIFY_SOCKET": str(directory / "notify")}
    with Spool(directory / "spool") as spool:
        key = spool.append(domain="pages", uri="https://example.org/", value=b"changed")

    with ended(subprocess.Popen(start_daemon(directory), env=environment)) as daemon:
        states_until_ready(manager)
        line = command_line(directory, "fj-forwarder.service", variables)
        with (
            ended(subprocess.Popen(line, env=environment)) as forwarder,
            SyncClient(variables["FASTJOURNAL_SERVER"]) as client,
        ):
            states_until_ready(manager)
            (job,) = client.next("pages", wait=DEADLINE_S)
            assert (job.key, job.value) == (key, b"changed")
            forwarder.send_signal(signal.SIGTERM)
            assert forwarder.wait(DEADLINE_S) == 0
        daemon.terminate()
        assert daemon.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("unit", ["fj-forwarder.service", "fastjournal-nightly.service"])
def test_program_knows_the_options_that_its_unit_gives(directory: Path, unit: str) -> None:
    names = ("FASTJOURNAL_SPOOL", "FASTJOURNAL_REPORTS")
    variables = dict.fromkeys(names, "value") | {"FASTJOURNAL_FORWARDER_OPTIONS": ""}
    program, *words = command_line(directory, unit, variables)
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)

    given = {word for word in words if word.startswith("--")}
    assert given
    assert given <= set(re.findall(r"--[a-z-]+", done.stdout))
