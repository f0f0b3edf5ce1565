"""Tasks in the executors of a Spark session, behind the interface of Python's executors.

Spark starts, repeats and places them; a task takes and returns Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        given = list(zip(*iterables, strict=True))
        if not given:
            return iter(())
        tasks = self._spark.sparkContext.parallelize(given, len(given))
        return iter(tasks.map(lambda arguments: fn(*arguments)).collect())
