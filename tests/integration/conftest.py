"""Fixtures of tests against one daemon process: the daemon, a client, the installed ``fj-cli``."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.s3_servers import BUCKET, s3_server
from tests.integration.two_jobs import client_with_two_jobs
from tests.integration.worker_process import Alarm


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """Run a daemon on a socket of this test: its address outlives a restart."""
    with DaemonProcess(tmp_path, "--listen", f"unix:{tmp_path}/socket") as daemon:
        yield daemon


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a remote log: in a directory, and in an S3 server."""
    if request.param == "file":
        yield f"file://{tmp_path}/store"
        return
    with s3_server():
        yield f"s3://{BUCKET}/log"


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[SyncClient]:
    """Connect to that daemon."""
    with SyncClient(daemon.address) as client:
        yield client


@pytest.fixture
def producer(daemon: DaemonProcess) -> Iterator[SyncClient]:
    """Connect a client that looks at the daemon from outside, with the jobs 1 and 2 there."""
    with client_with_two_jobs(daemon.address) as client:
        yield client


@pytest.fixture
def cli(daemon: DaemonProcess, tmp_path: Path) -> Cli:
    """Return an ``fj-cli`` for that daemon."""
    return Cli(tmp_path, daemon.address)


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    """Calls a function in a signal handler of the main thread, in a moment."""

    def arm(action: Callable[[], object]) -> None:
        signal.signal(signal.SIGALRM, lambda _number, _frame: action())
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    before = signal.getsignal(signal.SIGALRM)
    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
