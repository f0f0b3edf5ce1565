"""Bad input, floods, waiting and limits over the wire, while other clients work on."""

from __future__ import annotations

import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest

from fastjournal.clock import unique_timestamp
from fastjournal.limits import WAITS_PER_CONNECTION_MAX
from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import Flag, Function
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.programs import installed
from tests.integration.raw_client import (
    RawClient,
    build,
    codes,
    listen_request,
    set_request,
)

MAX_VALUE = 5000
SECOND = 1_000_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("daemon")
    process = DaemonProcess(directory, "--max-value", str(MAX_VALUE), own_interpreter=True)
    with process:
        yield process
        assert process.stop() == 0
    assert "Traceback" not in process.said()


@pytest.fixture
def neighbour(daemon: DaemonProcess) -> Iterator[RawClient]:
    """Another client, which was there before and must notice nothing."""
    with RawClient(daemon.address) as client:
        key = b"neighbour/%d" % unique_timestamp()  # no work, which any client may take
        assert client.ask(set_request(key)).code == ""
        yield client
        assert client.ask(build(Function.GET, key)).code == ""
        assert client.ask(build(Function.DELETE, key)).code == ""


def header(magic: bytes = b"FJ", version: int = 1, flags: int = 0) -> bytes:
    return magic + struct.pack(">HHHHQ", version, Function.SET, 77, flags, unique_timestamp())


BAD_FRAMES = {
    "another magic": (b"GET / HTTP/1.1\r\n\r\n", "bad-request", 0x4854),
    "another version": (header(version=2) + b"\x01k", "unsupported-version", 77),
    "value size 0": (header(flags=1 << 1) + b"\x01k\x00", "bad-request", 77),
    "a value over max-value": (
        header(flags=3 << 1) + b"\x01k" + struct.pack(">I", MAX_VALUE + 2) + b"\x01",
        "too-large",
        77,
    ),
    "a claim of 4 GiB": (header(flags=3 << 1) + b"\x01k\xff\xff\xff\xff", "too-large", 77),
}


@pytest.mark.parametrize("what", BAD_FRAMES)
def test_malformed_message_gets_its_error_after_what_is_owed_and_the_end(
    daemon: DaemonProcess, neighbour: RawClient, what: str
) -> None:
    data, code, identifier = BAD_FRAMES[what]
    with RawClient(daemon.address) as client:
        owed = encode_request(set_request(b"plain/%d" % unique_timestamp()))
        client.socket.sendall(owed + data + b"more of it")
        replies = client.rest()
        assert codes(replies) == ["", code]
        assert replies[1].identifier == identifier


def test_quit_is_answered_last_and_ends_the_connection(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client:
        client.send(
            listen_request(b"nothing", identifier=5),
            build(Function.NOP, identifier=6),
            build(Function.QUIT, identifier=7),
            build(Function.NOP, identifier=8),
        )
        replies = client.rest()
        assert [reply.identifier for reply in replies] == [6, 5, 7]
        assert replies[1].pairs == []


def test_next_that_waits_is_woken_by_another_clients_set(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client, RawClient(daemon.address) as other:
        client.send(listen_request(b"wake", identifier=9), build(Function.NOP, identifier=10))
        assert client.reply().identifier == 10
        assert other.ask(set_request(b"wake:1:0:x", b"now")).code == ""
        reply = client.reply()
        assert reply.identifier == 9
        assert reply.pairs
        assert reply.pairs[0].value == b"now"
        assert reply.timeout


def test_next_that_waits_is_woken_by_a_lease_that_is_released_or_runs_out(
    daemon: DaemonProcess,
) -> None:
    with RawClient(daemon.address) as client, RawClient(daemon.address) as other:
        key = b"lease:1:0:x"
        assert client.ask(set_request(key)).code == ""
        token = client.ask(build(Function.NEXT, b"lease", timeout=1000 * SECOND)).timeout
        other.send(listen_request(b"lease", timeout=300_000), build(Function.NOP))
        assert other.reply().pairs is None
        give_back = build(Function.RELEASE, key, flags=Flag.WORKED_ON, timeout=token)
        assert client.ask(give_back).code == ""
        second = other.reply()
        assert second.pairs
        assert second.timeout is not None
        # nobody finishes that one: it runs out
        third = client.ask(listen_request(b"lease"))
        assert third.pairs
        assert third.timestamp >= second.timeout
        lost = build(Function.DELETE, key, flags=Flag.WORKED_ON, timeout=second.timeout)
        assert other.ask(lost).code == "lease-lost"


def test_requests_that_wait_on_one_connection_are_bounded(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client, RawClient(daemon.address) as other:
        over = 10
        client.send(*[listen_request(b"many")] * (WAITS_PER_CONNECTION_MAX + over))
        assert codes(client.reply() for _ in range(over)) == ["busy"] * over
        other.send(listen_request(b"many"), build(Function.NOP))
        assert other.reply().pairs is None


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_pipeline_of_100000_requests_is_answered_in_order(daemon: DaemonProcess) -> None:
    count = 100_000
    with RawClient(daemon.address) as client:
        before = rss_bytes(daemon.pid)
        requests = [build(Function.NOP, identifier=number & 0xFFFF) for number in range(count)]
        sender = threading.Thread(target=client.send, args=requests)
        sender.start()
        for number in range(count):
            assert client.reply().identifier == number & 0xFFFF
        sender.join()
        assert rss_bytes(daemon.pid) - before < 64 * 1024 * 1024


def test_connections_leave_files_open_for_the_log(tmp_path: Path) -> None:
    """With fewer files than max-connections needs, the log still gets its segments."""
    ready = tmp_path / "ready"
    command = (
        f"ulimit -n 200; exec {quote(installed('fastjournald'))} --cmdlog-path {tmp_path}/log "
        f"--listen 127.0.0.1:0 --ready-file {ready} --cmdlog-seg-size 4096"
    )
    process = subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    clients = []
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        address = ready.read_text().strip()
        first = RawClient(address)
        clients.append(first)
        # who has asked nothing makes room for others
        assert first.ask(build(Function.NOP)).code == ""
        clients += [RawClient(address) for _ in range(300)]
        for number in range(100):
            assert first.ask(set_request(b"a:1:0:%d" % number, b"v" * 200)).code == ""
        assert first.ask(build(Function.SNAPSHOT)).code == ""
    finally:
        process.terminate()
        for client in clients:
            client.socket.close()
        _, said = process.communicate(timeout=START_S)
    assert process.returncode == 0, said
    assert "event=fewer-connections" in said
    assert "Traceback" not in said
