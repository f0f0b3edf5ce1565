"""Runtime: the parts of a running daemon that tasks, connections, metrics and pages share.

``server`` makes one and hands it to all of them. Nothing below ``server`` knows more of the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

import msgspec
import trio

from fastjournal.clock import SteadyClock
from fastjournal.cmdlog.archive import Archive
from fastjournal.cmdlog.writer import LogWriter
from fastjournal.disk import Disk, DiskSpace
from fastjournal.protocol import Function
from fastjournald.admission.memory_budget import CloseReason, MemoryBudget
from fastjournald.admission.turn_budget import TurnBudget
from fastjournald.compaction.backpressure import Backpressure
from fastjournald.compaction.compact_segment import CompactionOutcome
from fastjournald.config.options import Config
from fastjournald.engine.engine import Engine
from fastjournald.engine.undelivered import DeliveredJobs
from fastjournald.group_commit.commit import GroupCommit
from fastjournald.group_commit.remote_commit import RemoteCommit
from fastjournald.histogram import Histogram, Latencies


class Counters:
    """Figures that tasks and connections count where things happen; metrics read them."""

    def __init__(self) -> None:
        self.connections_closed: Counter[str] = Counter(dict.fromkeys(CloseReason, 0))
        """Connections closed by the daemon, by reason."""
        self.connections_refused = 0
        self.protocol_errors: Counter[str] = Counter()
        """Connections ended because of malformed bytes, by error code."""
        self.latencies = Latencies(Function)
        """Latency of requests, by function."""
        self.turn_us = Histogram(24)
        """Length of turns of the event loop, up to 16.8 s."""
        self.lag_us = Histogram(24)
        """Delay of timers: how much later than asked for they wake, up to 16.8 s."""
        self.scans = 0
        """Scans that are being carried out or wait to begin."""
        self.scan_slice_us = Histogram(24)
        """Length of slices of scans, up to 16.8 s."""
        self.values_read = 0
        self.values_unreadable = 0
        """Values that could not be read so far."""
        self.value_read_us = Histogram(24)
        """Time that requests waited for values, those that others read too, up to 16.8 s."""
        self.compaction_outcomes: Counter[CompactionOutcome] = Counter(
            dict.fromkeys(CompactionOutcome, 0)
        )
        """Compactions of segments, by how they ended."""
        self.disk_space: DiskSpace | None = None
        """Free space of the file system of the log at the last look; None: there was none yet."""
        self.clock_steps: Counter[str] = Counter({"ahead": 0, "back": 0})
        """Steps of the clock, by direction."""
        self.compaction_freed_bytes = 0
        """Bytes freed by rewritten and removed segments."""
        self.checkpoint_us = 0
        """Instant of the newest checkpoint of the remote log."""
        self.segments_missing = 0
        """Segments that were missing in the object store, and were uploaded again."""
        self.snapshot_entries = 0
        """Live entries of the last snapshot; 0: there was none yet."""
        self.snapshot_seconds = 0.0
        """How long it took."""

    @property
    def idle_us(self) -> int:
        """Sum of the microseconds in which the event loop waited, up to this turn."""
        return int(self.latencies.began * 1_000_000) - self.turn_us.total


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a running daemon."""

    config: Config
    engine: Engine
    writer: LogWriter
    commit: GroupCommit
    disk: Disk
    clock: SteadyClock
    counters: Counters
    turns: TurnBudget
    memory: MemoryBudget
    backpressure: Backpressure
    archive: Archive | None = None
    """Archive of sealed segments; None: there is none."""
    remote: RemoteCommit | None = None
    """The remote log; None: there is none."""
    segments_free: trio.Lock
    """Held by the task that links, replaces or removes sealed segments, until all entries know
    where their records are."""
    after_requests: Callable[[int], None]
    """Called when requests were carried out that set signals or made the log grow by much, with the
    instant: gives clients that wait what has become ready, and wakes the tasks concerned."""
    wake_tasks: Callable[[], None]
    """Called when something else has changed the engine: wakes the tasks concerned."""
    deliver: Callable[[list[tuple[Hashable, bytes]]], None]
    """Hands replies to waiting requests to their connections, which send them when durable."""
    release_undelivered: Callable[[list[DeliveredJobs]], None]
    """Releases the leases of replies that were never sent."""
