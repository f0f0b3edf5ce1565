"""Native records: the leaves write the bytes of Python, and leave the same state behind.

Each session goes through two journals, one with the leaves and one without.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal import _native
from fastjournal.cmdlog.format.endings import COMPLETED
from fastjournal.cmdlog.format.layout import pack_position
from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.format.workq import ATTEMPTS_MAX, SCHEDULED_US_BACK
from fastjournal.errors import LogFailedError
from fastjournal.limits import INSTANT_MAX
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import ARRIVAL_MAX, AccessTimes, Cold, Entry, Extra
from fastjournald.tables.key_table import KeyTable
from fastjournald.wal.journal import Journal
from fastjournald.wal.live_capture import LiveCapture
from tests.property.test_bulk_requests import ask_twins
from tests.property.test_determinism import crashing_run

pytestmark = pytest.mark.skipif(_native.leaves is None, reason=_native.reason)

NOW = 1_700_000_000_000_000


@contextmanager
def pure() -> Iterator[None]:
    """Only the functions in Python run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "leaves", None)
        yield


class Calls:
    """Counts what the leaves do themselves: they return something else than None."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        for name in ("store_entries", "begin_leases", "pack_completions"):
            patch.setattr(_native.leaves, name, self._counted(name))

    def _counted(self, name: str) -> Callable[..., Any]:
        leaf = getattr(_native.leaves, name)

        def counted(*args: Any) -> Any:
            result = leaf(*args)
            if result not in (None, (None, 0)):
                self.done.append(name)
            return result

        return counted


class Log:
    """A journal, and the bytes that it appended."""

    def __init__(self, segment: int = 3) -> None:
        self.data = bytearray()
        self.records = 0
        self.segment = segment
        self.journal = Journal(self.append, seed=b"12345678", lease_us=5_000_000)
        self.domains: dict[bytes, Domain] = {}

    def append(self, data: bytes, records: int, now: int) -> int:
        position = pack_position(self.segment, 8 + len(self.data))
        self.data += data
        self.records += records
        return position

    def domain(self, name: bytes) -> Domain:
        return self.domains.setdefault(name, Domain(name))

    def state(self, entries: list[Entry]) -> tuple[Any, ...]:
        """Return all that the journal knows, and all of the entries that it may change."""
        records, journal = self.journal.records, self.journal
        return (
            [(each.facts, each.run, each.job_id, repr(each.extra)) for each in entries],
            [(job_id, entry.key) for job_id, entry in records.amended.items()],
            (records.superseded, records.erasers, records.trimmed, records.live_bytes),
            (dict(journal.usage.live), journal.usage._runs, vars(journal.ids)),
            (journal.leases.last_token, self.records, bytes(self.data)),
        )


def both(session: Callable[[Log], list[Entry]]) -> None:
    """Play a session with the leaves and without: all is equal, and each record is whole."""
    native, expected = Log(), Log()
    entries = session(native)
    with pure():
        same_entries = session(expected)
    assert native.state(entries) == expected.state(same_entries)
    at, records = 0, 0
    while at < len(native.data):
        _, at = decode_record(bytes(native.data), at)
        records += 1
    assert records == native.records


# --- drawn entries --------------------------------------------------------------------------------

INSTANTS = st.one_of(
    st.sampled_from([0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, INSTANT_MAX]),
    st.sampled_from([NOW, NOW + 1, NOW - SCHEDULED_US_BACK, NOW - SCHEDULED_US_BACK + 1]),
    st.integers(0, INSTANT_MAX),
)
NOWS = st.one_of(
    st.just(NOW),
    st.sampled_from([0, 999_999, SCHEDULED_US_BACK - 1, SCHEDULED_US_BACK, INSTANT_MAX]),
    INSTANTS,
)
SIZES = st.one_of(
    st.integers(0, 300), st.sampled_from([127, 128, 255, 256, 257, 65_535, 65_536, 70_000])
)
DOMAINS = st.sampled_from([b"", b"a", b"example.org", b"fj.own", b"\xff odd \0", b"d" * 300])
EXTRAS = st.one_of(
    st.none(),
    st.builds(lambda due: Extra(first_due=due), INSTANTS),
    st.builds(lambda at: Extra(changed=at, seen=at, first_due=at), INSTANTS),
    st.builds(lambda at: AccessTimes(changed=at, seen=at), INSTANTS),
)
CHANGES = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "attempts": st.sampled_from([0, 1, 2, 253, 254, 255, 1000]),
            "starts": st.integers(0, 253),
            "changed": INSTANTS,
            "due": INSTANTS,
            "seen": INSTANTS,
        },
    ),
)
"""Fields of ``Extra`` that the start of a lease reads; None: it stays as it is."""
DRAWN = st.tuples(
    *(DOMAINS, st.integers(0, 255), INSTANTS, INSTANTS, st.one_of(st.none(), INSTANTS)),
    *(st.integers(0, 6), SIZES.filter(bool), st.one_of(st.none(), SIZES), SIZES, EXTRAS),
)


def entries_of(log: Log, drawn: list[tuple[Any, ...]], now: int) -> list[Entry]:
    """Return new entries as a bulk of SETs makes them; what is mutable is their own."""
    entries = []
    for name, priority, not_before, timestamp, created, kind, key, uri, value, extra in drawn:
        arrival = log.journal.ids.next_serial()
        born = now if created is None else created
        facts = pack_facts(priority, not_before, arrival, timestamp, born, kind)
        key_bytes = b"%d:" % arrival + b"k" * key
        uri_bytes = None if uri is None else b"%d/" % arrival + b"u" * uri
        entry = Entry(facts, key_bytes, uri_bytes, b"v" * value, log.domain(name))
        if extra is not None:
            fields = (getattr(extra, field) for field in type(extra).__struct_fields__)
            entry.extra = type(extra)(*fields)
        entries.append(entry)
    return entries


@given(st.lists(DRAWN, min_size=1, max_size=5), NOWS)
def test_native_records_of_new_entries_equal_those_of_python(
    drawn: list[tuple[Any, ...]], now: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)

        def session(log: Log) -> list[Entry]:
            entries = entries_of(log, drawn, now)
            log.journal.stored_new(entries, now, {})
            return entries

        both(session)
        assert calls.done == ["store_entries"]


@given(st.lists(DRAWN, min_size=1, max_size=6), st.data())
def test_native_records_of_replaced_and_completed_entries_equal_those_of_python(
    drawn: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    indexes = st.sampled_from(range(len(drawn)))
    replaced = dict(sorted(data.draw(st.dictionaries(indexes, INSTANTS)).items()))
    amended = data.draw(st.sets(indexes))
    leased = data.draw(st.lists(indexes, unique=True, min_size=1))
    now, timestamp = data.draw(NOWS), data.draw(INSTANTS)

    def session(log: Log) -> list[Entry]:
        journal, old = log.journal, entries_of(log, drawn, NOW)
        journal.stored_new(old, NOW, {})
        for at in amended:
            journal.touched(old[at], NOW)
            journal.resized(old[at], 3, NOW)
            journal.superseded(old[at], timestamp)
            journal.records.erasers.add(old[at].job_id)
        log.segment += 1
        new = entries_of(log, drawn, now)
        journal.stored_new(new, now, {at: (old[at], at_us) for at, at_us in replaced.items()})
        journal.leases.leased([new[at] for at in leased], NOW, now)
        journal.completed_all([(new[at], timestamp) for at in leased], now)
        return old + new

    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        both(session)
        assert calls.done == ["store_entries", "store_entries", "begin_leases", "pack_completions"]


@given(st.lists(DRAWN, min_size=1, max_size=6), st.data())
def test_native_records_of_leases_equal_those_of_python(
    drawn: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    now, again = data.draw(NOWS), data.draw(NOWS)
    changes = data.draw(st.lists(CHANGES, min_size=len(drawn), max_size=len(drawn)))
    leased = data.draw(st.permutations(range(len(drawn))))

    def session(log: Log) -> list[Entry]:
        leases, entries = log.journal.leases, entries_of(log, drawn, NOW)
        log.journal.stored_new(entries, NOW, {})
        for entry, fields in zip(entries, changes, strict=True):
            for name, value in (fields or {}).items():
                setattr(entry.own(), name, value)
        leases.leased([entries[at] for at in leased], NOW, now)
        for entry in entries:
            leases.returned(entry, again, delayed=False)
        leases.leased(entries, NOW, again, entries[:1], 3, [b"delivered"])
        return entries

    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        both(session)
        assert calls.done == ["store_entries", "begin_leases", "begin_leases"]


def test_native_records_of_single_entries_are_those_of_a_bulk_of_one() -> None:
    def session(log: Log) -> list[Entry]:
        (entry,) = entries_of(log, [PLAIN], NOW)
        log.journal.stored(entry, NOW)
        log.journal.leases.leased([entry], NOW + 1, NOW)
        log.journal.completed(entry, NOW, NOW, COMPLETED)
        return [entry]

    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        both(session)
        assert calls.done == ["store_entries", "begin_leases", "pack_completions"]


# --- what the leaves leave to Python --------------------------------------------------------------

PLAIN = (b"a", 1, 0, NOW, None, 1, 10, 20, 30, None)


def changed_arrival(log: Log, entry: Entry, arrival: int) -> None:
    entry.arrival = arrival


def capturing(log: Log, entry: Entry) -> None:
    records = log.journal.records
    tables = records.amended, records.trimmed, records.superseded
    records.capture = LiveCapture(KeyTable(0), *tables, 9)


RARE_NEW: dict[str, Callable[[Log, Entry], None]] = {
    "an arrival that a SET takes over": lambda log, entry: changed_arrival(log, entry, 1),
    "an arrival over those that an id has room for": lambda log, entry: changed_arrival(
        log, entry, ARRIVAL_MAX + 1
    ),
    "a live capture": capturing,
}


@pytest.mark.parametrize("rare", RARE_NEW)
def test_native_records_leave_rare_new_entries_to_python(rare: str) -> None:
    def session(log: Log) -> list[Entry]:
        first = entries_of(log, [PLAIN], NOW)
        log.journal.stored_new(first, NOW, {})
        entries = entries_of(log, [PLAIN] * 3, NOW)
        RARE_NEW[rare](log, entries[1])
        log.journal.stored_new(entries, NOW, {0: (first[0], NOW)})
        return first + entries

    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        both(session)
        assert calls.done == ["store_entries"]


def test_native_records_leave_completions_of_entries_without_a_record_to_python() -> None:
    def session(log: Log) -> list[Entry]:
        persistent, other = entries = entries_of(log, [PLAIN] * 2, NOW)
        log.journal.stored_new([persistent], NOW, {})
        log.journal.leases.leased(entries, NOW + 1, NOW)
        log.journal.completed_all([(other, NOW), (persistent, NOW)], NOW)
        return entries

    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        both(session)
        assert calls.done == ["store_entries", "begin_leases"]


def test_native_records_leave_the_start_of_a_new_job_to_python() -> None:
    """workq accepts 255 attempts of one job: the next one is that of a new job."""

    def session(log: Log) -> list[Entry]:
        entries = entries_of(log, [PLAIN] * 3, NOW)
        log.journal.stored_new(entries, NOW, {})
        entries[1].own().starts = ATTEMPTS_MAX
        log.journal.leases.leased(entries, NOW + 1, NOW)
        return entries

    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        both(session)
        assert calls.done == ["store_entries"]


def leaf_arguments(log: Log) -> tuple[Any, ...]:
    ids, encode = log.journal.ids, log.journal._encode
    return (
        *(log.journal.records.tables, ids.prefix, ids.run, ids.entry_serial),
        *(encode._plain_header, encode._header_of_domain, log.append),
    )


def test_native_records_change_nothing_where_a_value_is_not_in_memory() -> None:
    log = Log()
    entries = entries_of(log, [PLAIN] * 2, NOW)
    before = log.state(entries)
    entries[1].value = Cold(3)
    assert _native.leaves is not None
    assert _native.leaves.store_entries(entries, NOW, {}, *leaf_arguments(log)) is None
    assert log.state(entries) == before


def test_native_records_refuse_other_arguments() -> None:
    log, leaves = Log(), _native.leaves
    assert leaves is not None
    (entry,) = entries_of(log, [PLAIN], NOW)
    with pytest.raises(TypeError):
        leaves.store_entries((entry,), NOW, {}, *leaf_arguments(log))
    with pytest.raises(TypeError):
        leaves.store_entries([entry], -1, {}, *leaf_arguments(log))
    with pytest.raises(TypeError):
        leaves.pack_completions([], NOW, ())
    with pytest.raises(TypeError):
        leaves.begin_leases([entry], NOW, ())
    assert leaves.store_entries([None], NOW, {}, *leaf_arguments(log)) is None
    tables = log.journal.records.tables
    assert leaves.pack_completions([(entry, NOW)], NOW, tables) == (None, 0)
    assert leaves.begin_leases([entry], NOW, {}) is None
    entry.facts += bytes(1)
    assert leaves.store_entries([entry], NOW, {}, *leaf_arguments(log)) is None


def test_native_records_pass_on_an_exception_of_the_header() -> None:
    log = Log()
    entries = entries_of(log, [PLAIN], NOW)
    before = log.state(entries)

    def failing(domain: Domain) -> bytes:
        raise ValueError(domain.name)

    assert _native.leaves is not None
    arguments = (*leaf_arguments(log)[:-2], failing, log.append)
    with pytest.raises(ValueError, match="a"):
        _native.leaves.store_entries(entries, NOW, {}, *arguments)
    assert log.state(entries) == before


@pytest.mark.parametrize("position", [-1, 1 << 80, b"", LogFailedError("closed")])
def test_native_records_refuse_what_is_no_position(position: object) -> None:
    log = Log()
    entries = entries_of(log, [PLAIN], NOW)
    facts = entries[0].facts

    def append(data: bytes, records: int, now: int) -> object:
        if isinstance(position, LogFailedError):
            raise position
        return position

    assert _native.leaves is not None
    with pytest.raises((ValueError, TypeError, LogFailedError)):
        _native.leaves.store_entries(entries, NOW, {}, *leaf_arguments(log)[:-1], append)
    assert entries[0].facts == facts


# --- references -----------------------------------------------------------------------------------


def life_of_jobs(log: Log, now: int) -> list[Entry]:
    """Store, move, lease and complete some entries."""
    drawn = [PLAIN, (b"", 0, 0, 1, 2, 1, 3, None, 4, Extra(first_due=7))]
    old, journal = entries_of(log, drawn, now), log.journal
    journal.stored_new(old, now, {})
    new = entries_of(log, drawn, now)
    journal.stored_new(new, now, {0: (old[0], now), 1: (old[1], now)})
    journal.leases.leased(new, now + 1, now)
    journal.completed_all([(entry, now) for entry in new], now)
    log.data.clear()
    return new


def test_native_records_keep_no_reference() -> None:
    log = Log()
    life_of_jobs(log, NOW)
    shared = [*log.journal.records.tables, log.journal.ids.run, log.domain(b"a")]
    counts = list(map(sys.getrefcount, shared))
    tracemalloc.start()
    try:
        traced = []
        for _ in range(2):
            for _ in range(300):
                life_of_jobs(log, NOW)
            gc.collect()
            traced.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert list(map(sys.getrefcount, shared)) == counts
    # of 600 jobs in the second half, none is left
    assert traced[1] - traced[0] < 600


@pytest.mark.parametrize("leaf", ["store_entries", "begin_leases", "pack_completions"])
def test_native_records_raise_memory_error_at_any_allocation_that_fails(leaf: str) -> None:
    limits = pytest.importorskip("_testcapi")
    failed = 0
    while True:
        log = Log()
        jobs = entries_of(log, [PLAIN, PLAIN], NOW)
        log.domain(b"a").job_header = b"known"
        arguments: tuple[Any, ...] = (jobs, NOW, {}, *leaf_arguments(log))
        if leaf != "store_entries":
            log.journal.stored_new(jobs, NOW, {})
            arguments = jobs, NOW, log.journal.records.amended
        if leaf == "pack_completions":
            log.journal.leases.leased(jobs, NOW + 1, NOW)
            arguments = [(job, NOW) for job in jobs], NOW, log.journal.records.tables
        call = getattr(_native.leaves, leaf)
        limits.set_nomemory(failed)
        try:
            done = call(*arguments)
        except MemoryError:
            failed += 1
            continue
        finally:
            limits.remove_mem_hooks()
        assert done[0]
        assert failed > 3
        break


# --- whole logs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_native_records_make_the_log_of_python_in_a_random_session(seed: int) -> None:
    logs = [twin.log() for twin in ask_twins(seed)]
    with pure():
        assert [twin.log() for twin in ask_twins(seed)] == logs


@pytest.mark.parametrize("seed", range(4))
def test_native_records_leave_the_disk_of_python_after_crashes(seed: int) -> None:
    digest = crashing_run(seed)
    with pure():
        assert crashing_run(seed) == digest
