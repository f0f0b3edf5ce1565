"""LOCK and UNLOCK: every sentence of docs/protocol.md about them, by example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastjournal.protocol.constants import Flag, Function, State, ValueType
from fastjournal.protocol.messages import Reply, Request
from tests.property.subject import SECOND, START, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"
MINE, YOURS = "one", "two"
ONE = b"\1"


def ask(s: Subject, req: Request, session: str) -> Reply:
    return s.ask(req, session)


@pytest.mark.warm_only
@pytest.mark.parametrize("key", [b"", b"k" * 4097])
def test_empty_or_oversize_key_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.lock(key) == "bad-key"
    assert s.unlock(key) == "bad-key"


@pytest.mark.warm_only
def test_lock_of_a_missing_key_is_not_found(s: Subject) -> None:
    assert s.lock(JOB) == "not-found"
    assert s.unlock(JOB) == "not-found"


def write(function: Function, key: bytes = JOB, **fields: Any) -> Request:
    return request(function, key, **{"at": START + 10, **fields})


WRITES = {
    "set": write(Function.SET, value=b"v", flags=Flag.OVERWRITE),
    "set without overwrite": write(Function.SET, value=b"v"),
    "set of a further key": write(Function.SET, URI, value=b"v"),
    "set with its uri": write(Function.SET, OTHER, value=b"v", uri=URI),
    "delete": write(Function.DELETE),
    "delete by a further key": write(Function.DELETE, URI),
    "delete that is stale": write(Function.DELETE, at=1),
    "delete with a token": write(Function.DELETE, flags=Flag.WORKED_ON, timeout=5),
    "add": write(Function.ADD, value=ONE, kind=ValueType.INTEGER),
    "add of another type": write(Function.ADD, value=bytes(4), kind=ValueType.FLOAT),
    "not": write(Function.NOT),
    "truncate": write(Function.TRUNCATE, value=ONE, kind=ValueType.INTEGER),
    "rename": write(Function.RENAME, uri=b"new"),
    "rename to it": write(Function.RENAME, b"free", uri=JOB, flags=Flag.OVERWRITE),
    "rename to a further key": write(Function.RENAME, b"free", uri=URI),
    "link": write(Function.LINK, uri=b"new"),
    "touch": write(Function.TOUCH, ttl=SECOND),
    "touch with a token": write(Function.TOUCH, ttl=SECOND, flags=Flag.WORKED_ON, timeout=5),
    "release": write(Function.RELEASE, flags=Flag.WORKED_ON, timeout=5),
    "bury": write(Function.BURY),
    "bury with a token": write(Function.BURY, flags=Flag.WORKED_ON, timeout=5),
    "kick": write(Function.KICK),
    "lock": write(Function.LOCK),
    "get with a lease": write(Function.GET, timeout=SECOND),
    "get with an expiry": write(Function.GET, timeout=START, flags=Flag.UPDATE_TIMEOUT),
}


def state(s: Subject) -> dict[str, Any]:
    """Return the counts of the daemon, but for those of requests, which always go on."""
    return {name: count for name, count in s.stats().items() if not name.endswith("requests")}


@pytest.mark.warm_only
@pytest.mark.parametrize("wanted", WRITES.values(), ids=WRITES.keys())
def test_writes_of_others_are_locked(s: Subject, wanted: Request) -> None:
    s.set(JOB, ONE, kind=ValueType.INTEGER, uri=URI, at=START)
    s.set(b"free", at=START)
    s.lock(URI, session=MINE)
    before = state(s)
    assert ask(s, wanted, YOURS).code == "locked"
    assert state(s) == before
    assert ask(s, wanted, MINE).code != "locked"
    s.end_session(MINE)
    assert ask(s, wanted, YOURS).code != "locked"


@pytest.mark.parametrize(
    "end",
    [
        lambda s: s.unlock(JOB, MINE),
        lambda s: s.lock(JOB, 0, MINE),
        lambda s: s.later(60 * SECOND),
        lambda s: s.end_session(MINE),
    ],
    ids=["unlock", "a lock of no time", "60 s, if no time is given", "the connection"],
)
def test_lock_ends(s: Subject, end: Callable[[Subject], object]) -> None:
    s.set(JOB, at=START)
    assert s.lock(JOB, session=MINE) == ""
    s.later(1)
    assert s.meta(JOB).state & State.LOCKED
    assert s.lock(JOB, session=YOURS) == "locked"
    end(s)
    assert not s.meta(JOB).state & State.LOCKED
    assert s.unlock(JOB, MINE) == "not-found"
    assert s.lock(JOB, session=YOURS) == ""


@pytest.mark.warm_only
def test_lock_of_no_time_locks_nothing(s: Subject) -> None:
    s.set(JOB)
    assert s.lock(JOB, 0, MINE) == ""
    assert s.unlock(JOB, MINE) == "not-found"


def test_next_leaves_out_what_is_locked_by_anybody_and_says_when_it_ends(s: Subject) -> None:
    s.set(JOB)
    s.lock(JOB, 5 * SECOND)
    reply = s.next()
    assert (reply.pairs, reply.timeout) == ([], s.now + 5 * SECOND)
    assert s.stats(b"a")["delayed"] == 1
    s.later(5 * SECOND)
    assert s.jobs() == [JOB]


def test_kick_of_a_domain_leaves_out_what_another_has_locked(s: Subject) -> None:
    s.set(JOB)
    s.set(OTHER)
    s.bury(JOB)
    s.bury(OTHER)
    s.lock(JOB, session=MINE)
    assert ask(s, request(Function.KICK, uri=b"a", count=5), YOURS).ttl == 1
    assert ask(s, request(Function.KICK, uri=b"a", count=5), MINE).ttl == 1


@pytest.mark.warm_only
def test_connection_has_at_most_1000_locks(s: Subject) -> None:
    with s.checked_once():
        for number in range(1001):
            s.set(b"%d" % number)
        assert {s.lock(b"%d" % number) for number in range(1000)} == {""}
    assert s.lock(b"1000") == "busy"
    assert s.lock(b"1000", 0) == ""
    assert s.lock(b"1") == ""
    assert s.lock(b"1000", session=YOURS) == ""
    s.unlock(b"1")
    assert s.lock(b"1000", session=YOURS) == ""


@pytest.mark.warm_only
def test_lock_precedence_of_errors(s: Subject) -> None:
    s.set(JOB, at=START)
    s.lock(JOB, session=MINE)
    ahead = START + 70 * SECOND
    assert ask(s, write(Function.DELETE, at=ahead), YOURS).code == "clock-skew"
    assert ask(s, write(Function.LINK, uri=None), YOURS).code == "bad-request"
    assert ask(s, write(Function.RENAME, uri=JOB), YOURS).code == "bad-key"


def test_lock_renewal_sets_a_new_end_for_the_holder_only(s: Subject) -> None:
    s.set(JOB, at=START, uri=URI)
    assert s.lock(b"none", renew=True, session=MINE) == "not-found"
    assert s.lock(JOB, SECOND, MINE, renew=True) == "not-owner"
    assert not s.meta(JOB).state & State.LOCKED
    s.lock(JOB, SECOND, MINE)
    assert s.lock(JOB, SECOND, YOURS, renew=True) == "not-owner"
    s.later(SECOND - 1)
    assert s.lock(URI, 5 * SECOND, MINE, renew=True) == ""
    s.later(5 * SECOND - 1)
    assert s.lock(JOB, session=YOURS) == "locked"
    assert s.lock(JOB, 0, MINE, renew=True) == ""
    assert s.lock(JOB, session=YOURS) == ""


@pytest.mark.warm_only
@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("connected", [False, True])
def test_lock_that_has_ended_is_not_renewed(s: Subject, taken: bool, connected: bool) -> None:
    s.set(JOB, at=START)
    s.lock(JOB, SECOND, MINE)
    if connected:
        s.later(SECOND)
    else:
        s.end_session(MINE)
    if taken:
        assert s.lock(JOB, SECOND, YOURS) == ""
        assert s.lock(JOB, SECOND, MINE, renew=True) == "not-owner"
        assert s.unlock(JOB, YOURS) == ""
    assert s.lock(JOB, SECOND, MINE, renew=True) == "not-owner"
    assert s.lock(JOB, SECOND, YOURS) == ""
