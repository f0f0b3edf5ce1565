"""Frames in an object store: executors read and write Parquet through pyarrow.

Spark needs a connector of Hadoop for S3 (``hadoop-aws``), with settings of its own. pyarrow has the
client, which the rest of the run uses; so one place, the environment or the URI, says endpoint and
credentials for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from fastjournal.spark.storage.files import below, resolve, translating

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 8192
_WRITTEN = "file STRING"


def read_parquet(
    spark: SparkSession, files: Sequence[str], schema: str, of_path: Sequence[str] = ()
) -> DataFrame:
    """Return the rows of Parquet files, lazily; a task reads one file.

    Args:
        spark: Any session.
        files: Their URIs, at least one.
        schema: Columns of the files, as SQL has them, and then those of the path.
        of_path: Names of columns that the path has (``name=value``), which are STRING.
    """
    tasks = spark.range(0, len(files), 1, len(files))
    return tasks.mapInArrow(partial(_read, files=list(files), of_path=list(of_path)), schema)


def stored_schema(file: str) -> str:
    """Return the columns of a Parquet file, as SQL has them."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - only where Spark is

    store, path = resolve(file)
    with translating("read", path), store.open_input_file(path) as opened:
        columns = from_arrow_schema(pa.parquet.read_schema(opened))
    return ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in columns)


def _read(
    batches: Iterable[pa.RecordBatch], files: list[str], of_path: list[str]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            store, path = resolve(files[number])
            values = {name: path.rpartition(f"/{name}=")[2].partition("/")[0] for name in of_path}
            with translating("read", path), store.open_input_file(path) as file:
                for found in pa.parquet.ParquetFile(file).iter_batches(_BATCH_ROWS):
                    yield _with_texts(found, values)


def _with_texts(batch: pa.RecordBatch, values: dict[str, str]) -> pa.RecordBatch:
    """Return a batch with columns of one value each at the end."""
    for name, value in values.items():
        batch = batch.append_column(name, pa.array([value] * batch.num_rows, pa.string()))
    return batch


def write_parquet(frame: DataFrame, uri: str, *, by: str | None = None) -> None:
    """Write a frame as Parquet, a file a task, in the order of its rows.

    Args:
        frame: Its rows; those of one value of ``by`` are adjacent.
        uri: Directory.
        by: Column that becomes a directory ``name=value`` of its own; None: none.
    """
    frame.mapInArrow(partial(_write, uri=uri, by=by), _WRITTEN).collect()


def _write(batches: Iterable[pa.RecordBatch], uri: str, by: str | None) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext  # noqa: PLC0415 - where executors run

    context = TaskContext.get()
    name = f"part-{0 if context is None else context.partitionId():05d}.parquet"
    for directory, table in _tables(batches, by):
        # a task that is repeated replaces its object
        store, path = resolve(below(uri, f"{directory}{name}"))
        with translating("write", path):
            pa.parquet.write_table(table, path, filesystem=store, compression="zstd")
        yield pa.RecordBatch.from_pydict({"file": [path]})


def _tables(batches: Iterable[pa.RecordBatch], by: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Yield the tables of a task with their directories, one for each value in order."""
    value: Any = None
    found: list[pa.RecordBatch] = []
    for batch in batches:
        for one, part in _runs(batch, by):
            if found and one != value:
                yield _directory(by, value), pa.Table.from_batches(found)
                found = []
            value = one
            found.append(part)
    if found:
        yield _directory(by, value), pa.Table.from_batches(found)


def _runs(batch: pa.RecordBatch, by: str | None) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Yield the runs of rows with one value, without its column."""
    if not batch.num_rows:
        return
    if by is None:
        yield None, batch
        return
    values = batch.column(by).to_pylist()
    rest = batch.drop_columns([by])
    begin = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[begin]:
            yield values[begin], rest.slice(begin, end - begin)
            begin = end


def _directory(by: str | None, value: Any) -> str:
    return "" if by is None else f"{by}={value}/"
