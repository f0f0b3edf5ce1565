"""Golden files: what a release has written stays readable, and is what the present code writes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fastjournal.cmdlog.recovery.recover import verify
from fastjournal.errors import StoreUnavailableError
from fastjournal.remote.restore import restore_remote
from fastjournal.spool import Spool
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.object_store import MemoryStore
from fastjournald.testing import FastjournalDaemon
from tests.format.golden import CONTENT, DATA, NEWEST, build_all, files_of, live_of
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.live_indexes import indexed, replayed

FROZEN = {"0.1.0": "94501def80a99bddfccb01a67b573a678c70cf3a5411f51c962431f467db2e66"}
"""SHA-256 of names and contents of each release's files."""

VERSIONS = pytest.mark.parametrize("version", FROZEN)


def test_files_of_a_release_stay() -> None:
    found = {}
    for directory in DATA.glob("[0-9]*"):
        digest = hashlib.sha256()
        for name, data in sorted(files_of(directory).items()):
            digest.update(f"{name} {len(data)}\n".encode() + data)
        found[directory.name] = digest.hexdigest()
    assert found == FROZEN


def test_newest_files_are_what_the_present_code_writes() -> None:
    """A change of a format adds a directory: NEWEST, ``python -m tests.format.golden``."""
    written, golden = build_all(), files_of(DATA / NEWEST)
    assert written.keys() == golden.keys()
    differing = {name for name, data in golden.items() if data != written[name]}
    # a live index has its entries in the order of their hashes
    assert {name for name in differing if not name.startswith("remote/live/")} == set()


def content_of(version: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / version / CONTENT).read_text())
    return content


def started(disk: SimulatedDisk, now_us: int) -> CompactedLog:
    """Start a daemon, without sockets, on the log of a disk."""
    log = CompactedLog()
    log.writer.close()
    log.disk = disk
    log.clock.instant_us = now_us
    log.start()
    return log


@VERSIONS
@pytest.mark.usefixtures("both_forms")
def test_daemon_starts_on_the_log_of_a_release(version: str) -> None:
    content, disk = content_of(version), SimulatedDisk()
    disk.mkdir(LOG)
    for name, data in files_of(DATA / version / "log").items():
        disk.create(f"{LOG}/{name}").write(data)
    assert verify(disk, LOG) == []

    log = started(disk, content["now_us"])

    assert live_of(log) == content["log"]
    log.clean_all()
    log.restart()
    assert live_of(log) == content["log"]


def no_wait(_tries: int, error: StoreUnavailableError) -> None:
    raise error


@VERSIONS
def test_daemon_starts_on_the_restored_remote_log_of_a_release(version: str) -> None:
    content, disk, store = content_of(version), SimulatedDisk(), MemoryStore()
    store.objects = files_of(DATA / version / "remote")

    restore_remote(store, disk, LOG, wait=no_wait, now_us=content["now_us"])

    assert live_of(started(disk, content["now_us"])) == content["remote"]


@VERSIONS
def test_live_index_of_a_release_is_read(version: str) -> None:
    store = MemoryStore()
    store.objects = files_of(DATA / version / "remote")
    ((_, index),) = [item for item in store.objects.items() if item[0].startswith("live/")]
    name = max(name for name in store.objects if name.startswith("checkpoints/"))
    epoch = Path(name).name.partition("-")[0]
    listed = json.loads(store.objects[name])["segments"]
    segments = {
        int(each.partition("-")[0]): store.objects[f"segments/{epoch}/{each}"] for each in listed
    }

    assert indexed(index, segments) == replayed(segments)


@VERSIONS
def test_spool_of_a_release_is_forwarded(version: str, tmp_path: Path) -> None:
    content = content_of(version)
    for name, data in files_of(DATA / version / "spool").items():
        (tmp_path / name).write_bytes(data)
    with (
        FastjournalDaemon(start=content["now_us"] / 1e6) as daemon,
        Spool(tmp_path) as spool,
        daemon.sync_client() as client,
    ):
        assert daemon.forward(spool) == len(content["spool"])
        waiting = {name: client.get(name).value.decode() for name in content["spool"]}
    assert waiting == content["spool"]
