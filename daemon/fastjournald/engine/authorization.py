"""Authorization: access tokens, the rights of each token, and the keys and domains they hold for.

Every right is for the prefixes of its token. A domain is inside a prefix that ``<domain>:`` begins
with, so ``crawl`` is for all domains that begin so, and ``crawl:`` for the domain ``crawl`` alone.
A plain key is inside a prefix that it begins with. The entry counts, not the key that leads to it:
an entry is inside where its primary key is. The empty prefix is for everything.

Pure: who reads the file of tokens is ``fastjournald.net.credentials``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final

import msgspec

from fastjournal.keys import parse_journal_key
from fastjournal.protocol import ErrorCode, Flag, Function, Query, Request
from fastjournal.protocol.functions import RequiredRights, Right, Scope
from fastjournald.engine.key_filter import prefix_stop
from fastjournald.engine.next_options import options_of
from fastjournald.engine.store import Store
from fastjournald.tables.entry import Entry

RIGHTS = {str(right.name).lower(): int(right) for right in Right}
"""Names of the rights, as the file of tokens has them."""

AUTH_REQUIRED = f"{ErrorCode.AUTH_REQUIRED} this daemon takes requests after AUTH with a token"
AUTH_FAILED = f"{ErrorCode.AUTH_FAILED} the daemon knows no such token"

_DATA, _LISTEN, _WORKED_ON = int(Flag.DATA), int(Flag.LISTEN), int(Flag.WORKED_ON)
_UPDATE_TIMEOUT = int(Flag.UPDATE_TIMEOUT)
_ADMIN: Final = int(Right.ADMIN)

RULES = {
    int(function): function.declared.access
    for function in Function
    if function.declared.access is not None
}
"""Access rule of every function; a function without a name has none, for it does nothing."""

OPEN = frozenset(map(int, Function)) - RULES.keys()
"""Functions that need neither AUTH nor a right."""


class Grant(msgspec.Struct, frozen=True):
    """Rights and prefixes of one access token; the token itself is not kept."""

    name: str
    digest: bytes
    """SHA-256 of the token."""
    rights: int
    prefixes: tuple[bytes, ...]

    def covers_domain(self, name: bytes) -> bool:
        """Whether a domain is inside; the empty name means all domains."""
        return (name + b":" if name else b"").startswith(self.prefixes)

    def domain_ranges(self) -> list[tuple[bytes, bytes | None]]:
        """Return where the names of the domains inside are: ranges that ascend and do not overlap.

        Each begins with its first name and ends before the second one; None: it has no end.
        """
        ranges: list[tuple[bytes, bytes | None]] = []
        # between "a" and "a:" the one for more domains first
        for prefix in sorted(self.prefixes, key=lambda prefix: (prefix.removesuffix(b":"), prefix)):
            name = prefix.removesuffix(b":")
            if b":" in name or prefix == b":":
                continue
            stop = prefix_stop(name) if name == prefix else name + b"\0"
            if not ranges or (ranges[-1][1] is not None and name >= ranges[-1][1]):
                ranges.append((name, stop))
        return ranges

    def covers_key(self, key: bytes) -> bool:
        """Whether a key is inside, by its own form."""
        # the domain of a journal key, with its colon; a plain key that begins so is inside, too
        if key[: key.find(b":") + 1].startswith(self.prefixes):
            return True
        return key.startswith(self.prefixes) and parse_journal_key(key) is None

    def covers_new(self, key: bytes, uri: bytes | None) -> bool:
        """Whether a SET of this key and URI is inside, if no entry outside has one of them."""
        return self.covers_key(key) and (
            uri is None or parse_journal_key(uri) is None or self.covers_key(uri)
        )

    @property
    def covers_everything(self) -> bool:
        """Whether no key is outside."""
        return b"" in self.prefixes

    def covers(self, entry: Entry) -> bool:
        """Whether an entry is inside."""
        if entry.journal:
            return self.covers_domain(entry.domain.name)
        return entry.key.startswith(self.prefixes)


class Grants:
    """The tokens that a daemon knows, and which sessions have shown one of them.

    Args:
        grants: Grants of different tokens.
    """

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._grants = tuple(grants)
        self.sessions: dict[Hashable, Grant] = {}
        """Session -> grant of its last successful AUTH."""

    def __len__(self) -> int:
        """How many tokens there are."""
        return len(self._grants)

    def find(self, token: bytes) -> Grant | None:
        """Return the grant of a token, in a time that does not depend on the existing tokens."""
        digest = sha256(token).digest()
        found = None
        for grant in self._grants:
            if compare_digest(grant.digest, digest):
                found = grant
        return found

    def adopt(self, old: Grants) -> list[Hashable]:
        """Take over the sessions of the old grants; return those whose rights changed.

        These must authenticate again.
        """
        by_digest = {grant.digest: grant for grant in self._grants}
        changed = []
        for session, grant in old.sessions.items():
            if by_digest.get(grant.digest) == grant:
                self.sessions[session] = grant
            else:
                changed.append(session)
        return changed

    def check(self, store: Store, session: Hashable, request: Request) -> str:
        """Return why a session may not do what it asks for; empty: it may."""
        function = request.function
        if function in OPEN:
            return ""
        grant = self.sessions.get(session)
        if grant is None:
            return AUTH_REQUIRED
        access = RULES.get(function)
        if access is None:
            return ""
        return _CHECKS[access.scope](
            _Asked(store, grant, request), _demanded(access, grant, request)
        )

    def of_run(self, session: Hashable, request: Request) -> Grant | None:
        """Return the grant of a session if it has the rights for a request; None: it has not.

        It has them for all requests of the function that demand the same: with a lease token, or
        without; with LISTEN, or without. Whether what they ask for is inside is not looked at.
        """
        grant, access = self.sessions.get(session), RULES[request.function]
        if grant is None or _demanded(access, grant, request) & ~grant.rights:
            return None
        return grant

    def domain_ranges(self, session: Hashable) -> list[tuple[bytes, bytes | None]]:
        """Return where the names are that lists of domains may show to a session."""
        grant = self.sessions.get(session)
        return [] if grant is None else grant.domain_ranges()

    def covers_everything(self, session: Hashable) -> bool:
        """Whether no key is outside of what a session has shown a token for."""
        grant = self.sessions.get(session)
        return grant is not None and grant.covers_everything

    def may_see(self, session: Hashable, entry: Entry) -> bool:
        """Whether ranges, expressions and notifications may show an entry to a session."""
        grant = self.sessions.get(session)
        return grant is not None and grant.covers(entry)

    def may_see_key(self, session: Hashable, key: bytes) -> bool:
        """Whether a key that may have no entry may be shown to a session."""
        grant = self.sessions.get(session)
        return grant is not None and grant.covers_key(key)


class _Asked:
    """One request against one grant; every method returns why not, or the empty string."""

    def __init__(self, store: Store, grant: Grant, request: Request) -> None:
        self.store = store
        self.grant = grant
        self.request = request

    def right(self, rights: int) -> str:
        """All of these rights."""
        missing = rights & ~self.grant.rights
        for name, right in RIGHTS.items():
            if missing & right:
                return f"{ErrorCode.FORBIDDEN} the token {self.grant.name} lacks the right {name!r}"
        return ""

    def entry(self, rights: int, key: bytes) -> str:
        """These rights for the entry that a key leads to, or where there is none, for the key."""
        entry = self.store.find(key)
        grant = self.grant
        inside = grant.covers_key(key) if entry is None else grant.covers(entry)
        return self.right(rights) or (
            "" if inside else self._outside(rights, _named("the key", key))
        )

    def new(self, rights: int, key: bytes) -> str:
        """These rights for a key that an entry is to have, and for the one that has it."""
        if not self.grant.covers_key(key):
            return self.right(rights) or self._outside(rights, _named("the key", key))
        return self.entry(rights, key)

    def uri(self, rights: int, key: bytes | None) -> str:
        """Check these rights for the entry of a URI; a URI without an entry needs none."""
        if not key:
            return ""
        if parse_journal_key(key) is not None:
            return self.new(rights, key)
        return "" if self.store.find(key) is None else self.entry(rights, key)

    def domain(self, rights: int, name: bytes) -> str:
        """These rights for a domain."""
        inside = self.grant.covers_domain(name)
        what = _named("the domain", name) if name else "all domains together (name a domain)"
        return self.right(rights) or ("" if inside else self._outside(rights, what))

    def prefix(self, rights: int, prefix: bytes) -> str:
        """These rights for all domains whose names begin so."""
        inside = prefix.startswith(self.grant.prefixes)
        return self.right(rights) or (
            "" if inside else self._outside(rights, _named("the `prefix`", prefix))
        )

    def _outside(self, rights: int, what: str) -> str:
        names = " and ".join(repr(name) for name, right in RIGHTS.items() if rights & right)
        return (
            f"{ErrorCode.FORBIDDEN} the token {self.grant.name} has the right {names} for other "
            f"prefixes, not for {what}"
        )


_NAME_CHARACTERS_MAX = 80


def _named(what: str, name: bytes) -> str:
    """Return what a request is about, with its name as text, cut where it is long."""
    text = name[: 4 * _NAME_CHARACTERS_MAX].decode("utf-8", "backslashreplace")
    if len(text) > _NAME_CHARACTERS_MAX:
        text = f"{text[:_NAME_CHARACTERS_MAX]}..."
    return f"{what} {text!r}"


def _demanded(access: RequiredRights, grant: Grant, request: Request) -> int:
    """Return the rights that a request needs."""
    flags = request.flags
    timed = request.timeout is not None
    rights = access.rights
    if access.or_admin and grant.rights & _ADMIN:
        rights = Right.ADMIN
    if access.with_token is not None and (timed or flags & _WORKED_ON):
        # one of them alone is there to prove a lease
        rights = access.with_token
    elif access.with_expiry is not None and timed and flags & _UPDATE_TIMEOUT:
        rights = access.with_expiry
    elif access.with_lease is not None and timed:
        rights = access.with_lease
    return int(rights) | (int(access.with_listen) if flags & _LISTEN else 0)


def _check_key(asked: _Asked, rights: int) -> str:
    return asked.entry(rights, asked.request.key)


def _check_key_and_uri(asked: _Asked, rights: int) -> str:
    request = asked.request
    return asked.new(rights, request.key) or asked.uri(rights, request.second_key)


def _check_key_or_scan(asked: _Asked, rights: int) -> str:
    if asked.request.query != Query.KEY:
        # entries outside are left out of the reply, see ``Grants.may_see``
        return asked.right(rights)
    return asked.entry(rights, asked.request.key)


def _check_two_keys(asked: _Asked, rights: int) -> str:
    request = asked.request
    return asked.entry(rights, request.key) or asked.new(rights, request.second_key or b"")


def _check_domain(asked: _Asked, rights: int) -> str:
    return asked.domain(rights, asked.request.key)


def _check_domain_or_everything(asked: _Asked, rights: int) -> str:
    key = asked.request.key
    return asked.domain(rights if key else _ADMIN, key)


def _check_domains(asked: _Asked, rights: int) -> str:
    """Check the domain in the key, or each domain or the prefix in the value."""
    request = asked.request
    options = options_of(request)
    if request.key or isinstance(options, str) or not options.selects:
        return asked.domain(rights, request.key)
    refusals = (asked.domain(rights, name) for name in options.domains)
    if options.prefix:
        return asked.prefix(rights, options.prefix)
    return next(filter(None, refusals), "")


def _check_key_or_domain(asked: _Asked, rights: int) -> str:
    request = asked.request
    if request.key:
        return asked.entry(rights, request.key)
    return asked.domain(rights, request.second_key or b"")


def _check_names(asked: _Asked, rights: int) -> str:
    """The reply has but the names that are inside, see ``Grant.domain_ranges``."""
    return asked.right(rights)


def _check_key_domain_or_daemon(asked: _Asked, rights: int) -> str:
    request = asked.request
    if request.flags & _DATA:
        return asked.entry(rights, request.key)
    if not request.key and asked.grant.rights & _ADMIN:
        return ""
    return asked.domain(rights, request.key)


def _check_connection(_asked: _Asked, _rights: int) -> str:
    """Allow a request that ends only what the connection itself has begun."""
    return ""


def _check_everything(asked: _Asked, rights: int) -> str:
    return asked.domain(rights, b"")


_CHECKS: dict[Scope, Callable[[_Asked, int], str]] = {
    Scope.KEY: _check_key,
    Scope.KEY_AND_URI: _check_key_and_uri,
    Scope.KEY_OR_SCAN: _check_key_or_scan,
    Scope.TWO_KEYS: _check_two_keys,
    Scope.DOMAIN: _check_domain,
    Scope.DOMAIN_OR_EVERYTHING: _check_domain_or_everything,
    Scope.DOMAIN_OR_ALL: _check_domains,
    Scope.KEY_OR_DOMAIN: _check_key_or_domain,
    Scope.NAMES: _check_names,
    Scope.KEY_DOMAIN_OR_DAEMON: _check_key_domain_or_daemon,
    Scope.CONNECTION: _check_connection,
    Scope.EVERYTHING: _check_everything,
}
