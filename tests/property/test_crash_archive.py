"""Archive in the crash simulation: after any crash, archive and log hold each record once.

Segments are small, compaction runs all the time, and a reader takes files. The disk fails at random
calls, the process is killed, and the power goes, at any step of sealing, linking and compaction.
"""

from __future__ import annotations

import random
from collections import Counter

from fastjournald.compaction.compact_segment import AWAITS_ARCHIVE
from tests.property.crash_archive import ARCHIVE
from tests.property.crashing_daemon import LOG, CrashingDaemon
from tests.property.test_crash_simulation import LIVES, live_and_crash, options

SEEDS = 30


def archiving(seed: int) -> CrashingDaemon:
    config = options(seed)
    config.archive_dir = ARCHIVE
    config.cmdlog_seg_size = random.Random(seed).choice((600, 600, 2500))
    return CrashingDaemon(seed, config, exact=seed % 3 != 0)


def test_archive_and_log_hold_each_record_once_after_any_crash() -> None:
    cleanings: Counter[str] = Counter()
    linked = failures = 0
    for seed in range(SEEDS):
        daemon = archiving(seed)
        assert daemon.archive is not None
        for _ in range(LIVES):
            live_and_crash(daemon)
            daemon.archive.check(LOG)
        cleanings += daemon.cleanings
        linked += daemon.archive.linked
        failures += daemon.archive.failures
    assert linked > SEEDS * LIVES
    assert failures > SEEDS / 6
    # compaction did come in between, and waited
    assert cleanings["rewritten"] > SEEDS
    assert cleanings["removed"] > SEEDS / 4
    assert cleanings[AWAITS_ARCHIVE] > 0
