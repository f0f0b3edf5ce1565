"""HTML pages: overview of the daemon, list of domains, one domain, one entry; only read.

No page shows a value, a token of a lease or a secret. Everything that clients sent is escaped
twice: what could disturb a terminal or feign other text (``page_text``), then HTML (Jinja2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from math import ceil

import msgspec
import trio
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fastjournal.client.core.delivery_reasons import order_text, reasons_of
from fastjournal.client.core.stats import EntryExplanation
from fastjournal.limits import KEY_BYTES_MAX, PAGE_DOMAINS_MAX, PAGE_ENTRIES_MAX
from fastjournald.engine.handlers.delivery_state import delivery_state
from fastjournald.engine.handlers.stats import about_daemon, about_domain, about_entry
from fastjournald.observability import page_figures, page_text
from fastjournald.observability.http_app import HTML, Page, PageRequest, PageResponse
from fastjournald.observability.page_access import refusal
from fastjournald.observability.page_figures import Overview
from fastjournald.observability.shared_totals import SharedTotals
from fastjournald.observability.time_slices import TimeSlices
from fastjournald.runtime import Runtime
from fastjournald.tables.domain import Domain

REFRESH_SECONDS = 10
"""Time after which a browser asks for the overview again, or longer where it costs much."""

NAMES = ("overview", "domains", "domain", "entry")
"""Pages. Their tables are includes and no macros: a macro's text is one part, whatever it costs."""

PARTS = ("cells", "domains_table", "entries_table")


class HtmlPages:
    """Pages for people.

    Args:
        runtime: The daemon's parts.
        unready: Returns why the daemon does not take all requests; empty: it does.
        one_at_a_time: Lock that everything shares which is made in slices, `/metrics` too.
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

    def by_path(self) -> Mapping[str, Page]:
        """Return the pages."""
        pages = {
            "/": self._overview,
            "/domains": self._domains,
            "/domain": self._domain,
            "/entry": self._entry,
        }
        return {path: partial(self._allowed, page) for path, page in pages.items()}

    async def _allowed(
        self, page: Callable[[PageRequest], Awaitable[PageResponse]], request: PageRequest
    ) -> PageResponse:
        refused = await refusal(self._context.grants, request)
        if refused is not None:
            return refused
        # so all pages and metrics together have one slice of a turn
        async with self._one_at_a_time:
            return await page(request)

    async def _rendered(
        self, name: str, values: Mapping[str, object], status: HTTPStatus = HTTPStatus.OK
    ) -> PageResponse:
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
        return PageResponse(status, "".join(parts).encode(), HTML)

    def _now(self) -> int:
        return self._runtime.clock.now_us()

    async def _overview(self, request: PageRequest) -> PageResponse:
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

    async def _domains(self, request: PageRequest) -> PageResponse:
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

    async def _domain(self, request: PageRequest) -> PageResponse:
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

    async def _entry(self, request: PageRequest) -> PageResponse:
        key = request.fields.get(b"key", b"")
        store, now = self._context.store, self._now()
        entry = store.find(key) if key else None
        if entry is None and key != key.strip():
            # people paste spaces; the links of the pages hold whole keys, which may end with one
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

    async def _entries_that_begin(self, key: bytes) -> PageResponse:
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
