"""One Spark session for all tests of this directory: its Java machine takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from fastjournal.spark.session import SMALL_OPTIONS, start_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    options = {**SMALL_OPTIONS, "spark.sql.warehouse.dir": str(warehouse)}
    session = start_session("local[2]", name="tests", options=options)
    yield session
    session.stop()
