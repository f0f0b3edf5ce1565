"""SIGKILL of fj-nightly while it takes the archive of a real daemon: each event counts once."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from fastjournal.client import SyncClient
from fastjournal.disk import OsDisk
from fastjournal.keys import build_journal_key
from fastjournal.spark.event_table import EventTable
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.programs import installed

OPTIONS = ("--cmdlog-seg-size", "4096", "--cmdlog-clean-int", "50", "--cmdlog-sync", "os")
ROUNDS = 35
HOUR_S = 3600


def work(client: SyncClient) -> Counter[str]:
    """Work with a queue; return what the daemon said that it has done."""
    truth = Counter[str]()
    for number in range(ROUNDS):
        keys = [build_journal_key("web", f"{number}-{job}") for job in range(16)]
        for key in keys:
            client.set(key, b"v" * 300)
        leased = client.next("web", count=12, lease=HOUR_S)
        assert leased.token is not None
        truth.update({"set": len(keys), "leased": len(leased.pairs)})
        ends = {"completed": 7, "failed": 2, "returned": 1, "buried": 1}
        done = iter(leased.pairs)
        for _ in range(ends["completed"]):
            client.delete(next(done).key, token=leased.token)
        for _ in range(ends["failed"]):
            client.release(next(done).key, leased.token, error="boom")
        client.release(next(done).key, leased.token)
        client.bury(next(done).key, leased.token)
        truth.update(ends)
        truth["purged"] += client.purge("web", count=4)
    return truth


def kill_when(arguments: list[str], reached: Callable[[], bool]) -> None:
    """Run ``fj-nightly`` and kill it at a point of its work."""
    with subprocess.Popen([installed("fj-nightly"), *arguments]) as process:
        deadline = time.monotonic() + START_S
        while not reached():
            assert process.poll() is None
            assert time.monotonic() < deadline, "it goes on"
            time.sleep(0.001)
        process.kill()


def test_event_table_counts_each_event_once_when_fj_nightly_is_killed(tmp_path: Path) -> None:
    archive, output = tmp_path / "archive", tmp_path / "out"
    with (
        DaemonProcess(tmp_path, *OPTIONS, "--archive-dir", str(archive)) as daemon,
        SyncClient(daemon.address) as client,
    ):
        truth = work(client)
        snapshot = client.snapshot()
    waiting = len(list(archive.glob("*.log")))
    assert waiting > 70, "more than one commit takes"
    table = output / "events"
    arguments = ["--snapshot", snapshot, "--output", str(output), "--archive", str(archive)]
    kill_when(arguments, lambda: len(list(table.glob("day=*/*"))) > 10)
    assert not list(table.glob("_commits/*.json")), "in its first commit"
    kill_when(arguments, lambda: len(list(archive.glob("*.log"))) < waiting)
    assert list(archive.glob("*.log")), "while it unlinks what it has taken, or further on"
    kill_when(arguments, lambda: not list(archive.glob("*.log")))

    rows = Counter[str]()
    for file in EventTable(OsDisk(), str(table)).files:
        rows.update(pq.ParquetFile(file).read(["event"])["event"].to_pylist())
    assert rows == truth
    plain = pq.read_table(table).column("event").to_pylist()
    assert Counter(plain) == truth, "as any reader of Parquet finds it"
