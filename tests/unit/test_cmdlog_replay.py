"""Replay: the state that records of a log lead to, also of damaged and foreign logs."""

from __future__ import annotations

import google_crc32c
import pytest

from fastjournal.cmdlog.format.envelope import pack
from fastjournal.cmdlog.format.layout import NO_TIME, Command
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Delay,
    Rename,
    Resize,
    SegmentRemoved,
    Tombstone,
)
from fastjournal.cmdlog.format.records import encode_head, encode_job, encode_time
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.limits import PAUSED_DOMAINS_MAX, TOMBSTONE_BYTES, VALUE_BYTES_LIMIT
from fastjournal.testing.logs import START_US, SegmentBuilder, in_zone
from fastjournald.engine.context import Settings
from fastjournald.recovery.recover import load_engine

KEY = b"pages:128:0000000000000001:a"
OTHER = b"pages:100:0000000000000002:b"
URI = b"https://example.com/a"
SECOND = 1_000_000
T = START_US


def replayed(*segments: SegmentBuilder, last: bool = True) -> Replay:
    replay = Replay()
    for number, segment in enumerate(segments, 1):
        data = bytes(segment)
        replay.start_segment(number, data)
        scan = scan_segment(data)
        assert scan.clean
        for run in scan.runs:
            replay.replay(run, last=last and number == len(segments))
    return replay


def state_of(*segments: SegmentBuilder) -> ReplayState:
    replay = replayed(*segments)
    assert replay.damage == []
    assert replay.cut is None
    check(replay.state)
    return replay.state


def check(state: ReplayState) -> None:
    """No key leads to a job that is gone, and none is missing."""
    for job_id, job in state.jobs.items():
        assert job.job_id == job_id
        assert state.keys[job.key] is job
        assert job.uri is None or (state.keys.get(job.uri) is job) != bool(job.superseded)
    assert all(job.job_id in state.jobs for job in state.keys.values())
    live = {job.key for job in state.jobs.values()}
    assert not live & set(state.tombstones)


@pytest.mark.parametrize("domain", [b"pages", b"n" * 200], ids=["short", "long"])
def test_serial_number_stays_the_highest_where_older_work_is_written_again(domain: bytes) -> None:
    log = SegmentBuilder()
    for serial in (9, 3):
        log.entry(b"%b:128:1:%d" % (domain, serial), arrival=serial)
    assert state_of(log).arrival == 9


def tombs(state: ReplayState) -> dict[bytes, int]:
    return {key: tomb.timestamp for key, tomb in state.tombstones.items()}


def only(state: ReplayState) -> ReplayedEntry:
    (job,) = state.jobs.values()
    return job


# --- entries -------------------------------------------------------------------------------------


def test_plain_key_has_no_domain() -> None:
    log = SegmentBuilder()
    log.entry(b"plain")
    assert only(state_of(log)).domain is None


def test_domain_whose_name_workq_takes_only_in_another_form_comes_back() -> None:
    log = SegmentBuilder()
    domain = b"\xff" * 250
    log.entry(domain + b":000:0000000000000001:x", arrival=3)
    state = state_of(log)
    assert only(state).domain == domain
    assert state.arrival == 3


def test_superseded_work_that_fails_is_not_buried_but_gone() -> None:
    log = SegmentBuilder()
    log.fail(log.entry(KEY, timestamp=T, uri=URI, superseded=T + 5, token=T + SECOND), b"why")
    state = state_of(log)
    assert state.jobs == {}
    assert state.tombstones[KEY].timestamp == T + 5


@pytest.mark.parametrize("taken", [[0], [0, 7]])
def test_superseded_entry_written_anew_does_not_take_its_uri_back(taken: list[int]) -> None:
    log = SegmentBuilder()
    new = log.entry(OTHER, timestamp=T + 5, uri=URI)
    moved = log.entry(KEY, timestamp=T, uri=URI, superseded=T + 5, taken=taken, token=T + SECOND)
    state = state_of(log)
    assert state.keys[URI].job_id == new
    assert state.keys[KEY].job_id == moved
    assert tombs(state) == {}


# --- the end of entries --------------------------------------------------------------------------


def test_completion_of_a_job_that_is_gone_still_leaves_its_tombstone() -> None:
    log = SegmentBuilder()
    log.complete(log.job_id(), KEY, T)
    log.complete(log.job_id(), b"k" * 1000, T + 1)
    assert tombs(state_of(log)) == {KEY: T, b"k" * 1000: T + 1}


def test_tombstones_are_told_oldest_first_and_the_oldest_go_when_there_are_too_many() -> None:
    log = SegmentBuilder()
    for number in (3, 1, 2, 3):
        log.operation(Tombstone(b"%d" % number, T + number))
    assert list(state_of(log).tombstones) == [b"1", b"2", b"3"]
    replay = Replay(ReplayState(tombstones_max=2))
    replay.start_segment(1, bytes(log))
    replay.replay(scan_segment(bytes(log)).runs[0], last=True)
    assert list(replay.state.tombstones) == [b"2", b"3"]


def test_tombstones_of_a_replay_are_bounded_in_bytes_and_the_oldest_go() -> None:
    log = SegmentBuilder()
    for number in range(10):
        log.operation(Tombstone(b"%01000d" % number, T + number))
    log.operation(Tombstone(b"short", T))
    bytes_max = 2 * (TOMBSTONE_BYTES + 1000) + TOMBSTONE_BYTES + 5
    for limit, expected in ((bytes_max, [8, 9]), (bytes_max - 1, [9]), (1, None)):
        replay = Replay(ReplayState(tombstones_bytes_max=limit))
        replay.start_segment(1, bytes(log))
        replay.replay(scan_segment(bytes(log)).runs[0], last=True)
        keys = [] if expected is None else [*(b"%01000d" % n for n in expected), b"short"]
        assert list(replay.state.tombstones) == keys


# --- groups --------------------------------------------------------------------------------------


def test_lease_that_is_not_all_there_at_the_end_of_the_log_is_not_applied() -> None:
    log = SegmentBuilder()
    ids = [log.entry(b"d:0:1:%d" % number) for number in range(3)]
    log.lease(ids, T + SECOND)
    whole = bytes(log)
    for missing in (1, 2, 3):
        cut = SegmentBuilder()
        cut.data = bytearray(whole[: log.offsets[-missing]])
        replay = replayed(cut)
        assert replay.cut == log.offsets[-4]
        assert all(job.token == 0 for job in replay.state.jobs.values())
        assert replay.state.records == 4


def test_batch_that_is_not_all_there_at_the_end_of_the_log_is_not_applied() -> None:
    log = SegmentBuilder()
    ids = [log.entry(b"d:0:1:%d" % number) for number in range(2)]
    log.batch(2)
    head = log.offsets[-1]
    log.complete(ids[0], b"d:0:1:0")
    replay = replayed(log)
    assert replay.cut == head
    assert set(replay.state.jobs) == set(ids)
    log.complete(ids[1], b"d:0:1:1")
    assert state_of(log).jobs == {}


def test_group_that_is_not_all_there_before_the_end_of_the_log_counts_as_far_as_it_goes() -> None:
    log = SegmentBuilder()
    ids = [log.entry(b"d:0:1:%d" % number) for number in range(3)]
    log.lease(ids, T + SECOND)
    broken = SegmentBuilder()
    broken.data = log.data[: log.offsets[-1]]
    state = state_of(broken, SegmentBuilder(1, ids_from=100))
    assert [state.jobs[job_id].token for job_id in ids] == [T + SECOND, T + SECOND, 0]
    assert state.odd == {"a group that is not all there": 1}
    broken.entry(b"behind")
    assert state_of(broken).jobs.keys() >= set(ids)


# --- segments, damage ----------------------------------------------------------------------------


def test_replay_returns_what_segments_say_of_each_other() -> None:
    second = SegmentBuilder(7, ids_from=50)
    second.operation(SegmentRemoved(1))
    state = state_of(SegmentBuilder(0), second)
    assert state.previous == {1: 0, 2: 7}
    assert state.removed == {1}


def bad_records() -> list[tuple[str, bytes]]:
    time, job_id = encode_time(T), SegmentBuilder().job_id()
    head = encode_head(b"name", 1, 1, 0, 0, 0)
    operation = encode_head(b"fj.op", 1, 1, 0, 0, 0)

    def record(payload: bytes, head: bytes = head) -> bytes:
        return encode_job(Command.ADD, time, job_id, head, payload, NO_TIME, time)

    logs = []
    for number in (0, 9, 255):
        log = SegmentBuilder()
        log.simple(Command.DELETE, job_id)
        data = bytearray(log.data[log.offsets[-1] :])
        data[16] = number
        logs.append((f"command {number}", resealed(data)))
    log = SegmentBuilder()
    log.result(Command.DELETE, job_id, b"more")
    logs.append(("more behind a delete", bytes(log.data[log.offsets[-1] :])))
    for command in (Command.COMPLETE, Command.FAIL):
        log = SegmentBuilder()
        log.result(command, job_id, b"FJ\x01not msgpack")
        logs.append((f"result of {command.name}", bytes(log.data[log.offsets[-1] :])))
        log = SegmentBuilder()
        log.simple(command, job_id)
        logs.append((f"no result of {command.name}", bytes(log.data[log.offsets[-1] :])))
    return [
        *logs,
        ("an envelope", record(b"FJ\x01\x91\x01")),
        ("no envelope", record(b"FJ\x01")),
        ("an instant before 1970", record(pack((KEY, None, (), 1, b"", -1, 1, 1, 1)))),
        ("an arrival too high", record(pack((KEY, None, (), 1, b"", 1, 1, 1, 2**63)))),
        ("an unheard-of type", record(pack((KEY, None, (), 256, b"", 1, 1, 1, 1)))),
        ("an unknown operation", record(b"FJ\x01\x91\xa7unheard", operation)),
        ("an operation's field", record(b"FJ\x01\x93\xa5lease\x01\xa1x", operation)),
        ("a name that is no domain", record(b"", encode_head(b"a:b", 1, 1, 0, 0, 0))),
        ("an empty name", record(b"", encode_head(b"", 1, 1, 0, 0, 0))),
    ]


def resealed(record: bytearray) -> bytes:
    content = bytes(record[:-4])
    return content + int(google_crc32c.value(content)).to_bytes(4)


@pytest.mark.parametrize(("what", "record"), bad_records(), ids=[w for w, _ in bad_records()])
def test_valid_record_that_cannot_be_understood_is_damage(what: str, record: bytes) -> None:
    log = SegmentBuilder()
    log.entry(KEY)
    log.record(record)
    log.entry(OTHER)
    replay = replayed(log)
    assert [(found.offset, found.end) for found in replay.damage] == [
        (log.offsets[2], log.offsets[3])
    ], what
    assert {job.key for job in replay.state.jobs.values()} == {KEY, OTHER}
    check(replay.state)


# --- values and keys that change ------------------------------------------------------------------
# Replay of the operations that change values and keys: what is odd in damaged logs, too.


@pytest.mark.parametrize("size", [-1, VALUE_BYTES_LIMIT + 1, 2**63])
def test_size_that_no_value_can_have_is_damage(size: int) -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, value=b"abc")
    log.operation(Resize(job_id, size, T))
    (damage,) = replayed(log).damage
    assert "an operation cannot be read" in damage.reason


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


# --- burials, kicks, pauses -----------------------------------------------------------------------
# Replay of burials, kicks, pauses and first due times.


def test_first_due_time_of_an_envelope_stays() -> None:
    log = SegmentBuilder()
    log.entry(KEY, not_before=T + 9, first_due=T + 5)
    (job,) = state_of(log).jobs.values()
    assert (job.not_before, job.first_due) == (T + 9, T + 5)


def test_delay_is_the_next_first_due_time_where_that_is_later() -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY)
    log.lease([job_id], T + 2 * SECOND)
    log.operation(Batch(2))
    log.operation(Delay(job_id, T + 9 * SECOND))
    log.simple(Command.TIMEOUT_ATTEMPT, job_id)
    (job,) = state_of(log).jobs.values()
    assert (job.not_before, job.first_due) == (T + 9 * SECOND, T + 9 * SECOND)


def test_pauses_that_are_over_do_not_gather() -> None:
    state = ReplayState()
    for n in range(2 * PAUSED_DOMAINS_MAX + 1):
        state.pause(b"%d" % n, T + n, T + n, 1)
    assert state.pauses == {}
    state.pause(b"a", T, 0, 1)
    assert state.pauses == {b"a": T}


# --- logs of workq --------------------------------------------------------------------------------


def a_log() -> SegmentBuilder:
    return SegmentBuilder(None)


def foreign_state(*segments: SegmentBuilder | bytes) -> ReplayState:
    replay = Replay()
    for number, segment in enumerate(segments, 1):
        replay.start_segment(number, bytes(segment))
        for run in scan_segment(bytes(segment)).runs:
            replay.replay(run, last=False)
        assert replay.damage == []
    return replay.state


@pytest.mark.parametrize("minutes", [-1, 0, 60, -(2**15), 2**15 - 1])
def test_job_of_workq_without_a_time_is_due_at_its_creation_in_any_zone(minutes: int) -> None:
    log = a_log()
    log.foreign(b"q", ttl_ms=5000)
    log.foreign(b"q", due_us=T + 60 * SECOND, ttl_ms=5000)
    added, scheduled = foreign_state(in_zone(bytes(log), minutes)).jobs.values()
    assert (added.not_before, added.timestamp, added.expires) == (T, T, T + 5 * SECOND)
    assert (scheduled.not_before, scheduled.expires) == (T + 60 * SECOND, T + 65 * SECOND)


def test_priorities_of_workq_beyond_ours_are_cut() -> None:
    log = a_log()
    for priority in (2**31 - 1, 129, 128, 0, -127, -128, -(2**31)):
        log.foreign(b"q", priority=priority)
    priorities = [job.priority for job in foreign_state(log).jobs.values()]
    assert priorities == [0, 0, 0, 128, 255, 255, 255]


def test_job_that_failed_or_used_up_its_attempts_is_buried() -> None:
    log = a_log()
    failed = log.foreign(b"q")
    log.result(Command.FAIL, failed, b"some result")
    spent = log.foreign(b"q", attempts_max=1)
    log.simple(Command.START_ATTEMPT, spent)
    log.simple(Command.TIMEOUT_ATTEMPT, spent)
    state = foreign_state(log)
    assert state.jobs[failed].reason == b"failed"
    assert state.jobs[spent].reason == b"attempts reached max-attempts"


def test_job_of_workq_with_many_attempts_keeps_them_and_is_not_buried_at_the_start() -> None:
    log = a_log()
    tried = log.foreign(b"q")
    for _ in range(30):
        log.simple(Command.START_ATTEMPT, tried)
        log.simple(Command.TIMEOUT_ATTEMPT, tried)
    engine = load_engine(foreign_state(log), Settings(), lambda *_: 0, seed=bytes(8), now=T)
    engine.advance(T + 1)
    (entry,) = engine.store
    assert (entry.extra.attempts, entry.reason) == (30, None)
    assert engine.context.jobs.attempts_max_of(entry) == 25


def test_stray_ids_are_forgotten_after_a_while() -> None:
    log = a_log()
    first = log.job_id()
    log.now_us = T + 5
    log.simple(Command.START_ATTEMPT, first)
    for _ in range(3000):
        log.simple(Command.START_ATTEMPT, log.job_id())
    log.foreign(b"q", job_id=first, created_us=T)
    state = foreign_state(log)
    assert only(state).starts == 0
    assert len(state.early) + len(state.early_before) <= 2048
