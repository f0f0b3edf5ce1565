"""Parts of the daemon that all sessions share, as far as a session without IO knows them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from fastjournald.admission.log_growth import WriterQueue
from fastjournald.admission.memory_budget import MemoryBudget
from fastjournald.admission.turn_budget import TurnBudget
from fastjournald.engine.engine import Engine
from fastjournald.engine.undelivered import DeliveredJobs
from fastjournald.histogram import Latencies
from fastjournald.net.outbox import Log


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Engine, log, budgets and counters."""

    engine: Engine
    log: Log
    memory: MemoryBudget
    turns: TurnBudget
    backpressure: WriterQueue
    connections_closed: Counter[str]
    protocol_errors: Counter[str]
    latencies: Latencies
    after_requests: Callable[[int], None]
    """Called when requests have set signals, or have made the log grow by much."""
    wake_tasks: Callable[[], None]
    release_undelivered: Callable[[list[DeliveredJobs]], None]
