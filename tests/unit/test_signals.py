"""Signals: bits that tell the tasks of the daemon what there is to do."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournald.engine.engine import Missing
from fastjournald.tables.signals import CHANGES, KEYS, READY, TIMER, VALUES, Signals
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
LATER = b"a:1:%d:y" % (START + 5 * SECOND)
LISTENER = "listener"


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
def s() -> Signalling:
    return Signalling()


def test_taking_signals_clears_them() -> None:
    signals = Signals()
    signals.bits |= READY | TIMER
    assert signals.take() == READY | TIMER
    assert signals.take() == 0


def test_deadline_signals_only_if_it_is_earlier() -> None:
    signals = Signals()
    signals.deadline = 10
    signals.wake_at(10)
    assert (signals.take(), signals.deadline) == (0, 10)
    signals.wake_at(9)
    assert (signals.take(), signals.deadline) == (TIMER, 9)


def test_signals_are_none_where_nobody_waits_or_listens(s: Signalling) -> None:
    s.set(JOB)
    s.set(b"plain")
    s.delete(JOB)
    assert s.taken() == 0


def test_delays_and_leases_signal_the_timers(s: Signalling) -> None:
    s.set(LATER)
    assert s.taken() == TIMER
    s.set(b"a:1:%d:z" % (START + 9 * SECOND))
    assert s.taken() == 0, "the timers wake earlier anyway"
    s.set(JOB)
    assert s.jobs(b"a", timeout=SECOND) == [JOB]
    assert s.taken() == TIMER


def test_ready_work_signals_where_a_request_waits(s: Signalling) -> None:
    s.listen(b"a", ttl=3 * SECOND)
    assert s.taken() == TIMER, "the wait ends by time"
    s.set(b"b:1:0:x")
    assert s.taken() & READY, "the dispatcher finds out that nobody waits for that domain"
    s.set(JOB)
    assert s.taken() & READY
    assert len(s.serve()) == 1
    s.taken()
    s.set(b"a:1:0:y")
    assert s.taken() == 0


def test_wait_without_end_signals_nothing(s: Signalling) -> None:
    s.listen(b"a")
    assert s.taken() == 0


def test_changes_signal_where_somebody_listens(s: Signalling) -> None:
    s.set(b"k")
    asked = request(Function.GET, b"k", flags=Flag.LISTEN, identifier=1)
    s.ask(asked, session=LISTENER)
    assert s.taken() == 0
    s.set(b"k", flags=Flag.OVERWRITE, at=START + 1)
    assert s.taken() == CHANGES


def test_subscriptions_that_end_signal_that_there_is_something_to_sweep(s: Signalling) -> None:
    flags = Flag.LISTEN | Query.RANGE << QUERY_SHIFT
    for identifier in (1, 2):
        asked = request(Function.GET, b"a", uri=b"b", flags=flags, identifier=identifier)
        s.ask(asked, session=f"{LISTENER}{identifier}")
    s.taken()
    s.end_session(f"{LISTENER}1")
    assert s.taken() == CHANGES
    s.end_session(f"{LISTENER}2")
    assert s.taken() == 0, "the last one leaves nothing behind"


def test_waiting_requests_signal_values_that_are_on_disk_only() -> None:
    s = Signalling(cold=True)
    s.listen(b"a", flags=Flag.DATA)
    s.set(JOB, b"a value", flags=Flag.PERSIST)
    s.taken()
    assert s.engine.serve_waiters(s.now) == []
    assert s.taken() & VALUES
    s.subject.fetch(Missing(list(s.engine.dispatcher.awaited.values())))
    s.engine.dispatcher.values_read()
    assert s.taken() & READY
    assert len(s.engine.serve_waiters(s.now)) == 1


def test_keys_that_came_or_went_signal_when_they_are_many(
    s: Signalling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.tables.key_table.FRESH_KEYS_MAX", 2)
    monkeypatch.setattr("fastjournald.tables.key_table.GONE_KEYS_MAX", 1)
    s.set(b"a")
    s.set(b"b")
    assert s.taken() == 0
    s.set(b"c")
    assert s.taken() == KEYS
    s.delete(b"c")
    assert s.taken() == 0, "it was fresh"
    while s.engine.store.keys.sorted_keys().merge(10):
        pass
    s.delete(b"b")
    assert s.taken() == 0
    s.delete(b"a")
    assert s.taken() == KEYS


def test_keys_that_went_by_rename_signal_when_they_are_many(
    s: Signalling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.tables.key_table.GONE_KEYS_MAX", 1)
    s.set(b"a")
    s.set(b"b")
    while s.engine.store.keys.sorted_keys().merge(10):
        pass
    assert s.ask(request(Function.RENAME, b"a", uri=b"c", at=s.now)).error == ""
    assert s.taken() == 0
    assert s.ask(request(Function.RENAME, b"b", uri=b"d", at=s.now)).error == ""
    assert s.taken() == KEYS
