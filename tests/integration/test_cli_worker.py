"""fj-cli next --exec, as it is installed: a whole worker against a real daemon."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.errors import RefusedError
from fastjournal.keys import build_journal_key
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.test_log_lines import LINE_HEAD
from tests.integration.worker_process import (
    add,
    gated,
    reports,
    results,
    wait_connected,
    wait_until,
)

NOTHING_TO_DO, CANNOT_CONNECT = 75, 69


def test_command_gets_the_entry_and_completes_it(cli: Cli, client: SyncClient) -> None:
    (key,) = add(client, "one")
    shell = 'cat; echo; env | grep ^FASTJOURNAL_ | sort; echo "$0" "$@"'
    done = cli("next", "d", "--exec", "sh", "-c", shell, "--count", "-x", "--exec")
    assert done.returncode == 0
    assert done.stdout.decode().splitlines() == [
        "value of one",
        "FASTJOURNAL_ATTEMPTS=0",
        "FASTJOURNAL_DOMAIN=d",
        "FASTJOURNAL_ID=one",
        f"FASTJOURNAL_KEY={key.decode()}",
        "FASTJOURNAL_NOT_BEFORE_US=0",
        "FASTJOURNAL_PRIORITY=128",
        f"FASTJOURNAL_SERVER={cli.environment['FASTJOURNAL_SERVER']}",
        "FASTJOURNAL_URI=uri:one",
        "FASTJOURNAL_VALUE=value of one",
        "FASTJOURNAL_VALUE_TYPE=string",
        "--count -x --exec",
    ]
    first, last = done.stderr.decode().splitlines()
    # the form of the log lines of all programs
    assert re.fullmatch(rf"{LINE_HEAD} INFO done    d:128:\S+ after \d+\.\ds", first), first
    counts = "1 done, 0 failed, 0 buried, 0 lost, 0 stopped"
    assert re.fullmatch(rf"{LINE_HEAD} INFO {counts}", last), last
    with pytest.raises(RefusedError) as caught:
        client.get(key)
    assert caught.value.code == "not-found"
    assert cli("next", "d", "--exec", "true").returncode == NOTHING_TO_DO


def test_worker_runs_several_commands_at_once_and_no_more_than_asked_for(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    add(client, *"abcdef")
    # Each counts who runs beside it, and goes on when three do: fewer at once would never end.
    shell = f"""mkdir {tmp_path}/r.$$; n=0
        while [ $n -lt 3 ] && [ ! -e {tmp_path}/three ]; do
            n=$(ls -d {tmp_path}/r.* | wc -l); sleep 0.02; done
        touch {tmp_path}/three; ls -d {tmp_path}/r.* | wc -l; sleep 0.1; rmdir {tmp_path}/r.$$"""
    done = cli("next", "--jobs", "3", "--json", "--exec", "sh", "-c", shell)
    assert results(done.stderr) == ["done"] * 6
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == 6
    assert max(counts) == 3


def test_worker_with_a_count_ends_after_so_many(cli: Cli, client: SyncClient) -> None:
    add(client, *"abcd")
    done = cli("next", "--count", "3", "--jobs", "2", "--json", "--exec", "true")
    assert results(done.stderr) == ["done"] * 3
    assert client.stats()["due"] == 1


def test_lease_is_extended_while_the_command_runs(cli: Cli, client: SyncClient) -> None:
    add(client, "long")
    done = cli("next", "--lease", "1s", "--json", "--exec", "sleep", "2.2")
    assert results(done.stderr) == ["done"]
    assert client.stats()["entries"] == 0


def test_command_whose_lease_is_lost_is_ended(cli: Cli, client: SyncClient, tmp_path: Path) -> None:
    (key,) = add(client, "one")
    worker = cli.start(
        *("next", "--lease", "2s", "--json"),
        *("--exec", "sh", "-c", f"touch {tmp_path}/began; sleep 600 & wait"),
    )
    wait_until((tmp_path / "began").exists)
    client.delete(key)
    _, stderr = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert results(stderr) == ["lost"]
    assert reports(stderr)[0]["remark"].startswith("not-found: ")


def test_sigterm_lets_running_commands_finish_and_starts_nothing(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    add(client, "first", "second")
    worker = cli.start("next", "--wait", "forever", "--json", *gated(tmp_path))
    wait_until((tmp_path / "began").exists)
    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.3)
    (tmp_path / "go").touch()
    _, stderr = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert b"stopping: 1 running" in stderr
    assert results(stderr) == ["done"]
    assert [entry.key for entry in client.next()] == [build_journal_key("d", "second")]


def test_worker_that_waits_ends_at_once_and_takes_no_lease_with_it(
    cli: Cli, daemon: DaemonProcess, client: SyncClient
) -> None:
    worker = cli.start("next", "--wait", "forever", "--exec", "true")
    wait_connected(client)
    worker.send_signal(signal.SIGINT)
    _, stderr = worker.communicate(timeout=60)
    assert worker.returncode == 0, stderr
    add(client, "one")
    assert len(client.next()) == 1


def test_worker_takes_later_work_while_a_long_command_runs(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    add(client, "long")
    shell = f"""touch {tmp_path}/$FASTJOURNAL_ID
        [ $FASTJOURNAL_ID = short ] || while [ ! -e {tmp_path}/short ]; do sleep 0.02; done"""
    worker = cli.start(
        *("next", "--jobs", "2", "--wait", "10ms", "--json", "--exec", "sh", "-c", shell)
    )
    wait_until((tmp_path / "long").exists)
    add(client, "short")
    _, stderr = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert sorted(results(stderr)) == ["done", "done"]


def test_command_that_ends_while_the_daemon_is_away_is_completed_when_it_is_back(
    cli: Cli, daemon: DaemonProcess, tmp_path: Path
) -> None:
    with SyncClient(daemon.address) as client:
        add(client, "one")
    worker = cli.start("next", "--json", *gated(tmp_path))
    wait_until((tmp_path / "began").exists)
    daemon.kill()
    (tmp_path / "socket").unlink(missing_ok=True)
    (tmp_path / "go").touch()
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.3)
    daemon.start()
    _, stderr = worker.communicate(timeout=60)
    assert results(stderr) == ["done"], stderr
    assert worker.returncode == 0
    with SyncClient(daemon.address) as client:
        assert client.stats()["entries"] == 0


def test_daemon_that_is_away_for_longer_than_a_lease_is_waited_for_all_the_same(
    cli: Cli, daemon: DaemonProcess, tmp_path: Path
) -> None:
    with SyncClient(daemon.address) as client:
        add(client, "one", "two")
    began = tmp_path / "began"
    worker = cli.start(
        *("next", "--lease", "2s", "--json"),
        *("--exec", "sh", "-c", f"test -e {began} || {{ touch {began}; sleep 600 & wait; }}"),
    )
    wait_until(began.exists)
    daemon.kill()
    # no lease is given or extended from here on
    leased_until = time.monotonic() + 2
    assert worker.stderr is not None
    lost = worker.stderr.readline()
    assert results(lost) == ["lost"], lost
    # the worker ends its tries a little before the lease ends: until then nobody else gets the job
    time.sleep(max(0.0, leased_until - time.monotonic()))
    (tmp_path / "socket").unlink(missing_ok=True)
    daemon.start()
    _, stderr = worker.communicate(timeout=60)
    assert results(stderr) == ["done", "done"], stderr
    assert worker.returncode == 0
    with SyncClient(daemon.address) as client:
        assert client.stats()["entries"] == 0


def test_worker_whose_last_job_was_lost_ends_well_once_the_daemon_is_back_without_work(
    cli: Cli, daemon: DaemonProcess, tmp_path: Path
) -> None:
    with SyncClient(daemon.address) as client:
        add(client, "one")
    began = tmp_path / "began"
    worker = cli.start(
        *("next", "--lease", "2s", "--max-attempts", "1", "--json"),
        *("--exec", "sh", "-c", f"touch {began}; sleep 600 & wait"),
    )
    wait_until(began.exists)
    daemon.kill()
    leased_until = time.monotonic() + 2
    assert worker.stderr is not None
    assert results(worker.stderr.readline()) == ["lost"]
    # the end of the lease was that of the last attempt: the entry is buried, and nothing to do
    time.sleep(max(0.0, leased_until - time.monotonic()))
    (tmp_path / "socket").unlink(missing_ok=True)
    daemon.start()
    _, stderr = worker.communicate(timeout=60)
    assert (worker.returncode, results(stderr)) == (0, [])


def test_daemon_that_stays_away_is_exit_69_once_the_last_lease_is_over(
    cli: Cli, daemon: DaemonProcess, tmp_path: Path
) -> None:
    with SyncClient(daemon.address) as client:
        add(client, "one")
    worker = cli.start(
        *("next", "--lease", "2s", "--count", "1", "--json"),
        *("--exec", "sh", "-c", f"touch {tmp_path}/began; sleep 600 & wait"),
    )
    wait_until((tmp_path / "began").exists)
    daemon.kill()
    _, stderr = worker.communicate(timeout=60)
    assert worker.returncode == CANNOT_CONNECT
    assert results(stderr) == ["lost"]
    assert b"Traceback" not in stderr


def test_worker_that_waits_goes_on_after_a_restart_of_the_daemon(
    cli: Cli, daemon: DaemonProcess
) -> None:
    worker = cli.start("next", "--wait", "forever", "--count", "1", "--json", "--exec", "true")
    with SyncClient(daemon.address) as client:
        wait_connected(client)
    assert daemon.stop() == 0
    daemon.start()
    with SyncClient(daemon.address) as client:
        add(client, "one")
    _, stderr = worker.communicate(timeout=60)
    assert worker.returncode == 0, stderr
    assert results(stderr) == ["done"]


def test_job_that_kills_its_worker_is_buried_after_enough_attempts(
    cli: Cli, client: SyncClient, daemon: DaemonProcess
) -> None:
    key = build_journal_key("po", "1")
    client.set(key, "v")
    worker = ("next", "po", "--lease", "1s", "--max-attempts", "2", "--wait", "60s", "--exec")
    for attempts in range(2):
        assert client.entry_stats(key).attempts == attempts
        assert cli(*worker, "sh", "-c", "kill -9 $PPID").returncode == -signal.SIGKILL
        # the bound is that of the lease, for a daemon that was killed too
        daemon.kill()
        daemon.start()
        wait_until(lambda wanted=attempts + 1: client.entry_stats(key).attempts == wanted)
    stats = client.entry_stats(key)
    assert (stats.state, stats.buried_reason) == ("buried", "attempts reached max-attempts")
    assert cli("next", "po").returncode == NOTHING_TO_DO


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
