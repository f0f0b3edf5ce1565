"""Parts of ``fastjournald.wal`` that tests use."""

from __future__ import annotations

from fastjournald.wal.journal import Journal
from fastjournald.wal.lease_journal import LeaseJournal
from fastjournald.wal.live_capture import LiveCapture
from fastjournald.wal.segment_usage import SegmentScore, SegmentUsage
