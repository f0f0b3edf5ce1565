"""Spark view entries of a snapshot: records a processor second, wall time and memory.

    python -m tests.bench.bench_entries_view [RECORDS] [DIRECTORY]

The snapshot of ``bench_export``, ``local[2]``, and 1 GiB of heap, which is Spark's default. The
session has run one job. Then ``load``, ``count`` and a write of all columns to nowhere: processor
time of the Java machine and of Python's processes together. The memory is that of the Java machine,
and of all Python processes together, each at most; pages that these share count once (PSS).
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame

from fastjournal.spark import start_session
from tests.bench.bench_export import GROUP_LIVE, GROUP_RECORDS, memory_of, write_snapshot

SAMPLE_SECONDS = 0.2


def processes() -> Iterator[tuple[int, bool]]:
    """Yield this process and all that descend from it, and whether each one is a Java machine."""
    todo = [os.getpid()]
    while todo:
        one = todo.pop()
        try:
            is_java = Path(f"/proc/{one}/comm").read_text().strip() == "java"
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:
            # it has ended
            continue
        yield one, is_java


def processor_seconds() -> float:
    """Return the processor time of all these processes, and of those of them that have ended."""
    ticks = 0
    for one, _ in processes():
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Memory:
    """Largest memory of the Java machine, and of Python's processes, sampled in a thread."""

    def __init__(self) -> None:
        self.java = self.python = 0
        self._ended = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            java = python = 0
            for one, is_java in processes():
                size = memory_of(one, descendants=False)
                java, python = java + size * is_java, python + size * (not is_java)
            self.java, self.python = max(self.java, java), max(self.python, python)

    def stop(self) -> None:
        """Stop sampling."""
        self._ended.set()


def main(records: int, directory: Path) -> None:
    """Print what the view of a snapshot of so many records takes."""
    found = sorted((directory / "snapshots").glob("*Z"))
    snapshot = found[0] if found else write_snapshot(directory, records)
    spark = start_session("local[2]")
    spark.range(1).mapInArrow(lambda batches: batches, "id BIGINT").collect()
    memory = Memory()

    def measured(name: str, work: Callable[[], int | DataFrame | None]) -> int | DataFrame | None:
        began, before = time.monotonic(), processor_seconds()
        result = work()
        took, spent = time.monotonic() - began, processor_seconds() - before
        print(f"{name}: {took:.1f} s, {spent:.1f} s of processor time", flush=True)
        return result

    before = processor_seconds()
    frame = measured(
        "load", lambda: spark.read.format("fastjournal").load(str(snapshot), view="entries")
    )
    assert isinstance(frame, DataFrame)
    rows = measured("count", frame.count)
    spent = processor_seconds() - before
    assert isinstance(rows, int)
    written = rows // GROUP_LIVE * GROUP_RECORDS
    print(f"{written:,} records, {rows:,} live entries: {written / spent:,.0f} a processor second")
    measured("write", lambda: frame.write.format("noop").mode("overwrite").save())
    memory.stop()
    mib = 2**20
    print(f"Java {memory.java / mib:,.0f} MiB, Python {memory.python / mib:,.0f} MiB at most")
    spark.stop()


if __name__ == "__main__":
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    if len(sys.argv) > 2:
        main(chosen, Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(chosen, Path(made))
