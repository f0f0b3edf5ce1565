"""fj-cli where nobody gets its output, or its input: what was leased is released at once.

The commands run in a shell, as a user types them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.keys import build_journal_key
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.programs import installed
from tests.integration.shell_commands import forked_commands

DONE, USAGE, IO_FAILED, NOTHING_TO_DO = 0, 2, 74, 75


@pytest.fixture
def bash(cli: Cli) -> Iterator[Bash]:
    with forked_commands(["fj-cli"]) as places:
        yield Bash(cli, places)


class Bash:
    """A shell that finds ``fj-cli``, on the daemon of the test."""

    def __init__(self, cli: Cli, places: list[str]) -> None:
        self._environment = cli.environment
        self._places = places

    def __call__(self, commands: str) -> subprocess.CompletedProcess[str]:
        # a program with a closed stream is not forked
        places = [str(Path(installed("fj-cli")).parent)] if "&-" in commands else self._places
        path = ":".join([*places, self._environment["PATH"]])
        return subprocess.run(
            ["bash", "-c", commands],
            env=self._environment | {"PATH": path},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            text=True,
            timeout=TIMEOUT_S,
        )


def add(client: SyncClient, count: int = 3) -> None:
    for number in range(count):
        client.set(build_journal_key("q", str(number)), f"value {number}" * 100)


@pytest.mark.parametrize(
    ("output", "form", "delete"),
    [
        ("| true", "--json", ""),
        ("| sleep 0.2", "--table", "--delete"),
        (">/dev/full", "--table", ""),
        (">&-", "--json", "--delete"),
    ],
)
def test_lease_is_released_without_an_attempt_where_the_entries_are_not_written(
    bash: Bash, client: SyncClient, output: str, form: str, delete: str
) -> None:
    add(client)
    done = bash(f"fj-cli next q --count 3 {delete} {form} {output}; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == f"{IO_FAILED}\n", done.stderr
    assert "so the leases were released" in done.stderr
    assert (client.domain_stats("q").due, client.domain_stats("q").entries) == (3, 3)
    assert [job.meta.attempts for job in client.peek("q", count=3, meta=True) if job.meta] == [
        0
    ] * 3


@pytest.mark.parametrize("output", ["| true", ">&-"])
def test_lease_of_get_and_touch_is_released_where_its_token_is_not_written(
    bash: Bash, client: SyncClient, output: str
) -> None:
    add(client, 1)
    key = build_journal_key("q", "0").decode()
    done = bash(f"fj-cli get {key} --lease 1h {output}; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == f"{IO_FAILED}\n", done.stderr
    assert client.domain_stats("q").due == 1
    token = client.next("q")[0].token
    done = bash(f"fj-cli touch {key} 1h --token {token} {output}; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == f"{IO_FAILED}\n", done.stderr
    assert client.domain_stats("q").due == 1


def test_next_with_delete_completes_what_its_reader_has_read(
    bash: Bash, client: SyncClient
) -> None:
    add(client)
    done = bash("fj-cli next q --count 2 --delete | cat; echo ${PIPESTATUS[0]}")
    *lines, code = done.stdout.splitlines()
    assert code == str(DONE)
    assert [json.loads(line)["id"] for line in lines] == ["0", "1"]
    assert client.domain_stats("q").entries == 1


def test_next_with_nothing_due_has_nothing_to_release(bash: Bash) -> None:
    assert bash("fj-cli next q | true; echo ${PIPESTATUS[0]}").stdout == f"{NOTHING_TO_DO}\n"
    assert bash("fj-cli next q >&-").returncode == NOTHING_TO_DO


@pytest.mark.parametrize(
    "command",
    ["set --domain q -", "set --uri http://q/ -", "set key -", "set key - --type integer"],
)
def test_set_refuses_a_closed_input(bash: Bash, client: SyncClient, command: str) -> None:
    done = bash(f"fj-cli {command} <&-")
    assert (done.returncode, done.stdout) == (IO_FAILED, "")
    assert "standard input is closed" in done.stderr
    assert client.stats()["entries"] == 0


def test_spool_put_refuses_a_closed_input(bash: Bash, cli: Cli) -> None:
    spool = f"{cli.environment['HOME']}/spool"
    done = bash(f"fj-cli spool put {spool} <&-")
    assert (done.returncode, "standard input is closed" in done.stderr) == (IO_FAILED, True)


@pytest.mark.parametrize("command", ["set --domain q", "set --uri http://q/", "set key"])
def test_set_without_a_value_is_refused_unless_it_is_meant(
    bash: Bash, client: SyncClient, command: str
) -> None:
    done = bash(f"fj-cli {command}")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "--empty" in done.stderr
    assert client.stats()["entries"] == 0
    assert bash(f"fj-cli {command} --empty").returncode == DONE
    assert client.stats()["entries"] == 1
    both = bash(f"fj-cli {command} value --empty")
    assert (both.returncode, "--empty" in both.stderr) == (USAGE, True)


def test_spool_put_without_a_value_is_refused_unless_it_is_meant(bash: Bash, cli: Cli) -> None:
    spool = f"{cli.environment['HOME']}/spool"
    done = bash(f"fj-cli spool put {spool} --uri http://q/")
    assert (done.returncode, "--empty" in done.stderr) == (USAGE, True)
    assert bash(f"fj-cli spool put {spool} --uri http://q/ --empty").returncode == DONE
