"""Bounds of the page: sessions, their ends, entries of an action, entries and groups of a walk."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
import trio
import trio.testing

from fastjournal.http_server import HttpRequest, HttpResponse
from fastjournal.limits import (
    PAGE_SESSION_IDLE_SECONDS,
    PAGE_SESSION_SECONDS,
    PAGE_SESSIONS_MAX,
)
from fastjournal.protocol import Function
from fastjournald.engine.authorization import RIGHTS, Grant, Grants
from fastjournald.observability import failing, page_actions
from fastjournald.observability.domain_totals import TimeSlices
from fastjournald.observability.failing import Selection
from fastjournald.observability.html_pages import routes_of
from fastjournald.observability.page_sessions import PageSession, PageSessions, set_cookie
from tests.observed_daemon import ObservedDaemon

TOKEN = b"a token of an operator"


@pytest.fixture
def daemon() -> ObservedDaemon:
    daemon = ObservedDaemon()
    for at in range(10):
        daemon.set(b"mails:1:0:%d" % at)
        assert daemon.ask(Function.BURY, b"mails:1:0:%d" % at, value=b"failed for %d" % at) == ""
    grant = Grant("operator", sha256(TOKEN).digest(), sum(RIGHTS.values()), (b"",))
    daemon.engine.context.grants = Grants([grant])
    return daemon


def log_in(sessions: PageSessions) -> PageSession:
    session = sessions.log_in(TOKEN, 0)
    assert isinstance(session, PageSession)
    return session


def request_of(session: PageSession) -> HttpRequest:
    return HttpRequest({}, {b"cookie": b"fastjournald=" + session.identifier.encode()})


async def test_page_session_ends_after_a_time_without_requests_and_in_any_case(
    daemon: ObservedDaemon, mock_clock: trio.testing.MockClock
) -> None:
    sessions = PageSessions(daemon.engine)
    idle, busy = log_in(sessions), log_in(sessions)
    assert daemon.engine.context.grants is not None
    authenticated = daemon.engine.context.grants.sessions
    step = PAGE_SESSION_IDLE_SECONDS - 10
    mock_clock.jump(step)
    assert sessions.find(request_of(busy)) is busy
    mock_clock.jump(20)
    assert sessions.find(request_of(idle)) is None
    assert list(authenticated) == [busy]
    while trio.current_time() - busy.began + step <= PAGE_SESSION_SECONDS:
        assert sessions.find(request_of(busy)) is busy
        mock_clock.jump(step)
    assert sessions.find(request_of(busy)) is busy
    mock_clock.jump(step)
    assert sessions.find(request_of(busy)) is None
    assert not authenticated


async def test_page_sessions_are_bounded_and_the_one_seen_longest_ago_ends(
    daemon: ObservedDaemon,
) -> None:
    sessions = PageSessions(daemon.engine)
    held = [log_in(sessions) for _ in range(PAGE_SESSIONS_MAX)]
    assert sessions.find(request_of(held[0])) is held[0]
    for wrong in (b"", b"wrong", b"x" * 5000):
        assert isinstance(sessions.log_in(wrong, 0), str)
    newest = log_in(sessions)
    assert sessions.find(request_of(held[1])) is None
    assert sessions.find(request_of(held[0])) is held[0]
    assert sessions.find(request_of(newest)) is newest
    assert daemon.engine.context.grants is not None
    assert len(daemon.engine.context.grants.sessions) == PAGE_SESSIONS_MAX
    assert daemon.engine.context.auth_failures == {}


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (b"localhost:9924", b"fastjournald_9924"),
        (b"[::1]:80", b"fastjournald_80"),
        (b"a", b"fastjournald"),
    ],
)
def test_cookie_is_of_the_port_and_secure_by_tls(host: bytes, name: bytes) -> None:
    plain = HttpRequest({}, {b"host": host})
    _, field = set_cookie(plain, "abc")
    assert field == name + b"=abc; Path=/; HttpOnly; SameSite=Strict"
    assert set_cookie(plain._replace(is_encrypted=True), "abc")[1] == field + b"; Secure"


class Browser:
    """Asks handlers, with a cookie."""

    def __init__(self, daemon: ObservedDaemon) -> None:
        self.pages = routes_of(daemon.server.runtime, daemon.server.unready)
        self.headers = {b"host": b"localhost", b"sec-fetch-site": b"same-origin"}
        self.headers[b"authorization"] = b"Bearer " + TOKEN

    async def ask(self, path: str, query: dict[bytes, bytes], body: bytes = b"") -> HttpResponse:
        method = "POST" if body else "GET"
        request = HttpRequest(query, self.headers, method=method, path=path, body=body)
        answer = await self.pages[path].handler(request)
        for field, value in answer.headers:
            if field == b"set-cookie":
                self.headers[b"cookie"] = value.partition(b";")[0]
        return answer

    async def form(self, path: str, query: dict[bytes, bytes]) -> bytes:
        page = await self.ask(path, query)
        return b"form=" + re.findall(rb'name="form" value="(\w+)"', page.body)[-1]


async def test_action_stops_at_its_bound_and_asks_again(
    daemon: ObservedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_actions, "PAGE_ACTION_ENTRIES_MAX", 4)
    daemon.server.runtime.commit.start()
    browser = Browser(daemon)
    assert (await browser.ask("/login", {}, await browser.form("/login", {}))).status == 303
    domain = daemon.engine.store.scheduler.domains[b"mails"]
    query = {b"do": b"retry", b"state": b"buried"}
    for left in (6, 2):
        assert b"4 at a time" in (await browser.ask("/act", query)).body
        answer = await browser.ask("/act", query, await browser.form("/act", query))
        assert dict(answer.headers)[b"location"] == b"/act?do=retry&state=buried"
        assert domain.buried == left
        assert b"4 entries retried" in (await browser.ask("/act", query)).body
    answer = await browser.ask("/act", query, await browser.form("/act", query))
    assert dict(answer.headers)[b"location"] == b"/failing?domain="
    assert domain.buried == 0
    daemon.server.runtime.commit.close()


async def test_walk_stops_at_its_bound_and_tells_no_more_groups_apart(
    daemon: ObservedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, now = daemon.engine.context, daemon.clock.instant_us
    for at in range(300):
        daemon.engine.context.grants = None
        daemon.set(b"bills:1:0:%d" % at)
        key = b"bills:1:0:%d" % at
        assert daemon.ask(Function.BURY, key, value=b"error " + b"abcdefghij"[at % 10 :]) == ""
    found = await failing.groups(context, failing.Selection(), now, TimeSlices())
    assert (len(found.groups), found.is_cut) == (11, False)
    assert sum(group.buried for group in found.groups) == 310
    monkeypatch.setattr(failing, "PAGE_GROUPS_MAX", 3)
    found = await failing.groups(context, failing.Selection(), now, TimeSlices())
    assert found.groups[0].error == failing.OTHERS
    assert (len(found.groups), found.groups[0].buried) == (4, 240)
    monkeypatch.setattr(failing, "PAGE_WALK_MAX", 100)
    cut = await failing.find(context, Selection(), "", now, TimeSlices())
    assert cut.is_cut
    assert 100 <= cut.number < 200
    assert (await failing.groups(context, failing.Selection(), now, TimeSlices())).is_cut
