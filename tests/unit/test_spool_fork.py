"""The child of a fork appends with its own lock and name, also where a slot cannot be closed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from fastjournal.spool import Spool, spool_status
from fastjournal.spool.wake import bind_wake_socket
from fastjournal.testing.clock import ManualClock
from tests.unit.spool_files import EIGHT


def fork_without(descriptors: list[int], work: Callable[[], list[bytes]]) -> list[bytes]:
    """Return what a child does whose parent has closed some descriptors; they are open afterwards.

    A child that waits for a lock is ended after 10 s.
    """
    reading, writing = os.pipe()
    copies = [os.dup(descriptor) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            os.write(writing, b"\n".join(work()))
            os._exit(0)
        finally:
            os._exit(1)
    for descriptor, copy in zip(descriptors, copies, strict=True):
        os.dup2(copy, descriptor, inheritable=False)
        os.close(copy)
    os.close(writing)
    with open(reading, "rb") as file:
        lines = file.read().split(b"\n")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return lines


def descriptor_of(spool: Spool) -> int:
    assert spool._files.current is not None
    return spool._files.current._descriptor


def test_child_whose_slots_cannot_be_closed_has_its_own_lock_and_name(tmp_path: Path) -> None:
    """A program that becomes a daemon may close all descriptors before it forks."""
    spools = [Spool(tmp_path / name, clock=ManualClock(EIGHT)) for name in ("a", "b")]
    for spool in spools:
        spool.append(domain="d")
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with spools[0]._lock, spools[1]._lock:
            held.set()
            assert forked.wait(60)

    def append() -> list[bytes]:
        return [spool.append(domain="d", timestamp_us=EIGHT) for spool in spools]

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        keys = fork_without([descriptor_of(spool) for spool in spools], append)
    finally:
        forked.set()
        thread.join(60)
    for spool, key in zip(spools, keys, strict=True):
        assert spool.append(domain="d", timestamp_us=EIGHT) != key
        spool.close()
        assert spool_status(spool.directory).pending == 3


def test_child_whose_slots_cannot_be_closed_has_its_own_waker(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool, bind_wake_socket(spool.directory):
        spool.append(domain="d")
        assert spool._waker._socket is not None
        inode = os.fstat(spool._waker._socket.fileno()).st_ino

        def open_sockets() -> list[bytes]:
            names = os.listdir("/proc/self/fd")
            paths = [f"/proc/self/fd/{name}" for name in names]
            return [os.fsencode(os.readlink(path)) for path in paths if os.path.lexists(path)]

        assert f"socket:[{inode}]".encode() in open_sockets()
        found = fork_without([descriptor_of(spool)], open_sockets)
        assert f"socket:[{inode}]".encode() not in found
