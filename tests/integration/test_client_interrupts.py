"""SyncClient and what comes in its way: forks, threads, signal handlers, finalizers, the end."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastjournal import (
    CannotConnectError,
    Reconnect,
    RefusedError,
    SyncClient,
    build_journal_key,
)
from fastjournal.client.sync.sockets import Channel
from fastjournal.protocol import Function, Meta, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess, lasting_daemon
from tests.integration.scripted_answers import renewed_lease
from tests.integration.worker_process import Alarm, wait_until

WAIT_S = 60
JOB = build_journal_key("d", "1")
OTHER = build_journal_key("other", "1")


daemon = lasting_daemon()


@pytest.fixture
def producer(daemon: DaemonProcess) -> Iterator[SyncClient]:
    with SyncClient(daemon.address) as client:
        client.set(JOB, "1")
        yield client
        for key in (JOB, OTHER):
            with contextlib.suppress(RefusedError):
                client.delete(key)


def state(client: SyncClient) -> str:
    return client.entry_stats(JOB).state


def run(program: str, *arguments: str) -> tuple[str, str, int]:
    """Return what a Python program wrote to its standard output and error, and its exit code."""
    line = [sys.executable, "-c", program, *arguments]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    return ran.stdout, ran.stderr, ran.returncode


class BodyError(Exception):
    """Exception that a body raises."""


# --- forks ------------------------------------------------------------------------------------

FORKING = """
import os, sys
from fastjournal import SyncClient

client, checker = SyncClient(sys.argv[1]), SyncClient(sys.argv[1])
jobs = client.jobs("d", wait=None)
how = sys.argv[2]

def body(job):
    child = os.fork()
    if child == 0:
        if how == "call":
            assert client.nop()
            for end in (job.complete, job.release, job.bury, job.extend, lambda: next(jobs)):
                try:
                    end()
                except RuntimeError:
                    continue
                raise AssertionError("a child ended the job of its parent")
            os._exit(0)
        raise SystemExit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(checker.entry_stats(job.key).state, flush=True)

def run():
    if how == "jobs":
        with jobs:
            for job in jobs:
                body(job)
    elif how == "job":
        for job in jobs:
            with job:
                body(job)
    else:
        for job in jobs:
            body(job)

run()
"""


@pytest.mark.parametrize("how", ["call", "jobs", "job", "loop"])
def test_fork_of_a_process_ends_no_job_of_the_parent(
    daemon: DaemonProcess, producer: SyncClient, how: str
) -> None:
    assert run(FORKING, daemon.address, how) == ("worked on\n", "", 0)
    with pytest.raises(RefusedError, match="nothing stands"):  # the parent has completed it
        state(producer)


FORKING_WHILE_ANOTHER_THREAD_WAITS = """
import os, threading
from fastjournal import SyncClient
from fastjournal.protocol import Function, Reply
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from fastjournal.times import to_datetime

asked = threading.Event()

def answer(request):
    if request.function == Function.NEXT:
        asked.set()
        return []
    return [Reply(request.identifier, timestamp=5)]

with ScriptedDaemon(answer) as daemon:
    client = SyncClient(daemon.address)
    client.connect()
    threading.Thread(target=client.next, args=("d",), daemon=True).start()
    asked.wait()
    child = os.fork()
    if child == 0:
        assert client.nop() == to_datetime(5)
        client.close()
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
    os._exit(0)
"""


def test_fork_leaves_no_lock_behind_that_a_thread_of_the_parent_holds() -> None:
    assert run(FORKING_WHILE_ANOTHER_THREAD_WAITS) == ("0\n", "", 0)


# --- the end of a program ---------------------------------------------------------------------

ENDING = """
import sys
from fastjournal import SyncClient

client = SyncClient(sys.argv[1])
if sys.argv[2] == "held":
    jobs = client.jobs("d")
    for job in jobs:
        sys.exit(0)
for job in client.jobs("d"):
    break
"""


@pytest.mark.parametrize(
    ("how", "attempts", "last_error"),
    [("held", 0, None), ("dropped", 1, "left by an exception or break")],
)
def test_program_that_ends_in_a_loop_releases_its_job(
    daemon: DaemonProcess, producer: SyncClient, how: str, attempts: int, last_error: str | None
) -> None:
    assert run(ENDING, daemon.address, how) == ("", "", 0)
    stats = producer.entry_stats(JOB)
    assert stats.state in ("ready", "delayed")
    assert (stats.attempts, stats.last_error) == (attempts, last_error)


# --- other threads ----------------------------------------------------------------------------


@contextlib.contextmanager
def another_thread_waits(client: SyncClient, producer: SyncClient) -> Iterator[None]:
    """Have another thread wait for work, and hold the turn of the client, while the block runs."""
    thread = threading.Thread(target=client.next, args=["other"], kwargs={"wait": WAIT_S})
    thread.start()
    wait_until(lambda: client.connection.busy)
    yield
    assert thread.is_alive()
    producer.set(OTHER)
    thread.join()


@pytest.mark.parametrize("block", [False, True])
def test_body_that_raises_while_another_thread_waits_releases_its_job(
    daemon: DaemonProcess, producer: SyncClient, block: bool
) -> None:
    with SyncClient(daemon.address) as client:
        jobs = client.jobs("d")
        assert next(jobs).key == JOB
        with another_thread_waits(client, producer):
            if block:
                with pytest.raises(BodyError), jobs:
                    raise BodyError
            else:
                del jobs
                gc.collect()
            wait_until(lambda: state(producer) == "ready")


# --- leases that are over ---------------------------------------------------------------------


class HandingOutTwo:
    """The first NEXT leases two jobs, each further one the next letter, and then none."""

    def __init__(self) -> None:
        self.batches = [[b"a", b"b"], [b"c"], []]
        self.lost = b""

    def __call__(self, request: Request) -> Answer:
        if request.key == self.lost:
            return [Reply(request.identifier, error="lease-lost")]
        if request.function == Function.TOUCH:
            return [renewed_lease(request)]
        pairs = []
        if request.function == Function.NEXT:
            pairs = [Pair(b"d:1:1:" + name, 1, name, meta=Meta()) for name in self.batches.pop(0)]
        return [Reply(request.identifier, timeout=7, pairs=pairs)]


def test_blocking_loop_leaves_out_a_job_whose_lease_ran_out_behind_the_others() -> None:
    now_s, seen = 0.0, []
    with ScriptedDaemon(HandingOutTwo()) as daemon:
        client = SyncClient(daemon.address, monotonic=lambda: now_s)
        for job in client.jobs("d", count=2, lease=10, wait=None):
            seen.append(job.value)
            now_s += 6
            job.extend()
            now_s += 6
        client.close()
    assert seen == [b"a", b"c"]
    assert [r.key for r in daemon.requests if r.function == Function.DELETE] == [
        b"d:1:1:a",
        b"d:1:1:c",
    ]


# --- signal handlers --------------------------------------------------------------------------


OnAlarm = Callable[[SyncClient, Callable[[], object]], None]


@pytest.fixture
def on_alarm(alarm: Alarm) -> OnAlarm:
    """Calls a function in a signal handler of the main thread, while a client is busy."""

    def arm(client: SyncClient, handler: Callable[[], object]) -> None:
        alarm(lambda: handler() if client.connection.busy else arm(client, handler))

    return arm


def test_close_in_a_signal_handler_ends_a_wait_of_its_thread(
    daemon: DaemonProcess, producer: SyncClient, on_alarm: OnAlarm
) -> None:
    client = SyncClient(daemon.address)
    on_alarm(client, client.close)
    with pytest.raises(CannotConnectError) as caught:
        client.next("other", wait=WAIT_S)
    assert caught.value.code == "not-connected"
    with pytest.raises(CannotConnectError):
        client.nop()
    client.connect()
    assert client.nop()
    client.close()


def test_close_by_another_thread_ends_a_wait() -> None:
    asked, ends = threading.Event(), []

    def script(_request: Request) -> list[Reply]:
        asked.set()
        return []  # it waits without end

    def wait() -> None:
        with pytest.raises(CannotConnectError) as caught:
            client.next("d", wait=WAIT_S)
        ends.append(caught.value.code)

    with ScriptedDaemon(script) as daemon:
        client = SyncClient(daemon.address)
        threads = [threading.Thread(target=wait) for _ in range(2)]  # one of them for its turn
        for thread in threads:
            thread.start()
        assert asked.wait(20)
        closing = threading.Thread(target=client.close)
        closing.start()
        for thread in (closing, *threads):
            thread.join(20)
        assert ends == ["not-connected"] * 2
        assert daemon.connections == 1


def test_close_in_a_signal_handler_while_jobs_are_given_back_hides_no_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = Channel.wait

    def close_and_wait(channel: Channel, **options: Any) -> bool:
        if giving_back:
            client.close()
        return wait(channel, **options)

    def script(request: Request) -> list[Reply]:
        pairs = [Pair(JOB, meta=Meta())] if request.function == Function.NEXT else None
        return [Reply(request.identifier, timeout=7, pairs=pairs)]

    monkeypatch.setattr(Channel, "wait", close_and_wait)
    giving_back = False
    with ScriptedDaemon(script) as daemon:
        client = SyncClient(daemon.address)
        jobs = client.jobs("d")
        job = next(jobs)
        giving_back = True
        with pytest.raises(BodyError), job:
            raise BodyError
        assert client.connection.transport is None
        assert jobs


def test_close_in_a_signal_handler_ends_the_tries_to_connect() -> None:
    pauses: list[float] = []

    def close_at_the_third(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 3:
            client.close()

    with ScriptedDaemon(lambda request: [Reply(request.identifier)]) as daemon:
        client = SyncClient(daemon.address, reconnect=Reconnect(), sleep=close_at_the_third)
        client.nop()
    with pytest.raises(CannotConnectError) as caught:
        client.nop()
    assert (caught.value.code, len(pauses)) == ("not-connected", 3)


def test_request_in_a_signal_handler_of_a_client_in_use_is_refused(
    daemon: DaemonProcess, producer: SyncClient, on_alarm: OnAlarm
) -> None:
    with SyncClient(daemon.address) as client, SyncClient(daemon.address) as another:
        on_alarm(client, client.nop)
        with pytest.raises(RuntimeError, match="one at a time"):
            client.next("other", wait=WAIT_S)
        on_alarm(client, lambda: another.set(OTHER))
        assert [entry.key for entry in client.next("other", wait=WAIT_S)] == [OTHER]


def test_loop_that_is_dropped_while_its_client_waits_releases_its_job(
    daemon: DaemonProcess, producer: SyncClient, on_alarm: OnAlarm
) -> None:
    with SyncClient(daemon.address) as client:
        held = [client.jobs("d")]
        assert next(held[0]).key == JOB
        on_alarm(client, held.clear)
        waited = threading.Thread(
            target=lambda: (
                wait_until(lambda: state(producer) == "ready"),
                producer.set(OTHER),
            )
        )
        waited.start()
        assert [entry.key for entry in client.next("other", wait=WAIT_S)] == [OTHER]
        waited.join()
