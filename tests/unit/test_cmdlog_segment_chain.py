"""The chain of segments: a sealed one that was cut, replaced or taken away is known for it."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, SegmentInfo
from fastjournal.cmdlog.locks import lock_read
from fastjournal.cmdlog.recovery.recover import Diagnostic, recover, verify
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.disk import DiskLock
from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.protocol.constants import Flag, Function
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.compaction.compact_segment import READ
from tests.format.golden import build
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.subject import SECOND

pytestmark = pytest.mark.usefixtures("both_forms")


def two_sealed(**options: int) -> CompactedLog:
    """A log of two sealed segments and an active one, all full of live entries."""
    log = CompactedLog(cmdlog_seg_size=8192, **options)
    log.fill(20, key=b"one/%d")
    log.roll()
    log.fill(20, key=b"two/%d")
    log.roll()
    log.fill(20, key=b"three/%d")
    log.flush()
    return log


def path_of(number: int) -> str:
    return f"{LOG}/{number:09d}.log"


def ends(disk: SimulatedDisk, number: int) -> list[int]:
    """Where the header and each record of a segment end."""
    data = disk.read(path_of(number))
    return [len(SEGMENT_HEADER), *(end for _, _, end in scan_segment(data).spans())]


def put(disk: SimulatedDisk, number: int, data: bytes) -> None:
    """Let a file have these bytes."""
    if disk.exists(path_of(number)):
        disk.unlink(path_of(number))
    file = disk.create(path_of(number))
    file.write(data)
    file.sync()
    disk.sync_directory(LOG)


def damage(disk: SimulatedDisk) -> list[Diagnostic]:
    return [found for found in verify(disk, LOG) if found.damage]


def assert_known(disk: SimulatedDisk, kind: str, number: int) -> Diagnostic:
    """Verification, a start and a repair know what is wrong; behind the repair all is well."""
    (found,) = damage(disk)
    assert (found.kind, found.path) == (kind, path_of(number))
    before = {name: disk.read(f"{LOG}/{name}") for name in disk.listdir(LOG)}
    with pytest.raises(LogCorruptError) as caught:
        recover(disk, LOG, now_us=1)
    assert caught.value.path == path_of(number)
    assert {name: disk.read(f"{LOG}/{name}") for name in disk.listdir(LOG)} == before
    repaired = recover(disk, LOG, now_us=1, repair=True)
    assert [(told.kind, told.message) for told in repaired.diagnostics] == [(kind, found.message)]
    assert verify(disk, LOG) == []
    return found


def test_chain_knows_a_sealed_segment_that_was_cut_anywhere_between_two_records() -> None:
    log = two_sealed()
    for size in ends(log.disk, 1)[:-1]:
        disk = log.disk.kill()
        disk.truncate(path_of(1), size)
        found = assert_known(disk, "differs", 1)
        assert found.offset == size
        assert "its end is missing" in found.message


def test_chain_knows_a_copy_of_another_segment_of_the_same_size() -> None:
    log = two_sealed()
    one = log.disk.read(path_of(1))
    other = two_sealed()
    data = bytearray(other.disk.read(path_of(1)))
    assert len(one) == len(data)
    start, _, end = list(scan_segment(bytes(data)).spans())[5]
    # the record of another entry, whole and with its checksum
    six = list(scan_segment(bytes(data)).spans())[6]
    data[start:end] = data[six[0] : six[2]][: end - start]
    assert scan_segment(bytes(data)).clean
    put(log.disk, 1, bytes(data))
    assert_known(log.disk.kill(), "differs", 1)


def working_log() -> CompactedLog:
    """A log of five segments, in each of which leases begin, and others end."""
    log = CompactedLog(cmdlog_seg_size=1 << 20)
    for segment in range(5):
        for number in range(8):
            log.done(Function.SET, b"a:1:0:%d/%d" % (segment, number), b"v" * 50)
        leased = log.ask(Function.NEXT, b"a", count=6, timeout=10**9)
        for pair in leased.pairs[:3] if leased.pairs else ():
            log.done(
                Function.RELEASE, pair.key, flags=Flag.WORKED_ON, timeout=leased.timeout, ttl=0
            )
        log.ask(Function.NEXT, b"a", count=2, timeout=10**9)
        if segment < 4:
            log.roll()
        log.pass_time(2000)
    log.flush()
    return log


@pytest.mark.parametrize("over", range(1, 6))
def test_chain_lets_a_repair_take_nothing_from_a_copy_of_another_segment(over: int) -> None:
    log = working_log()
    numbers = [int(name[:9]) for name in log.segments()]
    assert numbers == [1, 2, 3, 4, 5]
    before = {entry.key for entry in log.engine.store}
    whole = log.disk
    for number in sorted({*numbers} - {over}):
        log.disk = whole.kill()
        put(log.disk, over, log.disk.read(path_of(number)))
        (found,) = damage(log.disk)
        assert (found.kind, found.path, found.offset) == ("damaged", path_of(over), 8)
        assert "this is a copy of another segment" in found.message
        with pytest.raises(LogCorruptError, match="a copy of another segment"):
            recover(log.disk, LOG, now_us=1)
        log.config.repair = True
        log.start()
        log.config.repair = False
        assert verify(log.disk, LOG) == []
        kept = {entry.key for entry in log.engine.store}
        assert {key for key in before if b"%d/" % (over - 1) not in key} <= kept <= before
        log.done(Function.SET, b"goes on", b"v")
        # also that workq takes it: no job is there twice
        log.check()
        log.restart()
        assert log.disk.read(f"{path_of(over)}.damaged-8") == whole.read(path_of(number))[8:]


def test_chain_knows_a_missing_segment_when_the_one_behind_it_was_cleaned_away() -> None:
    log = two_sealed()
    log.empty(20, key=b"two/%d")
    assert log.clean(log.writer.sealed[1]) == "removed"
    log.flush()
    assert damage(log.disk) == []
    log.disk.unlink(path_of(1))
    assert_known(log.disk.kill(), "missing", 1)


def test_chain_gives_no_alarm_where_the_move_of_what_tells_of_a_segment_twice_is_cut() -> None:
    log = CompactedLog(cmdlog_seg_size=8192)
    for number in range(20):
        # what ends by itself, so that nothing is written about it when it does
        seconds = 10 if number < 7 else 20 if number < 12 else 10**6
        log.done(Function.PAUSE, b"domain%d" % number * 15, ttl=seconds * SECOND)
    first = log.roll().number
    for _ in range(2):
        log.pass_time(11)
        log.fill(1)
        assert log.clean(log.writer.sealed[0]) == "rewritten"
    # both are recorded in the second segment
    log.empty(1)
    info = log.roll()
    log.disk.fail_at(1, "unlink", errno.EIO)
    with pytest.raises(LogFailedError):
        log.clean(info)
    last = info.number + 1
    assert (first, last) == (1, 3)
    for size in ends(log.disk, last):
        disk = log.disk.kill()
        disk.truncate(path_of(last), size)
        assert damage(disk) == []


def rewritten_until(log: CompactedLog, call: str) -> tuple[SegmentInfo, bytes]:
    """Clean a segment until its ``call`` fails; return it, and what it held."""
    for number in range(15):
        log.done(Function.DELETE, b"one/%d" % number, flags=Flag.OVERWRITE)
    log.flush()
    info = log.writer.sealed[0]
    before = log.disk.read(path_of(1))
    log.disk.fail_at(1, call, errno.EIO)
    with pytest.raises(LogFailedError):
        log.clean(info)
    return info, before


@pytest.mark.parametrize("call", ["rename", "sync_directory"])
def test_chain_takes_the_old_and_the_new_segment_after_a_crash_at_the_rename(call: str) -> None:
    log = two_sealed()
    _, before = rewritten_until(log, call)
    crashed = log.disk
    found = set()
    for seed in range(30):
        log.disk = crashed.crash(seed)
        assert damage(log.disk) == []
        data = log.disk.read(path_of(1))
        found.add(len(data) == len(before))
        log.start()
        log.writer.write()
        # from now on only what is there counts
        other = log.disk.kill()
        put(other, 1, before if data != before else crashed.read(path_of(1)))
        if other.read(path_of(1)) != data:
            assert [each.kind for each in damage(other)] == ["differs"]
        assert damage(log.disk) == []
    assert found == ({True, False} if call == "sync_directory" else {True})


def test_chain_of_a_repair_that_is_cut_anywhere_can_be_repaired_again() -> None:
    log = two_sealed()
    broken = bytearray(log.disk.read(path_of(1)))
    broken[ends(log.disk, 1)[3] + 30] ^= 1
    put(log.disk, 1, bytes(broken))
    log.disk.truncate(path_of(2), ends(log.disk, 2)[4])
    for call in range(1, 100):
        disk = log.disk.kill()
        disk.fail_at(call)
        try:
            recover(disk, LOG, now_us=1, repair=True)
        except LogFailedError:
            disk = disk.crash(call)
            recover(disk, LOG, now_us=1, repair=True)
        else:
            break
        assert verify(disk, LOG) == []
    assert call > 20


def test_repair_that_the_operator_interrupts_leaves_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = two_sealed()
    broken = bytearray(log.disk.read(path_of(1)))
    at = ends(log.disk, 1)[3]
    broken[at + 30] ^= 1
    put(log.disk, 1, bytes(broken))
    log.disk.truncate(path_of(2), ends(log.disk, 2)[4])
    (lost,) = (found for found in damage(log.disk) if found.kind == "damaged")
    call, left = SimulatedDisk._call, 0

    def interrupted(disk: SimulatedDisk, name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        call(disk, name)

    monkeypatch.setattr(SimulatedDisk, "_call", interrupted)
    stopped = 0
    for number in range(1, 200):
        disk = log.disk.kill()
        left = number
        try:
            recover(disk, LOG, now_us=1, repair=True)
        except KeyboardInterrupt:
            stopped += 1
        else:
            break
        names = disk.listdir(LOG)
        assert not [name for name in names if name.endswith(".rw")]
        for name in names:
            if ".damaged-" in name:
                assert disk.read(f"{LOG}/{name}") == broken[lost.offset : lost.offset + lost.bytes]
        recover(disk, LOG, now_us=1, repair=True)
        assert verify(disk, LOG) == []
    assert stopped > 20


def test_damage_of_each_sealed_segment_of_the_golden_log_is_found() -> None:
    log = build()
    for number in [info.number for info in log.writer.sealed]:
        for size in (8, ends(log.disk, number)[-2]):
            disk = log.disk.kill()
            disk.truncate(path_of(number), size)
            # a removal that was recorded in it may be gone too
            assert "differs" in [each.kind for each in damage(disk)], number
    log.clean_all()
    log.restart()
    log.check()


# --- somebody reads the log ---------------------------------------------------------------------


def dying(log: CompactedLog, how: str) -> SegmentInfo:
    """Let entries of the first segment die, so that cleaning does this to it."""
    count = {"rewritten": 12, "moved": 18, "removed": 20}[how]
    for number in range(count):
        log.done(Function.DELETE, b"one/%d" % number)
    log.flush()
    return log.writer.sealed[0]


class LateReader:
    """Begins to read a log at one of the pauses of a cleaning, if it may."""

    def __init__(self, log: CompactedLog, pause: int) -> None:
        self.lock: DiskLock | None = None
        self._log = log
        self._pauses = pause

    def look(self) -> None:
        if self._pauses == 0:
            with suppress(LogLockedError):
                self.lock = lock_read(self._log.disk, LOG)
        self._pauses -= 1


@pytest.mark.parametrize("how", ["rewritten", "moved", "removed"])
def test_cleaning_leaves_no_copy_and_repeats_no_record_where_a_reader_comes_late(how: str) -> None:
    for pause in range(12):
        log = two_sealed()
        info = dying(log, how)
        reader = LateReader(log, pause)
        outcome = log.clean(info, reader.look)
        log.flush()
        assert outcome in (READ, how)
        if outcome != READ:
            continue
        assert not log.disk.exists(f"{path_of(1)}.rw")
        written = log.log_bytes()
        for _ in range(5):
            assert log.clean(info) == READ
        assert log.log_bytes() == written
        assert reader.lock is not None
        reader.lock.close()
        assert log.clean(info) in (how, "removed")
        assert not log.disk.exists(f"{path_of(1)}.rw")
        log.check()
