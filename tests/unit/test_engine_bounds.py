"""Bounded work: entries due, expired or erased at one instant are processed in bounded parts."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import permutations

import pytest

from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.limits import (
    CYCLES_MAX,
    INTERVAL_BYTES,
    KICK_BYTES_MAX,
    LIMIT_BYTES,
    PAUSE_BYTES,
    PAUSE_RECORD_BYTES,
    PAUSE_RESERVE_BYTES,
    PAUSED_DOMAINS_MAX,
    TOMBSTONE_BYTES,
)
from fastjournal.protocol import Flag, Function, Request, decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT, Query, ValueType
from fastjournald.engine.engine import Engine, Scan, Settings, new_journal
from fastjournald.engine.next_options import Cycles, NextOptions
from fastjournald.engine.waiters import DOMAIN_BYTES, WAIT_BYTES
from fastjournald.tables.key_table import Tombstones
from tests.property.compacted_log import CompactedLog
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request
from tests.unit.engine_work import NOW, Daemon


def test_tombstones_are_bounded_in_number_and_the_oldest_go() -> None:
    tombstones = Tombstones(ttl_us=1000, number_max=3)
    for number in range(5):
        tombstones.put(b"%d" % number, number, NOW)
    assert tombstones.items() == [(b"2", 2), (b"3", 3), (b"4", 4)]


def test_tombstones_that_will_make_room_last_shorter() -> None:
    tombstones = Tombstones(ttl_us=1000, number_max=10_000, bytes_max=10 * (TOMBSTONE_BYTES + 20))
    tombstones.put(b"%020d" % 0, 0, NOW)
    assert tombstones.lasts_until(NOW + 100, NOW + 100) == NOW + 1100
    for number in range(5):
        tombstones.put(b"%020d" % number, 0, NOW + 10)
    assert tombstones.lasts_until(NOW + 100, NOW + 100) == NOW + 190


def test_tombstones_without_a_life_are_not_kept() -> None:
    tombstones = Tombstones(ttl_us=0, number_max=3)
    tombstones.put(b"a", 1, NOW)
    assert len(tombstones) == 0


@pytest.mark.parametrize("timeout", [None, 1_000_000])
def test_scan_that_waited_until_memory_was_scarce_gathers_little(timeout: int | None) -> None:
    daemon = Daemon()
    for number in range(50):
        daemon.set(b"k%02d" % number, value=bytes(1000))
    flags = int(Flag.DATA) | Query.RANGE << QUERY_SHIFT
    request = Request(Function.GET, 0, flags, NOW, b"k", b"l", timeout=timeout, count=0)
    scan = daemon.engine.handle("s", request, NOW)
    assert isinstance(scan, Scan)
    daemon.engine.context.ration(4096)
    while (data := daemon.engine.step(scan, NOW)) is None:
        pass
    reply = decode_reply(data)
    assert reply.pairs
    assert len(data) < 4096
    assert reply.cursor
    assert daemon.engine.store.leases.count == (0 if timeout is None else len(reply.pairs))


# --- KICK and PAUSE -------------------------------------------------------------------------------
# KICK and PAUSE are bounded, and what they do on a disk that is nearly full.


@pytest.fixture
def s() -> Subject:
    return Subject(EngineSubject(Rules()))


def test_large_values_end_a_request_and_one_always_goes(s: Subject) -> None:
    half = KICK_BYTES_MAX // 2 - len(b"a:1:0:0")
    sizes = (KICK_BYTES_MAX + 1, half, half, 1)
    for n, size in enumerate(sizes):
        s.set(b"a:1:0:%d" % n, bytes(size))
        s.bury(b"a:1:0:%d" % n)
    assert [s.kick_domain(b"a", 9) for _ in sizes] == [1, 2, 1, 0]


def test_pause_of_more_domains_than_the_limit_is_busy(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.engine.handlers.domains.PAUSED_DOMAINS_MAX", 2)
    assert PAUSED_DOMAINS_MAX == 100_000
    assert [s.pause(name, SECOND) for name in (b"a", b"b", b"c")] == ["", "", "busy"]
    assert s.pause(b"a", 2 * SECOND) == ""
    # who has to stop everything can, however many domains are paused
    assert s.pause(b"", SECOND) == ""
    s.later(SECOND)
    assert s.pause(b"c", SECOND) == ""


# --- a disk that is nearly full -------------------------------------------------------------------

JOB = b"a:1:0:x"


@pytest.fixture
def full(s: Subject) -> Subject:
    """With a buried, a leased and a waiting entry, and a paused domain; then read-only."""
    for key in (JOB, b"b:1:0:x", b"b:1:0:y"):
        s.set(key)
    s.bury(JOB)
    s.pause(b"c", SECOND)
    s.target.engine.context.read_only = True
    return s


def test_read_only_engine_refuses_functions_that_grow_the_log(full: Subject) -> None:
    for req in (
        request(Function.KICK, JOB),
        request(Function.KICK, uri=b"a"),
    ):
        assert full.ask(req).code == "read-only"
    assert full.stats()["buried"] == 1


def test_read_only_engine_takes_pauses_of_an_incident_and_not_without_end(full: Subject) -> None:
    assert full.pause(b"", 3 * SECOND) == ""
    assert full.stats()["paused_until"] == full.now + 3 * SECOND
    assert full.pause(b"c", 2 * SECOND) == ""
    assert full.stats(b"c")["paused_until"] == full.now + 2 * SECOND
    taken = 2
    while (refused := full.pause(b"c", 4 * SECOND)) == "":
        taken += 1
    assert refused == "read-only"
    assert 100 < taken <= PAUSE_RESERVE_BYTES // PAUSE_RECORD_BYTES
    assert full.pause(b"d" * 200, SECOND) == "read-only"
    for name in (b"", b"c"):
        assert full.pause(name, 0) == ""  # the end of a pause always
    full.target.engine.resume(full.now)
    full.target.engine.context.read_only = True
    assert full.pause(b"c", SECOND) == ""


def test_read_only_comes_last(full: Subject) -> None:
    assert full.ask(request(Function.KICK, b"no:1:0:x")).code == "not-found"
    assert full.ask(request(Function.KICK)).code == "bad-request"
    assert full.ask(request(Function.PAUSE, b"a:", ttl=1)).code == "bad-key"
    assert full.ask(request(Function.PAUSE, b"a")).code == "bad-request"


def test_read_only_engine_takes_functions_that_end_work(full: Subject) -> None:
    assert full.kick(b"b:1:0:x") == 0
    assert full.kick_domain(b"b") == 0
    assert full.bury(b"b:1:0:x") == ""
    assert full.bury(b"b:1:0:x") == ""
    # it would take another record of the whole entry, again and again
    assert full.bury(b"b:1:0:x", reason=b"another") == "read-only"
    assert full.pause(b"c", 0) == ""
    assert full.stats(b"c")["paused_until"] == 0


# --- read-only engine -----------------------------------------------------------------------------
# A daemon whose disk is nearly full: what needs room is refused, what ends work is not.


ONE = {"value": b"\1", "kind": ValueType.INTEGER}


@pytest.fixture
def stocked() -> Subject:
    subject = Subject(EngineSubject(Rules()))
    subject.set(JOB, b"\1", kind=ValueType.INTEGER)
    subject.set(b"flag", b"\1", kind=ValueType.BOOLEAN)
    subject.set(b"text", b"text")
    subject.set(b"buried")
    subject.bury(b"buried")
    return subject


@pytest.mark.parametrize(
    "asked",
    [
        request(Function.SET, b"new", b"v"),
        request(Function.NEXT, b"a"),
        request(Function.ADD, JOB, **ONE),
        request(Function.ADD, b"new", flags=Flag.OVERWRITE, **ONE),
        request(Function.NOT, b"flag"),
        request(Function.TRUNCATE, b"text", **ONE),
        request(Function.RENAME, JOB, uri=b"new"),
        request(Function.LINK, JOB, uri=b"new"),
        request(Function.KICK, b"buried"),
        request(Function.LIMIT, b"a", b'{"jobs":1}', kind=ValueType.STRING),
        request(Function.TOUCH, JOB, ttl=1),
        request(Function.BURY, b"buried", b"another reason"),
        request(Function.DELETE, b"missing", flags=Flag.PERSIST),
        request(Function.GET, JOB, timeout=SECOND),
        request(Function.GET, JOB, timeout=START + SECOND, flags=Flag.UPDATE_TIMEOUT),
        request(Function.GET, b"", uri=b"", timeout=SECOND),
        request(Function.GET, b"", uri=b"", timeout=SECOND, flags=Flag.UPDATE_TIMEOUT),
    ],
    ids=lambda asked: Function(asked.function).name,
)
def test_read_only_engine_refuses_what_needs_room_and_changes_nothing(
    stocked: Subject, asked: Request
) -> None:
    before = [stocked.pair(key) for key in (JOB, b"flag", b"text", b"buried")]
    stocked.target.engine.context.read_only = True
    assert stocked.ask(asked).code == "read-only"
    assert [stocked.pair(key) for key in (JOB, b"flag", b"text", b"buried")] == before
    assert stocked.value(b"new") is None


@pytest.mark.parametrize("many", [False, True])
def test_read_only_engine_does_not_fill_the_disk_by_reads(many: bool) -> None:
    """A read moves the expiry of what has a ttl, but the log does not learn of it."""
    written: list[bytes] = []

    def append(data: bytes, _records: int, _now: int) -> int:
        written.append(data)
        return 0

    settings = Settings()
    engine = Engine(settings, new_journal(settings, append, b"12345678"))
    put = request(Function.SET, b"k", b"v", ttl=SECOND, flags=Flag.PERSIST)
    assert engine.handle("s", put, START)
    get = request(Function.GET, b"k", uri=b"k" if many else None)
    for second, read_only in enumerate((True, False)):
        engine.context.read_only = read_only
        before = len(written)
        reply = engine.handle("s", get, START + second + 1)
        while isinstance(reply, Scan):
            reply = engine.step(reply, START + second + 1) or reply
        assert engine.store.find(b"k").expires == START + second + 1 + SECOND
        assert (len(written) == before) == read_only


# --- LIMIT ----------------------------------------------------------------------------------------
# LIMIT is bounded in memory and in the log, and refused on a disk that is nearly full.


YEARS = 10 * 365 * 86_400 * SECOND
NONE = b'{"interval_us":0,"jobs":0,"lease_us":0,"attempts":0}'


def limit(s: Subject, domain: bytes, value: bytes = b'{"jobs":7}') -> str:
    return s.ask(request(Function.LIMIT, domain, value, kind=ValueType.STRING)).code


def jobs_max(log: CompactedLog, domain: bytes = b"a") -> int:
    return log.engine.store.rules.limits.of(domain).jobs


def set_limit(log: CompactedLog, value: bytes, domain: bytes = b"a") -> None:
    log.done(Function.LIMIT, domain, value, kind=ValueType.STRING)


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
    s.later(-YEARS)
    s.target.restart(s.now)
    assert s.jobs(b"a") == []
    assert s.next(b"a").timeout == s.now + SECOND
    s.later(SECOND)
    assert s.jobs(b"a") == [b"a:1:0:y"]


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


# --- memory bounds --------------------------------------------------------------------------------
# Memory that requests leave behind is counted in bytes, and bounded for all connections.


def code_of(engine: Engine, function: Function, key: bytes, **fields: object) -> str:
    """The code of the reply; ``waits``: there is none yet."""
    session: Hashable = fields.pop("session", "one")
    asked = request(function, key, **fields)
    reply = engine.handle(session, asked, START)
    return decode_reply(reply).code if isinstance(reply, bytes) else "waits"


def wait(engine: Engine, domain: bytes, **fields: object) -> str:
    return code_of(engine, Function.NEXT, domain, flags=Flag.LISTEN, **fields)


def test_waits_are_bounded_in_bytes_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.engine.handlers.next.WAITS_BYTES_MAX", 10_500)
    engine = Engine()
    longest = bytes(4000)
    assert [wait(engine, longest + b"%d" % n, session=n) for n in range(3)] == [
        *("waits", "waits", "busy")
    ]
    assert engine.waiters.bytes == 2 * (WAIT_BYTES + DOMAIN_BYTES + 4001)
    # a short name has its price, too
    assert wait(engine, b"") == "busy"
    engine.end_session(0)
    assert wait(engine, longest + b"1", session=5) == "waits"
    assert engine.waiters.bytes == 2 * (WAIT_BYTES + 4001) + DOMAIN_BYTES
    for session in (1, 5):
        engine.end_session(session)
    assert engine.waiters.bytes == 0


def test_waits_count_their_options_and_keep_no_second_key() -> None:
    engine = Engine()
    options = b'{"attempts":2%s}' % (b" " * 4000)
    asked = request(
        *(Function.NEXT, b"d", options),
        kind=ValueType.STRING,
        flags=Flag.LISTEN | Flag.DATA,
        uri=b"u",
    )
    assert engine.handle("one", asked, START) is None
    (waiter,) = engine.waiters.all()
    kept = waiter.request
    assert (kept.key, kept.value, kept.second_key) == (b"d", options, None)
    assert engine.waiters.bytes > WAIT_BYTES + DOMAIN_BYTES + len(options)
    engine.end_session("one")
    assert engine.waiters.bytes == 0
    assert (kept.identifier, kept.timestamp, kept.flags & Flag.DATA) == (7, START, Flag.DATA)


def test_pauses_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fastjournald.engine.handlers.domains.PAUSED_BYTES_MAX", 2 * (PAUSE_BYTES + 1000)
    )
    engine = Engine()
    names = [b"%01000d" % number for number in range(3)]
    codes = [code_of(engine, Function.PAUSE, name, ttl=SECOND) for name in names]
    assert codes == ["", "", "busy"]
    assert engine.store.rules.pauses.bytes == 2 * (PAUSE_BYTES + 1000)
    # what is paused may be paused again, and what ends makes room
    assert code_of(engine, Function.PAUSE, names[0], ttl=2 * SECOND) == ""
    assert code_of(engine, Function.PAUSE, names[1], ttl=0) == ""
    assert code_of(engine, Function.PAUSE, names[2], ttl=SECOND) == ""
    engine.advance(START + 5 * SECOND)
    assert engine.store.rules.pauses.bytes == 0


def test_locks_are_bounded_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.engine.handlers.lock_unlock.LOCKS_MAX", 2)
    engine = Engine()
    for key in (b"p", b"q", b"r"):
        assert code_of(engine, Function.SET, key, value=b"v") == ""
    codes = [code_of(engine, Function.LOCK, key, session=key) for key in (b"p", b"q", b"r")]
    assert codes == ["", "", "busy"]
    assert code_of(engine, Function.LOCK, b"p", session=b"p") == ""
    engine.end_session(b"p")
    assert code_of(engine, Function.LOCK, b"r", session=b"r") == ""


def test_keys_told_early_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound some are notified twice, and none is missed."""
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriber.EARLY_DELIVERIES_BYTES_MAX", 3000)
    engine = Engine()
    keys = [b"%01000d" % number for number in range(10)]
    for at, key in enumerate(keys):
        assert code_of(engine, Function.SET, key, value=b"v") == ""
        assert code_of(engine, Function.GET, key, flags=Flag.LISTEN, identifier=at) == ""
    for round_ in (1, 2):
        for key in keys:
            asked = request(Function.SET, key, b"w", flags=Flag.OVERWRITE, at=START + round_)
            engine.handle("one", asked, START)
        if round_ == 1:
            while engine.notifications.unmatched:
                engine.notifications.match()
    while engine.notifications.has_notifications("one"):
        assert engine.notifications.pop("one", START)
        assert engine.subscriptions.notifications_bytes <= 10 * 1300
        engine.check()
    assert engine.subscriptions.notifications_bytes <= 3000 + 1300
    while engine.notifications.unmatched:
        engine.notifications.match()
    assert engine.subscriptions.notifications_bytes <= 10 * 1300
    engine.check()


def test_turns_of_the_least_recently_used_list_are_forgotten() -> None:
    cycles = Cycles()
    options = [NextOptions(prefix=b"p%d" % number) for number in range(CYCLES_MAX + 1)]
    for given in options[:-1]:
        cycles.note(given, b"x")
    cycles.note(options[0], b"y")
    cycles.note(options[-1], b"x")
    assert [cycles.last(given) for given in options[:3]] == [b"y", b"", b"x"]
