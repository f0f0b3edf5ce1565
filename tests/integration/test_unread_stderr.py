"""Standard error that nobody reads: no program waits for its reader, at work or at its end."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.spool import Spool, spool_status
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.programs import Program, ended, installed
from tests.integration.terminal import Terminal
from tests.integration.worker_process import add, wait_until

CONNECTIONS = 1_200
"""Each costs two lines: with 973 of them a pipe of 64 KiB was full."""

BATCH = 500
REFUSAL = b"bad-value " + b"\1" * 1_000
"""Each byte of the text is four in the line."""


class Pipe:
    """Pipe for standard error that is read only when a test does so."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        self.text = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Read until there is a match in all that was written; return it."""
        while not (found := re.search(pattern, self.text)):
            assert select.select([self._reading], [], [], TIMEOUT_S)[0], self.text[-2_000:]
            self.text += os.read(self._reading, 65536).decode()
        return found

    def fill(self) -> None:
        """Leave no room, as a reader does that stopped long ago."""
        os.set_blocking(self.writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.writing, b"\n" * 4096)
        os.set_blocking(self.writing, True)

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reading)
        os.close(self.writing)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Give a pipe."""
    with contextlib.closing(Pipe()) as pipe:
        yield pipe


def send_garbage(path: Path, times: int) -> None:
    """Connect and send what is no request: the daemon logs two lines for each."""
    for _ in range(times):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(TIMEOUT_S)
            client.connect(str(path))
            client.sendall(b"garbage!")
            assert client.recv(1_000)


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}", timeout=TIMEOUT_S) as reply:
        return str(reply.read().decode())


def dropped(address: str) -> int:
    """Return the metric."""
    metrics = page(f"{address}/metrics")
    found = re.search(r"^fastjournal_log_lines_dropped_total (\S+)$", metrics, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def test_log_lines_of_the_daemon_that_nobody_reads_stop_nothing(tmp_path: Path, pipe: Pipe) -> None:
    """Requests, health checks, watchdog and SIGTERM go on; the lines that were dropped are told."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)
        watched = {
            **os.environ,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "500000",
        }
        command = [
            *(installed("fastjournald"), "--cmdlog-path", str(tmp_path / "log")),
            *("--listen", f"unix:{path}", "--http", "127.0.0.1:0"),
        ]
        with ended(Program(command, stderr=pipe.writing, env=watched)) as daemon:
            address = pipe.until(r"event=ready .*http=(\S+)\n")[1]
            send_garbage(path, CONNECTIONS)
            wait_until(lambda: dropped(address) or send_garbage(path, BATCH))
            with SyncClient(f"unix:{path}") as client:
                client.set("k", b"v")
            assert page(f"{address}/healthz") == "ok\n"
            # those that were sent meanwhile come first
            manager.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    manager.recv(4096)
            manager.settimeout(TIMEOUT_S)
            assert manager.recv(4096) == b"WATCHDOG=1"
            before = dropped(address)
            told = pipe.until(r"WARNING event=log-lines-dropped lines=(\d+) info=(\d+)\n")
            assert int(told[1]) == int(told[2]) == before
            # the reader reads again: nothing more is dropped
            send_garbage(path, 1)
            pipe.until(r"event=log-lines-dropped .*\n.* event=connected ")
            assert dropped(address) == before
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(TIMEOUT_S) == 0
            pipe.until("event=stopped\n")
            lines = pipe.text.splitlines()
            assert all(re.match(r"\d{4}-\d\d-\d\d \S+ [A-Z]+ event=", line) for line in lines)


def test_terminal_that_is_stopped_stops_no_daemon(tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [
        *(installed("fastjournald"), "--cmdlog-path", str(tmp_path / "log")),
        *("--listen", f"unix:{path}", "--http", "127.0.0.1:0"),
    ]
    with Terminal(command, os.environ, (200, 40)) as terminal:
        terminal.until(r"event=ready .*http=\S+\n")
        [address] = re.findall(r"http=(\S+)", terminal.text)
        terminal.press("\x13")
        wait_until(lambda: dropped(address) or send_garbage(path, BATCH))
        with SyncClient(f"unix:{path}") as client:
            client.set("k", b"v")
        terminal.press("\x11")
        terminal.until(r"event=log-lines-dropped lines=\d+ info=\d+")
        terminal.press("\x13")
        send_garbage(path, BATCH)
        terminal.process.terminate()
        assert terminal.process.wait(TIMEOUT_S) == 0


def test_log_lines_of_the_forwarder_that_nobody_reads_delay_no_record(
    tmp_path: Path, pipe: Pipe
) -> None:
    # each record in dead/ is a line with the text of its refusal
    ledger = Ledger(refuse=lambda request: (request.value or b"").decode())
    with Spool(tmp_path / "s") as spool, ScriptedDaemon(ledger.answer) as daemon:
        command = [
            *(installed("fj-forwarder"), "--spool", str(tmp_path / "s")),
            *("--server", daemon.address, "--http", "127.0.0.1:0"),
        ]
        with ended(Program(command, stderr=pipe.writing)) as forwarder:
            address = pipe.until(r"metrics: http://(\S+)/metrics\n")[1]
            pipe.fill()

            def forward_some() -> None:
                for _ in range(50):
                    spool.append(domain="d", value=REFUSAL)
                ledger.wait_applied([spool.append(domain="d")])
                wait_until(lambda: spool_status(tmp_path / "s").pending == 0)

            wait_until(lambda: dropped(address) or forward_some())
            before = dropped(address)
            told = pipe.until(r"WARNING event=log-lines-dropped lines=(\d+) warning=(\d+)\n")
            assert 0 < int(told[1]) == int(told[2]) <= before
            pipe.fill()
            forwarder.send_signal(signal.SIGTERM)
            assert forwarder.wait(TIMEOUT_S) == 0


def test_worker_reports_that_nobody_reads_delay_no_job_and_are_counted(
    cli: Cli, client: SyncClient, pipe: Pipe
) -> None:
    add(client, *(f"{number}-{'x' * 4_000}" for number in range(200)))
    command = [installed("fj-cli"), "next", "--json", "--jobs", "4", "--wait", "forever"]
    pipe.fill()
    with ended(
        Program([*command, "--exec", "true"], stderr=pipe.writing, env=cli.environment)
    ) as worker:
        wait_until(lambda: client.stats()["entries"] == 0)
        pipe.until(r'"level":"warning","result":"untold","untold":\d+\}\n')
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(TIMEOUT_S) == 0
        pipe.until(r'"result":"summary","done":200,.*"untold":\d+\}\n')


def damage(directory: Path) -> None:
    """Leave a log that needs ``--repair``."""
    directory.mkdir()
    (directory / "000000001.log").write_bytes(b"no log")


LOG = ("fastjournald", "--listen", "127.0.0.1:0", "--cmdlog-path", "log")
SPOOL = ("fj-forwarder", "--spool", "s", "--server")


@pytest.mark.parametrize(
    ("command", "code", "prepare"),
    [
        (("fastjournald", "--unheard-of"), 64, None),
        (("fastjournald", "--cmdlog-path", "log", "--listen", "0.0.0.0:1"), 64, None),
        ((*LOG, "--check-config", "--listen", "0.0.0.0:1"), 64, None),
        (LOG, 74, lambda: damage(Path("log"))),
        ((*SPOOL, "nowhere"), 64, None),
        ((*SPOOL, "127.0.0.1:1", "--http", "0.0.0.0:1"), 64, None),
        ((*SPOOL, "127.0.0.1:1"), 74, lambda: Path("s/forwarder.lock").mkdir(parents=True)),
        (("fj-cli", "next", "--unheard-of", "--exec", "true"), 2, None),
        (("fj-cli", "next", "--exec", "there-is-no-such-program"), 2, None),
        (("fj-nightly", "--unheard-of"), 2, None),
        (("fj-nightly", "--server", "127.0.0.1:1", "--output", "out"), 69, None),
    ],
)
def test_error_that_nobody_reads_ends_a_program_with_its_exit_code(
    tmp_path: Path,
    pipe: Pipe,
    monkeypatch: pytest.MonkeyPatch,
    command: Sequence[str],
    code: int,
    prepare: Callable[[], object] | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    if prepare is not None:
        prepare()
    pipe.fill()
    program, *arguments = command
    with ended(Program([installed(program), *arguments], stderr=pipe.writing)) as process:
        assert process.wait(TIMEOUT_S) == code
