"""Batches of rows for sorted runs, and small bounds of memory for their sort."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from fastjournal.spark.execution import sorted_runs


def batch_with(schema: pa.Schema, rows: int, **columns: Any) -> pa.RecordBatch:
    """Return rows with these columns; the others are null."""
    nulls = [None] * rows
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, nulls), field.type) for field in schema], schema=schema
    )


def replace_column(batch: pa.RecordBatch, name: str, values: Any) -> pa.RecordBatch:
    """Return a batch with other values of one column."""
    index = batch.schema.get_field_index(name)
    return batch.set_column(index, name, pa.array(values, batch.schema.field(index).type))


def draw_bounds(draw: random.Random, patch: pytest.MonkeyPatch, ranges: ModuleType) -> None:
    """Draw the bounds of row groups and runs, and of the ranges of a module."""
    patch.setattr(sorted_runs, "ROW_GROUP_ROWS", draw.choice((1, 3, 50)))
    patch.setattr(sorted_runs, "RUN_BYTES", draw.choice((1, 10_000, 1 << 30)))
    patch.setattr(ranges, "RANGE_BYTES", draw.choice((1, 3_000, 1 << 30)))
