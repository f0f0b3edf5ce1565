"""A start writes records too, where a request was cut in the middle: it is killed inside them.

The new record of an entry stands before the removal of what it replaces. Where a crash comes
between the two, the start says the removal, and the tombstone that it leaves.
"""

from __future__ import annotations

from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.cmdlog.writer import LogWriter
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.config.options import Config
from fastjournald.recovery.recover import recover_engine
from tests.property.crashing_daemon import LOG, CrashingDaemon, Dump, dump

SEEDS = 12
NAME = f"{LOG}/000000001.log"
CONFIG = Config(cmdlog_path=LOG, cmdlog_seg_size=100_000, tombstone_ttl=3600)


def start(disk: SimulatedDisk, clock: ManualClock) -> tuple[Dump, LogWriter]:
    """Start a daemon; return what it found, and the writer with what it has to say."""
    engine, writer = recover_engine(disk, CONFIG, CONFIG.settings(), clock, seed=b"another!")
    engine.check()
    return dump(engine, clock.instant_us, exact=True), writer


def cut_to(disk: SimulatedDisk, size: int) -> SimulatedDisk:
    """Return a copy of the disk with only so many bytes of the segment."""
    copy = disk.kill()
    copy.truncate(NAME, size)
    return copy


def test_crash_anywhere_in_recovery_lets_the_next_start_find_the_same() -> None:
    said = 0
    for seed in range(SEEDS):
        daemon = CrashingDaemon(seed, CONFIG, exact=True)
        for _ in range(25):
            daemon.ask()
        daemon.writer.write()
        for _, _, end in scan_segment(daemon.disk.read(NAME)).spans():
            disk = cut_to(daemon.disk, end)
            found, writer = start(disk, daemon.clock)
            before = disk.size(NAME)
            writer.write()
            after = disk.size(NAME)
            said += after > before
            data = disk.read(NAME)
            for begin, _, stop in scan_segment(data).spans():
                if stop <= before:
                    continue
                for size in range(begin, stop):
                    # a start sees the bytes of a torn record through the scan alone
                    scan = scan_segment(data[:size])
                    assert scan.usable_bytes == begin, (seed, end, size)
                    assert scan.torn == (size > begin)
                for size in (begin, begin + 1, (begin + stop) // 2, stop - 1):
                    assert start(cut_to(disk, size), daemon.clock)[0] == found, (seed, end, size)
    assert said > SEEDS, "hardly any start had anything to say"
