"""Values that leave memory: which, when, and how requests get them back."""

from __future__ import annotations

from inspect import get_annotations

import pytest

from fastjournal.protocol import decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query, ValueType
from fastjournal.protocol.messages import Reply, Request
from fastjournald.engine.engine import Missing, Scan
from fastjournald.engine.handlers.table import HANDLERS, VALUE_HANDLERS
from fastjournald.engine.value_memory import (
    evict_values,
    fill_value,
    missing_notifications,
    missing_soon,
)
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Cold, Entry
from fastjournald.tables.value_cache import ENTRY_BYTES, TEXT_BYTES, VALUE_BYTES, Unreadable, Values
from tests.property.model_parts import Rules
from tests.property.subject import START, EngineSubject, request

LONG = b"a value that may leave memory " * 10
NOTHING_READ: Unreadable = {}
WHY = "its value cannot be read: the disk is broken"


class Daemon(EngineSubject):
    """An engine whose values leave memory when a test says so."""

    def __init__(self) -> None:
        super().__init__(Rules(), cold=True)
        self.broken: set[bytes] = set()
        """Keys of values that cannot be read."""
        self.why = WHY

    def fetch(self, missing: Missing | None) -> Unreadable:
        entries = missing.entries if missing else []
        super().fetch(Missing([entry for entry in entries if entry.key not in self.broken]))
        return {entry.job_id: self.why for entry in entries if entry.key in self.broken}

    def evict(self) -> None:
        """Not by itself."""

    def set(self, key: bytes, value: bytes = LONG, flags: int = 0, **fields: object) -> None:
        flags |= Flag.PERSIST
        assert not self.ask(
            request(Function.SET, key, value, flags=flags, at=START, **fields)
        ).error

    def ask(self, asked: Request) -> Reply:
        reply = self.handle("session", asked, START)
        assert reply is not None
        return reply

    def try_once(self, asked: Request, unreadable: Unreadable = NOTHING_READ) -> Reply | Missing:
        """Ask without reading what is missing, or after these reads failed."""
        answer = self.engine.handle("session", asked, START, unreadable)
        while isinstance(answer, Scan):
            stepped = self.engine.step(answer, START)
            if isinstance(stepped, Missing):
                return stepped
            if stepped is not None:
                return decode_reply(stepped)
        if isinstance(answer, Missing):
            return answer
        assert answer is not None
        return decode_reply(answer)

    def is_cold(self, key: bytes) -> bool:
        entry = self.engine.store.find(key)
        assert entry is not None
        return isinstance(entry.value, Cold)

    def cool(self, number: int = 1000) -> None:
        """Let so many values leave memory, once all is durable."""
        self.writer.write()
        self.writer.sync()
        evict_values(self.engine.store, self.writer.durable_at, number)
        self.check()


def get(key: bytes, flags: int = Flag.DATA) -> Request:
    return request(Function.GET, key, flags=flags)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


# --- which values leave ---------------------------------------------------------------------------


def test_least_recently_accessed_value_leaves_first(daemon: Daemon) -> None:
    for key in (b"one", b"two", b"a:1:0:three"):
        daemon.set(key)
    assert daemon.ask(get(b"one")).pairs
    daemon.cool(1)
    assert [daemon.is_cold(key) for key in (b"one", b"two", b"a:1:0:three")] == [False, True, False]
    daemon.ask(request(Function.NEXT, b"a", flags=Flag.DATA))
    daemon.cool(1)
    assert [daemon.is_cold(key) for key in (b"one", b"a:1:0:three")] == [True, False]


def test_eviction_takes_no_more_values_than_it_has_to(daemon: Daemon) -> None:
    values = daemon.engine.store.values
    assert values is not None
    daemon.set(b"one")
    room = values.bytes
    for key in (b"two", b"tri"):
        daemon.set(key)
    values.bytes_max = 3 * room - 1
    daemon.cool()
    assert values.cold == 1
    assert values.bytes <= values.bytes_max < values.bytes + len(LONG) + VALUE_BYTES
    assert room > ENTRY_BYTES + len(LONG)


def test_memory_limit_counts_errors_and_reasons(daemon: Daemon) -> None:
    job = b"a:1:0:x"
    daemon.set(job, bytes(8), kind=ValueType.INTEGER)
    values = daemon.engine.store.values
    assert values is not None
    before = values.bytes

    def fail(error: bytes) -> int:
        """Let an attempt fail; return how much memory the entry takes more."""
        token = daemon.ask(request(Function.NEXT)).timeout
        flags = Flag.WORKED_ON
        assert not daemon.ask(
            request(
                Function.RELEASE,
                job,
                error,
                kind=ValueType.STRING,
                flags=flags,
                timeout=token,
                ttl=0,
                at=START,
            )
        ).error
        return values.bytes - before

    assert fail(b"e" * 4000) == TEXT_BYTES + 4000
    assert fail(b"e") == TEXT_BYTES + 1
    for reason in (b"r" * 4000, b"r" * 3000):
        daemon.ask(request(Function.BURY, job, reason))
        assert values.bytes - before == 2 * TEXT_BYTES + 1 + len(reason)
    daemon.restart(START)
    assert daemon.engine.store.values is not None
    assert daemon.engine.store.values.bytes - before == 2 * TEXT_BYTES + 3001
    daemon.ask(request(Function.KICK, job))
    assert daemon.engine.store.values.bytes - before == TEXT_BYTES + 1
    daemon.ask(request(Function.DELETE, job))
    assert daemon.engine.store.values.bytes == 0


def test_lru_cache_keeps_the_values_accessed_last_for_a_part_of_the_limit(daemon: Daemon) -> None:
    values = daemon.engine.store.values
    assert values is not None
    # keys and indexes take more
    values.bytes_max = 40 * len(LONG)
    values.kept_bytes = 2 * len(LONG)
    for number in range(100):
        daemon.set(b"key/%d" % number)
    daemon.cool()
    assert values.bytes > values.bytes_max
    cold = [daemon.is_cold(b"key/%d" % number) for number in range(100)]
    assert cold == [True] * 98 + [False] * 2


def test_lru_cache_keeps_values_that_are_not_durable(daemon: Daemon) -> None:
    daemon.set(b"old")
    daemon.cool()
    daemon.set(b"new")
    daemon.writer.write()
    evict_values(daemon.engine.store, daemon.writer.durable_at, 1000)
    assert not daemon.is_cold(b"new"), "written, and not synced"
    daemon.cool()
    assert daemon.is_cold(b"new")


def test_lru_cache_keeps_values_that_are_not_on_the_disk_at_all(daemon: Daemon) -> None:
    daemon.ask(request(Function.SET, b"volatile", LONG, at=START))
    daemon.cool()
    assert not daemon.is_cold(b"volatile")


def test_numbers_and_booleans_stay_for_other_records_may_have_changed_them(daemon: Daemon) -> None:
    daemon.set(b"number", b"\0" * 8, kind=ValueType.INTEGER)
    daemon.set(b"flag", b"\1", kind=ValueType.BOOLEAN)
    daemon.set(b"none", b"\0" * 9, kind=ValueType.INTEGER)
    daemon.cool()
    assert [daemon.is_cold(key) for key in (b"number", b"flag", b"none")] == [False, False, True]
    one = request(Function.ADD, b"none", b"\1", kind=ValueType.INTEGER, at=START)
    assert daemon.ask(one).code == "bad-value", "as in memory"


def test_smaller_values_than_the_least_stay() -> None:
    values = Values(1, 64)
    daemon = Daemon()
    for key, size in ((b"small", 63), (b"large", 64)):
        daemon.set(key, b"v" * size)
        entry = daemon.engine.store.find(key)
        assert entry is not None
        values.add(entry)
    values.evict(2**63, 1000, 0)
    assert [daemon.is_cold(key) for key in (b"small", b"large")] == [False, True]


# --- how they come back ---------------------------------------------------------------------------


def test_request_that_needs_no_value_reads_none(daemon: Daemon) -> None:
    daemon.set(b"a:1:0:x", uri=b"u")
    daemon.cool()
    for asked in (
        get(b"u", Flag.META),
        request(Function.STATS, b"u", flags=Flag.DATA),
        request(Function.LINK, b"a:1:0:x", uri=b"l", flags=Flag.PERSIST),
        request(Function.RENAME, b"a:1:0:x", uri=b"a:1:0:y", flags=Flag.PERSIST, at=START),
        request(Function.NEXT, b"a"),
    ):
        assert isinstance(daemon.try_once(asked), Reply), asked
    assert daemon.is_cold(b"a:1:0:y")
    assert daemon.ask(get(b"l")).pairs[0].value == LONG


def test_missing_value_changes_nothing_until_it_is_there(daemon: Daemon) -> None:
    for number in range(3):
        daemon.set(b"a:1:0:%d" % number)
    daemon.cool()
    before = dict(daemon.engine.counters.requests)
    asked = request(Function.NEXT, b"a", flags=Flag.DATA, count=2)
    missing = daemon.try_once(asked)
    assert isinstance(missing, Missing)
    assert [entry.key for entry in missing.entries] == [b"a:1:0:0", b"a:1:0:1"], "all at once"
    assert daemon.engine.counters.requests == before, "it is counted when it is carried out"
    assert daemon.engine.store.leases.count == 0
    reply = daemon.ask(asked)
    assert [pair.value for pair in reply.pairs or ()] == [LONG, LONG]
    assert daemon.is_cold(b"a:1:0:2")


def test_next_of_any_domain_asks_for_one_value_of_each_in_turn(daemon: Daemon) -> None:
    for key in (b"a:1:0:1", b"a:1:0:2", b"a:1:0:3", b"b:1:0:1", b"c:1:0:1"):
        daemon.set(key)
    daemon.cool()
    missing = daemon.try_once(request(Function.NEXT, flags=Flag.DATA, count=4))
    assert isinstance(missing, Missing)
    wanted = [b"a:1:0:1", b"b:1:0:1", b"c:1:0:1", b"a:1:0:2"]
    assert [entry.key for entry in missing.entries] == wanted
    reply = daemon.ask(request(Function.NEXT, flags=Flag.DATA, count=4))
    assert [pair.key for pair in reply.pairs or ()] == wanted


def test_next_reads_nothing_behind_the_end_of_its_batch(daemon: Daemon) -> None:
    for key in (b"a:1:0:x", b"b:1:0:x"):
        daemon.set(key)
    limit = b'{"lease_us":5000000}'
    assert not daemon.ask(request(Function.LIMIT, b"b", limit, kind=ValueType.STRING)).error
    daemon.cool()
    missing = daemon.try_once(request(Function.NEXT, flags=Flag.DATA, count=2))
    assert isinstance(missing, Missing)
    assert [entry.key for entry in missing.entries] == [b"a:1:0:x"]


def test_next_lets_be_read_what_others_will_take_as_far_as_it_stays_in_memory(
    daemon: Daemon,
) -> None:
    for number in range(9):
        daemon.set(b"a:1:0:%d" % number)
    daemon.cool()
    engine = daemon.engine
    values = engine.store.values
    assert values is not None
    engine.context.fetching = 4
    asked = request(Function.NEXT, b"a", flags=Flag.DATA)

    def wanted() -> list[bytes]:
        missing = daemon.try_once(asked)
        assert isinstance(missing, Missing)
        return [entry.key[-1:] for entry in missing.entries]

    assert wanted() == [b"0"], "nothing stays"
    values.kept_bytes = 3 * len(LONG)
    assert wanted() == [b"0", b"1", b"2"]
    values.kept_bytes = 30 * len(LONG)
    assert wanted() == [b"0", b"1", b"2", b"3", b"4"]
    daemon.ask(get(b"a:1:0:0"))
    assert isinstance(daemon.try_once(asked), Reply), "what others take is not waited for"


def test_values_that_are_not_delivered_are_not_read_while_memory_is_scarce(daemon: Daemon) -> None:
    daemon.set(b"a:1:0:x", b"v" * 10_000)
    daemon.cool()
    daemon.engine.context.ration(4096)
    refused = daemon.try_once(request(Function.NEXT, b"a", flags=Flag.DATA))
    assert isinstance(refused, Reply)
    assert refused.code == "busy"
    assert isinstance(daemon.try_once(request(Function.NEXT, b"a")), Reply)


def test_waiting_next_gets_an_evicted_value_only_once_it_was_read(daemon: Daemon) -> None:
    daemon.set(b"a:1:%d:x" % (START + 1000))
    daemon.cool()
    waits = request(Function.NEXT, b"a", flags=Flag.DATA | Flag.LISTEN)
    assert daemon.engine.handle("waiter", waits, START) is None
    engine, now = daemon.engine, START + 1000
    engine.advance(now)
    assert engine.serve_waiters(now) == []
    (entry,) = engine.dispatcher.awaited.values()
    assert engine.next_wake() != 0, "nothing is to be done but reading"
    daemon.fetch(Missing([entry]))
    engine.dispatcher.awaited.clear()
    ((session, data),) = engine.serve_waiters(now)
    assert session == "waiter"
    assert decode_reply(data).pairs[0].value == LONG
    assert not engine.dispatcher.awaited


def test_waiting_next_of_many_for_evicted_values_gets_a_part_at_a_time(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, now = 40, START + 1000
    for domain in range(number):
        for count in range(5):
            daemon.set(b"d%02d:1:%d:%d" % (domain, now, count), b"v" * 40_000)
    daemon.cool()
    engine = daemon.engine
    for domain in range(number):
        waits = request(Function.NEXT, b"d%02d" % domain, flags=Flag.DATA | Flag.LISTEN, count=5)
        assert engine.handle(domain, waits, START) is None
    looks = 0
    ready_at = engine.store.scheduler.ready_at

    def counted(domain: Domain, rank: int) -> Entry:
        nonlocal looks
        looks += 1
        return ready_at(domain, rank)

    monkeypatch.setattr(engine.store.scheduler, "ready_at", counted)
    served: list[object] = []
    rounds = 0
    while len(served) < number:
        engine.advance(now)
        served += [session for session, _ in engine.serve_waiters(now)]
        if not engine.dispatcher.awaited:
            continue
        rounds += 1
        assert (
            sum(len(entry.value) for entry in engine.dispatcher.awaited.values()) <= 2**20 + 200_000
        )
        looks = 0
        for _ in range(9):
            # while it is read
            served += [session for session, _ in engine.serve_waiters(now)]
        assert looks <= 9 * 10, "who waits for the disk is not looked at again"
        daemon.fetch(Missing(list(engine.dispatcher.awaited.values())))
        engine.dispatcher.awaited.clear()
    assert sorted(served) == list(range(number))
    assert rounds >= number * 200_000 // (2**20 + 200_000)


def test_waiting_next_for_values_in_memory_does_not_wait_for_the_disk(daemon: Daemon) -> None:
    now = START + 1000
    daemon.set(b"a:1:%d:cold" % now)
    daemon.cool()
    daemon.set(b"b:1:%d:warm" % (now + 1))
    engine = daemon.engine
    for domain in (b"a", b"b"):
        waits = request(Function.NEXT, domain, flags=Flag.DATA | Flag.LISTEN)
        assert engine.handle(domain, waits, START) is None
    assert engine.serve_waiters(now) == []
    assert engine.dispatcher.awaited
    assert [session for session, _ in engine.serve_waiters(now + 1)] == [b"b"]
    daemon.fetch(Missing(list(engine.dispatcher.awaited.values())))
    engine.dispatcher.awaited.clear()
    assert [session for session, _ in engine.serve_waiters(now + 1)] == [b"a"]


def test_scan_reads_what_it_comes_to_and_what_is_ahead(daemon: Daemon) -> None:
    for number in range(50):
        daemon.set(b"key/%02d" % number, uri=b"uri/%02d" % number)
    daemon.cool()
    query = Query.RANGE << QUERY_SHIFT
    everything = request(Function.GET, b"", uri=b"", flags=query | Flag.DATA)
    missing = daemon.try_once(everything)
    assert isinstance(missing, Missing)
    assert 10 < len(missing.entries) <= 50
    assert len({entry.key for entry in missing.entries}) == len(missing.entries)
    reply = daemon.ask(everything)
    assert [pair.value for pair in reply.pairs or ()] == [LONG] * 100
    assert daemon.read <= 100


def test_prefetch_reads_the_values_of_the_gets_behind_one_within_a_reply(daemon: Daemon) -> None:
    for number in range(5):
        daemon.set(b"key/%d" % number)
    daemon.cool()
    first = daemon.try_once(get(b"key/0"))
    assert isinstance(first, Missing)
    ahead = [
        *(get(b"key/1"), get(b"key/0"), get(b"key/2", Flag.META), get(b"nothing"), get(b"key/3")),
        request(Function.DELETE, b"key/4"),
    ]
    entries = missing_soon(daemon.engine.context, first, ahead).entries
    assert [entry.key for entry in entries] == [b"key/0", b"key/1", b"key/3"]
    daemon.engine.context.reply_bytes_max = 2 * len(LONG)
    entries = missing_soon(daemon.engine.context, first, ahead).entries
    assert [entry.key for entry in entries] == [b"key/0", b"key/1"]


def test_cache_fill_for_an_entry_that_changed_meanwhile_is_not_taken(daemon: Daemon) -> None:
    daemon.set(b"key")
    daemon.cool()
    store = daemon.engine.store
    entry = store.find(b"key")
    assert entry is not None
    job_id = entry.job_id
    fill_value(store, entry, b"of another record", b"x" * len(LONG))
    assert daemon.is_cold(b"key")
    again = request(Function.SET, b"key", b"new", flags=Flag.PERSIST | Flag.OVERWRITE, at=START + 1)
    assert not daemon.ask(again).error
    fill_value(store, entry, job_id, LONG)
    daemon.check()
    assert daemon.ask(get(b"key")).pairs[0].value == b"new"


# --- what is cut on the disk ----------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(5,), (400,), (5, 400), (400, 5, 10), (0, 7), (300, 299)])
@pytest.mark.parametrize("restart", [False, True])
def test_value_is_cut_and_filled_up_without_being_read(
    daemon: Daemon, sizes: tuple[int, ...], restart: bool
) -> None:
    daemon.set(b"key")
    daemon.cool()
    expected = LONG
    for size in sizes:
        expected = expected[:size].ljust(size, b"\0")
        number = size.to_bytes(2)
        asked = request(
            *(Function.TRUNCATE, b"key", number), kind=ValueType.INTEGER, flags=Flag.PERSIST
        )
        reply = daemon.try_once(asked)
        assert isinstance(reply, Reply)
        assert not reply.error
        daemon.cool()
    if restart:
        daemon.restart(START)
        daemon.check()
    assert daemon.ask(get(b"key")).pairs[0].value == expected


# --- what cannot be read --------------------------------------------------------------------------


@pytest.mark.rule("Errors: `not-readable`")
def test_value_that_cannot_be_read_is_not_readable_until_it_can(daemon: Daemon) -> None:
    daemon.set(b"key")
    daemon.cool()
    daemon.broken.add(b"key")
    assert daemon.ask(get(b"key")).error == f"not-readable {WHY}"
    daemon.broken.clear()
    assert daemon.ask(get(b"key")).pairs[0].value == LONG


def test_next_sets_aside_what_cannot_be_read_and_hands_out_the_rest(daemon: Daemon) -> None:
    for number in range(3):
        daemon.set(b"a:1:0:%d" % number)
    daemon.cool()
    daemon.broken.add(b"a:1:0:0")
    reply = daemon.ask(request(Function.NEXT, flags=Flag.DATA, count=5))
    assert [pair.key for pair in reply.pairs or ()] == [b"a:1:0:1", b"a:1:0:2"]
    entry = daemon.engine.store.find(b"a:1:0:0")
    assert entry is not None
    assert entry.reason == WHY.encode()
    daemon.restart(START)
    assert daemon.engine.store.scheduler.buried == 1, "also after a restart"


@pytest.mark.rule("NEXT: If the value of every entry that became due cannot be read")
@pytest.mark.parametrize("domain", [b"a", b""], ids=["named", "any"])
def test_waiting_next_goes_on_waiting_where_all_that_is_ready_cannot_be_read(
    daemon: Daemon, domain: bytes
) -> None:
    for key in (b"a:1:0:bad", b"b:1:0:other"):
        daemon.set(key)
    leased = daemon.ask(request(Function.NEXT, b"a"))
    daemon.ask(request(Function.NEXT, b"b"))
    flags = Flag.LISTEN | Flag.DATA
    assert daemon.handle("waits", request(Function.NEXT, domain, flags=flags), START) is None
    release = request(Function.RELEASE, b"a:1:0:bad", flags=Flag.WORKED_ON, timeout=leased.timeout)
    daemon.cool()
    assert not daemon.ask(release).error
    assert daemon.engine.serve_waiters(START) == []
    assert set(daemon.engine.dispatcher.awaited) == {b"a:1:0:bad"}
    daemon.broken.add(b"a:1:0:bad")
    unreadable = daemon.fetch(Missing(list(daemon.engine.dispatcher.awaited.values())))
    daemon.engine.dispatcher.awaited.clear()
    assert daemon.engine.serve_waiters(START, unreadable) == []
    assert daemon.engine.store.scheduler.buried == 1
    assert len(daemon.engine.waiters) == 1
    daemon.check()
    daemon.set(b"a:1:0:good")
    [(_, data)] = daemon.engine.serve_waiters(START)
    assert [pair.key for pair in decode_reply(data).pairs or ()] == [b"a:1:0:good"]


def test_reason_may_name_a_path_that_is_no_text_and_is_cut(daemon: Daemon) -> None:
    daemon.set(b"a:1:0:x")
    daemon.cool()
    daemon.broken.add(b"a:1:0:x")
    daemon.why = "/\udcff/" + "x" * 5000
    assert daemon.ask(request(Function.NEXT, b"a", flags=Flag.DATA)).pairs == []
    entry = daemon.engine.store.find(b"a:1:0:x")
    assert entry is not None
    assert (entry.reason or b"").startswith(rb"/\udcff/xxx")
    assert len(entry.reason or b"") == 4096


def test_failed_read_of_a_value_counts_for_no_later_request(daemon: Daemon) -> None:
    for number in range(3):
        daemon.set(b"a:1:0:%d" % number)
    daemon.cool()
    daemon.broken = {b"a:1:0:%d" % number for number in range(3)}
    # all of them were read, and the request was about the first one
    unreadable = daemon.fetch(Missing(list(daemon.engine.store)))
    assert len(unreadable) == 3
    asked = daemon.try_once(get(b"a:1:0:0"), unreadable)
    assert isinstance(asked, Reply)
    assert asked.code == "not-readable"
    daemon.broken.clear()
    reply = daemon.ask(request(Function.NEXT, flags=Flag.DATA, count=5))
    assert len(reply.pairs or ()) == 3, "the disk is well again"
    assert daemon.engine.store.scheduler.buried == 0


def test_missing_values_have_handlers_that_are_told_of_failed_reads() -> None:
    misses = {
        function
        for function, handler in HANDLERS.items()
        if "Missing" in str(get_annotations(handler)["return"])
    }
    assert misses == VALUE_HANDLERS.keys()
    assert Function.GET in misses


def test_failed_read_of_one_entry_counts_until_the_request_is_done(
    daemon: Daemon,
) -> None:
    for key in (b"a:1:0:bad", b"a:1:0:good"):
        daemon.set(key)
        daemon.ask(request(Function.BURY, key, b"why"))
    daemon.cool()
    asked = request(Function.KICK, uri=b"a", count=2)
    daemon.broken.add(b"a:1:0:bad")
    missing = daemon.try_once(asked)
    assert isinstance(missing, Missing)
    unreadable = daemon.fetch(missing)
    # what could be read has left memory again
    daemon.cool()
    again = daemon.try_once(asked, unreadable)
    assert isinstance(again, Missing)
    assert [entry.key for entry in again.entries] == [b"a:1:0:good"]
    assert daemon.fetch(again) == {}
    kicked = daemon.try_once(asked, unreadable)
    assert isinstance(kicked, Reply)
    assert kicked.ttl == 1


def test_next_that_buries_is_asked_again_for_the_values_that_it_misses_then(
    daemon: Daemon,
) -> None:
    for key in (b"a:1:0:bad", b"a:1:0:good"):
        daemon.set(key)
    daemon.cool()
    daemon.broken.add(b"a:1:0:bad")
    asked = request(Function.NEXT, flags=Flag.DATA)
    first = daemon.try_once(asked)
    assert isinstance(first, Missing)
    assert [entry.key for entry in first.entries] == [b"a:1:0:bad"]
    appended = daemon.writer.appended
    second = daemon.try_once(asked, daemon.fetch(first))
    assert isinstance(second, Missing)
    assert [entry.key for entry in second.entries] == [b"a:1:0:good"]
    assert daemon.engine.store.scheduler.buried == 1
    assert daemon.writer.appended > appended, "the record of the burial is behind the reply's mark"
    daemon.check()
    daemon.fetch(second)
    reply = daemon.try_once(asked)
    assert isinstance(reply, Reply)
    assert [pair.key for pair in reply.pairs or ()] == [b"a:1:0:good"]


def test_unreadable_values_are_buried_in_one_go(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 60
    for count in range(2 * number):
        daemon.set(b"a:1:0:%03d" % count, b"v" * 100)
    daemon.cool()
    for count in range(number):
        assert daemon.ask(get(b"a:1:0:%03d" % count)).pairs
    daemon.broken = {b"a:1:0:%03d" % (number + count) for count in range(number)}
    asked = request(Function.NEXT, flags=Flag.DATA, count=2 * number)
    missing = daemon.try_once(asked)
    assert isinstance(missing, Missing)
    unreadable = daemon.fetch(missing)
    looks = 0
    ready_at = daemon.engine.store.scheduler.ready_at

    def counted(domain: Domain, rank: int) -> Entry:
        nonlocal looks
        looks += 1
        return ready_at(domain, rank)

    monkeypatch.setattr(daemon.engine.store.scheduler, "ready_at", counted)
    reply = daemon.try_once(asked, unreadable)
    assert isinstance(reply, Reply)
    assert len(reply.pairs or ()) == number
    assert looks == 3 * number, "all, and once more what is left"


def test_unreadable_values_are_not_kicked_and_do_not_keep_others_buried(daemon: Daemon) -> None:
    for number in range(2):
        daemon.set(b"a:1:0:%d" % number)
        daemon.ask(request(Function.BURY, b"a:1:0:%d" % number, b"why"))
    daemon.cool()
    daemon.broken.add(b"a:1:0:0")
    assert daemon.ask(request(Function.KICK, b"a:1:0:0")).code == "not-readable"
    assert daemon.ask(request(Function.KICK, uri=b"a", count=10)).ttl == 1
    assert daemon.engine.store.scheduler.buried == 1


def test_bury_with_another_reason_of_an_unreadable_value_is_refused(daemon: Daemon) -> None:
    daemon.set(b"a:1:0:x")
    daemon.ask(request(Function.BURY, b"a:1:0:x", b"why"))
    daemon.cool()
    same = daemon.try_once(request(Function.BURY, b"a:1:0:x", b"why"))
    assert isinstance(same, Reply), "nothing is written for the same reason"
    daemon.broken.add(b"a:1:0:x")
    assert daemon.ask(request(Function.BURY, b"a:1:0:x", b"why not")).code == "not-readable"
    daemon.broken.clear()
    assert not daemon.ask(request(Function.BURY, b"a:1:0:x", b"why not")).error


def test_scan_over_what_cannot_be_read_says_so(daemon: Daemon) -> None:
    daemon.set(b"key")
    daemon.cool()
    daemon.broken.add(b"key")
    query = Query.RANGE << QUERY_SHIFT
    reply = daemon.ask(request(Function.GET, b"", uri=b"", flags=query | Flag.DATA))
    assert reply.error == f"not-readable {WHY}"


def test_listener_is_told_that_a_value_cannot_be_read(daemon: Daemon) -> None:
    daemon.set(b"key")
    daemon.cool()
    everything = request(
        *(Function.GET, b""), uri=b"", flags=Query.RANGE << QUERY_SHIFT | Flag.LISTEN
    )
    daemon.ask(everything)
    linked = request(Function.LINK, b"key", uri=b"link", flags=Flag.PERSIST)
    daemon.ask(linked)
    daemon.engine.notifications.match()
    missing = missing_notifications(daemon.engine.context, "session")
    assert missing is not None
    assert daemon.engine.notifications.pop("session", START) == b"", "not before it was looked for"
    daemon.broken.add(b"key")
    unreadable = daemon.fetch(missing)
    assert missing_notifications(daemon.engine.context, "session", unreadable) is None
    told = decode_reply(daemon.engine.notifications.pop("session", START, unreadable))
    assert told.error == f"not-readable {WHY}"
    (pair,) = told.pairs or ()
    assert (pair.key, pair.value) == (b"link", b"")
    assert pair.meta is not None, "it stands there"


# --- work that takes the whole entry anew ---------------------------------------------------------


def test_attempt_256_reads_the_value_for_a_new_job(daemon: Daemon) -> None:
    daemon.set(b"a:1:0:x")
    entry = daemon.engine.store.find(b"a:1:0:x")
    assert entry is not None
    for _ in range(255):
        daemon.ask(request(Function.NEXT))
        daemon.ask(request(Function.RELEASE, b"a:1:0:x", flags=Flag.WORKED_ON, timeout=entry.token))
    daemon.cool()
    assert isinstance(daemon.try_once(request(Function.NEXT)), Missing)
    assert daemon.ask(request(Function.NEXT)).pairs
    daemon.cool()
    assert daemon.ask(get(b"a:1:0:x")).pairs[0].value == LONG
