"""fj-cli export, as it is installed: a snapshot's live entries as Parquet."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from fastjournal.client import SyncClient
from fastjournal.keys import build_journal_key
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess


def take_snapshot(directory: Path) -> str:
    with DaemonProcess(directory) as daemon, SyncClient(daemon.address) as client:
        for name in "cab":
            client.set(build_journal_key(name, "x"), name, uri=f"uri:{name}")
        client.delete(client.next("b").pairs[0].key)
        return client.snapshot()


def test_export_has_the_live_entries_and_its_manifest_names_the_snapshot(tmp_path: Path) -> None:
    import pyarrow.parquet

    snapshot = take_snapshot(tmp_path)
    cli = Cli(tmp_path, None)
    (manifest,) = cli.json("export", snapshot, str(tmp_path / "out"))
    assert manifest["snapshot"] == Path(snapshot).name
    assert manifest["rows"] == 2
    (file,) = manifest["files"]
    table = pyarrow.parquet.read_table(tmp_path / "out" / file["name"])
    assert table.column("domain").to_pylist() == ["a", "c"]
    assert (tmp_path / "out" / "_SUCCESS").exists()
    again = cli("export", snapshot, f"file://{tmp_path}/out", "--table")
    assert again.returncode == 0, again.stderr
    assert f"{file['name']}: 2 rows" in again.stdout.decode()


def test_export_refuses_a_directory_that_is_no_snapshot_or_no_place_for_one(tmp_path: Path) -> None:
    snapshot = take_snapshot(tmp_path)
    cli = Cli(tmp_path, None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    for arguments, code in (
        ([str(tmp_path / "log"), str(tmp_path / "out")], 1),
        ([snapshot, str(tmp_path / "full")], 2),
        ([str(tmp_path / "none"), str(tmp_path / "out")], 74),
    ):
        done = cli("export", *arguments)
        assert done.returncode == code, done.stderr
        assert done.stderr.startswith(b"fj-cli: ")
        assert done.stderr.count(b"\n") == 1
        assert b"rrno" not in done.stderr
    assert f"{tmp_path}/none: cannot list: No such file or directory\n".encode() in done.stderr
    done = cli("export", snapshot, "/proc/none")
    assert (done.returncode, b"rrno" in done.stderr) == (74, False)
    assert b"/proc/none: cannot write: No such file or directory\n" in done.stderr
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_export_that_a_signal_ends_leaves_no_temporary_file(tmp_path: Path) -> None:
    snapshot = take_snapshot(tmp_path)
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    scratch.mkdir()
    code = """
import sys, time
from fastjournal.spark.export import snapshot_export
from fj_cli.main import run

groups = snapshot_export._row_groups

def held(batches):
    yield from groups(batches)
    print("in the middle", flush=True)
    time.sleep(60)

snapshot_export._row_groups = held
sys.exit(run(sys.argv[1:]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, "export", snapshot, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**Cli(tmp_path, None).environment, "TMPDIR": str(scratch)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"in the middle\n"
    assert list(scratch.iterdir())
    assert [path.name for path in out.iterdir()] != []
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(scratch.iterdir()) == []
    assert not out.exists(), "the directory was its own"


def test_export_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    snapshot = take_snapshot(tmp_path)
    code = """
import os, sys, time
from fastjournal.spark import export_snapshot

def tell(done, size):
    with open("/proc/self/task/%d/children" % os.getpid()) as children:
        print(children.read(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    export_snapshot(*sys.argv[1:], processes=2, on_progress=tell)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, snapshot, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    children = [int(number) for number in process.stdout.readline().split()]
    assert len(children) >= 2, "the process of the semaphores, and those of the pool"
    # the descriptors stay valid where numbers of processes come again
    ends = [os.pidfd_open(child) for child in children]
    process.kill()
    process.communicate(timeout=60)
    try:
        for end in ends:
            assert select.select([end], [], [], 60)[0]
    finally:
        for end in ends:
            os.close(end)


def test_export_without_pyarrow_says_what_to_install(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
from fj_cli.main import run
sys.exit(run(["export", "snapshot", "out"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'fastjournal[spark]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
