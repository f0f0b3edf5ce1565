"""Django application in one file: a middleware spools work for each page that a request changed.

The middleware encloses the view and its transaction (``ATOMIC_REQUESTS`` is inside), so the change
is committed when it is reported. Within a view: ``transaction.on_commit(lambda: report(request))``.
"""

import os
from collections.abc import Callable

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from fastjournal import Spool
from fastjournal.errors import SpoolError

settings.configure(
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[f"{__name__}.report_changes"],
    ALLOWED_HOSTS=["*"],
    SECRET_KEY=os.environ.get("SECRET_KEY", "for this example only"),
)
spool = Spool(os.environ.get("FASTJOURNAL_SPOOL", "/var/spool/fastjournal"))
pages: dict[str, str] = {}  # stands for the database


def report(request: HttpRequest) -> None:
    """Spool that a page has changed; the newest report of a URI replaces the one that waits."""
    spool.append(domain="pages", uri=request.build_absolute_uri(), value=request.method or "")


def report_changes(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Report each request that has changed something."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if request.method in ("PUT", "POST", "DELETE") and response.status_code < 400:
            try:
                report(request)
            except SpoolError as error:  # full disk: the change stands, and the client repeats it
                return HttpResponse(f"not reported: {error.code}", status=503)
        return response

    return middleware


def page(request: HttpRequest, name: str) -> HttpResponse:
    """Change or read a page."""
    if request.method == "PUT":
        pages[name] = request.body.decode()
    return JsonResponse({name: pages.get(name)})


urlpatterns = [path("pages/<name>", page)]
application = get_asgi_application()
