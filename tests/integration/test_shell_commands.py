"""Commands of a shell that fork servers start: in the state of a new interpreter, and as mortal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import programs
from tests.integration.probe_servers import probe_servers
from tests.integration.programs import ForkServers, installed
from tests.integration.shell_commands import _Door, forked_commands
from tests.integration.test_fork_server import is_dead
from tests.integration.worker_process import wait_until


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServers]:
    with probe_servers(tmp_path, monkeypatch) as servers:
        yield servers


def shell(script: str, places: list[str], directory: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a script of commands that are at these places."""
    return subprocess.run(
        ["bash", "-uc", script],
        cwd=directory,
        env={**os.environ, "PATH": ":".join([*places, os.environ["PATH"]])},
        capture_output=True,
        timeout=60,
        check=False,
    )


ONE = "exec 4>file; probe one $'\\xff' '' 3<&- < input"
"""Start of the probe with a descriptor that it inherits."""
SCRIPTS = {
    "foreground": f"{ONE}; exit $?",
    "background": f"{ONE} & wait $!; exit $?",
    "pipe": f"{ONE} | cat; exit ${{PIPESTATUS[0]}}",
    "environment": f"export NEW=$'\\xff'; unset HOME; cd /; {ONE.replace('file', '/dev/null')}",
}


@pytest.mark.parametrize("how", SCRIPTS)
def test_forked_command_starts_its_program_in_the_state_of_a_new_interpreter(
    servers: ForkServers, tmp_path: Path, how: str
) -> None:
    (tmp_path / "input").write_bytes(b"in")
    script = SCRIPTS[how].replace("< input", f"< {tmp_path}/input")

    def report(places: list[str]) -> dict[str, Any]:
        done = shell(script, places, tmp_path)
        assert (done.returncode, done.stderr) == (7, b"in")
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    with forked_commands(["probe"]) as places:
        forked = report(places)
    new = report([str(Path(programs.installed("probe")).parent)])
    assert servers._servers.keys() == {"probe"}
    assert forked["pid"] != new["pid"]
    for name in DIFFERENT:
        del forked[name], new[name]
    for said in (forked, new):
        # where the command was found, and what else a shell says of it
        for variable in ("PATH", "_"):
            del said["environment"][variable]
    for name in new:
        assert forked[name] == new[name], name


DIFFERENT = ("pid", "drawn", "family", "files")
"""The program is a child of pytest, and has no more descriptors than the standard streams."""


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    ("before", "forked"),
    [("", True), ("ulimit -n 100", False), ("umask 070", False), ("export PYTHONUTF8=1", False)],
)
def test_forked_command_is_the_script_where_a_fork_would_differ(
    tmp_path: Path, before: str, forked: bool
) -> None:
    with forked_commands(["probe"]) as places:
        done = shell(f"{before}\nprobe </dev/null; exit $?", places, tmp_path)
    assert done.returncode == 7
    assert (json.loads(done.stdout)["family"][0] == os.getpid()) is forked


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_forked_command_passes_a_signal_on_and_ends_by_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    os.mkfifo(tmp_path / "input")
    script = f"""
        exec 4<>input
        probe <input >said 2>errors & until test -s said; do sleep 0.01; done
        kill -{number} $!; wait $!
        echo $?
    """
    with forked_commands(["probe"]) as places:
        done = shell(script, places, tmp_path)
        wait_until(lambda: is_dead(pid_in(tmp_path / "said")))
    assert int(done.stdout) == 128 + number


def pid_in(file: Path) -> int:
    pid: int = json.loads(file.read_bytes())["pid"]
    return pid


@pytest.mark.usefixtures("servers")
def test_forked_command_that_is_killed_has_no_program_when_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the door sees nothing of the end of a connection
    monkeypatch.setattr(_Door, "_pass_on", lambda *_: None)
    os.mkfifo(tmp_path / "input")
    script = """
        exec 4<>input
        probe <input >one 2>errors & until test -s one; do sleep 0.01; done
        kill -9 $!
        probe <input >two 2>errors & until test -s two; do sleep 0.01; done
    """
    with forked_commands(["probe"]) as places:
        shell(script, places, tmp_path)
        assert is_dead(pid_in(tmp_path / "one"))
        assert not is_dead(pid_in(tmp_path / "two"))
    assert is_dead(pid_in(tmp_path / "two"))


def test_forked_commands_of_this_project_are_forked(tmp_path: Path) -> None:
    with forked_commands() as places:
        places.append(str(Path(installed("fj-cli")).parent))
        done = shell("fastjournald --version; fj-cli ping --nonsense; exit $?", places, tmp_path)
    assert done.stdout.startswith(b"fastjournald, version ")
    assert (done.returncode, b"No such option" in done.stderr) == (2, True)
