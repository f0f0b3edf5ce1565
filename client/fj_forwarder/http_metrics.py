"""Metrics of a forwarder for Prometheus: ``--http HOST:PORT`` serves ``/metrics``.

A thread with an event loop of its own serves the figures of the last status (``status.json``), with
prometheus_client. It shares nothing else with the forwarder, so a scrape delays no record, and a
forwarder that waits for a disk answers. ``fastjournal.http_server`` bounds the connections in
number and in time, so clients that hold them take no descriptors from slots.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

import trio
from anyio.from_thread import start_blocking_portal
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastjournal.errors import ConfigError
from fastjournal.http_server import Handler, HttpRequest, HttpResponse, HttpServer, Route, peer_of
from fastjournal.limits import FORWARDER_HTTP_CONNECTIONS_MAX
from fastjournal.sockets import Tcp
from fastjournal.spool.forwarder_status import ForwarderStatus
from fastjournal.stderr_queue import lines_dropped

log = logging.getLogger("fj_forwarder")

_PREFIX: Final = "fastjournal_forwarder_"

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
        replaced = CounterMetricFamily(
            f"{_PREFIX}jobs_replaced",
            "Waiting jobs that records replaced: of the same queue, or by their URI of another one",
            labels=["queue"],
        )
        replaced.add_metric(["same"], status.replaced - status.replaced_elsewhere)
        replaced.add_metric(["another"], status.replaced_elsewhere)
        yield replaced
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
def serving_metrics(place: Tcp, latest: Callable[[], ForwarderStatus | None]) -> Iterator[int]:
    """Serve the metrics until the end of the block; gives the port.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    registry = CollectorRegistry()
    registry.register(ForwarderMetrics(latest))
    ProcessCollector(registry=registry)
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        bound = socket.create_server(place, family=family)
    except OSError as error:
        raise ConfigError(
            f"--http {place.host}:{place.port}: {error.strerror}", hint="name another port"
        ) from error
    port: int = bound.getsockname()[1]
    route = Route(_handler(make_wsgi_app(registry)), methods=None)
    server = HttpServer(
        lambda _path: route, _host_of, connections_max=FORWARDER_HTTP_CONNECTIONS_MAX
    )
    with bound, start_blocking_portal("trio") as portal:
        serving = portal.start_task_soon(_serve, server, bound)
        log.info("metrics: http://%s:%d/metrics", place.host, port)
        try:
            yield port
        finally:
            if not serving.cancel():
                serving.result()  # it ended before: raise why


async def _serve(server: HttpServer, bound: socket.socket) -> None:
    await server.run([trio.SocketListener(trio.socket.from_stdlib_socket(bound))])


def _handler(app: Callable[..., Any]) -> Handler:
    """Return the WSGI application of prometheus_client as a handler.

    It answers each path, with the format and the compression that the header fields ask for.
    """

    async def answer(request: HttpRequest) -> HttpResponse:
        answered: list[tuple[str, list[tuple[str, str]]]] = []
        environ = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query.decode("ascii", "replace"),
        }
        for name in ("accept", "accept-encoding"):
            if (value := request.headers.get(name.encode())) is not None:
                environ[f"HTTP_{name.upper().replace('-', '_')}"] = value.decode("latin-1")
        body = b"".join(app(environ, lambda *given: answered.append(given)))
        [(status, fields)] = answered
        named = {name.lower(): value for name, value in fields}
        content_type = named.pop("content-type", "text/plain")
        headers = tuple((name.encode(), value.encode()) for name, value in named.items())
        return HttpResponse(HTTPStatus(int(status[:3])), body, content_type, headers)

    return answer


def _host_of(stream: trio.SocketStream) -> str:
    host, _, _ = peer_of(stream).rpartition(":")
    return host
