"""Replay of burials, kicks, pauses and first due times."""

from __future__ import annotations

import pytest

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import Batch, Delay, Pause
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.limits import PAUSED_DOMAINS_MAX
from fastjournal.testing.logs import START_US, SegmentBuilder

KEY = b"a:1:0:x"
SECOND = 1_000_000
T = START_US


def state_of(log: SegmentBuilder) -> ReplayState:
    replay = Replay()
    data = bytes(log)
    replay.start_segment(1, data)
    (run,) = scan_segment(data).runs
    replay.replay(run, last=True)
    assert not replay.damage
    return replay.state


def test_first_due_time_of_an_envelope_stays() -> None:
    log = SegmentBuilder()
    log.entry(KEY, not_before=T + 9, first_due=T + 5)
    (job,) = state_of(log).jobs.values()
    assert (job.not_before, job.first_due) == (T + 9, T + 5)


@pytest.mark.parametrize(
    ("ended", "first_due"),
    [(T + SECOND, T + SECOND), (T + 3 * SECOND, T + 2 * SECOND)],
    ids=["released", "ran out"],
)
def test_end_of_a_lease_is_the_next_first_due_time(ended: int, first_due: int) -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, first_due=T - 5)
    log.lease([job_id], T + 2 * SECOND)
    log.now_us = ended
    log.simple(Command.TIMEOUT_ATTEMPT, job_id)
    (job,) = state_of(log).jobs.values()
    assert job.first_due == first_due


def test_delay_is_the_next_first_due_time_where_that_is_later() -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY)
    log.lease([job_id], T + 2 * SECOND)
    log.operation(Batch(2))
    log.operation(Delay(job_id, T + 9 * SECOND))
    log.simple(Command.TIMEOUT_ATTEMPT, job_id)
    (job,) = state_of(log).jobs.values()
    assert (job.not_before, job.first_due) == (T + 9 * SECOND, T + 9 * SECOND)


def test_kicked_job_is_the_same_entry_under_a_new_id() -> None:
    log = SegmentBuilder()
    old = log.entry(KEY, uri=b"u", links=[b"l"], arrival=3)
    log.fail(old, b"why")
    log.operation(Batch(2))
    new = log.entry(KEY, uri=b"u", links=[b"l"], arrival=3)
    log.simple(Command.DELETE, old)
    state = state_of(log)
    (job,) = state.jobs.values()
    assert (job.job_id, job.reason, job.arrival) == (new, None, 3)
    assert set(state.keys) == {KEY, b"u", b"l"}
    assert not state.odd
    assert not state.tombstones


def test_last_pause_of_a_domain_counts() -> None:
    log = SegmentBuilder()
    for domain, until in ((b"a", T + 5), (b"b", T + 6), (b"a", T + 3), (b"b", 0), (b"c", 0)):
        log.operation(Pause(domain, until, again=False))
    assert state_of(log).pauses == {b"a": T + 3}


def test_pauses_that_are_over_do_not_gather() -> None:
    state = ReplayState()
    for n in range(2 * PAUSED_DOMAINS_MAX + 1):
        state.pause(b"%d" % n, T + n, T + n, 1)
    assert state.pauses == {}
    state.pause(b"a", T, 0, 1)
    assert state.pauses == {b"a": T}
