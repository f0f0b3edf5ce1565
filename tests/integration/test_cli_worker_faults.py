"""fj-cli next --exec where what is around it fails: terminal, disk, descriptors, daemon, clock."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.keys import build_journal_key
from fastjournal.protocol import Function, Meta, Pair, Reply, Request, encode_error, encode_reply
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import Program, command_with, installed
from tests.integration.scripted_answers import renewed_lease
from tests.integration.worker_process import (
    add,
    gated,
    line_of,
    reports,
    results,
    wait_connected,
    wait_until,
)

FOREVER = ("next", "--wait", "forever", "--json")


@pytest.fixture(autouse=True)
def hang_up_ends_programs() -> Iterator[None]:
    """The tests may themselves run under nohup, and what they start would inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


# --- signals and terminals ------------------------------------------------------------------------


def test_terminal_that_is_closed_ends_the_worker_once_its_command_is_done(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    add(client, "one", "two")
    ours, terminal = os.openpty()
    worker = Program(
        [installed("fj-cli"), *FOREVER, *gated(tmp_path)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=cli.environment,
        in_front=True,
    )
    os.close(terminal)
    wait_until((tmp_path / "began").exists)
    os.close(ours)  # the kernel sends SIGHUP, and what is written to the terminal fails
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.3)
    (tmp_path / "go").touch()
    assert worker.wait(TIMEOUT_S) == 0
    assert [job.key for job in client.next()] == [build_journal_key("d", "two")]


def test_sighup_under_nohup_is_ignored(cli: Cli, client: SyncClient, tmp_path: Path) -> None:
    worker = subprocess.Popen(
        ["nohup", installed("fj-cli"), *FOREVER, "--count", "1", "--exec", "true"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=cli.environment,
    )
    wait_connected(client)
    worker.send_signal(signal.SIGHUP)
    worker.send_signal(signal.SIGHUP)
    add(client, "one")
    _, stderr = worker.communicate(timeout=TIMEOUT_S)
    assert results(stderr) == ["done"]
    assert worker.returncode == 0


def test_stop_a_second_time_ends_members_of_the_group_that_ignore_sigterm(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    (key,) = add(client, "one")
    stubborn = f"trap '' TERM; echo $$ > {tmp_path}/pid; exec sleep 600"
    shell = ("sh", "-c", f'sh -c "$0" & wait; {stubborn}', stubborn)
    worker = cli.start(*FOREVER, "--kill-after", "500ms", "--exec", *shell)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    worker.send_signal(signal.SIGTERM)
    line_of(worker, b"stopping: 1 running")
    worker.send_signal(signal.SIGTERM)
    _, stderr = worker.communicate(timeout=TIMEOUT_S)
    assert results(stderr) == ["stopped"]
    assert not is_alive(pid)
    assert [job.key for job in client.next()] == [key]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- reports that cannot be written ---------------------------------------------------------------


def test_worker_whose_reports_nobody_can_take_stops_no_command(
    cli: Cli, client: SyncClient
) -> None:
    for stderr in ("closed pipe", "full disk", "no standard error"):
        add(client, *"abcd")
        reading, writing = os.pipe()
        os.close(reading)
        with open("/dev/full", "wb") as full:
            shell = 'exec "$@" 2>&-' if stderr == "no standard error" else 'exec "$@"'
            done = subprocess.run(
                [
                    *("sh", "-c", shell, "sh", installed("fj-cli")),
                    *("next", "--jobs", "3", "--exec", "true"),
                ],
                stdin=subprocess.DEVNULL,
                stderr=writing if stderr == "closed pipe" else full,
                env=cli.environment,
                timeout=TIMEOUT_S,
                check=False,
            )
        os.close(writing)
        assert client.stats()["entries"] == 0, stderr
        assert done.returncode == 0, stderr


# --- the command ----------------------------------------------------------------------------------


def test_worker_goes_on_though_a_grandchild_keeps_standard_input_open(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    add(client, "one", value=b"x" * 500_000)
    # a shell gives /dev/null to what it runs in the background, but for what is said otherwise
    shell = f"exec 3<&0; sleep 600 <&3 >/dev/null 2>&1 & echo $! > {tmp_path}/pid"
    done = cli("next", "--json", "--exec", "sh", "-c", shell)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert results(done.stderr) == ["done"]


def test_attempt_without_descriptors_is_no_failed_one(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    worker = cli.start(
        *FOREVER, "--count", "1", "--max-attempts", "1", "--lease", "2s", "--exec", "true"
    )
    wait_connected(client)
    before = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    add(client, "one")
    line = line_of(worker, b"cannot run")
    assert b"Too many open files; trying again" in line
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, before)
    _, stderr = worker.communicate(timeout=TIMEOUT_S)
    assert results(stderr) == ["done"]


def test_program_that_went_away_is_a_failure_and_says_so(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nrm {program}\n")
    program.chmod(0o755)
    add(client, "one", "two")
    done = cli("next", "--json", "--exec", str(program))
    assert results(done.stderr) == ["done", "failed"]
    assert b"No such file or directory" in done.stderr


# --- the daemon -----------------------------------------------------------------------------------


def test_worker_that_is_started_while_the_daemon_is_away_waits_for_it(
    cli: Cli, daemon: DaemonProcess, tmp_path: Path
) -> None:
    with SyncClient(daemon.address) as client:
        add(client, "one")
    assert daemon.stop() == 0
    worker = cli.start("next", "--json", "--exec", "true")
    line_of(worker, b"waiting for the daemon")
    daemon.start()
    _, stderr = worker.communicate(timeout=TIMEOUT_S)
    assert results(stderr) == ["done"]
    assert worker.returncode == 0


def test_worker_that_waits_for_the_daemon_can_be_stopped(cli: Cli, daemon: DaemonProcess) -> None:
    assert daemon.stop() == 0
    worker = cli.start("next", "--exec", "true")
    line_of(worker, b"waiting for the daemon")
    worker.terminate()
    _, stderr = worker.communicate(timeout=TIMEOUT_S)
    assert worker.returncode == 0
    assert b"Traceback" not in stderr


HALF = encode_reply(Reply(7, error="not-found whatever"))[:9]
FULL = encode_error(0, 0, "busy too many connections")


@pytest.mark.parametrize(
    ("function", "broken"), [(Function.NEXT, HALF), (Function.TOUCH, FULL), (Function.DELETE, b"")]
)
def test_daemon_that_breaks_off_is_asked_again_and_no_command_is_ended(
    tmp_path: Path, function: int, broken: bytes
) -> None:
    """It dies inside of a reply, or is full when the worker comes back."""
    seen: list[int] = []

    def script(request: Request) -> Answer:
        seen.append(request.function)
        if request.function == function and seen.count(function) <= 3:
            return [broken, Do.CLOSE] if broken else [Do.CLOSE]
        pairs = None
        if request.function == Function.NEXT and not handed_out:
            handed_out.append(request)
            pairs = [Pair(build_journal_key("d", "one"), meta=Meta())]
        if request.function == Function.TOUCH:
            return [renewed_lease(request)]
        return [Reply(request.identifier, timeout=77, pairs=pairs)]

    handed_out: list[Request] = []
    with ScriptedDaemon(script) as daemon:
        done = Cli(tmp_path, daemon.address)(
            *("next", "--json", "--lease", "6s", "--exec", "sh", "-c"),
            "sleep 3" if function == Function.TOUCH else "true",
        )
    assert b"Traceback" not in done.stderr
    assert results(done.stderr) == ["done"], done.stderr
    assert done.returncode == 0
    assert seen.count(function) > 3


# --- clocks and refusals --------------------------------------------------------------------------


def test_refusal_that_the_next_end_would_meet_too_ends_the_worker_with_a_sentence(
    tmp_path: Path,
) -> None:
    handed_out = threading.Event()

    def script(request: Request) -> Answer:
        error, pairs = "", None
        if request.function == Function.QUIT:
            return [Do.CLOSE]
        if request.function == Function.NEXT:
            if handed_out.is_set():
                return []  # it waits
            handed_out.set()
            pairs = [Pair(build_journal_key("d", "one"), meta=Meta())]
        elif request.function == Function.DELETE:
            error = "forbidden"
        elif request.function == Function.TOUCH:
            return [renewed_lease(request)]
        return [Reply(request.identifier, timeout=77, pairs=pairs, error=error)]

    with ScriptedDaemon(script) as daemon:
        # the NEXT that waits is never answered, also when it is cancelled
        command = command_with("fj-cli", CLIENT_LAST_WORDS_S=0.5)
        arguments = (*FOREVER, "--jobs", "2", "--exec", "true")
        worker = Cli(tmp_path, daemon.address).start(*arguments, command=command)
        _, errors = worker.communicate(timeout=TIMEOUT_S)
        functions = [request.function for request in daemon.requests]
    assert worker.returncode == 1
    assert results(errors) == ["lost"]
    assert json.loads(errors.splitlines()[-1])["error"] == "forbidden"
    assert Function.RELEASE in functions


# --- orphans --------------------------------------------------------------------------------------

SUBREAPER = (
    "import ctypes, os, sys;"
    "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
ADOPTING = {
    "subreaper": [sys.executable, "-c", SUBREAPER, installed("fj-cli")],
    "process 1": [
        *("unshare", "--pid", "--fork", "--kill-child"),
        *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
        installed("fj-cli"),
    ],
}
"""Command lines of a program that adopts orphans: as in a container without an init process."""

ORPHAN = "(sleep 0.2; true) & (exit 0) &"


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def adopter(starter: subprocess.Popen[bytes], kind: str) -> int:
    """Return the process that adopts orphans, outside of its namespace."""
    if kind == "subreaper":
        return starter.pid
    wait_until(lambda: children(starter.pid))
    return children(starter.pid)[0]


@pytest.mark.parametrize("kind", ADOPTING)
def test_worker_that_adopts_orphans_reaps_them_and_takes_no_exit_code(
    cli: Cli, client: SyncClient, tmp_path: Path, kind: str
) -> None:
    jobs = [f"job {number}" for number in range(30)]
    add(client, *jobs)
    shell = f"{ORPHAN} exit 3"
    arguments = (*FOREVER, "--jobs", "6", "--retry-delay", "1h", "--exec", "sh", "-c", shell)
    worker = cli.start(*arguments, command=ADOPTING[kind])
    wait_until(lambda: client.domain_stats("d").delayed == len(jobs))
    pid = adopter(worker, kind)
    wait_until(lambda: not children(pid))
    os.kill(pid, signal.SIGTERM)
    _, said = worker.communicate(timeout=TIMEOUT_S)
    assert [report["exit_code"] for report in reports(said)] == [3] * len(jobs)


@pytest.mark.parametrize("kind", ADOPTING)
def test_worker_that_adopts_orphans_ends_the_group_of_a_command_at_once(
    cli: Cli, client: SyncClient, kind: str
) -> None:
    """A zombie counts as a member of its group."""
    add(client, "one")
    shell = "sleep 600 & sleep 600"
    arguments = (*FOREVER, "--timeout", "100ms", "--kill-after", "1h", "--count", "1")
    worker = cli.start(*arguments, "--exec", "sh", "-c", shell, command=ADOPTING[kind])
    _, said = worker.communicate(timeout=TIMEOUT_S)
    assert results(said) == ["failed"], said


def test_worker_knows_exit_codes_where_its_parent_ignored_the_end_of_children(
    cli: Cli, client: SyncClient
) -> None:
    add(client, "one")
    ignoring = ["bash", "-c", 'trap "" CHLD; exec "$@"', "sh", installed("fj-cli")]
    worker = cli.start("next", "--json", "--exec", "sh", "-c", "exit 3", command=ignoring)
    _, said = worker.communicate(timeout=TIMEOUT_S)
    assert [report["exit_code"] for report in reports(said)] == [3]
    client.set("k", "v")
    lock = cli.start("lock", "k", "sh", "-c", "exit 3", command=ignoring)
    lock.communicate(timeout=TIMEOUT_S)
    assert lock.returncode == 3
