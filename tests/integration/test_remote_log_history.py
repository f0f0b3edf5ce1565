"""History and live entries of the remote log that a daemon writes, read from the store alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fastjournal.client import SyncClient
from fastjournal.disk import OsDisk
from fastjournal.keys import build_journal_key
from fastjournal.remote.file_store import FileStore
from fastjournal.remote.objects import HEADER_BYTES, ChunkId, chunk_id
from fastjournal.spark.export.snapshot_export import export_snapshot
from fastjournal.spark.history.coverage import gaps_of
from fastjournal.spark.history.remote_taking import read_taken, take_remote
from fastjournal.spark.storage.files import LogDirectory
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import Program, installed
from tests.integration.worker_process import wait_until
from tests.property.event_archives import counts_of, events_on

NOTHING = ChunkId(0, 0)
LIVES, ROUNDS = 3, 2
OPTIONS = ("--cmdlog-seg-size", "8192", "--cmdlog-clean-int", "50", "--takeover-after", "3")


def work(client: SyncClient, number: int, truth: Counter[str]) -> None:
    """Add jobs, take most of them, and complete these."""
    for turn in range(100):
        client.set(build_journal_key("jobs", f"{number}.{turn}"), b"w" * 200)
        truth["set"] += 1
    for _ in range(80):
        (job,) = client.next("jobs").pairs
        truth["leased"] += 1
        client.delete(job.key, token=job.token)
        truth["completed"] += 1


def checkpoint(daemon: DaemonProcess, store: Path) -> None:
    """Have the daemon store a checkpoint of all that it has acknowledged."""
    listed = FileStore(str(store)).list("log")
    last = max(chunk_id(name) or NOTHING for name, size in listed if size > HEADER_BYTES)

    def has_all() -> bool:
        found = LogDirectory(store)
        # its live index comes after it
        return found.remote is not None and found.remote.behind >= last and bool(found.live_bytes)

    with Program(
        [installed("fj-cli"), "remote", "checkpoint", "--server", daemon.address]
    ) as asked:
        wait_until(has_all)
        asked.kill()


@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_nights_over_the_remote_log_of_a_daemon_count_each_event_once(
    tmp_path: Path, ends: str
) -> None:
    store, truth, live = tmp_path / "store", Counter[str](), set[bytes]()
    assert Cli(tmp_path, None)("remote", "create", store.as_uri()).returncode == 0
    events = events_on(OsDisk(), str(tmp_path / "output"))
    for life in range(LIVES):
        with DaemonProcess(tmp_path, "--remote-log", store.as_uri(), *OPTIONS) as daemon:
            with SyncClient(daemon.address) as client:
                for round_ in range(ROUNDS):
                    work(client, life * ROUNDS + round_, truth)
                live = {entry.key for entry in client.range()}
            checkpoint(daemon, store)
            assert take_remote(store.as_uri(), events).faults == []
            daemon.kill() if ends == "killed" else daemon.stop()

    counts = Counter[str]()
    for (_, kind), count in counts_of(events).items():
        counts[kind] += count
    assert counts == truth
    taken = read_taken(events)
    assert taken is not None
    assert taken.epoch == LIVES
    assert gaps_of(events.segments(), taken.gaps, taken.last) == []
    export_snapshot(store, tmp_path / "live", processes=1)
    assert set(pq.read_table(tmp_path / "live")["key"].to_pylist()) == live
    assert len(live) == LIVES * ROUNDS * 20
