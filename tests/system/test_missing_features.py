"""Development on a system without features of Linux, as macOS is: they are taken away here.

There is no Mac among the machines of this project. What macOS lacks is removed in a new
interpreter, and F_FULLFSYNC of macOS stands in for fdatasync: it notes that it was called.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.spool import Spool
from tests.integration.daemon_process import DaemonProcess, lasting_daemon
from tests.integration.programs import ended, installed
from tests.system.test_extras import FIXTURE

DEADLINE_S = 60

daemon = lasting_daemon()

WITHOUT_FILES = """
import ctypes, fcntl, os, socket, sys

del os.fdatasync, os.eventfd, os.waitid, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC
socket.__all__ = [name for name in socket.__all__ if hasattr(socket, name)]
fcntl.F_FULLFSYNC = 51
_fcntl, _isdir, _attribute = fcntl.fcntl, os.path.isdir, ctypes.CDLL.__getattr__

def full_sync(descriptor, command, argument=0):
    if command != fcntl.F_FULLFSYNC:
        return _fcntl(descriptor, command, argument)
    os.fsync(descriptor)
    with open(os.environ["SYNCED"], "a") as file:
        file.write("F_FULLFSYNC\\n")
    return 0

def attribute(self, name):
    if name.startswith(("inotify", "fallocate")):
        raise AttributeError(name)
    return _attribute(self, name)

fcntl.fcntl = full_sync
ctypes.CDLL.__getattr__ = attribute
os.path.isdir = lambda path: not str(path).startswith("/proc") and _isdir(path)
"""
WITHOUT_EPOLL = f"{WITHOUT_FILES}\nimport select\ndel select.epoll\n"
"""trio takes epoll for granted on Linux, so the forwarder keeps it."""


def environment(directory: Path, features: str, **more: str) -> dict[str, str]:
    """Return variables with which Python has these features only."""
    place = directory / "features"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(features)
    path = {"PYTHONPATH": str(place), "SYNCED": str(directory / "synced")}
    return {**os.environ, **path, **more}


def run(
    directory: Path, features: str, *command: str, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(directory, features, **more),
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S * 2,
    )


USER = """
import asyncio, sys
from fastjournal import Client, Spool, SyncClient
from fastjournal.errors import BadRequestError, SpoolFailedError
from fastjournal.spool import watch

with SyncClient() as client:
    client.enqueue("mac", {"by": "sync"})
    client.jobs("mac", wait=None).run(lambda job: print(job.decoded()))
    with client.listen("changed") as changes:
        client.set("changed", "1", overwrite=True)
        print(changes.wait(30).key)
        try:
            changes.fileno()
        except BadRequestError as error:
            print(error)

async def work():
    async with Client() as client:
        await client.enqueue("mac", {"by": "asyncio"})
        async for job in client.jobs("mac", wait=None):
            print(job.decoded())

asyncio.run(work())
with Spool(sys.argv[1], durable=True) as spool:
    spool.append(domain="mac", uri="https://example.org/", value=b"spooled")
try:
    watch(sys.argv[1])
except SpoolFailedError as error:
    print(error.message)
"""

SAID = """{"by":"sync"}
b'changed'
this system has no epoll, so that a listener has no descriptor \
(call wait() in a thread, or listen with Client under asyncio)
{"by":"asyncio"}
cannot watch: this system has no inotify (ENOSYS)
"""


@pytest.mark.parametrize("depth", ["", "d" * 120], ids=["short path", "longer than a socket's"])
def test_clients_and_spool_work_without_features_of_linux(
    tmp_path: Path, daemon: DaemonProcess, depth: str
) -> None:
    (tmp_path / depth).mkdir(exist_ok=True)
    spool = str(tmp_path / depth / "spool")
    command = (sys.executable, "-c", USER, spool)
    done = run(tmp_path, WITHOUT_EPOLL, *command, FASTJOURNAL_SERVER=daemon.address)
    assert done.returncode == 0, done.stderr
    assert done.stdout == SAID
    # the record, and the names of slot and directory
    assert (tmp_path / "synced").read_text().count("F_FULLFSYNC") >= 2


def test_tests_of_users_work_without_features_of_linux(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(FIXTURE)
    done = run(tmp_path, WITHOUT_EPOLL, sys.executable, "-m", "pytest", "-q", "-p", "no:trio")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_forwarder_works_without_inotify_and_says_so(tmp_path: Path, daemon: DaemonProcess) -> None:
    command = [installed("fj-forwarder"), "--spool", "spool", "--server", daemon.address]
    with ended(
        subprocess.Popen(
            command,
            env=environment(tmp_path, WITHOUT_FILES),
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "this system has no inotify" in said
        with Spool(tmp_path / "spool") as spool, SyncClient(daemon.address) as client:
            spool.append(domain="mac-spool", uri="https://example.org/", value=b"spooled")
            (job,) = client.next("mac-spool", wait=DEADLINE_S)
        assert job.value == b"spooled"
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0


def test_daemon_says_which_features_it_needs(tmp_path: Path) -> None:
    done = run(tmp_path, WITHOUT_EPOLL, installed("fastjournald"), "--cmdlog-path", "log")
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith("fastjournald: this system has no epoll and no eventfd (run")
    assert not (tmp_path / "log").exists()
