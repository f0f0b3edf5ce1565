"""Work in replies that were never sent waits again, attempts unchanged, and the log knows it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from fastjournal.limits import HANG_UP_LOOK_WORK, SERVE_WORK_MAX, WAIT_END_WORK
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Meta
from fastjournald.engine.undelivered import DeliveredJobs
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"
POP = Flag.OVERWRITE
WAYS = pytest.mark.parametrize("flags", [Flag(0), POP], ids=["lease", "pop"])


class Desk(Subject):
    """An engine whose replies may be lost before they leave."""

    def __init__(self, *, cold: bool = False, **rules: int) -> None:
        self.subject = EngineSubject(Rules(**rules), cold=cold)
        super().__init__(self.subject)

    def take(self, **fields: Any) -> list[DeliveredJobs]:
        """Let a session take work; return that of its reply."""
        self.subject.delivered.clear()
        assert self.next(**fields).pairs
        return self.subject.delivered.copy()

    def lose(self, deliveries: list[DeliveredJobs], number_max: int = 1000) -> list[DeliveredJobs]:
        left = self.subject.engine.release_undelivered(deliveries, number_max, self.now)
        self.subject.check()
        return left

    def restart(self) -> None:
        self.subject.restart(self.now)

    def state(self, key: bytes = JOB) -> tuple[bytes | None, Meta]:
        return self.value(key), self.meta(key)


@pytest.fixture(params=[False, True], ids=["warm", "cold"])
def s(request: pytest.FixtureRequest) -> Desk:
    return Desk(cold=request.param)


@WAYS
@pytest.mark.parametrize("data", [Flag(0), Flag.DATA], ids=["probe", "data"])
def test_undelivered_work_waits_as_before_and_the_log_knows(
    s: Desk, flags: Flag, data: Flag
) -> None:
    s.set(JOB, b"value", uri=URI, flags=Flag.PERSIST)
    s.ask(request(Function.LINK, JOB, uri=b"link"))
    value, before = s.state()
    s.lose(s.take(flags=flags | data))
    for _ in range(2):
        assert s.state(URI) == s.state(b"link") == s.state() == (value, before)
        assert s.subject.tombstones(s.now) == {}
        s.restart()
    assert s.jobs() == [JOB]
    s.restart()
    assert s.jobs() == [], "the lease after it is in the log, too"


def test_undelivered_scan_that_leased(s: Desk) -> None:
    for number in range(30):
        s.set(b"a:1:0:%02d" % number, flags=Flag.PERSIST)
    s.ask(request(Function.GET, b"", uri=b"", count=0, timeout=SECOND))
    assert s.jobs(count=30) == []
    s.lose(s.subject.delivered)
    assert len(s.jobs(count=30)) == 30


def test_undelivered_entries_that_changed_hands_stay_as_they_are(s: Desk) -> None:
    s.set(JOB, flags=Flag.PERSIST)
    first = s.take(timeout=SECOND)
    s.later(2 * SECOND)
    second = s.next(timeout=10 * SECOND)
    s.lose(first)
    assert s.meta(JOB).worked_on_until_us == second.timeout
    assert second.timeout is not None
    s.delete(JOB, token=second.timeout)
    s.lose(first)
    assert s.get(JOB).code == "not-found"


@pytest.mark.parametrize("change", ["set", "delete", "uri", "expiry", "link"])
def test_undelivered_pop_restores_no_entry_that_is_newer_or_over(s: Desk, change: str) -> None:
    fields: dict[str, Any] = {"timeout": START + SECOND} if change == "expiry" else {}
    s.set(JOB, b"old", uri=URI, flags=Flag.PERSIST, **fields)
    popped = s.take(flags=POP)
    s.later(5)
    match change:
        case "set":
            assert s.set(JOB, b"new", flags=Flag.PERSIST, at=s.now) == ""
        case "delete":
            assert s.delete(JOB, at=s.now) == "not-found"
        case "uri":
            assert s.set(OTHER, uri=URI, flags=Flag.PERSIST, at=s.now) == ""
        case "link":
            assert s.set(OTHER, flags=Flag.PERSIST, at=s.now) == ""
            assert s.ask(request(Function.LINK, OTHER, uri=JOB)).code == ""
        case "expiry":
            s.later(SECOND)
    s.lose(popped)
    expected = {"set": [JOB], "uri": [OTHER], "link": [OTHER]}.get(change, [])
    s.restart()
    assert s.jobs(count=9) == expected
    assert s.value(JOB) in (None, b"new", b"v")


def test_undelivered_pop_drops_a_link_that_leads_elsewhere(s: Desk) -> None:
    s.set(JOB, flags=Flag.PERSIST)
    for link in (b"one", b"two"):
        s.ask(request(Function.LINK, JOB, uri=link))
    popped = s.take(flags=POP)
    s.set(b"two", b"other", at=START + 1)
    s.lose(popped)
    s.restart()
    assert s.get(b"one").code == ""
    assert s.value(JOB) == b"v"
    assert s.get(b"two").code == "not-found", "that one was not persistent"


def test_waiter_that_hung_up_is_passed_over_with_all_that_it_waits_for(s: Desk) -> None:
    engine = s.subject.engine
    engine.context.has_hung_up = lambda session: session == "gone"
    for domain in (b"a", b"", b"b"):
        s.listen(domain, session="gone")
    s.listen(b"a", session="two")
    s.set(JOB)
    ((who, _),) = s.serve()
    assert who == "two"
    assert not engine.waiters
    s.set(b"b:1:0:x")
    assert s.serve() == []
    assert s.jobs(b"b") == [b"b:1:0:x"]


def test_waiters_that_hung_up_are_passed_over_in_bounded_work(s: Desk) -> None:
    engine = s.subject.engine
    engine.context.has_hung_up = lambda session: session != "here"
    for number in range(1000):
        for _ in range(3):
            s.listen(b"a", session=number)
    s.listen(b"a", session="here")
    s.set(JOB)
    s.subject.checks = False
    rounds = 0
    answers: list[tuple[Hashable, bytes]] = []
    while not answers:
        before, waiting = engine.store.work, len(engine.waiters)
        answers = engine.serve_waiters(s.now)
        assert engine.store.work - before <= SERVE_WORK_MAX + HANG_UP_LOOK_WORK + 3 * WAIT_END_WORK
        assert len(engine.waiters) < waiting
        rounds += 1
    assert [who for who, _ in answers] == ["here"]
    assert rounds > 1


@WAYS
@pytest.mark.parametrize(
    "value", [b'{"domains":["b","a"]}', b'{"prefix":"a"}'], ids=["list", "prefix"]
)
def test_undelivered_work_of_several_domains_waits_as_before(
    s: Desk, flags: Flag, value: bytes
) -> None:
    given = {"value": value, "kind": ValueType.STRING}
    s.subject.engine.context.has_hung_up = lambda session: session == "gone"
    s.listen(session="gone", flags=flags | Flag.DATA, **given)
    s.listen(session="waits", flags=flags | Flag.DATA, **given)
    s.set(JOB, b"value", uri=URI, flags=Flag.PERSIST)
    s.subject.delivered.clear()
    assert [session for session, _ in s.serve()] == ["waits"]
    assert s.lose(s.subject.delivered.copy()) == []
    assert (s.value(JOB), s.meta(JOB).attempts) == (b"value", 0)
    assert s.jobs(**given) == [JOB]
    s.restart()
    assert s.value(JOB) == b"value"
