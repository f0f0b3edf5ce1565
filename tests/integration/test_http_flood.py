"""HTTP clients in masses, or with masses of bytes: protocol clients are served beside them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count

import pytest

from fastjournal.client import SyncClient
from fastjournal.limits import HTTP_CONNECTIONS_MAX
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.page_contents import get_page, http_address

ATTEMPTS = 1000
"""Far more than there may be connections, so each of them is taken over many times."""

SENT = (b"", b"GET / HT", b"x\r\n\r\n", b"GET /healthz HTTP/1.0\r\n\r\n", b"x\r\n\r\n")
CHUNKS = b"1\r\nx\r\n" * 10_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    options = ("--http", "127.0.0.1:0", "--cmdlog-sync", "os")
    directory = tmp_path_factory.mktemp("flooded")
    with DaemonProcess(directory, *options, own_interpreter=True) as process:
        yield process
        assert "Traceback" not in process.said()


def work(daemon: DaemonProcess, stop: threading.Event, done: list[int]) -> None:
    """Set, lease and delete jobs until stopped; count them."""
    with closing(SyncClient(daemon.address)) as client:
        while not stop.is_set():
            client.set("pages:1:0:x", "x")
            jobs = client.next("pages")
            client.delete("pages:1:0:x", token=jobs.token)
            done[0] += 1


def test_http_connection_flood_leaves_protocol_clients_alone(daemon: DaemonProcess) -> None:
    stop, done = threading.Event(), [0]
    worker = threading.Thread(target=work, args=(daemon, stop, done))
    worker.start()
    address, connections, files = http_address(daemon), list[socket.socket](), 0
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
                files = max(files, len(os.listdir(f"/proc/{daemon.pid}/fd")))
    finally:
        stop.set()
        worker.join(START_S)
        for connection in connections:
            connection.close()
    assert not worker.is_alive()
    # those that are being closed have a descriptor for a moment too
    assert files < 20 + 3 * HTTP_CONNECTIONS_MAX
    assert get_page(daemon, "/healthz")[:2] == (200, "ok\n")


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
    daemon: DaemonProcess, head: bytes, body: bytes
) -> None:
    answer, sent = b"", 0
    with socket.create_connection(http_address(daemon), START_S) as client:
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
        for line in get_page(daemon, "/metrics")[1].splitlines()
        if line.startswith("process_resident_memory_bytes ")
    )
    assert resident < 200_000_000
