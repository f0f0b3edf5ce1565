"""Writer of the log: segments in order, durable records, failures that last."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable

import google_crc32c
import msgspec
import pytest

from fastjournal.cmdlog.format.layout import (
    SEGMENT_HEADER,
    Command,
    SegmentInfo,
    segment_name,
    unpack_position,
)
from fastjournal.cmdlog.format.records import decode_record, encode_result, encode_time
from fastjournal.cmdlog.locks import list_segments
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.testing.disk import SimulatedDisk

LOG = "/log"
NOW = 1_795_165_389_000_000


def start_record(previous: SegmentInfo | int | None, now_us: int) -> bytes:
    number = previous.number if isinstance(previous, SegmentInfo) else previous or 0
    job_id = number.to_bytes(16, "big")
    return encode_result(Command.COMPLETE, encode_time(now_us), job_id, b"start")


START_BYTES = len(start_record(None, 0))


def a_record(number: int, size: int = 20, now_us: int = NOW) -> bytes:
    text = b"%d" % number
    return encode_result(
        Command.COMPLETE, encode_time(now_us), number.to_bytes(16, "big"), text.rjust(size, b".")
    )


def a_disk(seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(seed)
    disk.mkdir(LOG)
    return disk


def a_writer(
    disk: Disk,
    *,
    sync: SyncPolicy = SyncPolicy.ALWAYS,
    active: SegmentInfo | None = None,
    sealed: Iterable[SegmentInfo] = (),
    segment_bytes_max: int = 300,
) -> LogWriter:
    return LogWriter(
        disk,
        LOG,
        segment_bytes_max=segment_bytes_max,
        sync=sync,
        active=active,
        sealed=sealed,
        segment_start=start_record,
    )


def append_and_flush(writer: LogWriter, count: int) -> None:
    for number in range(count):
        writer.append(a_record(number, 100), 1, NOW)
        writer.flush()


def segments_of(disk: Disk) -> dict[int, bytes]:
    return {
        number: disk.read(f"{LOG}/{segment_name(number)}") for number in list_segments(disk, LOG)
    }


@pytest.mark.parametrize("sync", SyncPolicy)
def test_segment_is_durable_before_the_next_exists_under_every_policy(sync: SyncPolicy) -> None:
    disk = a_disk()
    writer = a_writer(disk, sync=sync, segment_bytes_max=100)
    for number in range(5):
        writer.append(a_record(number), 1, NOW)
        writer.flush()
        written = segments_of(disk)
        for seed in range(50):
            kept = segments_of(disk.crash(seed, holes=True))
            assert list(kept) == list(written)[: len(kept)]
            for segment in list(kept)[:-1]:
                assert kept[segment] == written[segment]


def test_bounds_of_times_hold_whatever_the_clock_does() -> None:
    disk = a_disk()
    writer = a_writer(disk, segment_bytes_max=10_000)
    for step in (0, -9, 5, -2):
        writer.append(a_record(1, now_us=NOW + step), 1, NOW + step)
    writer.write()
    active = writer.active
    assert (active.first_us, active.last_us) == (NOW, NOW - 2)
    assert (active.min_us, active.max_us) == (NOW - 9, NOW + 5)
    # what an older start did not know is not known of what comes behind it
    for known in (True, False):
        disk = disk.kill()
        resumed = active if known else msgspec.structs.replace(active, min_us=None, max_us=None)
        writer = a_writer(disk, active=resumed, segment_bytes_max=10_000)
        writer.append(a_record(2, now_us=NOW + 7), 1, NOW + 7)
        assert writer.active is not None
        bounds = (NOW - 9, NOW + 7) if known else (None, None)
        assert (writer.active.min_us, writer.active.max_us) == bounds


@pytest.mark.parametrize("header", [b"", SEGMENT_HEADER])
def test_segment_without_records_gets_what_it_lacks(header: bytes) -> None:
    disk = a_disk()
    sealed = SegmentInfo(4, 100, 0, NOW, NOW, 1)
    file = disk.create(f"{LOG}/{segment_name(6)}")
    file.write(header)
    crc = google_crc32c.value(header)
    active = SegmentInfo(6, len(header), crc, None, None, 0)
    writer = a_writer(disk, active=active, sealed=[sealed])
    writer.roll()
    assert writer.sealed == [sealed]
    position = writer.append(a_record(1), 1, NOW)
    writer.flush()
    content = SEGMENT_HEADER + start_record(4, NOW) + a_record(1)
    assert segments_of(disk) == {6: content}
    assert unpack_position(position) == (6, 8 + START_BYTES)
    assert writer.active == SegmentInfo(
        6, len(content), google_crc32c.value(content), NOW, NOW, 2, NOW, NOW
    )


def test_resumed_segment_of_another_length_is_refused() -> None:
    disk = a_disk()
    disk.create(f"{LOG}/{segment_name(1)}").write(SEGMENT_HEADER + b"x")
    with pytest.raises(LogFailedError, match="has 9 bytes, not 8"):
        a_writer(disk, active=SegmentInfo(1, 8, 0, None, None, 0))


def test_file_in_the_way_of_a_new_segment_is_not_touched() -> None:
    disk = a_disk()
    disk.create(f"{LOG}/{segment_name(1)}").write(b"precious")
    writer = a_writer(disk)
    writer.append(a_record(1), 1, NOW)
    with pytest.raises(LogFailedError, match="cannot create: File exists"):
        writer.write()
    assert segments_of(disk) == {1: b"precious"}


@pytest.mark.parametrize("call", ["write", "sync", "sync_directory", "create"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_first_failure_is_raised_by_every_later_call(call: str, count: int) -> None:
    disk = a_disk()
    writer = a_writer(disk, segment_bytes_max=100)
    disk.fail_at(count, call, errno.EIO)
    with pytest.raises(LogFailedError) as caught:
        append_and_flush(writer, 10)
    calls = disk.calls.total()
    appended = writer.appended
    for act in (writer.write, writer.sync, writer.flush, writer.roll, writer.close):
        with pytest.raises(LogFailedError) as again:
            act()
        assert again.value is caught.value
    with pytest.raises(LogFailedError):
        writer.append(a_record(99), 1, NOW)
    assert disk.calls.total() == calls
    assert writer.durable < writer.appended == appended
    assert writer.dirty


def test_interrupted_write_ends_the_writer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = a_disk()
    writer = a_writer(disk)
    writer.append(a_record(1), 1, NOW)

    def interrupt(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "create", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.write()
    with pytest.raises(LogFailedError, match="interrupted"):
        writer.flush()


@pytest.mark.parametrize("sync", SyncPolicy)
def test_closing_makes_everything_durable_and_ends_the_writer(sync: SyncPolicy) -> None:
    disk = a_disk()
    writer = a_writer(disk, sync=sync)
    writer.append(a_record(1), 1, NOW)
    writer.close()
    writer.close()
    assert not writer.dirty
    assert all(segments_of(disk.crash(seed)) == segments_of(disk) for seed in range(20))
    with pytest.raises(LogFailedError, match="closed"):
        writer.append(a_record(2), 1, NOW)


def test_last_number_is_not_exceeded() -> None:
    disk = a_disk()
    disk.create(f"{LOG}/999999999.log").write(SEGMENT_HEADER)
    writer = a_writer(disk, sealed=[SegmentInfo(999_999_999, 8, 0, None, None, 0)])
    with pytest.raises(LogFailedError, match="no number follows"):
        writer.append(a_record(1), 1, NOW)


def records_of(contents: dict[int, bytes]) -> list[int]:
    """The job numbers of all whole records in order, without those that start a segment."""
    found = []
    for number, content in contents.items():
        offset = 8 + len(start_record(number - 1, NOW))
        while offset + 20 < len(content) and any(content[offset : offset + 15]):
            try:
                record, offset = decode_record(content, offset)
            except LogCorruptError:
                assert number == max(contents), "only the last segment may be torn"
                break
            found.append(int.from_bytes(record.job_id, "big"))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_durable_records_survive_every_crash_and_failure(seed: int) -> None:
    generator = random.Random(seed)
    disk = a_disk(seed)
    sync = generator.choice(list(SyncPolicy))
    writer = a_writer(disk, sync=sync, segment_bytes_max=generator.choice([100, 400, 5000]))
    if generator.random() < 0.5:
        disk.fail_at(generator.randint(1, 60), generator.choice(["write", "sync", "any"]))
    ends = []
    steps = (writer.write, writer.sync, writer.flush, writer.roll)
    try:
        for number in range(150):
            writer.append(a_record(number, generator.randint(4, 200)), 1, NOW)
            ends.append(writer.appended)
            if generator.random() < 0.4:
                generator.choices(steps, (4, 4, 4, 1))[0]()
    except LogFailedError:
        pass
    durable = sum(end <= writer.durable for end in ends)
    for crash in range(20):
        kept = records_of(segments_of(disk.crash(crash)))
        assert kept == list(range(len(kept)))
        assert durable <= len(kept) <= len(ends)
