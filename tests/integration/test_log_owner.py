"""Repaired files keep owner and mode: whoever runs the log can read it afterwards."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from shlex import quote

import pytest

from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import OsDisk
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.integration.programs import installed, run_program

OTHER = 65534
"""A user and group that is not this one."""
NOW = START_US + 1_000_000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def damaged_log(directory: Path, mode: int, owner: int | None) -> Path:
    """Two segments: one with damage, and one with a torn end and a leftover."""
    log = directory / "log"
    log.mkdir(mode=0o750)
    for number in (1, 2):
        segment = SegmentBuilder(number - 1, ids_from=100 * number)
        for entry in range(4):
            segment.entry(b"key %d %d" % (number, entry))
        data = bytearray(bytes(segment))
        if number == 1:
            data[segment.offsets[2] + 40] ^= 1
        else:
            data += b"torn"
        (log / f"{number:09d}.log").write_bytes(data)
    (log / "000000001.log.rw").write_bytes(b"left over")
    for path in (*log.iterdir(), log):
        if path != log:
            path.chmod(mode)
        if owner is not None:
            os.chown(path, owner, owner)
    return log


def owners(log: Path) -> set[tuple[int, int]]:
    return {(path.stat().st_uid, path.stat().st_gid) for path in log.rglob("*")}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660])
def test_repair_keeps_the_mode_of_its_files(tmp_path: Path, mode: int) -> None:
    log = damaged_log(tmp_path, mode, None)
    recover(OsDisk(), str(log), now_us=NOW, repair=True)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in log.glob("0*")}
    assert len(modes) == 4, "two segments, and what was taken out of each"
    assert set(modes.values()) == {mode}


@as_root
@pytest.mark.parametrize("way", ["fj-cli log repair", "fastjournald --repair"])
def test_log_files_that_root_writes_belong_to_the_owner_of_the_log(
    tmp_path: Path, way: str
) -> None:
    log = damaged_log(tmp_path, 0o640, OTHER)
    if way == "fj-cli log repair":
        done = run_program(
            [installed("fj-cli"), "log", "repair", str(log)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "so do the files that were written" in done.stderr
    else:
        ready = tmp_path / "ready"
        daemon, cli = quote(installed("fastjournald")), quote(installed("fj-cli"))
        command = (
            f"{daemon} --cmdlog-path {log} --repair --ready-file {ready}"
            f" --listen unix:{tmp_path}/socket & while ! test -e {ready}; do kill -0 $! || exit 1;"
            f" sleep 0.05; done; {cli} --server unix:{tmp_path}/socket set k v &&"
            f" {cli} --server unix:{tmp_path}/socket snapshot; kill $!; wait $!"
        )
        subprocess.run(["sh", "-c", command], check=True, timeout=120, capture_output=True)
        assert list(log.glob("snapshots/*/MANIFEST.json"))
    assert list(log.glob("*.damaged-*"))
    assert list(log.glob("*.lock"))
    assert owners(log) == {(OTHER, OTHER)}


def test_snapshots_are_no_wider_than_the_log(tmp_path: Path) -> None:
    log = damaged_log(tmp_path, 0o600, None)
    log.chmod(0o700)
    disk = OsDisk()
    found = recover(disk, str(log), now_us=NOW, repair=True)
    segments = [*found.sealed, *([found.active] if found.active else [])]
    path = Path(take_snapshot(disk, str(log), f"{log}/snapshots", segments, NOW))
    for directory in (path, path.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}
