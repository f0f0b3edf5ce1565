"""Tasks in the executors of a Spark session, behind the interface of Python's executors.

Spark starts, repeats and places them; a task takes and returns Python objects.

The process pool runs tasks in processes of their own, or in this one. A task that needs much memory
once runs apart: an allocator keeps what a process has freed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, TypeVar

from fastjournal.errors import LogFailedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Result = TypeVar("Result")


class Here(Executor):
    """Executor that runs each task at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a task; its exceptions are raised here."""
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def process_pool(processes: int) -> Iterator[Executor]:
    """Give an executor for the block.

    Args:
        processes: Processes of the pool; 1: this process runs the tasks. More than one need a main
            module that can be imported.
    """
    if processes <= 1:
        yield Here()
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=start_process)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def run_apart(task: Callable[..., Result], *args: Any) -> Result:
    """Run a task in a process of its own, whose memory the system has back at its end.

    Args:
        task: Function of a module; needs a main module that can be imported.
        args: Its arguments.

    Raises:
        LogFailedError: The process was ended from outside.
    """
    with (
        ProcessPoolExecutor(1, get_context("spawn"), initializer=start_process) as pool,
        translating_end(f"the process of {task.__name__}", "free memory, and run it again"),
    ):
        return pool.submit(task, *args).result()


@contextmanager
def translating_end(process: str, hint: str) -> Iterator[None]:
    """Raise the end of a process of a pool, in the block, as a ``LogFailedError``.

    Args:
        process: Which one, as the error says it.
        hint: Hint of the error.
    """
    try:
        yield
    except BrokenExecutor as error:
        raise LogFailedError(f"{process} was ended from outside", hint=hint) from error


def start_process() -> None:
    """Leave the end of a process to its parent, also where a terminal interrupts both.

    A killed parent cannot end it, and the pipes of a pool stay open while a process of it lives.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


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
