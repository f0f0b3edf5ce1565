"""Parts of ``fastjournald`` that tests use."""

from __future__ import annotations

from fastjournald.group_commit import INLINE_SECONDS_MAX, GroupCommit
from fastjournald.histogram import Histogram
from fastjournald.main import _progress, main
from fastjournald.runtime import Counters
from fastjournald.server import Server
