"""Fork server of the tests: a program that it forks is in the state that its script starts in."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration import programs
from tests.integration.probe_servers import PROBE, SHEBANG, probe_servers
from tests.integration.programs import (
    PRELOADED,
    ForkServer,
    ForkServers,
    Program,
    entry_point,
    installed,
    run_program,
)
from tests.integration.start_probe import ENDINGS
from tests.integration.worker_process import wait_until


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServers]:
    with probe_servers(tmp_path, monkeypatch) as servers:
        yield servers


def report(own_interpreter: bool = False, **options: Any) -> dict[str, Any]:
    """Start the probe, and return what it says."""
    script = programs.installed("probe")
    # readline puts more into the environment of C than os.environ knows
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": dict(os.environ),
        **options,
    }
    done = run_program(
        [script, "one", b"\xff", ""], input=b"in", own_interpreter=own_interpreter, **options
    )
    assert done.returncode == 7, done.stderr
    if options["stderr"] == subprocess.PIPE:
        assert done.stderr == b"in"
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def is_forked(pid: int) -> bool:
    return programs.SERVER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    "how",
    [
        "as here",
        "environment",
        "directory",
        "errors in a file",
        "latin-1",
        "ascii:ignore",
        ":replace",
    ],
)
def test_forked_program_is_in_the_state_of_a_new_interpreter(
    servers: ForkServers, tmp_path: Path, how: str
) -> None:
    options: dict[str, Any] = {}
    if how == "environment":
        options["env"] = {**os.environ, "NEW": "\udcff", "HOME": "/nowhere"}
        del options["env"]["PATH"]
    if how == "directory":
        options["cwd"] = tmp_path
    if how in ("latin-1", "ascii:ignore", ":replace"):
        options["env"] = {**os.environ, "PYTHONIOENCODING": how}
    with open(tmp_path / "errors", "ab+") as errors:
        errors.write(b"said before")
        errors.flush()
        if how == "errors in a file":
            options["stderr"] = errors
        forked, new = report(**options), report(own_interpreter=True, **options)
        if how == "errors in a file":
            assert (tmp_path / "errors").read_bytes() == b"said before" + b"in" * 2
    assert servers._servers, "one of them was forked"
    assert forked.pop("pid") != new.pop("pid")
    for said in (forked, new):
        del said["drawn"]
        if SHEBANG.startswith("#!/bin/sh"):
            said["environment"].pop("PWD")  # the shell's
    for name in new:
        assert forked[name] == new[name], name
    assert forked == new


def read(terminal: int) -> bytes:
    """Read what came to a terminal; nothing once nobody else has it."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def report_on_terminal(own_interpreter: bool) -> dict[str, Any]:
    """Start the probe in front on a terminal, its three streams; return what it says."""
    ours, terminal = os.openpty()
    # what is typed does not come into what the probe writes
    attributes = termios.tcgetattr(terminal)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    script, how = programs.installed("probe"), {"own_interpreter": own_interpreter}
    with Program([script], env=dict(os.environ), in_front=True, **streams, **how) as probe:
        os.close(terminal)
        assert is_forked(probe.pid) is not own_interpreter
        # two ends of the input: the first ends a line that is not
        os.write(ours, b"in\x04\x04")
        written = b"".join(iter(partial(read, ours), b""))
    os.close(ours)
    assert probe.returncode == 7
    assert written.endswith(b"in")
    said: dict[str, Any] = json.JSONDecoder().raw_decode(written[written.index(b"{") :].decode())[0]
    return said


@pytest.mark.usefixtures("servers")
def test_forked_program_on_a_terminal_is_in_the_state_of_a_new_interpreter() -> None:
    forked, new = report_on_terminal(False), report_on_terminal(True)
    assert forked["in front"] == "this"
    for name in new.keys() - {"pid", "drawn"}:
        assert forked[name] == new[name], name


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("how", ENDINGS)
def test_forked_program_ends_as_a_new_interpreter_does(how: str) -> None:
    line = [programs.installed("probe"), how]
    forked, new = (
        run_program(line, capture_output=True, env=dict(os.environ), own_interpreter=own)
        for own in (False, True)
    )
    assert forked.returncode == new.returncode
    assert forked.stdout == new.stdout
    # above it the paths of a traceback
    assert forked.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


@pytest.mark.usefixtures("servers")
def test_forked_programs_draw_different_random_numbers() -> None:
    one, two = report()["drawn"], report()["drawn"]
    assert one[0] != two[0]
    assert one[1] != two[1]


def test_server_forks_what_the_installed_script_calls() -> None:
    for name in PRELOADED:
        module, function = entry_point(name).split(":")
        assert f"from {module} import {function}" in Path(installed(name)).read_text()


def test_forked_program_is_a_child_with_signals_and_exit_code(tmp_path: Path) -> None:
    arguments = [installed("fastjournald"), "--cmdlog-path", str(tmp_path / "log")]
    arguments += ["--listen", f"unix:{tmp_path}/socket", "--ready-file", str(tmp_path / "ready")]
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
        with Program(arguments, stderr=subprocess.DEVNULL) as daemon:
            wait_until((tmp_path / "ready").exists)
            assert is_forked(daemon.pid) is (programs._fork_servers is not None)
            assert daemon.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                daemon.wait(0.001)
            daemon.send_signal(number)
            assert daemon.wait(60) == code
        (tmp_path / "ready").unlink(missing_ok=True)


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    "why", ["asked for", "group", "environment", "umask", "limit", "signal", "script"]
)
def test_interpreter_is_new_where_a_fork_would_differ(why: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    script = programs.installed("probe")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if why == "asked for":
        options["own_interpreter"] = True
    if why == "group":
        options["process_group"] = 0
    if why == "environment":
        options["env"] = {**os.environ, "PYTHONUTF8": "1"}
    if why == "script":
        script = str(tmp_path / "probe")
        (tmp_path / "probe").write_text(PROBE)
        (tmp_path / "probe").chmod(0o755)
    umask = os.umask(0o070)  # of nobody
    handler = signal.signal(signal.SIGWINCH, signal.SIG_IGN if why == "signal" else signal.SIG_DFL)
    try:
        if why != "umask":
            os.umask(umask)
        if why == "limit":
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        with Program([script], stderr=subprocess.DEVNULL, **options) as probe:
            assert not is_forked(probe.pid)
            probe.communicate(b"")
        assert probe.returncode == 7
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        signal.signal(signal.SIGWINCH, handler)


DYING = """
import os, signal, sys
from tests.integration import programs
programs.open_fork_servers()
line = [programs.installed("fastjournald"), "--cmdlog-path", sys.argv[1], "--listen"]
daemon = programs.Program([*line, f"unix:{sys.argv[1]}.socket"], stdin=-3, stdout=-3, stderr=-3)
(server,) = programs._fork_servers._servers.values()
print(daemon.pid, server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_programs_and_servers_die_with_the_process_of_the_tests(tmp_path: Path) -> None:
    if programs._fork_servers is None:
        pytest.skip("nothing is forked")
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path / "log")], stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == -signal.SIGKILL
    daemon, server = map(int, done.stdout.split())
    wait_until(lambda: is_dead(daemon))
    wait_until(lambda: is_dead(server))


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("leak", "said"),
    [
        ("file = open('/dev/null')", "files open"),
        ("import threading as t; t.Thread(target=t.Event().wait, daemon=True).start()", "threads"),
    ],
)
def test_server_refuses_a_program_whose_import_leaks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], leak: str, said: str
) -> None:
    (tmp_path / "leaking.py").write_text(f"{leak}\nmain = print\n")
    server = ForkServer(str(tmp_path / "script"), "leaking:main")
    with pytest.raises(AssertionError, match="fork server has ended"):
        server.start(b"{}", [])
    server.close()
    assert said in capfd.readouterr().err
