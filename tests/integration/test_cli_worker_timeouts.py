"""fj-cli next --exec: commands that hang, are killed, cannot be run, or fail over restarts."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.worker_process import add, reports, results, wait_until

USAGE = 2
MINUTES_US = 60 * 1_000_000


def test_timeout_kills_a_command_that_ignores_sigterm_after_kill_after(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    add(client, "stubborn")
    shell = f"trap 'echo term >> {tmp_path}/heard' TERM; while :; do sleep 0.05; done"
    done = cli(
        *("next", "--timeout", "300ms", "--kill-after", "300ms", "--json"),
        *("--exec", "sh", "-c", shell),
    )
    assert results(done.stderr) == ["failed"]
    assert (tmp_path / "heard").read_text() == "term\n"
    (report,) = reports(done.stderr)
    assert report["elapsed_us"] >= 600_000


def test_lease_of_a_look_is_five_minutes(cli: Cli, client: SyncClient) -> None:
    (key,) = add(client, "one")
    (job,) = cli.json("next")
    lease_us = job["worked_on_until_us"] - job["accessed_us"]
    assert 5 * MINUTES_US <= lease_us < 5 * MINUTES_US + 2_000
    client.release(key, job["token"])
    client.limit("d", lease=3600)
    (job,) = cli.json("next", "--lease", "0")
    lease_us = job["worked_on_until_us"] - job["accessed_us"]
    assert lease_us >= 60 * MINUTES_US, "0: the default of the domain"


# --- the command line behind --exec ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("behind", "named"),
    [
        (("--jobs", "4", "sh"), b"--jobs behind --exec"),
        (("--lease=1m", "--timeout", "2s", "sh"), b"--lease=1m, --timeout behind --exec"),
        (("-x",), b"-x behind --exec"),
    ],
)
def test_command_behind_exec_that_is_an_option_is_named(
    cli: Cli, client: SyncClient, behind: tuple[str, ...], named: bytes
) -> None:
    add(client, "one")
    failed = cli("next", "--exec", *behind)
    assert failed.returncode == USAGE
    assert named in failed.stderr
    assert client.domain_stats("d").worked_on == 0


def test_program_that_is_not_found_is_told_from_one_that_is_not_executable(
    cli: Cli, tmp_path: Path
) -> None:
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\n")
    cli.environment["PATH"] = f"{tmp_path}:{cli.environment['PATH']}"
    for name, sentence in (
        ("no-such-program", b"there is no program 'no-such-program'"),
        (str(tmp_path / "none"), b"there is no program"),
        ("script.sh", b"script.sh' is not executable"),
        (str(script), b"is not executable (chmod +x "),
        (str(tmp_path), b"is a directory"),
    ):
        failed = cli("next", "--exec", name)
        assert (failed.returncode, sentence in failed.stderr) == (USAGE, True), failed.stderr
    failed = cli("next", "--exec", "no-such-program", "--jobs", "3")
    assert b"--jobs behind --exec is an argument of the program" in failed.stderr


# --- everything at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("buries", ["the daemon", "the worker"])
def test_worker_counts_attempts_backoff_and_burials_over_restarts_of_the_daemon(
    cli: Cli, client: SyncClient, daemon: DaemonProcess, tmp_path: Path, buries: str
) -> None:
    """Each kind of end, twice over: each attempt is one execution, whatever restarts between."""
    kinds = ("good", "fails", "hangs", "killed")
    names = [f"{kind}{number}" for kind in kinds for number in (1, 2)]
    keys = dict(zip(names, add(client, *names), strict=True))
    by_worker = buries == "the worker"
    if not by_worker:
        client.limit("d", attempts=3)
    script = f"""echo "$FASTJOURNAL_ID $FASTJOURNAL_ATTEMPTS" >> {tmp_path}/runs
        case $FASTJOURNAL_ID in
            fails*) exit 7;; hangs*) exec sleep 600;; killed*) kill -KILL $$;; esac"""
    options = ("--timeout", "400ms", "--retry-delay", "50ms", "--jobs", "2", "--json")
    options += ("--max-attempts", "3" if by_worker else "0")
    worker = cli.start("next", "d", "--wait", "forever", *options, "--exec", "sh", "-c", script)
    for runs in (3, 8):
        wait_until(lambda runs=runs: len(lines_of(tmp_path / "runs")) >= runs)
        # in order: at a crash a NEXT may be under way, whose leases count as attempts when they end
        daemon.stop()
        daemon.start()
    wait_until(lambda: client.domain_stats("d").buried == 6 and not client.domain_stats("d").due)
    worker.send_signal(signal.SIGTERM)
    _, stderr = worker.communicate(timeout=TIMEOUT_S)
    assert worker.returncode == 0
    executed = Counter(lines_of(tmp_path / "runs"))
    assert set(executed.values()) == {1}, "an attempt was executed twice"
    assert executed.keys() == {
        *(f"good{number} 0" for number in (1, 2)),
        *(f"{kind}{n} {tried}" for kind in kinds[1:] for n in (1, 2) for tried in range(3)),
    }
    assert client.domain_stats("d").entries == 6
    errors = {"fails": "exit 7", "hangs": "timeout after 400ms", "killed": "killed by SIGKILL"}
    for kind, error in errors.items():
        for number in (1, 2):
            known = client.entry_stats(keys[f"{kind}{number}"])
            assert (known.state, known.attempts) == ("buried", 3)
            assert known.last_error == known.buried_reason == error
    told = reports(stderr)
    assert Counter(report["result"] for report in told) == {"done": 2, "failed": 12, "buried": 6}
    for key in keys.values():
        delays = [r["delay_us"] for r in told if r["key"] == key.decode() and r["delay_us"]]
        assert delays in ([], [50_000, 100_000]), "the delay doubles with the daemon's count"


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
