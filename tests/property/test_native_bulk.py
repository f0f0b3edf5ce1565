"""Native leaves of bulk requests: same replies, state, log, work and memory as their functions."""

from __future__ import annotations

import array
import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedList

from fastjournal import _native
from fastjournal.limits import (
    CLOCK_SKEW_US_MAX,
    FRESH_KEYS_MAX,
    GONE_KEYS_MAX,
    KEY_BYTES_MAX,
    WRITTEN_BYTES_MIN,
)
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Request
from fastjournald.engine.authorization import RIGHTS, Grant, Grants
from fastjournald.engine.engine import BULK_HANDLERS, Engine, Scan, Settings, new_journal
from fastjournald.engine.handlers.set import TYPE_MAX
from fastjournald.engine.handlers.table import CLASSES_OF_LEAVES
from fastjournald.engine.undelivered import DeliveringReply
from fastjournald.tables import key_table
from fastjournald.tables.sorted_entries import SortedEntries
from fastjournald.wal.journal import Journal
from tests.property.subject import SECOND, START

pytestmark = pytest.mark.skipif(_native.leaves is None, reason=f"leaves: {_native.reason}")

SESSION = "one"
TOKEN = b"of a and u"
GRANT = Grant("some", sha256(TOKEN).digest(), sum(RIGHTS.values()), (b"a:", b"u"))


# --- state of an engine as plain data -------------------------------------------------------------

_ATOMS = (int, float, bytes, str, bool, type(None))
_PARTS_LEFT_OUT = ("_encode", "encode", "append", "_append", "_key", "_order")
"""Encoders, which cache what they encode; where bytes go; functions."""


def fields_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, in slots or not."""
    for name in getattr(type(thing), "__struct_fields__", ()):
        yield name, getattr(thing, name)
    if not hasattr(type(thing), "__struct_fields__"):
        for base in type(thing).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(thing, name):
                    yield name, getattr(thing, name)
        yield from getattr(thing, "__dict__", {}).items()


def parts_of(thing: Any) -> Iterable[Any]:
    """Return what an object consists of, in an order that counts."""
    if isinstance(thing, set | frozenset):
        return sorted(thing, key=repr)
    if isinstance(thing, Mapping):
        own = [each for name, each in fields_of(thing) if not name.startswith("_OrderedDict")]
        return [part for item in thing.items() for part in item] + own
    if isinstance(thing, list | tuple | deque | SortedList | array.array):
        return list(thing)
    return [part for name, part in fields_of(thing) if name not in _PARTS_LEFT_OUT]


def state_of(*roots: Any) -> list[tuple[Any, ...]]:
    """Return all that objects refer to as data: equal if and only if both graphs are alike."""
    numbers = {id(root): number for number, root in enumerate(roots)}
    found: list[Any] = list(roots)
    state: list[tuple[Any, ...]] = []
    for thing in found:
        told: list[Any] = [type(thing).__name__]
        for part in parts_of(thing):
            if isinstance(part, _ATOMS):
                told.append(part)
            elif not callable(part):
                if id(part) not in numbers:
                    numbers[id(part)] = len(found)
                    found.append(part)
                told.append((numbers[id(part)],))
        state.append(tuple(told))
    return state


# --- twins ----------------------------------------------------------------------------------------


@contextmanager
def leaves_are(module: ModuleType | None) -> Iterator[None]:
    """Let callers find these leaves."""
    before = _native.leaves
    _native.leaves = module
    try:
        yield
    finally:
        _native.leaves = before


class Twin:
    """An engine with a log in memory, with native leaves or without."""

    def __init__(self, options: Settings, leaves: ModuleType | None) -> None:
        self.log = bytearray()
        self.leaves = leaves
        self.engine = Engine(options, self._journal(options))
        self.in_bulk = 0
        """Requests that were carried out in bulk."""

    def _journal(self, options: Settings) -> Journal:
        return new_journal(options, self._append, bytes(8))

    def _append(self, data: bytes, records: int, now: int) -> int:
        self.log += data
        return (1 << 40) + len(self.log) - len(data)

    def ask(self, requests: list[Request], now: int, stop: int) -> list[object]:
        """Carry out requests, in bulk where that is possible; return the replies."""
        engine, at = self.engine, 0
        replies: list[object] = []
        with leaves_are(self.leaves):
            while at < len(requests):
                done: list[bytes] = []
                if requests[at].function in BULK_HANDLERS:
                    done = engine.handle_bulk(SESSION, requests, now, at, at + stop)
                    self.in_bulk += len(done)
                if not done:
                    done = [self._alone(requests[at], now)]
                replies += done
                at += len(done)
            replies += engine.serve_waiters(now)
        engine.check()
        return replies

    def _alone(self, request: Request, now: int) -> Any:
        reply = self.engine.handle(SESSION, request, now)
        while isinstance(reply, Scan):
            reply = self.engine.step(reply, now)
        return reply

    def state(self) -> list[tuple[Any, ...]]:
        """Return all tables and counters, also of work and memory."""
        context = self.engine.context
        return state_of(
            self.engine.store, context.counters, context.tokens, context.waiters, context.replacing
        )


class Twins:
    """Two engines that are asked the same, one with leaves."""

    def __init__(self, **options: Any) -> None:
        given = Settings(lease_us_default=5 * SECOND, **options)
        self.both = [Twin(given, _native.leaves), Twin(given, None)]
        self.now = START
        self.leases: list[tuple[bytes, bytes | None, int]] = []
        """Key, URI and token of each lease so far."""

    def ask(self, requests: list[Request], stop: int = 1000) -> None:
        """Ask both, and compare."""
        native, pure = (twin.ask(requests, self.now, stop) for twin in self.both)
        assert native == pure
        assert self.both[0].log == self.both[1].log
        assert self.both[0].state() == self.both[1].state()
        assert self.both[0].in_bulk == self.both[1].in_bulk
        for reply in native:
            if isinstance(reply, DeliveringReply):
                token, entries = reply.jobs
                if token:
                    self.leases += [(entry.key, entry.uri, token) for entry in entries]

    def each(self, change: Any) -> None:
        """Change both engines."""
        for twin in self.both:
            change(twin.engine)


# --- random requests ------------------------------------------------------------------------------

PERSIST, LISTEN = int(Flag.PERSIST), int(Flag.LISTEN)
WORKED_ON, OVERWRITE = int(Flag.WORKED_ON), int(Flag.OVERWRITE)
DOMAINS = (b"a", b"b", b"c", b"d", b"a", b"")
PRIORITIES = (b"1", b"1", b"007", b"255", b"256", b"0255", b"x", b"")
INSTANTS = (b"0", b"0", b"%d" % (START + SECOND), b"%d" % START, b"%d" % (2**64), b"0" * 20 + b"1")


def mostly(usual: Any, *rare: Any) -> st.SearchStrategy[Any]:
    """Draw the usual value in most cases."""
    return st.sampled_from([usual] * (6 * len(rare)) + list(rare))


PLAIN_KEYS = st.builds(
    lambda domain, priority, instant, number: b"%b:%b:%b:%d" % (domain, priority, instant, number),
    *(st.sampled_from(each) for each in (DOMAINS, PRIORITIES, INSTANTS)),
    st.integers(0, 30),
)
JOB_KEYS = st.builds(
    lambda domain, priority, instant, number: b"%c:%d:%d:%d" % (domain, priority, instant, number),
    st.sampled_from(b"aaab"),
    st.integers(1, 3),
    st.sampled_from([0, 0, 0, START + 3, START + 3 * SECOND // 2, START + 3 * SECOND, 2**64 - 1]),
    st.integers(0, 10**6),
)
KEYS = st.one_of(JOB_KEYS, JOB_KEYS, PLAIN_KEYS, st.sampled_from([b"", b"p", b"u1", b"k" * 4097]))
FEW_URIS = st.builds(lambda number: b"u%d" % number, st.integers(0, 9))
URIS = st.one_of(
    st.none(),
    FEW_URIS,
    st.builds(lambda number: b"u%d" % number, st.integers(0, 10**6)),
    st.sampled_from([b"", b"p", b"a:1:0:1", b"u" * 4096, b"u" * 4097]),
)


def made_set(key: bytes, uri: bytes | None, flags: int, age: int, kind: Any, **other: Any) -> Any:
    return lambda now: Request(
        function=int(Function.SET),
        identifier=7,
        flags=flags | (0 if uri is None else Query.RANGE << QUERY_SHIFT),
        timestamp=now - age,
        key=key,
        second_key=uri,
        value_type=kind,
        **other,
    )


SETS = st.builds(
    made_set,
    KEYS,
    URIS,
    mostly(PERSIST, 0, PERSIST | LISTEN, PERSIST | OVERWRITE),
    mostly(0, 1, 2, -CLOCK_SKEW_US_MAX, -CLOCK_SKEW_US_MAX - 1),
    mostly(1, 0, 5, 6, None),
    value=mostly(b"v", b"", b"v" * 4096, b"v" * 4097),
    timeout=mostly(None, 0, START + SECOND),
    ttl=mostly(None, 0, SECOND),
)
JOBS = st.builds(
    made_set,
    JOB_KEYS,
    st.one_of(FEW_URIS, URIS),
    mostly(PERSIST, 0),
    st.just(0),
    st.just(1),
    value=st.just(b"value"),
)
WINDOWS = st.one_of(st.lists(JOBS, max_size=12), st.lists(SETS, max_size=6))


def asked_of_tables(draw: Any, twins: Twins) -> Request:
    """Return a request of another kind, mostly for an entry, which leaves it in another state."""
    now, standing = twins.now, [key for key, _ in twins.both[0].engine.store.keys.items()]
    keys = st.sampled_from(sorted(standing)) if standing and draw(mostly(True, False)) else KEYS
    function = draw(
        st.sampled_from(
            [
                *(Function.LINK, Function.LOCK, Function.UNLOCK, Function.DELETE, Function.BURY),
                *(Function.GET, Function.RELEASE, Function.TOUCH, Function.RENAME, Function.PAUSE),
                *(Function.LIMIT, Function.KICK),
            ]
        )
    )
    second = draw(URIS) if function in (Function.LINK, Function.RENAME) else None
    is_domain = function in (Function.PAUSE, Function.LIMIT)
    limit = draw(st.sampled_from([b'{"jobs":2}', b'{"interval_us":1000000}', b'{"jobs":0}']))
    return Request(
        int(function),
        flags=draw(mostly(PERSIST, 0)) | (0 if second is None else Query.RANGE << QUERY_SHIFT),
        timestamp=now,
        key=draw(st.sampled_from([b"a", b"b"])) if is_domain else draw(keys),
        second_key=second,
        value_type=2 if function == Function.LIMIT else None,
        value=limit if function == Function.LIMIT else b"",
        timeout=draw(st.sampled_from([0, SECOND])) if function != Function.DELETE else None,
    )


def completion(draw: Any, twins: Twins) -> Request:
    """Return a DELETE, mostly with the token of a lease that goes on."""
    at = draw(st.integers(0, 8))
    key, uri, token = twins.leases[-1 - at % len(twins.leases)]
    if uri is not None and draw(mostly(False, True)):
        key = uri
    return Request(
        int(Function.DELETE),
        9,
        WORKED_ON | draw(mostly(0, PERSIST, OVERWRITE)),
        twins.now,
        key,
        timeout=draw(mostly(token, token + 1, None)),
    )


def merge_index(engine: Engine) -> None:
    """Merge some keys into the index, if there is one."""
    if engine.store.keys.index is not None:
        engine.store.keys.index.merge(1000)


DELETES = ("DELETE", "DELETE")


def batch(draw: Any, twins: Twins) -> list[Request]:
    """Return requests of one client."""
    kind = draw(st.sampled_from(["SET", "SET", "MOVE", "MOVE", "NEXT", "NEXT", *DELETES, "other"]))
    standing = [entry for entry in twins.both[0].engine.store if entry.uri and entry.journal]
    if kind == "MOVE" and standing:
        # to another instant, mostly in their domains
        entries = draw(st.lists(st.sampled_from(standing), min_size=1, max_size=6))
        moved = [(entry.uri, draw(JOB_KEYS).split(b":", 1)[1]) for entry in entries]
        return [
            made_set(
                b"%b:%b" % (draw(mostly(entry.domain.name, b"a")), rest),
                uri,
                *(draw(mostly(PERSIST, 0)), draw(mostly(0, 5 * SECOND)), 1),
                value=b"moved",
            )(twins.now)
            for entry, (uri, rest) in zip(entries, moved, strict=True)
        ]
    if kind == "SET":
        return [made(twins.now) for made in draw(WINDOWS)]
    if kind == "NEXT":
        count = draw(st.sampled_from([1, 2, 30]))
        flags = draw(mostly(0, OVERWRITE, LISTEN))
        key = draw(st.sampled_from([b"", b"a", b"b"]))
        return [Request(int(Function.NEXT), 8, flags, twins.now, key, count=count)]
    if kind == "DELETE" and twins.leases:
        if draw(st.booleans()):
            # so its keys are removed from the blocks of the index
            twins.each(merge_index)
        return [completion(draw, twins) for _ in range(draw(st.integers(1, 10)))]
    return [asked_of_tables(draw, twins) for _ in range(draw(st.integers(1, 3)))]


def disturb(draw: Any, twins: Twins) -> None:
    """Change what bulk handlers depend on."""
    event = draw(st.sampled_from(["index", "capture", "grant", "any", "read only"]))
    if event == "index":
        twins.each(lambda engine: engine.store.keys.sorted_keys())
    elif event == "capture":

        def capture(engine: Engine) -> None:
            store = engine.store
            if store.capture is None:
                store.begin_capture(1 << 10)
            else:
                store.end_capture()

        twins.each(capture)
    elif event in ("grant", "any"):

        def restrict(engine: Engine) -> None:
            engine.context.grants = Grants([GRANT]) if event == "grant" else None
            if engine.context.grants is not None:
                engine.context.grants.sessions[SESSION] = GRANT

        twins.each(restrict)
    else:

        def stop_writing(engine: Engine) -> None:
            engine.context.read_only = not engine.context.read_only

        twins.each(stop_writing)


@contextmanager
def few_keys_are_many() -> Iterator[None]:
    """Let the index have to be merged after few keys, so that this is signalled."""
    leaves = _native.leaves
    assert leaves is not None
    classes = {each.__name__: each for each in CLASSES_OF_LEAVES}
    limits = (KEY_BYTES_MAX, WRITTEN_BYTES_MIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_table, "FRESH_KEYS_MAX", 20)
        patch.setattr(key_table, "GONE_KEYS_MAX", 2)
        leaves.bind_bulk(classes, *limits, 20, 2, TYPE_MAX, SortedEntries.LOAD)
        yield
    leaves.bind_bulk(classes, *limits, FRESH_KEYS_MAX, GONE_KEYS_MAX, TYPE_MAX, SortedEntries.LOAD)


@given(data=st.data())
@settings(max_examples=60)
def test_native_bulk_leaves_the_tables_as_its_functions_do(data: st.DataObject) -> None:
    twins = Twins(
        memory_bytes_max=data.draw(st.sampled_from([0, 0, 1 << 40])),
        cold_bytes_min=1,
        tombstones_max=data.draw(st.sampled_from([3, 1000])),
        postpone_us_max=data.draw(st.sampled_from([SECOND, 0, 2**63, 2**64])),
        attempts_max=2,
    )
    if data.draw(st.booleans()):
        twins.each(lambda engine: engine.store.keys.sorted_keys())
    with few_keys_are_many():
        for _ in range(data.draw(st.sampled_from([25, 25, 3]))):
            if data.draw(mostly(False, True)):
                disturb(data.draw, twins)
            requests: list[Request] = []
            for _ in range(data.draw(st.integers(1, 2))):
                requests += batch(data.draw, twins)
            twins.ask(requests, data.draw(mostly(1000, 1, 2, 3)))
            twins.now += data.draw(mostly(1, SECOND, 6 * SECOND))


# --- limits ---------------------------------------------------------------------------------------


def new_jobs(number: int, begin: int = 0) -> list[Request]:
    """Return SETs of new entries in some domains, the last one of a plain entry."""
    keys = [b"%c:1:0:%d" % (b"abc"[n % 3], n) for n in range(begin, begin + number - 1)]
    keys.append(b"plain %d" % begin)
    return [made_set(key, b"u of " + key, PERSIST, 0, 1, value=b"value")(START) for key in keys]


KEY, URI = b"a:1:0:new", b"u new"


@pytest.mark.parametrize(
    "changed",
    [
        *({"timestamp": START + CLOCK_SKEW_US_MAX + more} for more in (0, 1)),
        *({"key": b"a:1:0:" + b"k" * size} for size in (KEY_BYTES_MAX - 6, KEY_BYTES_MAX - 5)),
        *({"key": key} for key in (b"", URI, b":1:0:x", b"a::0:x", b"a:1::x", b"a:1:0", b"a:1:0:")),
        *(
            {"key": b"a:%b:0:x" % digits}
            for digits in (b"0", b"255", b"256", b"007", b"0007", b"-1")
        ),
        *({"key": b"a:1:%b:x" % digits} for digits in (b"%d" % (2**64 - 1), b"%d" % 2**64)),
        *({"key": b"a:1:%b:x" % (b"0" * size)} for size in (20, 21)),
        *({"second_key": uri} for uri in (None, b"", b"u" * KEY_BYTES_MAX, b"u" * 4097)),
        *({"value": b"v" * (WRITTEN_BYTES_MIN + more)} for more in (0, 1)),
        *({"value_type": kind} for kind in (None, 0, TYPE_MAX, TYPE_MAX + 1)),
        {"value_type": 0, "value": b""},
        *({name: number} for name in ("timeout", "ttl") for number in (0, SECOND)),
        {"flags": LISTEN},
        {"function": int(Function.GET), "value_type": None, "value": b""},
    ],
)
def test_native_insert_leaves_what_is_beyond_each_limit(changed: dict[str, Any]) -> None:
    twins = Twins()
    asked = Request(
        *(int(Function.SET), 1, PERSIST, START, KEY, URI, 1, b"v"),
    )
    for name, value in changed.items():
        setattr(asked, name, value)
    plain = made_set(b"a:1:0:y", None, PERSIST, 0, 1, value=b"v")(START)
    twins.ask([plain, asked, made_set(b"a:1:0:z", b"z", PERSIST, 0, 1, value=b"v")(START)])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_native_move_leaves_the_delay_of_the_last_ready_entry(number: int) -> None:
    twins = Twins()
    jobs = [made_set(b"a:1:0:%d" % n, b"u%d" % n, PERSIST, 0, 1, value=b"v") for n in range(number)]
    later = [b"a:1:%d:%d" % (START + SECOND, n) for n in range(number)]
    moved = [made_set(key, b"u%d" % n, PERSIST, 0, 1, value=b"w") for n, key in enumerate(later)]
    twins.ask([made(START) for made in jobs])
    twins.ask([made(START) for made in moved])
    assert twins.both[0].in_bulk == 2 * number - 1


@pytest.mark.parametrize("before_end", [0, 1])
def test_native_completion_leaves_a_lease_that_is_over(before_end: int) -> None:
    twins = Twins()
    twins.ask([*new_jobs(9), Request(int(Function.NEXT), key=b"a", count=3, timeout=SECOND)])
    key, _, token = twins.leases[-1]
    # the engine would end a lease first, where its clock goes on
    twins.each(lambda engine: setattr(engine.signals, "deadline", 2**64))
    twins.now = token - before_end
    done = Request(int(Function.DELETE), 1, WORKED_ON, twins.now, key, timeout=token)
    for twin in twins.both:
        with leaves_are(twin.leaves):
            assert len(twin.engine.handle_bulk(SESSION, [done], twins.now)) == before_end
    assert twins.both[0].state() == twins.both[1].state()


@pytest.mark.parametrize("domain", [b"", b"a"])
def test_native_delivery_ends_where_a_reply_has_no_room(domain: bytes) -> None:
    for room in range(100, 500, 7):
        twins = Twins()
        twins.each(lambda engine, room=room: engine.context.ration(room))
        asked = Request(int(Function.NEXT), flags=int(Flag.DATA), key=domain, count=20)
        twins.ask([*new_jobs(30), asked, asked])
        assert twins.leases


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("moves", [False, True])
def test_insert_without_memory_leaves_a_request_whole_or_not_at_all(moves: bool) -> None:
    """Each allocation fails once; the leaf takes back the request, and Python repeats it."""
    testcapi = pytest.importorskip("_testcapi")
    insert = _native.leaves.insert_waiting if _native.leaves else None
    assert insert is not None
    fails_at = 0
    while True:
        engine = Twin(Settings(), _native.leaves).engine
        store, ids = engine.store, engine.context.journal.ids
        index = store.keys.sorted_keys()
        # domains are created in Python, which is another matter
        engine.handle_bulk(SESSION, new_jobs(20), START)
        before, fresh = dict(store.keys.items()), index.fresh.copy()
        requests = new_jobs(6, begin=100)
        if moves:
            for number, asked in enumerate(requests):
                asked.key, asked.second_key = b"a:2:0:%d" % number, b"u of a:1:0:%d" % (3 * number)
        entries: list[Any] = []
        persistent: list[Any] = []
        replaced: list[Any] = []
        recorded: dict[int, Any] = {}
        replacing: list[Any] = []
        made = entries, persistent, replaced, recorded, replacing
        scheduler = store.scheduler
        tables = (
            *(ids, store.keys, store.tombstones, scheduler.domains, scheduler.domain_of),
            *(scheduler.plain, store.locked, None, START, 0),
        )
        done = None
        testcapi.set_nomemory(fails_at, fails_at + 1)
        try:
            done = insert(requests, 0, len(requests), START + 1, tables, made)
        except MemoryError:
            # of an argument or of the result: nothing, or all, was done
            assert len(entries) in (0, 6)
        finally:
            testcapi.remove_mem_hooks()
        assert entries == persistent
        assert done in (None, len(entries))
        assert [entry.key for entry in entries] == [each.key for each in requests[: len(entries)]]
        assert [old.uri for old, _ in replaced] == [entry.uri for entry in entries if moves]
        assert replacing == list(range(len(replaced))) == list(recorded)
        placed = {key: entry for entry in entries for key in (entry.key, entry.uri)}
        assert dict(store.keys.items()) == {**before, **placed}
        assert {key for key, stands in index.fresh.items() if stands} == {*fresh, *placed}
        assert done is None or ids.serial == 20 + len(entries)
        if done == 6:
            break
        fails_at += 1
    assert fails_at > 20


def leased_engine(number: int) -> tuple[Twin, list[Request]]:
    """Return an engine in which a domain has so many leased jobs, and the DELETEs of these."""
    twin = Twin(Settings(), _native.leaves)
    engine = twin.engine
    engine.store.keys.sorted_keys()
    with leaves_are(twin.leaves):
        assert len(engine.handle_bulk(SESSION, new_jobs(3 * number), START)) == 3 * number
        asked = Request(int(Function.NEXT), key=b"a", count=number)
        reply = engine.handle(SESSION, asked, START)
    assert isinstance(reply, DeliveringReply)
    token, entries = reply.jobs
    return twin, [
        Request(int(Function.DELETE), 1, WORKED_ON, START, entry.key, timeout=token)
        for entry in entries
    ]


def test_completion_without_memory_leaves_a_request_whole_or_not_at_all() -> None:
    testcapi = pytest.importorskip("_testcapi")
    fails_at = 0
    while True:
        twin, requests = leased_engine(6)
        store, completed, runs = twin.engine.store, list[Any](), list[Any]()
        scheduler, leases = store.scheduler, store.leases
        keys = dict(store.keys.items())
        tables = (
            *(store.keys, store.leased_uris, scheduler.plain, None, None, scheduler.leave),
            *(scheduler.round_robin.refresh, leases.leave_operation, completed, runs),
        )
        complete_leased = _native.leaves.complete_leased if _native.leaves else None
        assert complete_leased is not None
        # the last job of a domain or a lease takes steps in Python, which is another matter
        carried_out = 0
        testcapi.set_nomemory(fails_at, fails_at + 1)
        try:
            carried_out = complete_leased(requests, 0, 5, START, tables)
        except MemoryError:
            carried_out = len(completed)
        finally:
            testcapi.remove_mem_hooks()
        assert len(completed) == carried_out
        assert len(runs) == min(carried_out, 1)
        gone = {key for entry, _ in completed for key in (entry.key, entry.uri)}
        assert dict(store.keys.items()) == {k: e for k, e in keys.items() if k not in gone}
        store.entries -= carried_out
        leases.count -= carried_out
        if carried_out == 5:
            break
        fails_at += 1
    assert fails_at > 5


@pytest.mark.parametrize("completes", [False, True])
def test_bulk_leaves_reference_counts_as_they_were(completes: bool) -> None:
    requests = new_jobs(20)
    seen = [requests, *requests, *[r.key for r in requests], *[r.second_key for r in requests]]
    twin = Twin(Settings(), _native.leaves)
    engine, store = twin.engine, twin.engine.store
    store.keys.sorted_keys()

    def carry_out() -> None:
        with leaves_are(twin.leaves):
            assert len(engine.handle_bulk(SESSION, requests, START)) == len(requests)
            if completes:
                reply = engine.handle(SESSION, Request(int(Function.NEXT), count=100), START)
                assert isinstance(reply, DeliveringReply)
                token, entries = reply.jobs
                done = [
                    Request(int(Function.DELETE), 1, WORKED_ON, START, entry.key, timeout=token)
                    for entry in entries
                ]
                assert len(engine.handle_bulk(SESSION, done, START)) == len(requests) - 1
        for request in requests:
            asked = Request(int(Function.DELETE), timestamp=START, key=request.key)
            engine.handle(SESSION, asked, START)
            assert store.tombstones.discard(request.key)
        assert not store.entries
        store.keys.sorted_keys().fresh.clear()
        twin.log.clear()

    carry_out()
    gc.collect()
    before = [*map(sys.getrefcount, seen)], sys.getallocatedblocks()
    for _ in range(100):
        carry_out()
    assert gc.collect() == 0
    assert [*map(sys.getrefcount, seen)] == before[0]
    assert sys.getallocatedblocks() - before[1] < 100


class RemovingGrant:
    """A grant of everything that removes a key from the tables when it is asked.

    Args:
        engine: Has the tables.
        key: Which.
        token: That of its lease; None: it waits.
    """

    def __init__(self, engine: Engine, key: bytes, token: int | None = None) -> None:
        flags = 0 if token is None else WORKED_ON
        self._engine = engine
        self._request = Request(int(Function.DELETE), 1, flags, START, key, timeout=token)

    def covers_new(self, _key: bytes, _uri: bytes | None) -> bool:
        """Remove the entry before a SET takes its URI."""
        return self.covers(None)

    def covers(self, _entry: object) -> bool:
        """Remove the entry that is asked for."""
        self._engine.handle(SESSION, self._request, START)
        return True


@pytest.mark.parametrize("function", [Function.SET, Function.DELETE])
def test_grant_that_removes_an_entry_leaves_no_leaf_with_a_freed_one(function: Function) -> None:
    engine = Twin(Settings(), _native.leaves).engine
    first, second = new_jobs(2)
    engine.handle(SESSION, first, START)
    token = None
    if function == Function.SET:
        second.second_key = first.second_key
    else:
        delivery = engine.handle(SESSION, Request(int(Function.NEXT)), START)
        assert isinstance(delivery, DeliveringReply)
        token, _ = delivery.jobs
        del delivery
        second = Request(int(Function.DELETE), 1, WORKED_ON, START, first.key, timeout=token)
    grant: Any = RemovingGrant(engine, first.key, token)
    done = BULK_HANDLERS[int(function)](engine.context, [second], 0, 1, START, grant)
    # the SET takes the URI of an entry that is gone, so it adds one
    assert done == (function == Function.SET)
    assert [entry.key for entry in engine.store] == ([second.key] if done else [])
    engine.check()
