"""Parts of ``fastjournald.tasks`` that tests use."""

from __future__ import annotations

from fastjournald.tasks.archiver import Archiver
from fastjournald.tasks.compactor import (
    LATE_SHARE,
    OTHERS_SHARE,
    TURN_SECONDS_MAX,
    CompactionPace,
    Compactor,
)
from fastjournald.tasks.evictor import Evictor
from fastjournald.tasks.free_space import may_rewrite, room_bytes
from fastjournald.tasks.notifier import Notifier
from fastjournald.tasks.scan_queue import Place, ScanQueue
from fastjournald.tasks.scan_runner import ScanRunner
from fastjournald.tasks.timers import Timers
from fastjournald.tasks.turn_scheduler import TurnScheduler
from fastjournald.tasks.watchdog import ping_watchdog
