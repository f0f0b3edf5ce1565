"""Promises of docs/security.md that code shows: defaults, comparison of tokens, arguments."""

from __future__ import annotations

import ast
import inspect
import textwrap
from hashlib import sha256

import click
import pytest

from fastjournal.sockets import parse_place
from fastjournal.spark.nightly import command as nightly
from fastjournald.config.options import Config
from fastjournald.engine.authorization import Grant, Grants
from fastjournald.main import new_command
from fj_cli.cli import cli
from fj_forwarder.main import command as forwarder


def test_listen_by_default_is_loopback_only() -> None:
    config = Config(cmdlog_path="/log")
    assert config.listen
    assert all(parse_place(address).is_loopback for address in config.listen)
    assert (config.http, config.insecure) == ("", False)


def test_token_is_compared_in_constant_time_with_each_grant() -> None:
    tokens = [bytes([n]) * 32 for n in range(3)]
    grants = [Grant(f"name-{t[0]}", sha256(t).digest(), 1, (b"",)) for t in tokens]
    for token, grant in zip(tokens, grants, strict=True):
        assert Grants(grants).find(token) is grant
    assert Grants(grants).find(b"\xff" * 32) is None

    # its time shows nothing: one loop over all grants without an early end, which compares by hmac
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(Grants.find))).body
    kinds = [type(node) for node in ast.walk(function)]
    assert kinds.count(ast.For) == 1
    assert not {ast.Break, ast.Continue, ast.Compare, ast.Subscript} & set(kinds)
    (loop,) = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    assert not [node for node in ast.walk(loop) if isinstance(node, ast.Return)]
    calls = [ast.unparse(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call)]
    assert calls == ["compare_digest"]
    module = inspect.getmodule(Grants)
    assert module is not None
    assert "from hmac import compare_digest" in inspect.getsource(module)


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options of a command and of all its subcommands."""
    found = [each for each in command.params if isinstance(each, click.Option)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += options_of(inner)
    return found


@pytest.mark.parametrize("command", [new_command(), cli, nightly, forwarder], ids=str)
def test_token_is_no_argument_of_a_program(command: click.Command) -> None:
    options = options_of(command)
    assert len(options) > 5
    for option in options:
        secret = {"token", "auth", "password", "secret"} & set(str(option.name).split("_"))
        # a lease token is of one lease, and of no use without its key
        if secret and "lease" not in str(option.help).lower():
            assert option.metavar == "FILE" or option.name == "auth_timeout", option.opts
