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
from fastjournald.tables.value_cache import Unreadable
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


def test_lru_cache_keeps_values_that_are_not_durable(daemon: Daemon) -> None:
    daemon.set(b"old")
    daemon.cool()
    daemon.set(b"new")
    daemon.writer.write()
    evict_values(daemon.engine.store, daemon.writer.durable_at, 1000)
    assert not daemon.is_cold(b"new"), "written, and not synced"
    daemon.cool()
    assert daemon.is_cold(b"new")


# --- how they come back ---------------------------------------------------------------------------


def test_values_that_are_not_delivered_are_not_read_while_memory_is_scarce(daemon: Daemon) -> None:
    daemon.set(b"a:1:0:x", b"v" * 10_000)
    daemon.cool()
    daemon.engine.context.ration(4096)
    refused = daemon.try_once(request(Function.NEXT, b"a", flags=Flag.DATA))
    assert isinstance(refused, Reply)
    assert refused.code == "busy"
    assert isinstance(daemon.try_once(request(Function.NEXT, b"a")), Reply)


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
    assert [pair.value for pair in daemon.ask(everything).pairs or ()] == [LONG] * 100
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


def test_value_that_cannot_be_read_is_not_readable_until_it_can(daemon: Daemon) -> None:
    daemon.set(b"key")
    daemon.cool()
    daemon.broken.add(b"key")
    assert daemon.ask(get(b"key")).error == f"not-readable {WHY}"
    daemon.broken.clear()
    assert daemon.ask(get(b"key")).pairs[0].value == LONG


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


def test_missing_values_have_handlers_that_are_told_of_failed_reads() -> None:
    misses = {
        function
        for function, handler in HANDLERS.items()
        if "Missing" in str(get_annotations(handler)["return"])
    }
    assert misses == VALUE_HANDLERS.keys()
    assert Function.GET in misses


def test_unreadable_values_are_not_kicked_and_do_not_keep_others_buried(daemon: Daemon) -> None:
    for number in range(2):
        daemon.set(b"a:1:0:%d" % number)
        daemon.ask(request(Function.BURY, b"a:1:0:%d" % number, b"why"))
    daemon.cool()
    daemon.broken.add(b"a:1:0:0")
    assert daemon.ask(request(Function.KICK, b"a:1:0:0")).code == "not-readable"
    assert daemon.ask(request(Function.KICK, uri=b"a", count=10)).ttl == 1
    assert daemon.engine.store.scheduler.buried == 1


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
