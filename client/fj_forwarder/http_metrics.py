"""Metrics of a forwarder for Prometheus: ``--http HOST:PORT`` serves ``/metrics``.

A thread serves the figures of the last status (``status.json``), with prometheus_client. It shares
nothing else with the forwarder, so a slow client delays no record. Connections are bounded in
number and in time, so clients that hold them take no descriptors from slots.
"""

from __future__ import annotations

import io
import ipaddress
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any, Final, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastjournal.errors import ConfigError
from fastjournal.limits import (
    FORWARDER_HTTP_CONNECTIONS_MAX,
    FORWARDER_HTTP_SECONDS_MAX,
    HTTP_HEAD_BYTES_MAX,
)
from fastjournal.spool.forwarder_status import ForwarderStatus
from fastjournal.stderr_queue import lines_dropped

log = logging.getLogger("fj_forwarder")

_PREFIX: Final = "fastjournal_forwarder_"

_DISCARDED_BYTES_MAX: Final = 1024 * 1024
"""Bytes behind a head that is too large which are read and discarded: a socket that is closed with
unread bytes is reset, and the reset can overtake the answer."""

GAUGES: Final = {
    "pending_records": ("Records that were read and are not done", "pending"),
    "unread_bytes": ("Bytes of slots that were not read so far", "unread_bytes"),
    "in_flight_requests": ("Requests that wait for a reply", "in_flight"),
    "delayed_records": ("Positions of records that wait for their next try", "delayed"),
    "suspect_records": ("Positions of records at which the daemon ends the connection", "suspect"),
    "dead_pieces": ("Pieces in dead/", "dead"),
    "slots": ("Files in the spool", "slots"),
    "left_out_slots": ("Slots that cannot be opened or read", "left_out"),
    "ignored_files": ("Files in the directory that are nothing of a spool", "ignored"),
}
"""Name of a metric to its help text and its field of the status."""


class HttpPlace(NamedTuple):
    """Address of ``--http``."""

    host: str
    port: int


def parse_http_place(text: str) -> HttpPlace:
    """Return the address that ``--http`` names.

    Raises:
        ConfigError: It is no loopback address with a port.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if _is_loopback(host) and port.isascii() and port.isdecimal() and int(port) < 65536:
        return HttpPlace(host, int(port))
    raise ConfigError(
        f"--http {text}: not HOST:PORT with localhost or a loopback address",
        hint="metrics need no token; a reverse proxy on this machine can ask for one",
    )


class ForwarderMetrics(Collector):
    """Collector of metrics: it reads the last status.

    Args:
        latest: Returns it; None: there is none so far.
    """

    def __init__(self, latest: Callable[[], ForwarderStatus | None]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        """Give the metrics of the last status, and of the log."""
        yield CounterMetricFamily(
            "fastjournal_log_lines_dropped",
            "Log lines dropped because standard error took no more.",
            lines_dropped(),
        )
        status = self._latest()
        if status is None:
            return
        for name, (text, field) in GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, text, getattr(status, field))
        yield CounterMetricFamily(
            f"{_PREFIX}records_done", "Records that were answered and erased", status.done
        )
        yield CounterMetricFamily(
            f"{_PREFIX}pieces_buried", "Pieces that went to dead/", status.buried
        )
        connected = GaugeMetricFamily(
            f"{_PREFIX}connected", "Whether this daemon is connected", labels=["server"]
        )
        for server in status.servers:
            connected.add_metric([server], server == status.server)
        yield connected
        oldest_us = status.oldest_pending_us
        age_us = 0 if oldest_us is None else max(0, status.written_us - oldest_us)
        yield GaugeMetricFamily(
            f"{_PREFIX}oldest_pending_seconds", "Age of the oldest pending record", age_us / 1e6
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}status_timestamp_seconds",
            "Instant at which these figures were taken",
            status.written_us / 1e6,
        )


@contextmanager
def serving_metrics(
    place: HttpPlace, latest: Callable[[], ForwarderStatus | None]
) -> Iterator[int]:
    """Serve the metrics until the end of the block; gives the port.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    registry = CollectorRegistry()
    registry.register(ForwarderMetrics(latest))
    ProcessCollector(registry=registry)
    try:
        server = make_server(
            place.host,
            place.port,
            make_wsgi_app(registry),
            _server_class(place.host),
            _Handler,
        )
    except OSError as error:
        raise ConfigError(
            f"--http {place.host}:{place.port}: {error.strerror}", hint="name another port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    log.info("metrics: http://%s:%d/metrics", place.host, server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """Server of metrics: a thread for each of few connections, for a limited time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._ends: dict[Any, float] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it if there are too many."""
        with self._lock:
            admitted = len(self._ends) < FORWARDER_HTTP_CONNECTIONS_MAX
            if admitted:
                self._ends[request] = time.monotonic() + FORWARDER_HTTP_SECONDS_MAX
        if admitted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """End connections whose time is over; ``serve_forever`` calls it twice a second."""
        super().service_actions()
        now = time.monotonic()
        with self._lock:
            for request, end in self._ends.items():
                if end <= now:
                    with suppress(OSError):  # the client was faster
                        request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and make room for the next one."""
        with self._lock:  # the descriptor is not another's while service_actions uses it
            self._ends.pop(request, None)
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failure; a connection that ended early is a usual one."""
        usual = isinstance(sys.exception(), OSError)
        log.log(logging.DEBUG if usual else logging.ERROR, "metrics: request failed", exc_info=True)


class _MetricsServer6(_MetricsServer):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_MetricsServer]:
    return _MetricsServer6 if ":" in host else _MetricsServer


class _Handler(WSGIRequestHandler):
    """Handler that bounds the head of a request, and logs at debug."""

    def handle(self) -> None:
        """Serve a request, or refuse one whose head is too large."""
        received = self.rfile
        head = self._read_head()
        if len(head) > HTTP_HEAD_BYTES_MAX:
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            self.connection.shutdown(socket.SHUT_WR)
            left = _DISCARDED_BYTES_MAX
            while left > 0 and (data := received.read1(_DISCARDED_BYTES_MAX)):
                left -= len(data)
            return
        self.rfile = io.BufferedReader(io.BytesIO(head))
        try:
            super().handle()
        finally:
            self.rfile = received

    def _read_head(self) -> bytes:
        """Return a head up to its end, or one byte more than the bound."""
        head = b""
        while len(head) <= HTTP_HEAD_BYTES_MAX:
            line = self.rfile.readline(HTTP_HEAD_BYTES_MAX - len(head) + 1)
            head += line
            if line in (b"\r\n", b"\n", b""):
                break
        return head

    def log_message(self, format: str, *args: object) -> None:
        """Log a request."""
        log.debug(format, *args)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
