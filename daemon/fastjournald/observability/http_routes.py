"""The pages of --http: is the daemon alive, does it take requests, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST

from fastjournald.observability.http_server import Answer, Page
from fastjournald.observability.metrics import Metrics

if TYPE_CHECKING:
    from fastjournald.server import Server


def pages_of(server: Server) -> Mapping[str, Page]:
    """Return the pages of a daemon, by path."""
    figures = Metrics(server)

    async def metrics() -> Answer:
        return Answer(HTTPStatus.OK, await figures.text(), CONTENT_TYPE_LATEST)

    async def healthz() -> Answer:
        return _state("the log has failed" if server.writer.failed else "")

    async def readyz() -> Answer:
        return _state(server.unready())

    return {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}


def _state(trouble: str) -> Answer:
    if trouble:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n".encode())
    return Answer(HTTPStatus.OK, b"ok\n")
