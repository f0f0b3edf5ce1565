"""The two clients over one sans-IO core.

core  builds requests, reads replies and matches them, without IO
sync  ``SyncClient`` (blocking sockets): moves the bytes
aio   ``Client`` (trio, asyncio): the same

Classes that a short program does not need are loaded when they are first named: ``Client`` with
anyio, job loops, listeners.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastjournal.client.core import calls
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call
from fastjournal.client.core.results import (
    Change,
    ChangeKind,
    Entry,
    Jobs,
    Page,
    WriteOutcome,
    Written,
)
from fastjournal.client.core.retry_policy import Reconnect
from fastjournal.client.core.stats import (
    DaemonStats,
    DeadLetter,
    DomainStats,
    EntryExplanation,
    EntryStats,
    WorkerStats,
)
from fastjournal.client.sync.client import SyncClient

if TYPE_CHECKING:
    from fastjournal.client.aio.client import Client
    from fastjournal.client.aio.job_loop import JobLoop
    from fastjournal.client.aio.jobs import Job
    from fastjournal.client.aio.listen import Listener
    from fastjournal.client.aio.mirror import Mirror
    from fastjournal.client.core.failed_attempts import FailedAttempt
    from fastjournal.client.sync.job_loop import SyncJobLoop
    from fastjournal.client.sync.jobs import SyncJob
    from fastjournal.client.sync.listen import SyncListener
    from fastjournal.client.sync.waiting import SyncWaiting

__all__ = [
    "WAIT_WITHOUT_END",
    "Call",
    "Change",
    "ChangeKind",
    "Client",
    "DaemonStats",
    "DeadLetter",
    "DomainStats",
    "Entry",
    "EntryExplanation",
    "EntryStats",
    "FailedAttempt",
    "Job",
    "JobLoop",
    "Jobs",
    "Listener",
    "Mirror",
    "Page",
    "Reconnect",
    "SyncClient",
    "SyncJob",
    "SyncJobLoop",
    "SyncListener",
    "SyncWaiting",
    "WorkerStats",
    "WriteOutcome",
    "Written",
    "calls",
]

_LAZY = {
    "Client": "fastjournal.client.aio.client",
    "FailedAttempt": "fastjournal.client.core.failed_attempts",
    "Job": "fastjournal.client.aio.jobs",
    "JobLoop": "fastjournal.client.aio.job_loop",
    "Listener": "fastjournal.client.aio.listen",
    "Mirror": "fastjournal.client.aio.mirror",
    "SyncJob": "fastjournal.client.sync.jobs",
    "SyncJobLoop": "fastjournal.client.sync.job_loop",
    "SyncListener": "fastjournal.client.sync.listen",
    "SyncWaiting": "fastjournal.client.sync.waiting",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
