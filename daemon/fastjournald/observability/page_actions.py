"""Actions of the page: retry, bury, drop, pause, resume, purge; the log-in that they need.

An action is confirmed on a page that says on how many entries it acts, then sent as a form. It is
carried out as requests of the session, by the engine, which checks the rights, as for a connection.
The answer comes when what it did is as durable as a reply to a client, and is a redirect.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
import trio

from fastjournal.client.core import calls
from fastjournal.http_server import HttpRequest, HttpResponse, query_fields
from fastjournal.limits import (
    AUTH_FAILURE_SECONDS,
    HTTP_HEAD_BYTES_MAX,
    INSTANT_MAX,
    KEY_BYTES_MAX,
    PAGE_ACTION_ENTRIES_MAX,
    PURGE_ENTRIES_MAX,
    REASON_BYTES_MAX,
)
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.protocol import Flag, Function, Reply, Request, decode_reply
from fastjournald.observability import failing, page_text
from fastjournald.observability.domain_totals import TimeSlices
from fastjournald.observability.failing import Selection
from fastjournald.observability.page_sessions import (
    PageSession,
    PageSessions,
    cookie_of,
    new_identifier,
    set_cookie,
)
from fastjournald.runtime import Runtime
from fastjournald.tables.entry import Entry, EntryState
from fastjournald.tables.value_cache import Missing, Unreadable

LOG = logging.getLogger("fastjournald")

AGES: Final = {"": 0, "1h": 3600, "1d": 86_400, "7d": 7 * 86_400}
"""Ages of entries by which lists can be filtered, in seconds."""

PAUSES: Final = {
    "10m": ("10 minutes", 600),
    "1h": ("an hour", 3600),
    "1d": ("a day", 86_400),
    "always": ("until it is resumed", INSTANT_MAX // page_text.SECOND_US),
}
"""Lengths of a pause, in seconds."""

_STATES: Final = {
    failing.BURIED: (EntryState.BURIED,),
    failing.RETRYING: (EntryState.READY, EntryState.DELAYED),
    failing.WAITING: (EntryState.READY, EntryState.DELAYED),
    failing.BACK_OFF: (EntryState.DELAYED,),
}
_MEANT: Final = {
    failing.BURIED: ("retry", "drop"),
    failing.RETRYING: ("bury", "drop"),
    failing.WAITING: ("bury", "drop"),
    failing.BACK_OFF: ("retry",),
}
"""Actions on all entries of a state."""

_RETRY_LEASE_SECONDS = 60
"""Lease of a retry of what is delayed; it ends at once, by a release."""

ON_ENTRIES: Final[dict[str, tuple[str, Callable[[bytes, str], Request]]]] = {
    "retry": ("retried", lambda key, _: calls.kick(key).request),
    "bury": ("buried", lambda key, reason: calls.bury(key, reason=reason).request),
    "drop": ("dropped", lambda key, _: calls.delete(key).request),
}
"""Actions on one entry, or on all that pass a filter; each with what it did."""

ON_DOMAINS: Final = ("pause", "resume", "purge")
"""Actions on one domain; the first two on everything, too, where none is named."""

Fetch = Callable[[Missing], Awaitable[Unreadable]]
Render = Callable[..., Awaitable[HttpResponse]]


class Target(msgspec.Struct, frozen=True):
    """What an action is for: an entry, a domain, everything, or entries that pass a filter."""

    action: str
    key: bytes = b""
    domain: bytes | None = None
    selection: Selection | None = None
    older: str = ""

    @classmethod
    def of(cls, fields: Mapping[bytes, bytes]) -> Target | None:
        """Return what a query names; None: nothing that there is."""
        action = fields.get(b"do", b"").decode("ascii", "replace")
        key, domain = fields.get(b"key", b""), fields.get(b"domain") or None
        if max(len(key), len(domain or b"")) > KEY_BYTES_MAX:
            return None
        if action in ON_DOMAINS:
            is_valid = domain is not None or action != "purge"
            return cls(action, domain=domain) if is_valid else None
        if action not in ON_ENTRIES:
            return None
        if key:
            return cls(action, key=key)
        state = fields.get(b"state", b"").decode("ascii", "replace")
        older = fields.get(b"older", b"").decode("ascii", "replace")
        if action not in _MEANT.get(state, ()) or older not in AGES:
            return None
        error = fields.get(b"error", b"").decode("utf-8", "replace") or None
        older_us = AGES[older] * page_text.SECOND_US
        selection = Selection(state, domain, error, older_us, part_of(fields))
        return cls(action, domain=domain, selection=selection, older=older)

    def fields(self) -> dict[str, bytes]:
        """Return the fields that name it."""
        selection = self.selection
        named = {"do": self.action.encode(), "key": self.key, "domain": self.domain or b""}
        if selection is not None:
            named |= {
                "state": selection.state.encode(),
                "error": (selection.error or "").encode(),
                "older": self.older.encode(),
                "part": selection.part.encode(),
            }
        return {name: value for name, value in named.items() if value}

    @property
    def path(self) -> str:
        """The page that asks for its confirmation."""
        return f"/act?{urlencode(self.fields())}"

    @property
    def back(self) -> str:
        """The page that shows what it has done."""
        if self.key:
            return f"/entry?key={quote(self.key, safe='')}"
        if self.selection is not None and self.selection.state != failing.WAITING:
            return f"/failing?domain={quote(self.domain or b'', safe='')}"
        return f"/domain?name={quote(self.domain, safe='')}" if self.domain else "/?refresh=0"

    @property
    def sentence(self) -> str:
        """What it is for, in words."""
        if self.key:
            return f"the entry {page_text.short(self.key)}"
        where = (
            "all domains" if self.domain is None else f"the domain {page_text.short(self.domain)}"
        )
        selection = self.selection
        if selection is None:
            return "everything" if self.domain is None else where
        words = {
            failing.BURIED: "dead letters",
            failing.RETRYING: "entries that failed and are tried again",
            failing.WAITING: "waiting entries",
            failing.BACK_OFF: "entries that failed and wait for their next attempt",
        }
        error = f", which failed with: {selection.error}" if selection.error else ""
        error += f", with this in the error: {selection.part}" if selection.part else ""
        older = f", set {self.older} ago or longer" if self.older else ""
        return f"{words[selection.state]} of {where}{older}{error}"


def part_of(fields: Mapping[bytes, bytes]) -> str:
    """Return the part of errors that a query looks for, in lower case; empty: any."""
    return fields.get(b"part", b"")[:REASON_BYTES_MAX].decode("utf-8", "replace").strip().lower()


class Outcome(msgspec.Struct):
    """What an action did."""

    done: int = 0
    refused: int = 0
    error: str = ""
    """Why the first one was refused."""
    is_cut: bool = False
    """There are more: PAGE_ACTION_ENTRIES_MAX are done."""

    def count(self, reply: Reply, number: int) -> None:
        """Count the reply to a request for some entries."""
        if not reply.error:
            self.done += number
            return
        self.refused += 1
        self.error = self.error or reply.error


class PageActions:
    """Handlers of the forms.

    Args:
        runtime: The daemon's parts.
        sessions: Browsers that have logged in.
        fetch: Reads values that are on disk only; returns the reads that failed.
        render: Returns a page, by the request, the name of its template, values and a status.
    """

    def __init__(
        self, runtime: Runtime, sessions: PageSessions, fetch: Fetch, render: Render
    ) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        self._sessions = sessions
        self._fetch = fetch
        self._render = render

    # --- log-in ---------------------------------------------------------------------------------

    async def log_in(self, request: HttpRequest, basic: bytes | None) -> HttpResponse:
        """Show the form of the log-in, or take it.

        Args:
            request: It.
            basic: Token that the browser has sent for the pages; None: none.
        """
        if self._engine.context.grants is None or request.method != "POST":
            return await self._login_page(request, "", HTTPStatus.OK)
        fields = query_fields(request.body)
        why_not = self._sessions.refusal_of_form(request, fields.get(b"form", b""))
        if why_not:
            return await self._login_page(request, why_not, HTTPStatus.FORBIDDEN)
        token = fields.get(b"token", b"").strip() or basic or b""
        session = self._sessions.log_in(token, self._runtime.clock.now_us())
        if isinstance(session, str):
            LOG.info(LogEvent("auth-failed", peer=request.peer, http="log-in of the page"))
            await trio.sleep(AUTH_FAILURE_SECONDS)
            page = await self._login_page(request, session, HTTPStatus.FORBIDDEN)
            return page._replace(headers=(*page.headers, (b"connection", b"close")))
        before = self._sessions.find(request)
        if before is not None:
            self._sessions.log_out(before)
        self._audit(request, session, "log-in", "", Outcome())
        return see_other(_own_path(fields), set_cookie(request, session.identifier))

    async def _login_page(
        self, request: HttpRequest, trouble: str, status: HTTPStatus
    ) -> HttpResponse:
        fields = query_fields(request.body) if request.method == "POST" else request.fields
        identifier = cookie_of(request) or new_identifier()
        values = {
            "trouble": trouble,
            "has_tokens": self._engine.context.grants is not None,
            "form": self._sessions.form_token(identifier),
            "next": _own_path(fields),
        }
        page = await self._render(request, "login", values, status)
        return page._replace(headers=(*page.headers, set_cookie(request, identifier)))

    async def log_out(self, request: HttpRequest) -> HttpResponse:
        """Take the form of the log-out."""
        session = self._sessions.find(request)
        form = query_fields(request.body).get(b"form", b"")
        if session is not None and not self._sessions.refusal_of_form(request, form):
            self._audit(request, session, "log-out", "", Outcome())
            self._sessions.log_out(session)
            return see_other("/", set_cookie(request, ""))
        return see_other("/")

    # --- actions --------------------------------------------------------------------------------

    async def act(self, request: HttpRequest) -> HttpResponse:
        """Show what an action would do, or take the form that confirms it."""
        target = Target.of(request.fields)
        if request.method != "POST":
            return await self._confirmation(request, target, "", HTTPStatus.OK)
        fields = query_fields(request.body)
        session = self._sessions.find(request)
        if session is None:
            return see_other(login_path("" if target is None else target.path))
        why_not = self._sessions.refusal_of_form(request, fields.get(b"form", b""))
        if why_not or target is None:
            return await self._confirmation(request, target, why_not, HTTPStatus.FORBIDDEN)
        reason = fields.get(b"reason", b"").decode("utf-8", "replace").strip()
        length = fields.get(b"for", b"").decode("ascii", "replace")
        outcome = Outcome()
        try:
            await self._carry_out(session, target, reason, length, outcome)
        finally:
            # also where the browser has gone meanwhile
            self._audit(request, session, target.action, target.sentence, outcome)
        session.notice = _notice(target, outcome)
        return see_other(target.path if outcome.is_cut else target.back)

    def may(
        self,
        session: PageSession | None,
        action: str,
        domain: bytes | None = None,
        key: bytes = b"",
        state: str = "",
    ) -> bool:
        """Whether a browser may carry out an action, as the engine checks it.

        Where nobody has logged in it may: the log-in comes first.
        Without a domain and a key the action is for what is inside the prefixes of the token.
        """
        grants, target = self._engine.context.grants, Target(action, key, domain)
        grant = None if session is None else self._sessions.grant_of(session)
        if session is None or grants is None or grant is None:
            return True
        return not any(
            grants.check(self._engine.store, session, request)
            for request in _sample(target, grant.prefixes[0], state)
        )

    async def _confirmation(
        self, request: HttpRequest, target: Target | None, trouble: str, status: HTTPStatus
    ) -> HttpResponse:
        if target is None:
            trouble = (
                trouble or "There is no such action: begin on the page of the entry or domain."
            )
            return await self._render(request, "act", {"target": None, "trouble": trouble}, status)
        values = {
            "target": target,
            "trouble": trouble,
            "login": login_path(target.path),
            "pauses": PAUSES,
            "at_once": PAGE_ACTION_ENTRIES_MAX,
            "is_leased": False,
            "is_back_off": False,
            "reason_max": REASON_BYTES_MAX // 4,
            **await self._scope(target),
        }
        return await self._render(request, "act", values, status)

    async def _scope(self, target: Target) -> dict[str, object]:
        """Return on how many entries an action acts, and whether there may be more."""
        store, now = self._engine.store, self._runtime.clock.now_us()
        if target.selection is not None:
            found = await failing.find(
                self._engine.context, target.selection, "", now, TimeSlices()
            )
            return {"number": found.number, "is_cut": found.is_cut}
        if target.key:
            entry = store.find(target.key)
            is_leased = entry is not None and entry.state == EntryState.LEASED
            is_back_off = entry is not None and waits_for_attempt(entry)
            return {
                "number": int(entry is not None),
                "is_cut": False,
                "is_leased": is_leased,
                "is_back_off": is_back_off,
            }
        domain = store.scheduler.domains.get(target.domain or b"")
        number = 0 if domain is None else domain.entries - domain.worked_on
        return {"number": number, "is_cut": False}

    async def _carry_out(
        self, session: PageSession, target: Target, reason: str, length: str, outcome: Outcome
    ) -> None:
        reason = reason.encode()[:REASON_BYTES_MAX].decode("utf-8", "ignore")
        try:
            if target.selection is not None:
                await self._each(session, target, target.selection, reason, outcome)
            elif target.key:
                await self._act_on(session, target.action, target.key, reason, outcome)
            elif target.action == "purge":
                await self._purge(session, target.domain or b"", outcome)
            else:
                seconds = PAUSES.get(length, PAUSES["1h"])[1] if target.action == "pause" else 0
                ttl = seconds * page_text.SECOND_US
                request = Request(Function.PAUSE, key=target.domain or b"", ttl=ttl)
                outcome.count(await self._ask(session, request), 1)
        finally:
            self._runtime.after_requests(self._runtime.clock.now_us())
        await self._runtime.commit.wait_settled(self._runtime.writer.appended)

    async def _each(
        self,
        session: PageSession,
        target: Target,
        selection: Selection,
        reason: str,
        outcome: Outcome,
    ) -> None:
        """Act on each entry that passes a filter, up to the bound."""
        slices, states = TimeSlices(), _STATES[selection.state]
        for part in selection.parts(self._engine.context):
            for entry in part:
                # others may have changed it while the page gave way
                is_there = entry.state in states and selection.has(
                    entry, self._runtime.clock.now_us()
                )
                if not is_there:
                    continue
                if outcome.done + outcome.refused >= PAGE_ACTION_ENTRIES_MAX:
                    outcome.is_cut = True
                    return
                await self._act_on(session, target.action, entry.key, reason, outcome)
                await slices.give_way()
            self._runtime.after_requests(self._runtime.clock.now_us())
            await slices.give_way()

    async def _act_on(
        self, session: PageSession, action: str, key: bytes, reason: str, outcome: Outcome
    ) -> None:
        """Act on one entry. What waits for its next attempt is leased, and released without it."""
        entry = self._engine.store.find(key)
        if action == "retry" and entry is not None and waits_for_attempt(entry):
            lease = calls.get(entry.key, data=False, lease=_RETRY_LEASE_SECONDS)
            reply = await self._ask(session, lease.request)
            if not reply.error and reply.timeout is not None:
                release = calls.release(entry.key, reply.timeout, delay=0)
                reply = await self._ask(session, release.request)
            outcome.count(reply, 1)
            return
        reply = await self._ask(session, ON_ENTRIES[action][1](key, reason))
        # KICK says on how many it acted
        outcome.count(reply, reply.ttl or 0 if action == "retry" else 1)

    async def _purge(self, session: PageSession, domain: bytes, outcome: Outcome) -> None:
        slices = TimeSlices()
        request = calls.purge(domain, count=PURGE_ENTRIES_MAX).request
        while outcome.done < PAGE_ACTION_ENTRIES_MAX:
            reply = await self._ask(session, request)
            outcome.count(reply, reply.ttl or 0)
            if reply.error or not reply.ttl:
                return
            await slices.give_way()
        outcome.is_cut = True

    async def _ask(self, session: PageSession, request: Request) -> Reply:
        """Carry out a request; wait for room in the log before it, and for values on disk."""
        engine, pressure = self._engine, self._runtime.backpressure
        entry = engine.store.find(request.key) if request.key else None
        size = 0 if entry is None else entry.full_bytes()
        waits = pressure.closed
        if waits:
            await pressure.wait_turn(size)
        try:
            unreadable: Unreadable = {}
            while True:
                now = self._runtime.clock.now_us()
                # the timestamp of an entry may be of a clock that is ahead
                request.timestamp = max(now, 0 if entry is None else entry.timestamp)
                outcome = engine.handle(session, request, now, unreadable)
                if not isinstance(outcome, Missing):
                    break
                unreadable = await self._fetch(outcome)
        finally:
            if waits:
                pressure.turn_over(size)
        assert isinstance(outcome, bytes), "no action waits or scans"
        return decode_reply(outcome)

    def _audit(
        self, request: HttpRequest, session: PageSession, action: str, what: str, outcome: Outcome
    ) -> None:
        grant = self._sessions.grant_of(session)
        LOG.info(
            LogEvent(
                "page-action",
                token="" if grant is None else grant.name,
                peer=request.peer,
                action=action,
                what=Sentence(what),
                done=outcome.done,
                refused=outcome.refused,
                error=Sentence(outcome.error),
            )
        )


def _sample(target: Target, prefix: bytes, state: str) -> list[Request]:
    """Return requests that need the rights of an action."""
    if target.action in ("pause", "resume"):
        return [Request(Function.PAUSE, key=target.domain or b"", ttl=0)]
    if target.action == "purge":
        return [calls.purge(target.domain or b"").request]
    # of a group one entry stands for all: its key decides
    key = target.key or (prefix if target.domain is None else target.domain + b":0:0:x")
    if target.action == "retry" and state != failing.BURIED:
        lease = calls.get(key, data=False, lease=_RETRY_LEASE_SECONDS).request
        return [lease, Request(Function.RELEASE, key=key, timeout=1, flags=int(Flag.WORKED_ON))]
    return [ON_ENTRIES[target.action][1](key, "")]


def waits_for_attempt(entry: Entry) -> bool:
    """Whether an entry has failed and is delayed, so that a retry is sooner."""
    return entry.state == EntryState.DELAYED and entry.extra.attempts > 0


def see_other(path: str, *headers: tuple[bytes, bytes]) -> HttpResponse:
    """Return the answer to a form: the browser gets another page."""
    return HttpResponse(
        HTTPStatus.SEE_OTHER, b"", headers=((b"location", path.encode("ascii")), *headers)
    )


_OWN_PATH = re.compile(r"/(?:(?:act|domains?|entry|failing|workers)(?:\?[!-~]*)?|\?[!-~]*)?")
"""Page of this server, with its query."""


def login_path(following: str) -> str:
    """Return the link of the log-in that leads back to a page of this server."""
    following = quote(following, safe="") if _OWN_PATH.fullmatch(following) else ""
    # a head has a bound, and the bytes of a key may be escaped twice
    return f"/login?next={following}" if 0 < len(following) < HTTP_HEAD_BYTES_MAX // 2 else "/login"


def _own_path(fields: Mapping[bytes, bytes]) -> str:
    """Return the page that follows the log-in: one of this server, as its links name it."""
    path = fields.get(b"next", b"").decode("ascii", "replace")
    return path if _OWN_PATH.fullmatch(path) else "/"


def _notice(target: Target, outcome: Outcome) -> str:
    """Return what was done, in words."""
    if target.action in ("pause", "resume"):
        done = f"{target.action.capitalize()}d {target.sentence}." if outcome.done else ""
    else:
        past = "purged" if target.action == "purge" else ON_ENTRIES[target.action][0]
        entries = "entry" if outcome.done == 1 else "entries"
        done = f"{outcome.done:,} {entries} {past}: {target.sentence}."
    if not outcome.refused:
        return done
    code, _, why = outcome.error.partition(" ")
    refused = f"{outcome.refused:,} refused: {f'{code}: {why}' if why else code}."
    if outcome.error.startswith("forbidden"):
        refused += (
            " Log in with a token that has this right for it, or add the right in the daemon's "
            "file of tokens, and reload the daemon (SIGHUP)."
        )
    return f"{done} {refused}".strip()
