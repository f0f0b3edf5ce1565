"""Journal: what is not persistent leaves no record and no trace in its account."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastjournal.cmdlog.format.endings import DELETED
from fastjournal.cmdlog.format.layout import pack_position
from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.protocol.constants import Function
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry
from fastjournald.tables.signals import KEYS
from fastjournald.wal.journal import Journal
from fastjournald.wal.lease_journal import LeaseJournal
from tests.property.model_parts import Rules
from tests.property.subject import EngineSubject, Subject, request

NOW = 10

CHANGES: dict[str, Callable[[Journal, Entry], None]] = {
    "completed": lambda journal, entry: journal.completed(entry, NOW, NOW),
    "superseded": lambda journal, entry: journal.superseded(entry, 1),
    "popped": lambda journal, entry: journal.popped([entry], NOW),
    "restored": lambda journal, entry: journal.restored(entry, NOW),
    "deleted": lambda journal, entry: journal.deleted(entry, NOW, DELETED),
    "expired": lambda journal, entry: journal.expired(entry, NOW),
    "buried": lambda journal, entry: journal.buried(entry, NOW),
    "buried_again": lambda journal, entry: journal.buried_again(entry, NOW),
    "kicked": lambda journal, entry: journal.kicked([entry], NOW),
    "leased": lambda journal, entry: journal.leases.leased([entry], 1000, NOW, touched=[entry]),
    "lost": lambda journal, entry: journal.leases.lost(entry, NOW, delayed=True),
    "returned": lambda journal, entry: journal.leases.returned(entry, NOW, delayed=True),
    "failed": lambda journal, entry: journal.leases.failed(entry, NOW, delayed=True),
    "failed_before_removal": lambda journal, entry: journal.leases.failed_before_removal(
        entry, b"", NOW
    ),
    "purged": lambda journal, entry: journal.purged(
        [(entry, 1)], NOW, tombstones=True, persist=False
    ),
    "extended": lambda journal, entry: journal.leases.extended(entry, NOW),
    "end_moved": lambda journal, entry: journal.leases.end_moved(entry, NOW),
    "delay_moved": lambda journal, entry: journal.leases.delay_moved(entry, NOW),
    "touched": lambda journal, entry: journal.touched(entry, NOW),
    "revalued": lambda journal, entry: journal.revalued(entry, NOW),
    "resized": lambda journal, entry: journal.resized(entry, 3, NOW),
    "linked": lambda journal, entry: journal.linked(entry, b"link", NOW),
}
"""By name, all methods that tell of a change of an entry that is there already."""

ABOUT_MORE = {"stored", "stored_new", "completed_all", "copied_forward", "renamed"}
"""Those that make an entry persistent, take only such, or leave a tombstone besides."""


class Log:
    """A journal, and the number of records that it has appended."""

    def __init__(self) -> None:
        self.appended = 0
        self.journal = Journal(self.append, seed=b"12345678", lease_us=1)

    def append(self, data: bytes, records: int, now: int) -> int:
        self.appended += records
        return pack_position(3, self.appended)


def an_entry(arrival: int) -> Entry:
    facts = pack_facts(1, 2, arrival, 4, 5, 6)
    return Entry(facts, b"a:1:2:x%d" % arrival, None, b"value", Domain(b"a"))


def test_journal_changes_of_an_entry_are_all_tried() -> None:
    taking_entries = {
        name
        for name, method in {**vars(LeaseJournal), **vars(Journal)}.items()
        if not name.startswith("_")
        and {"entry", "entries"} & set(getattr(method, "__annotations__", ()))
    }
    assert taking_entries == CHANGES.keys() | ABOUT_MORE


@pytest.mark.parametrize("change", CHANGES)
def test_journal_ignores_an_entry_that_is_not_persistent(change: str) -> None:
    log = Log()
    CHANGES[change](log.journal, an_entry(1))
    records = log.journal.records
    assert log.appended == 0
    assert not any((records.amended, records.superseded, records.erasers, records.trimmed))
    assert records.live_bytes == 0
    assert log.journal.leases.last_token == 0


@pytest.mark.parametrize("change", CHANGES)
def test_journal_tells_of_a_persistent_entry(change: str) -> None:
    log = Log()
    entry = an_entry(1)
    log.journal.stored(entry, NOW)
    before = log.appended
    CHANGES[change](log.journal, entry)
    # that a URI was taken stands in the record of the SET that took it
    assert (log.appended == before) == (change == "superseded")


def test_journal_leaves_those_out_of_a_lease_that_are_not_persistent() -> None:
    log = Log()
    persistent, other = an_entry(1), an_entry(2)
    log.journal.stored(persistent, NOW)
    log.journal.leases.leased([other, persistent], 1000, NOW, touched=[other])
    # the lease, and the attempt of one
    assert log.appended == 1 + 2
    assert list(log.journal.records.amended.values()) == [persistent]


# --- signals --------------------------------------------------------------------------------------
# Signals: bits that tell the tasks of the daemon what there is to do.


class Signalling(Subject):
    """An engine, and the signals that were not taken yet."""

    def __init__(self, *, cold: bool = False) -> None:
        self.subject = EngineSubject(Rules(), checks=False, cold=cold)
        self.engine = self.subject.engine
        super().__init__(self.subject)
        # time was never applied before the first request
        self.ask(request(Function.NOP))
        self.taken()

    def taken(self) -> int:
        """The signals since the last time."""
        return self.engine.signals.take()


@pytest.fixture
def s_signals() -> Signalling:
    return Signalling()


def test_keys_that_came_or_went_signal_when_they_are_many(
    s_signals: Signalling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.tables.key_table.FRESH_KEYS_MAX", 2)
    monkeypatch.setattr("fastjournald.tables.key_table.GONE_KEYS_MAX", 1)
    s_signals.set(b"a")
    s_signals.set(b"b")
    assert s_signals.taken() == 0
    s_signals.set(b"c")
    assert s_signals.taken() == KEYS
    s_signals.delete(b"c")
    assert s_signals.taken() == 0, "it was fresh"
    while s_signals.engine.store.keys.sorted_keys().merge(10):
        pass
    s_signals.delete(b"b")
    assert s_signals.taken() == 0
    s_signals.delete(b"a")
    assert s_signals.taken() == KEYS


def test_keys_that_went_by_rename_signal_when_they_are_many(
    s_signals: Signalling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.tables.key_table.GONE_KEYS_MAX", 1)
    s_signals.set(b"a")
    s_signals.set(b"b")
    while s_signals.engine.store.keys.sorted_keys().merge(10):
        pass
    assert s_signals.ask(request(Function.RENAME, b"a", uri=b"c", at=s_signals.now)).error == ""
    assert s_signals.taken() == 0
    assert s_signals.ask(request(Function.RENAME, b"b", uri=b"d", at=s_signals.now)).error == ""
    assert s_signals.taken() == KEYS
