"""A repair after a power loss keeps what was acknowledged: each unsynced sector is there or not."""

from __future__ import annotations

import os
import random

import pytest

from fastjournald.config.options import Config
from tests.property.crashing_daemon import LOG
from tests.property.power_loss import RebuiltDaemon

SEEDS = int(os.environ.get("FASTJOURNAL_REBUILT_SEEDS", "400"))
GROUPS = 4
LIVES = 4


def run(seed: int) -> int:
    """Several lives on one disk; return how many of them took a repair."""
    draw = random.Random(~seed)
    config = Config(
        cmdlog_path=LOG,
        cmdlog_seg_size=draw.choice((600, 4000, 100_000)),
        default_lease=1000,
        max_attempts=draw.choice((0, 2)),
        tombstone_ttl=3600,
        memory_limit=seed % 5 == 4,
    )
    daemon = RebuiltDaemon(seed, config)
    for _ in range(LIVES):
        daemon.live(draw.randint(3, 25))
        for _ in range(draw.randint(1, 8)):
            daemon.ask()
        daemon.writer.write()
        daemon.lose_sectors()
    return daemon.repairs


@pytest.mark.parametrize("group", range(GROUPS))
def test_repair_keeps_acknowledged_entries_whatever_unsynced_sectors_are_lost(group: int) -> None:
    repairs = sum(run(seed) for seed in range(group, SEEDS, GROUPS))
    assert repairs > SEEDS // GROUPS // 2, "hardly anything was damaged"
