"""Lease renewal of the blocking job loop: a thread beside the body, against a real daemon."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from fastjournal import LeaseLostError, RefusedError, SyncClient
from tests.integration.daemon_process import DaemonProcess
from tests.integration.two_jobs import key_of

S = 1_000_000
WAIT_S = 60.0


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def renewal_threads() -> set[threading.Thread]:
    """Return the threads that renew leases."""
    return {each for each in threading.enumerate() if each.name == "fastjournal lease renewal"}


@pytest.fixture
def renewing() -> Callable[[], set[threading.Thread]]:
    """Return what gives those of this test: loops of other tests may be garbage that is there."""
    of_others = renewal_threads()
    return lambda: renewal_threads() - of_others


def until_us(client: SyncClient, *names: str) -> list[int]:
    """When the leases of jobs end."""
    return [client.entry_stats(key_of(name)).worked_on_until_us for name in names]


def test_lease_is_renewed_beside_a_body_that_is_longer(
    daemon: DaemonProcess, producer: SyncClient, renewing: Callable[[], set[threading.Thread]]
) -> None:
    seen = []
    with SyncClient(daemon.address) as client:
        for job in client.jobs("d", count=2, lease=1, wait=None):
            if not seen:
                first = until_us(producer, "1", "2")
                # several leases long; both are held, also the one whose body has not begun
                wait_until(lambda: min(until_us(producer, "1", "2")) > max(first) + 2 * S)  # noqa: B023 - at once
                assert not job.lost.is_set()
                assert len(renewing()) == 1
            seen.append(job.value)
        wait_until(lambda: not renewing())
        assert (seen, producer.domain_stats("d").entries) == ([b"1", b"2"], 0)


def test_lease_that_is_lost_is_told_to_the_body_and_the_loop_can_be_begun_again(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with SyncClient(daemon.address) as client:
        jobs = client.jobs("d", lease=1, wait=None)
        job = next(jobs)
        producer.bury(job.key)
        assert job.lost.wait(WAIT_S)
        assert isinstance(job.loss, RefusedError)
        with pytest.raises(LeaseLostError, match="the lease was lost"):
            next(jobs)
        assert [job.value for job in jobs] == [b"2"]


def test_lease_is_renewed_while_another_thread_waits_on_the_client(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with SyncClient(daemon.address) as client:
        for job in client.jobs("d", lease=1, wait=None):
            thread = threading.Thread(target=client.next, args=["other"], kwargs={"wait": WAIT_S})
            thread.start()
            wait_until(lambda: client.connection.busy)
            (first,) = until_us(producer, "1")
            wait_until(lambda: until_us(producer, "1")[0] > first + 2 * S)  # noqa: B023 - at once
            assert thread.is_alive()
            assert not job.lost.is_set()
            producer.set("other:1:0:x")
            thread.join()
            break
        del job
        gc.collect()
    wait_until(lambda: producer.entry_stats(key_of("1")).state == "ready")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_lease_that_ends_while_a_daemon_is_silent_is_told_to_the_body(
    daemon: DaemonProcess,
    producer: SyncClient,
    elsewhere: bool,
) -> None:
    with SyncClient(daemon.address) as client, client.jobs("d", lease=2, wait=None) as jobs:
        job = next(jobs)
        if elsewhere:
            thread = threading.Thread(target=client.next, args=["other"], kwargs={"wait": WAIT_S})
            thread.start()
            wait_until(lambda: client.connection.busy)
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            # the client itself waits for a minute of silence, and connects for half of one
            assert job.lost.wait(20)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert job.loss is not None
        if elsewhere:
            producer.set("other:1:0:x")
            thread.join()


def test_lease_that_the_body_extends_is_renewed_in_time_and_not_shortened(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with SyncClient(daemon.address) as client, client.jobs("d", lease=120, wait=None) as jobs:
        job = next(jobs)
        job.extend(3)
        short = until_us(producer, "1")[0]
        # though the thread has begun to sleep for half a minute
        wait_until(lambda: until_us(producer, "1")[0] > short + 60 * S)
        job.extend(3600)
        assert 3400 < job.keep() < 3600
        assert not job.lost.is_set()


def test_lease_without_renewal_is_lost_and_has_no_thread(
    daemon: DaemonProcess, producer: SyncClient, renewing: Callable[[], set[threading.Thread]]
) -> None:
    with SyncClient(daemon.address) as client:
        jobs = client.jobs("d", lease=1, wait=None, renew=False)
        next(jobs)
        assert not renewing()
        wait_until(lambda: producer.entry_stats(key_of("1")).attempts == 1)
        with pytest.raises(LeaseLostError):
            next(jobs)
        jobs = client.jobs("d", wait=None, renew=False)
        assert producer.entry_stats(next(jobs).key).worked_on_until_us > (time.time() + 500) * S


ENDS_IN_A_BODY = """
import sys
from fastjournal import SyncClient
client = SyncClient(sys.argv[1])
jobs = client.jobs("d", lease=60)
job = next(jobs)
print(job.key.decode(), flush=True)
"""


def test_lease_thread_does_not_keep_a_program_that_ends(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    program = [sys.executable, "-W", "error", "-c", ENDS_IN_A_BODY, daemon.address]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip().encode() == key_of("1")
    assert producer.entry_stats(key_of("1")).state == "ready"
