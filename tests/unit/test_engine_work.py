"""Work that one call of the engine does: bounded, and counted where it is done. No clock.

Each case builds the worst that the limits allow, makes one call, and holds two things against it:
the work that the engine counted is under its bound, and the lines that were executed are no more
than the counted work stands for. So a loop over data that nobody counts is found, and one that
never ends too. A test elsewhere that is the case of a function has the mark ``bounded_work``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastjournal import limits
from fastjournal.limits import INSTANT_MAX
from fastjournal.protocol import Flag, Function, Request, ValueType, decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT, Query
from fastjournald.engine.engine import Scan
from fastjournald.engine.handlers.table import HANDLERS
from fastjournald.engine.key_filter import LongMatches
from tests.marks import marked
from tests.unit.engine_work import LARGE, LATER, LINKS, MANY, NEXT, NOW, Daemon, do_bounded, key_of

Call = Callable[[], object]
Case = Callable[[Daemon], Call]
CASES: dict[str, Case] = {}
FUNCTIONS: dict[str, int] = {}


def case(function: Function | None = None) -> Callable[[Case], Case]:
    """Put a case into the table, under its name; it is about that function."""

    def note(made: Case) -> Case:
        CASES[made.__name__] = made
        if function is not None:
            FUNCTIONS[made.__name__] = int(function)
        return made

    return note


# --- requests -------------------------------------------------------------------------------------


@case(Function.NEXT)
def next_of_500(d: Daemon) -> Call:
    d.jobs(MANY, b"uri")
    return lambda: d.ask(Function.NEXT, count=65_535, flags=Flag.DATA | Flag.META)


@case(Function.NEXT)
def next_of_500_domains(d: Daemon) -> Call:
    d.domains(MANY)
    return lambda: d.ask(Function.NEXT, count=65_535)


@case(Function.NEXT)
def next_of_500_domains_that_reach_their_limits(d: Daemon) -> Call:
    value = b'{"interval_us":1000000,"jobs":1}'
    for at in range(MANY):
        d.set(b"d%d:1:0:x" % at)
        d.set(b"d%d:1:0:y" % at)
        d.ask(Function.LIMIT, b"d%d" % at, value_type=ValueType.STRING, value=value)
    return lambda: d.ask(Function.NEXT, count=65_535)


OTHERS = 10_000
"""Domains that a prefix does not match."""


def of_prefix(d: Daemon, prefix: bytes = b"crawl/") -> Call:
    value = b'{"prefix":"%b"}' % prefix
    return lambda: d.ask(Function.NEXT, value_type=ValueType.STRING, value=value)


@case(Function.NEXT)
def first_next_of_a_prefix_beside_many_domains_that_do_not_match(d: Daemon) -> Call:
    d.domains(OTHERS)
    d.set(b"crawl/a:1:0:x")
    return of_prefix(d)


@case(Function.NEXT)
def next_of_a_prefix_that_nothing_matches(d: Daemon) -> Call:
    d.domains(OTHERS)
    of_prefix(d)()
    return of_prefix(d)


@case(Function.NEXT)
def next_of_64_domains_beside_many(d: Daemon) -> Call:
    d.domains(OTHERS)
    names = b",".join(b'"none%d"' % at for at in range(limits.NEXT_DOMAINS_MAX - 1))
    value = b'{"domains":[%b,"d9999"]}' % names
    return lambda: d.ask(Function.NEXT, count=9, value_type=ValueType.STRING, value=value)


@case(Function.NEXT)
def next_that_pops_entries_with_links(d: Daemon) -> Call:
    d.jobs(100)
    for at in range(100):
        d.links(key_of(at))
    return lambda: d.ask(Function.NEXT, count=65_535, flags=Flag.OVERWRITE)


@case(Function.NEXT)
def next_that_pops_long_keys(d: Daemon) -> Call:
    for at in range(NEXT):
        d.set(b"d:1:0:%04080d" % at)
    return lambda: d.ask(Function.NEXT, count=65_535, flags=Flag.OVERWRITE)


@case(Function.NEXT)
def next_that_makes_new_jobs_of_large_values(d: Daemon) -> Call:
    for at in range(10):
        d.set(key_of(at), value=bytes(LARGE))
    for entry in d.store:
        entry.own().starts = 255
    return lambda: d.ask(Function.NEXT, count=65_535, flags=0)


@case(Function.NEXT)
def next_behind_leases_that_ended(d: Daemon) -> Call:
    d.jobs(MANY, b"uri")
    d.lease(MANY)
    d.jobs(NEXT)
    d.now = LATER + 10_000
    return lambda: d.ask(Function.NEXT, count=65_535)


@case(Function.NEXT)
def next_that_waits(d: Daemon) -> Call:
    for at in range(63):
        d.ask(Function.NEXT, b"none", flags=Flag.LISTEN, ttl=at)
    return lambda: d.ask(Function.NEXT, b"none", flags=Flag.LISTEN, ttl=INSTANT_MAX)


@case(Function.GET)
def get_leases_at_the_saturated_instant(d: Daemon) -> Call:
    d.set(key_of(0))
    for _ in range(NEXT):
        d.ask(Function.GET, key_of(0), timeout=INSTANT_MAX)
        entry = d.store.find(key_of(0))
        d.ask(Function.RELEASE, key_of(0), flags=Flag.WORKED_ON, timeout=entry.token)
    return lambda: d.ask(Function.GET, key_of(0), timeout=INSTANT_MAX)


@case(Function.GET)
def get_of_an_expression_that_takes_long_to_compile(d: Daemon) -> Call:
    flags = Query.REGEX << QUERY_SHIFT
    return lambda: d.ask(Function.GET, b"a?" * 2000, flags=flags, count=0)


@case(Function.GET)
def get_of_a_large_value(d: Daemon) -> Call:
    d.set(b"k", value=bytes(LARGE))
    return lambda: d.ask(Function.GET, b"k", flags=Flag.DATA | Flag.META)


@case(Function.SET)
def set_over_an_entry_with_links(d: Daemon) -> Call:
    d.set(b"k")
    d.links(b"k")
    return lambda: d.set(b"k", flags=Flag.OVERWRITE | Flag.PERSIST)


@case(Function.SET)
def set_of_a_uri_worked_on(d: Daemon) -> Call:
    d.jobs(NEXT, b"uri")
    d.lease(NEXT)
    return lambda: d.set(b"d:1:0:new", b"uri/7")


@case(Function.SET)
def set_of_a_large_value(d: Daemon) -> Call:
    return lambda: d.set(b"k", value=bytes(LARGE))


@case(Function.DELETE)
def delete_of_an_entry_with_links(d: Daemon) -> Call:
    d.set(b"k")
    d.links(b"k")
    return lambda: d.ask(Function.DELETE, b"k/7")


@case(Function.DELETE)
def delete_where_all_tombstones_are_over(d: Daemon) -> Call:
    for at in range(MANY):
        d.ask(Function.DELETE, b"k%d" % at)
    d.now += limits.TOMBSTONE_TTL_US
    return lambda: d.ask(Function.DELETE, b"k")


@case(Function.ADD)
def add(d: Daemon) -> Call:
    return lambda: d.ask(
        Function.ADD, b"n", flags=Flag.OVERWRITE | Flag.PERSIST, value_type=3, value=b"\1"
    )


@case(Function.NOT)
def not_(d: Daemon) -> Call:
    d.ask(Function.SET, b"b", value_type=5, value=b"\1")
    return lambda: d.ask(Function.NOT, b"b")


@case(Function.TRUNCATE)
def truncate_of_a_large_value(d: Daemon) -> Call:
    d.set(b"k")
    size = LARGE.to_bytes(8, "big")
    return lambda: d.ask(Function.TRUNCATE, b"k", value_type=3, value=size)


@case(Function.LOCK)
def lock_the_thousandth(d: Daemon) -> Call:
    d.jobs(MANY)
    d.lock(limits.LOCKS_PER_CONNECTION_MAX - 1)
    return lambda: d.ask(Function.LOCK, key_of(limits.LOCKS_PER_CONNECTION_MAX - 1))


@case(Function.UNLOCK)
def unlock(d: Daemon) -> Call:
    d.jobs(MANY)
    d.lock(limits.LOCKS_PER_CONNECTION_MAX)
    return lambda: d.ask(Function.UNLOCK, key_of(7))


@case(Function.RENAME)
def rename_of_an_entry_leased_with_many(d: Daemon) -> Call:
    d.jobs(NEXT)
    d.lease(NEXT)
    return lambda: d.ask(Function.RENAME, key_of(7), b"e:1:0:new")


@case(Function.LINK)
def link_the_last(d: Daemon) -> Call:
    d.set(b"k")
    d.links(b"k", LINKS - 1)
    return lambda: d.ask(Function.LINK, b"k", b"one more")


@case(Function.RELEASE)
def release_of_a_superseded_entry_with_successors(d: Daemon) -> Call:
    token = superseded(d)
    return lambda: d.ask(Function.RELEASE, key_of(0), flags=Flag.WORKED_ON, timeout=token)


@case(Function.TOUCH)
def touch_of_a_superseded_entry_with_successors(d: Daemon) -> Call:
    token = superseded(d)
    return lambda: d.ask(Function.TOUCH, key_of(0), flags=Flag.WORKED_ON, timeout=token, ttl=9)


def superseded(d: Daemon) -> int:
    """An entry worked on, whose URI and links newer entries have; return its token."""
    d.set(key_of(0), b"uri")
    d.links(key_of(0))
    d.lease(1)
    entry = d.store.find(key_of(0))
    assert entry is not None
    for at in range(LINKS):
        d.set(b"e:1:0:%d" % at, b"%b/%d" % (key_of(0), at))
    d.set(b"e:1:0:x", b"uri")
    return entry.token


@case(Function.BURY)
def bury_of_a_large_value_for_another_reason(d: Daemon) -> Call:
    d.set(b"k", value=bytes(LARGE))
    d.ask(Function.BURY, b"k", value_type=1, value=b"why")
    return lambda: d.ask(Function.BURY, b"k", value_type=1, value=b"why not")


@case(Function.KICK)
def kick_of_many(d: Daemon) -> Call:
    d.jobs(MANY, b"uri", value=bytes(4000))
    d.bury(MANY)
    return lambda: d.ask(Function.KICK, second_key=b"d", count=65_535)


@case(Function.KICK)
def kick_of_long_keys(d: Daemon) -> Call:
    for at in range(NEXT):
        key = b"d:1:0:%04080d" % at
        d.set(key, b"%04096d" % at)
        d.ask(Function.BURY, key)
    return lambda: d.ask(Function.KICK, second_key=b"d", count=65_535)


@case(Function.KICK)
def kick_behind_what_others_have_locked(d: Daemon) -> Call:
    number = limits.KICK_LOOKS_MAX + 1
    d.jobs(number)
    d.bury(number)
    for at in range(number):
        d.ask(Function.LOCK, key_of(at), session=at)
    return lambda: d.ask(Function.KICK, second_key=b"d", count=65_535)


@case(Function.STATS)
def stats_of_many_domains(d: Daemon) -> Call:
    d.domains(limits.OLDEST_DUE_LOOKS_MAX + 1)
    return lambda: d.ask(Function.STATS)


@case(Function.STATS)
def stats_of_all_priorities(d: Daemon) -> Call:
    for priority in range(256):
        d.set(b"d:%d:0:x" % priority)
        d.set(b"d:%d:1:x" % priority)
    return lambda: d.ask(Function.STATS, b"d")


@case(Function.STATS)
def stats_of_an_entry_with_links(d: Daemon) -> Call:
    d.set(b"k")
    d.links(b"k")
    return lambda: d.ask(Function.STATS, b"k", flags=Flag.DATA)


@case(Function.PAUSE)
def pause_of_a_domain_with_much(d: Daemon) -> Call:
    d.jobs(MANY)
    return lambda: d.ask(Function.PAUSE, b"d", ttl=9)


@case(Function.LIMIT)
def limit_of_a_domain_with_much(d: Daemon) -> Call:
    d.jobs(2 * MANY)
    d.lease(MANY)
    limit = b'{"interval_us":9,"jobs":1,"attempts":1}'
    return lambda: d.ask(Function.LIMIT, b"d", value_type=2, value=limit)


@case(Function.NOP)
def nop_behind_all_that_time_has_brought(d: Daemon) -> Call:
    d.jobs(MANY, b"uri")
    d.lease(MANY)
    for at in range(100):
        d.set(b"k%d" % at, timeout=LATER)
        d.links(b"k%d" % at)
        d.ask(Function.LOCK, b"k%d" % at, timeout=9)
    d.now = LATER + 10_000
    return lambda: d.ask(Function.NOP)


@case(Function.NOP)
def nop_behind_lives_of_entries_with_links(d: Daemon) -> Call:
    for at in range(200):
        d.set(b"k%d" % at, timeout=LATER)
        d.links(b"k%d" % at)
    d.now = LATER
    return lambda: d.ask(Function.NOP)


@case(Function.NOP)
def nop_behind_pauses_that_ended(d: Daemon) -> Call:
    for at in range(MANY):
        d.set(b"d%d:1:0:x" % at)
        d.ask(Function.PAUSE, b"d%d" % at, ttl=LATER - NOW)
    d.now = LATER
    return lambda: d.ask(Function.NOP)


@case(Function.QUIT)
def quit_of_a_connection_that_waits(d: Daemon) -> Call:
    for at in range(limits.WAITS_PER_CONNECTION_MAX):
        d.ask(Function.NEXT, b"none%d" % at, flags=Flag.LISTEN)
    return lambda: d.ask(Function.QUIT)


@case(Function.CANCEL)
def cancel_of_the_last_that_waits(d: Daemon) -> Call:
    for at in range(limits.WAITS_PER_CONNECTION_MAX):
        d.ask(Function.NEXT, b"none%d" % at, flags=Flag.LISTEN)
    return lambda: d.ask(Function.CANCEL, count=0)


@case(Function.AUTH)
def auth(d: Daemon) -> Call:
    return lambda: d.ask(Function.AUTH, value_type=1, value=b"t" * 1024)


# --- what is no request ---------------------------------------------------------------------------


def wait_for(d: Daemon, number: int, key: bytes = b"", **fields: Any) -> None:
    for at in range(number):
        d.ask(Function.NEXT, key, session=at, flags=Flag.LISTEN | Flag.DATA, **fields)


@case()
def serve_waiters_of_500_each_when_their_domain_resumes(d: Daemon) -> Call:
    d.ask(Function.PAUSE, b"d", ttl=10_000_000)
    d.jobs(10 * NEXT)
    wait_for(d, 100, b"d", count=NEXT)
    d.ask(Function.PAUSE, b"d", ttl=0)
    return lambda: d.engine.serve_waiters(d.now)


@case()
def serve_waiters_that_waited_long_enough(d: Daemon) -> Call:
    wait_for(d, MANY, b"none", ttl=5)
    d.now += 10
    return lambda: d.engine.serve_waiters(d.now)


@case()
def serve_waiters_of_many_domains(d: Daemon) -> Call:
    for at in range(MANY):
        wait_for(d, 1, b"d%d" % at, ttl=60_000_000)
    d.domains(MANY)
    return lambda: d.engine.serve_waiters(d.now)


@case()
def serve_waiters_behind_leases_that_ended(d: Daemon) -> Call:
    d.jobs(MANY)
    d.lease(MANY)
    wait_for(d, 100, b"d", count=NEXT)
    d.now = LATER + 10_000
    return lambda: d.engine.serve_waiters(d.now)


@case()
def forget_of_a_session_with_locks(d: Daemon) -> Call:
    d.jobs(MANY)
    d.lock(limits.LOCKS_PER_CONNECTION_MAX)
    return lambda: d.engine.end_session("s")


@case()
def end_of_a_session_with_subscriptions(d: Daemon) -> Call:
    for query in (Query.RANGE, Query.REGEX):
        for at in range(limits.SUBSCRIPTIONS_PER_CONNECTION_MAX // 2):
            identifier = at + int(query) * 1000
            flags = int(Flag.LISTEN) | query << QUERY_SHIFT
            bounds = (b"^k%04d.*x" % at, b"k%04d" % at if query == Query.RANGE else None)
            asked = Request(Function.GET, identifier, flags, NOW, *bounds, count=1)
            scan = d.engine.handle("s", asked, NOW)
            while isinstance(scan, Scan):
                scan = d.engine.step(scan, NOW) or scan
    assert len(d.engine.subscriptions) == limits.SUBSCRIPTIONS_PER_CONNECTION_MAX
    # others still listen, so ranges are taken out later
    d.ask(Function.SET, b"other", session="t", flags=Flag.LISTEN, value_type=1, value=b"v")
    return lambda: d.engine.end_session("s")


@pytest.mark.parametrize("name", CASES)
def test_call_of_the_engine_does_bounded_work_and_counts_it(name: str) -> None:
    daemon = Daemon()
    do_bounded(daemon, CASES[name](daemon))


def test_work_of_every_function_has_a_case() -> None:
    elsewhere = {int(Function[name]) for name, _ in marked("bounded_work")}
    assert set(FUNCTIONS.values()) | elsewhere == set(HANDLERS)


def test_next_of_a_prefix_costs_no_more_beside_domains_that_do_not_match() -> None:
    daemon = Daemon()
    daemon.domains(OTHERS)
    of_prefix(daemon)()
    for at in range(3):
        # domains that come and go meanwhile
        daemon.set(b"crawl/%d:1:0:x" % at)
        daemon.ask(Function.DELETE, b"d%d:1:0:x" % at)
        before = daemon.store.work
        reply = decode_reply(do_bounded(daemon, of_prefix(daemon), limits.REQUEST_WORK * 3))
        assert [pair.key for pair in reply.pairs or ()] == [b"crawl/%d:1:0:x" % at]
        assert daemon.store.work - before <= limits.REQUEST_WORK + 2 * limits.ENTRY_WORK
    daemon.engine.check()


def test_expression_that_is_refused_counts_what_compiling_it_takes() -> None:
    daemon = Daemon()
    before = daemon.store.work
    get_of_an_expression_that_takes_long_to_compile(daemon)()
    assert daemon.store.work - before >= 7000


# --- scans ----------------------------------------------------------------------------------------


def test_scan_leaves_matches_that_take_long_to_a_thread_and_finds_what_matches() -> None:
    daemon = Daemon()
    number = 2 * limits.MATCHED_KEYS_MAX
    for at in range(number):
        daemon.set(b"a" * 100 + b"%d" % at + b"b" * (at % 2))
    daemon.set(b"a" * 4090)
    flags = Query.REGEX << QUERY_SHIFT
    scan = daemon.ask(Function.GET, b"(a{1,30}){1,30}[0-9]+b$", flags=flags, count=0)
    assert isinstance(scan, Scan)
    threads = 0
    while not isinstance(outcome := daemon.engine.step(scan, daemon.now), bytes):
        if isinstance(outcome, LongMatches):
            assert not outcome.found, "nothing of it was matched in the event loop"
            outcome.run()
            threads += 1
    assert len(decode_reply(outcome).pairs or ()) == number // 2
    assert 2 <= threads <= number // 10
