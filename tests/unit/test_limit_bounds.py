"""LIMIT is bounded in memory and in the log, and refused on a disk that is nearly full."""

from __future__ import annotations

from itertools import permutations

import pytest

from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.limits import INTERVAL_BYTES, LIMIT_BYTES
from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.property.compacted_log import CompactedLog
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, EngineSubject, Subject, request

YEARS = 10 * 365 * 86_400 * SECOND
NONE = b'{"interval_us":0,"jobs":0,"lease_us":0,"attempts":0}'


@pytest.fixture
def s() -> Subject:
    return Subject(EngineSubject(Rules()))


def limit(s: Subject, domain: bytes, value: bytes = b'{"jobs":7}') -> str:
    return s.ask(request(Function.LIMIT, domain, value, kind=ValueType.STRING)).code


def jobs_max(log: CompactedLog, domain: bytes = b"a") -> int:
    return log.engine.store.rules.limits.of(domain).jobs


def set_limit(log: CompactedLog, value: bytes, domain: bytes = b"a") -> None:
    log.done(Function.LIMIT, domain, value, kind=ValueType.STRING)


@pytest.mark.rule("LIMIT: at most 100,000 domains")
def test_limit_bounds_domains(s: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.engine.handlers.domains.LIMITED_DOMAINS_MAX", 2)
    assert [limit(s, name) for name in (b"a", b"b", b"c")] == ["", "", "busy"]
    assert limit(s, b"a", b'{"jobs":8}') == ""
    assert limit(s, b"b", NONE) == ""
    assert limit(s, b"c") == ""


def test_limit_bounds_bytes(s: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fastjournald.engine.handlers.domains.LIMITED_BYTES_MAX", 2 * (LIMIT_BYTES + 1000)
    )
    names = [b"%01000d" % number for number in range(3)]
    assert [limit(s, name) for name in names] == ["", "", "busy"]


def test_limit_is_refused_while_the_disk_is_nearly_full(s: Subject) -> None:
    assert isinstance(s.target, EngineSubject)
    s.target.engine.context.read_only = True
    assert limit(s, b"a") == "read-only"
    assert limit(s, b"a", b"{}") == ""


def test_intervals_are_bounded_in_number_and_the_first_ends_early(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.tables.domain_rules.INTERVALS_MAX", 2)
    s = s.under(interval_us_default=10 * SECOND)
    for name in (b"a", b"b", b"c"):
        s.set(name + b":1:0:x")
        s.set(name + b":1:0:y")
        s.later(1)
        assert s.jobs(name) == [name + b":1:0:x"]
    assert s.jobs() == [b"a:1:0:y"]


def test_intervals_are_bounded_in_bytes_and_the_first_ends_early(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fastjournald.tables.domain_rules.INTERVALS_BYTES_MAX", 2 * (INTERVAL_BYTES + 1000)
    )
    s = s.under(interval_us_default=10 * SECOND)
    assert isinstance(s.target, EngineSubject)
    names = [b"%01000d" % number for number in range(3)]
    for name in names:
        s.set(name + b":1:0:x", flags=Flag.PERSIST)
        s.set(name + b":1:0:y", flags=Flag.PERSIST)
        s.later(1)
        assert s.jobs(name) == [name + b":1:0:x"]
    assert s.jobs() == [names[0] + b":1:0:y"]
    s.target.restart(s.now)
    limits = s.target.engine.store.rules.limits
    assert [limits.waits_until(name) > 0 for name in names] == [True, False, True]
    s.later(10 * SECOND)
    assert s.jobs(names[2]) == [names[2] + b":1:0:y"]
    assert (limits.intervals, limits.interval_bytes) == (1, INTERVAL_BYTES + 1000)


def test_interval_after_a_clock_that_was_years_ahead_runs_from_the_start(s: Subject) -> None:
    limit(s, b"a", b'{"interval_us":%d}' % SECOND)
    for name in (b"x", b"y"):
        s.set(b"a:1:0:" + name, flags=Flag.PERSIST)
    s.later(YEARS)
    assert s.jobs(b"a") == [b"a:1:0:x"]
    assert isinstance(s.target, EngineSubject)
    s.later(-YEARS)
    s.target.restart(s.now)
    assert s.jobs(b"a") == []
    assert s.next(b"a").timeout == s.now + SECOND
    s.later(SECOND)
    assert s.jobs(b"a") == [b"a:1:0:y"]


@pytest.mark.parametrize("plain", [b"a", b"a:x", b"a:256:0:x"])
def test_lease_of_a_plain_entry_is_no_hand_out_of_a_domain(s: Subject, plain: bytes) -> None:
    limit(s, b"a", b'{"interval_us":%d}' % SECOND)
    for key in (plain, b"a:1:0:x"):
        s.set(key, flags=Flag.PERSIST)
    assert s.get(plain, timeout=9 * SECOND).error == ""
    assert isinstance(s.target, EngineSubject)
    s.target.restart(s.now)
    assert s.target.engine.store.rules.limits.intervals == 0
    assert s.jobs(b"a") == [b"a:1:0:x"]


def test_replay_remembers_so_many_hand_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournal.cmdlog.recovery.replay_state.INTERVALS_MAX", 2)
    state = ReplayState()
    for number, key in enumerate((b"a:1:0:x", b"b:1:0:x", b"a:1:0:y", b"c:1:0:x")):
        state.note_delivery(key, number)
    assert state.delivered_at == {b"a": 2, b"c": 3}


# --- compaction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_compaction_lets_no_limit_return(order: tuple[int, ...]) -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    log.fill(10)
    set_limit(log, b'{"jobs":3}')
    first = log.roll()
    set_limit(log, b'{"jobs":4}')
    second = log.roll()
    set_limit(log, NONE)
    third = log.roll()
    for at in order:
        log.clean((first, second, third)[at])
        log.check()
    assert jobs_max(log) == 0


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_compaction_keeps_the_limit_in_force(order: tuple[int, ...]) -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    log.fill(10)
    set_limit(log, b'{"jobs":3}')
    first = log.roll()
    set_limit(log, NONE)
    second = log.roll()
    set_limit(log, b'{"jobs":3,"attempts":2}')
    third = log.roll()
    log.empty(10)
    for at in order:
        log.clean((first, second, third)[at])
        log.check()
    assert jobs_max(log) == 3


def test_compaction_keeps_a_default_limit_while_a_rewritten_segment_has_another() -> None:
    log = CompactedLog(cmdlog_seg_size=10_000)
    set_limit(log, b'{"jobs":3}')
    log.fill(30)
    log.empty(18)
    assert log.clean(log.roll()) == "rewritten"
    set_limit(log, NONE)
    log.fill(30, key=b"more/%d")
    log.empty(18, key=b"more/%d")
    assert log.clean(log.roll()) == "rewritten"
    log.check()
    assert jobs_max(log) == 0


def test_limits_that_change_all_the_time_leave_little() -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    for number in range(3000):
        set_limit(log, b'{"jobs":%d}' % (number % 2 + 1))
    log.clean_settled()
    log.check()
    assert jobs_max(log) == 2
    assert sum(len(log.disk.read(f"/log/{name}")) for name in log.segments()) < 140_000
