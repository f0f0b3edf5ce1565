"""Checkpoints, collection and handover of real daemons with a remote log, and what they show."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.page_contents import get_page
from tests.integration.test_monitoring import PROMTOOL
from tests.integration.test_remote_log_daemons import Nodes, begun, keys, put, ready, standby
from tests.integration.worker_process import wait_until

SMALL = ("--cmdlog-seg-size", "8192", "--cmdlog-clean-int", "50", "--remote-keep", "1")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def nodes(tmp_path: Path, store: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path, f"file://{store}")
    yield made
    made.close()


def names(store: Path, folder: str) -> set[str]:
    found = (store / folder).rglob("*")
    return {str(path.relative_to(store)) for path in found if path.is_file()}


def taken(tmp_path: Path, daemon: DaemonProcess) -> str:
    """Ask for a checkpoint as a user does; return its epoch and number."""
    done = Cli(tmp_path, daemon.address)("remote", "checkpoint", "--json")
    assert done.returncode == 0, done.stderr
    name: str = json.loads(done.stdout)["checkpoint"]
    return name


def object_of(name: str) -> str:
    epoch, _, number = name.partition("-")
    return f"checkpoints/{int(epoch):010d}-{int(number):012d}.json"


def restored(tmp_path: Path, store: Path, name: str, *options: str) -> list[str]:
    """Restore into a new directory, and return the keys that a daemon without a remote log has."""
    (tmp_path / name).mkdir()
    done = Cli(tmp_path, None)(
        "remote", "restore", f"file://{store}", str(tmp_path / name / "log"), *options
    )
    assert done.returncode == 0, done.stderr
    with DaemonProcess(tmp_path / name) as daemon:
        return keys(daemon)


def figures(daemon: DaemonProcess) -> dict[str, float]:
    """Return the metrics of the remote log."""
    lines = get_page(daemon, "/metrics")[1].splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("fastjournal_remote_"))
    return {name.removeprefix("fastjournal_remote_"): float(value) for name, _, value in pairs}


def test_checkpoint_of_a_client_is_what_a_restore_reads(
    tmp_path: Path, store: Path, nodes: Nodes
) -> None:
    first = begun(nodes, tmp_path, f"file://{store}")
    put(first, "a", "b")
    name = taken(tmp_path, first)
    put(first, "c")

    assert object_of(name) in names(store, "checkpoints")
    assert restored(tmp_path, store, "one") == ["a", "b", "c"]
    # no chunk before the checkpoint is needed
    for chunk in names(store, "log/0000000001"):
        if int(chunk[-12:]) <= int(name.partition("-")[2]):
            (store / chunk).unlink()
    assert restored(tmp_path, store, "two") == ["a", "b", "c"]
    assert first.stop() == 0
    first.start()
    assert keys(first) == ["a", "b", "c"]


def test_collection_deletes_what_the_window_does_not_need(
    tmp_path: Path, store: Path, nodes: Nodes
) -> None:
    first = begun(nodes, tmp_path, f"file://{store}", *SMALL)
    expected = sorted(f"{number:02d}" for number in range(40))
    begin = names(store, "segments") | names(store, "log/0000000001")
    for turn in range(3):
        with SyncClient(first.address) as client:
            for name in expected:
                client.set(f"key/{name}", f"{turn}" + "v" * 1000, overwrite=True)
        begin |= names(store, "segments") | names(store, "log/0000000001")
        taken(tmp_path, first)

    def deleted() -> bool:
        taken(tmp_path, first)
        there = names(store, "segments") | names(store, "log/0000000001")
        return len(begin - there) > len(begin) * 0.9

    wait_until(deleted)
    # two, and the newest one of before the window
    assert len(names(store, "checkpoints")) <= 4
    assert restored(tmp_path, store, "restored") == expected
    # the seals of former epochs stay
    assert len(names(store, "log/0000000000")) == 1
    first.kill()
    first.start()
    assert keys(first) == expected


def test_segment_that_somebody_deleted_is_uploaded_again_and_told(
    tmp_path: Path, store: Path, nodes: Nodes
) -> None:
    first = begun(nodes, tmp_path, f"file://{store}", "--http", "127.0.0.1:0")
    put(first, "a", "b")
    taken(tmp_path, first)
    # the first checkpoint of the epoch may have sealed one, too
    segment = min(names(store, "segments"))
    (store / segment).unlink()
    put(first, "c")

    taken(tmp_path, first)

    assert segment in names(store, "segments")
    assert "event=segment-was-missing" in first.said()
    assert figures(first)["segments_missing_total"] == 1
    assert restored(tmp_path, store, "restored") == ["a", "b", "c"]


def test_daemon_ends_where_somebody_deleted_what_it_cannot_write_again(
    tmp_path: Path, store: Path, nodes: Nodes
) -> None:
    first = begun(nodes, tmp_path, f"file://{store}")
    put(first, "a")
    taken(tmp_path, first)
    (store / "format.json").unlink()

    done = Cli(tmp_path, first.address)("remote", "checkpoint")

    assert done.returncode != 0
    assert first.wait() == 74
    assert "format.json: somebody deleted parts of the remote log" in first.said()


def test_handover_lets_a_standby_serve_at_once_and_ends_as_fenced(
    tmp_path: Path, store: Path, nodes: Nodes
) -> None:
    late = ("--takeover-after", "3600")
    first = begun(nodes, tmp_path, f"file://{store}", *late)
    put(first, "a")
    second = nodes.node("second", *late, "--http", "127.0.0.1:0")
    second.launch()
    standby(second, "first")

    done = Cli(tmp_path, first.address)("remote", "handover")

    assert done.returncode == 0, done.stderr
    assert first.wait() == 76
    ready(second)
    assert keys(second) == ["a"]
    assert figures(second)['takeovers_total{cause="seal"}'] == 1
    # the former primary starts as a standby of it, though the seal was its own
    first.launch()
    standby(first, "second")
    put(second, "b")
    assert keys(second) == ["a", "b"]
    assert Cli(tmp_path, second.address)("remote", "handover").returncode == 0
    assert second.wait() == 76
    ready(first)
    assert keys(first) == ["a", "b"]


def test_handover_without_a_standby_is_taken_over_by_the_next_start(
    tmp_path: Path, store: Path, nodes: Nodes
) -> None:
    first = begun(nodes, tmp_path, f"file://{store}", "--takeover-after", "3600")
    put(first, "a")
    assert Cli(tmp_path, first.address)("remote", "handover").returncode == 0
    assert first.wait() == 76
    first.start()
    assert keys(first) == ["a"]


def test_primary_shows_role_lag_and_checkpoint_to_people_and_programs(
    tmp_path: Path, store: Path, nodes: Nodes
) -> None:
    first = begun(nodes, tmp_path, f"file://{store}", "--http", "127.0.0.1:0")
    put(first, "a")
    taken(tmp_path, first)

    found = figures(first)
    assert (found['role{role="primary"}'], found['role{role="standby"}']) == (1, 0)
    assert (found["epoch"], found["lag_bytes"], found["lag_seconds"]) == (1, 0, 0)
    assert found['requests_total{kind="create",result="ok"}'] >= 2
    assert found["request_seconds_count"] == found['requests_total{kind="create",result="ok"}']
    assert found["checkpoint_age_seconds"] < 60
    assert sum(found[name] for name in found if name.startswith("takeovers_total")) == 1
    if PROMTOOL is not None:
        text = get_page(first, "/metrics")[1]
        check = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert check.returncode == 0, check.stdout + check.stderr
    page = get_page(first, "/")[1]
    assert "Primary, epoch" in page
    assert "Not stored, bytes" in page
    with SyncClient(first.address) as client:
        stats = client.daemon_stats()
    assert (stats.remote_epoch, stats.remote_lag_bytes, stats.remote_lag_us) == (1, 0, 0)
    assert 0 < stats.remote_checkpoint_age_us < 60_000_000


def test_daemon_without_a_remote_log_shows_and_does_nothing_of_it(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--http", "127.0.0.1:0") as daemon:
        assert figures(daemon) == {}
        assert "Primary, epoch" not in get_page(daemon, "/")[1]
        for words in (("checkpoint",), ("handover",)):
            done = Cli(tmp_path, daemon.address)("remote", *words)
            assert done.returncode == 1
            assert b"this daemon has no --remote-log" in done.stderr
        with SyncClient(daemon.address) as client:
            assert not [name for name in client.stats() if name.startswith("remote")]
