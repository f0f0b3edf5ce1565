"""Replay of the operations that change values and keys: what is odd in damaged logs, too."""

from __future__ import annotations

import pytest

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import (
    Change,
    Delay,
    Link,
    Rename,
    Resize,
    Tombstone,
    Value,
)
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.limits import VALUE_BYTES_LIMIT
from fastjournal.testing.logs import START_US, SegmentBuilder

KEY = b"pages:128:0000000000000001:a"
OTHER = b"pages:100:0000000000000002:b"
URI = b"https://example.com/a"
SECOND = 1_000_000
T = START_US


def replay_of(log: SegmentBuilder) -> Replay:
    replay = Replay()
    data = bytes(log)
    replay.start_segment(1, data)
    for run in scan_segment(data).runs:
        replay.replay(run, last=True)
    return replay


def state_of(log: SegmentBuilder) -> ReplayState:
    replay = replay_of(log)
    assert replay.damage == []
    state = replay.state
    assert all(job.job_id in state.jobs for job in state.keys.values())
    assert all(state.keys[job.key] is job for job in state.jobs.values())
    return state


def only(state: ReplayState) -> ReplayedEntry:
    (job,) = state.jobs.values()
    return job


def test_value_has_the_time_of_its_record_as_modified() -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, value=b"\1", timestamp=T)
    log.now_us += SECOND
    log.operation(Value(job_id, b"\2", T + 5))
    job = only(state_of(log))
    assert (job.value, job.value_type, job.timestamp, job.modified) == (b"\2", 1, T + 5, T + SECOND)


@pytest.mark.parametrize(("size", "value"), [(0, b""), (2, b"ab"), (3, b"abc"), (5, b"abc\0\0")])
def test_value_is_cut_or_filled_up(size: int, value: bytes) -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, value=b"abc")
    log.operation(Resize(job_id, size, T + 5))
    job = only(state_of(log))
    assert (job.value, job.timestamp) == (value, T + 5)


@pytest.mark.parametrize("size", [-1, VALUE_BYTES_LIMIT + 1, 2**63])
def test_size_that_no_value_can_have_is_damage(size: int) -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, value=b"abc")
    log.operation(Resize(job_id, size, T))
    (damage,) = replay_of(log).damage
    assert "an operation cannot be read" in damage.reason


def test_link_leads_to_its_entry_and_goes_with_it() -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, uri=URI)
    log.operation(Link(job_id, b"link"))
    state = state_of(log)
    assert state.keys[b"link"] is only(state)
    assert only(state).links == [b"link"]
    log.complete(job_id, KEY)
    assert state_of(log).keys == {}


@pytest.mark.parametrize("key", [KEY, URI, OTHER])
def test_link_that_stands_there_already_is_odd(key: bytes) -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, uri=URI)
    log.entry(OTHER)
    log.operation(Link(job_id, key))
    state = state_of(log)
    assert state.jobs[job_id].links == []
    assert state.odd == {"a link that stood there already": 1}


def test_uri_that_is_a_link_of_a_job_worked_on_takes_only_that() -> None:
    log = SegmentBuilder()
    old = log.entry(KEY, uri=URI, timestamp=T)
    log.operation(Link(old, b"link"))
    log.lease([old], T + 60 * SECOND)
    new = log.entry(OTHER, uri=b"link", timestamp=T + 1)
    state = state_of(log)
    assert state.keys[b"link"].job_id == new
    assert state.keys[URI].job_id == old
    assert state.superseded == {b"link": state.jobs[old]}
    assert state.jobs[old].superseded == T + 1
    log.simple(Command.TIMEOUT_ATTEMPT, old)
    state = state_of(log)
    assert set(state.jobs) == {new}
    assert (URI in state.keys, state.superseded) == (False, {})
    assert state.tombstones[KEY].timestamp == T + 1


def test_rename_moves_the_job_and_leaves_a_tombstone() -> None:
    log = SegmentBuilder()
    log.operation(Tombstone(OTHER, T))
    job_id = log.entry(KEY, uri=URI, timestamp=T, not_before=1)
    log.now_us += SECOND
    log.operation(Rename(job_id, OTHER, T + 5, KEY, b""))
    state = state_of(log)
    job = only(state)
    assert (job.key, job.priority, job.not_before) == (OTHER, 100, 2)
    assert (job.timestamp, job.modified, job.uri) == (T + 5, T + SECOND, URI)
    assert set(state.keys) == {OTHER, URI}
    assert {key: tomb.timestamp for key, tomb in state.tombstones.items()} == {KEY: T + 5}


def test_delay_goes_on_under_the_new_name() -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, not_before=1)
    log.operation(Delay(job_id, 50))
    log.operation(Rename(job_id, OTHER, T + 5, KEY, b""))
    assert only(state_of(log)).not_before == 50
    log.operation(Rename(job_id, b"plain", T + 6, OTHER, b""))
    assert only(state_of(log)).not_before == 0


def test_rename_replaces_an_older_target_without_a_tombstone() -> None:
    log = SegmentBuilder()
    target = log.entry(OTHER, uri=URI, timestamp=T)
    job_id = log.entry(KEY, timestamp=T)
    log.batch(2)
    log.operation(Rename(job_id, OTHER, T + 5, KEY, b""))
    log.simple(Command.DELETE, target)
    state = state_of(log)
    assert set(state.keys) == {OTHER}
    assert set(state.tombstones) == {KEY}
    assert not state.odd


def test_rename_to_a_name_with_something_newer_is_void() -> None:
    log = SegmentBuilder()
    log.entry(OTHER, timestamp=T + 6)
    job_id = log.entry(KEY, uri=URI, timestamp=T)
    for name in (OTHER, URI):
        log.operation(Rename(job_id, name, T + 5, KEY, b""))
    state = state_of(log)
    assert state.jobs[job_id].key == KEY
    assert state.odd == {"a name that was not free": 2}


def test_job_of_workqs_own_can_be_changed() -> None:
    log = SegmentBuilder()
    job_id = log.foreign(b"queue", b"work", due_us=T)
    log.operation(Resize(job_id, 2, T))
    log.operation(Link(job_id, b"link"))
    log.operation(Rename(job_id, b"plain", T + 5, b"queue:128:0:x", b""))
    job = only(state_of(log))
    assert (job.key, job.links, job.value, job.domain) == (b"plain", [b"link"], b"wo", None)


@pytest.mark.parametrize(
    "change",
    [
        Value(b"x" * 16, b"", T),
        Resize(b"x" * 16, 1, T),
        Link(b"x" * 16, b"k"),
    ],
)
def test_change_of_a_job_that_cleaning_took_away_does_nothing(change: Change) -> None:
    log = SegmentBuilder()
    log.operation(change)
    state = state_of(log)
    assert (state.keys, state.tombstones) == ({}, {})
    assert state.odd == {}
