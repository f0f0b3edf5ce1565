"""Shard: one part of the relations of a plan, in a database of its own. No pyspark here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, Self, TypeAlias

import pyarrow as pa

from fastjournal.spark.execution.duckdb_engine import DuckDb
from fastjournal.spark.execution.shard_rows import Relations, Sent, to_one


class Shard:
    """One shard, with the relations that came to it, in a database of its own.

    Args:
        number: Its number.
        shards: Number of shards.
        given: Relations that came to it.
    """

    def __init__(self, number: int, shards: int, given: Relations) -> None:
        self.number = number
        self.shards = shards
        self._given = given
        self._scratch = TemporaryDirectory(prefix="fastjournal-")
        self.engine = DuckDb(Path(self._scratch.name), threads=1, in_files=False)

    def __enter__(self) -> Self:
        """Return the shard; the block closes its database."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the database."""
        self.engine.connection.close()
        self._scratch.cleanup()

    def has(self, name: str) -> bool:
        """Return whether rows of a relation came."""
        return name in self._given

    def rows(self, name: str, schema: pa.Schema | None = None) -> str:
        """Return a relation that came; one without rows needs a schema."""
        if name not in self._given and schema is not None:
            return self.engine.give(f"given_{name}", schema.empty_table())
        return self.engine.give(f"given_{name}", self._given[name])

    def table(self, sql: str, **relations: str) -> pa.Table:
        """Return the rows of a query."""
        return self.engine.table(sql, **relations)

    def pass_on(self, name: str, *, to: int | None = None) -> Iterator[Sent]:
        """Send a relation that came to the next step of this shard, or of another one."""
        if name in self._given:
            yield to_one(name, self._given[name], self.number if to is None else to)


ShardStep: TypeAlias = Callable[[Shard], Iterator[Sent]]
"""Step of a plan on one shard: what it sends goes to the next step, on the shards named there."""


class Shards(Protocol):
    """Relations that are divided into shards."""

    def then(self, step: ShardStep, /) -> Self:
        """Return what a step sends on each shard."""

    def with_others(self, other: Self, step: ShardStep, /, *, into: int | None = None) -> Self:
        """Return what a step sends that is given the relations of two.

        Args:
            other: The other one, with as many shards.
            step: The step.
            into: Number of shards that it sends to; None: as many.
        """
