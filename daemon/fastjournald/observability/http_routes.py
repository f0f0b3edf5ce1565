"""HTTP routes of --http: health, readiness and metrics for programs, pages for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus

import trio
from prometheus_client import CONTENT_TYPE_LATEST

from fastjournal.http_server import HttpRequest, HttpResponse, Route
from fastjournal.limits import CLOCK_STEP_US_MIN
from fastjournald.observability.html_pages import HtmlPages, refusal_of_name
from fastjournald.observability.metrics import Metrics
from fastjournald.runtime import Runtime


def routes_of(runtime: Runtime, unready: Callable[[], str]) -> Mapping[str, Route]:
    """Return the routes of a daemon, by path.

    Args:
        runtime: The daemon's parts.
        unready: Returns why the daemon does not take all requests; empty: it does.
    """
    one_at_a_time = trio.Lock()
    figures = Metrics(runtime, one_at_a_time)

    async def metrics(request: HttpRequest) -> HttpResponse:
        refused = refusal_of_name(request)
        if refused is not None:
            return refused
        return HttpResponse(HTTPStatus.OK, await figures.text(), CONTENT_TYPE_LATEST)

    async def healthz(_: HttpRequest) -> HttpResponse:
        return _state("the log has failed" if runtime.writer.failed else "")

    async def readyz(_: HttpRequest) -> HttpResponse:
        behind_us = runtime.engine.context.behind_us(runtime.clock.now_us())
        note = ""
        if behind_us > CLOCK_STEP_US_MIN:
            note = f", but the clock is {behind_us // 1_000_000} s behind the newest record"
        return _state(unready(), note)

    handlers = {
        "/metrics": metrics,
        "/healthz": healthz,
        "/readyz": readyz,
        **HtmlPages(runtime, unready, one_at_a_time).by_path(),
    }
    return {path: Route(handler) for path, handler in handlers.items()}


def _state(trouble: str, note: str = "") -> HttpResponse:
    """Return the answer to whether all is well; ``note``: what is to be known where it is."""
    if trouble:
        return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n".encode())
    return HttpResponse(HTTPStatus.OK, f"ok{note}\n".encode())
