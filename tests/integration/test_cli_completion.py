"""Shell completion for fj-cli, as it is installed."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.integration.programs import installed


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
