"""Parts of ``fastjournald.compaction`` that tests use."""

from __future__ import annotations

from fastjournald.compaction.backpressure import GRANTED, Backpressure
from fastjournald.compaction.compact_segment import AWAITS_ARCHIVE, READ, compact_segment
from fastjournald.compaction.liveness import Liveness
from fastjournald.compaction.policy import (
    MOVED_RECORD_BYTES,
    TIERS,
    bytes_slowed,
    bytes_usual,
    candidates,
    live_bytes,
)
from fastjournald.compaction.replace_segment import _write_pieces
from fastjournald.compaction.segment_filter import SegmentFilter
from fastjournald.compaction.steps import (
    DURABLE,
    NOW,
    TURN,
    Blocking,
    Compaction,
    CompactionStoppedError,
)
