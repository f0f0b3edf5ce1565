"""Java machine of Spark tests: it takes seconds to start, so a worker has one for its tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.python_workers import PythonWorkers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CODEGEN_MODE = "spark.sql.codegen.factoryMode"
"""Setting of Spark: whether expressions are compiled to bytecode, as they are for users."""


JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:MetaspaceSize=256m"
)
"""As ``SMALL_OPTIONS``, for the code of many tests: the 48 MB of code that a machine without its
second compiler keeps get full, and it compiles again what it has thrown away."""


class JavaMachine:
    """A Java machine for one Spark session at a time, of this process or of others.

    Args:
        directory: For what Spark writes; it exists.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._workers = PythonWorkers(directory)
        self._session: SparkSession | None = None
        self._errors = directory / "errors"
        self._told = 0
        self._is_started = False

    def session(self) -> SparkSession:
        """Return the session of this process; start it, and the machine, where there is none."""
        from fastjournal.spark.session import SMALL_OPTIONS, start_session

        if self._session is None:
            options = {
                **SMALL_OPTIONS,
                "spark.driver.extraJavaOptions": JAVA_OPTIONS,
                # two that stay two, so that what belongs together can be apart
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.adaptive.coalescePartitions.enabled": "false",
                # a few rows each: to compile an expression costs more than to interpret it
                CODEGEN_MODE: "NO_CODEGEN",
                "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            }
            self._workers.start()
            with pytest.MonkeyPatch.context() as patch, self._standard_error():
                # where it is started: that of relative paths, as of its workers' interpreter
                patch.chdir(self.directory)
                patch.setenv("PYSPARK_PYTHON", str(self._workers.interpreter))
                self._session = start_session("local[2]", name="tests", options=options)
            self._is_started = True
        return self._session

    def stop_session(self) -> None:
        """Stop the session of this process, if it runs; the machine goes on."""
        if self._session is not None:
            self._session.stop()
            self._session = None

    def _start_alone(self) -> None:
        """Let the machine run without a session of this process."""
        if not self._is_started:
            self.session()
        self.stop_session()

    def close(self) -> None:
        """Stop the session, and end the processes of its workers."""
        self.stop_session()
        self._workers.stop()

    def said(self) -> str:
        """Return what the machine wrote to standard error since the last call."""
        with self._errors.open(encoding="utf-8", errors="replace") as file:
            file.seek(self._told)
            text = file.read()
            self._told = file.tell()
        return text

    @contextmanager
    def _standard_error(self) -> Iterator[None]:
        """Let the machine have a file as standard error, if it is started meanwhile."""
        before = os.dup(2)
        try:
            with self._errors.open("ab") as file:
                os.dup2(file.fileno(), 2)
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)

    @contextmanager
    def configured(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Give settings to all sessions that start meanwhile, as ``spark-submit --conf`` does."""
        from pyspark import SparkContext

        self._start_alone()
        system = SparkContext._jvm.java.lang.System
        for name, value in settings.items():
            system.setProperty(name, value)
        try:
            yield
        finally:
            self.stop_session()
            for name in settings:
                system.clearProperty(name)

    def lend(self) -> dict[str, str]:
        """Return variables with which another process starts its session in this machine.

        It is to it as if ``spark-submit`` had started it. The session of this process is stopped.
        """
        from pyspark import SparkContext

        self._start_alone()
        gateway = SparkContext._gateway.gateway_parameters
        return {
            "PYSPARK_GATEWAY_PORT": str(gateway.port),
            "PYSPARK_GATEWAY_SECRET": gateway.auth_token,
            "PYSPARK_PYTHON": str(self._workers.interpreter),
        }
