from __future__ import annotations

import pytest

from fastjournal.cmdlog.format.layout import UNIX_SECONDS, Command
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.testing.logs import START_US, SegmentBuilder, in_zone

SECOND = 1_000_000
T = START_US


def a_log() -> SegmentBuilder:
    return SegmentBuilder(None)


def state_of(*segments: SegmentBuilder | bytes) -> ReplayState:
    replay = Replay()
    for number, segment in enumerate(segments, 1):
        replay.start_segment(number, bytes(segment))
        for run in scan_segment(bytes(segment)).runs:
            replay.replay(run, last=False)
        assert replay.damage == []
    return replay.state


def only(state: ReplayState) -> ReplayedEntry:
    (job,) = state.jobs.values()
    return job


def test_job_of_workq_is_a_journal_entry_with_a_canonical_key() -> None:
    log = a_log()
    job_id = log.foreign(b"mail.out", b"payload", priority=28, ttl_ms=5000, created_us=T - 3)
    state = state_of(log)
    job = only(state)
    assert job.key == b"mail.out:100:%016d:%s" % (T - 3, job_id.hex().encode())
    assert (job.domain, job.priority, job.value, job.value_type) == (
        b"mail.out",
        100,
        b"payload",
        1,
    )
    assert (job.timestamp, job.created, job.not_before) == (T - 3, T - 3, T - 3)
    assert job.expires == T + 5 * SECOND
    assert (job.more.foreign, job.arrival, job.uri) == (True, 1, None)
    assert state.keys == {job.key: job}


@pytest.mark.parametrize("minutes", [-1, 0, 60, -(2**15), 2**15 - 1])
def test_job_of_workq_without_a_time_is_due_at_its_creation_in_any_zone(minutes: int) -> None:
    log = a_log()
    log.foreign(b"q", ttl_ms=5000)
    log.foreign(b"q", due_us=T + 60 * SECOND, ttl_ms=5000)
    added, scheduled = state_of(in_zone(bytes(log), minutes)).jobs.values()
    assert (added.not_before, added.timestamp, added.expires) == (T, T, T + 5 * SECOND)
    assert (scheduled.not_before, scheduled.expires) == (T + 60 * SECOND, T + 65 * SECOND)


@pytest.mark.parametrize("minutes", [-1, 0, 60])
def test_job_of_workq_without_a_time_of_creation_was_created_when_it_was_added(
    minutes: int,
) -> None:
    log = a_log()
    log.foreign(b"q", ttl_ms=5000, created_us=-UNIX_SECONDS * SECOND)
    job = only(state_of(in_zone(bytes(log), minutes)))
    assert (job.not_before, job.created, job.expires) == (T, T, T + 5 * SECOND)


def test_job_of_workq_lives_until_it_is_over_in_a_server_that_starts_and_one_that_runs() -> None:
    log = a_log()
    # a start counts from the creation, a running server from the add
    log.foreign(b"q", ttl_ms=5000, created_us=T + SECOND)
    log.foreign(b"q", ttl_ms=5000, created_us=T - SECOND)
    assert [job.expires for job in state_of(log).jobs.values()] == [T + 6 * SECOND, T + 5 * SECOND]


def test_priorities_of_workq_beyond_ours_are_cut() -> None:
    log = a_log()
    for priority in (2**31 - 1, 129, 128, 0, -127, -128, -(2**31)):
        log.foreign(b"q", priority=priority)
    priorities = [job.priority for job in state_of(log).jobs.values()]
    assert priorities == [0, 0, 0, 128, 255, 255, 255]


def test_due_job_of_workq_stays_due_and_a_scheduled_one_waits() -> None:
    log = a_log()
    log.foreign(b"q", created_us=T + SECOND)
    log.foreign(b"q", due_us=T + 60 * SECOND)
    log.foreign(b"q", due_us=-5)
    late, scheduled, ancient = state_of(log).jobs.values()
    assert (late.not_before, late.timestamp) == (T, T)
    assert (scheduled.not_before, scheduled.timestamp) == (T + 60 * SECOND, T)
    assert (ancient.not_before, ancient.timestamp) == (0, 0)


def test_jobs_keep_the_order_of_the_log() -> None:
    log = a_log()
    for _ in range(3):
        log.foreign(b"q")
    state = state_of(log)
    assert [job.arrival for job in state.jobs.values()] == [1, 2, 3]
    assert state.arrival == 3


def test_lease_lasts_for_the_ttr_from_the_time_of_the_start() -> None:
    log = a_log()
    job_id = log.foreign(b"q", ttr_ms=1500)
    log.now_us += SECOND
    log.simple(Command.START_ATTEMPT, job_id)
    job = only(state_of(log))
    assert (job.token, job.starts, job.attempts) == (T + SECOND + 1_500_000, 1, 0)


def test_start_before_the_timeout_of_the_attempt_before_it_leaves_the_job_leased() -> None:
    log = a_log()
    job_id = log.foreign(b"q", ttr_ms=1000)
    log.simple(Command.START_ATTEMPT, job_id)
    log.now_us += SECOND
    log.simple(Command.START_ATTEMPT, job_id)
    log.simple(Command.TIMEOUT_ATTEMPT, job_id)
    job = only(state_of(log))
    assert (job.token, job.starts, job.attempts) == (T + 2 * SECOND, 2, 1)
    log.simple(Command.TIMEOUT_ATTEMPT, job_id)
    job = only(state_of(log))
    assert (job.token, job.starts, job.attempts) == (0, 2, 2)


def test_job_that_failed_or_used_up_its_attempts_is_buried() -> None:
    log = a_log()
    failed = log.foreign(b"q")
    log.result(Command.FAIL, failed, b"some result")
    spent = log.foreign(b"q", attempts_max=1)
    log.simple(Command.START_ATTEMPT, spent)
    log.simple(Command.TIMEOUT_ATTEMPT, spent)
    state = state_of(log)
    assert state.jobs[failed].reason == b"failed"
    assert state.jobs[spent].reason == b"attempts reached max-attempts"


def test_start_behind_the_failure_of_its_attempt_leaves_the_job_buried() -> None:
    log = a_log()
    job_id = log.foreign(b"q")
    log.result(Command.FAIL, job_id)
    log.simple(Command.START_ATTEMPT, job_id)
    job = only(state_of(log))
    assert (job.reason, job.token, job.starts) == (b"failed", 0, 1)


def test_records_before_the_add_of_their_job_are_applied_to_it() -> None:
    log = a_log()
    started, done = log.job_id(), log.job_id()
    log.now_us = T + 5
    log.simple(Command.START_ATTEMPT, started)
    log.simple(Command.START_ATTEMPT, done)
    log.result(Command.COMPLETE, done)
    log.foreign(b"q", job_id=started, created_us=T)
    log.foreign(b"q", job_id=done, created_us=T)
    state = state_of(log)
    assert only(state).job_id == started
    assert only(state).starts == 1


def test_records_of_an_earlier_job_of_the_same_id_are_not_applied_to_the_later_one() -> None:
    log = a_log()
    job_id = log.job_id()
    log.result(Command.COMPLETE, job_id)
    log.now_us = T + 5
    log.foreign(b"q", job_id=job_id)
    assert only(state_of(log)).job_id == job_id
    log.simple(Command.DELETE, job_id)
    log.now_us = T + 9
    log.foreign(b"q", b"again", job_id=job_id)
    assert only(state_of(log)).value == b"again"


def test_id_added_again_without_a_delete_stands_for_the_later_job() -> None:
    log = a_log()
    job_id = log.foreign(b"q", b"first")
    log.simple(Command.START_ATTEMPT, job_id)
    log.now_us += 5
    log.foreign(b"q", b"second", job_id=job_id)
    state = state_of(log)
    assert (only(state).value, only(state).starts) == (b"second", 0)
    assert len(state.keys) == 1


def test_stray_ids_are_forgotten_after_a_while() -> None:
    log = a_log()
    first = log.job_id()
    log.now_us = T + 5
    log.simple(Command.START_ATTEMPT, first)
    for _ in range(3000):
        log.simple(Command.START_ATTEMPT, log.job_id())
    log.foreign(b"q", job_id=first, created_us=T)
    state = state_of(log)
    assert only(state).starts == 0
    assert len(state.early) + len(state.early_before) <= 2048


def test_record_with_the_same_time_as_the_creation_belongs_to_the_job() -> None:
    log = a_log()
    job_id = log.job_id()
    log.simple(Command.START_ATTEMPT, job_id)
    log.foreign(b"q", job_id=job_id, created_us=T)
    assert only(state_of(log)).starts == 1


def test_release_of_a_job_that_we_took_over_counts_no_attempt() -> None:
    foreign = a_log()
    job_id = foreign.foreign(b"q")
    ours = SegmentBuilder(1, ids_from=100)
    ours.lease([job_id], T + SECOND)
    ours.simple(Command.TIMEOUT_ATTEMPT, job_id)
    job = only(state_of(foreign, ours))
    assert (job.starts, job.attempts, job.token) == (1, 0, 0)
    ours.lease([job_id], T + SECOND)
    ours.now_us += SECOND
    ours.simple(Command.TIMEOUT_ATTEMPT, job_id)
    assert only(state_of(foreign, ours)).attempts == 1
