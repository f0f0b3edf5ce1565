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


def test_writer_does_not_touch_the_disk_before_the_write() -> None:
    disk = a_disk()
    writer = a_writer(disk)
    before = disk.calls.total()
    writer.append(a_record(1), 1, NOW)
    assert disk.calls.total() == before
    assert (writer.written, writer.durable, writer.dirty) == (0, 0, True)
    writer.flush()
    assert disk.calls["write"] == 1
    assert (writer.written, writer.durable, writer.dirty) == (
        writer.appended,
        writer.appended,
        False,
    )


def test_first_segment_starts_with_header_and_start_record() -> None:
    disk = a_disk()
    writer = a_writer(disk)
    position = writer.append(a_record(1) + a_record(2), 2, NOW + 5)
    writer.append(a_record(3), 1, NOW + 7)
    writer.flush()
    content = SEGMENT_HEADER + start_record(0, NOW + 5) + b"".join(map(a_record, (1, 2, 3)))
    assert segments_of(disk) == {1: content}
    assert unpack_position(position) == (1, 8 + START_BYTES)
    assert writer.active == SegmentInfo(
        *(1, len(content), google_crc32c.value(content), NOW + 5, NOW + 7, 4),
        *(NOW, NOW + 5),
    )
    assert writer.appended == len(content)


def test_position_is_where_the_record_is_found() -> None:
    disk = a_disk()
    writer = a_writer(disk)
    positions = {}
    for number in range(100):
        positions[number] = writer.append(a_record(number), 1, NOW)
        if number % 3 == 0:
            writer.flush()
    writer.close()
    contents = segments_of(disk)
    assert len(contents) > 5
    for number, position in positions.items():
        segment, offset = unpack_position(position)
        record, _ = decode_record(contents[segment], offset)
        assert record.job_id == number.to_bytes(16, "big")
    assert sorted(positions.values()) == list(positions.values())


def test_new_segment_names_the_one_before_and_overshoots_by_one_batch_at_most() -> None:
    disk = a_disk()
    writer = a_writer(disk, segment_bytes_max=200)
    for _ in range(50):
        writer.append(a_record(7), 1, NOW)
    writer.flush()
    writer.append(a_record(8), 1, NOW)
    writer.append(a_record(9), 1, NOW)
    writer.flush()
    contents = segments_of(disk)
    assert list(contents) == [1, 2]
    assert len(contents[1]) == 8 + START_BYTES + 50 * len(a_record(7))
    assert contents[2] == SEGMENT_HEADER + start_record(1, NOW) + a_record(8) + a_record(9)
    sealed = writer.sealed[0]
    assert sealed.crc32c == google_crc32c.value(contents[1])
    assert (sealed.number, sealed.bytes, sealed.records) == (1, len(contents[1]), 51)


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


def test_settled_is_what_the_policy_promises() -> None:
    for sync in SyncPolicy:
        writer = a_writer(a_disk(), sync=sync)
        writer.append(a_record(1), 1, NOW)
        writer.write()
        assert writer.settled == (0 if sync is SyncPolicy.ALWAYS else writer.appended)
        writer.flush()
        assert writer.settled == writer.appended
        assert writer.dirty == (sync is not SyncPolicy.ALWAYS)
        writer.sync()
        assert not writer.dirty


def test_appends_during_a_sync_are_not_taken_for_durable() -> None:
    disk = a_disk()
    writer = a_writer(disk)
    writer.append(a_record(1), 1, NOW)
    writer.write()
    written = writer.written
    writer.append(a_record(2), 1, NOW)
    writer.sync()
    assert (writer.durable, writer.written) == (written, written)
    assert writer.dirty
    writer.flush()
    assert writer.durable == writer.appended == written + len(a_record(2))


def test_idle_writer_neither_writes_nor_syncs() -> None:
    disk = a_disk()
    writer = a_writer(disk)
    writer.append(a_record(1), 1, NOW)
    writer.flush()
    before = disk.calls.total()
    writer.flush()
    writer.write()
    writer.sync()
    assert disk.calls.total() == before


def test_roll_seals_what_there_is_and_the_next_append_starts_a_segment() -> None:
    disk = a_disk()
    writer = a_writer(disk, sync=SyncPolicy.OS)
    writer.roll()
    assert (writer.sealed, writer.active) == ([], None)
    writer.append(a_record(1), 1, NOW)
    writer.roll()
    writer.roll()
    assert [info.number for info in writer.sealed] == [1]
    assert writer.active is None
    assert not writer.dirty
    assert all(segments_of(disk.crash(seed)) == segments_of(disk) for seed in range(20))
    assert unpack_position(writer.append(a_record(2), 1, NOW))[0] == 2
    writer.flush()
    assert segments_of(disk)[2] == SEGMENT_HEADER + start_record(1, NOW) + a_record(2)


def test_numbers_are_not_used_again_when_sealed_segments_are_removed() -> None:
    disk = a_disk()
    writer = a_writer(disk)
    writer.append(a_record(1), 1, NOW)
    writer.roll()
    writer.sealed.clear()
    assert unpack_position(writer.append(a_record(2), 1, NOW))[0] == 2


def test_resumed_writer_goes_on_in_the_active_segment() -> None:
    disk = a_disk()
    first = a_writer(disk)
    first.append(a_record(1), 1, NOW)
    first.write()
    active = first.active
    disk = disk.kill()
    writer = a_writer(disk, active=active)
    assert all(segments_of(disk.crash(seed)) == segments_of(disk) for seed in range(20))
    position = writer.append(a_record(2), 1, NOW + 1)
    writer.flush()
    content = segments_of(disk)[1]
    assert content == SEGMENT_HEADER + start_record(0, NOW) + a_record(1) + a_record(2)
    assert decode_record(content, unpack_position(position)[1])[1] == len(content)
    assert writer.active == SegmentInfo(
        1, len(content), google_crc32c.value(content), NOW, NOW + 1, 3, NOW, NOW
    )
    assert writer.appended == len(a_record(2))


def test_bounds_of_times_hold_whatever_the_clock_does() -> None:
    disk = a_disk()
    writer = a_writer(disk, segment_bytes_max=10_000)
    for step in (0, -9, 5, -2):
        writer.append(a_record(1, now_us=NOW + step), 1, NOW + step)
    writer.write()
    active = writer.active
    assert active is not None
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


def test_last_of_the_sealed_segments_is_durable_before_another_is_started() -> None:
    disk = a_disk()
    disk.create(f"{LOG}/{segment_name(3)}").write(SEGMENT_HEADER + a_record(1))
    writer = a_writer(disk, sealed=[SegmentInfo(3, 8 + len(a_record(1)), 0, NOW, NOW, 1)])
    assert writer.active is None
    assert all(segments_of(disk.crash(seed)) == segments_of(disk) for seed in range(20))
    writer.append(a_record(2), 1, NOW)
    writer.flush()
    assert segments_of(disk)[4] == SEGMENT_HEADER + start_record(3, NOW) + a_record(2)


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
