"""fj-cli remote: restore and verification of a remote log of a real daemon."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fastjournal.client import SyncClient
from fastjournal.keys import build_journal_key
from fastjournal.remote.open_store import open_store
from fastjournal.remote.store import ObjectStore
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.remote_uploader import LOG, RemoteUploader
from tests.integration.worker_process import wait_until

OPTIONS = ("--cmdlog-seg-size", "8192", "--cmdlog-clean-int", "50")

START = 1_800_000_000
"""Seconds since the Unix epoch."""


def contents(daemon: DaemonProcess) -> dict[str, tuple[object, ...]]:
    """All entries, with their attempts."""
    with SyncClient(daemon.address) as client:
        entries = client.range(meta=True)
        return {
            entry.key.hex(): (entry.value, entry.meta and entry.meta.attempts) for entry in entries
        }


class Installation:
    """A daemon, its remote log, and what it held at an instant."""

    def __init__(self, directory: Path, store: ObjectStore) -> None:
        archive = directory / "archive"
        self.daemon = DaemonProcess(directory, *OPTIONS, "--archive-dir", str(archive))
        self.daemon.start()
        self.uploader = RemoteUploader(store, self.daemon.log_path, archive)
        self.at: dict[int, dict[str, tuple[object, ...]]] = {}

    def work(self, number: int) -> None:
        """Overwrite entries, add, take and complete jobs."""
        with SyncClient(self.daemon.address) as client:
            for turn in range(60):
                client.set(f"key/{turn % 20}", f"{number}.{turn}" + "v" * 200, overwrite=True)
                client.set(build_journal_key("jobs", f"{number}.{turn}"), b"work", uri=f"u:{turn}")
            for _ in range(30):
                (job,) = client.next("jobs").pairs
                client.delete(job.key, token=job.token)

    def note(self, second: int) -> None:
        """Upload everything as of this second, and note the contents."""
        self.uploader.now_us = (START + second) * 1_000_000
        self.uploader.upload()
        self.at[second] = contents(self.daemon)

    def snapshot(self) -> Path:
        with SyncClient(self.daemon.address) as client:
            return Path(client.snapshot())


@contextmanager
def installation(directory: Path, store: ObjectStore) -> Iterator[Installation]:
    directory.mkdir()
    made = Installation(directory, store)
    try:
        yield made
    finally:
        made.daemon.kill()


def busy(made: Installation) -> None:
    """Two epochs, a checkpoint, and compaction behind it of what the checkpoint has."""
    made.work(1)
    made.note(2)
    made.uploader.checkpoint(made.snapshot())
    before = made.daemon.segments()
    made.uploader.take(b"2" * 16)
    for number in (2, 3):
        made.work(number)
        made.note(number + 1)

    def compacted() -> bool:
        now = made.daemon.segments()
        return any(
            name not in now or now[name].st_ino != old.st_ino for name, old in before.items()
        )

    wait_until(compacted)
    made.note(5)


@pytest.fixture
def cli(tmp_path: Path, url: str) -> Cli:
    return Cli(tmp_path, None)


def restored(directory: Path) -> dict[str, tuple[object, ...]]:
    with DaemonProcess(directory) as daemon:
        return contents(daemon)


def run(cli: Cli, *arguments: str) -> dict[str, Any]:
    done = cli("remote", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_remote_restore_brings_a_log_on_which_a_daemon_starts(
    tmp_path: Path, url: str, cli: Cli
) -> None:
    with installation(tmp_path / "first", open_store(url)) as made:
        busy(made)

    verified = run(cli, "verify", url)
    told = run(cli, "restore", url, str(tmp_path / "again" / "log"))

    assert told | {"records": None} == verified
    assert (told["log"], told["epoch"], told["checkpoint"].split("-")[0]) == (LOG, 2, "1")
    assert restored(tmp_path / "again") == made.at[5]
    again = cli("remote", "restore", url, str(tmp_path / "again" / "log"))
    assert again.returncode == 74
    assert b"the directory is not empty" in again.stderr


def test_remote_restore_goes_back_to_an_instant(tmp_path: Path) -> None:
    store, cli = open_store(f"file://{tmp_path}/store"), Cli(tmp_path, None)
    with installation(tmp_path / "first", store) as made:
        busy(made)

    for second in (2, 3, 4):
        told = run(
            cli,
            *("restore", f"file://{tmp_path}/store", str(tmp_path / f"at {second}" / "log")),
            *("--until", f"@{START + second}"),
        )
        assert told["time_us"] == (START + second) * 1_000_000
        assert restored(tmp_path / f"at {second}") == made.at[second]


def one(directory: Path, pattern: str) -> Path:
    return sorted(directory.glob(pattern))[-1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes((data[40] ^ 1,)) + data[41:])


def unlink_with_older(path: Path) -> None:
    """The newest checkpoint cannot be read, and the one before it is gone."""
    path.unlink()
    one(path.parents[2], "checkpoints/0000000000-*").unlink()


@pytest.mark.parametrize(
    ("pattern", "damage", "message"),
    [
        ("segments/*/*", flip, b"not what its name says"),
        ("segments/*/*", cut, b"not what its name says"),
        ("segments/*/*", unlink_with_older, b"no checkpoint whose segments are all there"),
        ("log/0000000001/*[0-9][1-9]", flip, b"the checksum of its header is wrong"),
        ("log/0000000001/*[0-9][1-9]", cut, b"its header says"),
        ("log/0000000001/000000000002", Path.unlink, b"the chunk is missing"),
        ("checkpoints/*1-*", cut, b"it cannot be read"),
        ("epochs/*1.json", Path.unlink, b"the epoch is missing"),
        ("format.json", Path.unlink, b"the prefix holds no remote log"),
    ],
)
def test_remote_verify_and_restore_name_what_is_damaged(
    tmp_path: Path, pattern: str, damage: Callable[[Path], None], message: bytes
) -> None:
    store, cli = open_store(f"file://{tmp_path}/store"), Cli(tmp_path, None)
    with installation(tmp_path / "first", store) as made:
        made.work(1)
        made.uploader.upload(piece_bytes=4000)
        if not pattern.startswith("log/"):
            made.uploader.checkpoint(made.snapshot())
    damage(one(tmp_path / "store", pattern))

    url = f"file://{tmp_path}/store"
    for command in (("verify", url), ("restore", url, str(tmp_path / "log"))):
        done = cli("remote", *command)
        assert done.returncode != 0
        assert message in done.stderr, done.stderr
    assert not (tmp_path / "log").exists()


def test_remote_status_shows_writer_checkpoint_and_what_is_behind(tmp_path: Path) -> None:
    url, cli = f"file://{tmp_path}/store", Cli(tmp_path, None)
    with installation(tmp_path / "first", open_store(url)) as made:
        busy(made)

    status = run(cli, "status", url)
    read = run(cli, "verify", url)

    assert (status["log"], status["epoch"], status["node"]) == (LOG, 2, "node")
    assert status["written_us"] == read["time_us"]
    assert (status["checkpoint"], status["segments"]) == (read["checkpoint"], read["segments"])
    assert not status["sealed"]
    without_bytes = 2  # the seal of epoch 1, the first chunk of epoch 2
    assert status["chunks"] == read["chunks"] + without_bytes
    assert status["segment_bytes"] + status["chunk_bytes"] == read["bytes"]
    shown = cli("remote", "status", url, "--table")
    assert b"writer" in shown.stdout
    assert shown.returncode == 0


def test_remote_create_begins_an_empty_log_once(tmp_path: Path) -> None:
    url, cli = f"file://{tmp_path}/store", Cli(tmp_path, None)

    log = run(cli, "create", url)["log"]

    read = run(cli, "verify", url)
    assert (read["log"], read["epoch"], read["segments"], read["bytes"]) == (log, 0, 0, 0)
    assert not [path for path in (tmp_path / "store/probe").rglob("*") if path.is_file()]
    again = cli("remote", "create", url)
    assert (again.returncode, b"format.json: a remote log is here already" in again.stderr) == (
        74,
        True,
    )
    (tmp_path / "store/format.json").unlink()
    rest = cli("remote", "create", url)
    assert rest.returncode == 74
    assert b"0000000000.json: it is of a remote log that was not begun to the end" in rest.stderr


def test_remote_commands_refuse_what_is_no_store(tmp_path: Path) -> None:
    cli = Cli(tmp_path, None)
    done = cli("remote", "verify", "http://example.org/log")

    assert done.returncode == 2
    assert b"is no URL of an object store" in done.stderr
