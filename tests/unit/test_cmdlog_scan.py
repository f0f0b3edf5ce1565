"""Scan of a segment: torn tails and damage, and the worker that reads ahead."""

from __future__ import annotations

import errno

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, encode_uvarint, segment_name
from fastjournal.cmdlog.format.records import encode_time
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.cmdlog.recovery.segment_reader import Segment, SegmentReader, pack_segment
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.property.packer import Packer


def a_segment(entries: int = 3, value: bytes = b"value") -> SegmentBuilder:
    log = SegmentBuilder()
    for number in range(entries):
        log.entry(b"d:128:1:%d" % number, value=value)
    return log


def damaged(log: SegmentBuilder, record: int, at: int, flip: int = 1) -> bytes:
    data = bytearray(bytes(log))
    data[log.offsets[record] + at] ^= flip
    return bytes(data)


def test_header_alone_is_whole_and_holds_nothing() -> None:
    scan = scan_segment(SEGMENT_HEADER)
    assert scan.clean
    assert scan.records == 0


@pytest.mark.parametrize("value", [b"", b"v" * 100, b"v" * 20_000])
def test_segment_cut_anywhere_is_torn_behind_its_last_whole_record(value: bytes) -> None:
    log = a_segment(2, value)
    data = bytes(log)
    ends = [*log.offsets, len(data)]
    cuts = range(8, len(data)) if len(value) < 1000 else [*range(8, 400), len(data) - 1]
    for cut in cuts:
        scan = scan_segment(data[:cut])
        whole = max(end for end in ends if end <= cut)
        assert scan.usable_bytes == whole
        assert scan.clean == (whole == cut)
        assert scan.torn == (whole != cut)


def test_flipped_bit_anywhere_in_a_record_in_the_middle_damages_that_record_alone() -> None:
    log = a_segment()
    start, end = log.offsets[1], log.offsets[2]
    for at in range(end - start):
        for bit in range(8):
            scan = scan_segment(damaged(log, 1, at, 1 << bit))
            assert [(found.offset, found.end) for found in scan.damage] == [(start, end)]
            assert scan.records == 3


def test_flipped_bit_in_the_last_record_makes_it_a_torn_tail() -> None:
    log = a_segment()
    for at in range(len(log.data) - log.offsets[-1]):
        scan = scan_segment(damaged(log, -1, at))
        assert scan.torn
        assert scan.usable_bytes == log.offsets[-1]


@pytest.mark.parametrize(
    "size", [0, 1, 16, 18, 127, 128, 2**14, 2**21, 2**28, 2**31, 2**34, 2**63, 2**64 - 1]
)
def test_size_that_lies_is_found_out_without_allocating_it(size: int) -> None:
    log = a_segment()
    lie = encode_time(START_US) + encode_uvarint(size) + b"\x07"
    behind = log.data[log.offsets[3] :]
    scan = scan_segment(bytes(log.data[: log.offsets[3]] + lie + behind))
    assert scan.damage[0].offset == log.offsets[3]
    assert not scan.torn
    assert scan.records == 4
    tail = scan_segment(bytes(log.data) + lie)
    assert tail.torn
    assert tail.usable_bytes == len(log.data)


# --- segment reader -------------------------------------------------------------------------------
# Segment reader: order, damage, and a worker that is late, gone, or wrong.


LOG = "/log"
SEGMENTS = 6


def a_segment_reader(number: int, domain: bytes, scheme: bytes) -> bytes:
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
        disk.create(f"{LOG}/{segment_name(number)}").write(a_segment_reader(number, b"a", b"u"))
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
