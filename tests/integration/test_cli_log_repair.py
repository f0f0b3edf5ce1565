"""``fj-cli log repair``, as it is installed: what it says, what it changes, and what it leaves."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.errors import RefusedError
from fastjournal.spark.storage.files import LogDirectory
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess

DONE, REFUSED, USAGE = 0, 1, 2
KEYS = ("a", "b", "c", "d")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path, None)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a daemon that was stopped, with four keys in one segment."""
    with DaemonProcess(tmp_path) as daemon:
        with SyncClient(daemon.address) as client:
            for key in KEYS:
                client.set(key, key * 40)
        assert daemon.stop() == 0
        return daemon.log_path


def damage(cli: Cli, log: Path, record: int) -> tuple[int, bytes]:
    """Flip a bit of a record; return its offset and what stands there then."""
    segment = log / "000000001.log"
    found = cli.json("log", "dump", str(log))[record]
    data = bytearray(segment.read_bytes())
    data[found["offset"] + 60] ^= 1
    segment.write_bytes(data)
    return found["offset"], bytes(data[found["offset"] : found["offset"] + found["bytes"]])


def files(log: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.iterdir() if path.is_file()}


@pytest.mark.parametrize("way", ["fj-cli log repair", "fastjournald --repair"])
def test_repair_restores_the_old_value_where_a_power_loss_took_the_new_one(
    way: str, cli: Cli, log: Path, tmp_path: Path
) -> None:
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        client.set("a", "one", overwrite=True)
        before = (log / "000000001.log").stat().st_size
        client.set("a", "two" * 700, overwrite=True)
        client.delete("b")
        daemon.kill()
    segment = log / "000000001.log"
    data = bytearray(segment.read_bytes())
    # sectors of the new value that never reached the disk; the removal of the old one did
    first = (before + 511) // 512 * 512
    data[first : first + 1024] = bytes(1024)
    segment.write_bytes(data)
    assert cli("log", "repair", str(log), "--dry-run", "--json").stdout.count(b"damaged") == 2
    options = ("--repair",)
    if way == "fj-cli log repair":
        assert cli("log", "repair", str(log)).returncode == DONE
        options = ()
    with DaemonProcess(tmp_path, *options) as daemon, SyncClient(daemon.address) as client:
        assert client.get("a").value == b"one"
        with pytest.raises(RefusedError, match="nothing stands"):
            client.get("b")


def test_repair_leaves_a_whole_log_as_it_is(cli: Cli, log: Path) -> None:
    before = files(log)
    for options in ([], ["--dry-run"], ["--table"]):
        done = cli("log", "repair", str(log), *options)
        assert (done.returncode, done.stdout) == (DONE, b"")
        assert done.stderr.decode() == f"{log} is whole: nothing to repair\n"
    assert files(log) == before


def test_log_of_a_running_daemon_is_not_repaired(cli: Cli, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        client.set("k", b"v")
        before = files(daemon.log_path)
        done = cli("log", "repair", str(daemon.log_path))
        assert done.returncode == REFUSED
        assert b"another daemon appends to this log" in done.stderr
        assert files(daemon.log_path) == before


def test_snapshot_is_not_repaired_but_a_copy_of_it_is(cli: Cli, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        for key in KEYS:
            client.set(key, key * 40)
        snapshot = Path(client.snapshot())
    refused = cli("log", "repair", str(snapshot))
    assert refused.returncode == USAGE
    assert b"is a snapshot, which never changes" in refused.stderr
    copy = shutil.copytree(snapshot, tmp_path / "copy")
    (copy / "MANIFEST.json").unlink()
    offset, _ = damage(cli, copy, 1)
    assert cli.json("log", "repair", str(copy))[0]["offset"] == offset


def test_log_restored_from_a_snapshot_is_a_log_although_the_manifest_is_there(
    cli: Cli, tmp_path: Path
) -> None:
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        for key in KEYS:
            client.set(key, key * 40)
        snapshot = Path(client.snapshot())
    restored = tmp_path / "restored"
    log = shutil.copytree(snapshot, restored / "log")
    assert (log / "MANIFEST.json").exists()
    with DaemonProcess(restored) as daemon, SyncClient(daemon.address) as client:
        client.set("more", b"v")
        assert cli("log", "verify", str(log)).returncode == DONE
    assert len(LogDirectory(log).segments) == len(list(log.glob("*.log")))
    offset, _ = damage(cli, log, 1)
    (found,) = cli.json("log", "repair", str(log))
    assert (found["kind"], found["offset"]) == ("damaged", offset)
    assert cli("log", "verify", str(log)).returncode == DONE


def test_repair_takes_no_directory_without_segments_for_a_log(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = cli("log", "repair", str(tmp_path / "empty"))
    assert done.returncode == USAGE
    assert b"holds no segment" in done.stderr
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_log_repair_that_a_signal_ends_leaves_the_segment_and_nothing_beside(
    cli: Cli, log: Path, number: signal.Signals
) -> None:
    damage(cli, log, 2)
    before = (log / "000000001.log").read_bytes()
    code = """
import sys, time
from fastjournal.disk import OsDisk
from fj_cli.main import run

def held(disk, old, new):
    print("in the middle", flush=True)
    time.sleep(60)

OsDisk.rename = held
sys.exit(run(sys.argv[1:]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, "log", "repair", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cli.environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"in the middle\n"
    assert (log / "000000001.log.rw").exists()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not (log / "000000001.log.rw").exists()
    assert (log / "000000001.log").read_bytes() == before
    assert [found["kind"] for found in cli.json("log", "repair", str(log))] == ["damaged"]
