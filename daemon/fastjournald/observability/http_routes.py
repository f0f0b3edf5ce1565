"""HTTP routes: health, readiness and metrics, the pages of --http."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST

from fastjournald.observability.http_server import Answer, Page
from fastjournald.observability.metrics import Metrics
from fastjournald.runtime import Runtime


def pages_of(runtime: Runtime, unready: Callable[[], str]) -> Mapping[str, Page]:
    """Return the pages of a daemon, by path.

    Args:
        runtime: The daemon's parts.
        unready: Returns why the daemon does not take all requests; empty: it does.
    """
    figures = Metrics(runtime)

    async def metrics() -> Answer:
        return Answer(HTTPStatus.OK, await figures.text(), CONTENT_TYPE_LATEST)

    async def healthz() -> Answer:
        return _state("the log has failed" if runtime.writer.failed else "")

    async def readyz() -> Answer:
        return _state(unready())

    return {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}


def _state(trouble: str) -> Answer:
    if trouble:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n".encode())
    return Answer(HTTPStatus.OK, b"ok\n")
