"""Steps of the clock, through a real daemon: set back, set ahead, suspended, over a restart."""

from __future__ import annotations

import http.client
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration import shifted_daemon
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.worker_process import wait_until

HOURS_S = 7200
WAIT_S = 60
"""All that lasts for a time lasts so long: longer than a test takes, far shorter than a step."""


class SetClock:
    """The clock of a daemon."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._passed_s = self._set_s = 0
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """Set it so far ahead of the right one."""
        self._set_s = ahead_s
        self._write()

    def let_pass(self, seconds: int) -> None:
        """Let time go by, of which the daemon knows."""
        self._passed_s += seconds
        self._write()

    def _write(self) -> None:
        shifted_daemon.set_offset(self.file, self._passed_s * 10**6, self._set_s * 10**6)


@pytest.fixture
def clock(tmp_path: Path) -> SetClock:
    return SetClock(tmp_path / "clock")


@pytest.fixture
def daemon(tmp_path: Path, clock: SetClock) -> Iterator[DaemonProcess]:
    """A daemon that is not started yet."""
    command = (sys.executable, shifted_daemon.__file__, str(clock.file))
    options = ("--http", "127.0.0.1:0", "--max-attempts", "1", "--retry-delay", str(WAIT_S))
    daemon = DaemonProcess(tmp_path, *options, command=command)
    yield daemon
    if daemon.addresses:
        daemon.stop()


def page(daemon: DaemonProcess, path: str) -> str:
    """Return a page of --http, which is there."""
    address = re.findall(r"event=ready .* http=(\S+)", daemon.said())[-1]
    with closing(http.client.HTTPConnection(address, timeout=START_S)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()


def figure(daemon: DaemonProcess, name: str) -> float:
    """Return a metric."""
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", page(daemon, "/metrics"), re.MULTILINE)
    return float(value)


def wait_said(daemon: DaemonProcess, words: str) -> None:
    """Return when the daemon has logged these words."""
    wait_until(lambda: words in daemon.said())


def lease_and_fail(client: SyncClient) -> None:
    """Lease one job, and fail another, which is delayed."""
    for key in ("leased:1:0:x", "failed:1:0:x"):
        client.set(key, b"work")
    for domain in ("leased", "failed"):
        # one attempt would bury them
        client.limit(domain, attempts=5)
    client.next("leased", lease=WAIT_S)
    (failed,) = client.next("failed", lease=WAIT_S)
    client.release(failed.key, failed.token, error="boom")


def assert_both_come(client: SyncClient, clock: SetClock) -> None:
    """The lease and the back-off end in time, and not before."""
    assert not client.next("leased").pairs
    assert not client.next("failed").pairs
    clock.let_pass(WAIT_S)
    for domain in ("leased", "failed"):
        (job,) = client.next(domain, lease=WAIT_S, wait=WAIT_S, meta=True)
        assert job.meta is not None
        assert job.meta.attempts == 1


def test_clock_that_was_ahead_lets_durations_begin_anew_at_the_start(
    daemon: DaemonProcess, clock: SetClock
) -> None:
    clock.set(HOURS_S)
    daemon.start()
    with SyncClient(daemon.address) as client:
        lease_and_fail(client)
        client.set("held:1:0:x", b"work")
        held = client.next("held", lease=WAIT_S)
        client.set("paused:1:0:x", b"work")
        client.pause("paused", WAIT_S)
    assert figure(daemon, "fastjournal_clock_behind_seconds") == 0
    daemon.kill()
    clock.set(0)
    daemon.start()
    assert "event=begun-anew leases=2 delays=1 pauses=1" in daemon.said()
    wait_said(daemon, "event=clock-behind")
    assert figure(daemon, "fastjournal_clock_behind_seconds") > HOURS_S - 3 * WAIT_S
    assert figure(daemon, "fastjournal_clock_moved_ends_total") == 4
    assert re.fullmatch(r"ok, but the clock is 7\d\d\d s behind .*\n", page(daemon, "/readyz"))
    with SyncClient(daemon.address) as client:
        client.delete("held:1:0:x", token=held.token)
        assert_both_come(client, clock)
        (job,) = client.next("paused", wait=WAIT_S)
        client.delete(job.key, token=job.token)


@pytest.mark.parametrize("passed_s", [0, 10 * WAIT_S], ids=["within-its-length", "behind-it"])
def test_lease_that_a_step_moved_counts_no_attempt_over_a_restart(
    daemon: DaemonProcess, clock: SetClock, passed_s: int
) -> None:
    daemon.start()
    with SyncClient(daemon.address) as client:
        client.set("d:1:0:x", b"work")
        jobs = client.next("d", lease=WAIT_S)
        clock.set(HOURS_S)
        client.stats()
        wait_said(daemon, "event=clock-stepped seconds=+7200.0 leases=1")
        # what waits for a sync comes behind the records of the step
        client.set("d:1:0:y", b"work")
    daemon.kill()
    clock.let_pass(passed_s)
    daemon.start()
    with SyncClient(daemon.address) as client:
        if not passed_s:
            client.delete("d:1:0:x", token=jobs.token)
            return
        (first, second) = client.next("d", count=2, meta=True)
        assert {first.key, second.key} == {b"d:1:0:x", b"d:1:0:y"}
        assert {job.meta.attempts for job in (first, second) if job.meta} == {0}
