"""A real daemon with --http: its figures move, and no HTTP client does it harm."""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fastjournal import Client, Spool
from fastjournal.client import SyncClient
from fastjournal.errors import CannotConnectError, RefusedError
from fastjournal.limits import HTTP_CONNECTIONS_MAX
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.page_contents import get_page, http_address
from tests.integration.programs import Program, installed, run_program
from tests.integration.worker_process import wait_until

HTTP = ("--http", "127.0.0.1:0")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, *HTTP) as process:
        yield process


def get(daemon: DaemonProcess, path: str, method: str = "GET") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(*http_address(daemon), timeout=START_S)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def figures(daemon: DaemonProcess) -> dict[str, float]:
    status, text = get(daemon, "/metrics")
    assert status == 200
    return {
        sample.name + "".join(f"{{{value}}}" for _, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def client_of(daemon: DaemonProcess) -> closing[SyncClient]:
    return closing(SyncClient(daemon.address))


def test_port_of_http_tells_clients_of_the_protocol_where_to_connect(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    address = ":".join(map(str, http_address(daemon)))
    advice = "this is a port of HTTP (--http): connect to an address of --listen"

    def get_blocking() -> None:
        SyncClient(address).get("key")

    async def get_async() -> None:
        async with Client(address) as client:
            await client.get("key")

    for get_one in (get_blocking, partial(anyio.run, get_async)):
        with pytest.raises(CannotConnectError, match=re.escape(advice)):
            get_one()
    (tmp_path / "work.py").write_text(
        "from fastjournal.tasks import Tasks\napp = Tasks()\n"
        "@app.task\ndef nothing() -> None: ...\n"
    )
    worker = [installed("fj-worker"), "work:app", "--server", address]
    done = run_program(worker, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, advice in done.stderr) == (1, True), done.stderr
    spool = tmp_path / "spool"
    with Spool(spool) as writer:
        writer.append(domain="work", value="1")
    forwarder = [installed("fj-forwarder"), "--spool", str(spool), "--server", address]
    with Program(forwarder, stderr=subprocess.PIPE, text=True) as process:
        said = next(line for line in process.stderr if "HTTP" in line)
        process.kill()
    assert advice in said


def test_metrics_move_with_real_requests(daemon: DaemonProcess) -> None:
    before = figures(daemon)
    with client_of(daemon) as client:
        for number in range(10):
            client.set(f"pages:128:0:{number}", "x")
        jobs = client.next("pages", count=3)
        client.delete(next(iter(jobs)).key, token=jobs.token)
        with pytest.raises(RefusedError):
            client.delete("pages:128:0:none")
        during = figures(daemon)
    moved = {
        "fastjournal_requests_total{set}": 10,
        "fastjournal_requests_total{next}": 1,
        "fastjournal_requests_total{delete}": 2,
        "fastjournal_entries{due}": 7,
        "fastjournal_entries{worked_on}": 2,
        "fastjournal_domains": 1,
        "fastjournal_connections": 1,
        # a delete of what is not there leaves a tombstone
        "fastjournal_commit_bytes_count": 13,
        "fastjournal_tombstones": 2,
        "fastjournal_log_segments": 1,
    }
    assert {name: during[name] - before[name] for name in moved} == moved
    for name, number in (("set", 10), ("next", 1), ("delete", 2)):
        assert during[f"fastjournal_request_seconds_count{{{name}}}"] == number
        assert 0 < during[f"fastjournal_request_seconds_sum{{{name}}}"] < number * START_S
    assert during["fastjournal_request_errors_total{not-found}{delete}"] == 1
    assert during["fastjournal_domain_waiting_entries{pages}"] == 7
    assert during["fastjournal_sync_seconds_count"] >= 13
    assert 0 < during["fastjournal_sync_seconds_sum"] < START_S
    assert during["fastjournal_log_bytes"] > during["fastjournal_log_live_bytes"] > 0
    assert during["fastjournal_uptime_seconds"] > before["fastjournal_uptime_seconds"]
    assert during["process_resident_memory_bytes"] > 1_000_000


def test_daemon_that_runs_is_alive_and_ready(daemon: DaemonProcess) -> None:
    assert get(daemon, "/healthz") == (200, "ok\n")
    assert get(daemon, "/readyz") == (200, "ok\n")
    assert get(daemon, "/readyz", "HEAD") == (200, "")
    assert get(daemon, "/")[0] == 200
    assert get(daemon, "/none")[0] == 404
    assert get(daemon, "/metrics", "POST")[0] == 405


def test_daemon_that_is_read_only_is_alive_but_not_ready(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, *HTTP, "--min-free-bytes", str(2**50)) as daemon:
        wait_until(lambda: "event=read-only" in daemon.said())
        status, text = get(daemon, "/readyz")
        assert status == 503
        assert "min-free-bytes" in text
        assert get(daemon, "/healthz") == (200, "ok\n")
        assert figures(daemon)["fastjournal_read_only"] == 1


def test_http_clients_that_misbehave_do_no_harm(daemon: DaemonProcess) -> None:
    address = http_address(daemon)
    slow = [socket.create_connection(address, START_S) for _ in range(40)]
    try:
        for client in slow[-8:]:
            client.sendall(b"GET /metr")
        # over the limit, those that have sent nothing for longest are closed at once
        for client in slow[: len(slow) - HTTP_CONNECTIONS_MAX]:
            assert client.recv(1) == b""
        with client_of(daemon) as worker:
            worker.set("a:1:0:x", "x")
            assert len(list(worker.next("a"))) == 1
    finally:
        for client in slow:
            client.close()
    for sent, status in (
        (b"\x00" * 100 + b"\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 1_000_000, b"431"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    ):
        answer = answered(address, sent)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
    assert get(daemon, "/healthz") == (200, "ok\n")
    with socket.create_connection(address, START_S) as client:
        client.sendall(b"GET /metr")
        # it does not hold up the end, whether the daemon has read it by then or not
        assert daemon.stop() == 0
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert "Traceback" not in daemon.said()


def answered(address: tuple[str, int], sent: bytes) -> bytes:
    """Send bytes and return what comes until the daemon closes; tried while it has no room."""
    deadline = time.monotonic() + START_S
    while True:
        with socket.create_connection(address, START_S) as client:
            answer = b""
            try:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                while data := client.recv(4096):
                    answer += data
            except (BrokenPipeError, ConnectionResetError):
                pass
        if answer or time.monotonic() > deadline:
            return answer
        time.sleep(0.01)


def refusal(log: Path, address: str) -> str:
    """Return why a daemon does not start with pages at this address."""
    command = [installed("fastjournald"), "--cmdlog-path", str(log), "--listen", "127.0.0.1:0"]
    done = run_program(
        [*command, "--http", address], capture_output=True, text=True, timeout=START_S
    )
    assert done.returncode == 64
    return str(done.stderr)


def test_address_in_use_stops_the_start(tmp_path: Path, daemon: DaemonProcess) -> None:
    host, port = http_address(daemon)
    said = refusal(tmp_path / "other", f"{host}:{port}")
    assert f"--http {host}:{port}: cannot listen" in said


ATTEMPTS = 1000
"""Far more than there may be connections, so each of them is taken over many times."""

SENT = (b"", b"GET / HT", b"x\r\n\r\n", b"GET /healthz HTTP/1.0\r\n\r\n", b"x\r\n\r\n")
CHUNKS = b"1\r\nx\r\n" * 10_000


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    options = ("--http", "127.0.0.1:0", "--cmdlog-sync", "os")
    directory = tmp_path_factory.mktemp("flooded")
    with DaemonProcess(directory, *options, own_interpreter=True) as process:
        yield process
        assert "Traceback" not in process.said()


def work(flooded: DaemonProcess, stop: threading.Event, done: list[int]) -> None:
    """Set, lease and delete jobs until stopped; count them."""
    with closing(SyncClient(flooded.address)) as client:
        while not stop.is_set():
            client.set("pages:1:0:x", "x")
            jobs = client.next("pages")
            client.delete("pages:1:0:x", token=jobs.token)
            done[0] += 1


def test_http_connection_flood_leaves_protocol_clients_alone(flooded: DaemonProcess) -> None:
    stop, done = threading.Event(), [0]
    worker = threading.Thread(target=work, args=(flooded, stop, done))
    worker.start()
    address, connections, files = http_address(flooded), list[socket.socket](), 0
    deadline = time.monotonic() + START_S
    try:
        for attempt in count():
            if attempt >= ATTEMPTS and done[0] > 10:
                break
            assert time.monotonic() < deadline, f"{done[0]} jobs beside the flood"
            connections.append(socket.create_connection(address, START_S))
            # some begin a request, others say nothing, and most get an answer and stay; one that
            # was closed is reset
            with suppress(ConnectionResetError, BrokenPipeError):
                connections[-1].send(SENT[attempt % len(SENT)])
            if len(connections) > 200:
                connections.pop(0).close()
            if attempt % 500 == 0:
                files = max(files, len(os.listdir(f"/proc/{flooded.pid}/fd")))
    finally:
        stop.set()
        worker.join(START_S)
        for connection in connections:
            connection.close()
    assert not worker.is_alive()
    # those that are being closed have a descriptor for a moment too
    assert files < 20 + 3 * HTTP_CONNECTIONS_MAX
    assert get_page(flooded, "/healthz")[:2] == (200, "ok\n")


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n", b"x" * 65536),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n", CHUNKS),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n", b"y" * 65536),
    ],
    ids=["length", "small-chunks", "page"],
)
def test_http_body_without_end_is_answered_and_closed(
    flooded: DaemonProcess, head: bytes, body: bytes
) -> None:
    answer, sent = b"", 0
    with socket.create_connection(http_address(flooded), START_S) as client:
        client.sendall(head + b"\r\n")
        with suppress(ConnectionResetError, BrokenPipeError):
            while sent < 200_000_000:
                sent += client.send(body)
        with suppress(ConnectionResetError):
            while data := client.recv(65536):
                answer += data
    # it was cut off long before its end, and the daemon holds none of it
    assert sent < 200_000_000
    assert not answer or answer.startswith(b"HTTP/1.1 ")
    resident = next(
        float(line.split()[1])
        for line in get_page(flooded, "/metrics")[1].splitlines()
        if line.startswith("process_resident_memory_bytes ")
    )
    assert resident < 200_000_000
