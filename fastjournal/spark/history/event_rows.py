"""Rows of the history: one for each event, and those of one UTC day together.

docs/events.md describes the columns, and how to add some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from fastjournal.spark.decoding.view_columns import (
    CORRUPT_COLUMN,
    TIMESTAMPS,
    Column,
    shown,
    to_batch,
)
from fastjournal.spark.history.days import DAY_US, day_at

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


class EventRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A row of the table ``events``."""

    time: int
    """Instant of the record, in microseconds since the Unix epoch; it may be any."""
    event: EventKind
    domain: str | None = None
    priority: int | None = None
    key: bytes | None = None
    uri: bytes | None = None
    job_id: str | None = None
    serial: int | None = None
    """Serial number of the entry: the same in all of its events."""
    attempt: int | None = None
    due: int | None = None
    lease_start: int | None = None
    wait_us: int | None = None
    run_us: int | None = None
    reason: str | None = None
    value_bytes: int | None = None
    segment: int
    offset: int


_INSTANTS = ("time", "due", "lease_start")
_KINDS = {
    **dict.fromkeys(_INSTANTS, "time"),
    **dict.fromkeys(("event", "domain", "job_id", "reason"), "text"),
    **dict.fromkeys(("priority", "attempt", "segment"), "int"),
    **dict.fromkeys(("key", "uri"), "bytes"),
    **dict.fromkeys(("serial", "wait_us", "run_us", "value_bytes", "offset"), "long"),
}


def _value_of(name: str) -> Callable[[EventRow], Any]:
    value = attrgetter(name)
    return (lambda row: shown(value(row))) if name in _INSTANTS else value


EVENT_COLUMNS = tuple(
    Column(name, _KINDS[name], _value_of(name)) for name in EventRow.__struct_fields__
)
"""Columns of the table; an instant outside of the years 1 to 9999 is null."""

EVENT_SCHEMA = pa.schema([(column.name, column.arrow) for column in EVENT_COLUMNS])
"""Schema of the table in Arrow."""


def batches_of(events: Iterable[EventRow]) -> Iterator[pa.RecordBatch]:
    """Yield events as Arrow batches, in their order."""
    found = iter(events)
    while part := list(islice(found, BATCH_ROWS)):
        yield to_batch(part, EVENT_COLUMNS)


def corrupt_batch(texts: Sequence[str]) -> pa.RecordBatch:
    """Return one row for each text about missing or damaged data."""
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


def fitted(table: pa.Table) -> pa.Table:
    """Return a table of events that this release or another one wrote, with the columns of this.

    A column that it lacks is null; those that only a newer release knows are left out.
    """
    for field in EVENT_SCHEMA:
        if field.name not in table.schema.names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(EVENT_SCHEMA.names).cast(EVENT_SCHEMA)


class EventDay:
    """Events of one day, in Arrow as soon as there are many."""

    def __init__(self) -> None:
        self.rows = 0
        self._events: list[EventRow] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, event: EventRow) -> None:
        """Take one more."""
        self.rows += 1
        self._events.append(event)
        if len(self._events) == BATCH_ROWS:
            self._close_batch()

    def table(self) -> pa.Table:
        """Return all of them, in their order."""
        self._close_batch()
        return pa.Table.from_batches(self._batches)

    def _close_batch(self) -> None:
        self._batches.append(to_batch(self._events, EVENT_COLUMNS))
        self._events.clear()


def day_of(time: int | None) -> str:
    """Return the UTC day of an instant in microseconds since the Unix epoch, which may be any."""
    return _day_name(max(min(time or 0, TIMESTAMPS[-1]), TIMESTAMPS[0]) // DAY_US)


@cache
def _day_name(number: int) -> str:
    return day_at(number * DAY_US).isoformat()
