"""Rights and prefixes: what each function needs, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import combinations
from typing import Any, NamedTuple

import msgspec
import pytest

from fastjournal.protocol import (
    ClientConnection,
    ErrorCode,
    Flag,
    Function,
    Query,
    Reply,
    Request,
    decode_reply,
)
from fastjournal.protocol.constants import QUERY_SHIFT, ValueType
from fastjournal.protocol.functions import Scope
from fastjournald.engine.authorization import OPEN, RIGHTS, Grant, Grants
from fastjournald.engine.engine import Engine
from tests.functions import NO_FUNCTION, functions_for
from tests.property.subject import SECOND, START, request

F = Function
READ, WRITE, NEXT, ADMIN = "read", "write", "next", "admin"
TOKEN = b"a-token-of-some-length"

INSIDE = [b"in:1:0:a", b"uri-of-in", b"in:1:0:nothing", b"cfg/plain", b"cfg/nothing", b"cfg/uri"]
"""Keys of a token with the prefixes ``in:`` and ``cfg/``: of entries, URIs, and of nothing."""
OUTSIDE = [
    *(b"out:1:0:a", b"uri-of-out", b"out:1:0:nothing", b"plain", b"nothing", b"cfg/uri-of-out"),
    *(b"inner:1:0:a", b"in", b"cfg:1:0:x"),
]


def engine() -> Engine:
    """An engine with an entry in ``in``, one in ``out``, and two that are plain."""
    made = Engine()
    for key, uri in (
        (b"in:1:0:a", b"uri-of-in"),
        (b"out:1:0:a", b"uri-of-out"),
        (b"out:1:0:b", b"cfg/uri-of-out"),
        (b"cfg/plain", b"cfg/uri"),
        (b"plain", b"uri-of-plain"),
        (b"inner:1:0:a", b"uri-of-inner"),
    ):
        made.handle("s", request(F.SET, key, b"v", uri=uri, at=START), START)
    return made


def session_with(made: Engine, rights: tuple[str, ...], *prefixes: bytes) -> None:
    """Let the session "s" have shown a token of these rights."""
    bits = sum(RIGHTS[right] for right in rights)
    made.context.grants = Grants([Grant("t", sha256(TOKEN).digest(), bits, prefixes)])
    assert told(made, request(F.AUTH, value=TOKEN, at=START)).code == ""


def told(made: Engine, asked: Request, *, session: str = "s", now: int = START) -> Reply:
    """Return the decoded reply to a request."""
    return decode_reply(made.handle(session, asked, now))


def code(made: Engine, asked: Request) -> str:
    """Return the code of the check alone: not every function has to find something to do."""
    assert made.context.grants is not None
    return made.context.grants.check(made.store, "s", asked).partition(" ")[0]


class Case(NamedTuple):
    """A form of a function, and all the rights it needs."""

    rights: set[str]
    function: Function
    build: Callable[[Function, bytes], Request]


def by_key(flags: int = 0, **fields: Any) -> Callable[[Function, bytes], Request]:
    return lambda function, key: request(function, key, flags=flags, at=START, **fields)


TOKEN_FLAGS = {"flags": int(Flag.WORKED_ON), "timeout": START + SECOND}
BY_KEY = {
    "SET": Case({WRITE}, F.SET, by_key(value=b"v")),
    "SET with LISTEN": Case({WRITE, READ}, F.SET, by_key(Flag.LISTEN, value=b"v")),
    "GET": Case({READ}, F.GET, by_key(Flag.DATA)),
    "GET with LISTEN": Case({READ}, F.GET, by_key(Flag.LISTEN)),
    "GET of a lease": Case({NEXT}, F.GET, by_key(timeout=SECOND)),
    "GET of a lease with LISTEN": Case({NEXT, READ}, F.GET, by_key(Flag.LISTEN, timeout=SECOND)),
    "GET of a new expiry": Case({READ, WRITE}, F.GET, by_key(Flag.UPDATE_TIMEOUT, timeout=0)),
    "DELETE": Case({WRITE}, F.DELETE, by_key()),
    "DELETE of a lease": Case({NEXT}, F.DELETE, by_key(**TOKEN_FLAGS)),
    "ADD": Case({WRITE}, F.ADD, by_key(Flag.OVERWRITE, value=b"\1")),
    "NOT": Case({WRITE}, F.NOT, by_key()),
    "TRUNCATE": Case({WRITE}, F.TRUNCATE, by_key(value=b"\1")),
    "LOCK": Case({WRITE}, F.LOCK, by_key()),
    "UNLOCK": Case({WRITE}, F.UNLOCK, by_key()),
    "RENAME from": Case({WRITE}, F.RENAME, by_key(uri=b"in:1:0:new")),
    "RENAME to": Case({WRITE}, F.RENAME, lambda f, key: by_key(uri=key)(f, b"in:1:0:a")),
    "LINK from": Case({WRITE}, F.LINK, by_key(uri=b"in:1:0:new")),
    "LINK to": Case({WRITE}, F.LINK, lambda f, key: by_key(uri=key)(f, b"in:1:0:a")),
    "RELEASE": Case({NEXT}, F.RELEASE, by_key(**TOKEN_FLAGS)),
    "TOUCH": Case({WRITE}, F.TOUCH, by_key(ttl=SECOND)),
    "TOUCH of a lease": Case({NEXT}, F.TOUCH, by_key(ttl=SECOND, **TOKEN_FLAGS)),
    "BURY": Case({WRITE}, F.BURY, by_key()),
    "BURY of a lease": Case({NEXT}, F.BURY, by_key(**TOKEN_FLAGS)),
    "KICK": Case({WRITE}, F.KICK, by_key()),
    "STATS of an entry": Case({READ}, F.STATS, by_key(Flag.DATA)),
}
BY_DOMAIN = {
    "NEXT": Case({NEXT}, F.NEXT, by_key()),
    "NEXT that waits": Case({NEXT}, F.NEXT, by_key(Flag.LISTEN)),
    "NEXT that deletes": Case({NEXT}, F.NEXT, by_key(Flag.OVERWRITE)),
    "PAUSE": Case({NEXT}, F.PAUSE, by_key(ttl=SECOND)),
    "STATS of a domain": Case({READ}, F.STATS, by_key()),
    "STATS of its dead letters": Case({READ}, F.STATS, by_key(count=0)),
    "KICK of a domain": Case({WRITE}, F.KICK, lambda f, name: by_key(uri=name)(f, b"")),
}
FOR_ALL = {
    "NEXT of any domain": Case({NEXT}, F.NEXT, by_key()),
    "STATS of the daemon": Case({READ}, F.STATS, by_key()),
    "PAUSE of everything": Case({ADMIN}, F.PAUSE, by_key(ttl=SECOND)),
    "SNAPSHOT": Case({ADMIN}, F.SNAPSHOT, by_key()),
    "REMOTE": Case({ADMIN}, F.REMOTE, by_key()),
}
FREE = (F.NOP, F.QUIT, F.AUTH)


def in_tables() -> set[Function]:
    return {case.function for table in (BY_KEY, BY_DOMAIN, FOR_ALL) for case in table.values()}


def as_declared(*scopes: Scope) -> dict[str, Case]:
    """Cases of the functions that no table has, by what is declared of them."""
    return {
        function.name: Case(
            {str(right.name).lower() for right in access.rights}, function, by_key(ttl=SECOND)
        )
        for function in functions_for(*scopes)
        if function not in TOLD and (access := function.declared.access)
    }


TOLD = in_tables()
BY_KEY |= as_declared(Scope.KEY)
BY_DOMAIN |= as_declared(Scope.DOMAIN, Scope.DOMAIN_OR_ALL)
FOR_ALL |= as_declared(Scope.DOMAIN_OR_ALL, Scope.EVERYTHING)
LISTED = as_declared(Scope.NAMES)
SCANS = {
    "RANGE": request(F.GET, b"a", uri=b"z", at=START),
    "REGEX": request(F.GET, b".", flags=Query.REGEX << QUERY_SHIFT, at=START),
    "CURSOR": request(F.GET, b"x", flags=Query.CURSOR << QUERY_SHIFT, at=START),
}


def subsets() -> Iterator[tuple[str, ...]]:
    for size in range(len(RIGHTS) + 1):
        yield from combinations(RIGHTS, size)


def test_tables_cover_every_function() -> None:
    listed = {case.function for case in LISTED.values()}
    assert in_tables() | listed | {*FREE, F.CANCEL} == set(Function)
    assert set(FREE) == OPEN


@pytest.mark.parametrize("name", BY_KEY)
def test_function_needs_its_rights_for_the_key_and_for_what_it_leads_to(name: str) -> None:
    rights, function, build = BY_KEY[name]
    made = engine()
    # a URI is no key that an entry may be given: see the tests of URIs
    inside = (
        INSIDE
        if name not in {"SET", "SET with LISTEN", "RENAME to", "LINK to"}
        else [key for key in INSIDE if key != b"uri-of-in"]
    )
    for given in subsets():
        session_with(made, given, b"in:", b"cfg/")
        for key in inside:
            expected = "" if rights <= set(given) else "forbidden"
            assert code(made, build(function, key)) == expected, (given, key)
        for key in OUTSIDE:
            assert code(made, build(function, key)) == "forbidden", (given, key)
        session_with(made, given, b"")
        for key in (*INSIDE, *OUTSIDE):
            expected = "" if rights <= set(given) else "forbidden"
            assert code(made, build(function, key)) == expected, (given, key)


def test_cancel_needs_auth_and_no_right() -> None:
    made = engine()
    session_with(made, (NEXT,), b"in:")
    cancel = request(F.CANCEL, count=3, identifier=4, at=START)
    assert told(made, cancel, session="stranger").code == ErrorCode.AUTH_REQUIRED
    waits = request(F.NEXT, b"in", flags=Flag.LISTEN, identifier=3, at=START)
    made.handle("s", request(F.NEXT, b"in", at=START), START)
    assert made.handle("s", waits, START) is None
    both = made.handle("s", cancel, START)
    assert isinstance(both, bytes)
    connection = ClientConnection()
    connection.receive_data(both)
    answers = connection.next_events()
    assert [(reply.identifier, reply.code) for reply in answers] == [(3, ""), (4, "")]
    session_with(made, (), b"other:")
    assert code(made, cancel) == ""


@pytest.mark.parametrize("name", BY_DOMAIN)
def test_function_needs_its_rights_for_the_domain(name: str) -> None:
    rights, function, build = BY_DOMAIN[name]
    made = engine()
    for given in subsets():
        session_with(made, given, b"in:", b"some")
        # admin may do to domains what next may
        access = function.declared.access
        assert access is not None
        allowed = rights <= set(given) or (access.or_admin and ADMIN in given)
        expected = "" if allowed else "forbidden"
        for domain in (b"in", b"some", b"something"):
            assert code(made, build(function, domain)) == expected, (given, domain)
        for domain in (b"out", b"inner", b"som"):
            assert code(made, build(function, domain)) == "forbidden", (given, domain)


def test_list_of_names_needs_its_rights_for_any_prefix() -> None:
    made = engine()
    for rights, function, build in LISTED.values():
        for given in subsets():
            for prefixes in ((), (b"in:",), (b"",)):
                session_with(made, given, *prefixes)
                for name in (b"", b"in", b"out"):
                    expected = "" if rights <= set(given) else "forbidden"
                    assert code(made, build(function, name)) == expected, (given, name)


@pytest.mark.parametrize("name", FOR_ALL)
def test_rights_about_everything_need_the_empty_prefix(name: str) -> None:
    rights, function, build = FOR_ALL[name]
    made = engine()
    for given in subsets():
        for prefixes in ((b"in:",), (b"in:", b"out", b"cfg/"), (b"",), (b"in", b"")):
            session_with(made, given, *prefixes)
            allowed = rights <= set(given) and b"" in prefixes
            if function == F.STATS and ADMIN in given:
                allowed = True
            assert code(made, build(function, b"")) == ("" if allowed else "forbidden")


def test_next_of_all_domains_by_a_token_of_some_asks_to_name_one() -> None:
    made = engine()
    session_with(made, (NEXT,), b"in:")
    assert "name a domain" in told(made, request(F.NEXT, at=START)).error


@pytest.mark.parametrize("name", SCANS)
def test_scan_needs_the_right_to_read_and_shows_what_is_inside(name: str) -> None:
    made = engine()
    for given in subsets():
        session_with(made, given, b"in:", b"cfg/")
        assert code(made, SCANS[name]) == ("" if READ in given else "forbidden")
    shown = {entry.key for entry in made.store if made.context.may_see("s", entry)}
    assert shown == {b"in:1:0:a", b"cfg/plain"}
    assert not any(made.context.may_see("somebody", entry) for entry in made.store)
    made.context.grants = None
    assert all(made.context.may_see("somebody", entry) for entry in made.store)


@pytest.mark.parametrize("function", Function)
def test_auth_is_needed_for_all_but_functions_without_a_token(function: Function) -> None:
    made = engine()
    made.context.grants = Grants([Grant("t", sha256(TOKEN).digest(), 15, (b"",))])
    before = made.store.entries
    reply = told(made, request(function, b"in:1:0:a", at=START + 1))
    assert (reply.code == ErrorCode.AUTH_REQUIRED) == (function not in FREE)
    if function not in FREE:
        assert made.counters.errors[int(function), ErrorCode.AUTH_REQUIRED] == 1
    assert made.store.entries == before


def test_function_without_a_name_is_answered_after_auth_only() -> None:
    made = engine()
    made.context.grants = Grants([Grant("t", sha256(TOKEN).digest(), 0, (b"",))])
    for expected in ("auth-required", "unknown-function"):
        assert told(made, request(NO_FUNCTION, at=START)).code == expected
        made.handle("s", request(F.AUTH, value=TOKEN, at=START), START)


URIS = {
    # URI of a SET of in:1:0:new: may it
    b"https://example.org/": True,
    b"uri-of-in": True,
    b"uri-of-out": False,
    b"cfg/uri-of-out": False,
    b"uri-of-plain": False,
    b"plain": False,
    b"in:1:0:other": True,
    b"out:1:0:other": False,
    b"out:1:0:a": False,
}


@pytest.mark.parametrize("uri", URIS)
def test_uri_does_not_reach_into_another_domain(uri: bytes) -> None:
    made = engine()
    session_with(made, (WRITE,), b"in:")
    reply = told(made, request(F.SET, b"in:1:0:new", b"v", uri=uri, at=START + 1))
    assert (reply.code == "forbidden") != URIS[uri]
    assert made.store.find(b"out:1:0:a") is not None


def test_auth_with_a_wrong_token_fails_and_ends_the_rights_of_another() -> None:
    made = engine()
    session_with(made, (READ,), b"")
    get = request(F.GET, b"plain", at=START)
    assert code(made, get) == ""
    for number, wrong in enumerate((b"", TOKEN + b"x", TOKEN[:-1]), 1):
        assert told(made, request(F.AUTH, value=wrong, at=START)).code == "auth-failed"
        assert made.context.auth_failures == {"s": number}
        assert code(made, get) == "auth-required"
    made.end_session("s")
    assert not made.context.auth_failures
    assert made.context.grants is not None
    assert not made.context.grants.sessions


def test_grants_of_a_new_file_end_the_waits_of_those_who_lose_theirs() -> None:
    made = Engine()
    keep, lose = (Grant(name, sha256(name.encode()).digest(), 15, (b"",)) for name in ("k", "l"))
    made.context.grants = Grants([keep, lose])
    for session in ("k", "l"):
        made.handle(session, request(F.AUTH, value=session.encode(), at=START), START)
        waits = request(F.NEXT, b"in", flags=Flag.LISTEN, identifier=7, at=START)
        assert made.handle(session, waits, START) is None
    ended, answers = made.replace_grants(Grants([keep]), START)
    assert ended == ["l"]
    assert [session for session, _ in answers] == ["l"]
    assert decode_reply(answers[0][1]).code == "auth-required"
    assert len(made.waiters) == 1
    made.check()
    less = Grant("k", keep.digest, 4, (b"in:",))
    assert made.replace_grants(Grants([less, lose]), START)[0] == ["k"]


@pytest.mark.parametrize(("prefixes", "shown"), [((b"in:",), ""), ((b"in:", b"out:"), "out:1:0:z")])
def test_authorization_hides_keys_of_other_domains_that_keep_an_entry_from_delivery(
    prefixes: tuple[bytes, ...], shown: str
) -> None:
    made = engine()
    made.handle("s", request(F.NEXT, b"in", at=START), START)
    set_ = request(F.SET, b"out:1:0:z", b"v", uri=b"uri-of-in", at=START + 1)
    made.handle("s", set_, START + 1)
    session_with(made, ("read",), *prefixes)
    asked = request(F.STATS, b"in:1:0:a", flags=Flag.DATA | Flag.META, at=START + 1)
    reply = made.handle("s", asked, START + 1)
    (pair,) = decode_reply(reply).pairs or ()
    assert msgspec.json.decode(pair.value)["superseded_by"] == shown
    assert (b"out:" in reply) == bool(shown)


@pytest.mark.parametrize(("prefixes", "shown"), [((b"in:",), ""), ((b"in:", b"out:"), "out:1:0:z")])
def test_authorization_hides_the_job_of_another_domain_that_took_or_lost_the_uri(
    prefixes: tuple[bytes, ...], shown: str
) -> None:
    made = engine()
    for number, key in enumerate((b"in:1:0:a", b"out:1:0:z", b"in:1:0:b")):
        at = START + number
        made.handle("s", request(F.SET, key, b"v", uri=b"uri-of-in", at=at), at)
    session_with(made, ("read",), *prefixes)
    for key, name in ((b"in:1:0:a", "uri_taken_by"), (b"in:1:0:b", "took_uri_from")):
        asked = request(F.STATS, key, flags=Flag.DATA | Flag.META, at=at)
        (pair,) = decode_reply(made.handle("s", asked, at)).pairs or ()
        assert msgspec.json.decode(pair.value)[name] == shown


@pytest.mark.parametrize(("prefixes", "hidden"), [((b"in:",), True), ((b"in:", b"out:"), False)])
def test_authorization_hides_the_lease_token_of_an_entry_of_another_domain_on_the_uri(
    prefixes: tuple[bytes, ...], hidden: bool
) -> None:
    """The end of a lease is its token: a reader who may not see the entry gets whole seconds."""
    made = engine()
    now = START + 123_456
    set_ = request(F.SET, b"out:1:0:z", b"v", uri=b"shared", at=now)
    made.handle("s", set_, now)
    leasing = request(F.NEXT, b"out", count=3, timeout=60_000_000, at=now)
    made.handle("s", leasing, now)
    leased = made.store.find(b"out:1:0:z")
    token = leased.token
    assert token > now
    assert token % 1_000_000
    made.handle("s", request(F.SET, b"in:1:0:z", b"v", uri=b"shared", at=now + 1), now + 1)
    session_with(made, ("read",), *prefixes)
    reply = made.handle(
        "s", request(F.STATS, b"in:1:0:z", flags=Flag.DATA | Flag.META, at=now + 2), now + 2
    )
    (pair,) = decode_reply(reply).pairs or ()
    facts = msgspec.json.decode(pair.value)
    assert (facts["state"], facts["uri_leased_by"]) == ("delayed", "" if hidden else "out:1:0:z")
    assert (token in facts.values()) == (now in facts.values()) == (not hidden)
    assert 0 <= facts["uri_leased_until_us"] - token < 1_000_000
    assert facts["delayed_until_us"] == facts["uri_leased_until_us"]
    assert 0 <= now - facts["uri_leased_since_us"] < 1_000_000


@pytest.mark.parametrize("rights", [("read",), ("admin",), ("read", "admin")])
@pytest.mark.parametrize("prefixes", [(b"",), (b"in:",), (b"in:", b"out:")])
def test_workers_are_listed_for_a_token_for_everything_only(
    rights: tuple[str, ...], prefixes: tuple[bytes, ...]
) -> None:
    made = engine()
    made.store.leases.name_of = lambda session: f"secret name of {session}"
    made.handle("worker", request(F.NEXT, b"out", timeout=SECOND, at=START), START)
    made.handle("worker", request(F.NEXT, b"none", flags=Flag.LISTEN, at=START), START)
    session_with(made, rights, *prefixes)
    reply = made.handle("s", request(F.STATS, flags=Flag.META, at=START), START)
    assert reply is not None
    assert (b"secret name" in reply) == (prefixes == (b"",))
    answer = decode_reply(reply)
    if prefixes != (b"",) and rights == ("read",):
        assert answer.code == ErrorCode.FORBIDDEN
        return
    (pair,) = answer.pairs or ()
    facts = msgspec.json.decode(pair.value)
    assert facts["entries"] == 6
    assert ("workers" in facts) == ("workers_cut" in facts) == (prefixes == (b"",))


@pytest.mark.parametrize("right", [True, False])
def test_auth_with_another_token_ends_the_waits_of_the_one_before(right: bool) -> None:
    made = engine()
    first, second = (Grant(name, sha256(name.encode()).digest(), 15, (b"",)) for name in ("a", "b"))
    made.context.grants = Grants([first, second])
    made.handle("s", request(F.AUTH, value=b"a", at=START), START)
    assert made.handle("s", request(F.NEXT, b"z", flags=Flag.LISTEN, identifier=7), START) is None
    # the same token again changes nothing
    made.handle("s", request(F.AUTH, value=b"a", at=START), START)
    assert len(made.waiters) == 1
    asked = request(F.AUTH, value=b"b" if right else b"c", identifier=8, at=START)
    reply = made.handle("s", asked, START)
    assert reply is not None
    connection = ClientConnection()
    connection.receive_data(reply)
    assert [(one.identifier, one.code) for one in connection.next_events()] == [
        (7, "auth-required"),
        (8, "" if right else "auth-failed"),
    ]
    assert not made.waiters
    made.check()


@pytest.mark.parametrize("by", [b"b", b"c", None])
def test_lock_by_a_token_ends_when_the_token_counts_no_more(by: bytes | None) -> None:
    made = engine()
    first, second = (Grant(name, sha256(name.encode()).digest(), 15, (b"",)) for name in ("a", "b"))
    made.context.grants = Grants([first, second])

    def ask(session: str, function: Function, key: bytes = b"", **fields: Any) -> str:
        return told(made, request(function, key, at=START, **fields), session=session).code

    for session in ("s", "other"):
        ask(session, F.AUTH, value=b"b" if session == "other" else b"a")
    assert ask("s", F.SET, b"k", value=b"v") == ""
    assert ask("s", F.LOCK, b"k") == ""
    # the same token again changes nothing
    ask("s", F.AUTH, value=b"a")
    assert ask("other", F.DELETE, b"k") == "locked"
    if by is None:
        made.replace_grants(Grants([second]), START)
    else:
        ask("s", F.AUTH, value=by)
    assert ask("other", F.DELETE, b"k") == ""
    made.check()


@pytest.mark.parametrize(
    ("prefixes", "ranges"),
    [
        ((b"",), [(b"", None)]),
        ((b"in:", b"", b"z"), [(b"", None)]),
        ((b"crawl",), [(b"crawl", b"crawm")]),
        ((b"crawl:",), [(b"crawl", b"crawl\0")]),
        ((b"crawl:", b"crawl", b"crawler:", b"cr\xff"), [(b"cr\xff", b"cs"), (b"crawl", b"crawm")]),
        ((b"b:", b"a:", b"\xff\xff"), [(b"a", b"a\0"), (b"b", b"b\0"), (b"\xff\xff", None)]),
        ((b":", b"a:1", b"a::", b"cfg/"), [(b"cfg/", b"cfg0")]),
        ((), []),
    ],
)
def test_domains_of_a_token_are_ranges_of_names(
    prefixes: tuple[bytes, ...], ranges: list[tuple[bytes, bytes | None]]
) -> None:
    grant = Grant("t", b"", 1, prefixes)
    assert grant.domain_ranges() == sorted(ranges)
    for name in (
        b"a",
        b"b",
        b"c",
        b"crawl",
        b"crawler",
        b"crawls",
        b"cr\xff",
        b"cfg/x",
        b"\xff\xff",
    ):
        inside = any(first <= name and (end is None or name < end) for first, end in ranges)
        assert grant.covers_domain(name) == inside, name


BULK_PREFIXES = [(b"",), (b"in:",), (b"in",), (b"in:", b"cfg/"), (b"out:", b"cfg"), (b"i", b"p")]
SETS = [
    request(F.SET, key, b"v", uri=uri, at=START + 1, identifier=number)
    for number, (key, uri) in enumerate(
        (key, uri)
        for key in (b"in:1:0:new", b"in:1:0:other", b"out:1:0:new", b"in", b"cfg/new", b"new")
        for uri in (None, b"uri-of-in", b"uri-of-out", b"cfg/uri-of-out", b"out:1:0:u", b"new/uri")
    )
]


def by_one_and_in_bulk(
    rights: tuple[str, ...], prefixes: tuple[bytes, ...], *asked: Request, leases: bool = False
) -> tuple[list[bytes], list[bytes], int]:
    """Return the replies one by one, those where bulks were tried, and how many of these were."""
    answers: list[list[bytes]] = []
    together = 0
    for bulk in (False, True):
        made = engine()
        if leases:
            made.handle("s", request(F.NEXT, count=100, timeout=SECOND, at=START), START)
        session_with(made, rights, *prefixes)
        replies: list[bytes] = []
        while len(replies) < len(asked):
            rest = list(asked[len(replies) :])
            done = made.handle_bulk("s", rest, START + 1) if bulk else []
            together += len(done)
            reply = b"" if done else made.handle("s", rest[0], START + 1)
            assert isinstance(reply, bytes)
            replies += done or [reply]
        made.check()
        answers.append(replies)
    return answers[0], answers[1], together


@pytest.mark.parametrize("prefixes", BULK_PREFIXES, ids=repr)
@pytest.mark.parametrize("rights", [(WRITE,), (NEXT, READ, ADMIN)], ids=repr)
def test_sets_in_bulk_have_the_rights_of_each(
    rights: tuple[str, ...], prefixes: tuple[bytes, ...]
) -> None:
    together = 0
    for shift in range(len(SETS)):
        alone, bulk, number = by_one_and_in_bulk(rights, prefixes, *SETS[shift:], *SETS[:shift])
        assert alone == bulk
        together += number
    assert bool(together) == (WRITE in rights)


@pytest.mark.parametrize("prefixes", BULK_PREFIXES, ids=repr)
@pytest.mark.parametrize("rights", [(NEXT,), (WRITE, READ, ADMIN)], ids=repr)
def test_completions_in_bulk_have_the_rights_of_each(
    rights: tuple[str, ...], prefixes: tuple[bytes, ...]
) -> None:
    made = engine()
    token = told(made, request(F.NEXT, count=100, timeout=SECOND, at=START)).timeout
    keys = [b"in:1:0:a", b"uri-of-out", b"inner:1:0:a", b"cfg/uri-of-out", b"out:1:0:b", b"plain"]
    done = [request(F.DELETE, key, flags=Flag.WORKED_ON, timeout=token, at=START) for key in keys]
    together = 0
    for shift in range(len(done)):
        alone, bulk, number = by_one_and_in_bulk(
            rights, prefixes, *done[shift:], *done[:shift], leases=True
        )
        assert alone == bulk
        together += number
    assert bool(together) == (NEXT in rights)


def test_bulk_before_auth_does_nothing() -> None:
    made = engine()
    session_with(made, (WRITE,), b"")
    assert made.handle_bulk("another", SETS, START + 1) == []
    assert len(made.handle_bulk("s", SETS, START + 1)) == 1


@pytest.mark.parametrize("function", [F.NEXT, F.PEEK])
@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        (b'{"domains":["in"]}', ""),
        (b'{"domains":["in","out"]}', "forbidden"),
        (b'{"prefix":"in/"}', ""),
        (b'{"prefix":"in"}', "forbidden"),
        (b'{"prefix":"i"}', "forbidden"),
        (b'{"domains":[]}', "forbidden"),
        (b"{", "forbidden"),
        (b"{}", "forbidden"),
    ],
)
def test_each_named_domain_and_the_whole_prefix_need_the_right(
    function: Function, value: bytes, refusal: str
) -> None:
    made = engine()
    session_with(made, (NEXT, READ), b"in:", b"in/")
    assert code(made, request(function, value=value, kind=ValueType.STRING)) == refusal


def test_refusal_names_what_it_was_about_and_cuts_long_names() -> None:
    made = engine()
    session_with(made, ("read",), b"crawl:")

    def why(function: F, key: bytes) -> str:
        reply = made.handle("s", request(function, key, at=START), START)
        assert isinstance(reply, bytes)
        return decode_reply(reply).error

    assert why(F.GET, b"mails:1:0:x").endswith("prefixes, not for the key 'mails:1:0:x'")
    assert why(F.STATS, b"mails").endswith("prefixes, not for the domain 'mails'")
    assert why(F.STATS, b"\xffx\n").endswith(r"not for the domain '\\xffx\n'")
    assert len(why(F.STATS, b"\xff" * 4000)) < 600
