"""Filter pushdown: conditions of a query that the view ``records`` applies while it reads.

Conditions on ``segment`` and ``time`` exclude whole segments, those on ``time``, ``command`` and
``domain`` rows. Spark hands them over (``DataSourceReader.pushFilters``).

A segment's span of time is that of the earliest and the latest time of its records in the manifest.
Times of its first and last record tell nothing: a clock may have been set back in between. So a
segment of which a manifest has no more than these, as those of earlier releases, is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.snapshot import ManifestSegment
from fastjournal.spark.decoding.view_columns import cut
from fastjournal.spark.query.requested_schema import RequestedColumn
from fastjournal.spark.storage.files import SegmentFile

PUSHED = frozenset({"segment", "time", "command", "domain"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ARROW: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "In": lambda column, values: pc.is_in(column, pa.array(values, column.type)),
    "IsNotNull": lambda column, _: pc.is_valid(column),
}


class _Condition(NamedTuple):
    kind: str
    """Name of PySpark's class."""
    column: RequestedColumn
    value: Any

    def mask(self, column: pa.Array) -> pa.Array:
        value = self.value
        if self.kind not in ("In", "IsNotNull"):
            value = pa.scalar(value, column.type)
        return _ARROW[self.kind](column, value)


class RowFilters:
    """Conditions on columns, all of which a row has to meet.

    Args:
        columns: Columns of the rows.
    """

    def __init__(self, columns: Sequence[RequestedColumn]) -> None:
        self._columns = {column.name: column for column in columns if column.source in PUSHED}
        self._conditions: list[_Condition] = []

    def take(self, condition: Any) -> bool:
        """Keep a condition of PySpark; False: Spark has to apply it."""
        kind = type(condition).__name__
        path: tuple[str, ...] = getattr(condition, "attribute", ("", ""))
        column = self._columns.get(path[0]) if len(path) == 1 else None
        if column is None or kind not in _ARROW:
            return False
        value = getattr(condition, "value", None)
        if kind != "IsNotNull" and (value is None or (kind == "In" and None in value)):
            return False
        self._conditions.append(_Condition(kind, column, value))
        return True

    def keeps_segment(self, segment: SegmentFile, listed: ManifestSegment | None) -> bool:
        """Whether rows of a segment, which a manifest may list, may meet the conditions."""
        span = None
        if listed is not None and listed.min_us is not None and listed.max_us is not None:
            span = (cut(listed.min_us), cut(listed.max_us))
        for condition in self._conditions:
            if condition.column.source == "segment":
                number = pa.array([segment.number], pa.int32())
                if not condition.mask(number)[0].as_py():
                    return False
            if condition.column.source == "time" and span and not _meets(condition, span):
                return False
        return True

    def commands(self, names: Iterable[str]) -> frozenset[str | None] | None:
        """Return the commands that the conditions leave; None: all, and damage."""
        chosen = [one for one in self._conditions if one.column.source == "command"]
        if not chosen:
            return None
        column = pa.array(list(names), pa.string())
        for condition in chosen:
            column = column.filter(condition.mask(column))
        return frozenset(column.to_pylist())

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that meet the conditions."""
        for condition in self._conditions:
            if condition.column.source in ("time", "domain"):
                batch = batch.filter(condition.mask(batch.column(condition.column.name)))
        return batch


def _meets(condition: _Condition, span: tuple[int, int]) -> bool:
    """Whether an instant of a span of time may meet a condition."""
    first, last = span
    if condition.kind == "IsNotNull":
        return True
    if condition.kind == "In":
        return any(first <= _instant(value) <= last for value in condition.value)
    bound = _instant(condition.value)
    if condition.kind == "EqualTo":
        return first <= bound <= last
    if condition.kind == "GreaterThan":
        return last > bound
    if condition.kind == "LessThan":
        return first < bound
    return last >= bound if condition.kind == "GreaterThanOrEqual" else first <= bound


def _instant(value: Any) -> int:
    """Return a literal of TIMESTAMP or BIGINT as microseconds."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    return int(value)
