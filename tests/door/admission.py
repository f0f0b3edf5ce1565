"""Parts of ``fastjournald.admission`` that tests use."""

from __future__ import annotations

from fastjournald.admission.eviction_queue import EvictionQueue
from fastjournald.admission.log_growth import bytes_of, grows
from fastjournald.admission.memory_budget import MemoryBudget
from fastjournald.admission.turn_budget import Share, TurnBudget
