"""The two clients over one sans-IO core.

``calls`` builds each request and reads its reply, ``multiplexer`` matches replies to requests, and
``SyncClient`` (blocking sockets) and ``Client`` (trio) only move the bytes. Trio is loaded when
``Client`` is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastjournal.client.backoff import Reconnect
from fastjournal.client.calls import WAIT_WITHOUT_END, Call
from fastjournal.client.results import (
    Change,
    ChangeKind,
    DaemonStats,
    DomainStats,
    Entry,
    EntryStats,
    Jobs,
    Page,
    Written,
)
from fastjournal.client.sync_client import SyncClient

if TYPE_CHECKING:
    from fastjournal.client.trio_client import Client

__all__ = [
    "WAIT_WITHOUT_END",
    "Call",
    "Change",
    "ChangeKind",
    "Client",
    "DaemonStats",
    "DomainStats",
    "Entry",
    "EntryStats",
    "Jobs",
    "Page",
    "Reconnect",
    "SyncClient",
    "Written",
]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from fastjournal.client.trio_client import Client  # noqa: PLC0415 - loads trio

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
