"""fastjournal: a durable, de-duplicated, delayed job journal.

    from fastjournal import Spool, SyncClient

    with Spool("/var/spool/fastjournal") as spool:
        spool.append(domain="pages", uri="https://example.org/", value=b"...")

    with SyncClient("127.0.0.1:9923") as client:
        client.enqueue("mails", {"to": "ann@example.org"}, delay=60)
        for job in client.jobs("pages"):
            ...

``Spool`` appends to local files and needs no daemon, ``SyncClient`` talks to one from any program,
``Client`` from a trio or asyncio program. All else is in the modules.

client, protocol, errors      clients; bytes of requests and replies; exceptions
spool, cmdlog, disk           local files of requests; the command log; files for it
remote                        the command log in an object store
tasks                         functions that a worker program calls
foreign, spark, contrib       journals of other queues; export and report; Django
keys, limits, options, entry_points   parts of a key; bounds of all options; begin of programs
clock, times, time_texts, numeric, printable   time, numbers and texts
program, loglines, stderr_queue, http_server, sockets, private, build_info   parts of programs
eviction_queue, versioned_json, file_sync, testing   a queue, files of JSON, sync; fakes
_native   functions in C for the plain part of requests

Importing this package loads none of its parts; each is loaded when it is first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastjournal.client import (
        WAIT_WITHOUT_END,
        Change,
        ChangeKind,
        Client,
        DaemonStats,
        DomainStats,
        Entry,
        EntryExplanation,
        EntryStats,
        FailedAttempt,
        Job,
        JobLoop,
        Jobs,
        Listener,
        Mirror,
        Page,
        Reconnect,
        SyncClient,
        SyncJob,
        SyncJobLoop,
        SyncListener,
        SyncWaiting,
        WorkerStats,
        WriteOutcome,
        Written,
    )
    from fastjournal.errors import (
        BadRequestError,
        CannotConnectError,
        ConfigError,
        ExtraMissingError,
        FastjournalError,
        FencedError,
        ForeignRemoteLogError,
        JavaMissingError,
        LeaseLostError,
        LockLostError,
        LogCorruptError,
        LogError,
        LogFailedError,
        LogLockedError,
        ProtocolError,
        RefusedError,
        RemoteLogCorruptError,
        RemoteLogError,
        SpoolError,
        SpoolFailedError,
        SpoolFullError,
        SpoolLockedError,
        StoreRefusedError,
        StoreUnavailableError,
    )
    from fastjournal.keys import JournalKey, build_journal_key, domain_of, parse_journal_key
    from fastjournal.protocol import Meta, State, ValueType
    from fastjournal.spool import Spool
    from fastjournal.times import Duration, Instant

__all__ = [
    "WAIT_WITHOUT_END",
    "BadRequestError",
    "CannotConnectError",
    "Change",
    "ChangeKind",
    "Client",
    "ConfigError",
    "DaemonStats",
    "DomainStats",
    "Duration",
    "Entry",
    "EntryExplanation",
    "EntryStats",
    "ExtraMissingError",
    "FailedAttempt",
    "FastjournalError",
    "FencedError",
    "ForeignRemoteLogError",
    "Instant",
    "JavaMissingError",
    "Job",
    "JobLoop",
    "Jobs",
    "JournalKey",
    "LeaseLostError",
    "Listener",
    "LockLostError",
    "LogCorruptError",
    "LogError",
    "LogFailedError",
    "LogLockedError",
    "Meta",
    "Mirror",
    "Page",
    "ProtocolError",
    "Reconnect",
    "RefusedError",
    "RemoteLogCorruptError",
    "RemoteLogError",
    "Spool",
    "SpoolError",
    "SpoolFailedError",
    "SpoolFullError",
    "SpoolLockedError",
    "State",
    "StoreRefusedError",
    "StoreUnavailableError",
    "SyncClient",
    "SyncJob",
    "SyncJobLoop",
    "SyncListener",
    "SyncWaiting",
    "ValueType",
    "WorkerStats",
    "WriteOutcome",
    "Written",
    "build_journal_key",
    "domain_of",
    "parse_journal_key",
]

_HOMES = {
    **dict.fromkeys(("Meta", "State", "ValueType"), "fastjournal.protocol"),
    "Spool": "fastjournal.spool",
    "domain_of": "fastjournal.keys",
    **{name: "fastjournal.errors" for name in __all__ if name.endswith("Error")},
    **dict.fromkeys(("JournalKey", "build_journal_key", "parse_journal_key"), "fastjournal.keys"),
    **dict.fromkeys(("Duration", "Instant"), "fastjournal.times"),
}
"""Modules of the names that ``fastjournal.client`` does not have."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "fastjournal.client")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
