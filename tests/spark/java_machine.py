"""Java machine of Spark tests: it takes seconds to start, so a worker has one for its tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.python_workers import write_interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CODEGEN_MODE = "spark.sql.codegen.factoryMode"
"""Setting of Spark: whether expressions are compiled to bytecode, as they are for users."""


class JavaMachine:
    """A Java machine for one Spark session at a time, of this process or of others.

    Args:
        directory: For what Spark writes; it exists.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._python = str(write_interpreter(directory / "python"))
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return the session of this process; start it, and the machine, where there is none."""
        from fastjournal.spark.session import SMALL_OPTIONS, start_session

        if self._session is None:
            options = {
                **SMALL_OPTIONS,
                # two that stay two, so that what belongs together can be apart
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.adaptive.coalescePartitions.enabled": "false",
                # a few rows each: to compile an expression costs more than to interpret it
                CODEGEN_MODE: "NO_CODEGEN",
                "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
            }
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYSPARK_PYTHON", self._python)
                self._session = start_session("local[2]", name="tests", options=options)
        return self._session

    def stop_session(self) -> None:
        """Stop the session of this process, if it runs; the machine goes on."""
        if self._session is not None:
            self._session.stop()
            self._session = None

    def lend(self) -> dict[str, str]:
        """Return variables with which another process starts its session in this machine.

        It is to it as if ``spark-submit`` had started it. The session of this process is stopped.
        """
        from pyspark import SparkContext

        self.session()
        self.stop_session()
        gateway = SparkContext._gateway.gateway_parameters
        return {
            "PYSPARK_GATEWAY_PORT": str(gateway.port),
            "PYSPARK_GATEWAY_SECRET": gateway.auth_token,
            "PYSPARK_PYTHON": self._python,
        }
