"""Parts of ``fastjournald.tasks`` that tests use."""

from __future__ import annotations

from fastjournald.tasks.backpressure import GRANTED, Backpressure, bytes_of
from fastjournald.tasks.compactor import LATE_SHARE, OTHERS_SHARE, TURN_SECONDS_MAX, Cleaner, Pace
from fastjournald.tasks.notifier import Notifier
from fastjournald.tasks.turn_budget import Scheduler, Share
