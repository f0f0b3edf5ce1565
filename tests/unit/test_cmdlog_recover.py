"""Recovery: torn tails, damage, missing segments, and repairs of them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, Command
from fastjournal.cmdlog.format.operation_records import Tombstone, Touch
from fastjournal.cmdlog.recovery.recover import Progress, Recovered, recover, verify
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import START_US, SegmentBuilder
from fastjournal.testing.workq_rules import assert_workq_accepts

LOG = "/log"
NOW = START_US + 3_600_000_000
SECOND = 1_000_000
KEY = b"pages:128:0000000000000001:a"
OTHER = b"pages:100:0000000000000002:b"
URI = b"https://example.com/a"


def put(disk: SimulatedDisk, name: str, data: bytes) -> None:
    file = disk.create(f"{LOG}/{name}")
    file.write(data)
    file.sync()
    disk.sync_directory(LOG)


def a_disk(**files: bytes | SegmentBuilder) -> SimulatedDisk:
    """A log directory; ``s1=`` is the file 000000001.log."""
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    for name, data in files.items():
        put(disk, f"{int(name[1:]):09d}.log", bytes(data))
    return disk


def files(disk: SimulatedDisk) -> dict[str, bytes]:
    return {
        name: disk.read(f"{LOG}/{name}") for name in disk.listdir(LOG) if not name.endswith(".lock")
    }


def recovered(disk: SimulatedDisk, *, repair: bool = False) -> Recovered:
    return recover(disk, LOG, now_us=NOW, repair=repair)


def contents(state: ReplayState) -> object:
    """Everything of a state but where in the log it stands."""
    jobs = {
        job_id: [getattr(job, name) for name in job.__struct_fields__ if name != "position"]
        for job_id, job in state.jobs.items()
    }
    keys = {key: job.job_id for key, job in state.keys.items()}
    return jobs, keys, state.tombstones, state.last_token


def three_segments() -> tuple[SegmentBuilder, SegmentBuilder, SegmentBuilder]:
    first = SegmentBuilder(0)
    one = first.entry(b"a", timestamp=1)
    first.entry(b"b", timestamp=2)
    second = SegmentBuilder(1, ids_from=100)
    second.complete(one, b"a")
    second.entry(b"c")
    third = SegmentBuilder(2, ids_from=200)
    third.entry(b"d")
    third.entry(b"e")
    return first, second, third


ONE, TWO = f"{LOG}/000000001.log", f"{LOG}/000000002.log"


def flipped(log: SegmentBuilder, at: int, bit: int = 1) -> bytes:
    """Return the bytes of a segment with a flipped bit."""
    data = bytearray(bytes(log))
    data[at] ^= bit
    return bytes(data)


def keys(state: ReplayState) -> set[bytes]:
    return set(state.keys)


# --- sound logs ----------------------------------------------------------------------------------


def test_progress_is_told_with_bytes_and_records() -> None:
    first, second, third = three_segments()
    seen: list[Progress] = []
    recover(a_disk(s1=first, s2=second, s3=third), LOG, now_us=NOW, on_progress=seen.append)
    total = sum(len(segment.data) for segment in (first, second, third))
    assert [progress.segment for progress in seen] == [f"00000000{n}.log" for n in (1, 2, 3)]
    assert [progress.records for progress in seen] == [3, 6, 9]
    assert seen[-1].bytes_done == seen[-1].bytes == total


# --- torn tails ----------------------------------------------------------------------------------


def sample() -> SegmentBuilder:
    """Every kind of record of ours, groups among them."""
    log = SegmentBuilder()
    one = log.entry(KEY, timestamp=START_US, uri=URI)
    two = log.entry(OTHER, timestamp=START_US)
    log.lease([one, two], START_US + 60 * SECOND)
    log.entry(b"d:000:0000000000000003:c", timestamp=START_US + 1, uri=URI)
    log.now_us += SECOND
    log.simple(Command.TIMEOUT_ATTEMPT, two)
    log.batch(2)
    log.complete(one, KEY, START_US + 1)
    log.fail(two, b"why")
    log.simple(Command.DELETE, log.entry(b"plain"))
    return log


@pytest.mark.parametrize("inodes", [False, True])
@pytest.mark.parametrize("whole", [True, False], ids=["records before it", "nothing before it"])
def test_torn_tail_on_a_full_disk_is_cut_and_kept_in_its_room(whole: bool, inodes: bool) -> None:
    log = sample()
    tail = b"\x01half a record"
    disk = a_disk(s1=log, **({} if whole else {"s2": SEGMENT_HEADER + b"half"}))
    if whole:
        disk.open_append(ONE).write(tail)
    else:
        tail = SEGMENT_HEADER + b"half"
    expected = contents(recovered(disk.kill()).state)
    disk.capacity_bytes = sum(map(len, files(disk).values()))
    if not inodes:
        for count in (1, 2):
            disk.fail_at(count, "create", errno.ENOSPC)
    result = recovered(disk)
    assert contents(result.state) == expected
    assert contents(recovered(disk.crash(1)).state) == expected
    (found,) = result.diagnostics
    kept = [data for name, data in files(disk).items() if ".torn-" in name]
    assert kept == ([tail] if inodes else [])
    assert (found.kept is None) is not inodes
    assert ("no room to keep the bytes" in found.message) is not inodes
    assert recovered(disk).diagnostics == []


def test_torn_tail_that_cannot_be_kept_for_another_reason_is_not_cut() -> None:
    disk = a_disk(s1=bytes(sample()) + b"\x01half a record")
    before = files(disk)
    disk.fail_at(1, "create", errno.EIO)
    with pytest.raises(LogFailedError):
        recovered(disk)
    assert files(disk) == before


@pytest.mark.parametrize("data", [SEGMENT_HEADER[:n] for n in range(9)] + [bytes(8), bytes(600)])
def test_last_segment_without_a_record_goes_and_the_one_before_is_gone_on_with(data: bytes) -> None:
    first, second, _ = three_segments()
    disk = a_disk(s1=first, s2=second, s3=data)
    result = recovered(disk)
    assert [(found.kind, found.kept) for found in result.diagnostics] == [("empty", None)]
    assert result.active is not None
    assert result.active.number == 2
    assert sorted(files(disk)) == ["000000001.log", "000000002.log"]


def test_power_loss_at_any_call_of_recovery_loses_nothing_that_was_whole() -> None:
    log = sample()
    cut = log.offsets[5] + 3
    start = a_disk(s1=bytes(log)[:cut], s2=SEGMENT_HEADER + b"half")
    torn = bytes(log)[log.offsets[5] : cut]
    put(start, "000000001.log.rw", b"half")
    expected = contents(recovered(start.kill()).state)
    call = 0
    while True:
        call += 1
        disk = start.kill()
        disk.fail_at(call)
        try:
            recovered(disk)
        except LogFailedError:
            for seed in range(8):
                after = disk.crash(seed)
                assert contents(recovered(after).state) == expected
                assert recovered(after).diagnostics == []
                kept = [data for name, data in files(after).items() if ".torn-" in name]
                assert any(data.endswith(torn) for data in kept), "the torn bytes are lost"
            continue
        break
    assert call > 15


# --- damage --------------------------------------------------------------------------------------


def refused(disk: SimulatedDisk) -> LogCorruptError:
    before = files(disk)
    with pytest.raises(LogCorruptError) as caught:
        recovered(disk)
    assert files(disk) == before
    assert "--repair" in str(caught.value)
    return caught.value


def test_damage_in_the_middle_is_refused_with_segment_and_offset() -> None:
    log = sample()
    data = flipped(log, log.offsets[2] + 30, 4)
    error = refused(a_disk(s1=bytes(data)))
    assert error.path == ONE
    assert error.offset == log.offsets[2]


@pytest.mark.parametrize("data", [b"", SEGMENT_HEADER[:5], bytes(50), b"something else"])
def test_earlier_segment_without_a_header_is_refused(data: bytes) -> None:
    first, _, third = three_segments()
    disk = a_disk(s1=first, s2=data, s3=third)
    error = refused(disk)
    assert (error.path, error.offset) == (TWO, 0)
    assert keys(recovered(disk, repair=True).state) == {b"a", b"b", b"d", b"e"}
    assert disk.read(TWO) == SEGMENT_HEADER
    assert files(disk).get("000000002.log.damaged-0", b"") == data
    assert recovered(disk).diagnostics == []


def test_missing_segment_is_refused_and_repair_notes_that_it_is_gone() -> None:
    first, _, third = three_segments()
    disk = a_disk(s1=first, s3=third)
    assert refused(disk).path == TWO
    assert [(found.kind, found.path) for found in verify(disk, LOG)] == [("missing", TWO)]
    result = recovered(disk, repair=True)
    assert keys(result.state) == {b"a", b"b", b"d", b"e"}
    assert [found.kind for found in result.diagnostics] == ["missing"]
    again = recovered(disk)
    assert again.diagnostics == []
    assert again.state.removed == {2}
    assert again.active is not None
    assert again.active.number == 3


def test_damage_at_several_places_is_refused_and_repaired_at_once() -> None:
    first, _, third = three_segments()
    one = flipped(first, first.offsets[1] + 20)
    three = flipped(third, third.offsets[0] + 20) + b"torn"
    disk = a_disk(s1=one, s3=three)
    put(disk, f"000000001.log.damaged-{first.offsets[1]}", b"of an earlier time")
    error = refused(disk)
    assert (error.path, error.offset) == (ONE, first.offsets[1])
    # the record that names segment 2 is gone too
    assert "and 2 more" in str(error)
    result = recovered(disk, repair=True)
    assert keys(result.state) == {b"b", b"d", b"e"}
    assert [found.kind for found in result.diagnostics] == ["damaged", "damaged", "damaged"]
    for found, data in zip(result.diagnostics, (one, three, three), strict=True):
        assert found.kept is not None
        assert disk.read(found.kept) == data[found.offset : found.offset + found.bytes]
    assert result.diagnostics[0].kept == f"{LOG}/000000001.log.damaged-{first.offsets[1]}.2"
    assert recovered(disk).diagnostics == []


# --- damage in groups ----------------------------------------------------------------------------


def a_lease_of_five() -> tuple[SegmentBuilder, list[bytes]]:
    log = SegmentBuilder()
    ids = [log.entry(b"d:000:0000000000000001:%d" % number) for number in range(5)]
    log.lease(ids, START_US + SECOND + 7)
    return log, ids


@pytest.mark.parametrize("lost", range(4))
def test_lease_that_damage_has_broken_counts_for_the_jobs_that_are_left(lost: int) -> None:
    log, ids = a_lease_of_five()
    disk = a_disk(s1=flipped(log, log.offsets[-5 + lost] + 30))
    refused(disk)
    state = recovered(disk, repair=True).state
    expected = [START_US + SECOND + 7] * 5
    expected[lost] = 0
    assert [state.jobs[job_id].token for job_id in ids] == expected
    again = recovered(disk)
    assert again.diagnostics == []
    assert contents(again.state) == contents(state)


def test_jobs_behind_damage_do_not_get_the_token_of_another_lease() -> None:
    log, ids = a_lease_of_five()
    lost = log.offsets[-1]
    more = [log.entry(b"d:000:0000000000000002:%d" % number) for number in range(2)]
    log.lease(more, START_US + 9 * SECOND)
    data = bytearray(bytes(log))
    data[lost : log.offsets[-2]] = bytes(log.offsets[-2] - lost)
    disk = a_disk(s1=bytes(data))
    for state in (recovered(disk, repair=True).state, recovered(disk).state):
        assert [state.jobs[job_id].token for job_id in ids] == [START_US + SECOND + 7] * 4 + [0]
        assert state.odd == {}


def test_lease_that_lost_several_jobs_leaves_the_token_to_the_others() -> None:
    log, ids = a_lease_of_five()
    log.entry(KEY)
    data = bytearray(bytes(log))
    data[log.offsets[-5] : log.offsets[-3]] = bytes(74)
    disk = a_disk(s1=bytes(data))
    for state in (recovered(disk, repair=True).state, recovered(disk).state):
        tokens = [state.jobs[job_id].token for job_id in ids]
        assert tokens == [START_US + SECOND + 7, 0, 0, *[START_US + SECOND + 7] * 2]
        assert not state.odd


def test_damage_before_an_unfinished_group_is_repaired_and_the_group_is_cut() -> None:
    log, ids = a_lease_of_five()
    data = bytearray(bytes(log)[: log.offsets[-1] + 5])
    data[log.offsets[3] + 30] ^= 1
    disk = a_disk(s1=bytes(data))
    result = recovered(disk, repair=True)
    assert [found.kind for found in result.diagnostics] == ["damaged", "damaged", "unfinished"]
    assert all(job.token == 0 for job in result.state.jobs.values())
    assert set(result.state.jobs) == set(ids) - {ids[2]}
    assert recovered(disk).diagnostics == []


def test_lost_end_of_a_lease_is_made_up_for_so_that_workq_replays_the_next_one() -> None:
    log = SegmentBuilder()
    ids = [log.entry(b"d:000:0000000000000001:%d" % number) for number in range(3)]
    log.lease(ids, START_US + SECOND)
    log.simple(Command.TIMEOUT_ATTEMPT, ids[0])
    lost = log.offsets[-1]
    log.lease(ids[:1], START_US + 2 * SECOND)
    log.simple(Command.TIMEOUT_ATTEMPT, ids[1])
    log.lease(ids[1:2], START_US + 3 * SECOND)
    disk = a_disk(s1=flipped(log, lost + 20))
    state = recovered(disk, repair=True).state
    assert [state.jobs[job_id].token for job_id in ids] == [
        START_US + 2 * SECOND,
        START_US + 3 * SECOND,
        START_US + SECOND,
    ]
    assert all(job.attempts == 0 for job in state.jobs.values())
    assert disk.read(ONE)[: lost + 16] == bytes(log)[: lost + 16]
    assert len(disk.read(ONE)) == len(log.data)
    assert_workq_accepts([disk.read(ONE)])


def test_end_of_a_lease_lost_with_a_segment_is_made_up_for() -> None:
    first = SegmentBuilder()
    job_id = first.entry(KEY)
    first.lease([job_id], START_US + SECOND)
    third = SegmentBuilder(2, ids_from=100)
    third.lease([job_id], START_US + 2 * SECOND)
    disk = a_disk(s1=first, s3=third)
    state = recovered(disk, repair=True).state
    assert state.jobs[job_id].token == START_US + 2 * SECOND
    assert state.jobs[job_id].starts == 2
    assert_workq_accepts([disk.read(f"{LOG}/00000000{number}.log") for number in (1, 3)])
    assert recovered(disk).diagnostics == []


def test_record_that_cannot_be_understood_is_taken_out_like_other_damage() -> None:
    log = SegmentBuilder()
    log.entry(b"a")
    log.result(Command.COMPLETE, log.job_id(), b"FJ\x01nonsense")
    log.entry(b"b")
    disk = a_disk(s1=log)
    assert refused(disk).offset == log.offsets[2]
    assert keys(recovered(disk, repair=True).state) == {b"a", b"b"}
    assert disk.read(ONE) == bytes(log)[: log.offsets[2]] + bytes(log.data[log.offsets[3] :])


def test_repair_after_a_failure_at_any_of_its_calls_still_repairs() -> None:
    log = sample()
    data = flipped(log, log.offsets[2] + 30, 4)
    start = a_disk(s1=bytes(data), s3=SegmentBuilder(2, ids_from=100))
    expected = contents(recovered(start.kill(), repair=True).state)
    call = 0
    while True:
        call += 1
        disk = start.kill()
        disk.fail_at(call)
        try:
            recovered(disk, repair=True)
        except LogFailedError:
            for seed in range(20):
                after = disk.crash(seed)
                assert contents(recovered(after, repair=True).state) == expected
                kept = [content for name, content in files(after).items() if ".damaged-" in name]
                assert bytes(data[log.offsets[2] : log.offsets[3]]) in kept
            continue
        break
    assert call > 20


def test_recovery_works_on_a_real_disk(tmp_path: Path) -> None:
    first, second, third = three_segments()
    for number, data in enumerate((bytes(first), bytes(second), bytes(third)[:-1]), 1):
        (tmp_path / f"00000000{number}.log").write_bytes(data)
    result = recover(OsDisk(), str(tmp_path), now_us=NOW)
    assert keys(result.state) == {b"b", b"c", b"d"}
    assert [found.kind for found in result.diagnostics] == ["torn"]
    with (tmp_path / "000000002.log").open("r+b") as file:
        file.seek(second.offsets[1] + 25)
        file.write(b"XX")
    with pytest.raises(LogCorruptError):
        recover(OsDisk(), str(tmp_path), now_us=NOW)
    assert keys(recover(OsDisk(), str(tmp_path), now_us=NOW, repair=True).state) == {
        b"a",
        b"b",
        b"c",
        b"d",
    }
    assert recover(OsDisk(), str(tmp_path), now_us=NOW).diagnostics == []


def test_damage_is_told_by_the_keys_of_what_it_looks_like() -> None:
    log = SegmentBuilder()
    live = log.entry(b"live")
    first = log.offsets[-1]
    log.entry(b"one", value=b"1" * 40)
    log.entry(KEY, value=b"2" * 40)
    log.complete(live, b"done")
    log.operation(Tombstone(b"tomb", 1))
    log.operation(Touch(live, NOW, is_instant=False))
    log.simple(Command.TIMEOUT_ATTEMPT, live)
    end = len(log.data)
    log.entry(b"behind")
    data = bytearray(bytes(log))
    for start in [at for at in log.offsets if first < at < end]:
        # the time of each: its checksum is wrong, and the rest can be read
        data[start + 12] ^= 1
    (found,) = verify(a_disk(s1=bytes(data)), LOG)
    for key in (b"one", KEY, b"done", b"tomb"):
        assert f"key {key!r}" in found.message
    assert found.message.count("key b'live'") == 2, "a touch and a timeout of it"
