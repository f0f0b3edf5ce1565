"""HTTP routes of a standby: health says ``standby``, and the metrics its role, epoch and lag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus

import trio
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import Metric

from fastjournal.clock import Clock
from fastjournal.http_server import HttpRequest, HttpResponse, Route, plain
from fastjournal.remote.node import Node
from fastjournald.engine.authorization import Grants
from fastjournald.observability.html_pages import HttpAccess, refusal
from fastjournald.observability.metrics import metrics_text, role_metrics
from fastjournald.observability.process_metrics import process_figures, start_seconds


def standby_routes(
    node: Node, clock: Clock, grants: Grants | None, access: HttpAccess
) -> Mapping[str, Route]:
    """Return the routes of a standby, by path.

    Args:
        node: The node.
        clock: For the age of what it has read.
        grants: Tokens of the daemon; None: clients need none.
        access: Access rules of the address.
    """

    async def healthz(_: HttpRequest) -> HttpResponse:
        return plain(HTTPStatus.OK, f"ok: {node.status}")

    async def unready(_: HttpRequest) -> HttpResponse:
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, node.status)

    async def metrics(request: HttpRequest) -> HttpResponse:
        refused = await refusal(None if access.is_local else grants, request, access)
        if refused is not None:
            return refused
        process = await trio.to_thread.run_sync(process_figures)
        found = [*standby_metrics(node, clock.now_us()), *process.collect(start_seconds())]
        return HttpResponse(HTTPStatus.OK, await metrics_text(found), CONTENT_TYPE_LATEST)

    return {
        "/": Route(unready),
        "/healthz": Route(healthz),
        "/readyz": Route(unready),
        "/metrics": Route(metrics),
    }


def standby_metrics(node: Node, now_us: int) -> Iterator[Metric]:
    """Yield the figures of a standby."""
    reader = node.reader
    if reader.epoch is None:
        yield from role_metrics("standby", 0, 0)
    else:
        lag_us = max(0, now_us - reader.time_us)
        yield from role_metrics("standby", reader.epoch.epoch, lag_us)
