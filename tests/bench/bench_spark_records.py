"""View ``records`` inside Spark: records a processor second, Python workers and JVM together.

    python -m tests.bench.bench_spark_records [RECORDS] [DIRECTORY]

A snapshot as the daemon writes it (``tests.bench.bench_export``), read with all columns and with
four, on one core and on two, in a session that has run one job. Spark throws the rows away
(``noop``). The processor time is that of all processes of the session, from ``/proc``; the ratio of
the wall times of one core and two counts only on a machine with nothing else to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bench.bench_export import run_with_arguments, write_snapshot

FOUR = "command STRING, time TIMESTAMP, key BINARY, timestamp TIMESTAMP"
TICKS = os.sysconf("SC_CLK_TCK")
JOB = """
import sys, time
from fastjournal.spark.session import start_session
from tests.bench.bench_spark_records import FOUR, spent

def read(schema):
    reader = spark.read.format("fastjournal")
    if schema:
        reader = reader.schema(schema)
    reader.load(sys.argv[2]).write.format("noop").mode("overwrite").save()

spark = start_session(sys.argv[1])
read("segment INT")
for title, schema in (("all columns", None), ("four columns", FOUR)):
    before, began = spent(), time.monotonic()
    read(schema)
    print(f"{title};{spent() - before};{time.monotonic() - began}", flush=True)
spark.stop()
"""


def spent(process: int | None = None) -> float:
    """Return the processor seconds of a process and all its descendants, ended ones too."""
    found = 0.0
    todo = [process or os.getpid()]
    while todo:
        one = todo.pop()
        try:
            numbers = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            found += sum(int(number) for number in numbers[11:15]) / TICKS
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:
            # it has ended: its parent has its time
            continue
    return found


def main(records: int, directory: Path) -> None:
    """Print a line for each schema and number of cores."""
    found = sorted((directory / "snapshots").glob("*Z"))
    snapshot = found[0] if found else write_snapshot(directory, records)
    for cores in (1, 2):
        arguments = [sys.executable, "-c", JOB, f"local[{cores}]", str(snapshot)]
        done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            title, processor, wall = line.split(";")
            rate = records / float(processor)
            print(f"local[{cores}] {title:14} {rate:10,.0f} a processor second, {wall:>8.6} s")


if __name__ == "__main__":
    run_with_arguments(main, 1_170_000)
