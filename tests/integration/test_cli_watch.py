"""fj-cli watch, as it is installed, against a real daemon: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess

DONE, REFUSED, USAGE, CANNOT_CONNECT = 0, 1, 2, 69


class Watch:
    """``fj-cli watch`` that has subscribed."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout = process.stdout
        assert process.stderr.readline() == b"watching; Ctrl-C ends it\n"

    def line(self) -> str:
        """The next line."""
        return self.stdout.readline().decode().rstrip("\n")

    def json(self) -> dict[str, Any]:
        """The next line's object."""
        fields: dict[str, Any] = json.loads(self.line())
        return fields


@contextmanager
def watching(daemon: DaemonProcess, directory: Path, *arguments: str) -> Iterator[Watch]:
    process = Cli(directory, daemon.address).start("watch", *arguments)
    try:
        yield Watch(process)
    finally:
        process.kill()
        process.communicate()


def test_key_is_watched_from_its_coming_to_its_going(
    daemon: DaemonProcess, client: SyncClient, tmp_path: Path
) -> None:
    with watching(daemon, tmp_path, "k") as watch:
        client.set("other", "x")
        client.set("k", "one")
        first = watch.json()
        assert (first["change"], first["key"], first["value"]) == ("set", "k", "one")
        assert first["type"] == "string"
        assert first["time_us"] >= first["modified_us"]
        client.set("k", b"\xff", overwrite=True)
        assert watch.json()["value_b64"] == "/w=="
        client.delete("k")
        gone = watch.json()
        assert (gone["change"], gone["key"]) == ("gone", "k")
        assert "value" not in gone


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--prefix", "pages:"), {"pages:128:0:x", "pages:1:0:"}),
        (("--regex", "x$|^u"), {"pages:128:0:x", "u"}),
    ],
)
def test_watch_of_a_prefix_or_an_expression(
    daemon: DaemonProcess,
    client: SyncClient,
    tmp_path: Path,
    arguments: tuple[str, ...],
    told: set[str],
) -> None:
    with watching(daemon, tmp_path, *arguments) as watch:
        for key in ("page", "pages:128:0:x", "pages:1:0:", "u", "z"):
            client.set(key, "v")
        assert {watch.json()["key"] for _ in told} == told


def test_watch_prints_lines_for_people(
    daemon: DaemonProcess, client: SyncClient, tmp_path: Path
) -> None:
    with watching(daemon, tmp_path, "--table", "k") as watch:
        client.set("k", "two\nlines\x1b[2J")
        _, kind, key, value = watch.line().split()
        assert (kind, key, value) == ("set", "k", r"two\nlines\x1b[2J")
        client.delete("k")
        assert watch.line().split()[1:] == ["gone", "k"]


def test_signal_ends_it_cleanly(daemon: DaemonProcess, tmp_path: Path) -> None:
    with watching(daemon, tmp_path) as watch:
        watch.process.send_signal(signal.SIGINT)
        assert watch.process.wait(TIMEOUT_S) == DONE
        assert watch.process.stderr is not None
        assert watch.process.stderr.read() == b""


def test_watch_ends_when_its_reader_goes_though_nothing_changes(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    with watching(daemon, tmp_path) as watch:
        watch.stdout.close()
        assert watch.process.wait(TIMEOUT_S) == DONE
        assert watch.process.stderr is not None
        assert watch.process.stderr.read() == b""


def test_signal_ends_it_also_while_nobody_reads_what_it_writes(
    daemon: DaemonProcess, client: SyncClient, tmp_path: Path
) -> None:
    with watching(daemon, tmp_path, "k") as watch:
        for number in range(3):
            client.set("k", "v" * 900_000 + str(number), overwrite=True)
        # it has begun to write more than a pipe holds
        assert os.read(watch.stdout.fileno(), 1)
        watch.process.send_signal(signal.SIGTERM)
        assert watch.process.wait(TIMEOUT_S) == DONE


def test_restart_of_the_daemon_is_told_as_missed(tmp_path: Path) -> None:
    socket_path = tmp_path / "fj.sock"
    daemon = DaemonProcess(tmp_path, "--listen", f"unix:{socket_path}")
    with daemon, watching(daemon, tmp_path) as watch:
        daemon.kill()
        daemon.start()
        assert watch.json()["change"] == "missed"
        with SyncClient(daemon.address) as client:
            client.set("k", "v")
        assert watch.json()["value"] == "v"


def test_watch_says_what_cannot_be_watched(daemon: DaemonProcess, tmp_path: Path) -> None:
    cli = Cli(tmp_path, daemon.address)
    two = cli("watch", "k", "--prefix", "p")
    assert (two.returncode, two.stdout) == (USAGE, b"")
    assert b"give one of KEY" in two.stderr
    bad = cli("watch", "--regex", "(")
    assert (bad.returncode, bad.stdout) == (REFUSED, b"")
    assert bad.stderr.startswith(b"fj-cli: bad-regex: ")
    nobody = Cli(tmp_path, f"unix:{tmp_path}/none")("watch")
    assert nobody.returncode == CANNOT_CONNECT
