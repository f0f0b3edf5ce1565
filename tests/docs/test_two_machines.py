"""Drills of docs/two-machines.md, block for block, and its units."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import google_crc32c
import pytest

from fastjournal import SyncClient
from tests.docs.pages import blocks, check_output, run_script, script_of, steps
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.shell_commands import forked_commands
from tests.system.staging import ROOT

PAGE = ROOT / "docs" / "two-machines.md"
PLACE = "/tmp/two-machines"
RSYNC = re.compile(r"^rsync .*$", re.MULTILINE)
PULL = re.compile(r"^cat > fastjournal-pull <<'end'\n(.*?)^end$", re.MULTILINE | re.DOTALL)
WHOLE = 'cp -a "${source%/}" "${target%/}"'
COPY = 'cp -a "$snapshot" "$name.partial"'


def test_failover_and_restore_lose_no_more_than_the_page_says() -> None:
    drills = steps(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        script = script_of(drills).replace(PLACE, f"{directory}/two")
        if shutil.which("rsync") is None:
            script, number = RSYNC.subn(COPY, script)
            assert number == 1
        # what kills a daemon here looks at its log at once
        status, shown = run_script(script, Path(directory), forked=("fj-cli",))
        assert status == 0, shown
        check_output(drills, shown.replace(f"{directory}/two", PLACE))
        assert not Path(directory, "two").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_units_of_the_page_are_valid(tmp_path: Path) -> None:
    units = [block for kind, block in blocks(PAGE.read_text(encoding="utf-8")) if kind == "ini"]
    names = []
    for unit in units:
        title = re.match(r"# (fastjournal-pull\.\w+)\n", unit)
        assert title is not None
        names.append(title[1])
        # the program is not installed here
        (tmp_path / title[1]).write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit))
    assert names == ["fastjournal-pull.service", "fastjournal-pull.timer"]
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in names)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Pulling:
    """The script of the page, with a copier in the place of rsync."""

    def __init__(self, directory: Path, daemon: DaemonProcess) -> None:
        self.copies = directory / "copies"
        self.copies.mkdir()
        self._script = directory / "fastjournal-pull"
        found = PULL.search(PAGE.read_text(encoding="utf-8"))
        assert found is not None
        self._script.write_text(found[1], encoding="utf-8")
        self._programs = directory / "programs"
        self._programs.mkdir()
        self._daemon = daemon

    def run(self, copier: str, **environment: str) -> int:
        """Pull once; return the exit code.

        Args:
            copier: Shell commands that copy the directory ``$source`` to ``$target``.
            environment: More variables of the script.
        """
        rsync = self._programs / "rsync"
        rsync.write_text(f'#!/bin/bash -e\nsource="${{@: -2:1}}" target="${{@: -1}}"\n{copier}\n')
        rsync.chmod(0o755)
        with forked_commands(["fj-cli"]) as places:
            places = [str(self._programs), *places, str(Path(sys.executable).parent)]
            path = ":".join([*places, os.environ["PATH"]])
            done = subprocess.run(
                ["bash", str(self._script), str(self.copies)],
                env=os.environ
                | {"PATH": path, "QUEUE": "", "FASTJOURNAL_SERVER": self._daemon.address}
                | environment,
                capture_output=True,
                check=False,
            )
        return done.returncode

    def names(self) -> list[str]:
        """Return the copies, whole or not."""
        return sorted(path.name for path in self.copies.iterdir() if path.is_dir())


def test_snapshot_is_pulled_whole_from_a_daemon_that_is_killed_meanwhile(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--cmdlog-seg-size", "4096") as daemon:
        pulling = Pulling(tmp_path, daemon)
        with SyncClient(daemon.address) as client:
            for number in range(100):
                client.set(f"pages:128:0:{number}", "x" * 100)
        assert pulling.run(f"kill -9 {daemon.pid}; {WHOLE}") == 0
        assert pulling.run(WHOLE) != 0, "the daemon is gone"
    (name,) = pulling.names()
    (tmp_path / "other").mkdir()
    shutil.copytree(pulling.copies / name, tmp_path / "other" / "log")
    with DaemonProcess(tmp_path / "other") as daemon, SyncClient(daemon.address) as client:
        assert client.domain_stats("pages").entries == 100


def test_snapshot_that_is_cut_or_damaged_on_its_way_is_no_copy(tmp_path: Path) -> None:
    cut = 'mkdir "$target"; cp "$source"/000000001.log "$target"; exit 23'
    damaged = f'{WHOLE}; printf X | dd of="$target/000000001.log" bs=1 seek=60 conv=notrunc'
    missing = f'{WHOLE}; rm "$target/000000001.log"'
    with DaemonProcess(tmp_path) as daemon:
        pulling = Pulling(tmp_path, daemon)
        with SyncClient(daemon.address) as client:
            client.set("pages:128:0:a", "x" * 100)
            for copier in (cut, damaged, missing):
                assert pulling.run(copier) != 0
                assert all(name.endswith(".partial") for name in pulling.names()), copier
            for _ in range(3):
                assert pulling.run(WHOLE, KEEP="2") == 0
    assert len(pulling.names()) == 2
    assert all(name.endswith("Z") for name in pulling.names())


@pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync here: apt-get install rsync")
def test_archive_is_pulled_segment_by_segment_and_each_once(tmp_path: Path) -> None:
    archive, copy = tmp_path / "archive", tmp_path / "copy"
    copy.mkdir()
    (block,) = (
        block
        for kind, block in blocks(PAGE.read_text(encoding="utf-8"))
        if kind == "console" and "ARCHIVE.json" in block
    )
    pull = "".join(RSYNC.findall(block)[at] + "\n" for at in range(2))
    pull = pull.replace("queue.example:/var/lib/fastjournal/archive/", f"{archive}/")
    pull = pull.replace("/srv/fastjournal-archive/", f"{copy}/")
    with (
        DaemonProcess(tmp_path, "--archive-dir", str(archive)) as daemon,
        SyncClient(daemon.address) as client,
    ):
        for number in (1, 2):
            client.set(f"pages:128:0:{number}", "x")
            client.snapshot()
            deadline = time.monotonic() + START_S
            while not list(archive.glob("*.log")):
                assert time.monotonic() < deadline, daemon.said()
                time.sleep(0.01)
            subprocess.run(["bash", "-ec", pull], check=True)
            assert not list(archive.glob("*.log"))
            segments = sorted(copy.glob("*.log"))
            assert len(segments) == number
        for segment in segments:
            assert segment.stem.endswith(f"-{google_crc32c.value(segment.read_bytes()):08x}")
        state = json.loads((copy / "ARCHIVE.json").read_text(encoding="utf-8"))
        assert state["gaps"] == []
        # a state that is copied first names no segment that is not in the copy
        assert state["next"] <= 1 + max(int(segment.stem[:9]) for segment in segments)
