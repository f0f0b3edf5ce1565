"""Parts of ``fastjournald`` that tests use."""

from __future__ import annotations

from fastjournald.group_commit.commit import (
    INLINE_SECONDS_MAX,
    SAMPLE_SECONDS_MAX,
    WRITE_BYTES_MIN,
    GroupCommit,
    SyncEstimate,
)
from fastjournald.group_commit.sync_thread import SyncThread
from fastjournald.histogram import Histogram, Latencies
from fastjournald.main import _progress, main, new_command
from fastjournald.runtime import Counters
from fastjournald.server import Server
