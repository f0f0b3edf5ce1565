"""Hard links: the programs on a file system that allows none, as strace feigns it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fastjournal.protocol import Flag, Function, Request, encode_request
from fastjournal.spool.format import FILE_HEADER, encode_record
from fastjournal.spool.slots import list_slots
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.cli_process import Cli
from tests.integration.programs import installed
from tests.integration.worker_process import wait_until

KEY = b"d:128:0:x"
RECORD = encode_record(
    encode_request(Request(Function.SET, 0, Flag.PERSIST, 5, KEY, value_type=1, value=b"v"))
)

pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None, reason="left out: no strace here, to refuse a link"
)


def without_links(error: str, *command: str) -> list[str]:
    """Return the command line of a program for which each link fails with this error."""
    inject = ["-e", "trace=link,linkat", "-e", f"inject=link,linkat:error={error}"]
    return ["strace", "-f", "-qq", "-o", "/dev/null", *inject, installed(command[0]), *command[1:]]


@pytest.mark.parametrize("error", ["EPERM", "EMLINK"])
def test_spool_without_hard_links_names_the_file_system(error: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    put = ("fj-cli", "spool", "put", str(spool), "--uri", "https://example.org/", "v")
    done = subprocess.run(without_links(error, *put), capture_output=True, check=False)
    assert done.returncode == 74
    assert b"cannot link the slot" in done.stderr
    assert b" (use a file system that allows hard links" in done.stderr
    assert os.listdir(spool) == []


def test_forwarder_without_hard_links_names_the_file_system_at_its_start(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "20261120T080000Z-renamed.fjs").write_bytes(FILE_HEADER + RECORD)
    ledger = Ledger()
    with ScriptedDaemon(ledger.answer) as daemon:
        send = ("fj-forwarder", "--spool", str(spool), "--server", daemon.address, "--once")
        done = subprocess.run(without_links("EPERM", *send), capture_output=True, check=False)
    assert done.returncode == 0
    assert b"allows hard links" in done.stderr
    assert b"no program but one that renames a drop-in can write to this spool" in done.stderr
    assert list(ledger.applied) == [KEY]
    assert list_slots(spool) == []
    assert not [name for name in os.listdir(spool) if name.startswith(".")]


def test_snapshot_without_hard_links_names_the_file_system(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    serve = ("fastjournald", "--cmdlog-path", f"{tmp_path}/log", "--listen", address)
    tracer = subprocess.Popen(without_links("EPERM", *serve))
    try:
        wait_until((tmp_path / "socket").exists)
        cli = Cli(tmp_path, address)
        assert cli("set", "k", "v").returncode == 0
        refused = cli("snapshot")
        assert refused.returncode == 1
        assert b"(EPERM) (use a file system that allows hard links" in refused.stderr
        assert cli("get", "k").returncode == 0
    finally:
        for child in Path(f"/proc/{tracer.pid}/task/{tracer.pid}/children").read_text().split():
            os.kill(int(child), 15)
        assert tracer.wait(60) == 0
    assert os.listdir(tmp_path / "log" / "snapshots") == []


@pytest.mark.parametrize("error", ["ENOSYS"])
def test_archive_without_hard_links_ends_the_start(error: str, tmp_path: Path) -> None:
    serve = ("fastjournald", "--cmdlog-path", f"{tmp_path}/log", "--listen", f"unix:{tmp_path}/s")
    command = without_links(error, *serve, "--archive-dir", f"{tmp_path}/archive")
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 64
    assert b"--archive-dir: its file system, or its owner, allows no hard links" in done.stderr
