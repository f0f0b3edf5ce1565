"""Log-in sessions of the page: cookie, form token (CSRF), and the rights of an access token.

A session of the page is a session of the engine, authenticated by AUTH. So the engine checks the
rights of each request as it does for a connection, and a new file of tokens ends sessions whose
token has changed. The browser has a random identifier in a cookie; no token is kept.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from hmac import compare_digest
from hmac import new as new_hmac
from typing import Final

import trio

from fastjournal.client.core import calls
from fastjournal.http_server import HttpRequest
from fastjournal.limits import (
    AUTH_TOKEN_BYTES_MAX,
    PAGE_SESSION_IDLE_SECONDS,
    PAGE_SESSION_SECONDS,
    PAGE_SESSIONS_MAX,
)
from fastjournal.protocol import decode_reply
from fastjournal.protocol.functions import Right
from fastjournald.engine.authorization import Grant
from fastjournald.engine.engine import Engine

ACTING: Final = Right.WRITE | Right.NEXT | Right.ADMIN
"""Rights of which a log-in needs one: without them all actions are refused."""

_IDENTIFIER = re.compile(rb"[A-Za-z0-9_-]{43}")

WRONG_TOKEN = "The daemon knows no such token. Use one of its file of tokens (--auth-tokens)."
FORM_OVER = "This form is no longer valid: it is of another log-in. Try again from this page."
FOREIGN = "Refused: the request came from another site, or the browser does not say from where."


class PageSession:
    """Session of a browser that has logged in; its own key in the engine."""

    def __init__(self, identifier: str, began: float) -> None:
        self.identifier = identifier
        self.began = self.seen = began
        """On the clock of trio."""
        self.notice = ""
        """Outcome of the last action, shown on the next page."""


class PageSessions:
    """Sessions of all browsers, at most PAGE_SESSIONS_MAX.

    Args:
        engine: Has the rights of tokens.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, PageSession] = {}
        """By identifier, that which was seen longest ago first."""

    def find(self, request: HttpRequest) -> PageSession | None:
        """Return the session of a request, which is seen now; None: nobody has logged in."""
        session = self._sessions.pop(cookie_of(request), None)
        if session is None:
            return None
        now = trio.current_time()
        idle, age = now - session.seen, now - session.began
        is_over = idle > PAGE_SESSION_IDLE_SECONDS or age > PAGE_SESSION_SECONDS
        if is_over or self.grant_of(session) is None:
            self._engine.end_session(session)
            return None
        session.seen = now
        self._sessions[session.identifier] = session
        return session

    def grant_of(self, session: PageSession) -> Grant | None:
        """Return the rights of a session; None: it has none any more."""
        grants = self._engine.context.grants
        return None if grants is None else grants.sessions.get(session)

    def log_in(self, token: bytes, now_us: int) -> PageSession | str:
        """Begin a session with an access token; return it, or what is wrong with the token."""
        session = PageSession(new_identifier(), trio.current_time())
        why_not = WRONG_TOKEN
        if len(token) <= AUTH_TOKEN_BYTES_MAX:
            reply = self._engine.handle(session, calls.auth(token).request, now_us)
            assert isinstance(reply, bytes), "AUTH is answered at once"
            if not decode_reply(reply).error:
                why_not = _lacks_rights(self.grant_of(session))
        if why_not:
            self._engine.end_session(session)
            return why_not
        if len(self._sessions) >= PAGE_SESSIONS_MAX:
            self.log_out(next(iter(self._sessions.values())))
        self._sessions[session.identifier] = session
        return session

    def log_out(self, session: PageSession) -> None:
        """End a session."""
        del self._sessions[session.identifier]
        self._engine.end_session(session)

    def form_token(self, identifier: str) -> str:
        """Return the token of the forms for a browser with this cookie."""
        return new_hmac(self._secret, identifier.encode(), sha256).hexdigest()

    def refusal_of_form(self, request: HttpRequest, token: bytes) -> str:
        """Return why a form is not taken: it is of another site, or of another session."""
        if not _is_own(request):
            return FOREIGN
        identifier = cookie_of(request)
        expected = self.form_token(identifier).encode()
        return "" if identifier and compare_digest(expected, token) else FORM_OVER


def _lacks_rights(grant: Grant | None) -> str:
    if grant is None:
        return WRONG_TOKEN
    if grant.rights & ACTING:
        return ""
    return (
        f"The token {grant.name} can only read. Log in with a token that has the right 'write' "
        "(retry, bury, drop, purge), 'next' or 'admin' (pause, resume); or add the right to it in "
        "the daemon's file of tokens, and reload the daemon (SIGHUP)."
    )


def _is_own(request: HttpRequest) -> bool:
    """Whether a form was sent by a page of this server: the browser says so."""
    site = request.headers.get(b"sec-fetch-site")
    if site is not None:
        return site == b"same-origin"
    scheme = b"https" if request.is_encrypted else b"http"
    host = request.headers.get(b"host", b"")
    return request.headers.get(b"origin") == scheme + b"://" + host


def _cookie_name(request: HttpRequest) -> str:
    """Return the name of the cookie: daemons on several ports of one host share its cookies."""
    port = request.headers.get(b"host", b"").rpartition(b":")[2]
    return f"fastjournald_{port.decode()}" if port.isdigit() else "fastjournald"


def new_identifier() -> str:
    """Return a random identifier of a browser."""
    return secrets.token_urlsafe(32)


def cookie_of(request: HttpRequest) -> str:
    """Return the identifier in the cookie of a request; empty: it has none."""
    wanted = _cookie_name(request).encode()
    for cookie in request.headers.get(b"cookie", b"").split(b";"):
        name, _, value = cookie.strip().partition(b"=")
        if name == wanted and _IDENTIFIER.fullmatch(value):
            return value.decode()
    return ""


def set_cookie(request: HttpRequest, identifier: str) -> tuple[bytes, bytes]:
    """Return the header field that gives a browser an identifier; an empty one removes it."""
    text = f"{_cookie_name(request)}={identifier}; Path=/; HttpOnly; SameSite=Strict"
    if request.is_encrypted:
        text += "; Secure"
    return b"set-cookie", (text if identifier else f"{text}; Max-Age=0").encode()
