"""Tasks in the executors of a Spark session, behind the interface of Python's executors.

Spark starts, repeats and places them; a task takes and returns Python objects.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RESULTS = "number LONG, result BINARY"


class ClusterTasks(Executor):
    """Executor whose tasks run in those of a Spark session.

    Args:
        spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallel(self) -> int:
        """Tasks that run at once."""
        return int(self._spark.sparkContext.defaultParallelism)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """Run a task for each of some inputs, and yield the results in their order.

        A job of Spark has no timeout, and its tasks are no chunks.
        """
        inputs = [pickle.dumps(given) for given in zip(*iterables, strict=True)]
        if not inputs:
            return iter(())
        tasks = self._spark.range(0, len(inputs), 1, len(inputs))
        rows = tasks.mapInArrow(partial(_run, task=fn, inputs=inputs), _RESULTS).collect()
        found = {row["number"]: pickle.loads(row["result"]) for row in rows}
        return iter([found[number] for number in range(len(inputs))])


def _run(
    batches: Iterable[pa.RecordBatch], task: Callable[..., Any], inputs: list[bytes]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = pickle.dumps(task(*pickle.loads(inputs[number])))
            yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})
