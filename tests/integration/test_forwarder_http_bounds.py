"""Bounds of ``fj-forwarder --http``: clients that hold connections stop nothing."""

from __future__ import annotations

import gzip
import http.client
import os
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path

from fastjournal.limits import FORWARDER_HTTP_CONNECTIONS_MAX, HTTP_HEAD_BYTES_MAX
from fastjournal.spool import Spool
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.test_forwarder_status import PATIENCE_S, forwarding, served, wait_for

HELD = 40
SPARE = 8
"""Descriptors beside HTTP: a slot, a directory, a connection that is closed just now."""


def port_of(directory: Path) -> int:
    said = (directory / "forwarder.err").read_text()
    return int(said.partition("metrics: http://127.0.0.1:")[2].partition("/")[0])


def drip(clients: list[socket.socket]) -> list[socket.socket]:
    """Send a byte of a request line on each connection; return those that are open."""
    still = []
    for client in clients:
        try:
            client.send(b"G")
            still.append(client)
        except OSError:
            client.close()
    return still


def test_connections_that_drip_end_at_their_deadline_and_delay_no_record(tmp_path: Path) -> None:
    spool = tmp_path / "s"
    with (
        Spool(spool) as writer,
        ScriptedDaemon(Ledger().answer) as daemon,
        forwarding(spool, "--server", daemon.address, "--http", "127.0.0.1:0") as process,
    ):
        writer.append(domain="d", id="0")
        wait_for(spool, lambda status: status.done == 1)
        port = port_of(tmp_path)
        descriptors = Path(f"/proc/{process.pid}/fd")
        bound = len(os.listdir(descriptors)) + FORWARDER_HTTP_CONNECTIONS_MAX + SPARE
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(HELD)]
        written, metrics = 1, None
        deadline = time.monotonic() + PATIENCE_S
        while metrics is None:
            assert time.monotonic() < deadline, "no scrape while connections drip"
            clients = drip(clients)
            assert len(os.listdir(descriptors)) <= bound
            writer.append(domain="d", id=str(written))
            written += 1
            wait_for(spool, lambda status: status.done == written)  # noqa: B023 - called at once
            try:
                metrics = served(spool)
            except OSError:
                assert clients, "a scrape was refused though nobody holds a connection"
        assert metrics["fastjournal_forwarder_records_done_total", ""] > 1
        while clients:
            assert time.monotonic() < deadline, "a connection that drips outlives its deadline"
            clients = drip(clients)
            time.sleep(0.1)
    assert "Traceback" not in (tmp_path / "forwarder.err").read_text()


def answer_to(port: int, *parts: bytes) -> bytes:
    """Send these bytes, each part in a packet of its own, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            client.sendall(part)
        answer = b""
        while data := client.recv(65536):
            answer += data
    return answer


def test_http_head_has_one_bound_however_it_is_cut(tmp_path: Path) -> None:
    spool = tmp_path / "s"
    begin = b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\nx: "
    with forwarding(spool, "--server", "127.0.0.1:1", "--http", "127.0.0.1:0"):
        wait_for(spool, lambda status: status.pid)
        port = port_of(tmp_path)
        bound = HTTP_HEAD_BYTES_MAX
        for size, status in ((bound, b"200"), (bound + 1, b"431"), (2 * bound, b"431")):
            head = begin + b"y" * (size - len(begin) - 4) + b"\r\n\r\n"
            for at in (1, len(begin), *range(size - 5, size + 1), bound - 1):
                answer = answer_to(port, head[:at], head[at:])
                assert answer.split(b" ", 2)[1] == status, (size, at)
            dripped = answer_to(port, head[:-40], *(bytes([byte]) for byte in head[-40:]))
            assert dripped.split(b" ", 2)[1] == status, size
        for large in (
            b"GET /" + b"x" * 900_000,
            b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 150_000,
            b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 60_000 + b"\r\n\r\n",
        ):
            assert answer_to(port, large).startswith(b"HTTP/1.1 431 Request Header Fields")
            assert served(spool)["fastjournal_log_lines_dropped_total", ""] == 0
    assert "Traceback" not in (tmp_path / "forwarder.err").read_text()


def test_metrics_have_the_format_and_the_compression_that_a_scraper_asks_for(
    tmp_path: Path,
) -> None:
    spool = tmp_path / "s"
    with forwarding(spool, "--server", "127.0.0.1:1", "--http", "127.0.0.1:0"), ExitStack() as end:
        wait_for(spool, lambda status: status.pid)
        scraper = http.client.HTTPConnection("127.0.0.1", port_of(tmp_path), timeout=PATIENCE_S)
        end.enter_context(closing(scraper))

        def ask(method: str, path: str, **fields: str) -> tuple[int, dict[str, str], bytes]:
            # all on one connection
            scraper.request(method, path, headers=fields)
            response = scraper.getresponse()
            return response.status, dict(response.getheaders()), response.read()

        status, fields, plain = ask("GET", "/metrics")
        assert (status, fields["content-type"].partition(";")[0]) == (200, "text/plain")
        assert b"fastjournal_log_lines_dropped_total 0.0\n" in plain
        status, fields, packed = ask("GET", "/any", **{"Accept-Encoding": "gzip"})
        assert (status, fields["content-encoding"]) == (200, "gzip")
        assert b"fastjournal_log_lines_dropped_total 0.0\n" in gzip.decompress(packed)
        accept = "application/openmetrics-text;version=1.0.0"
        _, fields, text = ask("GET", "/metrics?name[]=none", Accept=accept)
        assert fields["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert text == b"# EOF\n"
        for method in ("POST", "HEAD", "DELETE"):
            status, fields, text = ask(method, "/metrics")
            assert (status, fields["allow"]) == (405, "OPTIONS,GET")
            assert text.startswith(b"# HTTP 405") == (method != "HEAD")
        assert ask("OPTIONS", "/metrics")[::2] == (200, b"")
        assert ask("GET", "/favicon.ico")[::2] == (200, b"")


def test_scraper_that_asked_longest_ago_makes_room_for_the_next_one(tmp_path: Path) -> None:
    spool = tmp_path / "s"
    with forwarding(spool, "--server", "127.0.0.1:1", "--http", "127.0.0.1:0"), ExitStack() as end:
        wait_for(spool, lambda status: status.pid)
        port = port_of(tmp_path)
        silent = [
            end.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
            for _ in range(FORWARDER_HTTP_CONNECTIONS_MAX + 3)
        ]
        for client in silent[:3]:
            assert client.recv(1) == b""
        assert served(spool)["fastjournal_log_lines_dropped_total", ""] == 0
