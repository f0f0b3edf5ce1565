"""Program of a worker that did not run: its body blocked the event loop, or it was stopped."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import anyio
import anyio.lowlevel
import pytest

from fastjournal import Client, FastjournalError, Job, LeaseLostError, SyncClient
from fastjournal.protocol import Function, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess
from tests.integration.two_jobs import key_of
from tests.integration.worker_process import wait_until

BACKENDS = ("trio", "asyncio")


def block(observer: SyncClient) -> None:
    """Block the event loop until the lease of job 1 is over, and its last words come too late."""
    wait_until(lambda: observer.entry_stats(key_of("1")).state == "ready")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("words_s", [0, 60])
def test_loop_that_its_body_blocks_says_that_the_program_did_not_run(
    daemon: DaemonProcess,
    producer: SyncClient,
    backend: str,
    words_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client gives a completion some seconds beyond the lease; a body may block for longer."""
    monkeypatch.setattr("fastjournal.client.aio.jobs.CLIENT_LAST_WORDS_S", words_s)

    async def main() -> None:
        async with Client(daemon.address) as client:
            jobs = client.jobs("d", lease=1)
            job = await anext(jobs)
            with pytest.raises(LeaseLostError) as caught:
                async with job:
                    block(producer)
            assert isinstance(job.loss, FastjournalError)
            assert job.loss.code == "stalled"
            assert caught.value.__cause__ is job.loss
            jobs = client.jobs("d", lease=1)
            job = await anext(jobs)
            block(producer)
            await job.lost.wait()
            assert job.loss is not None
            assert job.loss.code == "stalled"

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_run_fails_a_job_that_stalls_the_program_for_the_second_time(
    daemon: DaemonProcess, producer: SyncClient, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer.delete(key_of("2"))
    begun = []

    async def work(job: Job) -> None:
        begun.append(job.attempts)
        block(producer)

    async def main() -> None:
        async with Client(daemon.address) as client:
            jobs = client.jobs("d", lease=1, wait=None, retry_delay=3600)
            with anyio.fail_after(60):
                assert await jobs.run(work) == 3

    with caplog.at_level(logging.INFO, "fastjournal"):
        anyio.run(main, backend=backend)
    assert len(begun) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    stats = producer.entry_stats(key_of("1"))
    assert stats.state == "delayed"
    assert stats.last_error is not None
    assert stats.last_error.startswith("this program did not run for ")
    assert stats.attempts == begun[1] + 2


STOPPED = """
import sys, time
from fastjournal import SyncClient
with SyncClient(sys.argv[1]) as client:
    for job in client.jobs("d", lease=1):
        print("begun", flush=True)
        job.lost.wait()
        print(job.loss, flush=True)
        break
"""


def test_blocking_worker_that_was_stopped_says_that_the_program_did_not_run(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", STOPPED, daemon.address], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begun\n"
    os.kill(worker.pid, signal.SIGSTOP)
    wait_until(lambda: producer.entry_stats(key_of("1")).state == "ready")
    os.kill(worker.pid, signal.SIGCONT)
    output, _ = worker.communicate(timeout=60)
    assert "this program did not run for " in output


@pytest.mark.parametrize("backend", BACKENDS)
def test_reply_that_came_while_the_program_did_not_run_is_read(backend: str) -> None:
    may_answer = threading.Event()

    def answer(request: Request) -> Answer:
        if request.function == Function.NOP:
            assert may_answer.wait(60)
        return [Reply(request.identifier)]

    async def main() -> None:
        for _ in range(3):
            may_answer.clear()
            with ScriptedDaemon(answer) as daemon:
                client = Client(daemon.address, reply_timeout=2, reconnect=None)
                async with client, anyio.create_task_group() as group:
                    group.start_soon(client.nop)
                    while not any(r.function == Function.NOP for r in daemon.requests):
                        await anyio.lowlevel.checkpoint()
                    may_answer.set()
                    time.sleep(2.2)  # noqa: ASYNC251 - the stall

    anyio.run(main, backend=backend)
