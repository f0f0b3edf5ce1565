"""Child process of a worker: the environment and the input of its command."""

from __future__ import annotations

import errno
import json
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

from fastjournal.client import Client
from fastjournal.client.core.results import Entry
from fastjournal.errors import RefusedError
from fastjournal.protocol import ValueType
from fj_cli.benching import Bench, Load
from fj_cli.child import Children, environment_of, input_of, is_transient
from fj_cli.cli import cli
from fj_cli.commands import bench


def environment(entry: Entry, base: dict[str, str] | None = None) -> dict[str, str]:
    return environment_of(
        entry, attempts=2, daemon={"FASTJOURNAL_SERVER": "here:1"}, base=base or {}
    )


def test_child_environment_is_that_of_the_worker_but_for_its_own_names() -> None:
    base = {"PATH": "/bin", "FASTJOURNAL_URI": "of a worker in a worker"}
    base["FASTJOURNAL_TLS_CA"] = "of another daemon"
    assert environment(Entry(b"plain", value=b"v", value_type=ValueType.BUFFER), base) == {
        "PATH": "/bin",
        "FASTJOURNAL_SERVER": "here:1",
        "FASTJOURNAL_KEY": "plain",
        "FASTJOURNAL_ATTEMPTS": "2",
        "FASTJOURNAL_VALUE_TYPE": "buffer",
        "FASTJOURNAL_VALUE": "v",
    }


def test_value_that_is_too_long_for_the_environment_is_not_there() -> None:
    short = Entry(b"k", value_type=ValueType.BUFFER, value=bytes([65]) * 32 * 1024)
    assert environment(short)["FASTJOURNAL_VALUE"] == "A" * 32 * 1024
    long = Entry(b"k", value_type=ValueType.BUFFER, value=bytes([65]) * (32 * 1024 + 1))
    assert "FASTJOURNAL_VALUE" not in environment(long)


def test_bytes_that_are_not_utf_8_get_there_as_they_are(tmp_path: Path) -> None:
    entry = Entry(b"d:1:2:\xff", b"uri\xfe", ValueType.BUFFER, b"")
    script = (
        "import os,sys; e=os.environb;"
        "ok = e[b'FASTJOURNAL_ID'] == b'\\xff' and e[b'FASTJOURNAL_URI'] == b'uri\\xfe';"
        "sys.exit(0 if ok else 5)"
    )
    assert trio.run(run, [sys.executable, "-c", script], b"", environment(entry)) == 0


@pytest.mark.parametrize(
    ("value_type", "data", "given"),
    [
        (ValueType.BUFFER, b"\0\xff", b"\0\xff"),
        (ValueType.STRING, b"text", b"text"),
        (ValueType.INTEGER, b"\xff\xfe", b"-2"),
        (ValueType.FLOAT, b"\x3f\xc0\0\0", b"1.5"),
        (ValueType.BOOLEAN, b"\1", b"true"),
        (ValueType.VOID, b"", b""),
        (ValueType.INTEGER, b"not of this form", b"not of this form"),
        (77, b"of the future", b"of the future"),
    ],
)
def test_input_is_the_value_as_it_is_read(value_type: int, data: bytes, given: bytes) -> None:
    entry = Entry(b"k", value_type=value_type, value=data)
    assert input_of(entry) == given
    assert environment(entry)["FASTJOURNAL_VALUE_TYPE"]


async def run(argv: list[str], data: bytes, environment: dict[str, str]) -> int:
    async with trio.open_nursery() as nursery:
        child = await Children(nursery).start(argv, environment)
        return await child.run(data, kill_after_s=10)


def test_exit_code_is_that_of_the_command_or_its_signal() -> None:
    def code_of(shell: str) -> int:
        return trio.run(run, ["/bin/sh", "-c", shell], b"x" * 1_000_000, {})

    assert code_of("exit 7") == 7
    assert code_of("kill -TERM $$") == -15


def test_child_command_that_cannot_be_run_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "not-executable").touch()
    with pytest.raises(ExceptionGroup) as caught:  # of the nursery
        trio.run(run, [str(tmp_path / "not-executable")], b"", {})
    [error] = caught.value.exceptions
    assert isinstance(error, PermissionError)
    assert not is_transient(error)
    assert is_transient(OSError(errno.EMFILE, ""))
    assert is_transient(OSError(errno.EAGAIN, ""))


async def test_whole_group_ends_with_a_cancelled_command(tmp_path: Path) -> None:
    """Its leader ends at SIGTERM, what it started does not."""
    pid_file = tmp_path / "pid"
    tell = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}"
    stubborn = f"trap '' TERM; {tell}; exec sleep 600"
    command = ["/bin/sh", "-c", 'sh -c "$0" & sleep 600', stubborn]
    async with trio.open_nursery() as nursery:
        child = await Children(nursery).start(command, {})
        data = b"x" * 1_000_000
        nursery.start_soon(partial(child.run, data, kill_after_s=0.2))
        with trio.fail_after(60):
            while not pid_file.exists():  # noqa: ASYNC110 - another process makes it
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert not is_alive(int(pid_file.read_text()))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- clean-up of fj-cli bench ---------------------------------------------------------------------
# Clean-up of ``fj-cli bench``, where the daemon does not delete what was written.


class Refusing:
    """A daemon that takes a SET, refuses NEXT, and refuses DELETE so often."""

    def __init__(self, code: str, times: int) -> None:
        self._code = code
        self._times = times
        self.entries = 0
        self.tries = 0

    async def __aenter__(self) -> Refusing:
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()

    async def set(self, _key: bytes, _value: bytes, **_: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self.refuses_set:
            self.entries = int(self.refuses_set == "not-persisted")  # it is in memory
            raise RefusedError("the test refuses it", code=self.refuses_set)
        self.entries = 1

    refuses_set = ""

    async def next(self, _domain: str, **_: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise RefusedError("the test refuses it", code="busy")

    async def delete(self, _key: bytes, **_: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.tries += 1
        if self.tries <= self._times:
            raise RefusedError("the test refuses it", code=self._code)
        self.entries = 0

    async def domain_stats(self, _domain: str) -> SimpleNamespace:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(entries=self.entries)


def refused_bench(daemon: Refusing, match: str, **load: int) -> Bench:
    """Run a bench that the daemon refuses."""
    run = Bench(Load(value_bytes=1, persist=False, **load), lambda: cast(Client, daemon))
    with pytest.raises(RefusedError, match=match):
        trio.run(run.run, clock=MockClock(autojump_threshold=0))
    return run


@pytest.mark.parametrize(
    ("code", "times", "tries", "may_be_left"),
    [
        ("read-only", 3, range(4, 5), False),
        ("read-only", 10**9, range(10, 1000), True),
        ("forbidden", 10**9, range(1, 2), True),
    ],
)
def test_refused_clean_up_pauses_and_says_what_may_be_left(
    code: str, times: int, tries: range, may_be_left: bool
) -> None:
    daemon = Refusing(code, times)
    bench = refused_bench(daemon, "busy", connections=1, jobs=1)
    assert bench.may_be_left is may_be_left
    assert daemon.tries in tries


@pytest.mark.parametrize(("code", "may_be_left"), [("forbidden", False), ("not-persisted", True)])
def test_refused_set_leaves_nothing_unless_it_may_be_in_memory(
    code: str, may_be_left: bool
) -> None:
    daemon = Refusing("forbidden", 10**9)
    daemon.refuses_set = code
    bench = refused_bench(daemon, "the test refuses it", connections=2, jobs=4)
    assert bench.may_be_left is may_be_left
    assert bool(daemon.tries) is may_be_left


# --- fj-cli ping ----------------------------------------------------------------------------------
# fj-cli ping against a daemon whose clock is far away.


class Daemon:
    """A daemon whose machine has lost its clock."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nop(self) -> datetime:
        return datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)


def test_ping_shows_a_clock_of_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "open_client", lambda _ctx: Daemon())
    arguments = ["ping", "--count", "1", "--json"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    ahead_us = json.loads(result.stdout.splitlines()[0])["clock_ahead_us"]
    assert -200 < (ahead_us / (365.25 * 86_400_000_000)) < -50
