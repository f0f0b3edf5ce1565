"""Days of events: Arrow tables of the events of a segment by UTC day."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from fastjournal.spark.history.days import DAY_US, day_at
from fastjournal.spark.history.event_rows import BATCH_ROWS, EventRow, event_batch

_TIME_MIN = -62_135_596_800_000_000
"""Begin of the year 1, in microseconds; a TIME may be any."""
_TIME_MAX = 253_402_300_799_999_999
"""End of the year 9999, in microseconds."""


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
        """Return all of them, without the column that the path has."""
        self._close_batch()
        return pa.Table.from_batches(self._batches).drop_columns(["segment"])

    def _close_batch(self) -> None:
        self._batches.append(event_batch(self._events))
        self._events.clear()


def day_of(time: int | None) -> str:
    """Return the UTC day of an instant in microseconds since the Unix epoch."""
    return _day_name(max(min(time or 0, _TIME_MAX), _TIME_MIN) // DAY_US)


@cache
def _day_name(number: int) -> str:
    return day_at(number * DAY_US).isoformat()
