from __future__ import annotations

from typing import Any

import google_crc32c
import pytest

from fastjournal.cmdlog.format.envelope import pack
from fastjournal.cmdlog.format.layout import NO_TIME, Command, pack_position
from fastjournal.cmdlog.format.operation_records import (
    Delay,
    Erasure,
    Extend,
    SegmentRemoved,
    Tombstone,
    Touch,
)
from fastjournal.cmdlog.format.records import encode_head, encode_job, encode_time
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.limits import LEASE_US_DEFAULT, TOMBSTONE_BYTES, TOMBSTONE_TTL_US
from fastjournal.testing.logs import START_US, SegmentBuilder

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


def tombs(state: ReplayState) -> dict[bytes, int]:
    return {key: tomb.timestamp for key, tomb in state.tombstones.items()}


def only(state: ReplayState) -> ReplayedEntry:
    (job,) = state.jobs.values()
    return job


# --- entries -------------------------------------------------------------------------------------


def test_entry_comes_back_with_all_that_its_envelope_says() -> None:
    log = SegmentBuilder()
    fields: dict[str, Any] = {
        "not_before": 5,
        "expires": 6,
        "ttl": 7,
        "attempts": 8,
        "reason": b"why",
        "links": [b"link"],
    }
    job_id = log.entry(KEY, uri=URI, value=b"v" * 300, arrival=17, **fields)
    state = state_of(log)
    job = only(state)
    assert {name: getattr(job, name) for name in fields} == fields
    assert (job.key, job.uri, job.value, job.arrival) == (KEY, URI, b"v" * 300, 17)
    assert (job.job_id, job.starts, job.more.foreign) == (job_id, 0, False)
    assert job.position == pack_position(1, log.offsets[-1])
    assert job.record_bytes == len(log.data) - log.offsets[-1]
    assert (job.domain, job.priority) == (b"pages", 128)
    assert set(state.keys) == {KEY, URI, b"link"}
    assert state.arrival == 17
    assert state.records == 2


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


@pytest.mark.parametrize("age", [0, 1])
def test_newer_or_equally_old_record_replaces_the_entry_under_its_key(age: int) -> None:
    log = SegmentBuilder()
    old = log.entry(KEY, timestamp=T, uri=URI)
    log.lease([old], T + SECOND)
    new = log.entry(KEY, timestamp=T + age)
    state = state_of(log)
    assert only(state).job_id == new
    assert only(state).token == 0
    assert set(state.keys) == {KEY}
    log.simple(Command.DELETE, old)
    state = state_of(log)
    assert only(state).job_id == new
    assert tombs(state) == {}
    assert not state.odd


def test_record_older_than_the_entry_under_its_key_is_void() -> None:
    log = SegmentBuilder()
    first = log.entry(KEY, timestamp=T)
    log.entry(KEY, timestamp=T - 1, uri=URI)
    state = state_of(log)
    assert only(state).job_id == first
    assert URI not in state.keys
    assert state.odd.total() == 1


def test_entry_replaced_through_its_uri_leaves_a_tombstone_with_the_new_timestamp() -> None:
    log = SegmentBuilder()
    old = log.entry(KEY, timestamp=T, uri=URI)
    new = log.entry(OTHER, timestamp=T + 5, uri=URI)
    state = state_of(log)
    assert only(state).job_id == new
    assert tombs(state) == {KEY: T + 5}
    log.complete(old, KEY, T + 5)
    assert tombs(state_of(log)) == {KEY: T + 5}
    assert state_of(log).keys[URI].job_id == new


def test_entry_worked_on_is_superseded_by_a_newer_one_with_its_uri() -> None:
    log = SegmentBuilder()
    old = log.entry(KEY, timestamp=T, uri=URI)
    log.lease([old], T + 60 * SECOND)
    new = log.entry(OTHER, timestamp=T + 5, uri=URI)
    state = state_of(log)
    assert state.keys[KEY].superseded == T + 5
    assert state.keys[URI].job_id == new
    newest = log.entry(b"d:0:1:newest", timestamp=T + 9, uri=URI)
    state = state_of(log)
    assert state.jobs[old].superseded == T + 5
    assert state.keys[URI].job_id == newest
    assert tombs(state) == {OTHER: T + 9}
    assert new not in state.jobs


def test_entry_worked_on_is_superseded_by_one_without_a_timestamp() -> None:
    log = SegmentBuilder()
    old = log.entry(KEY, uri=URI, timestamp=0)
    log.lease([old], T + 60 * SECOND)
    log.entry(OTHER, uri=URI, timestamp=0)
    state = state_of(log)
    assert state.keys[URI].key == OTHER
    assert state.jobs[old].superseded


@pytest.mark.parametrize("end", ["timeout", "complete", "fail"])
def test_superseded_entry_is_dropped_when_its_lease_ends(end: str) -> None:
    log = SegmentBuilder()
    old = log.entry(KEY, timestamp=T, uri=URI)
    log.lease([old], T + 60 * SECOND)
    new = log.entry(OTHER, timestamp=T + 5, uri=URI)
    if end == "timeout":
        log.simple(Command.TIMEOUT_ATTEMPT, old)
    elif end == "fail":
        log.fail(old, b"bad")
    else:
        log.complete(old, KEY, T + 5)
    state = state_of(log)
    assert only(state).job_id == new
    assert tombs(state) == {KEY: T + 5}


def test_work_on_the_newer_entry_proves_that_work_on_the_superseded_one_is_over() -> None:
    log = SegmentBuilder()
    old = log.entry(KEY, timestamp=T, uri=URI)
    log.lease([old], T + 60 * SECOND)
    new = log.entry(OTHER, timestamp=T + 5, uri=URI)
    for start in ("lease", "start"):
        again = SegmentBuilder(ids_from=100)
        again.record(bytes(log)[log.offsets[1] :])
        if start == "lease":
            again.lease([new], T + 70 * SECOND)
        else:
            again.simple(Command.START_ATTEMPT, new)
        state = state_of(again)
        assert only(state).job_id == new
        assert only(state).token > 0
        assert tombs(state) == {KEY: T + 5}
        assert state.superseded == {}
        assert state.odd.total() == 1


@pytest.mark.parametrize(("late", "odd"), [(0, 1), (SECOND, 0), (9 * SECOND, 0)])
def test_lease_behind_the_end_of_superseded_work_is_not_odd_before_that_end_is_written(
    late: int, odd: int
) -> None:
    log = SegmentBuilder()
    old = log.entry(KEY, timestamp=T, uri=URI)
    log.lease([old], T + SECOND)
    new = log.entry(OTHER, timestamp=T + 5, uri=URI)
    log.now_us += late
    log.lease([new], log.now_us + SECOND)
    state = state_of(log)
    assert only(state).job_id == new
    assert tombs(state) == {KEY: T + 5}
    assert state.odd.total() == odd
    # the end is written now, and changes nothing
    log.complete(old, KEY, T + 5)
    assert tombs(state_of(log)) == {KEY: T + 5}


@pytest.mark.parametrize("taken", [[0], [0, 7]])
def test_superseded_entry_written_anew_does_not_take_its_uri_back(taken: list[int]) -> None:
    log = SegmentBuilder()
    new = log.entry(OTHER, timestamp=T + 5, uri=URI)
    moved = log.entry(KEY, timestamp=T, uri=URI, superseded=T + 5, taken=taken, token=T + SECOND)
    state = state_of(log)
    assert state.keys[URI].job_id == new
    assert state.keys[KEY].job_id == moved
    assert tombs(state) == {}


def test_record_older_than_the_entry_that_its_uri_leads_to_is_void() -> None:
    log = SegmentBuilder()
    first = log.entry(KEY, timestamp=T, uri=URI)
    log.entry(OTHER, timestamp=T - 1, uri=URI)
    assert only(state_of(log)).job_id == first


def test_id_used_twice_stands_for_the_later_record() -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, uri=URI)
    log.entry(OTHER, job_id=job_id)
    state = state_of(log)
    assert set(state.keys) == {OTHER}
    assert state.odd["an id added twice"] == 1


# --- the end of entries --------------------------------------------------------------------------


def test_completion_leaves_its_tombstone_and_a_later_entry_erases_it() -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, timestamp=T, uri=URI)
    log.complete(job_id, KEY, T + 3)
    state = state_of(log)
    assert (state.jobs, state.keys) == ({}, {})
    assert tombs(state) == {KEY: T + 3}
    assert state.tombstones[KEY].deleted_us == log.now_us
    log.entry(KEY, timestamp=T + 4)
    assert tombs(state_of(log)) == {}


def test_completion_of_a_job_that_is_gone_still_leaves_its_tombstone() -> None:
    log = SegmentBuilder()
    log.complete(log.job_id(), KEY, T)
    log.complete(log.job_id(), b"k" * 1000, T + 1)
    assert tombs(state_of(log)) == {KEY: T, b"k" * 1000: T + 1}


@pytest.mark.parametrize("command", [Command.DELETE, Command.EXPIRE])
def test_deleted_and_expired_entries_leave_nothing(command: Command) -> None:
    log = SegmentBuilder()
    log.simple(command, log.entry(KEY, uri=URI, links=[b"link"]))
    state = state_of(log)
    assert (state.jobs, state.keys, state.tombstones) == ({}, {}, {})


def test_completion_by_workq_leaves_no_tombstone() -> None:
    log = SegmentBuilder()
    log.result(Command.COMPLETE, log.entry(KEY), b"workq's own result")
    state = state_of(log)
    assert (state.jobs, state.tombstones) == ({}, {})


def test_tombstones_are_told_oldest_first_and_the_oldest_go_when_there_are_too_many() -> None:
    log = SegmentBuilder()
    for number in (3, 1, 2, 3):
        log.operation(Tombstone(b"%d" % number, T + number))
    state = state_of(log)
    assert list(state.tombstones) == [b"1", b"2", b"3"]
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


def test_tombstone_under_a_key_of_another_keeps_the_later_timestamp_while_the_first_stands() -> (
    None
):
    log = SegmentBuilder()
    log.operation(Tombstone(KEY, T + 9))
    log.now_us += 10
    log.operation(Tombstone(KEY, T + 5))
    state = state_of(log)
    assert (tombs(state), state.tombstones[KEY].deleted_us) == ({KEY: T + 9}, T + 10)
    log.now_us += TOMBSTONE_TTL_US
    log.operation(Tombstone(KEY, T + 5))
    assert tombs(state_of(log)) == {KEY: T + 5}


def test_tombstone_can_be_forgotten() -> None:
    log = SegmentBuilder()
    log.operation(Tombstone(KEY, T))
    log.operation(Erasure(KEY))
    assert tombs(state_of(log)) == {}


def test_tombstone_under_a_live_key_is_odd_and_not_kept() -> None:
    log = SegmentBuilder()
    log.entry(KEY)
    log.operation(Tombstone(KEY, T))
    state = state_of(log)
    assert tombs(state) == {}
    assert state.odd.total() == 1


# --- leases --------------------------------------------------------------------------------------


def test_lease_gives_its_token_to_all_jobs_of_the_group() -> None:
    log = SegmentBuilder()
    ids = [log.entry(b"d:0:1:%d" % number) for number in range(3)]
    log.lease(ids[:2], T + SECOND + 123)
    state = state_of(log)
    assert [state.jobs[job_id].token for job_id in ids] == [T + SECOND + 123] * 2 + [0]
    assert [state.jobs[job_id].starts for job_id in ids] == [1, 1, 0]
    assert state.last_token == T + SECOND + 123


@pytest.mark.parametrize(("late", "attempts"), [(-1, 0), (0, 1), (SECOND, 1)])
def test_lease_that_ran_out_counts_as_an_attempt_and_a_release_does_not(
    late: int, attempts: int
) -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY)
    token = T + SECOND
    log.lease([job_id], token)
    log.now_us = token + late
    log.simple(Command.TIMEOUT_ATTEMPT, job_id)
    job = only(state_of(log))
    assert (job.attempts, job.token, job.starts) == (attempts, 0, 1)


@pytest.mark.parametrize(("late", "attempts"), [(-1, 2), (0, 3)])
def test_buried_entry_keeps_its_attempts_but_for_the_lease_that_ran_out(
    late: int, attempts: int
) -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY, attempts=2)
    log.lease([job_id], T + SECOND)
    log.now_us = T + SECOND + late
    log.fail(job_id, b"no luck")
    job = only(state_of(log))
    assert (job.attempts, job.token, job.reason) == (attempts, 0, b"no luck")


def test_entry_that_nobody_works_on_can_be_buried() -> None:
    log = SegmentBuilder()
    log.fail(log.entry(KEY), b"")
    job = only(state_of(log))
    assert (job.attempts, job.reason) == (0, b"")


def test_lease_can_be_extended_an_expiry_moved_and_a_start_delayed() -> None:
    log = SegmentBuilder()
    job_id = log.entry(KEY)
    log.lease([job_id], T + SECOND)
    log.operation(Extend(job_id, T + 2 * SECOND + 7, 0, b"", 0, b""))
    log.operation(Touch(job_id, T + 3 * SECOND, is_instant=False))
    log.operation(Delay(job_id, T + 4 * SECOND))
    state = state_of(log)
    job = only(state)
    assert (job.token, job.expires) == (T + 2 * SECOND + 7, T + 3 * SECOND)
    assert job.not_before == T + 4 * SECOND
    assert state.last_token == T + 2 * SECOND + 7


def test_operations_on_jobs_that_cleaning_took_away_do_nothing() -> None:
    log = SegmentBuilder()
    unknown = log.job_id()
    for operation in (
        Extend(unknown, 1, 0, b"", 0, b""),
        Touch(unknown, 1, is_instant=False),
        Delay(unknown, 1),
    ):
        log.operation(operation)
    log.lease([unknown], 5)
    state = state_of(log)
    assert state.odd == {}
    assert state.jobs == {}
    assert state.last_token == 5


def test_attempts_of_unknown_jobs_are_odd_in_the_log_of_another_program_only() -> None:
    for previous, odd in ((0, {}), (None, {"a record of an unknown job": 2})):
        log = SegmentBuilder(previous)
        unknown = log.job_id()
        log.simple(Command.START_ATTEMPT, unknown)
        log.simple(Command.TIMEOUT_ATTEMPT, unknown)
        state = state_of(log)
        assert state.odd == odd
        assert state.jobs == {}


def test_start_without_a_lease_lasts_for_the_default_lease() -> None:
    log = SegmentBuilder()
    log.simple(Command.START_ATTEMPT, log.entry(KEY))
    assert only(state_of(log)).token == T + LEASE_US_DEFAULT


@pytest.mark.parametrize("ours", [True, False])
def test_timeout_of_a_job_that_is_not_leased_does_nothing_and_is_odd_in_anothers_log(
    ours: bool,
) -> None:
    """In ours cleaning keeps the end of a lease, and perhaps not the lease."""
    log = SegmentBuilder(0 if ours else None)
    log.simple(Command.TIMEOUT_ATTEMPT, log.entry(KEY))
    state = state_of(log)
    assert only(state).attempts == 0
    assert state.odd.total() == (0 if ours else 1)


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
        (
            "an instant before 1970",
            record(pack((KEY, None, (), 1, b"", -1, 1, 1, 1))),
        ),
        (
            "an arrival too high",
            record(pack((KEY, None, (), 1, b"", 1, 1, 1, 2**63))),
        ),
        (
            "an unheard-of type",
            record(pack((KEY, None, (), 256, b"", 1, 1, 1, 1))),
        ),
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


def test_replaying_in_slices_gives_what_replaying_at_once_gives() -> None:
    log = SegmentBuilder()
    ids = [log.entry(b"d:0:1:%d" % number, arrival=number) for number in range(10)]
    log.lease(ids[:5], T + SECOND)
    for number, job_id in enumerate(ids[:3]):
        log.complete(job_id, b"d:0:1:%d" % number)
    whole = state_of(log)
    (run,) = scan_segment(bytes(log)).runs
    for step in (1, 2, 3, 7):
        replay = Replay()
        replay.start_segment(1, bytes(log))
        index = 0
        while index < len(run):
            index = replay.replay(run, index, index + step, last=True)
        assert replay.state.jobs == whole.jobs
        assert replay.state.tombstones == whole.tombstones
        assert replay.state.records == whole.records == len(log.offsets)
