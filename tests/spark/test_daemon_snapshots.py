"""Snapshots of a real daemon under load: view and export equal recovery on the same files."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from fastjournal import SyncClient
from fastjournal.cmdlog.snapshot import verify_snapshot
from fastjournal.disk import OsDisk
from fastjournal.protocol.constants import Flag, Function
from fastjournal.spark.export.snapshot_export import export_snapshot
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, set_request
from tests.spark.random_logs import by_position, replayed
from tests.spark.test_spark_views import as_told, read, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fastjournal.protocol import Request

ENTRIES = 5000
WINDOW = 500
SNAPSHOTS = 3


def some_request(draw: random.Random, number: int) -> Request:
    """Return a request that changes an entry, if that is there."""
    key, uri = (b"a:1:0:%d" % draw.randrange(ENTRIES), b"u%d" % draw.randrange(ENTRIES))
    kind = draw.randrange(7)
    if kind == 0:
        return set_request(b"b:1:0:new%d" % number, uri=uri, value=draw.randbytes(400))
    if kind == 1:
        return set_request(key, value=draw.randbytes(20))
    if kind == 2:
        return build(Function.DELETE, key)
    if kind == 3:
        return build(Function.RENAME, key, uri=b"c:2:0:%d" % number)
    if kind == 4:
        return build(Function.LINK, key, uri=b"link%d" % number)
    if kind == 5:
        return build(Function.TOUCH, key, ttl=draw.randrange(10**8, 10**10))
    return build(Function.TRUNCATE, key, bytes([draw.randrange(40)]))


@contextmanager
def changing(daemon: DaemonProcess) -> Iterator[None]:
    """Let a client lease, end, release and change entries before the block and while it runs."""
    begun, ends = threading.Event(), threading.Event()

    def change() -> None:
        draw, number = random.Random(1), 0
        with RawClient(daemon.address) as client:
            while not ends.is_set():
                leased = client.ask(build(Function.NEXT, b"a", count=30))
                keys, token = [pair.key for pair in leased.pairs or []], leased.timeout
                asked = [
                    build(Function.DELETE, key, flags=Flag.WORKED_ON, timeout=token)
                    for key in keys[:5]
                ]
                asked += [
                    build(Function.RELEASE, key, flags=Flag.WORKED_ON, timeout=token, ttl=10**6)
                    for key in keys[5:20]
                ]
                asked += [some_request(draw, number + index) for index in range(40)]
                number += 40
                client.send(*asked)
                for _ in asked:
                    client.reply()
                if number > 400:
                    begun.set()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        ends.set()
        thread.join()


def test_snapshots_of_a_daemon_under_load_show_what_recovery_finds(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        DaemonProcess(tmp_path, "--cmdlog-seg-size", str(1 << 20)) as daemon,
        RawClient(daemon.address) as client,
    ):
        for first in range(0, ENTRIES, WINDOW):
            numbers = range(first, first + WINDOW)
            client.send(*(set_request(b"a:1:0:%d" % n, uri=b"u%d" % n) for n in numbers))
            assert {client.reply().code for _ in numbers} == {""}
        with changing(daemon), SyncClient(daemon.address) as other:
            snapshots = [Path(other.snapshot()) for _ in range(SNAPSHOTS)]
        assert daemon.stop() == 0
    for number, snapshot in enumerate(snapshots):
        manifest = verify_snapshot(OsDisk(), str(snapshot))
        assert manifest.live is not None
        expected = replayed(snapshot)
        assert {row[7] for row in expected} == {"waiting", "worked_on"}
        assert {row[3] for row in expected} == {"a", "b", "c"}
        assert any(row[2] for row in expected)
        assert any(row[13] for row in expected)
        assert rows_of(read(spark, snapshot, "entries", instants="us")) == as_told(expected)
        out = tmp_path / f"out{number}"
        assert export_snapshot(snapshot, out, processes=1).rows == len(expected)
        table = pq.read_table(out)
        columns = (column.to_pylist() for column in table.columns)
        assert by_position(list(zip(*columns, strict=True))) == expected
