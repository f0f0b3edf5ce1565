"""Errors of Spark as one sentence: the root cause behind stack traces, and wrong masters."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError

from fastjournal.errors import BadRequestError, CannotConnectError, LogFailedError
from fastjournal.spark.cluster.java_errors import root_cause, translating_output, translating_start
from fastjournal.spark.session import check_listens, start_session

FULL = """An error occurred while calling o341.parquet.
: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocal.java:549)
\tat java.base/java.lang.Thread.run(Thread.java:840)
\tSuppressed: java.io.IOException: Stream closed
\t\tat java.base/java.io.FileOutputStream.close(FileOutputStream.java:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 34 more
"""
TASK = """[TASK_WRITE_FAILED] Task failed while writing rows to file:/out. SQLSTATE: 58030"""
TASK_TRACE = """org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailed(QueryExecutionErrors.scala:775)
Caused by: java.io.FileNotFoundException: /tmp/blockmgr-1/0f/temp_shuffle (Permission denied)
\tat java.base/java.io.FileOutputStream.open0(Native Method)
"""
WORKER = """An error occurred while calling o12.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed \
1 times: Lost task 0.0 in stage 3.0 (TID 5): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/venv/pyspark/worker.py", line 1, in main
    process()
{line}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:581)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2)
"""
HEAP = """An error occurred while calling o1.count.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.Some.java(Some.java:1)
Caused by: java.lang.OutOfMemoryError: Java heap space
"""
BARE = "An error occurred while calling o1.count.\n: java.lang.NullPointerException: x\n\tat a.b(C)"


class TracedError(PySparkException):
    """Exception of Java as PySpark translates it."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self._stackTrace = trace


@pytest.mark.parametrize(
    ("error", "text", "of_input_output"),
    [
        (Py4JError(FULL), "No space left on device", True),
        (
            TracedError(TASK, TASK_TRACE),
            "FileNotFoundException: /tmp/blockmgr-1/0f/temp_shuffle (Permission denied)",
            True,
        ),
        (
            Py4JError(WORKER.format(line="OSError: [Errno 28] No space left on device: '/t/x'")),
            "OSError: [Errno 28] No space left on device: '/t/x'",
            True,
        ),
        (Py4JError(WORKER.format(line="ValueError: no")), "ValueError: no", False),
        (Py4JError(HEAP), "OutOfMemoryError: Java heap space", False),
        (Py4JError(BARE), "NullPointerException: x", False),
        (PySparkRuntimeError("no gateway\n  at org.apache.Some.java"), "no gateway", False),
    ],
)
def test_root_cause_of_a_java_exception_is_one_line(
    error: Exception, text: str, of_input_output: bool
) -> None:
    assert root_cause(error) == (text, of_input_output)


def test_full_disk_while_spark_writes_names_the_table_and_what_to_do() -> None:
    with pytest.raises(LogFailedError) as full, translating_output("/out/_staging/hours"):
        raise TracedError(FULL, "")
    assert str(full.value) == (
        "/out/_staging/hours: Spark cannot write the table: No space left on device (free space "
        "there, or in the directory of Spark's temporary files, SPARK_LOCAL_DIRS)"
    )


def test_error_of_spark_that_is_no_input_or_output_goes_on() -> None:
    error = TracedError(HEAP, "")
    with pytest.raises(TracedError) as found, translating_output("/out"):
        raise error
    assert found.value is error


def test_start_of_spark_that_fails_names_the_master() -> None:
    with pytest.raises(CannotConnectError) as failed, translating_start("spark://host:7077"):
        raise Py4JError(HEAP)
    assert str(failed.value) == (
        "Spark does not start with the master spark://host:7077: OutOfMemoryError: Java heap space"
    )


@pytest.mark.parametrize(
    "master",
    [
        *(
            "",
            "nonsense",
            "Local",
            "local[]",
            "local[0]",
            "local[x]",
            "local[2",
            "local*",
            "local[2,0]",
        ),
        *("local-cluster[2,1]", "spark://", "spark://host", "spark://host:", "spark://host:x"),
        *("spark://a:1,b", "mesos://host:5050", "yarn-client", "k8s://", "sc://host:1", "local\n"),
    ],
)
def test_master_that_spark_does_not_know_is_refused_before_java_starts(master: str) -> None:
    with pytest.raises(BadRequestError, match=r"^master '.*' is no master of Spark \(local\[N\]"):
        start_session(master)


def closed_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
    return port


def test_standalone_master_that_does_not_listen_is_named() -> None:
    master = f"spark://127.0.0.1:{closed_port()}"
    with pytest.raises(CannotConnectError, match="no Spark master listens at ") as refused:
        check_listens(master)
    assert master in str(refused.value)
    assert "Connection refused" in str(refused.value)
    for other in (None, "local[2]", "yarn"):
        check_listens(other)


def test_standalone_master_listens_at_one_of_its_addresses() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        check_listens(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{port}")
