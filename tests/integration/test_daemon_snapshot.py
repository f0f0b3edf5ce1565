"""SNAPSHOT of a real daemon."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fastjournal.cmdlog.snapshot import verify_snapshot
from fastjournal.disk import OsDisk
from fastjournal.protocol.constants import Flag, Function
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, codes, set_request
from tests.property.live_indexes import assert_live_index

ENTRIES = 20_000
WINDOW = 500


def take_snapshot(client: RawClient) -> Path:
    reply = client.ask(build(Function.SNAPSHOT))
    assert reply.error == ""
    assert reply.pairs
    return Path(reply.pairs[0].value.decode())


@pytest.mark.rule(
    "Functions: 256 SNAPSHOT",
    "SNAPSHOT: Functions that the published design does not have begin at 256",
)
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
