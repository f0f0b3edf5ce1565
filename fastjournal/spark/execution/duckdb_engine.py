"""DuckDB as the engine of the plan of live entries: named relations, memory with a bound."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from fastjournal.errors import LogFailedError

MEMORY_MIB = 256
"""Bound of what DuckDB keeps in memory; the rest goes to its temporary files."""
_LOOKUP_MIB = 96
"""The same while it looks up rows of its tables only."""
_THREAD_MIB = 64
"""Memory that a thread of DuckDB needs at least."""


class DuckDb:
    """Database of one computation.

    Args:
        scratch: Directory for its temporary files.
        threads: Most threads of a statement; None: one a processor.
        in_files: Its tables are in a file of the directory; otherwise in memory, as far as they
            have room there.
    """

    def __init__(self, scratch: Path, *, threads: int | None = None, in_files: bool = True) -> None:
        self.connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{MEMORY_MIB}MiB",
                "temp_directory": str(scratch),
                "preserve_insertion_order": False,
                "threads": max(min(threads or processors(), MEMORY_MIB // _THREAD_MIB), 1),
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        self._scratch = scratch
        if in_files:
            # nobody reads them after a power loss, so there is no write-ahead log that it syncs
            path = quoted(str(scratch / "tables.duckdb"))
            self.connection.execute(f"ATTACH {path} AS tables (RECOVERY_MODE NO_WAL_WRITES)")
            self.connection.execute("USE tables")
        self.connection.execute("SET enable_progress_bar = false")
        self.connection.execute("SET parquet_metadata_cache = true")

    def give(self, name: str, table: pa.Table) -> str:
        """Return the name of a relation of these rows."""
        self.connection.register(name, table)
        return name

    def store(self, name: str, sql: str, **relations: str) -> str:
        """Return the relation that a query gives, to be read several times.

        Args:
            name: To be known by.
            sql: A query with ``{names}`` of relations.
            **relations: Those, as this object returned them.
        """
        self.connection.execute(f"CREATE TABLE {name} AS {sql.format(**relations)}")
        return name

    def query(self, sql: str, **relations: str) -> str:
        """Return the relation that a query gives, to be read once or twice."""
        return f"({sql.format(**relations)})"

    @contextmanager
    def lookups_only(self) -> Iterator[None]:
        """Give memory back in the block, which reads few rows of stored relations at once."""
        self._limit_memory(_LOOKUP_MIB)
        try:
            yield
        finally:
            self._limit_memory(MEMORY_MIB)

    def _limit_memory(self, mib: int) -> None:
        self.connection.execute(f"SET memory_limit = '{mib}MiB'")

    def is_empty(self, relation: str) -> bool:
        """Return whether a relation has no rows."""
        return self.connection.execute(f"SELECT 1 FROM {relation} LIMIT 1").fetchone() is None

    def batches(self, sql: str, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query."""
        reader = self.connection.sql(sql).to_arrow_reader(rows)
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except (OSError, pa.ArrowException) as error:
                # DuckDB raises these while rows come out
                raise _failed(error, self._scratch) from error
            yield batch

    def table(self, sql: str, **relations: str) -> pa.Table:
        """Return the rows of a query."""
        # without relations it may name files, whose names may have braces
        text = sql.format(**relations) if relations else sql
        return self.connection.sql(text).to_arrow_table()


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def quoted(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def parquet_files(paths: Iterable[str]) -> str:
    """Return the relation of the rows of Parquet files."""
    return f"read_parquet([{', '.join(map(quoted, paths))}])"


@contextmanager
def translating_sort(scratch: Path) -> Iterator[None]:
    """Raise what DuckDB, or a write of a temporary file, raises as a ``LogFailedError``."""
    try:
        yield
    except (duckdb.Error, OSError, pa.ArrowException) as error:
        raise _failed(error, scratch) from error


def _failed(error: Exception, scratch: Path) -> LogFailedError:
    text = str(error).partition("\n")[0]
    return LogFailedError(
        f"cannot sort the entries: {text}",
        path=scratch,
        hint="set TMPDIR to a directory on a disk with more room; where it has room, report this",
    )
