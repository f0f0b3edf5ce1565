"""HTTP routes: health, readiness and metrics for programs, HTML pages for people; only read.

--http listens on loopback. A browser reaches loopback for any site that makes its own name resolve
to it (DNS rebinding), so the pages and ``/metrics``, which show names, answer to local names alone.
Where clients of the daemon need a token, the pages need one as the password.

No page shows a value, a token of a lease or a secret. Texts of clients are escaped twice: control
characters and ambiguous text (``page_text``), then HTML (Jinja2).

There is a page for the daemon, for the list of domains, for one domain and for one entry.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from math import ceil

import msgspec
import trio
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from prometheus_client import CONTENT_TYPE_LATEST

from fastjournal.client.core.delivery_reasons import order_text, reasons_of
from fastjournal.client.core.stats import EntryExplanation
from fastjournal.http_server import Handler, HttpRequest, HttpResponse, Route, plain
from fastjournal.limits import (
    AUTH_FAILURE_SECONDS,
    AUTH_TOKEN_BYTES_MAX,
    CLOCK_STEP_US_MIN,
    KEY_BYTES_MAX,
    PAGE_DOMAINS_MAX,
    PAGE_ENTRIES_MAX,
)
from fastjournal.loglines import LogEvent
from fastjournal.protocol.functions import Right
from fastjournal.sockets import Tcp
from fastjournald.engine.authorization import Grants
from fastjournald.engine.handlers.delivery_state import delivery_state
from fastjournald.engine.handlers.stats import about_daemon, about_domain, about_entry
from fastjournald.observability import page_figures, page_text
from fastjournald.observability.domain_totals import SharedTotals, TimeSlices
from fastjournald.observability.metrics import Metrics
from fastjournald.observability.page_figures import Overview
from fastjournald.runtime import Runtime
from fastjournald.tables.domain import Domain

LOG = logging.getLogger("fastjournald")

HTML = "text/html; charset=utf-8"

NOT_LOCAL = "this page is for local names: open it as http://localhost:PORT/ or 127.0.0.1:PORT"
NEEDS_TOKEN = "this page needs a token with the right read and the prefix '', as the password"

_CHALLENGE = ((b"www-authenticate", b'Basic realm="fastjournald: token as password"'),)

REFRESH_SECONDS = 10
"""Interval at which a browser reloads the overview; longer if its walk takes long."""

NAMES = ("overview", "domains", "domain", "entry")
"""Pages. Their tables are includes, not macros: a macro is rendered in one part, without yields."""

PARTS = ("cells", "domains_table", "entries_table")


class HtmlPages:
    """Pages for people.

    Args:
        runtime: The daemon's parts.
        unready: Returns why the daemon does not take all requests; empty: it does.
        one_at_a_time: Lock of all work in time slices: the pages and `/metrics`.
    """

    def __init__(
        self, runtime: Runtime, unready: Callable[[], str], one_at_a_time: trio.Lock
    ) -> None:
        self._runtime = runtime
        self._context = runtime.engine.context
        self._unready = unready
        self._one_at_a_time = one_at_a_time
        self._overviews = SharedTotals(self._overview_of_all)
        self._version = version("fastjournal")
        self._templates = _templates()

    def by_path(self) -> Mapping[str, Handler]:
        """Return the pages."""
        pages = {
            "/": self._overview,
            "/domains": self._domains,
            "/domain": self._domain,
            "/entry": self._entry,
        }
        return {path: partial(self._allowed, page) for path, page in pages.items()}

    async def _allowed(self, page: Handler, request: HttpRequest) -> HttpResponse:
        refused = await refusal(self._context.grants, request)
        if refused is not None:
            return refused
        # one slice of each turn of the event loop for all pages and metrics together
        async with self._one_at_a_time:
            return await page(request)

    async def _rendered(
        self, name: str, values: Mapping[str, object], status: HTTPStatus = HTTPStatus.OK
    ) -> HttpResponse:
        common = {
            "now": self._now(),
            "version": self._version,
            "unready": self._unready(),
            "query": b"",
            "refresh": 0,
        }
        parts, slices = [], TimeSlices()
        for part in self._templates[name].generate({**common, **values}):
            parts.append(part)
            await slices.give_way()
        return HttpResponse(status, "".join(parts).encode(), HTML)

    def _now(self) -> int:
        return self._runtime.clock.now_us()

    async def _overview(self, request: HttpRequest) -> HttpResponse:
        now, context = self._now(), self._context
        found = await self._overviews.get()
        tables = {
            kind: await page_figures.rows(context, getattr(found, kind).names(), now)
            for kind in ("waiting", "oldest", "held")
        }
        leased = await page_figures.entries_of(context, found.leased.names(), leased=True)
        buried = await page_figures.entries_of(context, found.buried.names(), leased=False)
        store = context.store
        values = {
            **tables,
            "leased": leased,
            "buried": buried,
            "daemon": {**about_daemon(store, now), **context.gauges(now)},
            "limited": len(store.rules.limits),
            "paused": len(store.rules.pauses),
            "rows_max": PAGE_DOMAINS_MAX,
            "refresh": 0 if request.fields.get(b"refresh") == b"0" else self._refresh_seconds(),
        }
        return await self._rendered("overview", values)

    async def _overview_of_all(self, slices: TimeSlices) -> Overview:
        return await page_figures.overview(self._context, self._now(), slices)

    def _refresh_seconds(self) -> int:
        return max(REFRESH_SECONDS, ceil(self._overviews.shared_seconds))

    async def _domains(self, request: HttpRequest) -> HttpResponse:
        prefix = request.fields.get(b"q", b"")[:KEY_BYTES_MAX]
        start = request.fields.get(b"from", b"")[:KEY_BYTES_MAX]
        names, following = page_figures.page_of_names(self._context, prefix, start)
        values = {
            "query": prefix,
            "start": start,
            "next": following,
            "rows": await page_figures.rows(self._context, names, self._now()),
            "number": len(self._context.store.scheduler.names),
        }
        return await self._rendered("domains", values)

    async def _domain(self, request: HttpRequest) -> HttpResponse:
        name = request.fields.get(b"name", b"")
        store = self._context.store
        domain = store.scheduler.domains.get(name, Domain(name))
        values = {
            "name": name,
            "facts": about_domain(self._context, name, self._now()),
            "leased": page_figures.first_leased(store, domain, PAGE_ENTRIES_MAX),
            "buried": page_figures.first_buried(store, domain, PAGE_ENTRIES_MAX),
            "ready": page_figures.rows_of(store, domain.ready),
            "delayed": page_figures.rows_of(store, domain.delayed),
            "rows_max": PAGE_ENTRIES_MAX,
        }
        return await self._rendered("domain", values)

    async def _entry(self, request: HttpRequest) -> HttpResponse:
        key = request.fields.get(b"key", b"")
        store, now = self._context.store, self._now()
        entry = store.find(key) if key else None
        if entry is None and key != key.strip():
            # people paste spaces; links of the pages have whole keys, which may end with a space
            key = key.strip()
            entry = store.find(key) if key else None
        if entry is None:
            return await self._entries_that_begin(key)
        facts = about_entry(store, entry, now) | delivery_state(
            self._context, entry, now, lambda _other: True
        )
        # the instant to the microsecond is the token of the lease
        ends = entry.leased_until // page_text.SECOND_US * page_text.SECOND_US
        facts["worked_on_until"] = facts["lease_ends"] = ends
        explanation = msgspec.json.decode(msgspec.json.encode(facts), type=EntryExplanation)
        values = {
            "query": key,
            "facts": facts,
            "reasons": reasons_of(explanation, shows_token=False),
            "order": order_text(explanation),
            "row": page_figures.row(entry),
            "keys": entry.all_keys(),
            "journal": entry.journal,
            "domain": about_domain(self._context, entry.domain.name, now),
        }
        return await self._rendered("entry", values)

    async def _entries_that_begin(self, key: bytes) -> HttpResponse:
        store = self._context.store
        found, more = page_figures.entries_that_begin(store, key) if key else ([], False)
        status = HTTPStatus.OK if found or not key else HTTPStatus.NOT_FOUND
        values = {"query": key, "facts": None, "found": found, "more": more}
        return await self._rendered("entry", values, status)


def _templates() -> dict[str, Template]:
    """Return the templates, compiled: a request compiles none."""
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("fastjournald.observability"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for name in (
        *("sentence", "shown", "typed", "short", "quoted", "number", "duration", "relative", "utc"),
        "explain_command",
    ):
        environment.filters[name] = getattr(page_text, name)
    for name in PARTS:
        environment.get_template(f"{name}.html")
    return {name: environment.get_template(f"{name}.html") for name in NAMES}


async def refusal(grants: Grants | None, request: HttpRequest) -> HttpResponse | None:
    """Return why a page is not shown; None: it is.

    A wrong token is answered after a second, as AUTH is, and its connection is closed.

    Args:
        grants: Tokens of the daemon; None: clients need none.
        request: Request, with its header fields.
    """
    refused = refusal_of_name(request)
    if refused is not None or grants is None:
        return refused
    token = token_of(request.headers.get(b"authorization", b""))
    if token is not None:
        grant = grants.find(token)
        if grant is not None and grant.covers_everything and grant.rights & Right.READ:
            return None
        LOG.info(
            LogEvent(
                "auth-failed",
                peer=request.peer,
                http="wrong token, or one without read and the prefix ''",
            )
        )
        await trio.sleep(AUTH_FAILURE_SECONDS)
        return _unauthorized((b"connection", b"close"))
    return _unauthorized()


def refusal_of_name(request: HttpRequest) -> HttpResponse | None:
    """Return why a path with names of domains is not shown to this Host; None: it is."""
    if is_local(request.headers.get(b"host", b"")):
        return None
    return plain(HTTPStatus.MISDIRECTED_REQUEST, NOT_LOCAL)


def _unauthorized(*headers: tuple[bytes, bytes]) -> HttpResponse:
    return plain(HTTPStatus.UNAUTHORIZED, NEEDS_TOKEN)._replace(headers=(*_CHALLENGE, *headers))


def token_of(field: bytes) -> bytes | None:
    """Return the password in the header field Authorization, with any user name."""
    scheme, _, coded = field.partition(b" ")
    if scheme.lower() != b"basic" or len(coded) > 2 * AUTH_TOKEN_BYTES_MAX:
        return None
    try:
        return b64decode(coded, validate=True).partition(b":")[2]
    except ValueError:
        return None


def is_local(host: bytes) -> bool:
    """Whether the header field Host names this machine: localhost or a loopback address."""
    name = host.decode("ascii", "replace").lower()
    name = name.partition("]")[0].strip("[") if name.startswith("[") else name.partition(":")[0]
    return Tcp(name, 0).is_loopback


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
