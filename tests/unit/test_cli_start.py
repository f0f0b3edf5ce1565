"""How fj-cli starts: what it loads, what it lists, what it says of itself."""

from __future__ import annotations

import marshal
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from fastjournal.protocol import Function, Meta, Pair, Reply, Request, ValueType
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from fj_cli.cli import COMMANDS, LazyGroup, cli
from fj_cli.main import run
from fj_cli.shared_options import IO_FAILED


def lazy_groups(group: click.Command, words: str = "") -> Iterator[tuple[str, LazyGroup]]:
    if isinstance(group, LazyGroup):
        yield words, group
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from lazy_groups(command, f"{words} {name}".strip())


GROUPS = dict(lazy_groups(cli))
LISTED = [(words, name) for words, group in GROUPS.items() for name in group.lazy]


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
        *(["spool", "dead"], ["stats"], ["domains"], ["delete"]),
    ],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    heavy = {"trio", "pyarrow", "pyspark", "rich", "google_crc32c", "sortedcontainers"}
    assert not modules_after(*arguments, "--help") & heavy


@pytest.mark.parametrize("arguments", [["get", "k"], ["next", "d"], ["set", "k", "v"]])
def test_plain_request_loads_nothing_that_it_does_not_need(arguments: list[str]) -> None:
    def answer(request: Request) -> list[Reply]:
        if request.function == Function.SET:
            return [Reply(request.identifier)]
        pairs = [Pair(b"d:1:0:k", ValueType.STRING, b"v", meta=Meta())]
        return [Reply(request.identifier, timeout=7, pairs=pairs)]

    needless = {
        *("anyio", "asyncio", "concurrent.futures", "trio", "rich", "ssl", "subprocess"),
        *("dataclasses", "difflib", "hashlib", "_hashlib", "ipaddress", "logging", "pathlib"),
        *("queue", "random", "stringprep", "tomllib", "traceback", "urllib.parse"),
        "fastjournal.client.sync.job_loop",
    }
    with ScriptedDaemon(answer) as daemon:
        loaded = modules_after(*arguments, "--server", daemon.address)
    assert len(daemon.requests) == 1
    assert "fastjournal.client.sync.client" in loaded
    assert loaded & needless == set()


@pytest.mark.parametrize(("group", "name"), LISTED)
def test_commands_that_are_listed_are_there_with_their_help(group: str, name: str) -> None:
    summary = GROUPS[group].lazy[name][1]
    command = GROUPS[group].get_command(click.Context(GROUPS[group]), name)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help
    assert summary.endswith(".")
    assert len(summary) < 70


def test_groups_are_found_by_their_words() -> None:
    assert list(GROUPS) == ["", "import", "spool", "spool dead", "log"]


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


def test_examples_of_a_subcommand_do_not_depend_on_the_context_that_asks_first() -> None:
    group = cli.get_command(click.Context(cli, info_name="fj-cli"), "spool")
    assert isinstance(group, click.Group)
    dead = group.get_command(click.Context(group, info_name="spool"), "dead")
    assert isinstance(dead, click.Group)
    for name in ("list", "show"):
        command = dead.get_command(click.Context(dead, info_name="dead"), name)
        assert command is not None
        assert f"fj-cli spool dead {name} " in (command.epilog or "")
