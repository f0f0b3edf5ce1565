"""SNAPSHOT of a real daemon."""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import google_crc32c

from fastjournal.cmdlog.archive import archived_segment
from fastjournal.cmdlog.snapshot import verify_snapshot
from fastjournal.disk import OsDisk
from fastjournal.protocol.constants import Flag, Function
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, codes, set_request
from tests.integration.worker_process import wait_until
from tests.property.live_indexes import assert_live_index

ENTRIES = 20_000
WINDOW = 500


def take_snapshot(client: RawClient) -> Path:
    reply = client.ask(build(Function.SNAPSHOT))
    assert reply.error == ""
    assert reply.pairs
    return Path(reply.pairs[0].value.decode())


def test_snapshot_is_whole_and_a_daemon_starts_on_a_copy(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with DaemonProcess(tmp_path) as daemon, RawClient(daemon.address) as client:
        for number in range(50):
            assert client.ask(set_request(b"a:1:0:%d" % number)).code == ""
        token = client.ask(build(Function.NEXT, count=10)).timeout
        path = take_snapshot(client)
        assert path.is_absolute()
        assert path.parent == tmp_path / "log" / "snapshots"
        manifest = verify_snapshot(OsDisk(), str(path))
        assert manifest.records >= 60
        # what comes later is not in it
        assert client.ask(set_request(b"a:1:0:50")).code == ""
        assert verify_snapshot(OsDisk(), str(path)) == manifest
        assert take_snapshot(client) != path
    shutil.copytree(path, tmp_path / "copy" / "log")
    with DaemonProcess(tmp_path / "copy") as copy:
        with RawClient(copy.address) as client:
            client.send(*(build(Function.GET, b"a:1:0:%d" % number) for number in range(51)))
            assert codes(client.reply() for _ in range(51)) == [""] * 50 + ["not-found"]
            done = build(Function.DELETE, b"a:1:0:0", flags=Flag.WORKED_ON, timeout=token)
            assert client.ask(done).code == ""
        assert copy.stop() == 0


def test_snapshot_that_was_interrupted_is_removed_at_the_next_start(tmp_path: Path) -> None:
    partial = tmp_path / "log" / "snapshots" / "20261120T101112.123456Z.partial"
    partial.mkdir(parents=True)
    (partial / "000000001.log").write_bytes(b"x")
    with DaemonProcess(tmp_path) as daemon:
        assert not partial.exists()
        assert daemon.stop() == 0
    assert str(partial) in daemon.said()


def fill(client: RawClient) -> None:
    """Set many jobs."""
    for first in range(0, ENTRIES, WINDOW):
        numbers = range(first, first + WINDOW)
        client.send(*(set_request(b"a:1:0:%d" % number, uri=b"u%d" % number) for number in numbers))
        assert set(codes(client.reply() for _ in numbers)) == {""}


@contextmanager
def changing(daemon: DaemonProcess) -> Iterator[None]:
    """Let a client take jobs, and end, release and set them, while the block runs."""
    ends = threading.Event()

    def change() -> None:
        number = 0
        with RawClient(daemon.address) as client, suppress(EOFError, OSError):
            while not ends.is_set():
                leased = client.ask(build(Function.NEXT, b"a", count=40))
                pairs = leased.pairs or []
                shown = {"flags": Flag.WORKED_ON, "timeout": leased.timeout}
                asked = [
                    *(build(Function.DELETE, pair.key, **shown) for pair in pairs[:10]),
                    *(
                        build(Function.RELEASE, pair.key, ttl=10**6, **shown)
                        for pair in pairs[10:30]
                    ),
                    *(
                        set_request(b"a:1:0:new%d" % (number + n), uri=b"u%d" % n)
                        for n in range(10)
                    ),
                ]
                number += 10
                client.send(*asked)
                for _ in asked:
                    client.reply()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_snapshot_has_the_entries_of_its_instant_though_clients_change_them(tmp_path: Path) -> None:
    options = ("--cmdlog-seg-size", "500000", "--cmdlog-clean-int", "200", "--cmdlog-sync", "os")
    with DaemonProcess(tmp_path, *options) as daemon, RawClient(daemon.address) as client:
        fill(client)
        with changing(daemon):
            paths = [take_snapshot(client) for _ in range(3)]
        assert daemon.stop() == 0
    for path in paths:
        verify_snapshot(OsDisk(), str(path))
        assert assert_live_index(OsDisk(), str(path)) > 0
    assert f"event=snapshot path={paths[0]} segments=" in daemon.said()


def test_snapshot_whose_index_a_kill_has_cut_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--cmdlog-sync", "os") as daemon:
        snapshots = daemon.log_path / "snapshots"
        with RawClient(daemon.address) as client:
            fill(client)
        for _ in range(100):
            whole = len(list(snapshots.glob("*Z")))
            with RawClient(daemon.address) as client, changing(daemon):
                client.send(build(Function.SNAPSHOT))
                while not list(snapshots.glob("*.partial/LIVE")):
                    if len(list(snapshots.glob("*Z"))) > whole:
                        break
                daemon.kill()
            cut = list(snapshots.glob("*.partial"))
            daemon.start()
            assert not list(snapshots.glob("*.partial"))
            if cut:
                break
        assert cut, "each snapshot was whole before the kill"
        with RawClient(daemon.address) as client:
            path = take_snapshot(client)
        assert daemon.stop() == 0
    assert str(cut[0]) in daemon.said()
    assert assert_live_index(OsDisk(), str(path)) > 0


def test_snapshot_shows_a_lease_whose_uri_an_entry_in_memory_took_before_a_persistent_one(
    tmp_path: Path,
) -> None:
    with DaemonProcess(tmp_path) as daemon, RawClient(daemon.address) as client:
        assert client.ask(set_request(b"a:1:0:x", uri=b"u")).code == ""
        assert client.ask(build(Function.NEXT, b"a", count=1)).pairs
        assert client.ask(build(Function.SET, b"a:1:0:y", b"v", uri=b"u")).code == ""
        assert client.ask(set_request(b"a:1:0:z", uri=b"u")).code == ""
        assert assert_live_index(OsDisk(), str(take_snapshot(client))) == 2


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
        wait_until(lambda: not (daemon.log_path / "000000001.log").exists())
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
