"""The two clients over one sans-IO core.

``calls`` builds each request and reads its reply, ``multiplexer`` matches replies to requests, and
``SyncClient`` (blocking sockets) and ``Client`` (trio, asyncio) only move the bytes. Anyio is
loaded when ``Client``, or a class of what it gives, is first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastjournal.client.core import calls
from fastjournal.client.core.backoff import Reconnect
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call
from fastjournal.client.core.failed_attempts import FailedAttempt
from fastjournal.client.core.results import Change, ChangeKind, Entry, Jobs, Page, Written
from fastjournal.client.core.stats import (
    DaemonStats,
    DomainStats,
    EntryExplanation,
    EntryStats,
    WorkerStats,
)
from fastjournal.client.sync.client import SyncClient
from fastjournal.client.sync.job_loop import SyncJobLoop
from fastjournal.client.sync.jobs import SyncJob
from fastjournal.client.sync.listen import SyncListener
from fastjournal.client.sync.waiting import SyncWaiting

if TYPE_CHECKING:
    from fastjournal.client.aio.client import Client
    from fastjournal.client.aio.job_loop import JobLoop
    from fastjournal.client.aio.jobs import Job
    from fastjournal.client.aio.listen import Listener
    from fastjournal.client.aio.mirror import Mirror

__all__ = [
    "WAIT_WITHOUT_END",
    "Call",
    "Change",
    "ChangeKind",
    "Client",
    "DaemonStats",
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
    "Written",
    "calls",
]


_WITH_ANYIO = {
    "Client": "fastjournal.client.aio.client",
    "Job": "fastjournal.client.aio.jobs",
    "JobLoop": "fastjournal.client.aio.job_loop",
    "Listener": "fastjournal.client.aio.listen",
    "Mirror": "fastjournal.client.aio.mirror",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_ANYIO:
        return getattr(import_module(_WITH_ANYIO[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
