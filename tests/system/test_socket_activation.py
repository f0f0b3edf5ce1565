"""Socket activation and service notification: real sockets handed over, a fake notify socket."""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal import SyncClient
from fastjournal.client.core.retry_policy import Reconnect
from tests.integration.daemon_process import DaemonProcess
from tests.integration.worker_process import wait_until
from tests.system.socket_manager import DEADLINE_S, SocketManager, other_descriptors


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose path is short enough for the name of a unix socket."""
    with tempfile.TemporaryDirectory(prefix="fj-") as name:
        yield Path(name)


@pytest.fixture
def manager(directory: Path) -> Iterator[SocketManager]:
    with SocketManager(directory) as manager:
        yield manager


def status_of(states: list[str]) -> list[str]:
    return [state.removeprefix("STATUS=") for state in states if state.startswith("STATUS=")]


def test_socket_activation_serves_what_came_before_and_leaves_the_sockets(
    manager: SocketManager,
) -> None:
    with socket.create_connection(manager.tcp.getsockname()) as early:
        manager.start()
        # it is served although it connected before there was a daemon
        early.sendall(b"no such protocol")
        early.settimeout(DEADLINE_S)
        assert early.recv(100)
    for address in manager.addresses:
        with SyncClient(address) as client:
            client.set(f"key of {address}", b"kept")
    assert manager.end(signal.SIGTERM) == 0
    assert manager.unix_path.is_socket()
    assert f"event=ready listen={','.join(manager.addresses)}\n" in manager.said()

    states = manager.start()
    for address in manager.addresses:
        with SyncClient(address) as client:
            assert client.get(f"key of {address}").value == b"kept"
    # a replay asks for more time, and tells how far it is
    assert "EXTEND_TIMEOUT_USEC=300000000" in states
    assert re.fullmatch(r"Recovering the log: \d+ %, \d+ records", status_of(states)[-2])
    assert status_of(states)[-1] == "Serving requests"


def test_socket_activation_adds_to_addresses_of_the_configuration_and_shares_none(
    directory: Path,
) -> None:
    with SocketManager(directory) as manager:
        own = f"unix:{directory}/own"
        manager.options = ("--listen", own, "--listen", manager.addresses[0])
        manager.start()
        for address in (own, *manager.addresses):
            with SyncClient(address) as client:
                client.set(f"key of {address}", b"value")
        assert f"event=ready listen={own},{','.join(manager.addresses)}\n" in manager.said()
        assert manager.end(signal.SIGTERM) == 0
        assert not (directory / "own").exists()

        # an address that overlaps: the sentence names that of the service manager
        port = manager.tcp.getsockname()[1]
        manager.options = ("--listen", f"0.0.0.0:{port}", "--insecure")
        assert manager.launch().wait(DEADLINE_S) == 64
        assert f"the service manager listens on {manager.addresses[0]}" in manager.said()


def test_socket_activation_with_the_name_http_serves_health_checks(manager: SocketManager) -> None:
    with SyncClient(manager.addresses[1], reconnect=Reconnect(at_start=True)) as client:
        manager.launch(LISTEN_FDNAMES="http:listen")
        client.set("key", b"value")
        with socket.create_connection(manager.tcp.getsockname()) as http:
            http.settimeout(DEADLINE_S)
            http.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert http.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"LISTEN_FDS": "two"}, "LISTEN_FDS=two: not a positive number"),
        ({"WATCHDOG_USEC": "30s"}, "WATCHDOG_USEC=30s: not a positive number"),
    ],
)
def test_socket_activation_with_a_wrong_variable_is_bad_usage(
    manager: SocketManager, variables: dict[str, str], sentence: str
) -> None:
    assert manager.launch(**variables).wait(DEADLINE_S) == 64
    (line,) = manager.said().splitlines()
    assert line.startswith(f"fastjournald: {sentence} (")


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"LISTEN_FDS": "-1"}, "LISTEN_FDS=-1: not a positive number"),
        ({"LISTEN_FDS": "4000000000"}, "LISTEN_FDS=4000000000: more than 1000 sockets"),
        ({"LISTEN_FDS": "3", "LISTEN_FDNAMES": "listen:listen:listen"}, "Bad file descriptor"),
        ({"LISTEN_FDNAMES": "listen"}, "LISTEN_FDNAMES=listen: 1 names for LISTEN_FDS=2"),
        ({"LISTEN_FDNAMES": "listen:fj.socket"}, "LISTEN_FDNAMES: no such name: fj.socket"),
        ({"LISTEN_FDNAMES": "http:http"}, "LISTEN_FDNAMES: http names two sockets"),
        ({"LISTEN_PID": "me"}, "LISTEN_PID=me: not a positive number"),
    ],
)
def test_socket_activation_refuses_wrong_variables_with_one_sentence(
    manager: SocketManager, variables: dict[str, str], sentence: str
) -> None:
    assert sentence in manager.take_over(manager.tcp, manager.unix, **variables)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("file", "this is no socket"),
        ("udp", "this socket does not listen for connections"),
        ("not listening", "this socket does not listen for connections"),
        ("abstract", "an abstract unix socket, which no file mode protects"),
        ("same", "two sockets listen on 127.0.0.1:"),
    ],
)
def test_socket_activation_refuses_a_descriptor_that_is_of_no_use(
    manager: SocketManager, kind: str, sentence: str
) -> None:
    with other_descriptors() as others:
        said = manager.take_over(manager.tcp, others.get(kind, manager.tcp))
    assert said.startswith("LISTEN_FDS")
    assert sentence in said


@pytest.mark.parametrize(
    ("name", "could"),
    [("listen", "read and change everything"), ("http", "read the names of all domains and jobs")],
)
def test_socket_activation_beyond_this_machine_needs_what_listen_needs(
    manager: SocketManager, name: str, could: str
) -> None:
    with socket.socket() as everywhere:
        everywhere.bind(("0.0.0.0", 0))
        everywhere.listen()
        names = {"LISTEN_FDNAMES": f"listen:{name}"}
        assert manager.launch(manager.tcp, everywhere, **names).wait(DEADLINE_S) == 64
        port = everywhere.getsockname()[1]
    assert f"LISTEN_FDS 0.0.0.0:{port}: other machines could {could} there" in manager.said()


def test_socket_activation_ignores_sockets_of_another_process(manager: SocketManager) -> None:
    manager.options = ("--listen", f"unix:{manager.directory}/own")
    manager.start(LISTEN_PID=str(os.getpid()))
    assert f"event=ready listen=unix:{manager.directory}/own\n" in manager.said()


def test_systemd_watchdog_and_reload_states_reach_the_service_manager(directory: Path) -> None:
    file = directory / "fastjournald.toml"
    file.write_text("idle_timeout = 50\n", encoding="utf-8")
    with SocketManager(directory, "--config", str(file)) as manager:
        manager.start(WATCHDOG_USEC="100000")
        for _ in range(3):
            manager.states_until("WATCHDOG=1")
        assert manager.daemon is not None

        for text, status in (
            ("idle_timeout = 60\n", "Serving requests"),
            ("idle_timeout = true\n", "with the options before a reload that failed: see the log"),
        ):
            file.write_text(text, encoding="utf-8")
            before_us = time.monotonic_ns() // 1000
            manager.daemon.send_signal(signal.SIGHUP)
            reload = manager.states_until("RELOADING=1") + manager.states_until("READY=1")
            (begun,) = [s.partition("=")[2] for s in reload if s.startswith("MONOTONIC_USEC=")]
            assert before_us <= int(begun) <= time.monotonic_ns() // 1000
            assert status in status_of(reload)[0]


class Load:
    """Clients that write by a socket, and one that only connects, until they are stopped."""

    def __init__(self, addresses: list[str], tcp: socket.socket, unix_path: Path) -> None:
        self.written: dict[str, list[str]] = {address: [] for address in addresses}
        """Keys whose SET was acknowledged."""
        self.failures: list[Exception] = []
        self.connects = 0
        self._stopped = threading.Event()
        connect = threading.Thread(target=self._connect, args=(tcp.getsockname(), str(unix_path)))
        writers = [threading.Thread(target=self._write, args=(a,)) for a in addresses]
        self._threads = [connect, *writers]

    def _write(self, address: str) -> None:
        try:
            with SyncClient(address) as client:
                while not self._stopped.is_set():
                    key = f"{address} {len(self.written[address])}"
                    client.set(key, b"value")
                    self.written[address].append(key)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            self.failures.append(error)

    def _connect(self, tcp: tuple[str, int], unix: str) -> None:
        try:
            while not self._stopped.wait(0.005):
                for family, name in ((socket.AF_INET, tcp), (socket.AF_UNIX, unix)):
                    with socket.socket(family) as client:
                        client.settimeout(DEADLINE_S)
                        client.connect(name)
                self.connects += 1
        except OSError as error:
            self.failures.append(error)

    def wait_for_more(self) -> None:
        """Return when each client was served after the call, or one has failed."""
        before = {address: len(keys) for address, keys in self.written.items()}
        wait_until(
            lambda: (
                not (
                    not self.failures
                    and any(
                        len(keys) < before[address] + 20 for address, keys in self.written.items()
                    )
                )
            )
        )

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)


def test_restart_under_load_refuses_no_connection_and_loses_no_request(
    manager: SocketManager,
) -> None:
    manager.start()
    with Load(manager.addresses, manager.tcp, manager.unix_path) as load:
        for number, status in ((signal.SIGTERM, 0), (signal.SIGKILL, -9), (signal.SIGTERM, 0)):
            load.wait_for_more()
            assert manager.end(number) == status
            connects = load.connects
            # nobody accepts: connections are made all the same
            while load.connects < connects + 5 and not load.failures:
                time.sleep(0.01)
            manager.start()
        load.wait_for_more()
    assert load.failures == []
    with SyncClient(manager.addresses[0]) as client:
        for address, keys in load.written.items():
            assert client.get(keys[0]).value == b"value"
            found = {entry.key for entry in client.prefix(f"{address} ")}
            assert found >= {key.encode() for key in keys}


def test_standby_closes_clients_of_the_socket_at_once_and_serves_them_after_the_takeover(
    directory: Path,
) -> None:
    remote = ("--remote-log", f"file://{directory}/store", "--remote-poll", "50")
    (directory / "first").mkdir()
    with DaemonProcess(directory / "first") as first, SyncClient(first.address) as client:
        client.set("key", b"kept")
    first = DaemonProcess(directory / "first", *remote, "--remote-node", "first")
    with first, SocketManager(directory, *remote) as manager:
        manager.launch(WATCHDOG_USEC="60000000")
        manager.states_until("STATUS=standby of first, epoch 1")
        for held in (manager.tcp, manager.unix):
            with socket.socket(held.family) as client:
                client.settimeout(DEADLINE_S)
                client.connect(held.getsockname())
                assert client.recv(1) == b""
        assert manager.daemon is not None
        manager.daemon.send_signal(signal.SIGHUP)
        states = manager.states_until("STATUS=standby of first, epoch 1")
        assert [state for state in states if not state.startswith("MONO")][-3:] == [
            "RELOADING=1",
            "READY=1",
            "STATUS=standby of first, epoch 1",
        ]

        assert first.stop() == 0
        states = manager.states_until("STATUS=Serving requests")

        # the replay has no event loop, and the manager waits longer for its signs of life
        assert [state for state in states if state.startswith("WATCHDOG_USEC")] == [
            "WATCHDOG_USEC=300000000",
            "WATCHDOG_USEC=300000000",
            "WATCHDOG_USEC=60000000",
        ]
        for address in manager.addresses:
            with SyncClient(address) as client:
                assert client.get("key").value == b"kept"
        # asked for while it was a standby
        wait_until(lambda: "event=reloaded" in manager.said())
        assert manager.end(signal.SIGTERM) == 0
