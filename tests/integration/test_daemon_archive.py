"""Archive of a real daemon: history is whole although compaction and SIGKILL come in between."""

from __future__ import annotations

import json
import stat
import tempfile
import time
from pathlib import Path

import google_crc32c

from fastjournal.cmdlog.archive import archived_segment
from fastjournal.protocol.constants import Flag, Function
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.raw_client import RawClient, build

OPTIONS = ("--cmdlog-seg-size", "8192", "--cmdlog-clean-int", "50")
ROUNDS = 10


def archived(directory: Path) -> dict[int, bytes]:
    """Return the archived segments; each is what its name says."""
    found = {}
    for path in directory.glob("*.log"):
        segment = archived_segment(path.name)
        assert segment is not None
        assert google_crc32c.value(path.read_bytes()) == segment.crc32c
        assert segment.number not in found
        found[segment.number] = path.read_bytes()
    return found


def test_archive_keeps_what_compaction_removes(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    options = (*OPTIONS, "--archive-dir", str(archive))
    with DaemonProcess(tmp_path, *options) as daemon:
        for number in range(ROUNDS):
            with RawClient(daemon.address) as client:
                for key in range(10):
                    value = b"%d " % number * 200
                    asked = build(
                        Function.SET, b"k%d" % key, value, flags=Flag.PERSIST | Flag.OVERWRITE
                    )
                    assert client.ask(asked).code == ""
            if number == ROUNDS // 2:
                daemon.kill()
                daemon.start()
        deadline = time.monotonic() + START_S
        while (daemon.log_path / "000000001.log").exists():
            assert time.monotonic() < deadline, "compaction goes on"
            time.sleep(0.01)
        with RawClient(daemon.address) as client:
            reply = client.ask(build(Function.SNAPSHOT))
        assert reply.pairs
        snapshot = Path(reply.pairs[0].value.decode())
        history = archived(archive)
        assert sorted(history) == list(range(1, max(history) + 1))
        assert "archive_gaps" not in json.loads((snapshot / "MANIFEST.json").read_text())
        newest = max(snapshot.glob("*.log"))
        (link,) = archive.glob(f"{newest.stem}-*.log")
        assert link.samefile(newest), "what a snapshot seals is archived before its reply"
        assert daemon.stop() == 0
    everything = b"".join(history.values())
    for number in range(ROUNDS):
        assert everything.count(b"%d " % number * 200) >= 10, "each version of each key"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in archive.iterdir()}
    assert not any(mode & 0o027 for mode in modes.values()), modes
    assert not stat.S_IMODE(archive.stat().st_mode) & 0o027


def test_archive_belongs_to_one_daemon_on_one_file_system(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    archive = ("--archive-dir", str(tmp_path / "archive"))
    with DaemonProcess(tmp_path, *archive):
        other = DaemonProcess(tmp_path / "other", *archive)
        other.launch()
        assert other.wait() == 75
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        for options in ((), ("--check-config",)):
            daemon = DaemonProcess(tmp_path, "--archive-dir", f"{elsewhere}/archive", *options)
            daemon.launch()
            assert daemon.wait() == 64
            assert "is on another file system than the log" in daemon.said()
