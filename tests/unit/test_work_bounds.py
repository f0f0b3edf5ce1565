"""KICK and PAUSE are bounded: entries and bytes of one request, domains that are paused."""

from __future__ import annotations

import pytest

from fastjournal.limits import KICK_BYTES_MAX, KICK_ENTRIES_MAX, PAUSED_DOMAINS_MAX
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, EngineSubject, Subject


@pytest.fixture
def s() -> Subject:
    return Subject(EngineSubject(Rules()))


def test_at_most_a_thousand_a_request(s: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KICK_ENTRIES_MAX == 1000
    monkeypatch.setattr("fastjournald.handlers.burial.KICK_ENTRIES_MAX", 3)
    for n in range(4):
        s.set(b"a:1:0:%d" % n)
        s.bury(b"a:1:0:%d" % n)
    assert s.kick_domain(b"a", 65_535) == 3
    assert s.kick_domain(b"a", 65_535) == 1


def test_large_values_end_a_request_and_one_always_goes(s: Subject) -> None:
    sizes = (KICK_BYTES_MAX + 1, KICK_BYTES_MAX // 2, KICK_BYTES_MAX // 2, 1)
    for n, size in enumerate(sizes):
        s.set(b"a:1:0:%d" % n, bytes(size))
        s.bury(b"a:1:0:%d" % n)
    assert [s.kick_domain(b"a", 9) for _ in sizes] == [1, 2, 1, 0]


def test_more_paused_domains_than_the_limit_are_busy(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.handlers.pauses.PAUSED_DOMAINS_MAX", 2)
    assert PAUSED_DOMAINS_MAX == 100_000
    assert [s.pause(name, SECOND) for name in (b"a", b"b", b"c")] == ["", "", "busy"]
    assert s.pause(b"a", 2 * SECOND) == ""
    s.later(SECOND)
    assert s.pause(b"c", SECOND) == ""
