"""Stream of a daemon's snapshots in a real Spark: each record once, over a restart too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.client import SyncClient
from tests.integration.daemon_process import DaemonProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

SCHEMA = "segment INT, offset BIGINT, command STRING, key STRING"
NEVER_COMPACTED = ("--cmdlog-clean-int", "0", "--cmdlog-sync", "os")
"""A stream ends with an error where compaction has rewritten the segment in which it stands."""


def work(client: SyncClient, first: int) -> None:
    """Set ten entries, lease four and complete two."""
    for number in range(first, first + 10):
        client.set(f"web:128:0:{number}", b"value")
    leased = client.next("web", count=4)
    assert leased.token is not None
    for pair in leased.pairs[:2]:
        client.delete(pair.key, token=leased.token)


def test_stream_of_snapshots_has_each_record_once_while_new_ones_come_and_over_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"

    @contextmanager
    def stream(snapshots: Path) -> Iterator[StreamingQuery]:
        frame = spark.readStream.format("fastjournal").schema(SCHEMA).load(str(snapshots))
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
        query = writer.start(str(output), format="parquet")
        try:
            yield query
        finally:
            query.stop()

    def found() -> int:
        return spark.read.parquet(str(output)).count()

    with DaemonProcess(tmp_path, *NEVER_COMPACTED) as daemon, SyncClient(daemon.address) as client:
        work(client, 0)
        snapshots = Path(client.snapshot()).parent
        with stream(snapshots) as query:
            query.processAllAvailable()
            first = found()
            work(client, 10)
            client.snapshot()
            query.processAllAvailable()
            second = found()
        assert 0 < first < second
        # Spark was killed in the last batch, before it had told what it wrote
        last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
        for directory in (checkpoint / "commits", output / "_spark_metadata"):
            for path in (directory / f"{last}", directory / f".{last}.crc"):
                path.unlink()
        work(client, 20)
        newest = client.snapshot()
        with stream(snapshots) as query:
            query.processAllAvailable()
    rows = spark.read.parquet(str(output)).orderBy("segment", "offset").collect()
    batch = spark.read.format("fastjournal").schema(SCHEMA).load(newest)
    assert rows == batch.orderBy("segment", "offset").collect()
    assert len(rows) > second
    assert sum(row.command == "complete" for row in rows) == 6
