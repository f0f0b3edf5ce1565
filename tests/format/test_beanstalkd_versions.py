"""Binlog versions of beanstalkd: bytes of their records, and what release 1.4.6 reads of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.disk import OsDisk
from fastjournal.foreign import open_beanstalkd
from fastjournal.foreign.beanstalkd import (
    VERSION,
    VERSION_BYTES,
    VERSION_OLD,
    BinlogRecord,
    BinlogVersion,
    JobState,
    encode_change,
    encode_end,
    encode_job,
    encode_version,
    read_record,
    read_version,
)
from fastjournal.foreign.journal_files import WindowedFile
from fastjournal.testing.logs import SegmentBuilder
from tests.format.foreign_exports import NOW, TARGETS, exported

CORPUS = Path(__file__).parent / "data" / "beanstalkd"
TIMES_AT = {16, 24, 40, 48}
"""Offsets of delay, ttr, created and deadline in a job record."""
EXAMPLE = BinlogRecord(
    0, 0, b"tube", 0x0102030405060708, 9, 10, 11, 6, 12, 13, 14, 15, 16, 17, 18, JobState.DELAYED, 0
)


def records_of(path: Path) -> Iterator[tuple[BinlogRecord, bytes]]:
    """Yield the records of a binlog and their bodies without the final CR LF."""
    data = path.read_bytes()
    file = WindowedFile(OsDisk(), str(path))
    version, offset = read_version(file), VERSION_BYTES
    while offset < file.size and (record := read_record(file, offset, version)) is not None:
        yield record, data[record.body_at : record.end - 2]
        offset = record.end


def encoded_again(path: Path, version: BinlogVersion) -> bytes:
    """Return a binlog of the records of another one, without an end."""
    out = [encode_version(version)]
    for record, body in records_of(path):
        full = bool(record.tube)
        out.append(encode_job(record, body, version) if full else encode_change(record, version))
    return b"".join(out)


def in_microseconds(path: Path) -> bytes:
    """Return a binlog of version 7 whose times are cut to microseconds."""
    data = bytearray(path.read_bytes())
    for record, _ in records_of(path):
        for at in TIMES_AT:
            place = record.body_at - 80 + at
            (nanoseconds,) = struct.unpack_from("<q", data, place)
            struct.pack_into("<q", data, place, nanoseconds // 1000 * 1000)
    return bytes(data)


def assert_begins(file: bytes, records: bytes) -> None:
    """Compare the records of a file, behind which zeros may stand."""
    assert file[: len(records)] == records
    assert not file[len(records) :].strip(b"\0")


@pytest.mark.parametrize("name", ["binlog.1", "binlog.2"])
def test_records_of_version_5_decoded_and_encoded_again_are_the_recorded_bytes(name: str) -> None:
    path = CORPUS / "stopped-v5" / name
    assert_begins(path.read_bytes(), encoded_again(path, VERSION_OLD))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("killed/*")) + sorted(CORPUS.glob("stopped/*")))
def test_records_of_version_7_decoded_and_encoded_again_are_the_recorded_bytes(path: Path) -> None:
    assert_begins(in_microseconds(path), encoded_again(path, VERSION))


@pytest.mark.parametrize("name", ["binlog.1", "binlog.2"])
def test_records_of_one_version_encoded_in_the_other_are_those_recorded_there(name: str) -> None:
    new, old = CORPUS / "stopped" / name, CORPUS / "stopped-v5" / name
    assert_begins(old.read_bytes(), encoded_again(new, VERSION_OLD))
    assert_begins(in_microseconds(new), encoded_again(old, VERSION))


def test_layout_of_both_versions_is_that_of_the_table() -> None:
    times = [10, 11, 12, 13]
    for version, name, units, padding in ((VERSION, "<i", 1000, 3), (VERSION_OLD, "<q", 1, 0)):
        delay, ttr, created, deadline = (time * units for time in times)
        job = struct.pack("<QIIqqiIqq5I", EXAMPLE.id, 9, 0, delay, ttr, 6, 0, created, deadline,
                          14, 15, 16, 17, 18)  # fmt: skip
        job += b"\4" + bytes(padding)
        assert len(job) == {7: 80, 5: 77}[version]
        full = struct.pack(name, 4) + b"tube" + job + b"body\r\n"
        assert encode_job(EXAMPLE._replace(body_bytes=0), b"body", version) == full
        assert encode_change(EXAMPLE, version) == struct.pack(name, 0) + job
        assert encode_end(version) == bytes(struct.calcsize(name) + len(job))
        assert encode_version(version) == bytes([version, 0, 0, 0])


def jobs_of_release_1_4_6(data: bytes) -> dict[int, tuple[int, bytes]]:
    """Return state and body of each job that this release finds in a binlog of version 5.

    It reads a body only behind the job record of a ready or delayed job.
    """
    jobs: dict[int, tuple[int, bytes]] = {}
    assert data[:4] == b"\5\0\0\0"
    at = 4
    while at + 8 <= len(data):
        name_bytes = int.from_bytes(data[at : at + 8], "little")
        if name_bytes > 200:
            # bytes that are no record: the rest of the file is lost
            return jobs
        at += 8 + name_bytes
        number, size, state = struct.unpack_from("<Q24xi40xB", data, at)
        at += 77
        if number == 0:
            return jobs
        if state == JobState.DELETED:
            jobs.pop(number, None)
        elif state in (JobState.READY, JobState.DELAYED) and name_bytes:
            jobs[number] = (state, data[at : at + size])
            at += size
        elif number in jobs:
            jobs[number] = (state, jobs[number][1])
    return jobs


def test_export_of_version_5_is_read_by_release_1_4_6_also_behind_a_buried_job() -> None:
    log = SegmentBuilder(0)
    later = NOW + 1_000_000
    log.entry(b"tube:001:0:1", value=b"ready")
    log.fail(log.entry(b"tube:002:0:2", value=b"buried" * 50), b"why")
    log.fail(log.entry(b"tube:003:%d:3" % later, value=b"late", not_before=later), b"why")
    log.entry(b"tube:004:%d:4" % later, value=b"", not_before=later)
    _, found, disk = exported(TARGETS["beanstalkd-5"], log)
    assert jobs_of_release_1_4_6(disk.read("/out/binlog.1")) == {
        1: (JobState.READY, b"ready\r\n"),
        2: (JobState.BURIED, b"buried" * 50 + b"\r\n"),
        3: (JobState.BURIED, b"late\r\n"),
        4: (JobState.DELAYED, b"\r\n"),
    }
    assert [work.buried for work in found] == [False, True, True, False]


def test_replay_of_version_5_gives_the_jobs_that_release_1_4_6_finds() -> None:
    jobs = jobs_of_release_1_4_6((CORPUS / "stopped-v5" / "binlog.1").read_bytes())
    with open_beanstalkd(OsDisk(), str(CORPUS / "stopped-v5")) as journal:
        items = {int(item.key.rpartition(b"-")[2]): item for item in journal.items()}
    assert {number: body[:-2] for number, (_, body) in jobs.items()} == {
        number: item.value for number, item in items.items()
    }
    buried = {number for number, (state, _) in jobs.items() if state == JobState.BURIED}
    assert buried == {number for number, item in items.items() if item.reason is not None} != set()
