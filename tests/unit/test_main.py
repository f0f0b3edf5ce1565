"""Messages of ``fastjournald`` while it starts."""

from __future__ import annotations

import ast
import inspect
import logging
import os
import socket
import textwrap
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import click
import pytest
import trio

from fastjournal.cmdlog.recovery.inspect_log import Progress
from fastjournal.program import notify, watchdog_seconds
from fastjournal.sockets import parse_place
from fastjournal.spark.nightly import command as nightly
from fastjournald.config.options import Config
from fastjournald.engine.authorization import Grant, Grants
from fastjournald.main import _progress, new_command
from fastjournald.process import ping_watchdog
from fj_cli.cli import cli
from fj_forwarder.main import command as forwarder


def test_progress_of_a_recovery_is_one_line_of_names_and_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "fastjournald"):
        _progress(Progress(segment="000000007.log", bytes_done=50, bytes=200, records=1234))
    assert caplog.messages == [
        "event=recovering segment=000000007.log bytes=50 of=200 records=1234"
    ]


# --- service notification -------------------------------------------------------------------------
# Service notification: states, and pings of the watchdog.


@pytest.mark.parametrize("abstract", [False, True])
def test_state_arrives_at_the_named_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"@fastjournal-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify("READY=1\nSTATUS=ready")
        assert manager.recv(100) == b"READY=1\nSTATUS=ready"


@pytest.mark.parametrize("address", [None, "", "relative", "/no/such/socket"])
def test_sdnotify_does_nothing_without_a_manager(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


def test_watchdog_of_a_stalled_event_loop_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pings(manager: socket.socket) -> int:
        count = 0
        with suppress(BlockingIOError):
            while manager.recv(100) == b"WATCHDOG=1":
                count += 1
        return count

    def stall(manager: socket.socket) -> int:
        # ten intervals, in which the event loop stays in this turn
        time.sleep(0.2)
        return pings(manager)

    async def next_pings(manager: socket.socket) -> int:
        while not (count := pings(manager)):  # noqa: ASYNC110 - the pings are in a socket that nobody watches
            await trio.sleep(0.01)
        return count

    async def ping_around_a_stall(manager: socket.socket) -> list[int]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping_watchdog, 0.02)
            counts = [await next_pings(manager), stall(manager), await next_pings(manager)]
            nursery.cancel_scope.cancel()
        return counts

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        before, during, after = trio.run(ping_around_a_stall, manager)
    assert before > 0
    assert during == 0
    assert after > 0


@pytest.mark.parametrize(
    ("microseconds", "process", "seconds"),
    [(None, None, None), ("30000000", None, 30.0), ("500000", 0, 0.5), ("30000000", 1, None)],
)
def test_watchdog_interval_is_that_of_the_service_manager(
    monkeypatch: pytest.MonkeyPatch,
    microseconds: str | None,
    process: int | None,
    seconds: float | None,
) -> None:
    pid = None if process is None else str(os.getpid() + process)
    for name, value in (("WATCHDOG_USEC", microseconds), ("WATCHDOG_PID", pid)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert watchdog_seconds() == seconds


# --- security promises ----------------------------------------------------------------------------
# Promises of docs/security.md that code shows: defaults, comparison of tokens, arguments.


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
        context = click.Context(command, **command.context_settings)
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
