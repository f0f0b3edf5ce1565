"""Segment reader: order, damage, and a worker that is late, gone, or wrong."""

from __future__ import annotations

import errno

import pytest

from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.cmdlog.recovery.entry_blocks import entry_blocks
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.cmdlog.recovery.segment_reader import Segment, SegmentReader, pack_segment
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import SegmentBuilder
from tests.property.packer import Packer

LOG = "/log"
SEGMENTS = 6


def a_segment(number: int, domain: bytes, scheme: bytes) -> bytes:
    log = SegmentBuilder(number - 1, ids_from=number << 64)
    for serial in range(20 + number):
        key, uri = b"%s:128:%d:%d" % (domain, serial, number), b"%s%d/%d" % (scheme, number, serial)
        log.entry(key, uri=uri, value=bytes(400))
        log.now_us += number * (-1) ** serial * serial
    return bytes(log)


def a_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    for number in range(1, SEGMENTS + 1):
        disk.create(f"{LOG}/{segment_name(number)}").write(a_segment(number, b"a", b"u"))
    return disk


def contents(segment: Segment) -> object:
    (run,) = segment.scan.runs
    return (
        *(segment.number, segment.data, list(run.bodies), list(run.ends), run.start),
        *(segment.scan.size, segment.scan.damage, segment.unreadable, segment.crc32c),
        [(block.first, block.arrival, block.jobs) for block in segment.blocks(run)],
        segment.info(len(segment.data)),
    )


def alone(disk: SimulatedDisk) -> list[object]:
    reader = SegmentReader(disk, LOG, range(1, SEGMENTS + 1), None)
    return [contents(reader.read(number)) for number in range(1, SEGMENTS + 1)]


@pytest.mark.parametrize("fails_after", [None, 0, 1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_segments_are_the_same_whatever_a_worker_does(seed: int, fails_after: int | None) -> None:
    disk = a_disk()
    worker = Packer(disk, LOG, seed, fails_after)
    reader = SegmentReader(disk, LOG, range(1, SEGMENTS + 1), worker)
    last = reader.read(SEGMENTS)
    found = [contents(reader.read(number)) for number in range(1, SEGMENTS)]
    assert [*found, contents(last)] == alone(disk)
    assert len(worker.taken) >= (2 if fails_after is None else 0)
    reader.close()
    assert worker.closed


def test_answer_about_other_bytes_does_not_count() -> None:
    disk = a_disk()
    stale = a_disk()
    for number in range(1, SEGMENTS + 1):
        path = f"{LOG}/{segment_name(number)}"
        data = disk.read(path)
        stale.unlink(path)
        # as long, and without damage
        other = a_segment(number, b"b", b"v")
        assert len(other) == len(data)
        stale.create(path).write(other)
    worker = Packer(stale, LOG)
    reader = SegmentReader(disk, LOG, range(1, SEGMENTS + 1), worker)
    found = [contents(reader.read(number)) for number in range(1, SEGMENTS + 1)]
    assert found == alone(disk)
    assert worker.taken


def test_sector_that_only_the_worker_could_read_is_reported() -> None:
    disk, whole = a_disk(), a_disk()
    path = f"{LOG}/{segment_name(2)}"
    disk.break_sectors(path, 0, 4096)
    reader = SegmentReader(disk, LOG, range(1, SEGMENTS + 1), Packer(whole, LOG))
    reader.read(1)
    assert reader.read(2).unreadable == [(0, 4096)]


def test_damaged_segment_and_one_without_room_are_not_packed() -> None:
    data = a_disk().read(f"{LOG}/{segment_name(1)}")
    buffer = memoryview(bytearray(2 * len(data)))
    packed = pack_segment(1, data, buffer)
    assert packed is not None
    size = packed.index_at + packed.index_bytes
    assert pack_segment(1, data, buffer[:size]) == packed
    for room in (0, 100, size - packed.index_bytes, size - 1):
        assert pack_segment(1, data, buffer[:room]) is None
    for at in (0, 30, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert pack_segment(1, bytes(damaged), buffer) is None
    assert pack_segment(1, b"", buffer) is None
    assert pack_segment(1, data[:8], buffer) is None


def test_blocks_of_packed_entries_with_cold_fields_are_the_same() -> None:
    log = SegmentBuilder()
    for serial in range(30):
        fields = {"expires": 5, "ttl": 6, "error": b"why"} if serial % 3 else {"token": 7}
        log.entry(b"a:128:%d:x" % serial, value=b"", **fields)
    data = bytes(log)
    (run,) = scan_segment(data).runs
    expected = [block.jobs for block in entry_blocks(data, 1, run)]
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    for number in (1, 2):
        disk.create(f"{LOG}/{segment_name(number)}").write(data)
    worker = Packer(disk, LOG)
    reader = SegmentReader(disk, LOG, [1, 2], worker)
    reader.read(2)
    assert [block.jobs for block in reader.read(1).blocks(run)] == expected
    assert worker.taken == [1]


class Failing(Packer):
    """Never answers: the reader makes segments ready itself meanwhile, and then waits."""

    def is_packing(self, number: int) -> bool:
        return number in self._asked

    def wait(self) -> None:
        self._asked.clear()


def test_segment_that_cannot_be_read_ahead_fails_when_it_is_wanted() -> None:
    disk = a_disk()
    worker = Failing(disk, LOG)
    reader = SegmentReader(disk, LOG, range(1, SEGMENTS + 1), worker)
    expected = alone(disk)
    assert contents(reader.read(1)) == expected[0]
    # 2 and 3 are asked for: 4 is read while 2 is waited for
    disk.fail_at(1, "read", errno.ENODEV)
    assert contents(reader.read(2)) == expected[1]
    assert [contents(reader.read(number)) for number in (3, 4, 5, 6)] == expected[2:]
