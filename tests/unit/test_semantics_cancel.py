"""CANCEL: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Reply
from tests.property.subject import SECOND, EngineSubject, Subject, request

JOB = b"a:1:0:x"
OTHER = "two"


def wait(s: Subject, identifier: int, domain: bytes = b"a", session: str = "one") -> None:
    waits = request(Function.NEXT, domain, flags=Flag.LISTEN, identifier=identifier)
    assert s.target.handle(session, waits, s.now) is None


def cancel(s: Subject, count: int | None, session: str = "one") -> Reply:
    return s.ask(request(Function.CANCEL, count=count, identifier=9), session=session)


def answered(s: Subject) -> list[tuple[object, int, str, bool]]:
    """Whom the engine has answered who waited: session, identifier, code, whether with work."""
    served = s.target.serve_waiters(s.now)
    return [(one, told.identifier, told.code, bool(told.pairs)) for one, told in served]


@pytest.mark.rule("Functions: 23 CANCEL", "CANCEL: The reply to the NEXT has count 0")
def test_cancel_answers_a_waiting_next_with_nothing_before_its_own_reply(s: Subject) -> None:
    wait(s, 3)
    told = cancel(s, 3)
    assert (told.code, told.identifier) == ("", 9)
    assert answered(s) == [("one", 3, "", False)]
    s.set(JOB)
    assert answered(s) == [], "nobody waits any more"
    assert s.jobs() == [JOB]


def test_cancel_tells_when_something_will_be_due(s: Subject) -> None:
    s.set(JOB)
    lease = s.next(timeout=10 * SECOND)
    wait(s, 3)
    cancel(s, 3)
    ((_, told),) = s.target.serve_waiters(s.now)
    assert told.timeout == lease.timeout
    assert told.pairs == []


def test_cancel_leaves_all_else_waiting(s: Subject) -> None:
    wait(s, 3)
    wait(s, 4)
    wait(s, 3, session=OTHER)
    assert cancel(s, 3).code == ""
    assert answered(s) == [("one", 3, "", False)]
    s.set(JOB)
    assert answered(s) == [("one", 4, "", True)]
    s.set(b"a:1:0:y")
    assert answered(s) == [(OTHER, 3, "", True)]


@pytest.mark.rule("CANCEL: where several of that identifier wait")
def test_cancel_ends_all_that_has_the_identifier(s: Subject) -> None:
    wait(s, 3)
    wait(s, 3)
    s.set(b"key")
    s.ask(request(Function.GET, b"key", flags=Flag.LISTEN, identifier=3))
    assert cancel(s, 3).code == ""
    assert answered(s) == [("one", 3, "", False)] * 2
    assert cancel(s, 3).code == "not-found"


@pytest.mark.rule("Functions: 23 CANCEL")
def test_cancel_ends_a_subscription(s: Subject) -> None:
    s.set(b"key")
    for identifier in (3, 4):
        s.ask(request(Function.GET, b"key", flags=Flag.LISTEN, identifier=identifier))
    assert cancel(s, 3).code == ""
    s.set(b"key", b"new", flags=Flag.OVERWRITE, at=s.now + 1)
    told = s.target.tell(s.now) if isinstance(s.target, EngineSubject) else s.target.tell()
    assert [reply.identifier for _, reply in told] == [4]


@pytest.mark.rule("Functions: 23 CANCEL")
def test_cancel_of_nothing_is_not_found_and_changes_nothing(s: Subject) -> None:
    wait(s, 4)
    wait(s, 3, session=OTHER)
    assert cancel(s, 3).code == "not-found"
    assert cancel(s, 0).code == "not-found"
    assert answered(s) == []
    s.set(JOB)
    assert answered(s) == [("one", 4, "", True)]
    assert cancel(s, 4).code == "not-found", "it was answered already"


@pytest.mark.warm_only
@pytest.mark.rule("Functions: Bad arguments")
def test_cancel_without_count_is_bad_request(s: Subject) -> None:
    wait(s, 0)
    assert cancel(s, None).code == "bad-request"
    assert answered(s) == []
