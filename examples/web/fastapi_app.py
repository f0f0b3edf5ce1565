"""FastAPI application: a request hook spools work for each page that a request has changed.

An append is one local write, some microseconds long, so it runs in the event loop. With
``durable=True`` it waits for the disk: then use ``await run_in_threadpool(report, ...)``.
"""

import os
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response

from fastjournal import Spool
from fastjournal.errors import SpoolError

app = FastAPI()
spool = Spool(os.environ.get("FASTJOURNAL_SPOOL", "/var/spool/fastjournal"))
pages: dict[str, str] = {}  # stands for the database


def report(request: Request) -> None:
    """Spool that a page has changed; the newest report of a URI replaces the one that waits."""
    spool.append(domain="pages", uri=str(request.url), value=request.method)


@app.middleware("http")
async def report_changes(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Report each request that has changed something."""
    response = await call_next(request)
    if request.method in ("PUT", "POST", "DELETE") and response.status_code < 400:
        try:
            report(request)
        except SpoolError as error:  # full disk: the change stands, and the client repeats it
            return Response(f"not reported: {error.code}", status_code=503)
    return response


@app.put("/pages/{name}")
async def put_page(name: str, request: Request) -> dict[str, str]:
    """Change a page."""
    pages[name] = (await request.body()).decode()
    return {"changed": name}


@app.get("/pages/{name}")
async def get_page(name: str) -> dict[str, str | None]:
    """Read a page: nothing to report."""
    return {name: pages.get(name)}
