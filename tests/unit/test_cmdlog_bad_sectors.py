"""A device that cannot read some sectors of a segment: promise 6 holds for these too."""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import pairwise

import pytest

from fastjournal.cmdlog.recovery.recover import recover, verify
from fastjournal.cmdlog.recovery.segment_reader import SECTOR_BYTES
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import START_US, SegmentBuilder
from fastjournal.testing.workq_rules import assert_workq_accepts

pytestmark = pytest.mark.usefixtures("both_forms")

LOG = "/log"
NOW = START_US + 3_600_000_000
ONE, TWO = f"{LOG}/000000001.log", f"{LOG}/000000002.log"
ENTRIES = 40


def a_log() -> tuple[SimulatedDisk, list[list[int]]]:
    """Two segments of entries of about 600 bytes; and where their records start and end."""
    disk, offsets = SimulatedDisk(), []
    disk.mkdir(LOG)
    for number, path in enumerate((ONE, TWO)):
        log = SegmentBuilder(number, ids_from=1000 * number)
        for entry in range(ENTRIES):
            log.entry(b"%d/%d" % (number, entry), value=b"v" * 500)
        file = disk.create(path)
        file.write(bytes(log))
        file.sync()
        offsets.append([*log.offsets, len(bytes(log))])
    disk.sync_directory(LOG)
    return disk, offsets


def broken(path: str, *sectors: int) -> tuple[SimulatedDisk, set[bytes]]:
    """A log with sectors that cannot be read; and the keys of the entries that are lost by that."""
    disk, offsets = a_log()
    number = (ONE, TWO).index(path)
    lost = set()
    for sector in sectors:
        at = sector * SECTOR_BYTES
        disk.break_sectors(path, at, at + SECTOR_BYTES)
        # the first record begins the segment
        for entry, (start, end) in enumerate(pairwise(offsets[number][1:])):
            if start < at + SECTOR_BYTES and at < end:
                lost.add(b"%d/%d" % (number, entry))
    return disk, lost


ALL = {b"%d/%d" % (number, entry) for number in (0, 1) for entry in range(ENTRIES)}
LAST = a_log()[0].size(ONE) // SECTOR_BYTES


@pytest.mark.parametrize("path", [ONE, TWO])
@pytest.mark.parametrize("sectors", [(1,), (2, 3), (1, 4), (LAST,)])
def test_bad_sectors_are_named_and_refused_and_a_repair_goes_on_without_them(
    path: str, sectors: tuple[int, ...]
) -> None:
    disk, lost = broken(path, *sectors)
    assert lost
    before = disk.kill()
    found = verify(disk, LOG)
    assert {diagnostic.kind for diagnostic in found} == {"damaged"}
    with pytest.raises(LogCorruptError) as caught:
        recover(disk, LOG, now_us=NOW)
    assert (caught.value.path, caught.value.offset) == (path, found[0].offset)
    for sector in sectors:
        place = f"offset {sector * SECTOR_BYTES}"
        assert any(
            "the device cannot read" in diagnostic.message
            and diagnostic.offset < (sector + 1) * SECTOR_BYTES
            and sector * SECTOR_BYTES < diagnostic.offset + diagnostic.bytes
            for diagnostic in found
        ), place
    assert disk.listdir(LOG) == before.listdir(LOG)

    result = recover(disk, LOG, now_us=NOW, repair=True)
    assert {job.key for job in result.state.jobs.values()} == ALL - lost
    kept = {diagnostic.kept for diagnostic in result.diagnostics}
    assert kept == {f"{path}.unreadable"}, "more of it may be read some other time"
    assert disk.size(f"{path}.unreadable") == before.size(path)
    assert recover(disk, LOG, now_us=NOW).diagnostics == []
    assert_workq_accepts(disk.read(name) for name in (ONE, TWO))


def test_repair_that_fails_or_loses_power_at_any_call_can_be_done_again() -> None:
    disk, lost = broken(ONE, 2)
    sound = disk.kill()
    recover(sound, LOG, now_us=NOW, repair=True)
    assert sound.calls.total() > 20
    for call in range(1, sound.calls.total() + 1):
        failing = disk.kill()
        failing.fail_at(call)
        # a part that cannot be read is tried again in smaller ones
        with suppress(LogFailedError):
            recover(failing, LOG, now_us=NOW, repair=True)
        after = failing.crash(call)
        result = recover(after, LOG, now_us=NOW, repair=True)
        assert {job.key for job in result.state.jobs.values()} == ALL - lost
        assert after.size(f"{ONE}.unreadable") == disk.size(ONE)


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("path", [ONE, TWO])
def test_segment_of_which_nothing_can_be_read_is_left_to_people(path: str, repair: bool) -> None:
    disk, _ = a_log()
    disk.break_sectors(path, 0, disk.size(path))
    with pytest.raises(LogFailedError, match="EIO") as caught:
        recover(disk, LOG, now_us=NOW, repair=repair)
    assert caught.value.path == path
    assert disk.listdir(LOG) == [ONE[len(LOG) + 1 :], TWO[len(LOG) + 1 :]]


def test_error_that_does_not_come_again_is_an_error_and_no_damage() -> None:
    disk, _ = a_log()
    for call, error in (("read", errno.EIO), ("read", errno.EACCES), ("read_slice", errno.EACCES)):
        disk = disk.kill()
        if call == "read_slice":
            disk.break_sectors(ONE, 0, 1)
        disk.fail_at(1, call, error)
        with pytest.raises(LogFailedError, match=errno.errorcode[error]):
            recover(disk, LOG, now_us=NOW, repair=True)
        assert disk.listdir(LOG) == [ONE[len(LOG) + 1 :], TWO[len(LOG) + 1 :]]
