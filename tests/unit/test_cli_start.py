"""How fj-cli starts: what it loads, what it lists, what it says of itself."""

from __future__ import annotations

import marshal
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from fastjournal.client import calls
from fastjournal.client.core.failures import CERTIFICATE_HINT
from fastjournal.errors import BadRequestError, CannotConnectError, RefusedError
from fastjournal.protocol import ErrorCode
from fj_cli.advice import advise
from fj_cli.cli import _OF_OTHERS, COMMANDS, LazyGroup, cli
from fj_cli.commands.dead import SUBCOMMANDS
from fj_cli.main import run
from fj_cli.shared_options import IO_FAILED


def lazy_groups(group: click.Command, words: str = "") -> Iterator[tuple[str, LazyGroup]]:
    if isinstance(group, LazyGroup):
        yield words, group
        context = click.Context(group, **group.context_settings)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from lazy_groups(command, f"{words} {name}".strip())


GROUPS = dict(lazy_groups(cli))


def modules_after(*arguments: str) -> set[str]:
    code = f"""
import sys
from fj_cli.main import run
code = run({list(arguments)!r})
sys.stderr.write(" ".join(sys.modules))
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["next"], ["log"], ["log", "dump"], ["set"], ["import"], ["spool"], ["top"]),
        *(["spool", "dead"], ["stats"], ["domains"], ["delete"], ["bench"], ["watch"]),
        *(["spool", "put"], ["demo"], ["export"], ["get"], ["lock"]),
    ],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    heavy = {"trio", "pyarrow", "pyspark", "rich", "google_crc32c", "sortedcontainers"}
    assert not modules_after(*arguments, "--help") & heavy


def test_groups_are_found_by_their_words() -> None:
    assert list(GROUPS) == ["", "dead", "import", "spool", "spool dead", "log", "remote"]


def test_list_stands_in_the_help_in_the_order_of_declaration() -> None:
    context = click.Context(cli, **cli.context_settings)
    text = cli.get_help(context)
    places = [text.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert "Exit codes: 0 done" in text
    assert "_FJ_CLI_COMPLETE" in text


def test_command_that_is_not_listed_is_not_there() -> None:
    assert isinstance(cli, LazyGroup)
    assert cli.get_command(click.Context(cli, **cli.context_settings), "no-such-command") is None


def test_shell_can_complete_commands_and_options() -> None:
    script = "import os; from fj_cli.main import main; main()"
    for words, completed in (("fj-cli sn", "snapshot"), ("fj-cli next --le", "--lease")):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={
                "_FJ_CLI_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"plain,{completed}" in done.stdout.splitlines()


def test_file_that_ends_too_early_is_an_error_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # as the import of a module does whose compiled file was cut on a full disk
    def load(_group: LazyGroup, _context: click.Context, _name: str) -> click.Command:
        marshal.loads(b"")
        raise AssertionError

    monkeypatch.setattr(LazyGroup, "get_command", load)
    assert run(["ping"]) == IO_FAILED
    assert "a file that was read ended too early: EOF read" in capsys.readouterr().err


# --- advice in errors -----------------------------------------------------------------------------
# Advice of fj-cli: errors say what to write on the command line.


SENTENCE_SUFFICES = [
    "stale", "lease-lost", "not-owner", "overflow", "too-large", "unknown-function", "clock-skew",
    "read-only", "busy", "shutting-down", "bad-request", "bad-key", "bad-value", "bad-cursor",
    "unsupported-version", "not-persisted", "not-readable",
]  # fmt: skip
"""Codes whose sentence says what to do, or that no command of fj-cli gets by what is typed."""


@pytest.mark.parametrize("code", ErrorCode)
def test_advice_is_there_for_each_refusal_that_has_none(code: str) -> None:
    error = RefusedError("a sentence", code=code)
    advise(error)
    assert (error.hint is None) is (code in SENTENCE_SUFFICES)


def test_advice_speaks_of_options_and_not_of_arguments_of_python() -> None:
    with pytest.raises(BadRequestError) as refused:
        calls.set_("pages:300:0:x")
    untrusted = CannotConnectError("refused", hint=CERTIFICATE_HINT)
    for error, word in ((refused.value, "--plain"), (untrusted, "--tls-ca")):
        assert word not in str(error)
        advise(error)
        assert word in str(error)
    other = BadRequestError("wrong", hint="as it is")
    advise(other)
    assert other.hint == "as it is"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["gett", "k"], "No such command 'gett': did you mean get?"),
        (["log", "verfy"], "No such command 'verfy': did you mean verify?"),
        (["queues"], "No such command 'queues': did you mean domains?"),
        (["list_queues"], "No such command 'list_queues': did you mean domains?"),
        (["enqueue", "x"], "No such command 'enqueue': did you mean set?"),
        (["retry"], "No such command 'retry': did you mean dead retry?"),
        (["spool", "queues"], "No such command 'queues': see --help"),
        (["zzzz"], "No such command 'zzzz': see --help"),
    ],
)
def test_advice_names_the_subcommand_that_was_meant(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == 2
    assert said in capsys.readouterr().err


def test_words_of_other_queues_name_subcommands_that_there_are() -> None:
    for other, name in _OF_OTHERS.items():
        assert other not in COMMANDS
        group, _, rest = name.partition(" ")
        assert group in COMMANDS
        assert not rest or rest in SUBCOMMANDS
