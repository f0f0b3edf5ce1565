"""Shell completion for fj-cli, as it is installed."""

from __future__ import annotations

import os
import subprocess

import pytest

from fastjournal.client import SyncClient
from fj_cli.cli import COMMANDS
from fj_cli.examples import EXAMPLES
from tests.integration.cli_process import Cli
from tests.integration.programs import installed, run_program


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fj-cli pe", ["peek"]),
        ("fj-cli log ver", ["verify"]),
        ("fj-cli set --over", ["--overwrite"]),
        ("fj-cli set --type bu", ["buffer"]),
    ],
)
def test_subcommands_options_and_choices_are_completed(words: str, offered: list[str]) -> None:
    environment = {
        **os.environ,
        "_FJ_CLI_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    answer = subprocess.run(
        [installed("fj-cli")], env=environment, capture_output=True, text=True, check=False
    )
    assert [line.partition(",")[2] for line in answer.stdout.splitlines()] == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_line_of_the_help_gives_a_script_for_each_shell(shell: str) -> None:
    environment = {**os.environ, "_FJ_CLI_COMPLETE": f"{shell}_source"}
    script = subprocess.run(
        [installed("fj-cli")], env=environment, capture_output=True, text=True, check=False
    )
    assert f"_FJ_CLI_COMPLETE={shell}_complete" in script.stdout
    assert script.stderr == ""


def completed(environment: dict[str, str], words: str) -> list[str]:
    """Return what a shell would offer behind these words; ``_`` stands for nothing yet."""
    environment = {
        **environment,
        "_FJ_CLI_COMPLETE": "bash_complete",
        "COMP_WORDS": words.replace("_", ""),
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    answer = subprocess.run(
        [installed("fj-cli")], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.stderr == ""
    return [line.partition(",")[2] for line in answer.stdout.splitlines() if line]


def test_completion_offers_the_domains_of_the_daemon(cli: Cli, client: SyncClient) -> None:
    strange = ("pa;reboot", "pa`id`", "pa$(id)", "pa>x", "pa*", "pa'", "--yes")
    for domain in ("pages", "parts", "mails", "with space", *strange):
        client.set(f"{domain}:1:0:x", "v")
    assert completed(cli.environment, "fj-cli next pa") == ["pages", "parts"]
    assert completed(cli.environment, "fj-cli purge _") == ["mails", "pages", "parts"]
    assert completed(cli.environment, "fj-cli set --domain ma") == ["mails"]


def test_completion_without_a_daemon_offers_nothing_and_says_nothing(cli: Cli) -> None:
    environment = cli.environment | {"FASTJOURNAL_SERVER": "unix:/no/such/socket"}
    assert completed(environment, "fj-cli next pa") == []


def words_of_shell(line: str) -> list[str]:
    """Return the words that a shell makes of a line of one command."""
    printed = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {line}"], stdout=subprocess.PIPE, text=True, check=True
    )
    return printed.stdout.split("\0")[:-1]


def test_command_examples_of_the_help_run_in_their_order(cli: Cli) -> None:
    programs = os.path.dirname(installed("fj-cli"))
    environment = cli.environment | {"PATH": f"{programs}:/usr/bin:/bin"}
    for name, lines in EXAMPLES.items():
        assert name in COMMANDS
        shown = cli(name, "--help").stdout.decode()
        assert f"Examples:\n    {lines[0]}" in shown
        for line in lines:
            program, *words = words_of_shell(line)
            assert program == "fj-cli"
            ran = run_program(
                [installed(program), *words], env=environment, capture_output=True, text=True
            )
            assert ran.returncode in (0, 75), (line, ran.stderr)
    without = {"release", "watch", "export", "import", "spool", "log", "token", "demo", "top"}
    assert COMMANDS.keys() - EXAMPLES.keys() <= without
