"""Binlogs of beanstalkd as items: what an import of them starts from."""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
from pathlib import Path

import pytest

from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.foreign import open_beanstalkd
from fastjournal.foreign.beanstalkd import (
    VERSION,
    VERSION_OLD,
    BeanstalkdJournal,
    BinlogRecord,
    BinlogVersion,
    JobState,
    encode_change,
    encode_end,
    encode_job,
    encode_version,
)
from fastjournal.keys import parse_journal_key
from fastjournal.limits import INSTANT_MAX
from fastjournal.testing.disk import SimulatedDisk

CORPUS = Path(__file__).parent / "data" / "beanstalkd"
LOG = "/log"
HEADER = b"\7\0\0\0"
NOW = 1_795_165_389_000_000


def a_disk(*binlogs: bytes, first: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    for number, data in enumerate(binlogs, first):
        disk.create(f"{LOG}/binlog.{number}").write(data)
    return disk


def job(number: int, tube: bytes, **fields: int) -> BinlogRecord:
    """Return a job record; times in microseconds."""
    values = {"pri": 100, "ttr_us": 60_000_000, "created_us": NOW, "state": JobState.READY}
    empty = BinlogRecord._make(0 for _ in BinlogRecord._fields)
    return empty._replace(id=number, tube=tube, **(values | fields))


def put(number: int, body: bytes = b"body", tube: bytes = b"tube", **fields: int) -> bytes:
    """Return a full record."""
    return encode_job(job(number, tube, **fields), body, VERSION)


def change(number: int, state: int, body: bytes = b"body", **fields: int) -> bytes:
    """Return a short record: it has no tube and no body."""
    size = len(body) + 2
    return encode_change(job(number, b"", body_bytes=size, state=state, **fields), VERSION)


def read(*binlogs: bytes) -> BeanstalkdJournal:
    with open_beanstalkd(a_disk(*binlogs), LOG) as journal:
        return journal


def found(journal: BeanstalkdJournal) -> dict[bytes, bytes]:
    return {item.key.rpartition(b"-")[2]: item.value for item in journal.items()}


@pytest.mark.parametrize(
    ("name", "recorded"),
    [("killed", "killed"), ("stopped", "stopped"), ("stopped-v5", "stopped")],
)
def test_replay_gives_the_jobs_that_beanstalkd_has_after_a_restart(
    name: str, recorded: str
) -> None:
    jobs = json.loads((CORPUS / f"{recorded}.json").read_text())["after_restart"]
    with open_beanstalkd(OsDisk(), str(CORPUS / name)) as journal:
        items = list(journal.items())
        assert (journal.count, journal.faults) == (len(jobs), [])
        cut = sum(job["pri"] > 255 for job in jobs.values())
        assert journal.not_carried["priorities_cut"] == cut
        assert sum(queue.items for queue in journal.queues) == len(jobs)
    states = set()
    for item in items:
        parts = parse_journal_key(item.key)
        assert parts is not None
        job = jobs.pop(parts.id.removeprefix(b"beanstalkd-").decode())
        delayed = job["state"] == "delayed"
        instant = job["deadline_us"] if delayed else job["created_us"]
        priority = min(job["pri"], 255)
        assert parts[:3] == (job["tube"].encode(), priority, instant)
        assert item.value == base64.b64decode(job["body_b64"])
        assert (item.timestamp, item.expires) == (job["created_us"], 0)
        assert (item.reason is not None) == (job["state"] == "buried")
        states.add(job["state"])
    assert not jobs
    assert states == {"ready", "delayed", "buried"}


def test_records_without_a_tube_change_a_job_or_are_ignored() -> None:
    first = HEADER + put(1) + put(2) + change(9, JobState.READY) + put(3)
    second = HEADER + change(1, JobState.BURIED, pri=7) + change(2, JobState.DELETED)
    second += (
        change(3, JobState.RESERVED)
        + change(8, JobState.DELETED)
        + encode_end(VERSION)
        + b"rubbish"
    )
    journal = read(first, second)
    assert journal.faults == []
    buried, reserved = journal.items()
    assert buried.key.startswith(b"tube:007:")
    assert (buried.reason is not None, reserved.reason) == (True, None)


def test_record_in_full_of_a_known_job_means_that_it_moved_to_another_file() -> None:
    disk = a_disk(HEADER + put(1, b"value"), HEADER + put(1, b"value", b"other", pri=5))
    disk.unlink(f"{LOG}/binlog.1")
    disk.create(f"{LOG}/binlog.1").write(HEADER + put(1, b"VALUE"))
    with open_beanstalkd(disk, LOG) as journal:
        (item,) = journal.items()
    assert (item.value, item.path) == (b"value", f"{LOG}/binlog.2")
    assert item.key.startswith(b"tube:005:")


def test_jobs_have_times_to_run_that_are_counted_for_each_tube() -> None:
    times = [3, 1, 2, 9]
    data = b"".join(put(1 + n, ttr_us=times[n] * 1_000_000) for n in range(4))
    journal = read(HEADER + data + put(9, tube=b"other:tube"))
    other, tube = journal.queues
    assert (other.domain, other.items, other.others) == (b"other%3Atube", 1, 0)
    assert journal.not_carried == {"other_ttr_or_attempts": 3}
    assert tube.ttr_us == (1_000_000, 2_000_000, 9_000_000)
    assert (tube.items, tube.others, tube.attempts) == (4, 3, 0)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (put(2, state=5), "state 5"),
        (struct.pack("<i", 201), "tube name of 201"),
        (struct.pack("<i", -1), "tube name of -1"),
        (change(1, JobState.READY, b"another size"), "before of"),
        (put(1, b"another size"), "before of"),
        (put(2)[: 8 + 32] + b"\1\0\0\0" + put(2)[8 + 36 :], "body of 1 bytes"),
    ],
)
def test_damage_has_its_offset_and_the_next_file_is_read(bad: bytes, text: str) -> None:
    first = HEADER + put(1)
    journal = read(first + bad, HEADER + put(5))
    assert found(journal) == {b"1": b"body", b"5": b"body"}
    (fault,) = journal.faults
    assert (fault.path, fault.offset, fault.damage) == (f"{LOG}/binlog.1", len(first), True)
    assert text in fault.message


def test_torn_end_of_the_last_file_is_no_damage_and_of_another_it_is() -> None:
    whole = HEADER + put(1)
    for cut in range(1, len(put(2))):
        torn = whole + put(2)[:cut]
        journal = read(torn)
        assert found(journal) == {b"1": b"body"}
        assert [(fault.offset, fault.damage) for fault in journal.faults] == [(len(whole), False)]
    (fault,) = read(torn, HEADER + put(5)).faults
    assert fault.damage


@pytest.mark.parametrize(("version", "least"), [(VERSION, 84), (VERSION_OLD, 85)])
def test_damage_is_nowhere_where_zeros_stand_up_to_the_end_of_a_file(
    version: BinlogVersion, least: int
) -> None:
    assert len(encode_end(version)) == least
    whole = encode_version(version) + encode_job(job(1, b"tube"), b"body", version)
    last = HEADER + put(5)
    for zeros in range(1, least - 1):
        for files in ([whole + bytes(zeros), last], [whole + bytes(zeros)]):
            journal = read(*files)
            assert journal.faults == []
            assert journal.count == len(files)
        (fault,) = read(whole + bytes(zeros) + b"\1", last).faults
        assert (fault.offset, fault.damage) == (len(whole), True)
    assert read(whole + bytes(least - 1), last).faults == []


def test_damage_is_a_file_of_zeros_before_another_one_and_not_the_last() -> None:
    whole = HEADER + put(1)
    for size in (1, 4, 300_000):
        journal = read(whole, bytes(size))
        assert (journal.faults, journal.count) == ([], 1)
        (fault,) = read(bytes(size), whole).faults
        assert (fault.path, fault.offset, fault.damage) == (f"{LOG}/binlog.1", 0, True)
    (fault,) = read(whole, bytes(300_000) + b"\1").faults
    assert (fault.offset, fault.damage) == (0, True)


def test_damage_is_also_an_unknown_version_and_a_gap_in_the_numbers() -> None:
    assert "version 6" in read(b"\6\0\0\0" + put(1)).faults[0].message
    disk = a_disk(HEADER + put(1), HEADER + put(2), HEADER + put(3))
    disk.unlink(f"{LOG}/binlog.2")
    with open_beanstalkd(disk, LOG) as journal:
        assert sorted(found(journal)) == [b"1", b"3"]
        (fault,) = journal.faults
    assert (fault.path, fault.damage) == (f"{LOG}/binlog.3", True)
    assert "binlog.2" in fault.message


def test_link_that_leads_nowhere_is_damage_with_its_path_and_the_other_files_are_read(
    tmp_path: Path,
) -> None:
    for number in (1, 3):
        name = tmp_path / f"binlog.{number}"
        name.write_bytes(HEADER + put(number))
    lost = tmp_path / "binlog.2"
    for make in (lambda: lost.symlink_to(tmp_path / "missing"), lost.mkdir):
        make()
        with open_beanstalkd(OsDisk(), str(tmp_path)) as journal:
            assert len(list(journal.items())) == 2
            (fault,) = journal.faults
        assert (fault.path, fault.damage) == (str(lost), True)
        assert "a directory, or a link that leads to no file" in fault.message
        if lost.is_symlink():
            lost.unlink()


def test_memory_holds_no_bodies() -> None:
    body = bytes(1_000_000)
    files = [HEADER + b"".join(put(10 * n + m, body) for m in range(1, 9)) for n in range(5)]
    disk = a_disk(*files)
    tracemalloc.start()
    try:
        with open_beanstalkd(disk, LOG) as journal:
            assert sum(len(item.value) for item in journal.items()) == 40_000_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000


def test_error_for_a_file_that_was_cut_meanwhile_has_its_place() -> None:
    disk = a_disk(HEADER + put(1))
    with open_beanstalkd(disk, LOG) as journal:
        disk.truncate(f"{LOG}/binlog.1", 90)
        with pytest.raises(LogCorruptError) as caught:
            list(journal.items())
    assert (caught.value.path, caught.value.offset) == (f"{LOG}/binlog.1", 4)


@pytest.mark.parametrize(
    "instead",
    [
        HEADER + put(77, b"OTHER"),
        HEADER + put(1, b"more than that"),
        HEADER + encode_end(VERSION),
        b"\6\0\0\0" + put(1, b"first"),
        b"",
    ],
    ids=["other-job", "other-size", "no-more", "other-version", "nothing"],
)
def test_error_for_a_file_that_was_replaced_meanwhile_has_its_place(instead: bytes) -> None:
    disk = a_disk(HEADER + put(1, b"first"))
    with open_beanstalkd(disk, LOG) as journal:
        disk.unlink(f"{LOG}/binlog.1")
        disk.create(f"{LOG}/binlog.1").write(instead)
        with pytest.raises(LogCorruptError) as caught:
            list(journal.items())
    assert (caught.value.path, caught.value.offset) == (f"{LOG}/binlog.1", len(HEADER))


def test_error_for_a_directory_of_another_format_names_it() -> None:
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    with pytest.raises(BadRequestError, match="no binlog"), open_beanstalkd(disk, LOG):
        pass
    disk.create(f"{LOG}/000000001.log").write(b"")
    with pytest.raises(BadRequestError, match="workq"), open_beanstalkd(disk, LOG):
        pass


def test_replay_reads_each_file_in_its_version() -> None:
    old = encode_version(VERSION_OLD) + b"".join(
        encode_job(job(number, b"tube"), b"old", VERSION_OLD) for number in (1, 2)
    )
    journal = read(old, HEADER + change(1, JobState.BURIED, b"old") + put(3, b"new"))
    assert journal.faults == []
    assert found(journal) == {b"1": b"old", b"2": b"old", b"3": b"new"}
    assert [item.reason is not None for item in journal.items()] == [True, False, False]


def test_replay_takes_negative_times_of_version_7_as_passed() -> None:
    times = {"created_us": -5, "ttr_us": -6, "deadline_us": -7, "state": JobState.DELAYED}
    journal = read(HEADER + put(1, **times))
    (item,) = journal.items()
    assert item.key == b"tube:100:0000000000000000:beanstalkd-1"
    assert item.timestamp == 1


def test_replay_raises_a_time_to_run_to_a_second_as_the_put_command_does() -> None:
    times = [0, 1, 999_999, 1_000_001]
    data = b"".join(
        encode_job(job(1 + n, b"tube", ttr_us=times[n]), b"", VERSION_OLD) for n in range(4)
    )
    (queue,) = read(encode_version(VERSION_OLD) + data).queues
    assert queue.ttr_us == (1_000_000, 1_000_000, 1_000_001)


@pytest.mark.parametrize("version", [VERSION, VERSION_OLD])
def test_replay_keeps_extremes_of_a_job(version: BinlogVersion) -> None:
    most = INSTANT_MAX if version == VERSION_OLD else (2**63 - 1) // 1000
    times = {"created_us": most, "deadline_us": most, "ttr_us": most, "delay_us": most}
    record = job(2**64 - 1, b"t" * 200, pri=2**32 - 1, state=JobState.DELAYED, **times)
    journal = read(encode_version(version) + encode_job(record, b"\r\n", version))
    (item,) = journal.items()
    parts = parse_journal_key(item.key)
    assert parts == (b"t" * 200, 255, most, b"beanstalkd-18446744073709551615")
    assert (item.value, item.timestamp) == (b"\r\n", most)
