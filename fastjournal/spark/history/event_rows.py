"""Events of the history: one row each, and the jobs that are alive between two segments.

Columns and their meaning stand in docs/spark.md, "Events".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from fastjournal.keys import parse_journal_key
from fastjournal.spark.decoding.view_columns import ARROW_TYPES, CORRUPT_COLUMN, text

BATCH_ROWS = 8192
"""Events that become an Arrow batch together."""


POPPED = "popped"
"""Reason of a completion by NEXT."""
UNDELIVERED = "undelivered"
"""Reason of the return of a popped entry."""


class EventKind(StrEnum):
    """Kind of an event."""

    SET = "set"
    REPLACED = "replaced"
    LEASED = "leased"
    EXTENDED = "extended"
    COMPLETED = "completed"
    FAILED = "failed"
    RETURNED = "returned"
    LOST = "lost"
    BURIED = "buried"
    KICKED = "kicked"
    DELETED = "deleted"
    EXPIRED = "expired"
    RENAMED = "renamed"
    PURGED = "purged"
    PAUSED = "paused"
    RESUMED = "resumed"
    LIMITED = "limited"


class LiveJob(msgspec.Struct, gc=False):
    """A live job, as far as later events need it. Instants are microseconds; 0: none."""

    key: bytes | None = None
    """None: its SET is older than the history."""
    uri: bytes | None = None
    domain: str | None = None
    priority: int | None = None
    timestamp: int = 0
    value_bytes: int | None = None
    not_before: int = 0
    due: int | None = None
    """Instant since which it could be leased."""
    attempts: int = 0
    """Failed attempts."""
    token: int = 0
    """Instant at which the lease ends: its token, unless a step moved it; 0: it is not leased."""
    lease_start: int = 0
    buried: bool = False


def job_of(key: bytes) -> LiveJob:
    """Return a job of which only the key is known."""
    journal = parse_journal_key(key)
    if journal is None:
        return LiveJob(key=key)
    return LiveJob(key=key, domain=text(journal.domain), priority=journal.priority)


JOB_SCHEMA = pa.schema(
    [
        ("job_id", pa.binary(16)),
        ("key", pa.binary()),
        ("uri", pa.binary()),
        ("domain", pa.string()),
        ("priority", pa.int32()),
        ("timestamp", pa.uint64()),
        ("value_bytes", pa.int64()),
        ("not_before", pa.uint64()),
        ("due", pa.uint64()),
        ("attempts", pa.int64()),
        ("token", pa.uint64()),
        ("lease_start", pa.uint64()),
        ("buried", pa.bool_()),
    ]
)


def job_table(jobs: Mapping[bytes, LiveJob]) -> pa.Table:
    """Return live jobs by identifier as an Arrow table."""
    columns: dict[str, list[Any]] = {"job_id": list(jobs)}
    for name in LiveJob.__struct_fields__:
        columns[name] = [getattr(job, name) for job in jobs.values()]
    return pa.Table.from_pydict(columns, JOB_SCHEMA)


def table_jobs(table: pa.Table) -> dict[bytes, LiveJob]:
    """Return the live jobs of an Arrow table by identifier."""
    columns = table.to_pydict()
    fields = (columns[name] for name in LiveJob.__struct_fields__)
    return {
        job_id: LiveJob(*values) for job_id, *values in zip(columns["job_id"], *fields, strict=True)
    }


class EventRow(msgspec.Struct, frozen=True, gc=False):
    """A row of the table ``events``."""

    time: int | None
    """Instant of the record, in microseconds since the Unix epoch."""
    event: EventKind
    domain: str | None
    priority: int | None
    key: bytes | None
    uri: bytes | None
    job_id: str | None
    attempt: int | None
    due: int | None
    lease_start: int | None
    wait_us: int | None
    run_us: int | None
    reason: str | None
    value_bytes: int | None
    segment: int
    offset: int


_KINDS = {
    **dict.fromkeys(("time", "due", "lease_start"), "time"),
    **dict.fromkeys(("event", "domain", "job_id", "reason"), "text"),
    **dict.fromkeys(("priority", "attempt", "segment"), "int"),
    **dict.fromkeys(("key", "uri"), "bytes"),
    **dict.fromkeys(("wait_us", "run_us", "value_bytes", "offset"), "long"),
}


class EventColumn(NamedTuple):
    """One column of the table."""

    name: str
    kind: str


EVENT_COLUMNS = tuple(EventColumn(name, _KINDS[name]) for name in EventRow.__struct_fields__)
"""Columns of the table, in their order."""

EVENT_SCHEMA = pa.schema([(column.name, ARROW_TYPES[column.kind]) for column in EVENT_COLUMNS])
"""Schema of the table in Arrow."""


def event_batch(events: Iterable[EventRow]) -> pa.RecordBatch:
    """Return events as an Arrow batch, in their order."""
    columns = list(zip(*map(msgspec.structs.astuple, events), strict=True))
    arrays = [
        pa.array(columns[index] if columns else [], type=field.type)
        for index, field in enumerate(EVENT_SCHEMA)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def corrupt_batch(texts: Sequence[str]) -> pa.RecordBatch:
    """Return one row for each text that tells of something missing or damaged."""
    nulls = [pa.nulls(len(texts), field.type) for field in EVENT_SCHEMA]
    return pa.RecordBatch.from_arrays(
        [*nulls, pa.array(texts, pa.string())], names=[*EVENT_SCHEMA.names, CORRUPT_COLUMN.name]
    )


def with_corrupt(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of events, or of damage, with the column of damage."""
    if CORRUPT_COLUMN.name in batch.schema.names:
        return batch
    none = pa.nulls(batch.num_rows, pa.string())
    return batch.append_column(CORRUPT_COLUMN.name, none)
