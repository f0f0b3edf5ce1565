"""Blocks of docs/spark.md, in their order, on the snapshot and the archive of a real daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fastjournal import Spool, SyncClient
from tests.docs.pages import blocks
from tests.integration.daemon_process import DaemonProcess
from tests.system.staging import ROOT

SNAPSHOTS = "/snapshots/20261123"
ARCHIVE = "/var/lib/fastjournal/archive"
STATE = "/var/lib/pipeline/state"
SPOOL = "/var/spool/fastjournal"


def test_spark_blocks_of_the_page_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "archive"
    with (
        DaemonProcess(tmp_path, "--archive-dir", str(archive)) as daemon,
        SyncClient(daemon.address) as client,
    ):
        for number in range(3):
            client.set(f"pages:128:0:{number}", f"page {number}")
        snapshot = Path(client.snapshot())
    with Spool(tmp_path / "spool") as spool:
        spool.append(domain="pages", value="a page that waits")
    names: dict[str, Any] = {
        "SNAPSHOT": str(snapshot),
        "CHECKPOINT": str(tmp_path / "checkpoint"),
        "OUTPUT": str(tmp_path / "output"),
    }
    shown: list[str] = []
    for language, block in blocks((ROOT / "docs" / "spark.md").read_text(encoding="utf-8")):
        code = block.replace(ARCHIVE, str(archive)).replace(STATE, str(tmp_path / "state"))
        code = code.replace(SPOOL, str(tmp_path / "spool"))
        if "builder.remote(" in block:
            # of a client of Spark Connect: spark/test_spark_connect.py runs it
            continue
        if language == "python":
            exec(code, names)
            shown.append(capsys.readouterr().out)
        elif language == "sql":
            code = code.replace(f"{SNAPSHOTS}T000000.000000Z", str(snapshot))
            code = code.replace(f"{SNAPSHOTS}*", str(snapshot))
            for statement in filter(None, map(str.strip, code.split(";"))):
                spark.sql(statement)
    assert "| pages|waiting|    3|" in shown[0], shown
    assert spark.table("live").count() == 3
    assert spark.table("log").count() >= 3
    assert spark.table("waiting").count() == 1
    assert spark.table("history").count() >= 0
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    assert spark.read.parquet(names["OUTPUT"]).count() >= 3
    assert names["events"].isStreaming
    for made in ("TABLE log", "TABLE history", "TABLE waiting", "VIEW live"):
        spark.sql(f"DROP {made}")
