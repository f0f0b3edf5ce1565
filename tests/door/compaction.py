"""Parts of ``fastjournald.compaction`` that tests use."""

from __future__ import annotations

from fastjournald.compaction.backpressure import GRANTED, Backpressure
from fastjournald.compaction.compact_segment import READ, clean_segment
from fastjournald.compaction.policy import TIERS, bytes_slowed, bytes_usual, candidates
from fastjournald.compaction.replace_segment import (
    DURABLE,
    NOW,
    TURN,
    Blocking,
    Cleaning,
    _write_pieces,
)
from fastjournald.compaction.segment_filter import Sifting
