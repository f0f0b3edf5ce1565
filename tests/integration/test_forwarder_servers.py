"""Failover of fj-forwarder between real daemons: it stays with one until that is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fastjournal import SyncClient
from fastjournal.protocol import Function, Request
from fastjournal.spool import Spool
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.programs import Program, installed


def daemon_in(directory: Path, *options: str) -> DaemonProcess:
    """Return a daemon that has the same address after each start."""
    directory.mkdir()
    return DaemonProcess(directory, "--listen", f"unix:{directory / 'socket'}", *options)


def tokens_in(directory: Path) -> Path:
    """Write a file with a token that the forwarder does not have."""
    made = Cli(directory, None)("token", "new", str(directory / "theirs"))
    tokens = directory / "tokens.toml"
    tokens.touch(0o600)
    rest = "rights = ['write']\nprefixes = ['']\n"
    tokens.write_text(f"[[token]]\nname = 'a'\n{made.stdout.decode()}{rest}")
    return tokens


def wait_for(daemon: DaemonProcess, key: bytes) -> None:
    deadline = time.monotonic() + START_S
    with SyncClient(daemon.address) as client:
        while client.request(Request(Function.GET, key=key)).code:
            assert time.monotonic() < deadline, f"{key!r} was not delivered there"
            time.sleep(0.01)


def test_forwarder_passes_over_a_daemon_that_does_not_let_it_in_and_stays_until_one_is_gone(
    tmp_path: Path,
) -> None:
    closed = daemon_in(tmp_path / "closed", "--auth-tokens", str(tokens_in(tmp_path)))
    first, second = daemon_in(tmp_path / "first"), daemon_in(tmp_path / "second")
    spool_path = tmp_path / "spool"
    with closed, first, second, Spool(spool_path) as spool:
        token = tmp_path / "token"
        assert Cli(tmp_path, None)("token", "new", str(token)).returncode == 0
        command = [installed("fj-forwarder"), "--spool", str(spool_path), "--auth-file", str(token)]
        for daemon in (closed, first, second):
            command += ["--server", daemon.address]
        forwarder = Program(command)
        try:
            wait_for(first, spool.append(domain="d"))
            first.kill()
            wait_for(second, spool.append(domain="d"))
            first.start()
            wait_for(second, spool.append(domain="d"))
            second.kill()
            wait_for(first, spool.append(domain="d"))
        finally:
            forwarder.terminate()
            assert forwarder.wait(START_S) == os.EX_OK
