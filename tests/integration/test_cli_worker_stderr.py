"""Standard error of the commands of fj-cli next --exec: passed on, and the reason of a failure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.client import SyncClient
from fj_cli.command_stderr import LINE_BYTES_MAX, LastLine, plain_line
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.worker_process import add, line_of, reports, results, wait_until

SUMMARY = b"1 done, 0 failed, 0 buried, 0 lost, 0 stopped\n"


def run_failing(cli: Cli, script: str, *options: str) -> bytes:
    """Run a shell script for each job of the domain, once; return standard error."""
    done = cli("next", "d", "--retry-delay", "1h", *options, "--exec", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo connecting >&2; echo 'SMTP 550 no such user' >&2; exit 3", "SMTP 550 no such user"),
        (r"printf '\033[1;31mSMTP\t550\033[0m\007\n\n \033[0m\n' >&2; exit 3", "SMTP 550"),
        (r"printf ' 10 %%\r 20 %%\rno route' >&2; exit 3", "no route"),
        (r"printf 'first\nb\303\266se \377\n' >&2; exit 3", "böse \\xff"),
        (r"printf '\033]0;a title\007\302\233Am\342\200\256ail\n' >&2; exit 3", "Amail"),
        ("echo out; exit 3", ""),
    ],
    ids=["last line", "colours", "progress", "not UTF-8", "title", "nothing said"],
)
def test_last_line_of_standard_error_is_the_reason(
    cli: Cli, client: SyncClient, script: str, reason: str
) -> None:
    (key,) = add(client, "one")
    run_failing(cli, script)
    said = f"exit 3: {reason}" if reason else "exit 3"
    assert client.entry_stats(key).last_error == said
    assert json.loads(cli("explain", key).stdout)["last_error"] == said


def test_last_line_is_told_of_a_command_that_is_killed_and_in_the_reason_of_a_burial(
    cli: Cli, client: SyncClient
) -> None:
    slow, dead = add(client, "slow", "zdead")
    run_failing(
        cli,
        'case $FASTJOURNAL_ID in slow) echo "waiting for mx1" >&2; sleep 600;; *) kill -9 $$; esac',
        *("--timeout", "1s", "--count", "2"),
    )
    assert client.entry_stats(slow).last_error == "timeout after 1s: waiting for mx1"
    assert client.entry_stats(dead).last_error == "killed by SIGKILL"
    (buried,) = add(client, "buried")
    run_failing(cli, "echo SMTP 550 >&2; exit 1", "--max-attempts", "1")
    assert client.entry_stats(buried).buried_reason == "exit 1: SMTP 550"


def test_very_long_line_is_cut(cli: Cli, client: SyncClient) -> None:
    (key,) = add(client, "one")
    run_failing(cli, "printf begin >&2; head -c 300000 /dev/zero | tr '\\0' x >&2; exit 3")
    assert client.entry_stats(key).last_error == "exit 3: begin" + "x" * (LINE_BYTES_MAX - 5)


def test_standard_error_is_passed_on_as_it_is_and_in_the_order_of_reports(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 8000
    (tmp_path / "data").write_bytes(data)
    add(client, "one", "two")
    shell = f"echo $FASTJOURNAL_ID begins >&2; cat {tmp_path}/data >&2; echo >&2; echo out"
    done = cli("next", "d", "--exec", "sh", "-c", shell)
    assert done.stdout == b"out\nout\n"
    first, second, end = done.stderr.split(data)
    assert first == b"one begins\n"
    report = rb"\n[-\d]+ [:,\d]+ INFO done    d:128:"
    assert re.match(report, second)
    assert second.endswith(b"s\ntwo begins\n")
    assert re.match(report, end)
    assert end.endswith(SUMMARY.replace(b"1", b"2", 1))


def test_standard_error_is_passed_on_while_the_command_runs(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    add(client, "one")
    shell = f"echo half way >&2; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    worker = cli.start("next", "d", "--exec", "sh", "-c", shell)
    assert line_of(worker, b"half way")
    (tmp_path / "go").touch()
    _, rest = worker.communicate(timeout=TIMEOUT_S)
    assert rest.endswith(SUMMARY)


def test_command_whose_standard_error_nobody_reads_waits_and_keeps_its_lease(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    number = 3_000_000
    (key,) = add(client, "one")
    shell = f"touch {tmp_path}/began; head -c {number} /dev/zero >&2"
    worker = cli.start("next", "d", "--lease", "1s", "--exec", "sh", "-c", shell)
    wait_until((tmp_path / "began").exists)
    first = client.entry_stats(key).worked_on_until_us
    # renewed again and again: the worker does not wait for the reader
    wait_until(lambda: client.entry_stats(key).worked_on_until_us > first + 2_000_000)
    _, said = worker.communicate(timeout=TIMEOUT_S)
    assert said.count(b"\0") == number
    assert said.endswith(SUMMARY)


def test_process_that_a_command_leaves_behind_may_write_after_the_worker(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    add(client, "one")
    late = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo late >&2; echo later >&2"
    shell = f"({late}; touch {tmp_path}/end) >/dev/null & echo now >&2"
    worker = cli.start("next", "d", "--json", "--exec", "sh", "-c", shell)
    assert worker.wait(TIMEOUT_S) == 0
    (tmp_path / "go").touch()
    _, said = worker.communicate(timeout=TIMEOUT_S)
    assert said.startswith(b"now\n")
    assert said.endswith(b"late\nlater\n")
    assert results(said) == ["done"]
    assert reports(said)[0]["exit_code"] == 0
    assert (tmp_path / "end").exists(), "it was not ended by a pipe that nobody reads"


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_last_line_does_not_depend_on_how_it_is_cut(parts: list[bytes]) -> None:
    whole, cut = LastLine(), LastLine()
    whole.add(b"".join(parts))
    for part in parts:
        cut.add(part)
    assert cut.text == whole.text
    assert cut.text.isprintable()


@given(st.binary())
def test_plain_line_has_no_character_that_controls_a_terminal(line: bytes) -> None:
    assert plain_line(line).isprintable()
