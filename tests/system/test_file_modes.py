"""Modes of the files that commands make: no wider than those of the log, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from fastjournal import SyncClient
from tests.integration.programs import installed

DEADLINE_S = 60
FILE_MODE, DIRECTORY_MODE, SOCKET_MODE = 0o640, 0o750, 0o660


def run(*command: str, text: str = "", code: int = 0) -> str:
    """Run a command under a umask that takes no right away, and return its output."""
    done = subprocess.run(
        [installed(command[0]), *command[1:]],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        umask=0,
        timeout=DEADLINE_S,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def widest(directory: Path) -> dict[str, int]:
    """Return what is wider than the log, by path, with its mode."""
    found = {}
    for path in directory.rglob("*"):
        mode = path.lstat().st_mode
        allowed = FILE_MODE
        if stat.S_ISDIR(mode):
            allowed = DIRECTORY_MODE
        elif stat.S_ISSOCK(mode):
            allowed = SOCKET_MODE
        if not stat.S_ISLNK(mode) and stat.S_IMODE(mode) & ~allowed:
            found[str(path.relative_to(directory))] = stat.S_IMODE(mode)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a log that a daemon has written, and a snapshot, under umask 0."""
    place = tmp_path / "place"
    place.mkdir(0o750)
    ready = place / "ready"
    daemon = subprocess.Popen(
        [
            *(installed("fastjournald"), "--cmdlog-path", str(place / "log")),
            *("--listen", f"unix:{place}/socket", "--ready-file", str(ready)),
            *("--archive-dir", str(place / "archive"), "--cmdlog-seg-size", "4096"),
        ],
        umask=0,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not ready.exists():
            assert daemon.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with SyncClient(f"unix:{place}/socket") as client:
            for number in range(100):
                client.set(f"pages:128:0:{number}", "x" * 100, uri=f"https://example.org/{number}")
            snapshot = client.snapshot()
        os.symlink(snapshot, place / "snapshot")
        assert widest(place) == {}
    finally:
        daemon.terminate()
        daemon.wait(DEADLINE_S)
    return place


def test_command_makes_no_file_that_is_wider_than_the_log(place: Path) -> None:
    snapshot = os.path.realpath(place / "snapshot")
    run("fj-cli", "export", snapshot, str(place / "parquet"))
    run("fj-cli", "export", "--to", "workq", snapshot, str(place / "workq"))
    run("fj-cli", "token", "new", str(place / "token"))
    lines = '{"domain": "pages", "uri": "https://example.org/", "value": "a"}\nbad line\n'
    rejects = ("--rejects", str(place / "rejects"))
    run("fj-cli", "spool", "put", str(place / "spool"), *rejects, text=lines, code=1)
    assert (place / "rejects").read_text(encoding="utf-8") == "bad line\n"
    run("fj-cli", "spool", "status", str(place / "spool"))

    made = {path.name for path in place.iterdir()}
    assert made >= {"archive", "log", "parquet", "workq", "token", "spool", "rejects"}
    assert widest(place) == {}
    assert stat.S_IMODE((place / "token").stat().st_mode) == 0o600
