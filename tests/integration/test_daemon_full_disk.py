"""Promise 5 on a real file system that is really full: the daemon as it is installed.

A small file system is mounted in a mount namespace of its own, and reached through the ``/proc``
of the process that holds it, so nothing has to be taken away afterwards: a tmpfs, which takes the
right to make a namespace, and ext4 in a file, which takes root and a loop device. Where the
machine does not allow it, these tests are left out and say so.

Only ENOSPC comes about that way. A device that answers EIO needs device-mapper (``flakey``,
``error``) or FUSE, which few test machines have: EIO on every call of the disk is
``tests/property/test_disk_faults.py``, below the system's calls. A file that must not
grow (EFBIG, by RLIMIT_FSIZE) is in ``test_daemon_kill.py``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fastjournal.clock import unique_timestamp
from fastjournal.cmdlog.snapshot import verify_snapshot
from fastjournal.disk import OsDisk
from fastjournal.protocol.constants import Flag, Function
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import SILENCE_S, RawClient, build, codes, set_request

MIB = 1 << 20
DISK_BYTES = 24 * MIB
VALUE = b"v" * 10_000
WINDOW = 20
LEASE_US = 3_600_000_000
POLL_S = 0.01
INODES = 200
MOUNTS = {
    "tmpfs": f"mount -t tmpfs -o size={DISK_BYTES},mode=0700 none {{path}}",
    "ext4": "mount -o loop {image} {path}",
}
FEW_INODES = f"mount -t tmpfs -o size={DISK_BYTES},nr_inodes={INODES},mode=0700 none {{path}}"


@contextmanager
def mounted(kind: str, directory: Path) -> Iterator[Path]:
    """Mount a small file system and yield where it is reached; skip where that is not allowed."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare: a small file system needs a namespace")
    root = os.geteuid() == 0
    image, path = directory / "image", directory / "disk"
    path.mkdir()
    if kind == "ext4":
        mkfs = shutil.which("mkfs.ext4") or shutil.which("mkfs.ext4", path="/usr/sbin:/sbin")
        if mkfs is None or not root:
            pytest.skip("ext4 in a file needs mkfs.ext4, and root for the loop device")
        image.write_bytes(b"")
        os.truncate(image, DISK_BYTES)
        subprocess.run([mkfs, "-q", "-F", "-m", "0", str(image)], check=True)
    mount = (FEW_INODES if kind == "few inodes" else MOUNTS[kind]).format(image=image, path=path)
    with subprocess.Popen(
        [
            *(unshare, "--mount", *(() if root else ("--user", "--map-root-user"))),
            *("sh", "-c", f"{mount} && echo mounted && exec cat"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip(f"no {kind} can be mounted here: {holder.stderr.read().decode().strip()}")
        # 'cat' ends when its input does, and the namespace with it
        yield Path(f"/proc/{holder.pid}/root{path}")


@pytest.fixture(params=list(MOUNTS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB, less what it needs for itself."""
    with mounted(request.param, tmp_path) as path:
        yield path


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def fill(path: Path, leave: int) -> None:
    """Let a file of somebody else take all of the disk but about so many bytes."""
    with open(path, "wb", buffering=0) as file:
        while (more := free_bytes(path.parent) - leave) > 0:
            file.write(bytes(min(more, MIB)))
        os.fsync(file.fileno())


def wait_code(client: RawClient, code: str) -> None:
    """SET one small entry after the other until that is answered so."""
    deadline = time.monotonic() + SILENCE_S
    while (reply := client.ask(set_request(b"b:1:0:%d" % unique_timestamp()))).code != code:
        assert reply.code in ("", "read-only")
        assert time.monotonic() < deadline, f"never {code!r}"
        time.sleep(POLL_S)


def test_disk_that_fills_makes_the_daemon_read_only_in_time_until_space_returns(
    disk: Path,
) -> None:
    with DaemonProcess(disk, "--min-free-bytes", str(4 * MIB)) as daemon:
        with RawClient(daemon.address) as client:
            for serial in range(2):
                assert client.ask(set_request(b"a:1:0:%d" % serial)).code == ""
            token = client.ask(build(Function.NEXT, b"a")).timeout
            for _ in range(2):
                fill(disk / "filler", 3 * MIB)
                wait_code(client, "read-only")
                client.send(
                    build(Function.GET, b"a:1:0:1"),
                    build(
                        Function.TOUCH,
                        b"a:1:0:0",
                        flags=Flag.WORKED_ON,
                        timeout=token,
                        ttl=LEASE_US,
                    ),
                )
                (got, touched) = (client.reply(), client.reply())
                assert codes([got, touched]) == ["", ""]
                token = touched.timeout
                assert free_bytes(disk) > 2 * MIB
                (disk / "filler").unlink()
                wait_code(client, "")
            assert (
                client.ask(
                    build(Function.DELETE, b"a:1:0:0", flags=Flag.WORKED_ON, timeout=token)
                ).code
                == ""
            )
        assert daemon.stop() == 0
    said = daemon.said()
    assert said.count("event=read-only") == 2
    assert said.count("event=writable") == 2


def test_compaction_ends_the_read_only_mode_where_there_is_garbage(disk: Path) -> None:
    options = ("--min-free-bytes", str(2 * MIB), "--cmdlog-seg-size", str(MIB))
    with DaemonProcess(disk, *options, "--cmdlog-clean-int", "60000") as daemon:
        with RawClient(daemon.address) as client:
            # ten in a hundred stay, in each segment: the log is not yet too large for what is live
            overwrite = Flag.PERSIST | Flag.OVERWRITE
            fill(disk / "filler", 6 * MIB)
            for number in range(1000):
                key = b"keep%d" % number if number % 10 == 0 else b"over"
                reply = client.ask(build(Function.SET, key, VALUE, flags=overwrite))
                assert reply.code in ("", "read-only")
            wait_code(client, "")
        assert daemon.stop() == 0
    said = daemon.said()
    assert "event=read-only" in said
    assert said.count("event=read-only") == said.count("event=writable")


def fill_by_requests(daemon: DaemonProcess) -> list[int]:
    """SET until the daemon is gone; return what got OK.

    Some are refused as read-only where the daemon looks at the free space while more is appended
    than fits: a look comes between the append and the write if the machine has other work.
    """
    acknowledged = []
    deadline = time.monotonic() + SILENCE_S
    with RawClient(daemon.address) as client:
        for first in itertools.count(0, WINDOW):
            if time.monotonic() > deadline:
                break
            numbers = range(first, first + WINDOW)
            try:
                client.send(*(set_request(b"a:1:0:%d" % n, VALUE) for n in numbers))
                for number in numbers:
                    code = client.reply().code
                    assert code in ("", "read-only")
                    if not code:
                        acknowledged.append(number)
            except (EOFError, OSError):
                return acknowledged
    pytest.fail("the daemon went on after a write that cannot have worked")


def test_disk_that_is_full_ends_the_daemon_and_with_space_it_starts_with_all_that_was_acknowledged(
    disk: Path,
) -> None:
    fill(disk / "filler", 6 * MIB)
    options = ("--min-free-bytes", "0", "--cmdlog-seg-size", str(MIB))
    with DaemonProcess(disk, *options) as daemon:
        acknowledged = fill_by_requests(daemon)
        assert daemon.wait() == 74
        said = daemon.said()
        assert "code=log-failed" in said
        assert "No space left on device (ENOSPC)" in said
        assert "free some space on this file system" in said
        assert str(daemon.log_path) in said
        assert "Traceback" not in said
    assert len(acknowledged) > 100
    (disk / "filler").unlink()
    with DaemonProcess(disk, *options) as again:
        with RawClient(again.address) as client:
            for first in range(0, len(acknowledged), WINDOW):
                numbers = acknowledged[first : first + WINDOW]
                client.send(
                    *(build(Function.GET, b"a:1:0:%d" % n, flags=Flag.DATA) for n in numbers)
                )
                for number in numbers:
                    (pair,) = client.reply().pairs or ()
                    assert pair.value == VALUE, number
            assert client.ask(set_request(b"a:1:0:more")).code == ""
        assert again.stop() == 0
    assert_workq_accepts(path.read_bytes() for path in sorted(again.log_path.glob("*.log")))


def test_daemon_starts_on_a_full_disk_and_lets_workers_finish(disk: Path) -> None:
    options = ("--cmdlog-seg-size", str(MIB))
    with DaemonProcess(disk, "--min-free-bytes", str(MIB), *options) as daemon:
        with RawClient(daemon.address) as client:
            for number in range(50):
                assert client.ask(set_request(b"a:1:0:%d" % number, VALUE)).code == ""
            leased = client.ask(build(Function.NEXT, b"a", count=20))
        assert daemon.stop() == 0
    # less than the last segment, so that it cannot be written anew, and enough for deletions
    fill(disk / "filler", 128 * 1024)
    with DaemonProcess(disk, "--min-free-bytes", str(MIB), *options) as full:
        assert "event=not-written-anew" in full.said()
        with RawClient(full.address) as client:
            assert client.ask(set_request(b"a:1:0:no")).code == "read-only"
            for pair in leased.pairs or ():
                ended = build(
                    Function.DELETE, pair.key, flags=Flag.WORKED_ON, timeout=leased.timeout
                )
                assert client.ask(ended).code == ""
        with suppress(FileNotFoundError):
            (disk / "filler").unlink()
        with RawClient(full.address) as client:
            wait_code(client, "")
            assert client.ask(build(Function.GET, b"a:1:0:0")).code == "not-found"
        assert full.stop() == 0


def take_inodes(directory: Path, leave: int) -> None:
    """Let files of somebody else take all inodes but so many."""
    directory.mkdir(exist_ok=True)
    for number in range(os.statvfs(directory).f_favail - leave):
        (directory / str(number)).touch()


def test_disk_without_inodes_makes_the_daemon_read_only_and_it_starts_on_it(tmp_path: Path) -> None:
    options = ("--cmdlog-seg-size", "65536", "--min-free-bytes", str(MIB))
    with mounted("few inodes", tmp_path) as disk:
        others = disk / "others"
        with DaemonProcess(disk, *options) as daemon:
            with RawClient(daemon.address) as client:
                for number in range(40):
                    assert client.ask(set_request(b"a:1:0:%d" % number, VALUE)).code == ""
                leased = client.ask(build(Function.NEXT, b"a", count=20))
                # fewer than the daemon keeps for itself, and enough for the segments of deletions
                take_inodes(others, 20)
                wait_code(client, "read-only")
                assert client.ask(build(Function.GET, b"a:1:0:39")).code == ""
            daemon.kill()
            daemon.start()
            # there is room for the copy, and its inode comes back
            assert "event=not-written-anew" not in daemon.said()
            with RawClient(daemon.address) as client:
                assert client.ask(set_request(b"a:1:0:no")).code == "read-only"
                for pair in leased.pairs or ():
                    token = {"flags": Flag.WORKED_ON, "timeout": leased.timeout}
                    assert client.ask(build(Function.DELETE, pair.key, **token)).code == ""
                shutil.rmtree(others)
                wait_code(client, "")
            assert daemon.stop() == 0


def test_snapshot_for_which_there_is_no_room_is_refused_and_leaves_nothing(disk: Path) -> None:
    with DaemonProcess(disk, "--min-free-bytes", "0") as daemon:
        with RawClient(daemon.address) as client:
            assert client.ask(set_request(b"a:1:0:x", VALUE)).code == ""
            fill(disk / "filler", 0)
            for _ in range(2):
                reply = client.ask(build(Function.SNAPSHOT))
                assert reply.code == "not-persisted"
                assert "No space left on device (ENOSPC)" in reply.error
            snapshots = daemon.log_path / "snapshots"
            assert not snapshots.exists() or not list(snapshots.iterdir())
            (disk / "filler").unlink()
            reply = client.ask(build(Function.SNAPSHOT))
            assert reply.pairs
            path = Path(os.fsdecode(reply.pairs[0].value))
            assert len(verify_snapshot(OsDisk(), str(path)).segments) == 1
            assert client.ask(set_request(b"a:1:0:y")).code == ""
        assert daemon.stop() == 0
    assert "event=snapshot-failed" in daemon.said()
