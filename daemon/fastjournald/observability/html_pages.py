"""HTTP routes: health, readiness and metrics for programs, HTML pages for people.

A browser reaches a loopback address for any site that makes its own name resolve to it (DNS
rebinding), so there the pages and ``/metrics``, which show names, answer to local names alone.
Where clients of the daemon need a token, the pages need one; so does ``/metrics`` where other
machines reach ``--http``. Where clients need a certificate, both need one there. Health is open.

While a primary of a remote log may have a successor, the pages answer 503, as its clients get no
reply. Health and metrics stay: they are about the process.

No page shows a value, a token of a lease or a secret. Texts of clients are escaped twice: control
characters and ambiguous text (``page_text``), then HTML (Jinja2).

There is a page for the daemon, for the list of domains, for one domain, for one entry, for the
workers, and for failing work.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from math import ceil
from typing import NamedTuple

import msgspec
import trio
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from prometheus_client import CONTENT_TYPE_LATEST

from fastjournal.build_info import build_info
from fastjournal.client.core.delivery_reasons import (
    order_text,
    reasons_of,
    took_uri_text,
)
from fastjournal.client.core.stats import EntryExplanation
from fastjournal.http_server import Handler, HttpRequest, HttpResponse, Route, plain
from fastjournal.keys import shown_domain, typed_domain
from fastjournal.limits import (
    AUTH_FAILURE_SECONDS,
    AUTH_TOKEN_BYTES_MAX,
    CLOCK_STEP_US_MIN,
    KEY_BYTES_MAX,
    PAGE_DOMAINS_MAX,
    PAGE_ENTRIES_MAX,
    PAGE_FORM_BYTES_MAX,
    WORKERS_MAX,
)
from fastjournal.loglines import LogEvent
from fastjournal.protocol import Function
from fastjournal.protocol.functions import Right
from fastjournal.sockets import Tcp
from fastjournald.engine.authorization import Grants
from fastjournald.engine.handlers.delivery_state import delivery_state, workers_busy
from fastjournald.engine.handlers.stats import about_daemon, about_domain, about_entry
from fastjournald.observability import failing, page_figures, page_text, rates
from fastjournald.observability.domain_totals import SharedTotals, TimeSlices
from fastjournald.observability.failing import Failing, Selection
from fastjournald.observability.metrics import Metrics
from fastjournald.observability.page_actions import (
    AGES,
    Fetch,
    PageActions,
    login_path,
    part_of,
    waits_for_attempt,
)
from fastjournald.observability.page_figures import Overview
from fastjournald.observability.page_sessions import PageSessions
from fastjournald.observability.rates import Counts, Rates
from fastjournald.runtime import Runtime
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import EntryState
from fastjournald.tables.value_cache import Missing, Unreadable

LOG = logging.getLogger("fastjournald")

HTML = "text/html; charset=utf-8"

NOT_LOCAL = "this page is for local names: open it as http://localhost:PORT/ or 127.0.0.1:PORT"
NEEDS_TOKEN = "this needs a token with the right read and the prefix '': Bearer, or the password"
WRONG_TOKEN = (
    "the token that was sent is wrong: no token of the daemon, or one without the right read and "
    "the prefix ''"
)
NEEDS_CERTIFICATE = "this page needs a client certificate of an authority of --tls-client-ca"

_CHALLENGE = (
    (b"www-authenticate", b'Bearer realm="fastjournald"'),
    (b"www-authenticate", b'Basic realm="fastjournald: token as password"'),
)

REFRESH_SECONDS = 10
"""Interval at which a browser reloads the overview; longer if its walk takes long."""

FIRST_ROWS = 5
"""Groups of errors, and domains that nobody serves, on the overview."""

NAMES = ("overview", "domains", "domain", "entry", "workers", "failing", "login", "act")
"""Pages. Their tables are includes, not macros: a macro is rendered in one part, without yields."""

PARTS = ("cells", "charts", "domains_table", "entries_table", "groups_table")


class HttpAccess(NamedTuple):
    """Access rules of ``--http`` for paths that show names, by its address."""

    is_local: bool = True
    """Only this machine reaches it: ``Host`` is a local name, and ``/metrics`` needs no token."""
    needs_certificate: bool = False
    """Where others reach it, clients show a certificate."""


LOCAL = HttpAccess()


class HtmlPages:
    """Pages for people.

    Args:
        runtime: The daemon's parts.
        unready: Returns why the daemon does not take all requests; empty: it does.
        access: Access rules of the address.
        one_at_a_time: Lock of all work in time slices: the pages and `/metrics`.
        fetch: Reads values that are on disk only, for actions.
    """

    def __init__(
        self,
        runtime: Runtime,
        unready: Callable[[], str],
        access: HttpAccess,
        one_at_a_time: trio.Lock,
        fetch: Fetch,
    ) -> None:
        self._runtime = runtime
        self._context = runtime.engine.context
        self._unready = unready
        self._access = access
        self._one_at_a_time = one_at_a_time
        self._overviews = SharedTotals(self._overview_of_all)
        self._failing = SharedTotals(partial(self._groups, Selection()))
        self.rates = Rates(
            self._counts, lambda: runtime.engine.store.scheduler.job_counts.by_domain
        )
        self._sessions = PageSessions(runtime.engine)
        self._actions = PageActions(runtime, self._sessions, fetch, self._rendered)
        self._build = build_info()
        self._templates = _templates()

    def by_path(self) -> Mapping[str, Handler]:
        """Return the pages."""
        pages = {
            "/": self._overview,
            "/domains": self._domains,
            "/domain": self._domain,
            "/entry": self._entry,
            "/workers": self._workers,
            "/failing": self._failing_work,
        }
        return {path: partial(self._allowed, page) for path, page in pages.items()}

    def forms(self) -> Mapping[str, Handler]:
        """Return the pages that also take forms."""
        pages = {
            "/act": self._actions.act,
            "/login": self._log_in,
            "/logout": self._actions.log_out,
        }
        return {path: partial(self._allowed, page) for path, page in pages.items()}

    async def _allowed(self, page: Handler, request: HttpRequest) -> HttpResponse:
        refused = await refusal(self._context.grants, request, self._access)
        if refused is not None:
            return refused
        if request.method == "POST":
            # it waits for the log, and its work is in slices, too
            return await page(request)
        # one slice of each turn of the event loop for all pages and metrics together
        async with self._one_at_a_time:
            return await page(request)

    async def _log_in(self, request: HttpRequest) -> HttpResponse:
        basic = token_of(request.headers.get(b"authorization", b""))
        return await self._actions.log_in(request, basic)

    async def _rendered(
        self,
        request: HttpRequest,
        name: str,
        values: Mapping[str, object],
        status: HTTPStatus = HTTPStatus.OK,
    ) -> HttpResponse:
        session = self._sessions.find(request)
        grant = None if session is None else self._sessions.grant_of(session)
        at = request.path + (
            f"?{request.query.decode('ascii', 'replace')}" if request.query else ""
        )
        common: dict[str, object] = {
            "login": login_path(at),
            "may": partial(self._actions.may, session),
            "user": "" if grant is None else grant.name,
            "form": "" if session is None else self._sessions.form_token(session.identifier),
            "notice": "" if session is None else session.notice,
            "now": self._now(),
            "build": self._build,
            "unready": self._unready(),
            "paused_until": self._context.store.rules.pauses.everything_until,
            "query": b"",
            "refresh": 0,
        }
        parts, slices = [], TimeSlices()
        for part in self._templates[name].generate({**common, **values}):
            parts.append(part)
            await slices.give_way()
        remote = self._runtime.remote
        if remote is not None:
            # another node may have changed what the page shows (W5)
            remote.test_lease()
            if remote.withheld:
                return plain(HTTPStatus.SERVICE_UNAVAILABLE, self._unready())
        if session is not None:
            session.notice = ""
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
            "paused": store.rules.pauses.domains,
            "rows_max": PAGE_DOMAINS_MAX,
            "refresh": 0 if request.fields.get(b"refresh") == b"0" else self._refresh_seconds(),
            "unserved": await page_figures.rows(context, found.unserved.names(), now),
            "unserved_number": found.unserved_number,
            "groups": (await self._failing.get()).groups[:FIRST_ROWS],
            "series": self.rates.series(),
            "first_rows": FIRST_ROWS,
        }
        return await self._rendered(request, "overview", values)

    async def _overview_of_all(self, slices: TimeSlices) -> Overview:
        return await page_figures.overview(
            self._context, self._now(), slices, self.rates.is_delivered
        )

    async def _groups(self, wanted: Selection, slices: TimeSlices) -> Failing:
        return await failing.groups(self._context, wanted, self._now(), slices)

    def _counts(self, domain: bytes | None) -> Counts | None:
        """Return what became of the jobs of a domain, or of all, since the start."""
        table = self._context.store.scheduler.job_counts
        counts = table.total() if domain is None else table.by_domain.get(domain)
        if counts is None:
            return None
        return Counts(
            0 if domain is not None else self._context.counters.requests[Function.SET],
            counts.waited_us.number,
            counts.completed,
            counts.attempts_failed + counts.leases_lost,
        )

    def _refresh_seconds(self) -> int:
        walks = self._overviews.shared_seconds + self._failing.shared_seconds
        return max(REFRESH_SECONDS, ceil(walks))

    async def _domains(self, request: HttpRequest) -> HttpResponse:
        prefix = typed_domain(request.fields.get(b"q", b"")[:KEY_BYTES_MAX])
        start = request.fields.get(b"from", b"")[:KEY_BYTES_MAX]
        names, following = page_figures.page_of_names(self._context, prefix, start)
        values = {
            "query": prefix,
            "start": start,
            "next": following,
            "rows": await page_figures.rows(self._context, names, self._now()),
            "number": len(self._context.store.scheduler.names),
        }
        return await self._rendered(request, "domains", values)

    async def _domain(self, request: HttpRequest) -> HttpResponse:
        name = request.fields.get(b"name", b"")
        if not name:
            return await self._domains(request)
        store = self._context.store
        domain = store.scheduler.domains.get(name, Domain(name))
        sort = _sort_of(request)
        rows, is_cut = await page_figures.sorted_rows(domain, sort)
        values = {
            "name": name,
            "facts": about_domain(self._context, name, self._now()),
            "leased": page_figures.first_leased(store, domain, PAGE_ENTRIES_MAX),
            **rows,
            "rows_max": PAGE_ENTRIES_MAX,
            "service": page_figures.service_of(self._context, domain, workers_busy(store, name)),
            "series": self.rates.series(name),
            "sort": sort,
            "is_cut": is_cut,
        }
        return await self._rendered(request, "domain", values)

    async def _workers(self, request: HttpRequest) -> HttpResponse:
        context, now = self._context, self._now()
        found = await self._overviews.get()
        rows, is_cut = page_figures.workers(context)
        values = {
            "workers": rows,
            "is_cut": is_cut,
            "working": len(context.store.leases.holding),
            "waiting": len(context.waiters),
            "unserved": await page_figures.rows(context, found.unserved.names(), now),
            "unserved_number": found.unserved_number,
            "leased": await page_figures.entries_of(context, found.leased.names(), leased=True),
            "workers_max": WORKERS_MAX,
        }
        return await self._rendered(request, "workers", values)

    async def _failing_work(self, request: HttpRequest) -> HttpResponse:
        fields, now = request.fields, self._now()
        age = fields.get(b"older", b"").decode("ascii", "replace")
        older_us = AGES.get(age, 0) * page_text.SECOND_US
        domain = fields.get(b"domain") or None
        error = fields.get(b"error", b"").decode("utf-8", "replace") or None
        slices, sort = TimeSlices(), _sort_of(request)
        wanted = Selection(failing.BURIED, domain, error, older_us, part_of(fields))
        values: dict[str, object] = {
            "domain": domain,
            "error": error,
            "older": age,
            "part": wanted.part,
            "ages": AGES,
            "sort": sort,
            "found": {},
        }
        if error is None:
            is_all = wanted == Selection()
            shared = self._failing.get() if is_all else self._groups(wanted, slices)
            found = await shared
            values |= {"groups": found.groups[:PAGE_ENTRIES_MAX], "is_cut": found.is_cut}
            values["number"] = len(found.groups)
        else:
            values |= {"groups": [], "number": 0, "is_cut": False}
            values["found"] = {
                state: await failing.find(
                    self._context,
                    msgspec.structs.replace(wanted, state=state),
                    sort,
                    now,
                    slices,
                )
                for state in (failing.BURIED, failing.RETRYING)
            }
        return await self._rendered(request, "failing", values)

    async def _entry(self, request: HttpRequest) -> HttpResponse:
        key = request.fields.get(b"key", b"")
        store, now = self._context.store, self._now()
        entry = store.find(key) if key else None
        if entry is None and key != key.strip():
            # people paste spaces; links of the pages have whole keys, which may end with a space
            key = key.strip()
            entry = store.find(key) if key else None
        if entry is None:
            return await self._entries_that_begin(request, key)
        facts = about_entry(store, entry, now) | delivery_state(
            self._context, entry, now, lambda _other: True, lambda _key: True
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
            "took_uri": took_uri_text(explanation),
            "row": page_figures.row(entry),
            "keys": entry.all_keys(),
            "retries": entry.state == EntryState.BURIED or waits_for_attempt(entry),
            "journal": entry.journal,
            "domain": about_domain(self._context, entry.domain.name, now),
        }
        return await self._rendered(request, "entry", values)

    async def _entries_that_begin(self, request: HttpRequest, key: bytes) -> HttpResponse:
        store = self._context.store
        found, more = page_figures.entries_that_begin(store, key) if key else ([], False)
        status = HTTPStatus.OK if found or not key else HTTPStatus.NOT_FOUND
        values = {"query": key, "facts": None, "found": found, "more": more}
        return await self._rendered(request, "entry", values, status)


def _sort_of(request: HttpRequest) -> str:
    """Return the order of entries that a request asks for; empty: that of work."""
    sort = request.fields.get(b"sort", b"").decode("ascii", "replace")
    return sort if sort in failing.SORTS else ""


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
        *("explain_command", "kept", "served", "lines", "line"),
    ):
        environment.filters[name] = getattr(page_text, name)
    environment.filters["row"] = page_figures.row
    environment.filters["host"] = shown_domain
    environment.filters["bars"] = rates.bars
    for name in PARTS:
        environment.get_template(f"{name}.html")
    return {name: environment.get_template(f"{name}.html") for name in NAMES}


async def refusal(
    grants: Grants | None, request: HttpRequest, access: HttpAccess
) -> HttpResponse | None:
    """Return why a page is not shown; None: it is.

    A wrong token is answered after a second, as AUTH is, and its connection is closed.

    Args:
        grants: Tokens of the daemon; None: clients need none.
        request: Request, with its header fields.
        access: Access rules of the address.
    """
    refused = _refusal_of_client(request, access)
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
        return _unauthorized(WRONG_TOKEN, (b"connection", b"close"))
    return _unauthorized(NEEDS_TOKEN)


def _refusal_of_client(request: HttpRequest, access: HttpAccess) -> HttpResponse | None:
    """Return why a path with names is not shown to this Host, or without certificate."""
    if access.is_local:
        if not is_local(request.headers.get(b"host", b"")):
            return plain(HTTPStatus.MISDIRECTED_REQUEST, NOT_LOCAL)
    elif access.needs_certificate and not request.is_certified:
        return plain(HTTPStatus.FORBIDDEN, NEEDS_CERTIFICATE)
    return None


def _unauthorized(why: str, *headers: tuple[bytes, bytes]) -> HttpResponse:
    return plain(HTTPStatus.UNAUTHORIZED, why)._replace(headers=(*_CHALLENGE, *headers))


def token_of(field: bytes) -> bytes | None:
    """Return the token in the header field Authorization: of Bearer, or the password of Basic."""
    scheme, _, coded = field.partition(b" ")
    if scheme.lower() == b"bearer":
        return coded.strip()
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


async def _fetch_nothing(missing: Missing) -> Unreadable:
    """Refuse to read values, where a daemon without sockets is looked at."""
    return {entry.job_id: "there is no log" for entry in missing.entries}


def routes_of(
    runtime: Runtime,
    unready: Callable[[], str],
    access: HttpAccess = LOCAL,
    fetch: Fetch = _fetch_nothing,
    nursery: trio.Nursery | None = None,
) -> Mapping[str, Route]:
    """Return the routes of a daemon, by path.

    Args:
        runtime: The daemon's parts.
        unready: Returns why the daemon does not take all requests; empty: it does.
        access: Access rules of the address.
        fetch: Reads values that are on disk only, for actions.
        nursery: For the task that counts minutes; None: the first one does not end.
    """
    one_at_a_time = trio.Lock()
    figures = Metrics(runtime, one_at_a_time)
    pages = HtmlPages(runtime, unready, access, one_at_a_time, fetch)
    if nursery is not None:
        nursery.start_soon(pages.rates.run)

    async def metrics(request: HttpRequest) -> HttpResponse:
        grants = None if access.is_local else runtime.engine.context.grants
        refused = await refusal(grants, request, access)
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
        **pages.by_path(),
    }
    forms = ("GET", "HEAD", "POST"), PAGE_FORM_BYTES_MAX
    return {
        **{path: Route(handler) for path, handler in handlers.items()},
        **{path: Route(handler, *forms) for path, handler in pages.forms().items()},
    }


def _state(trouble: str, note: str = "") -> HttpResponse:
    """Return the answer to whether all is well; ``note``: what is to be known where it is."""
    if trouble:
        return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n".encode())
    return HttpResponse(HTTPStatus.OK, f"ok{note}\n".encode())
