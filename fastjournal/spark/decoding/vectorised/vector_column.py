"""Column of the vectorised reader: its function, and how much of each record it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from fastjournal.spark.decoding.vectorised.chunk import Chunk
from fastjournal.spark.decoding.view_columns import ARROW_TYPES


class VectorColumn(NamedTuple):
    """A column: its function, and how much of each record it needs."""

    array: Callable[[Chunk], pa.Array]
    last_field: int = -1
    """Number of the last field of envelopes that it needs; -1: none."""
    operations: bool = False
    """Whether it needs operations and the tokens of leases."""
    contents: bool = True
    """Whether it needs more of a record than its frame, command and job id."""
    patched: bool = True
    """Whether it is null for a record that is decoded one by one."""


def nothing(kind: str) -> Callable[[Chunk], pa.Array]:
    """Return the function of a column that is null for all regular records."""
    return lambda chunk: pa.nulls(len(chunk.arrays), ARROW_TYPES[kind])
