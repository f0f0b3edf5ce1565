"""Spark Connect: the data source in a client of a server, which has the views and their errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("grpc")

from tests.docs.pages import blocks
from tests.spark.random_logs import replayed, write_random_log
from tests.system.staging import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
CLIENT = """
import json
from pyspark.errors import PySparkException
from fastjournal.errors import FastjournalError

def told(work):
    try:
        return work()
    except (PySparkException, FastjournalError) as error:
        return str(error).partition("JVM stacktrace")[0]

def positions(frame):
    return sorted(map(list, frame.select("segment", "offset").collect()))

log, output = SNAPSHOT, OUTPUT
fastjournal.spark.register(spark)

def read(view, path=log, **options):
    return spark.read.format("fastjournal").option("view", view).load(path, **options)

def of_view():
    spark.sql(f"CREATE TEMPORARY VIEW seen USING fastjournal OPTIONS (path '{log}')")
    return positions(spark.table("seen"))

def of_entries():
    spark.sql(f"CREATE TEMP VIEW live USING fastjournal OPTIONS (path '{log}', view 'entries')")
    return spark.table("live").count()

found = {
    "records": positions(read("records")),
    "view": of_view(),
    "schemas": read("records", schema="time TIMESTAMP, key STRING").dtypes,
    "same": fastjournal.spark.entries(spark, log).dtypes == read("entries").dtypes,
    "page": positions(entries),
    "narrow": read("entries", [log, log], schema="KEY STRING").columns,
    "other": spark.read.format("text").load(output + "/text").columns,
    "entries in sql": told(of_entries),
    "misspelt": told(lambda: read("records", mdoe="permissive").columns),
    "missing": told(lambda: read("entries", output + "/no-log").columns),
}
print(json.dumps(found))
spark.stop()
"""


@pytest.fixture
def server(spark: SparkSession) -> Iterator[str]:
    """Start a Connect server in the Java machine of the tests; yield its URL."""
    name = "org.apache.spark.sql.connect.service.SparkConnectService$"
    jvm: Any = spark._jvm
    service = getattr(getattr(jvm, name), "MODULE$")
    context = spark.sparkContext._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.port", "0")
    service.start(context)
    none = jvm.scala.Option.apply(None)
    try:
        yield f"sc://127.0.0.1:{service.localPort()}"
    finally:
        service.stop(none, none)


def test_connect_client_has_the_views_and_errors_of_the_data_source(
    server: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (tmp_path / "text").write_text("a line")
    write_random_log(log, 6, segments=2, records=40)
    (block,) = [text for _, text in blocks(PAGE) if "builder.remote(" in text]
    code = block.replace("sc://HOST:15002", server) + CLIENT
    named = f"SNAPSHOT, OUTPUT = {str(log)!r}, {str(tmp_path)!r}\n"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK", "SPARK"))
    }
    done = subprocess.run(
        [sys.executable, "-c", named + code], env=environment, stdout=subprocess.PIPE, check=True
    )
    found = json.loads(done.stdout)
    live = sorted([row[-2], row[-1]] for row in replayed(log))
    assert found["page"] == live
    assert found["same"] is True
    assert found["narrow"] == ["KEY"]
    assert len(found["records"]) > 70
    assert found["view"] == found["records"]
    assert found["schemas"] == [["time", "timestamp"], ["key", "string"]]
    assert found["other"] == ["value"]
    assert found["entries in sql"] == len(live)
    assert "there is no option mdoe" in found["misspelt"]
    assert f"{tmp_path}/no-log does not exist" in found["missing"]
